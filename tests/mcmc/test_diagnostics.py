"""R-hat and effective sample size against closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid
from scipy.signal import lfilter
from scipy.stats import norm

from egm import Categorical, Real, Space, Target
from egm.mcmc import Gibbs, diagnose, effective_sample_size, r_hat, run
from egm.mcmc.run import Chains
from support.stats import z_limit


def autoregressive(rho: float, steps: int, chains: int, seed: int = 0) -> np.ndarray:
    """Stationary AR(1) chains x_t = ρ x_{t−1} + √(1−ρ²) ε_t with unit variance, [steps, chains]."""
    rng = np.random.default_rng(seed)
    noise = math.sqrt(1 - rho**2) * rng.normal(size=(steps, chains))
    noise[0] = rng.normal(size=chains)
    return np.asarray(lfilter([1.0], [1.0, -rho], noise, axis=0))


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(20_000, 4), (1000, 200)])
def test_ess_of_autoregressive_chains(rho, shape):
    """Integrated autocorrelation time (1 + ρ)/(1 − ρ)."""
    expected = math.prod(shape) * (1 - rho) / (1 + rho)
    assert effective_sample_size(autoregressive(rho, *shape)) == pytest.approx(expected, rel=0.1)


def test_stderr_is_the_spread_of_the_mean():
    means = [autoregressive(0.8, 400, 4, seed).mean() for seed in range(400)]
    stderrs = [1 / math.sqrt(effective_sample_size(autoregressive(0.8, 400, 4, seed))) for seed in range(50)]
    assert np.std(means) == pytest.approx(np.mean(stderrs), rel=0.1)


def test_ess_sees_chains_that_disagree():
    x = autoregressive(0.0, 1000, 8) + 2 * np.arange(8)
    assert effective_sample_size(x) < 20


def test_r_hat_of_independent_draws_is_one():
    values = [r_hat(np.random.default_rng(seed).normal(size=(200, 8))) for seed in range(50)]
    assert max(values) < 1.02
    heavy = np.random.default_rng(0).standard_cauchy(size=(1000, 8))
    assert r_hat(heavy) < 1.01
    assert r_hat(torch.from_numpy(heavy)) == r_hat(heavy)


def test_r_hat_of_shifted_chains():
    """Two groups of N(±δ, 1): the split variance ratio, on ranks, agrees with theory."""
    x = np.random.default_rng(0).normal(size=(1000, 8))
    shift = np.where(np.arange(8) < 4, 1.0, -1.0)
    small, large = r_hat(x + 0.5 * shift), r_hat(x + 2 * shift)
    # B/W = δ² M/(M−1) with the M = 16 half chains; ranks keep it close for Gaussians.
    assert small == pytest.approx(math.sqrt(1 + 0.25 * 16 / 15), rel=0.02)
    # Normal scores of the mixture ½N(δ, 1) + ½N(−δ, 1) have variance one in all and mean ±m in the groups.
    z = np.linspace(-6, 6, 2001)
    m = trapezoid(norm.pdf(z) * norm.ppf(0.5 * (norm.cdf(z) + norm.cdf(z + 4))), z)
    assert large == pytest.approx(math.sqrt(1 + m**2 / (1 - m**2) * 16 / 15), rel=0.02)


def test_r_hat_of_unequal_spread_and_of_drift():
    x = np.random.default_rng(0).normal(size=(1000, 8))
    assert r_hat(x * np.where(np.arange(8) < 4, 1.0, 3.0)) > 1.1  # only the folded ranks see it
    assert r_hat(x + np.linspace(-1, 1, 1000)[:, None]) > 1.1  # only the split halves see it


def test_r_hat_does_not_depend_on_a_monotone_change_of_scale():
    x = np.random.default_rng(0).normal(size=(501, 8)) + 0.2 * np.arange(8)
    shifted_only = x - np.median(x)
    assert r_hat(shifted_only) == pytest.approx(r_hat(5 * shifted_only), rel=1e-12)


def test_constant_and_discrete_scalars():
    assert r_hat(np.ones((10, 3))) == 1.0
    assert effective_sample_size(np.ones((10, 3))) == 30
    assert r_hat(np.tile([0.0, 1.0], (10, 2))) == math.inf
    coin = np.random.default_rng(0).integers(2, size=(2000, 8))
    assert r_hat(coin) < 1.01
    assert effective_sample_size(coin) == pytest.approx(16_000, rel=0.1)


def test_thousands_of_short_chains():
    x = autoregressive(0.5, 50, 8000)
    assert r_hat(x) < 1.05
    assert effective_sample_size(x) == pytest.approx(x.size / 3, rel=0.1)


def test_bad_draws():
    with pytest.raises(ValueError, match=r"shape \[steps, chains\] with at least four steps, got \(3, 2\)"):
        r_hat(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="NaN or infinite"):
        effective_sample_size(np.full((10, 2), np.inf))


def test_diagnose_names_every_observable():
    target = Target(Space(x=Real(2), s=Categorical(2, shape=())), lambda x, s: x.square().sum(-1) + s)
    generator = torch.Generator().manual_seed(0)
    state = {"x": torch.randn(100, 4, 2, generator=generator), "s": torch.randint(2, (100, 4), generator=generator)}
    chains = Chains(state, target.energy(**state), 1.0, 0, 0, 0.0, {})
    result = diagnose(target, chains)
    assert list(result) == ["energy", "x[0]", "x[1]", "s[0]"]
    assert result["x[1]"]["mean"] == pytest.approx(float(state["x"][..., 1].double().mean()))
    assert result["energy"]["sd"] == pytest.approx(float(chains.energy.double().std(correction=0)))
    for row in result.values():
        assert row.keys() == {"mean", "sd", "stderr", "r_hat", "ess"}
        assert row["stderr"] == pytest.approx(row["sd"] / math.sqrt(row["ess"]))


def test_diagnosed_error_bars_cover_an_exact_mean():
    """A slow Gibbs chain on two strongly coupled spins: E[s₀s₁] = tanh 2."""

    def coupled(s: torch.Tensor) -> torch.Tensor:
        spin = 2 * s - 1
        return -2.0 * (spin[..., 0] * spin[..., 1]).float()

    target = Target(Space(s=Categorical(2, shape=2)), coupled)
    chains = run(target, Gibbs(target), chains=50, warmup=200, steps=2000)
    energy, site = (diagnose(target, chains)[name] for name in ("energy", "s[0]"))
    assert abs(energy["mean"] + 2 * math.tanh(2)) < z_limit() * energy["stderr"]
    assert abs(site["mean"] - 0.5) < z_limit() * site["stderr"]
    assert site["ess"] < 0.1 * 50 * 2000  # flips of the pair are rare, and the error bar must know it
    assert site["r_hat"] < 1.05


def test_a_constant_that_rounds_is_still_a_constant():
    constant = np.full((1000, 4), 0.1)
    assert effective_sample_size(constant) == 4000
    assert r_hat(constant) == 1
    apart = constant + np.array([0.0, 0.0, 0.1, 0.1])
    assert r_hat(apart) == np.inf
