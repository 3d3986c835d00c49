"""Symbol relabellings built into networks: equivariance against the definition, and energies that allow it."""

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from egm import targets
from egm.networks import EGNN, MLP, Body, LatticeConv, Preconditioned, ResidualMLP, Scalar, Symmetrised, symmetrise
from egm.networks.symmetric import RELABELLINGS, shifted
from egm.paths import ProductPath
from egm.spaces import Categorical, Real, Space, State
from egm.targets import Ising, Potts, SpinGlass, Target
from support.network_cases import GRID, GRIDS, MIXED, ODD, TYPED, denoiser_outputs, draw, fake_tensors, randomise

CLOCK = Space(a=Categorical(4, shape=()), b=Categorical(4, shape=3), x=Real(2))
PAIR = Space(x=Real((3, 3), centered=True), types=Categorical(2, shape=3), spin=Categorical(2, shape=3))
#: body, space, names: two, three and four symbols, one and two categorical variables, with and without reals
CASES: dict[str, tuple[type[Body], Space, tuple[str, ...]]] = {
    "flip": (LatticeConv, GRID, ("spin-flip",)),
    "flip-mixed": (ResidualMLP, MIXED, ("spin-flip",)),
    "flip-particles": (EGNN, PAIR, ("spin-flip",)),
    "permutation": (LatticeConv, GRIDS, ("symbol-permutation",)),
    "shift-mixed": (MLP, CLOCK, ("symbol-shift",)),
}
ALL = pytest.mark.parametrize("case", CASES)


def build(case: str) -> Symmetrised:
    body, space, names = CASES[case]
    outputs = {**denoiser_outputs(space), "energy": ()}
    options = {"width": 16, "depth": 2}
    return randomise(Symmetrised(body(space, outputs, **options).double(), names))


def times(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def relabel(space: Space, state: State, order: tuple[int, ...]) -> State:
    """Symbol y becomes order[y] in every categorical variable; the last symbol, the mask, stays."""
    table = torch.tensor([*order, len(order)])
    return {name: table[x] if name in space.categorical else x for name, x in state.items()}


def is_equivariant(network: nn.Module, space: Space, order: tuple[int, ...]) -> dict[str, bool]:
    """For each output, whether relabelling the state moves the logits and leaves everything else."""
    state, t = draw(space, (7,)), times(7)
    assert all(bool((state[name] == v.mask).any()) for name, v in space.categorical.items())
    before, after = network(state, t), network(relabel(space, state, order), t)
    same: dict[str, bool] = {}
    for name, value in before.items():
        moved = after[name][..., list(order)] if name in space.categorical else after[name]
        same[name] = torch.allclose(moved, value, rtol=1e-10, atol=1e-10)
    return same


def symbols(space: Space) -> int:
    return next(iter(space.categorical.values())).size


# ------------------------------------------------------------------ the network


@ALL
def test_outputs_follow_every_shift(case):
    network, space = build(case), CASES[case][1]
    n = symbols(space)
    for k in range(n):
        order = tuple((y + k) % n for y in range(n))
        assert all(is_equivariant(network, space, order).values())
        if k:  # the test can fail: without averaging no output has the symmetry
            assert not any(is_equivariant(network.network, space, order).values())


def test_other_permutations_are_not_built_in():
    """What is recorded is true: three symbols are shifted, not exchanged."""
    network, space = build("permutation"), CASES["permutation"][1]
    kept = [o for o in itertools.permutations(range(3)) if all(is_equivariant(network, space, o).values())]
    assert kept == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    assert network.symmetries == ("translation", "symbol-shift")


@ALL
def test_it_is_the_average_of_separate_evaluations(case):
    network, space = build(case), CASES[case][1]
    state, t, n = draw(space, (7,)), times(7), symbols(space)
    expected = {name: torch.zeros_like(value) for name, value in network(state, t).items()}
    for k in range(n):
        order = tuple((y + k) % n for y in range(n))
        for name, value in network.network(relabel(space, state, order), t).items():
            expected[name] += (value[..., list(order)] if name in space.categorical else value) / n
    for name, value in network(state, t).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-10)
        assert float(value.detach().std()) > 1e-3


@ALL
@pytest.mark.parametrize(("batch", "time"), [((), ()), ((3, 5), ()), ((3, 5), (5,)), ((3, 5), (3, 1)), ((0,), (0,))])
def test_batches_and_times_as_of_any_network(case, batch, time):
    network, space = build(case), CASES[case][1]
    state, t = draw(space, batch), times(*time)
    result = network(state, t)
    assert {name: tuple(v.shape) for name, v in result.items()} == {n: batch + s for n, s in network.outputs.items()}
    if batch == (3, 5):
        alone = network({name: x[1, 4] for name, x in state.items()}, t.expand(batch)[1, 4])
        for name, value in alone.items():
            torch.testing.assert_close(value, result[name][1, 4], rtol=1e-10, atol=1e-10)


@ALL
def test_one_evaluation_without_looking_at_values(case):
    network, space = build(case), CASES[case][1]
    seen = []
    network.network.register_forward_hook(lambda module, args, out: seen.append(args[1].shape))
    with fake_tensors() as mode:
        state = {name: mode.from_tensor(x) for name, x in draw(space, (3, 5)).items()}
        result = network(state, mode.from_tensor(times(5)))
    assert all(value.shape[:2] == (3, 5) for value in result.values())
    assert seen == [(5,)]


@ALL
def test_gradients_reach_every_parameter(case):
    network = build(case)
    result = network(draw(CASES[case][1], (40,)), times(40))
    torch.stack([value.square().sum() for value in result.values()]).sum().backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not bool((p.grad != 0).any())] == []


def test_compiles_into_one_graph_and_keeps_its_weights():
    network, other = build("permutation"), randomise(build("permutation"), seed=5)
    state, t = draw(CASES["permutation"][1], (6,)), times(6)
    expected = network(state, t)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    assert all(torch.equal(value, expected[name]) for name, value in compiled(state, t).items())
    assert not torch.allclose(other(state, t)["s"], expected["s"])
    other.load_state_dict(network.state_dict())
    for again in (other, copy.deepcopy(network)):
        assert all(torch.equal(value, expected[name]) for name, value in again(state, t).items())


@pytest.mark.parametrize("case", ["flip-mixed", "shift-mixed", "flip-particles"])
def test_inside_a_preconditioned_network_on_a_mixed_space(case):
    network, (_, space, _) = build(case), CASES[case]
    outer = Preconditioned(network, ProductPath(space))
    assert outer.outputs == network.outputs
    n = symbols(space)
    order = tuple((y + 1) % n for y in range(n))
    assert all(is_equivariant(outer, space, order).values())
    assert not any(is_equivariant(Preconditioned(network.network, ProductPath(space)), space, order).values())


def test_an_energy_is_invariant_and_an_untrained_network_stays_zero():
    torch.manual_seed(0)
    body = LatticeConv(GRID, {"energy": ()}, width=8, depth=1).double()
    energy = Scalar(Preconditioned(Symmetrised(body, ("spin-flip",)), ProductPath(GRID)))
    s, t = draw(GRID, (5,))["s"], times(5)
    assert bool((energy({"s": s}, t) == 0).all())
    randomise(energy)
    before, after = energy({"s": s}, t), energy({"s": torch.where(s == 2, 2, 1 - s)}, t)
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)
    assert float(before.detach().std()) > 1e-3


# ------------------------------------------------------------------ names and refusals


def test_only_declared_relabellings_wrap():
    body = LatticeConv(GRID, {"s": (4, 5, 2)}, width=8, depth=1)
    for names in ((), ("translation", "rotation"), ("label permutation", "permutation")):
        assert symmetrise(body, names) is body
    assert symmetrise(body, ["translation", "spin-flip"]).symmetries == ("translation", "spin-flip")
    assert symmetrise(body, ("symbol-permutation",)).symmetries == ("translation", "symbol-permutation")
    plain = Symmetrised(MLP(GRID, {"energy": ()}, width=8), ("spin-flip", "symbol-shift"))
    assert plain.symmetries == ("spin-flip", "symbol-shift")
    assert plain.space == GRID


def test_bad_arguments():
    body = MLP(GRID, {"energy": ()}, width=8)
    for names in ((), ("translation",), ("spin-flip", "mirror"), "spin-flip"):
        with pytest.raises(ValueError, match=r"symmetries must be a tuple with names among .*'spin-flip'"):
            Symmetrised(body, names)
    with pytest.raises(ValueError, match="exchanges two symbols, but there are 3; declare 'symbol-shift'"):
        symmetrise(MLP(GRIDS, {"energy": ()}, width=8), ("spin-flip",))
    unequal_sites = Space(c=Categorical([2, 3]))
    for space in (TYPED, ODD, unequal_sites, Space(x=Real(2))):  # no shift acts on all of them at once
        with pytest.raises(ValueError, match="one number of symbols at every site; got n ="):
            symmetrise(MLP(space, {"energy": ()}, width=8), ("symbol-shift",))
    with pytest.raises(TypeError, match="Linear must have the attribute `space`"):
        Symmetrised(nn.Linear(2, 2), ("spin-flip",))


# ------------------------------------------------------------------ the targets that declare them

DATA = torch.linspace(-1, 1, 6)
BUILT_IN: dict[str, Callable[[], Target]] = {
    "Ising": lambda: Ising(4, 0.4),
    "Potts": lambda: Potts(4, 3, 1.0),
    "SpinGlass": lambda: SpinGlass(4, seed=0, beta=1.0),
    "JointMoG": lambda: targets.JointMoG(dim=3),
    "SpikeSlab": lambda: targets.SpikeSlab(DATA.reshape(3, 2), DATA[:3]),
    "GaussianMixturePosterior": lambda: targets.GaussianMixturePosterior(DATA, 2),
}


def declared(target: Target) -> set[str]:
    return set(target.symmetries) & set(RELABELLINGS)


def random_states(target: Target) -> Tensor:
    return target.space.categorical["s"].uniform((20,), generator=torch.Generator().manual_seed(0))


def test_which_built_in_targets_declare_a_relabelling():
    names = [name for name in targets.__all__ if name not in ("Target", "EnergyError")]
    made = {name: BUILT_IN[name]() if name in BUILT_IN else getattr(targets, name)() for name in names}
    assert {name for name, target in made.items() if declared(target)} == {"Ising", "Potts", "SpinGlass"}


@pytest.mark.parametrize(
    "target",
    [Ising(4, 0.4), Ising(5, 0.4, J=-1.0), Potts(4, 3, 1.0), Potts(4, 2, 0.7), Potts(3, 5, 0.7), SpinGlass(4, 0, 1.0)],
    ids=repr,
)
def test_declared_relabellings_leave_the_energy(target):
    assert declared(target)
    s = random_states(target)
    energies = target.energy(s=shifted(s, target.states))
    torch.testing.assert_close(energies, energies[:1].expand_as(energies), rtol=1e-5, atol=1e-5)
    assert float(energies.std()) > 0.1


def test_a_field_breaks_the_spin_flip():
    target = Ising(4, 0.4, field=0.3)
    assert declared(target) == set()
    s = random_states(target)
    energies = target.energy(s=shifted(s, 2))
    magnetization = target.observables(s=s)["magnetization"]
    # E(−s) − E(s) = −2 β·field·Σ s
    torch.testing.assert_close(energies[1] - energies[0], -2 * 0.4 * 0.3 * 16 * magnetization, rtol=1e-4, atol=1e-5)
    assert float(magnetization.abs().max()) > 0.1
