"""Parallel tempering leaves every replica invariant, swaps at the exact rates and crosses barriers."""

import math

import pytest
import torch

from egm import Real, Space, Target
from egm.mcmc import MALA, Gibbs, ParallelTempering, run
from support.mcmc_laws import CHAINS, Banana, Table, assert_invariant, gamma, generator
from support.stats import assert_mean

LADDER = (1.0, 0.6, 0.3)


def replicas(exact):
    """Exact draws [R, n] of every temperature at once, independent of each other."""

    def draw(n, seed):
        rows = [exact(n, 10 * seed + r, b) for r, b in enumerate(LADDER)]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    return draw


def over_replicas(features):
    """Features of the cold and of every hot replica side by side, [n, R·k]."""
    return lambda latent: torch.cat(
        [features({name: value[r] for name, value in latent.items()}) for r in range(len(LADDER))], 1
    )


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_tempering_is_invariant_at_every_temperature(steps):
    banana, table = Banana(), Table()
    kernel = ParallelTempering(MALA(banana.target, step_size=0.4), inverse_temperatures=LADDER)
    assert_invariant(kernel, replicas(banana.exact), over_replicas(banana.features), steps=steps)
    kernel = ParallelTempering(Gibbs(table.target), inverse_temperatures=LADDER)
    assert_invariant(kernel, replicas(table.exact), over_replicas(table.features), steps=steps)
    assert all(0.1 < rate < 1 for rate in kernel.swap_rates[: min(steps, 2)])


def test_swaps_use_the_jacobian_too():
    """The replicas of Gamma(3, 1) are Gamma(3b, b), as in `test_positive_variable_is_tempered_with_its_jacobian`."""
    space = Space(x=Real(1, constraint="positive"))
    target = Target(space, lambda x: (x - 2 * x.log()).sum(-1))

    def exact(n, seed, b):
        return space.to_latent({"x": gamma(n, seed, 3 * b, b)})

    kernel = ParallelTempering(MALA(target, step_size=0.9), inverse_temperatures=LADDER)
    assert_invariant(kernel, replicas(exact), over_replicas(lambda z: z["x"]))


def test_swap_rates_are_the_exact_ones_and_start_after_warm_up():
    table = Table()
    kernel = ParallelTempering(Gibbs(table.target), inverse_temperatures=LADDER)
    latent, source = replicas(table.exact)(CHAINS, 1), generator(0)
    latent, _ = kernel.step(latent, generator=source)
    latent, acceptance = kernel.step(latent, generator=source)
    energy = table.table.flatten()
    for r, rate in enumerate(kernel.swap_rates):
        cold, hot = LADDER[r : r + 2]
        legal = energy < math.inf
        p, q = table.probabilities(cold)[legal], table.probabilities(hot)[legal]
        gap = energy[legal][:, None] - energy[legal]
        accepted = ((cold - hot) * gap).clamp(max=0).exp()
        assert rate == pytest.approx(float(p @ accepted @ q), abs=4 * 0.5 / math.sqrt(CHAINS))
    kernel.adapt(acceptance)
    assert kernel.swap_rates == (0.0, 0.0)


class SwapsByHalf(ParallelTempering):
    """Exchanges accepted as if temperatures were half as far apart."""

    def _swap(self, latent, b, generator):
        return super()._swap(latent, b / 2, generator)


def test_a_wrong_swap_is_caught():
    banana = Banana()
    kernel = SwapsByHalf(MALA(banana.target, step_size=0.4), inverse_temperatures=LADDER)
    with pytest.raises(AssertionError):
        assert_invariant(kernel, replicas(banana.exact), over_replicas(banana.features))


@pytest.mark.slow
def test_tempering_crosses_a_barrier_that_stops_its_kernel():
    """Two wells 16 kT apart: MALA stays where it starts, tempering finds the masses of both."""
    target = Target(Space(x=Real(1)), lambda x: (16 * (x.square() - 1).square() + 0.5 * x).sum(-1))
    init = {"x": torch.ones(2000, 1)}
    mala = MALA(target)
    stuck = run(target, mala, chains=2000, warmup=200, steps=1, thin=800, init=init).state["x"][-1]
    assert float((stuck < 0).float().mean()) < 0.01
    kernel = ParallelTempering(mala, inverse_temperatures=[1.0, 0.6, 0.35, 0.2, 0.1])
    chains = run(target, kernel, chains=2000, warmup=200, steps=1, thin=800, init=init)
    assert chains.state["x"].shape == (1, 2000, 1)
    grid = torch.linspace(-3, 3, 60_001, dtype=torch.float64)
    weight = torch.softmax(-16 * (grid**2 - 1) ** 2 - 0.5 * grid, 0)
    assert_mean((chains.state["x"][-1] < 0).float(), float(weight[grid < 0].sum()))
    assert_mean(chains.state["x"][-1], float((weight * grid).sum()))
    assert {f"swap rate {r}-{r + 1}" for r in range(4)} <= chains.report.keys()
    sizes = [chains.report[f"MALA step size [{r}]"] for r in range(5)]
    assert sizes == sorted(sizes)  # the hotter, the longer the steps
