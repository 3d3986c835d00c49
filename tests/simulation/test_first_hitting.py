"""First hitting: every masked site revealed at its own time has exactly the law of the chain in continuous time."""

import math

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats
from scipy.integrate import solve_ivp

from egm.paths import CondOT, Cosine, Masked, Polynomial, ProductPath, Uniform
from egm.processes import Diffusion, DiscreteJump, Flow
from egm.simulation.clock import time_grid
from egm.simulation.course import Course
from egm.simulation.simulate import simulate
from egm.spaces import Categorical, Space
from support.marginals import LabelledGaussians, TinyIsing
from support.simulations import DOUBLE, assert_ising, assert_labelled, mixed, run, single
from support.stats import FAILURE_RATE, assert_counts


class WrongDenoiser:
    """A random table for every running state of three sites with two symbols, changing fast in time."""

    def __init__(self, schedule):
        self.path = ProductPath(
            Space(s=Categorical(2, shape=3)), {"s": Masked(Categorical(2, shape=3), schedule=schedule)}
        )
        self.processes = {"s": DiscreteJump(self.path["s"])}  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(5)
        self.offset, self.slope = 2 * torch.randn(2, 27, 3, 2, generator=generator, dtype=DOUBLE)
        self.calls, self.times = 0, []

    def prediction(self, state, t):
        self.calls += 1
        self.times.append(t)
        index = (state["s"] * torch.tensor([9, 3, 1])).sum(-1)
        return {"s": torch.softmax(self.offset[index] + 4 * t[:, None, None] * self.slope[index], -1)}

    def chain_law(self, inverse):
        """The law at t = 1 of the chain with rates κ̇/(1−κ) D; in the clock s = −log(1−κ) masked sites have rate 1."""
        running = torch.cartesian_prod(*[torch.arange(3)] * 3)

        def slope(s, p):
            time = torch.full((27,), inverse(-math.expm1(-s)), dtype=DOUBLE)
            table = self.prediction({"s": running}, time)["s"].numpy()
            change = np.zeros(27)
            for x, state in enumerate(running.tolist()):
                for i, place in enumerate((9, 3, 1)):
                    if state[i] == 2:
                        change[x] -= p[x]
                        for y in range(2):
                            change[x + (y - 2) * place] += p[x] * table[x, i, y]
            return change

        solved = solve_ivp(slope, (0, 25), np.eye(27)[26], rtol=1e-8, atol=1e-10).y[:, -1]
        data = [x for x, state in enumerate(running.tolist()) if 2 not in state]
        return solved[data]


@pytest.mark.parametrize(
    ("schedule", "inverse"),
    [
        (Polynomial(), lambda k: k),
        (Polynomial(3.0), lambda k: k ** (1 / 3)),
        (Cosine(), lambda k: 2 / math.pi * math.acos(1 - k)),
    ],
    ids=["linear", "cubic", "cosine"],
)
def test_first_hitting_is_the_chain_whatever_the_denoiser(schedule, inverse):
    wrong = WrongDenoiser(schedule)
    draws = run(wrong, 100_000, solver="first-hitting")["s"]
    assert wrong.calls == 3  # one for each site
    times = torch.stack(wrong.times)
    assert bool((times.diff(dim=0) >= 0).all())
    p = scipy_stats.kstest(schedule(times[0]).numpy(), lambda k: 1 - (1 - k) ** 3).pvalue  # the first of three
    assert p >= FAILURE_RATE
    law = wrong.chain_law(inverse)
    assert law.sum() == pytest.approx(1, abs=1e-6)
    assert_counts(torch.bincount((draws * torch.tensor([4, 2, 1])).sum(-1), minlength=8), law / law.sum())


def test_first_hitting_draws_the_ising_model():
    oracle = TinyIsing(Masked)
    assert_ising(run(oracle, 20_000, solver="first-hitting"), oracle)


@pytest.mark.parametrize("start", [0.0, 0.05])
@pytest.mark.parametrize("process", [Flow, Diffusion])
@pytest.mark.parametrize("name", ["condot", "ve"])
def test_first_hitting_on_mixed_spaces(name, process, start):
    oracle = mixed(name, process)
    calls = []
    predict, oracle.prediction = oracle.prediction, lambda x, t: calls.append(t) or predict(x, t)  # type: ignore[method-assign]
    assert_labelled(run(oracle, 4000, solver="first-hitting", grid=time_grid(150, start=start)), oracle)
    assert len(calls) == 151  # the grid's steps and one site
    assert bool((calls[0] == start).all())


def test_first_hitting_from_a_later_start():
    """At t_0 = 0.5 every site is still hidden, and P(τ ≤ t) = (κ_t − κ_0)/(1 − κ_0)."""
    space = Space(s=Categorical(2, shape=2), u=Categorical(2))
    s, u = space.categorical.values()
    path = ProductPath(space, {"s": Masked(s, schedule=Polynomial(2.0)), "u": Uniform(u)})
    n, seen = 8000, []

    def predict(x, t):
        seen.append((x["s"], t))
        return {"s": torch.tensor([1.0, 0.0]).expand(n, 2, 2), "u": torch.full((n, 2), 0.5)}

    processes = {"s": DiscreteJump(path["s"]), "u": DiscreteJump(path["u"])}  # type: ignore[arg-type]
    course = Course(time_grid(4, start=0.5), "first-hitting")
    draws = simulate(predict, path, processes, n, course, generator=torch.Generator().manual_seed(0)).state
    assert len(seen) == 6
    symbols, times = torch.stack([x for x, _ in seen]), torch.stack([t for _, t in seen])
    hidden = symbols == 2
    assert bool(hidden[0].all())
    for i in range(2):
        calls = hidden[:, :, i].sum(0)  # a site is revealed by the last call that finds it hidden
        last = times.gather(0, calls[None] - 1)[0]
        p = scipy_stats.kstest(((last.double() ** 2 - 0.25) / 0.75).numpy(), "uniform").pvalue
        assert p >= FAILURE_RATE, f"site {i}: KS p = {p:.2e}"
    assert bool((draws["s"] == 0).all())


def test_first_hitting_reveals_several_variables_with_their_own_schedules():
    """Two masked variables of different shape and a uniform one, which follows the grid; all are independent."""
    space = Space(a=Categorical(3), b=Categorical([2, 3]), c=Categorical(2, shape=(2, 1)))
    a, b, c = space.categorical.values()
    path = ProductPath(space, {"a": Masked(a), "b": Masked(b, schedule=Cosine()), "c": Uniform(c)})
    processes = {name: DiscreteJump(path[name]) for name in reversed(list(space))}  # type: ignore[arg-type]
    laws = {
        "a": torch.tensor([0.2, 0.5, 0.3]),
        "b": torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.3, 0.6]]),
        "c": torch.tensor([[[0.3, 0.7]], [[0.8, 0.2]]]),
    }

    def predict(x, t):
        tables = {name: law.expand(len(t), *law.shape) for name, law in laws.items()}
        like = path["c"].log_prob  # p(c_1 | c_t) of independent sites: prior times likelihood
        ends = torch.stack([like(x["c"], torch.full_like(x["c"], z), t) for z in range(2)], -1)
        assert ends.shape == (len(t), 2)
        kappa = t[:, None, None, None]
        kernel = kappa * torch.nn.functional.one_hot(x["c"], 2) + (1 - kappa) / 2
        return tables | {"c": tables["c"] * kernel / (tables["c"] * kernel).sum(-1, keepdim=True)}

    generator = torch.Generator().manual_seed(0)
    course = Course(time_grid(50), "first-hitting")
    draws = simulate(predict, path, processes, 20_000, course, generator=generator).state
    assert list(draws) == list(space)
    for name, law in laws.items():
        symbols = draws[name].reshape(20_000, -1)
        for i, row in enumerate(law.reshape(-1, law.shape[-1])):
            assert_counts(torch.bincount(symbols[:, i], minlength=len(row)), row, f"{name}[{i}]")


@pytest.mark.parametrize("power", [0.3, 1.0, 5.0])
def test_reveal_times_at_the_ends_of_the_unit_interval(monkeypatch, power):
    """The smallest and the largest uniform number, in single precision, give finite reals and no mask."""
    oracle = LabelledGaussians(CondOT, lambda v: Masked(v, schedule=Polynomial(power)))  # type: ignore[arg-type]
    rand = torch.rand
    for u in (0.0, 1 - 2.0**-53):

        def ends(*size, u=u, **options):
            return (
                torch.full_like(rand(*size, **options), u) if options.get("dtype") == DOUBLE else rand(*size, **options)
            )

        monkeypatch.setattr(torch, "rand", ends)
        course = Course(time_grid(10), "first-hitting")
        draws = simulate(single(oracle), oracle.path, oracle.processes, 50, course).state
        oracle.space.check(draws)
