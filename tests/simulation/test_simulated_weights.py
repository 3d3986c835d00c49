"""Path weights of whole simulations: E[w] = Z for random untrained networks on every space, path, solver and grid.

Backward paths from exact draws have E[1/w] = 1/Z, which pins the evidence upper bound in the same way.
"""

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from scipy.integrate import quad

import egm.simulation.simulate as module
from egm.networks import Preconditioned, ResidualMLP, predict
from egm.paths import VE, VP, CondOT, Cosine, Masked, ProductPath, Uniform
from egm.processes import Diffusion, DiscreteJump, Flow, Jump
from egm.simulation.clock import group_ends, time_grid
from egm.simulation.course import Course
from egm.simulation.denoiser_error import DenoiserError
from egm.simulation.flow_map import flow_step
from egm.simulation.path_weights import reverse_log_ratio, step_log_ratio
from egm.simulation.simulate import simulate
from egm.spaces import Categorical, Real, Space
from egm.targets import Target
from support.stats import assert_mean

REAL_PATHS = {"condot": CondOT, "ve": lambda v: VE(v, sigma_min=0.2, sigma_max=1.5), "vp": VP}
LABEL_PATHS = {"masked": Masked, "cosine": lambda v: Masked(v, schedule=Cosine()), "uniform": Uniform}
GRIDS = {"one": [0.0, 1.0], "three": [0.0, 0.4, 0.75, 1.0], "late": [0.1, 0.5, 1.0]}
# The last step of a flow lands on the denoised point, which far from the end is nearly the same for all.
FLOW_GRIDS = {"seven": [0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.96, 1.0], "late": [0.1, 0.4, 0.6, 0.8, 0.95, 1.0]}


def quartic(x):
    """A double well in units of the scale, one or two coordinates."""
    y = (x - 0.3) / 0.8
    return (y.square() - 1).square().sum(-1) + 0.3 * y[..., 0]


LINE = Real(1, loc=0.3, scale=0.8)
QUARTIC = [quad(lambda y, s=slope: math.exp(-((y * y - 1) ** 2) - s * y), -6, 6)[0] for slope in (0.3, 0.0)]
PAIRS = list(itertools.product(range(2), range(3)))
TABLE = torch.tensor([[0.3, -1.0, 0.8], [1.2, 0.0, -0.4]], dtype=torch.float64)


def log_quartic(x):
    return (torch.log(x).square() - 1).square()


def wavy(x):
    """Tails of a Gaussian, wider than the reference law's."""
    return ((x - 0.3).square() / 2.88 + 0.3 * torch.sin(2 * x)).sum(-1)


def mixed_energy(x, s):
    """The labels tilt the wells."""
    return quartic(x) + (1 - 0.5 * x[..., 0]) * TABLE[s[..., 0], s[..., 1]]


def at(x, labels):
    return torch.tensor([x], dtype=torch.float64), torch.tensor(labels)


def chain_energy(a, b):
    return 1.2 * (a[..., 1:] == a[..., :-1]).sum(-1) + 0.4 * (b * a[..., ::2]).sum(-1).double()


#: all states of four and of two sites
CHAIN = dict(
    zip("ab", torch.cartesian_prod(*[torch.arange(2)] * 4, *[torch.arange(3)] * 2).split([4, 2], 1), strict=True)
)


def make_targets():
    """Targets with their Z."""
    labels = Categorical([2, 3])
    chain = Space(a=Categorical(2, shape=4), b=Categorical(3, shape=2))
    return {
        "chain": (Target(chain, chain_energy), float((-chain_energy(**CHAIN)).exp().sum())),
        "line": (Target(Space(x=LINE), quartic), 0.8 * QUARTIC[0]),
        "plane": (Target(Space(x=Real(2, loc=0.3, scale=0.8)), quartic), 0.64 * QUARTIC[0] * QUARTIC[1]),
        "positive": (
            Target(Space(x=Real(1, constraint="positive")), lambda x: (log_quartic(x) + torch.log(x)).sum(-1)),
            QUARTIC[1],
        ),
        "wavy": (
            Target(Space(x=LINE), wavy),
            quad(lambda x: math.exp(-((x - 0.3) ** 2) / 2.88 - 0.3 * math.sin(2 * x)), -9, 9)[0],
        ),
        "centred": (
            Target(Space(x=Real((2, 1), scale=0.7, centered=True)), lambda x: (x.square().sum((-1, -2)) - 1).square()),
            quad(lambda s: math.exp(-((s * s - 1) ** 2)), -6, 6)[0],
        ),
        "symbols": (
            Target(Space(s=labels), lambda s: TABLE.to(s.device)[s[..., 0], s[..., 1]]),
            float((-TABLE).exp().sum()),
        ),
        "mixed": (
            Target(Space(x=LINE, s=labels), mixed_energy),
            sum(quad(lambda x, y=y: math.exp(-float(mixed_energy(*at(x, y)))), -4, 5)[0] for y in PAIRS),
        ),
    }  # fmt: skip


TARGETS = make_targets()


class Case:
    """A random network for a target, with paths and processes."""

    def __init__(self, target, real="condot", label="masked", process: Any = Diffusion):
        self.target, self.z = TARGETS[target]
        space = self.target.space
        parts = {n: REAL_PATHS[real](v) for n, v in space.real.items()}
        parts |= {n: LABEL_PATHS[label](v) for n, v in space.categorical.items()}
        self.path = ProductPath(space, parts)
        kinds: dict[str, Any] = dict.fromkeys(space.real, process) | dict.fromkeys(space.categorical, DiscreteJump)
        self.processes = {name: kinds[name](part) for name, part in self.path.paths.items()}
        torch.manual_seed(1)
        outputs = {name: p.output_shape for name, p in self.processes.items()}
        self.network = Preconditioned(ResidualMLP(space, outputs, width=16, depth=2), self.path).double()
        for parameter in self.network.parameters():
            parameter.data = parameter.data + (0.05 if process is Flow else 0.15) * torch.randn_like(parameter)
        self.error = DenoiserError(self.path)
        for name, buffer in self.error.named_buffers():
            buffer.copy_(buffer * (0.6 + 0.6 * torch.rand(buffer.shape)) if name.startswith("squares") else buffer)

    def predict(self, x, t):
        return predict(self.network, self.processes, x, t)

    def weights(self, n=20_000, *, grid, solver: Any = "bridge", calls=None, seed=0):
        course = Course(torch.tensor(grid, dtype=torch.float64), solver, calls, self.error)
        drawn = simulate(
            self.predict, self.path, self.processes, n, course, weigh=True,
            generator=torch.Generator().manual_seed(seed), dtype=torch.float64,
        )  # fmt: skip
        assert drawn.log_ratio is not None
        assert drawn.log_ratio.dtype == torch.float64
        return (drawn.log_ratio - self.target.latent_energy(drawn.state)).exp(), drawn


REALS = ["line", "plane", "positive", "centred"]
CASES = [
    *[(t, p, "masked", Diffusion, "bridge") for t, p in itertools.product(REALS, REAL_PATHS)],
    *[(t, p, "masked", Flow, "bridge") for t, p in itertools.product(REALS, REAL_PATHS)],
    *[("symbols", "condot", label, Diffusion, "bridge") for label in LABEL_PATHS],
    *[("symbols", "condot", label, Diffusion, "first-hitting") for label in ("masked", "cosine")],
    *[("mixed", p, label, Diffusion, "bridge") for p, label in zip(REAL_PATHS, LABEL_PATHS, strict=True)],
    *[("mixed", p, "masked", process, "first-hitting") for p in REAL_PATHS for process in (Diffusion, Flow)],
]
IDS = [f"{process.__name__.lower()}-{t}-{path}-{label}-{solver}" for t, path, label, process, solver in CASES]


@pytest.mark.parametrize(("target", "real", "label", "process", "solver"), CASES, ids=IDS)
def test_mean_weight_is_the_partition_function(target, real, label, process, solver):
    case = Case(target, real, label, process)
    for name, grid in (FLOW_GRIDS if process is Flow else GRIDS).items():
        w, drawn = case.weights(grid=grid, solver=solver)
        assert_mean(w, case.z, f"E[w] on the grid {name}")
        assert float(w.std() / w.mean()) > 0.02  # nothing is trained: weights differ
        with pytest.raises(AssertionError):
            assert_mean(1.2 * w, case.z)  # and a lost factor would be seen
        if process is Flow:
            assert drawn.invertible is not None
            assert bool(drawn.invertible.all())


@pytest.mark.parametrize("calls", [1, 2, 4, 6])
@torch.no_grad()
def test_sites_that_are_revealed_in_groups(calls):
    """Six sites of two variables: E[w] = Z forwards and E[1/w] = 1/Z from exact draws, in any number of calls."""
    case, n = Case("chain"), 20_000
    space = case.target.space
    w, drawn = case.weights(n, grid=GRIDS["three"], solver="first-hitting", calls=calls)
    assert_mean(w, case.z)
    assert all(bool((drawn.state[name] < variable.mask).all()) for name, variable in space.categorical.items())
    with pytest.raises(AssertionError):
        assert_mean(1.2 * w, case.z)
    generator = torch.Generator().manual_seed(4)
    chosen = torch.multinomial((-chain_energy(**CHAIN)).exp(), n, replacement=True, generator=generator)
    x_1 = {name: x[chosen] for name, x in CHAIN.items()}
    seen = []

    def watched(x, t):
        seen.append(sum(int((x[name] == variable.mask).sum()) for name, variable in space.categorical.items()) // n)
        return case.predict(x, t)

    backward = reverse_log_ratio(
        watched, case.path, case.processes, x_1, Course(None, "first-hitting", calls), generator=generator
    ) - chain_energy(**x_1)
    assert_mean((-backward).exp(), 1 / case.z, "E[1/w] from exact draws")
    assert [6 - hidden for hidden in seen] == [0, *group_ends(6, calls)][-2::-1]


def test_log_ratios_of_backward_paths_have_the_gradient_of_what_was_predicted():
    """Also where a table underflows at a symbol that is not drawn."""
    path = ProductPath(Space(s=Categorical(3, shape=2)))
    processes, logits = {"s": DiscreteJump(path["s"])}, torch.zeros(2, 3, requires_grad=True)  # type: ignore[arg-type]
    low = torch.tensor([0.0, 0.0, -1e4])

    def predict(x, t):
        return {"s": torch.softmax(logits + low, -1).expand(len(t), -1, -1)}

    x_1, generator = {"s": torch.tensor([[0, 1], [1, 1]])}, torch.Generator().manual_seed(0)
    course = Course(solver="first-hitting")
    log_ratio = reverse_log_ratio(predict, path, processes, x_1, course, generator=generator)
    (gradient,) = torch.autograd.grad(log_ratio.sum(), logits)
    # of −Σ log D(value): D minus the one-hot value, summed over both states
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 0.0, 0.0], [1.0, -1.0, 0.0]]))


# ---------------------------------------------------------------------- broken kernels are caught


def with_error(factor):
    return lambda *states, tick, errors: step_log_ratio(
        *states, tick=tick, errors={name: factor * error for name, error in errors.items()}
    )


def with_times(factor):
    return lambda *states, tick, errors: step_log_ratio(
        *states, tick=type(tick)(factor * tick.t, tick.r, tick.sites), errors=errors
    )


def with_predictions(change):
    return lambda processes, x_t, x_r, prediction, *, tick, errors: step_log_ratio(
        processes, x_t, x_r, {name: change(x) for name, x in prediction.items()}, tick=tick, errors=errors
    )


def without_the_last_variable(processes, *states, tick, errors):
    kept = dict(itertools.islice(processes.items(), len(processes) - 1))
    return step_log_ratio(kept, *states, tick=tick, errors=errors)


BROKEN = {
    "a narrower step": (with_error(0.7), "line", "masked", "bridge"),
    "a wider step": (with_error(1.5), "line", "masked", "bridge"),
    "earlier times": (with_times(0.5), "line", "masked", "bridge"),
    "another mean": (with_predictions(lambda x: 0.8 * x + 0.2 * x.mean(0)), "line", "masked", "bridge"),
    "earlier times of symbols": (with_times(0.5), "symbols", "uniform", "bridge"),
    "another table": (with_predictions(lambda x: x**1.2), "symbols", "masked", "first-hitting"),
    "a lost variable": (without_the_last_variable, "mixed", "masked", "first-hitting"),
    "a lost variable on a grid": (without_the_last_variable, "mixed", "uniform", "bridge"),
}


@pytest.mark.parametrize(("ratio", "target", "label", "solver"), BROKEN.values(), ids=BROKEN)
def test_a_density_that_is_not_the_step_s_is_caught(monkeypatch, ratio, target, label, solver):
    case = Case(target, label=label)
    weights = functools.partial(case.weights, grid=GRIDS["three"], solver=solver)
    assert_mean(weights()[0], case.z)
    monkeypatch.setattr(module, "step_log_ratio", ratio)
    with pytest.raises(AssertionError, match="standard errors off"):
        assert_mean(weights()[0], case.z)


def test_the_determinant_is_that_of_the_map_not_of_the_flow(monkeypatch):
    """The trace of the velocity, integrated by the same steps, is wrong by their size."""
    case = Case("line", process=Flow)
    plain = flow_step

    def trace(predict, flows, x, t, r):
        prediction, moved, log_det, regular = plain(predict, flows, x, t, r)
        return prediction, moved, log_det.exp() - 1, regular  # of one coordinate, to first order

    assert_mean(case.weights(grid=GRIDS["three"])[0], case.z)
    monkeypatch.setattr(module, "flow_step", trace)
    with pytest.raises(AssertionError):
        assert_mean(case.weights(grid=GRIDS["three"])[0], case.z)


def test_a_map_that_folds_is_noticed():
    """A denoiser that overshoots so far that the step reverses the order of points."""
    case = Case("line", process=Flow)

    def folding(x, t):
        return {"x": -6.0 * x["x"]}

    generator = torch.Generator().manual_seed(0)
    drawn = simulate(folding, case.path, case.processes, 50, Course(time_grid(2)), weigh=True, generator=generator)
    assert drawn.invertible is not None
    assert not bool(drawn.invertible.any())


# ---------------------------------------------------------------------- backwards


def exact_draws(name, n):
    """Exact latent draws by a fine grid for the real variable and enumeration of the labels."""
    target, _ = TARGETS[name]
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    labels = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    generator = torch.Generator().manual_seed(4)
    if name == "symbols":
        index = torch.multinomial((-target.energy(s=labels)).exp(), n, replacement=True, generator=generator)
        return {"s": labels[index]}
    state = {"x": x[:, None]} if name == "wavy" else {
        "x": x[:, None, None].expand(-1, 6, 1).reshape(-1, 1), "s": labels.repeat(len(x), 1)
    }  # fmt: skip
    index = torch.multinomial((-target.energy(**state)).exp(), n, replacement=True, generator=generator)
    state = {k: v[index] for k, v in state.items()}
    # spread over a cell of the grid: the density is flat on it
    state["x"] = state["x"] + (torch.rand(n, 1, generator=generator, dtype=torch.float64) - 0.5) * (x[1] - x[0])
    return target.space.to_latent(state)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize(
    ("target", "label", "solver"),
    [
        ("wavy", "masked", "bridge"),
        ("symbols", "masked", "bridge"),
        ("symbols", "uniform", "bridge"),
        ("symbols", "cosine", "first-hitting"),
        ("mixed", "masked", "first-hitting"),
        ("mixed", "uniform", "bridge"),
    ],
)
@torch.no_grad()
def test_log_z_lies_between_the_bounds(target, label, solver, grid):
    case, n = Case(target, label=label), 20_000
    forward = case.weights(n, grid=grid, solver=solver)[0].log()
    x_1 = exact_draws(target, n)
    backward = reverse_log_ratio(
        case.predict, case.path, case.processes, x_1,
        Course(torch.tensor(grid, dtype=torch.float64), solver, error=case.error),
        generator=torch.Generator().manual_seed(1),
    ) - case.target.latent_energy(x_1)  # fmt: skip
    if target != "mixed":  # 1/w is bounded
        assert_mean((-backward).exp(), 1 / case.z, "E[1/w] from exact draws")
    stderr = [float(values.std()) / math.sqrt(n) for values in (forward, backward)]
    assert float(forward.mean()) + 4 * stderr[0] < math.log(case.z) < float(backward.mean()) - 4 * stderr[1]


# ---------------------------------------------------------------------- what has no weights


def test_what_has_no_weights_says_why():
    case = Case("line", process=Flow)
    grid = time_grid(3)
    many = Space(x=Real(65))
    path = ProductPath(many)
    jump = {"x": Jump(case.path["x"], bins=8)}  # type: ignore[arg-type]
    refused: list[tuple[ProductPath, Any, Any, str]] = [
        (case.path, case.processes, "euler", r"solver 'euler' takes steps whose density .*; use solver='bridge'"),
        (case.path, jump, "bridge", r"Jump of 'x' has no step density; use a Diffusion or"),
        (path, {"x": Flow(path["x"])}, "bridge", r"flows have 65 coordinates, .* at most 64; use a Diffusion"),  # type: ignore[arg-type]
    ]
    for path_, processes, solver, message in refused:
        with pytest.raises(ValueError, match=f"there are no path weights: {message}"):
            simulate(case.predict, path_, processes, 5, Course(grid, solver), weigh=True)
    diffusion = {"x": Diffusion(case.path["x"])}  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"pass error=DenoiserError\(path\)"):
        simulate(case.predict, case.path, diffusion, 5, Course(grid), weigh=True)
    with pytest.raises(ValueError, match="a flow is not run backwards"):
        reverse_log_ratio(case.predict, case.path, case.processes, {"x": torch.zeros(3, 1)}, Course(grid))
