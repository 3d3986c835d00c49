"""The contract of every body: shapes, batches, times, zero start, gradients, precision, options, and that it learns."""

import copy
import math

import pytest
import torch

from egm.networks import EGNN, MLP, LatticeConv, ResidualMLP, SiteMLP
from egm.networks.embeddings import TimeEmbedding
from egm.spaces import Categorical, Real, Space
from egm.targets import Ising
from support.network_cases import (
    BINS,
    BODIES,
    GRID,
    MIXED,
    ODD,
    PARTICLES,
    SYMBOLS,
    build,
    denoiser_outputs,
    draw,
    fake_tensors,
    randomise,
)

CASES = pytest.mark.parametrize("case", BODIES)


def times(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def assert_equal(a, b, tolerance: float = 1e-10) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance)


@CASES
@pytest.mark.parametrize("batch", [(), (5,), (3, 5), (0,)])
def test_shapes_and_zero_start(case, batch):
    body, space, options = BODIES[case]
    outputs = {**denoiser_outputs(space), "energy": (), "other": ()}
    if body is not EGNN:
        outputs |= {name: (*v.latent_shape, BINS) for name, v in space.real.items()}
    network = body(space, outputs, **options).double()
    result = network(draw(space, batch), torch.tensor(0.3, dtype=torch.float64))
    assert {name: tuple(value.shape) for name, value in result.items()} == {n: batch + s for n, s in outputs.items()}
    assert all(bool((value == 0).all()) for value in result.values())


@CASES
def test_every_element_is_treated_by_itself(case):
    network, space = build(case), BODIES[case][1]
    state, t = draw(space, (3, 5)), times(5)
    result = network(state, t)
    for i, j in ((0, 0), (2, 1), (1, 4)):
        alone = network({name: x[i, j] for name, x in state.items()}, t[j])
        assert_equal(alone, {name: value[i, j] for name, value in result.items()})


@CASES
@pytest.mark.parametrize("shape", [(), (5,), (3, 1), (1, 5), (3, 5)])
def test_times_broadcast_and_are_embedded_in_their_own_shape(case, shape):
    network, space = build(case), BODIES[case][1]
    state, t = draw(space, (3, 5)), times(*shape)
    expected = network(state, t.expand(3, 5).contiguous())
    seen = []
    (embedding,) = (m for m in network.modules() if isinstance(m, TimeEmbedding))
    embedding.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    assert_equal(network(state, t), expected)
    assert seen == [(*shape, 64)]
    moved = network(state, t * 0.5 + 0.4)
    assert all(not torch.allclose(moved[name], expected[name], atol=1e-6) for name in expected)


@CASES
@pytest.mark.parametrize("wanted", ["denoiser", "energy", "both", "first"])
def test_gradients_reach_every_parameter(case, wanted):
    everything = denoiser_outputs(BODIES[case][1])
    first = dict([next(iter(everything.items()))])
    outputs = {"denoiser": everything, "energy": {"energy": ()}, "both": {**everything, "energy": ()}, "first": first}
    network = build(case, outputs[wanted])
    result = network(draw(network.space, (40,)), times(40))
    torch.stack([value.square().sum() for value in result.values()]).sum().backward()
    unused = [name for name, p in network.named_parameters() if p.grad is None or not bool((p.grad != 0).any())]
    assert unused == []


@CASES
def test_in_place_activations_have_the_right_gradient(case):
    network, space = build(case), BODIES[case][1]
    state, t = draw(space, (4,)), times(4)

    def loss() -> torch.Tensor:
        return torch.stack([value.sin().sum() for value in network(state, t).values()]).sum()

    loss().backward()
    generator = torch.Generator().manual_seed(3)
    for p in list(network.parameters()):
        direction = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        values = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                p.add_(step * direction)
                values.append(loss())
                p.sub_(step * direction)
        assert p.grad is not None
        torch.testing.assert_close((p.grad * direction).sum(), (values[0] - values[1]) / 2e-5, rtol=1e-5, atol=1e-6)


@CASES
def test_no_value_is_looked_at(case):
    """Fake tensors have no values, so anything that would make a GPU wait raises."""
    network, space = build(case), BODIES[case][1]
    with fake_tensors() as mode:
        state = {name: mode.from_tensor(x) for name, x in draw(space, (3, 5)).items()}
        with pytest.raises(RuntimeError):
            bool(next(iter(state.values())).any())
        result = network(state, mode.from_tensor(times(5)))
    assert all(value.shape[:2] == (3, 5) for value in result.values())


@pytest.mark.parametrize("case", ["mlp-mixed", "residual", "lattice", "egnn-typed"])
def test_compiles_into_one_graph(case):
    network, space = build(case), BODIES[case][1]
    state, t = draw(space, (3, 5)), times(5)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    assert_equal(compiled(state, t), network(state, t))


@pytest.mark.parametrize("case", ["mlp-mixed", "residual", "lattice", "egnn-typed"])
def test_single_precision_agrees_and_copies_are_independent(case):
    network, space = build(case), BODIES[case][1]
    state, t = draw(space, (6,)), times(6)
    expected = network(state, t)
    single = copy.deepcopy(network).float()
    state = {name: x.float() if x.is_floating_point() else x for name, x in state.items()}
    result = single(state, t)  # a double t is fine for a single network
    assert all(value.dtype == torch.float32 for value in result.values())
    assert_equal({n: v.double() for n, v in result.items()}, expected, 1e-4)
    assert single.load_state_dict(network.state_dict())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="autocast is used on CUDA")
@pytest.mark.parametrize("case", BODIES)
@torch.no_grad()
def test_autocast(case):
    network, space = build(case).float().cuda(), BODIES[case][1]
    state = {n: (x.float() if x.is_floating_point() else x).cuda() for n, x in draw(space, (50,)).items()}
    t = times(50).float().cuda()
    expected = network(state, t)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        result = network(state, t)
    assert result["energy"].dtype == torch.float32
    for name, value in result.items():
        error = (value.float() - expected[name]).norm() / expected[name].norm()
        assert float(error) < 0.03, f"{name}: {float(error):.3f}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="lattices are rounded on CUDA")
@torch.no_grad()
def test_lattices_are_rounded_on_a_gpu_but_their_scalars_are_not():
    space = Space(s=Categorical(2, shape=(6, 6)))
    state, t = {"s": torch.randint(3, (200, 6, 6))}, times(200).float()
    for outputs, (least, most) in ({"s": (6, 6, 2)}, (1e-4, 0.03)), ({"energy": ()}, (0.0, 1e-4)):
        torch.manual_seed(0)
        network = randomise(LatticeConv(space, outputs, width=32, depth=4))
        (expected,) = network(state, t).values()
        (result,) = network.cuda()({"s": state["s"].cuda()}, t.cuda()).values()
        assert result.dtype == torch.float32
        error = float((result.cpu() - expected).norm() / expected.norm())
        assert least <= error <= most
        (double,) = network.double()({"s": state["s"].cuda()}, t.cuda()).values()
        assert double.dtype == torch.float64
        assert float((double.cpu() - expected).norm() / expected.norm()) < 1e-4


def test_masked_symbols_are_told_apart_by_position():
    for body in (MLP, ResidualMLP, SiteMLP):
        torch.manual_seed(0)
        network = body(SYMBOLS, {"energy": ()}, width=16, depth=2).double()
        randomise(network)
        mask, base = 3, torch.tensor([[0, 1, 2], [2, 1, 0]])
        states = [base] + [base.flatten().index_fill(0, torch.tensor([i]), mask).reshape(2, 3) for i in range(6)]
        energies = network({"s": torch.stack(states)}, torch.tensor(0.5))["energy"]
        distances = (energies[:, None] - energies[None]).abs() + torch.eye(7)
        assert float(distances.detach().min()) > 1e-4


def test_variables_of_one_shape_share_their_sites():
    """Without the input from other sites, an output depends on every variable at its own site and no other."""
    network = build("sites-shared")
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("others.weight"):
                parameter.zero_()
    state = {"s": torch.tensor([[0, 1], [2, 3]]), "y": torch.zeros(2, 2, dtype=torch.float64)}
    changes = {"s": torch.tensor([[0, 2], [2, 3]]), "y": torch.tensor([[0.0, 0.7], [0.0, 0.0]], dtype=torch.float64)}
    before = network(state, times())
    for name, changed in changes.items():
        after = network({**state, name: changed}, times())
        for output in ("s", "y"):
            moved = (after[output] - before[output]).abs().reshape(2, 2, -1).amax(-1) > 1e-6
            assert moved.tolist() == [[False, True], [False, False]], (name, output)


def test_scalars_of_sites_are_sums():
    """Without the layers that see all sites, a scalar is a sum of one term for each site."""
    space = Space(x=Real(2))
    torch.manual_seed(0)
    network = randomise(SiteMLP(space, {"energy": ()}, width=8, depth=1, site_width=8).double())
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "others" in name or "whole" in name:
                parameter.zero_()

    def energy(a: float, b: float) -> float:
        x = torch.tensor([a, b], dtype=torch.float64)
        return float(network({"x": x}, torch.tensor(0.5, dtype=torch.float64))["energy"].detach())

    assert energy(0.3, -1.0) == pytest.approx(0.5 * (energy(0.3, 0.3) + energy(-1.0, -1.0)), abs=1e-12)
    assert abs(energy(0.3, -1.0) - energy(0.3, 0.3)) > 1e-3


@CASES
def test_options_are_kept(case):
    body, _, options = BODIES[case]
    network = build(case)
    assert {name: getattr(network, name) for name in options} == options
    assert isinstance(network, body)


@pytest.mark.parametrize("body", [MLP, ResidualMLP, SiteMLP, LatticeConv, EGNN])
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_options_are_checked(body, value):
    space = {LatticeConv: GRID, EGNN: PARTICLES}.get(body, MIXED)
    for option in ("width", "depth"):
        with pytest.raises(ValueError, match=f"{option} must be a positive whole number, got {value}"):
            body(space, {"energy": ()}, **{option: value})


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "outputs is empty"),
        ({"v": (3,)}, r"outputs\['v'\] is \(3,\), expected \(2,\) \(means\)"),
        ({"v": (2, 4, 4)}, "log-rates"),
        ({"h": (3,)}, r"outputs\['h'\] is \(3,\), expected \(3, 2\) \(logits\)"),
        ({"h": (3, 3)}, "logits"),
        ({"free_energy": (2,)}, "a scalar.*not one of the variables"),
    ],
)
def test_outputs_are_checked(outputs, message):
    with pytest.raises(ValueError, match=message):
        MLP(MIXED, outputs)


def test_states_and_times_are_checked():
    network = build("residual")
    state = draw(MIXED, (5,))
    with pytest.raises(ValueError, match="t has shape \\(4,\\), which does not broadcast to the batch \\(5,\\)"):
        network(state, times(4))
    with pytest.raises(ValueError, match="does not broadcast"):
        network(state, times(2, 5))
    with pytest.raises(ValueError, match="needs the variables"):
        network({"v": state["v"]}, times(5))
    with pytest.raises(TypeError, match=r"must be an egm\.Space"):
        MLP({"v": Real(2)}, {"v": (2,)})  # pyright: ignore[reportArgumentType]


def test_wrong_spaces_are_refused():
    with pytest.raises(ValueError, match="one common 2-D shape"):
        LatticeConv(MIXED, {"energy": ()})
    with pytest.raises(ValueError, match="one common 2-D shape"):
        LatticeConv(ODD, {"energy": ()})
    for kernel in (2, 11):
        with pytest.raises(ValueError, match="kernel must be odd and at most 9"):
            LatticeConv(GRID, {"energy": ()}, kernel=kernel)
    not_centred = Space(x=Real((4, 2)))
    other_shape = Space(x=Real((4, 2), centered=True), types=Categorical(2, shape=3))
    for space in (not_centred, other_shape, MIXED):
        with pytest.raises(ValueError, match=r"centered=True.*use ResidualMLP"):
            EGNN(space, {"energy": ()})
    with pytest.raises(ValueError, match="not the log-rates"):
        EGNN(PARTICLES, {"x": (4, 2, BINS)})


# ---------------------------------------------------------------------------------------------- every body learns


def ising_task(n: int, generator: torch.Generator, size: int):
    """The energy, and the log-odds of each spin given its neighbours."""
    s = torch.randint(2, (n, size, size), generator=generator)
    spin = 2.0 * s - 1
    field = torch.stack([torch.roll(spin, shift, axis) for shift in (1, -1) for axis in (1, 2)]).sum(0)
    odds = field[..., None] * torch.tensor([-0.4, 0.4])
    return {"s": s}, torch.rand(n, generator=generator), {"energy": Ising(size=size, beta=0.4).energy(s=s), "s": odds}


def mixture_task(n: int, generator: torch.Generator):
    """The exact denoiser at x_t = t x_1 + (1−t) ε with x_1 | b ~ N(2b − 1, 0.3²), b hidden in half of the states."""
    t = torch.rand(n, generator=generator)
    b = torch.randint(2, (n,), generator=generator)
    x = 2.0 * b - 1 + 0.3 * torch.randn(n, generator=generator)
    x_t = t * x + (1 - t) * torch.randn(n, generator=generator)
    hidden = torch.rand(n, generator=generator) < 0.5
    variance = 0.09 * t**2 + (1 - t) ** 2
    log_odds = 2 * t * x_t / variance  # of b = 1 against b = 0
    mean_b = torch.where(hidden, torch.tanh(log_odds / 2), 2.0 * b - 1)
    mean = mean_b + 0.09 * t / variance * (x_t - t * mean_b)
    state = {"x": x_t[:, None], "b": torch.where(hidden, 2, b)[:, None]}
    return state, t, {"x": mean[:, None], "b": 0.3 * log_odds.clamp(-10, 10)[:, None, None] * torch.tensor([-0.5, 0.5])}


def particle_task(n: int, generator: torch.Generator):
    """A pair energy that depends on the particles' types, its force, and which type the neighbours have."""
    variable = Real((4, 2), centered=True)
    x, types = variable.noise((n,), generator=generator), torch.randint(2, (n, 4), generator=generator)
    difference = x[:, :, None] - x[:, None]
    charge = 2.0 * types - 1
    pair = torch.exp(-0.5 * difference.square().sum(-1)) * charge[:, :, None] * charge[:, None]
    potential = pair.sum(-1) - 1  # without the particle itself
    targets = {
        "x": (pair[..., None] * difference).sum(-2),
        "types": potential[..., None] * torch.tensor([1.0, -1.0]),
        "energy": 0.5 * potential.sum(-1),
    }
    return {"x": x, "types": types}, torch.rand(n, generator=generator), targets


MIXTURE = Space(x=Real(1), b=Categorical(2, shape=1))
TYPED_PARTICLES = Space(x=Real((4, 2), centered=True), types=Categorical(2, shape=4))
TASKS = {
    "mlp": (MLP, Ising(size=3, beta=0.4).space, lambda n, g: ising_task(n, g, 3), {"width": 128}),
    "residual": (ResidualMLP, MIXTURE, mixture_task, {"width": 64, "depth": 3}),
    "lattice": (
        LatticeConv,
        Ising(size=4, beta=0.4).space,
        lambda n, g: ising_task(n, g, 4),
        {"width": 16, "depth": 2},
    ),
    "egnn": (EGNN, TYPED_PARTICLES, particle_task, {"width": 32, "depth": 2}),
}


@pytest.mark.parametrize("task", TASKS)
def test_learns(task):
    """Seconds of training reach a relative error (of the spread of each target) that the untrained body does not."""
    body, space, sample, options = TASKS[task]
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(4)
    state, t, targets = sample(2000, generator)
    network = body(space, {name: tuple(value.shape[1:]) for name, value in targets.items()}, **options)

    def errors() -> dict[str, float]:
        with torch.no_grad():
            result = network(state, t)
        return {n: float((result[n] - y).square().mean() / y.var()) for n, y in targets.items()}

    untrained = errors()
    optimiser = torch.optim.Adam(network.parameters(), 5e-3)
    steps = 120
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda k: 0.5 * (1 + math.cos(math.pi * k / steps)))
    for _ in range(steps):
        x, times_, wanted = sample(128, generator)
        result = network(x, times_)
        loss = torch.stack([(result[n] - y).square().mean() / targets[n].var() for n, y in wanted.items()]).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    trained = errors()
    assert min(untrained.values()) > 0.9, untrained
    assert max(trained.values()) < 0.2, trained
