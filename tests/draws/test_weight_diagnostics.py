"""Diagnostics of weights: tails of known shape, halves, and the EUBO against lost modes and wrong densities."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from egm.draws.diagnostics import eubo_problem, halves, pareto_k, pareto_k_limit, sigmas
from support.stats import FAILURE_RATE


def tail_length(n):
    return math.ceil(min(n / 5, 3 * math.sqrt(n)))


# ---------------------------------------------------------------------- Pareto k̂


@pytest.mark.parametrize("shape", [-1.0, -0.4, 0.0, 0.3, 0.7, 1.2, 3.0])
def test_shapes_of_generalised_pareto_weights_are_found(shape):
    """A tail of a generalised Pareto law is one of the same shape.

    Means of 60 k̂ of M = 600 weights are within four of their standard errors, (1 + k)/√(60 M), and 0.04 for the bias
    of the fit; single ones have the spread that theory gives maximum likelihood.
    """
    n, m = 40_000, 600
    assert m == tail_length(n)
    weights = np.asarray(stats.genpareto(shape).rvs(size=(60, n), random_state=np.random.default_rng(3)))
    found = [pareto_k(np.log(w)) for w in weights]
    spread = max(1 + shape, 0.1) / math.sqrt(m)
    assert np.mean(found) == pytest.approx((m * shape + 5) / (m + 10), abs=4 * spread / math.sqrt(60) + 0.04)
    if shape > -0.5:
        assert np.std(found) == pytest.approx(spread, rel=0.4)


@pytest.mark.parametrize("shape", [0.2, 0.8])
def test_the_fit_is_that_of_maximum_likelihood(shape):
    """Undo the pull towards ½, and compare with scipy's maximum likelihood on the same tail (they differ by O(1/M))."""
    log_w = np.log(stats.genpareto.rvs(shape, size=10_000, random_state=np.random.default_rng(0)))
    m = tail_length(len(log_w))
    top = np.sort(np.exp(log_w))
    likely, _, _ = stats.genpareto.fit(top[-m:] - top[-m - 1], floc=0)
    assert (pareto_k(log_w) * (m + 10) - 5) / m == pytest.approx(likely, abs=0.02)


@pytest.mark.parametrize("freedom", [1, 4])
def test_student_tails(freedom):
    """|t| with ν degrees of freedom has the tail shape 1/ν; 0.08 leaves room for the approach to it."""
    values = np.abs(np.random.default_rng(1).standard_t(freedom, size=(40, 20_000)))
    assert np.mean([pareto_k(np.log(x)) for x in values]) == pytest.approx(1 / freedom, abs=0.08)


@pytest.mark.parametrize(("variance", "heavy"), [(20.0, True), (10.0, True), (1.5, False), (0.5, False)])
def test_narrow_proposals_are_told_from_wide_ones(variance, heavy):
    """N(0, 1) proposed for N(0, v): shape 1 − 1/v up to a logarithm; .95 and .9 are over the limit, .33 is not."""
    x = np.random.default_rng(2).normal(size=(40, 10_000))
    found = np.array([pareto_k(0.5 * row**2 * (1 - 1 / variance)) for row in x])
    if heavy:
        assert found.mean() == pytest.approx(1 - 1 / variance, abs=0.15)
        assert (found > pareto_k_limit(10_000)).mean() > 0.7
    else:
        assert (found < pareto_k_limit(10_000)).all()


@pytest.mark.parametrize("shift", [-1e5, -800.0, 900.0, 1e5])
def test_a_common_factor_and_the_order_do_not_matter(shift):
    log_w = 1.5 * np.random.default_rng(4).normal(size=1000)
    expected = pareto_k(log_w)
    assert pareto_k(log_w + shift) == pytest.approx(expected, abs=1e-8)
    assert pareto_k(np.random.default_rng(5).permutation(log_w)) == expected
    assert pareto_k(torch.from_numpy(log_w)) == expected


def test_weights_of_any_spread_have_a_tail():
    """Log-weights over thousands of nats: no overflow, no underflow to a light tail."""
    log_w = np.random.default_rng(6).normal(size=2000)
    assert pareto_k(log_w * 1000) > 5
    assert pareto_k(log_w * 1000 + 1e6) > 5
    assert pareto_k(log_w * 1e-6) < 0.7


def test_weights_without_a_tail():
    assert pareto_k(np.full(1000, 7.0)) == -math.inf
    assert pareto_k(np.append(np.full(990, 7.0), np.full(10, -math.inf))) == -math.inf
    assert math.isnan(pareto_k(np.append(np.zeros(996), np.arange(1.0, 5.0))))  # four weights above all others
    assert math.isfinite(pareto_k(np.append(np.zeros(995), np.arange(1.0, 6.0))))
    assert math.isnan(pareto_k(np.arange(20.0)))
    assert math.isfinite(pareto_k(np.arange(25.0)))
    assert math.isnan(pareto_k(np.full(1000, -math.inf)))
    # a tail of 100 equal weights above the rest: b = 0, the exponential law, is on the grid
    assert math.isfinite(pareto_k(np.append(np.zeros(1000), np.full(100, 1.0))))


def test_zero_weights_count_as_draws():
    """Zeros lengthen the tail (n grows) and are not part of it."""
    log_w = np.log(stats.genpareto.rvs(0.6, size=2000, random_state=np.random.default_rng(7)))
    zeros = np.full(2000, -math.inf)
    assert pareto_k(np.append(log_w, zeros)) == pytest.approx(0.6, abs=0.2)
    few = np.append(log_w[:50], zeros)  # fewer positive weights than the tail is long
    assert math.isfinite(pareto_k(few))


def test_limits():
    assert pareto_k_limit(100) == pytest.approx(0.5)
    assert pareto_k_limit(2000) == pytest.approx(1 - 1 / math.log10(2000))
    assert pareto_k_limit(10**6) == 0.7
    assert pareto_k_limit(1) == -math.inf
    for freedom in (2, 10, 100):
        assert 2 * stats.t.sf(sigmas(freedom), freedom) == pytest.approx(FAILURE_RATE, rel=1e-6)


@pytest.mark.parametrize("function", [pareto_k, halves])
def test_illegal_weights_are_refused(function):
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"log_weights hold NaN or \+inf"):
            function(np.append(np.zeros(99), bad))
    with pytest.raises(ValueError, match=r"shape \[n\] with n ≥ 1, got \(2, 3\)"):
        function(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"got \(0,\)"):
        function([])


# ---------------------------------------------------------------------- halves


def test_halves_in_closed_form():
    weights = np.array([1.0, 3.0, 100.0, 2.0, 6.0])  # the middle one is in neither half
    first, second, apart = halves(np.log(weights) + 800)
    assert (first, second) == pytest.approx((800 + math.log(2), 800 + math.log(4)))
    error = math.hypot(math.sqrt(2) / 2 / math.sqrt(2), math.sqrt(8) / 4 / math.sqrt(2))
    assert apart == pytest.approx(math.log(2) / error)


def test_halves_of_groups_are_compared_by_their_spread():
    weights = np.array([[1.0, 1.0], [2.0, 4.0], [5.0, 5.0], [3.0, 5.0]])  # means 1, 3 | 5, 4
    first, second, apart = halves(np.log(weights.ravel()), groups=4)
    assert (first, second) == pytest.approx((math.log(2), math.log(4.5)))
    error = math.hypot(math.sqrt(2) / 2 / math.sqrt(2), math.sqrt(0.5) / 4.5 / math.sqrt(2))
    assert apart == pytest.approx(math.log(2.25) / error)
    odd = np.insert(np.log(weights), 2, 50.0, axis=0)  # a fifth group, in the middle, is left out
    assert halves(odd.ravel(), groups=5) == pytest.approx((first, second, apart))


def test_halves_without_spread_or_weight():
    assert halves(np.full(100, 0.1)) == pytest.approx((0.1, 0.1, 0.0))
    assert halves(np.append(np.zeros(50), np.full(50, -math.inf)))[1:] == (-math.inf, math.inf)
    assert all(math.isnan(x) for x in halves(np.zeros(3)))
    assert all(math.isnan(x) for x in halves(np.zeros(30), groups=3))


def test_halves_disagree_as_often_as_declared():
    """The ratio is standard normal over repetitions, also for groups of draws that are ten times the same."""
    rng = np.random.default_rng(8)
    for groups in (1, 60):
        ratios = []
        for _ in range(800):
            log_w = 0.7 * rng.normal(size=(60, 10))
            log_w = log_w if groups == 1 else np.repeat(log_w[:, :1], 10, axis=1)
            ratios.append(halves(log_w.ravel(), groups=groups)[2])
        assert np.mean(np.square(ratios)) == pytest.approx(1.0, abs=0.25)


# ---------------------------------------------------------------------- EUBO


def test_what_the_eubo_has_against_draws():
    def problem(eubo, error=0.01, predicted=(2.0, 0.0), ess=1 / math.e):
        return eubo_problem((eubo, error), (1.5, 0.02), predicted=predicted, ess=ess)

    # four standard errors, a hundredth and a tenth of −log ESS: 0.04 + 0.01 + 0.1 on either side of the prediction
    for inside in (1.851, 2.0, 2.149):
        assert problem(inside) is None
    assert problem(2.151) == (
        "EUBO 2.1510 ± 0.0100 is above what the weights predict, 2.0000 ± 0.0000: exact samples lie where no draws are"
    )
    below = problem(1.849)
    assert below is not None
    assert below.startswith("EUBO 1.8490 ± 0.0100 is below what the weights predict, 2.0000 ± 0.0000: a density")
    assert problem(2.1, ess=1.0) is not None  # even weights leave a EUBO less room
    assert problem(2.151, predicted=(2.0, 0.05)) is None
    assert problem(2.151, error=0.05) is None
    lost = problem(math.inf, error=math.nan)
    assert lost is not None
    assert "no draws are" in lost
    broken = problem(-math.inf, error=math.nan)
    assert broken is not None
    assert "below log Z" in broken
    # weights that are not those of paths: only the bound log Z ≤ EUBO is left, 4·hypot(.01, .02) + .01 = .0994
    assert problem(50.0, predicted=None) is None
    assert problem(1.401, predicted=None) is None
    low = problem(1.400, predicted=None)
    assert low is not None
    assert low.startswith("EUBO 1.4000 ± 0.0100 is below log Z 1.5000 ± 0.0200: a density in the weights")
