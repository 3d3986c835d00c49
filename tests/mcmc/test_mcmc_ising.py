"""Swendsen–Wang, Gibbs and parallel tempering agree with the exact energy of the Ising model.

E is proportional to β, so log Z(β) gives its mean, −β ∂log Z/∂β, and its variance, β² ∂²log Z/∂β².
"""

import math

import pytest

from egm.mcmc import Gibbs, Kernel, ParallelTempering, SwendsenWang, diagnose, run
from egm.targets.ising import Ising
from support.stats import assert_mean, assert_same_distribution, assert_variance

SIZE, BETA, CHAINS = 5, 0.4, 2000


def exact_energy(field: float) -> tuple[float, float]:
    """Mean and variance of E by central differences of log Z."""
    h = 1e-3
    low, middle, high = (Ising(SIZE, b, field=field).log_z for b in (BETA - h, BETA, BETA + h))
    assert low is not None
    assert middle is not None
    assert high is not None
    return -BETA * (high - low) / (2 * h), BETA**2 * (high - 2 * middle + low) / h**2


def tempered_gibbs(target: Ising) -> Kernel:
    return ParallelTempering(Gibbs(target), inverse_temperatures=[1.0, 0.8, 0.6])


@pytest.mark.slow
@pytest.mark.parametrize("field", [0.0, 0.05])
@pytest.mark.parametrize(
    ("make", "steps"), [(SwendsenWang, 40), (Gibbs, 150), (tempered_gibbs, 60)], ids=["sw", "gibbs", "tempering"]
)
def test_energy_agrees_with_the_exact_one(make, steps, field):
    """From uniform symbols; the chains' last states are independent draws."""
    target = Ising(SIZE, BETA, field=field)
    last = run(target, make(target), chains=CHAINS, warmup=0, steps=1, thin=steps, seed=1)
    mean, variance = exact_energy(field)
    assert_mean(last.energy[0], mean)
    assert_variance(last.energy[0], variance)
    exact = target.exact_sample(CHAINS, seed=2)
    ours, theirs = (target.observables(**state)["magnetization"].flatten() for state in (last.state, exact))
    assert_same_distribution(ours, theirs)


def test_error_bars_of_a_cluster_run_cover_the_exact_energy():
    target = Ising(SIZE, BETA)
    chains = run(target, SwendsenWang(target), chains=20, warmup=30, steps=500, seed=3)
    told = diagnose(target, chains)
    mean, variance = exact_energy(0.0)
    assert told["energy"]["mean"] == pytest.approx(mean, abs=4 * told["energy"]["stderr"])
    assert told["energy"]["sd"] == pytest.approx(math.sqrt(variance), rel=0.05)
    assert told["magnetization"]["mean"] == pytest.approx(0, abs=4 * told["magnetization"]["stderr"])
    assert told["energy"]["ess"] > 1500
    assert all(row["r_hat"] < 1.05 for row in told.values())
