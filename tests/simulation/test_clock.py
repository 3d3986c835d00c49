"""The clock of a simulation: reveal times have the schedule's law, and every event happens once, in order.

Where two events fall on the same number, a step of length zero must leave path weights finite and right.
"""

import math
from itertools import pairwise

import pytest
import torch
from scipy import stats as scipy_stats

import egm.simulation.course as module
from egm.paths import CondOT, Cosine, Masked, Polynomial, ProductPath, Uniform
from egm.processes import Diffusion, DiscreteJump, Flow
from egm.simulation.clock import Clock, group_ends, time_grid
from egm.simulation.course import Course, make_clock
from egm.simulation.denoiser_error import DenoiserError
from egm.simulation.path_weights import reverse_log_ratio
from egm.simulation.simulate import simulate
from egm.spaces import Categorical, Real, Space
from egm.targets import Target
from support.stats import FAILURE_RATE, assert_mean

DOUBLE = torch.float64
SCHEDULES = {"linear": Polynomial(), "cubic": Polynomial(3.0), "root": Polynomial(0.5), "cosine": Cosine()}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def times_of(clock, name, sites):
    """The time of every site's reveal [n, sites], and how often it is revealed."""
    n = len(clock.times)
    times, often = torch.zeros(n, sites, dtype=clock.times.dtype), torch.zeros(n, sites, dtype=torch.int64)
    for tick in clock:
        inside = (tick.sites[name] >= 0) & (tick.sites[name] < sites)
        rows, at = inside.nonzero()[:, 0], tick.sites[name][inside]  # [n, g]
        times[rows, at] = tick.t[rows]
        often[rows, at] += 1
    return times, often


# ---------------------------------------------------------------------- grids and reveals


def test_a_grid_ticks_for_all_draws_together():
    grid = time_grid(5, start=0.2, spacing="late")
    clock = Clock.on_grid(grid, dtype=DOUBLE)
    ticks = list(clock)
    assert len(clock) == len(ticks) == 5
    assert clock.start == 0.2
    assert [float(tick.t) for tick in ticks] == grid[:-1].tolist()
    assert [float(tick.r) for tick in ticks] == grid[1:].tolist()
    assert all(tick.sites == {} for tick in ticks)
    remaining = [(1 - float(t)) / 0.8 for t in grid]  # (1 − k/5)²
    assert remaining == pytest.approx([1, 0.64, 0.36, 0.16, 0.04, 0], abs=1e-12)
    assert [float(tick.t) for tick in reversed(clock)] == grid[:-1].tolist()[::-1]


@pytest.mark.parametrize("start", [None, 0.0, 0.3])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_reveals_have_the_schedule_s_law(schedule, start):
    """κ(τ) is uniform (on what is left after the start), at every site, independently."""
    variable, n = Categorical(2, shape=(2, 2)), 5000
    grid = None if start is None else torch.tensor([start, 0.5, 1.0], dtype=DOUBLE)
    clock = Clock.with_reveals(
        {"s": Masked(variable, schedule=schedule)}, n, grid=grid, generator=seeded(), dtype=DOUBLE
    )
    times, often = times_of(clock, "s", 4)
    assert bool((often == 1).all())
    assert len(clock) == 4 + (0 if grid is None else 2)
    kappa = [float(schedule(torch.tensor(start or 0.0, dtype=DOUBLE)))]
    uniform = ((schedule(times) - kappa[0]) / (1 - kappa[0])).numpy()
    for i in range(4):
        p = scipy_stats.kstest(uniform[:, i], "uniform").pvalue
        assert p >= FAILURE_RATE, f"site {i}: KS p = {p:.2e}"
    centred = uniform - 0.5
    assert_mean([[row[i] * row[j] for i in range(4) for j in range(i)] for row in centred], 0.0, "covariances")


def test_reveals_of_several_variables_are_merged_into_the_grid():
    space = Space(a=Categorical(3, shape=2), b=Categorical(2), x=Real(1))
    a, b = space.categorical.values()
    n, grid = 400, torch.tensor([0.1, 0.4, 0.8, 1.0], dtype=DOUBLE)
    masked = {"a": Masked(a), "b": Masked(b, schedule=Cosine())}
    clock = Clock.with_reveals(masked, n, grid=grid, generator=seeded(), dtype=DOUBLE)
    assert clock.start == 0.1
    assert len(clock) == 2 + 1 + 3
    assert bool((clock.times[:, 0] == 0.1).all() & (clock.times[:, -1] == 1).all())
    assert bool((clock.times.diff(dim=1) >= 0).all())
    # Each stop of the grid once, each site once, and a tick reveals one site or none.
    for stop in grid:
        assert bool(((clock.times == stop).sum(1) == 1).all())
    sizes, hits = {"a": 2, "b": 1}, torch.zeros(len(clock), n, dtype=torch.int64)
    for name, size in sizes.items():
        assert bool((times_of(clock, name, size)[1] == 1).all())
        hits += torch.cat([(tick.sites[name] >= 0) & (tick.sites[name] < size) for tick in clock], 1).T.long()
    assert int(hits.max()) == 1
    assert bool((hits.sum(0) == 3).all())
    starts = torch.stack([tick.t for tick in clock])
    assert bool((hits[torch.isin(starts, grid)] == 0).all())  # at a stop nothing is revealed
    for one, other in zip(clock, reversed(list(reversed(clock))), strict=True):
        assert torch.equal(one.t, other.t)
        assert torch.equal(one.r, other.r)
        assert all(torch.equal(one.sites[name], other.sites[name]) for name in sizes)
    chained = list(clock)
    assert all(torch.equal(one.r, other.t) for one, other in pairwise(chained))


@pytest.mark.parametrize("calls", [1, 2, 5, 8])
def test_groups_reveal_every_site_once(calls):
    space = Space(a=Categorical(3, shape=(2, 3)), b=Categorical(2, shape=2))
    masked = {name: Masked(variable) for name, variable in space.categorical.items()}
    clock = Clock.with_reveals(masked, 400, grid=None, calls=calls, generator=seeded(), dtype=DOUBLE)
    single = Clock.with_reveals(masked, 400, grid=None, generator=seeded(), dtype=DOUBLE)
    assert len(clock) == calls
    assert len(single) == 8
    for name, size in {"a": 6, "b": 2}.items():
        times, often = times_of(clock, name, size)
        assert bool((often == 1).all())
        # a group is revealed at the time of its first site, so in the same order and never later
        alone, _ = times_of(single, name, size)
        assert bool((times <= alone).all())
        assert calls == 8 or not torch.equal(times, alone)
    sizes = [tick.sites["a"].shape[1] for tick in clock]
    assert sum(sizes) == 8
    assert min(sizes) == sizes[0]
    assert all(torch.equal(one.r, other.t) for one, other in pairwise(list(clock)))
    assert bool((list(clock)[-1].r == 1).all())


def test_groups_grow_with_the_square_root_of_what_is_known():
    ends = group_ends(256, 64)
    assert [ends[15], ends[31], ends[63]] == [16, 64, 256]
    assert group_ends(256, 256) == list(range(1, 257))
    with pytest.raises(ValueError, match="calls must lie between 1 and the number of sites, 4, got 5"):
        group_ends(4, 5)


def test_clocks_of_solvers():
    space = Space(s=Categorical(2, shape=3), u=Categorical(2))
    path = ProductPath(space, {"u": Uniform(space.categorical["u"])})
    processes = {name: DiscreteJump(path[name]) for name in space}  # type: ignore[arg-type]

    def made(names, solver, grid, calls=None):
        chosen = {name: processes[name] for name in names}
        return make_clock(chosen, 7, Course(grid, solver, calls), generator=seeded(), dtype=DOUBLE, device="cpu")

    grid = time_grid(4)
    assert len(made("s", "first-hitting", grid)) == 3  # a grid would only cost calls
    assert len(made("su", "first-hitting", grid)) == 3 + 4
    assert len(made("su", "bridge", grid)) == 4
    assert made("s", "first-hitting", None).start == 0
    assert len(made("s", "first-hitting", None, calls=2)) == 2
    assert len(made("s", "first-hitting", None, calls=30)) == 3  # one site at least in each
    assert len(made("su", "first-hitting", grid, calls=2)) == 3 + 4  # groups are for masked variables alone
    for names, solver, none, message in [
        ("u", "first-hitting", grid, r"none of \['u'\] is masked; use solver='bridge'"),
        ("su", "first-hitting", None, r"\['u'\] need a grid"),
        ("s", "bridge", None, r"\['s'\] need a grid"),
    ]:
        with pytest.raises(ValueError, match=message):
            made(names, solver, none)


# ---------------------------------------------------------------------- ties

MEANS = torch.tensor([[0.4, -0.6], [1.0, 0.2]], dtype=DOUBLE)
OFFSET = torch.tensor([[0.3, -0.4], [0.0, 0.7]], dtype=DOUBLE)


def energy(x, s, u):
    """A Gaussian of variance ½ around a mean that two masked labels choose, and a label that prefers one side."""
    s0, s1 = s[..., 0], s[..., 1]
    return (x[..., 0] - MEANS.to(x)[s0, s1]).square() + OFFSET.to(x)[s0, s1] + 0.5 * u * (1 + s0)


Z = math.sqrt(math.pi) * sum(
    math.exp(-float(OFFSET[i, j])) * (1 + math.exp(-0.5 * (1 + i))) for i in range(2) for j in range(2)
)
SPACE = Space(x=Real(1), s=Categorical(2, shape=2), u=Categorical(2))
PATH = ProductPath(SPACE, {"u": Uniform(SPACE.categorical["u"])})
TARGET = Target(SPACE, energy)


def wrong_denoiser(x, t):
    """Anything that depends on the whole state and on the time."""
    hidden = (x["s"] == 2).to(t.dtype)
    tilt = 0.2 * x["x"][:, 0] + 0.3 * t - 0.4 * hidden.sum(1) + 0.2 * x["u"]
    logits = torch.stack([tilt, -0.5 * tilt], -1)
    gain = t / (t.square() + (1 - t).square())  # of the reference law
    mean = gain[:, None] * x["x"] + 0.2 * (1 - t)[:, None] * torch.sin(x["x"] + x["s"].sum(1, keepdim=True))
    return {"x": mean, "s": torch.softmax(logits[:, None] * hidden.new_tensor([[1.0], [0.6]]), -1),
            "u": torch.softmax(0.7 * logits, -1)}  # fmt: skip


def tied(n, dtype):
    """Reveals on stops of the grid and on each other, in every order that a stable sort may leave."""
    stops = torch.tensor([0.0, 0.3, 0.6, 0.8, 0.9, 1.0], dtype=dtype)
    reveals = [(0.3, 0.3), (0.3, 0.6), (0.6, 0.6), (0.45, 0.45), (0.8, 0.1)]
    first = torch.tensor(reveals, dtype=dtype)[torch.arange(n) % len(reveals)]
    times, order = torch.cat([stops.expand(n, -1), first], 1).sort(dim=1, stable=True)
    return Clock(0.0, times, order[:, :-1].split(1, dim=1), {"s": len(stops)})


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("kind", [Diffusion, Flow])
def test_ties_leave_weights_finite_and_right(monkeypatch, kind, dtype):
    processes = {"x": kind(PATH["x"]), "s": DiscreteJump(PATH["s"]), "u": DiscreteJump(PATH["u"])}  # type: ignore[arg-type]
    n, error = 40_000, DenoiserError(PATH)
    monkeypatch.setattr(module, "make_clock", lambda *_, **__: tied(n, dtype))
    assert int((tied(n, dtype).times.diff(dim=1) == 0).sum()) > n
    drawn = simulate(
        wrong_denoiser, PATH, processes, n, Course(time_grid(3), "first-hitting", error=error), weigh=True,
        generator=seeded(2), dtype=dtype,
    )  # fmt: skip
    assert drawn.log_ratio is not None
    SPACE.check(drawn.state)
    assert bool(torch.isfinite(drawn.log_ratio).all())
    weights = (drawn.log_ratio - TARGET.latent_energy(drawn.state)).exp()
    assert_mean(weights, Z, "E[w] with ties")
    for case in range(5):  # each of the clocks by itself, since a clock does not depend on the states
        assert_mean(weights[case::5], Z, f"E[w] on clock {case}")
    with pytest.raises(AssertionError):
        assert_mean(1.1 * weights, Z)


def test_ties_backwards(monkeypatch):
    """From exact draws E[1/w] = 1/Z."""
    n, generator = 40_000, seeded(3)
    states = torch.cartesian_prod(*[torch.arange(2)] * 3)
    table = torch.exp(-OFFSET[states[:, 0], states[:, 1]] - 0.5 * states[:, 2] * (1 + states[:, 0]))
    labels = states[torch.multinomial(table, n, replacement=True, generator=generator)]
    x = MEANS[labels[:, 0], labels[:, 1]] + math.sqrt(0.5) * torch.randn(n, generator=generator, dtype=DOUBLE)
    x_1 = {"x": x[:, None], "s": labels[:, :2], "u": labels[:, 2]}
    processes = {"x": Diffusion(PATH["x"]), "s": DiscreteJump(PATH["s"]), "u": DiscreteJump(PATH["u"])}  # type: ignore[arg-type]
    monkeypatch.setattr(module, "make_clock", lambda *_, **__: tied(n, DOUBLE))
    log_ratio = reverse_log_ratio(
        wrong_denoiser, PATH, processes, x_1, Course(time_grid(3), "first-hitting", error=DenoiserError(PATH)),
        generator=seeded(4),
    )  # fmt: skip
    assert bool(torch.isfinite(log_ratio).all())
    assert_mean((TARGET.latent_energy(x_1) - log_ratio).exp(), 1 / Z, "E[1/w] with ties")


def test_a_step_of_length_zero_is_as_good_as_none(monkeypatch):
    """The same numbers with a stop of the grid written twice: nothing moves in between, and nothing is added."""
    variable = SPACE.real["x"]
    path = ProductPath(Space(x=variable), {"x": CondOT(variable)})
    processes = {"x": Diffusion(path["x"])}  # type: ignore[arg-type]

    def weigh(times):
        monkeypatch.setattr(module, "make_clock", lambda *_, **__: Clock(0.0, times, None, {}))
        noise = seeded(5)
        plain = type(variable).noise

        def skip(self, batch, *, generator, **options):
            """Steps of length zero take their random numbers elsewhere."""
            return plain(self, batch, generator=generator if next(moves) else seeded(9), **options)

        moves = iter([True, True, *(times.diff() > 0).tolist()])  # two for the start: x_1 and its noise
        monkeypatch.setattr(type(variable), "noise", skip)
        drawn = simulate(
            lambda x, t: {"x": 0.5 * x["x"] * t[:, None] + 0.1}, path, processes, 50,
            Course(time_grid(2), error=DenoiserError(path)), weigh=True, generator=noise, dtype=DOUBLE,
        )  # fmt: skip
        monkeypatch.setattr(type(variable), "noise", plain)
        return drawn

    once = weigh(torch.tensor([0.0, 0.4, 0.7, 1.0], dtype=DOUBLE))
    twice = weigh(torch.tensor([0.0, 0.4, 0.4, 0.7, 0.7, 1.0], dtype=DOUBLE))
    torch.testing.assert_close(once.state["x"], twice.state["x"])
    torch.testing.assert_close(once.log_ratio, twice.log_ratio)
