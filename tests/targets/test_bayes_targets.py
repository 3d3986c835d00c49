"""SpikeSlab and GaussianMixturePosterior: evidence and posterior against direct enumeration of Gaussian densities."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from egm.mcmc import make_reference, r_hat, run
from egm.targets.mixture_posterior import GaussianMixturePosterior, Relabel
from egm.targets.spike_slab import SpikeSlab
from support.oracles import log_integral
from support.stats import assert_counts, assert_mean, z_limit

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4))
Y = X @ np.array([1.0, 0.0, -0.6, 0.0]) + 0.5 * RNG.normal(size=12)
DATA = np.array([-2.0, -1.5, 0.2, 1.0, 1.4])


def _spike_slab() -> SpikeSlab:
    return SpikeSlab(X, Y, noise=0.7, slab=1.3, inclusion=0.3)


def _log_normal(y: np.ndarray, covariance: np.ndarray) -> float:
    """Log N(y; 0, covariance)."""
    log_det = np.linalg.slogdet(2 * math.pi * covariance)[1]
    return -0.5 * float(log_det + y @ np.linalg.solve(covariance, y))


def _log_models(noise: float, slab: float, inclusion: float) -> dict[tuple[int, ...], float]:
    """Log p(y, γ) of every γ, from the density of y with β integrated out."""
    found = {}
    for gamma in itertools.product((0, 1), repeat=X.shape[1]):
        design = X * np.array(gamma)
        covariance = noise**2 * np.eye(len(Y)) + slab**2 * design @ design.T
        prior = sum(gamma) * math.log(inclusion) + (len(gamma) - sum(gamma)) * math.log(1 - inclusion)
        found[gamma] = prior + _log_normal(Y, covariance)
    return found


def _log_assignments(k: int, noise: float, scale: float) -> dict[tuple[int, ...], float]:
    found = {}
    for z in itertools.product(range(k), repeat=len(DATA)):
        same = np.equal.outer(z, z)
        covariance = noise**2 * np.eye(len(DATA)) + scale**2 * same
        found[z] = _log_normal(DATA, covariance) - len(DATA) * math.log(k)
    return found


# ---------------------------------------------------------------------- spike and slab


def test_spike_slab_energy_is_the_negative_log_joint():
    target = _spike_slab()
    state = target.space.reference_sample(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    beta, gamma = state["beta"].numpy(), state["gamma"].numpy()
    expected = norm.logpdf(Y, (beta * gamma) @ X.T, 0.7).sum(-1) + norm.logpdf(beta, 0, 1.3).sum(-1)
    expected += np.where(gamma, math.log(0.3), math.log(0.7)).sum(-1)
    np.testing.assert_allclose(target.energy(**state), -expected, rtol=1e-10)


def test_spike_slab_evidence_and_inclusion_probabilities():
    target = _spike_slab()
    models = _log_models(0.7, 1.3, 0.3)
    log_joint = np.array(list(models.values()))
    assert target.log_z == pytest.approx(np.logaddexp.reduce(log_joint), abs=1e-9)
    inclusion = np.exp(log_joint - target.log_z) @ np.array(list(models))
    np.testing.assert_allclose(target.inclusion_probabilities, inclusion, atol=1e-9)
    assert inclusion[0] > 0.9 > 0.5 > inclusion[1]  # the data speak


def test_spike_slab_evidence_by_quadrature():
    target = SpikeSlab([[1.0], [-0.5]], [0.8, 0.3], noise=0.6, slab=0.9, inclusion=0.2)

    def log_joint(beta, gamma):
        state = {"beta": torch.from_numpy(beta)[:, None], "gamma": torch.full((len(beta), 1), gamma)}
        return -target.energy(**state).numpy()

    parts = [log_integral(lambda beta, gamma=gamma: log_joint(beta, gamma), -12, 12) for gamma in (0, 1)]
    evidence = np.logaddexp(parts[0], parts[1])
    assert target.log_z == pytest.approx(evidence, abs=1e-9)
    assert float(target.inclusion_probabilities) == pytest.approx(math.exp(parts[1] - evidence), abs=1e-9)


def test_spike_slab_draws_have_the_exact_moments():
    target = _spike_slab()
    state = target.exact_sample(20_000, seed=1)
    assert_mean(state["gamma"], target.inclusion_probabilities)
    mean, second = np.zeros(4), np.zeros((4, 4))
    for gamma, log_joint in _log_models(0.7, 1.3, 0.3).items():
        design = X * np.array(gamma)
        covariance = np.linalg.inv(design.T @ design / 0.49 + np.eye(4) / 1.69)
        centre = covariance @ design.T @ Y / 0.49
        weight = math.exp(log_joint - (target.log_z or 0.0))
        mean += weight * centre
        second += weight * (covariance + np.outer(centre, centre))
    assert_mean(state["beta"], mean)
    assert_mean(state["beta"][:, :, None].double() * state["beta"][:, None, :], second)


def test_spike_slab_means_of_coefficients():
    target, expected = _spike_slab(), np.zeros(4)
    for gamma, log_joint in _log_models(0.7, 1.3, 0.3).items():
        inside = np.flatnonzero(gamma)  # ridge regression on the columns of the model alone
        design = X[:, inside]
        centre = np.linalg.solve(design.T @ design / 0.49 + np.eye(len(inside)) / 1.69, design.T @ Y / 0.49)
        expected[inside] += math.exp(log_joint - (target.log_z or 0.0)) * centre
    np.testing.assert_allclose(target.coefficient_means, expected, atol=1e-9)
    assert np.abs(expected).max() > 0.5


def test_spike_slab_with_many_coefficients_has_no_exact_answers():
    target = SpikeSlab(np.ones((3, 15)), np.ones(3))
    assert (target.reference_kind, target.log_z) == ("mcmc", None)
    assert SpikeSlab(np.ones((3, 14)), np.ones(3)).reference_kind == "exact"
    with pytest.raises(ValueError, match="at most 14 coefficients, got 15"):
        _ = target.inclusion_probabilities
    with pytest.raises(ValueError, match="exact means of coefficients need at most 14"):
        _ = target.coefficient_means


# ---------------------------------------------------------------------- Gaussian mixture


@pytest.mark.parametrize("k", [1, 2, 3])
def test_mixture_evidence(k):
    target = GaussianMixturePosterior(DATA, k, noise=0.6, prior_scale=1.7)
    log_joint = np.array(list(_log_assignments(k, 0.6, 1.7).values()))
    assert target.log_z == pytest.approx(np.logaddexp.reduce(log_joint), abs=1e-9)


def test_mixture_energy_is_the_negative_log_joint():
    target = GaussianMixturePosterior(DATA, 3, noise=0.6, prior_scale=1.7)
    state = target.space.reference_sample(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mu, z = state["mu"].numpy(), state["z"].numpy()
    expected = norm.logpdf(DATA, np.take_along_axis(mu, z, 1), 0.6).sum(-1) + norm.logpdf(mu, 0, 1.7).sum(-1)
    np.testing.assert_allclose(target.energy(**state), -(expected - 5 * math.log(3)), rtol=1e-10)


def test_mixture_draws_have_the_exact_moments():
    target = GaussianMixturePosterior(DATA, 2, noise=0.6, prior_scale=1.7)
    state = target.exact_sample(20_000, seed=1)
    assert_mean(state["mu"], 0.5 * _sum_of_means())
    together = _log_assignments(2, 0.6, 1.7)
    weights = np.exp(np.array(list(together.values())) - target.log_z)
    same = np.array([np.equal.outer(z, z) for z in together])
    expected = np.tensordot(weights, same, 1)
    off_diagonal = ~np.eye(5, dtype=bool)
    drawn = (state["z"][:, :, None] == state["z"][:, None, :]).numpy()
    assert_mean(drawn[:, off_diagonal], expected[off_diagonal])


def _sum_of_means() -> float:
    """Σ_j E[μ_j | y] of two components, from the conditional means of every assignment."""
    found = _log_assignments(2, 0.6, 1.7)
    total = np.logaddexp.reduce(np.array(list(found.values())))
    mean = 0.0
    for z, log_joint in found.items():
        for j in range(2):
            own = DATA[np.array(z) == j]
            mean += math.exp(log_joint - total) * own.sum() / 0.36 / (len(own) / 0.36 + 1 / 1.7**2)
    return mean


@pytest.mark.parametrize("k", [2, 3])
def test_mixture_marginals(k):
    """Against conditional means of Gaussian vectors: E[μ_{z_i} | z, y] = C_i (C + s²I)⁻¹ y with C = τ²[z_i = z_j]."""
    target = GaussianMixturePosterior(DATA, k, noise=0.6, prior_scale=1.7)
    together, fitted, overall = np.zeros((5, 5)), np.zeros(5), 0.0
    for z, log_joint in _log_assignments(k, 0.6, 1.7).items():
        share, same = math.exp(log_joint - (target.log_z or 0.0)), np.equal.outer(z, z)
        together += share * same
        means = 1.7**2 * same @ np.linalg.solve(1.7**2 * same + 0.36 * np.eye(5), DATA)
        fitted += share * means
        overall += share * sum(means[list(z).index(j)] for j in set(z)) / k  # empty components have the mean 0
    np.testing.assert_allclose(target.together_probabilities, together, atol=1e-9)
    np.testing.assert_allclose(target.fitted_means, fitted, atol=1e-9)
    assert target.component_mean == pytest.approx(overall, abs=1e-9)
    assert together[0, 1] > 0.8 > 0.1 > together[0, 4]


def test_mixture_beyond_enumeration():
    assert GaussianMixturePosterior(np.zeros(16), 2).reference_kind == "exact"
    target = GaussianMixturePosterior(np.zeros(17), 2)
    assert (target.reference_kind, target.log_z) == ("mcmc", None)
    for name in ("together_probabilities", "fitted_means", "component_mean"):
        with pytest.raises(ValueError, match=r"need at most 65536 assignments, got 2\^17"):
            getattr(target, name)
    assert GaussianMixturePosterior(np.zeros(8), 4).reference_kind == "exact"
    assert GaussianMixturePosterior(np.zeros(9), 4).reference_kind == "mcmc"


# ---------------------------------------------------------------------- both


@pytest.mark.slow
@pytest.mark.parametrize("make", [_spike_slab, lambda: GaussianMixturePosterior(DATA, 2, noise=1.2)])
def test_the_mcmc_plan_agrees_with_enumeration(make):
    target = make()
    plan = dataclasses.replace(target._reference_plan(), chains=64, warmup=100, steps=300, thin=2)
    found = make_reference(target, plan).diagnostics["observables"]
    exact = target.exact_sample(50_000, seed=2)
    for name, values in target.observables(**exact).items():
        for i, column in enumerate(values.double().T):
            a = found[f"{name}[{i}]"]
            stderr = math.hypot(a["stderr"], float(column.std()) / math.sqrt(len(column)))
            assert abs(a["mean"] - float(column.mean())) < z_limit(8) * stderr, f"{name}[{i}]"


def test_arrays_of_any_kind_and_names_that_tell_data_apart():
    from_lists = SpikeSlab(X.tolist(), Y.tolist())
    from_torch = SpikeSlab(torch.from_numpy(X).float().double(), torch.from_numpy(Y))
    assert repr(from_lists) == repr(SpikeSlab(X, Y))
    assert repr(from_lists) != repr(from_torch)  # rounded to single precision on the way
    assert repr(SpikeSlab(X, Y)).startswith("SpikeSlab(X=<12x4 ")
    assert repr(SpikeSlab(X, Y, slab=2.0)).endswith(", slab=2.0)")
    assert repr(GaussianMixturePosterior(DATA, 2)) != repr(GaussianMixturePosterior(DATA + 1, 2))
    data = Y.copy()
    target = SpikeSlab(X, data)
    before = target.energy(beta=torch.zeros(4), gamma=torch.zeros(4).long())
    data += 1
    assert torch.equal(target.energy(beta=torch.zeros(4), gamma=torch.zeros(4).long()), before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpikeSlab(X, Y[:-1]), "X has 12 rows, but y has 11 entries"),
        (lambda: SpikeSlab(X[0], Y), r"X must be a matrix \[n, p\] .* got shape \(4,\)"),
        (lambda: SpikeSlab(X, Y[:, None]), r"y must be a vector \[n\] .* got shape \(12, 1\)"),
        (lambda: SpikeSlab(X * np.nan, Y), "X holds NaN or infinite entries"),
        (lambda: SpikeSlab(X, np.where(Y[0] == Y, np.inf, Y)), "y holds NaN or infinite entries"),
        (lambda: SpikeSlab(X, Y, noise=0.0), "noise must be positive and finite, got 0.0"),
        (lambda: SpikeSlab(X, Y, slab=-1.0), "slab must be positive and finite"),
        (lambda: SpikeSlab(X, Y, inclusion=1.0), "inclusion must be a probability strictly between 0 and 1, got 1.0"),
        (lambda: GaussianMixturePosterior(DATA, 0), "k must be at least 1, got 0"),
        (lambda: GaussianMixturePosterior([], 2), r"y must be a vector \[n\] with at least one entry"),
        (lambda: GaussianMixturePosterior([1.0, math.nan], 2), "y holds NaN or infinite entries"),
        (lambda: GaussianMixturePosterior(DATA, 2, prior_scale=0.0), "prior_scale must be positive"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_labels_of_separated_clusters_are_exchanged():
    """Separated clusters, where single-site moves never swap labels: the plan's kernel visits both labellings."""
    data = [-3.2, -2.9, -3.1, 2.8, 3.0, 3.3]
    target = GaussianMixturePosterior(data, 2, noise=0.3)
    kernel = target._reference_plan().kernel
    chains = run(target, kernel, chains=64, warmup=50, steps=50)
    first = (chains.state["z"][..., 0] == 1).double()
    assert float(first.mean()) == pytest.approx(0.5, abs=0.1)
    assert r_hat(first) < 1.1
    exact = target.exact_sample(20_000)["mu"].double().sort(-1).values.mean(0)
    assert chains.state["mu"].double().sort(-1).values.mean((0, 1)).tolist() == pytest.approx(exact.tolist(), abs=0.05)


def test_relabelling_keeps_the_energy_and_uses_every_permutation():
    target = GaussianMixturePosterior([0.1, 2.0, -1.0, 0.7], 3)
    latent = target.space.to_latent(target.space.reference_sample(3000, generator=torch.Generator().manual_seed(0)))
    moved, _ = Relabel(target).step(latent, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(target.latent_energy(moved), target.latent_energy(latent))
    where = (moved["mu"] == latent["mu"][:, :1]).long().argmax(-1)
    assert_counts(torch.bincount(where, minlength=3), [1 / 3] * 3)
