"""Gaussian paths against their defining equations, by quadrature and pointwise identities in float64."""

import pytest
import torch

from egm.paths import VE, CondOT, Masked
from egm.spaces.variables import Categorical, Real
from support.cases import GAUSSIAN_AND_POINT, REALS, TIMES, embed, gauss_hermite, pairs, random_value
from support.stats import assert_mean, assert_same_mean, assert_variance

PATHS = pairs(GAUSSIAN_AND_POINT, REALS)


def kernel(path, t, r):
    """a and s² of p_{t|r}."""
    t, r = torch.tensor(t, dtype=torch.float64), torch.tensor(r, dtype=torch.float64)
    return path.alpha(t) / path.alpha(r), path.variance(t, r)


@pytest.mark.parametrize(("t", "r"), [*TIMES, (0.6, 0.6001), (0.999, 1.0), (0.9999, 1.0)])
@pytest.mark.parametrize("path", pairs(GAUSSIAN_AND_POINT, {"scalar": Real(())}))
def test_variance_has_no_cancellation_error(path, t, r):
    a, s2 = kernel(path, t, r)
    sigma2_t, sigma2_r = kernel(path, t, 1.0)[1], path.variance(torch.tensor(r, dtype=torch.float64))
    torch.testing.assert_close(s2, sigma2_t - a**2 * sigma2_r, rtol=1e-9, atol=1e-12)
    t32, r32 = torch.tensor(t, dtype=torch.float32), torch.tensor(r, dtype=torch.float32)
    for function in (path.variance, path.log_variance_dot):
        exact = function(t32.double(), r32.double())  # the same rounded times
        torch.testing.assert_close(function(t32, r32).double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("t", [0.05, 0.4, 0.8])
@pytest.mark.parametrize("make", GAUSSIAN_AND_POINT.values(), ids=GAUSSIAN_AND_POINT)
def test_kernels_over_short_times_spread_by_the_diffusion(make, t):
    """s²(t, t+h)/h → g_t²: the noise that p_{t|t+h} adds is that of the process whose reversal it is."""
    path, t = make(Real(())), torch.tensor(t, dtype=torch.float64)
    torch.testing.assert_close(path.variance(t, t + 1e-7) / 1e-7, path.diffusion(t), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("name", "t", "alpha", "sigma"), [
    ("condot", 0.3, 0.3, 0.7), ("vp", 0.5, 0.5**0.5, 0.5**0.5), ("ve", 0.0, 1.0, (2.0**2 - 0.01**2) ** 0.5),
    ("ve", 0.5, 1.0, (0.02 - 0.01**2) ** 0.5), ("foellmer", 0.2, 0.2, 0.4),
])  # fmt: skip
def test_schedules_are_the_ones_named(name, t, alpha, sigma):
    path = GAUSSIAN_AND_POINT[name](Real(1))
    t = torch.tensor(t, dtype=torch.float64)
    assert float(path.alpha(t)) == pytest.approx(alpha)
    assert float(path.variance(t)) == pytest.approx(sigma**2)
    assert float(path.variance(torch.ones((), dtype=torch.float64))) == 0


@pytest.mark.parametrize("path", PATHS)
def test_log_prob_is_normalised(path):
    nodes, weights = gauss_hermite(path.variable, 24)
    x_r = random_value(path, 0)
    a, s2 = kernel(path, 0.3, 0.8)
    # integrate over x_t with a Gaussian that is deliberately shifted and wider
    centre, width = a * x_r + 0.2 * s2.sqrt() * path.variable.project(torch.ones_like(x_r)), 1.3 * s2.sqrt()
    x_t = centre + width * nodes
    integrand = (path.log_prob(x_t, x_r, 0.3, 0.8) - path.variable.gaussian_log_prob(x_t - centre, width**2)).exp()
    assert float((weights * integrand).sum()) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize(("t", "r", "q"), [(0.2, 0.5, 0.9), (0.1, 0.4, 1.0), (0.45, 0.7, 0.8)])
@pytest.mark.parametrize("path", PATHS)
def test_chapman_kolmogorov(path, t, r, q):
    nodes, weights = gauss_hermite(path.variable, 60)
    x_q, x_t = random_value(path, 0), 0.5 * random_value(path, 1)
    a, s2 = kernel(path, r, q)
    # centre the quadrature between the two kernels, which VE with its small variances needs
    b, c2 = kernel(path, t, r)
    variance = 1 / (1 / s2 + b**2 / c2)
    centre = variance * (a * x_q / s2 + b * x_t / c2)
    x_r = centre + 1.2 * variance.sqrt() * nodes
    log_integrand = path.log_prob(x_t, x_r, t, r) + path.log_prob(x_r, x_q, r, q)
    log_integrand = log_integrand - path.variable.gaussian_log_prob(x_r - centre, 1.44 * variance)
    composed = torch.logsumexp(log_integrand + weights.log(), 0)
    torch.testing.assert_close(composed, path.log_prob(x_t, x_q, t, q), rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize(("t", "r"), TIMES)
@pytest.mark.parametrize("path", PATHS)
def test_proposal_integrates_to_one_against_its_normaliser(path, t, r):
    nodes, weights = gauss_hermite(path.variable, 24)
    x_t = random_value(path, 2)
    a, s2 = kernel(path, t, r)
    centre, width = x_t / a, 1.3 * s2.sqrt() / a
    x_r = centre + width * nodes
    log_integrand = path.log_prob(x_t, x_r, t, r) - path.variable.gaussian_log_prob(x_r - centre, width**2)
    total = torch.logsumexp(log_integrand + weights.log(), 0)
    torch.testing.assert_close(total, path.log_normaliser(x_t, t, r), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("t", "r"), [(0.3, 1.0), (0.3, 0.55), (0.6, 0.61)])
@pytest.mark.parametrize("path", PATHS)
def test_samples_and_proposals_follow_their_kernels(path, t, r):
    generator = torch.Generator().manual_seed(0)
    x = random_value(path, 3)
    a, s2 = kernel(path, t, r)
    axes = path.variable.latent_shape
    cov = path.variable.project(torch.eye(max(1, x.numel()), dtype=torch.float64).reshape(-1, *axes)).reshape(
        -1, x.numel()
    )
    spread = cov.diagonal().reshape(axes) if axes else cov.reshape(())
    x_t = path.sample(x.expand(20_000, *axes), t, r, generator=generator)
    assert_mean(x_t, a * x, "sample mean")
    assert_variance(x_t, s2 * spread, "sample variance")
    x_r = path.proposer(x, t, r)(20_000, generator)
    assert x_r.shape == (20_000, *axes)
    assert_mean(x_r, x / a, "proposal mean")
    assert_variance(x_r, s2 / a**2 * spread, "proposal variance")


@pytest.mark.parametrize(("t", "r"), [pair for pair in TIMES if pair[1] < 1])
@pytest.mark.parametrize("path", PATHS)
def test_bridge_is_bayes_rule(path, t, r):
    x_1, x_t = random_value(path, 4), random_value(path, 5)
    mean, variance, _ = path.bridge(x_t, x_1, t, r)
    generator = torch.Generator().manual_seed(0)
    x_r = mean + 2 * variance.sqrt() * path.variable.noise((50,), generator=generator, dtype=torch.float64)
    log_bayes = path.log_prob(x_t, x_r, t, r) + path.log_prob(x_r, x_1, r) - path.log_prob(x_t, x_1, t)
    torch.testing.assert_close(path.variable.gaussian_log_prob(x_r - mean, variance.flatten()[0]), log_bayes)


@pytest.mark.parametrize("path", PATHS)
def test_prior_is_the_noised_reference_law(path):
    generator = torch.Generator().manual_seed(0)
    for t in (path.earliest, 0.4):
        x_1 = path.variable.noise((20_000,), generator=generator, dtype=torch.float64)
        noised = path.sample(x_1, t, generator=generator)
        x = path.prior_sample((20_000,), t, generator=generator, dtype=torch.float64)
        assert_same_mean(x.square(), noised.square(), "second moment")
        nodes, weights = gauss_hermite(path.variable, 24)
        width = 1.3 * float(noised.square().sum() / 20_000 / path.variable.dimension) ** 0.5
        log_ratio = path.prior_log_prob(width * nodes, t) - path.variable.gaussian_log_prob(width * nodes, width**2)
        assert float((weights * log_ratio.exp()).sum()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("t", [0.0, 0.4])
@pytest.mark.parametrize("path", PATHS)
def test_prior_log_prob_is_the_integral_over_the_reference_law(path, t):
    t = max(t, path.earliest)
    nodes, weights = gauss_hermite(path.variable, 40)
    alpha, sigma2 = kernel(path, t, 1.0)
    x_t = 1.5 * random_value(path, 6)
    # ∫ p_{t|1}(x_t | x_1) p_ref(x_1) dx_1 around the posterior of x_1, a little wider
    centre, width2 = alpha * x_t / (alpha**2 + sigma2), 1.44 * sigma2 / (alpha**2 + sigma2)
    x_1 = centre + width2.sqrt() * nodes
    log_integrand = path.log_prob(x_t, x_1, t) + path.variable.gaussian_log_prob(x_1, 1.0)
    log_integrand = log_integrand - path.variable.gaussian_log_prob(x_1 - centre, width2)
    torch.testing.assert_close(path.prior_log_prob(x_t, t), torch.logsumexp(log_integrand + weights.log(), 0))


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("t", [0.3, torch.tensor(0.3), torch.tensor(0.3, dtype=torch.float64)], ids=["py", "32", "64"])
@pytest.mark.parametrize("r", [0.6, torch.tensor(0.6), torch.tensor(0.6, dtype=torch.float64)], ids=["py", "32", "64"])
@pytest.mark.parametrize("path", pairs(GAUSSIAN_AND_POINT, {"2d": Real(2)}))
def test_results_have_the_dtype_of_the_state(path, x_dtype, t, r):
    x = torch.full((4, 2), 0.5, dtype=x_dtype)
    results = (
        *path.times(t, r, x), path.over_batch(t, x), path.sample(x, t, r), path.proposer(x, t, r)(2, None),
        path.log_prob(x, x, t, r), path.log_normaliser(x, t, r), path.velocity(x, x, t, r), path.score(x, x, t, r),
        *path.bridge(x, x, t, r), path.prior_log_prob(x, t),
    )  # fmt: skip
    assert {result.dtype for result in results} == {x_dtype}


@pytest.mark.parametrize("path", PATHS)
def test_times_broadcast_over_the_batch(path):
    generator = torch.Generator().manual_seed(0)
    x_1 = path.variable.noise((5, 3), generator=generator, dtype=torch.float64)
    x_t = path.variable.noise((5, 3), generator=generator, dtype=torch.float64)
    t = torch.linspace(0.1, 0.6, 3, dtype=torch.float64)
    r = t + 0.2
    each = torch.stack([path.log_prob(x_t[:, i], x_1[:, i], float(t[i]), float(r[i])) for i in range(3)], 1)
    torch.testing.assert_close(path.log_prob(x_t, x_1, t, r), each)
    each = torch.stack([path.velocity(x_t[:, i], x_1[:, i], float(t[i]), float(r[i])) for i in range(3)], 1)
    torch.testing.assert_close(path.velocity(x_t, x_1, t, r), each)
    assert path.log_normaliser(x_t, t, r).shape == (5, 3)
    assert path.proposer(x_t, t, r)(7, generator).shape == (7, *x_t.shape)


def test_centred_values_stay_centred():
    path = CondOT(Real((4, 2), centered=True))
    generator = torch.Generator().manual_seed(0)
    x_1 = path.variable.noise((100,), generator=generator)
    for x in (path.sample(x_1, 0.3), path.proposer(x_1, 0.3, 0.5)(2, None), path.prior_sample((3,))):
        assert float(x.mean(-2).abs().max()) < 1e-6
    assert embed(path.variable, torch.ones(6, dtype=torch.float64)).shape == (4, 2)


def test_errors_name_the_fix():
    with pytest.raises(TypeError, match="Masked or Uniform"):
        CondOT(Categorical(2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="CondOT, VE or VP"):
        Masked(Real(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sigma_min"):
        VE(Real(2), sigma_min=3.0, sigma_max=2.0)
