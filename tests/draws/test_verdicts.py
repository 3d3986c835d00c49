"""Verdicts on draws: good samplers are not accused, uneven weights, lost modes and wrong densities are."""

import math

import numpy as np
import pytest
import torch

from egm.draws import Draws
from egm.spaces import Real, Space

WEIGHTS = [0.1, 0.2, 0.3, 0.4]


def of(log_w, eubo=None, **options):
    log_w = torch.as_tensor(log_w)
    return Draws(Space(x=Real(())), {"x": torch.zeros(len(log_w))}, log_weights=log_w, eubo=eubo, **options)


def mean_and_error(values):
    return lambda: (float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)))


def test_the_eubo_is_found_once_and_when_asked():
    calls = []

    def eubo():
        calls.append(1)
        return torch.tensor(0.5), 0.25

    found = of(np.log(WEIGHTS), eubo=eubo)
    assert (found.ess, calls) == (pytest.approx(1 / 1.2), [])
    assert (found.eubo, found.eubo_stderr) == (0.5, 0.25)
    found.summary()
    assert calls == [1]
    assert of(np.log(WEIGHTS)).eubo is None
    assert of(np.log(WEIGHTS)).eubo_stderr is None
    for bad in ((math.nan, 0.1), (1.0, math.nan), (1.0, -1.0)):
        with pytest.raises(ValueError, match="eubo must return a number and its standard error, got"):
            _ = of(np.log(WEIGHTS), eubo=lambda bad=bad: bad).eubo


@pytest.mark.parametrize("ess", [0.3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [2000, 10_000])
def test_good_samplers_are_not_accused(ess, n):
    """log w ~ N(∓σ²/2, σ²) under draws and exact samples, ESS = exp(−σ²): 100 repetitions without a complaint."""
    v, rng, sizes = -math.log(ess), np.random.default_rng(int(100 * ess)), []
    for _ in range(100):
        log_w, exact = -v / 2 + math.sqrt(v) * rng.normal(size=n), v / 2 + math.sqrt(v) * rng.normal(size=2000)
        found = of(log_w, mean_and_error(exact))
        assert found.problems() == []
        assert found.summary().splitlines()[-1] == "no problem detected"
        sizes.append(found.ess)
    assert np.mean(sizes) == pytest.approx(ess, rel=0.1)


def log_density(x, centres, width=1.0):
    kernel = -0.5 * np.square((x[:, None] - np.array(centres)) / width)
    return np.logaddexp.reduce(kernel, 1) - math.log(len(centres) * width * math.sqrt(2 * math.pi))


def mixture_draws(visited, *, width=1.1, claimed=None, exact_sampler=True, seed=0):
    """7 times a mixture of N(±6, 1) and N(±18, 1), from a mixture on the centres `visited`; log Z = log 7."""
    centres, rng = [-18, -6, 6, 18], np.random.default_rng(seed)

    def log_weight(x):
        return math.log(7) + log_density(x, centres) - log_density(x, visited, claimed or width)

    x = rng.choice(visited, size=5000) + width * rng.normal(size=5000)
    exact = rng.choice(centres, size=2000) + rng.normal(size=2000)
    eubo = mean_and_error(log_weight(exact)) if exact_sampler else None
    return of(log_weight(x), eubo)


def test_a_sampler_of_every_mode():
    found = mixture_draws([-18, -6, 6, 18])
    assert found.problems() == []
    assert abs(found.log_z - math.log(7)) < 4 * found.log_z_stderr
    assert found.eubo is not None
    assert found.elbo < math.log(7) < found.eubo


@pytest.mark.parametrize("visited", [[6, 18], [-18, -6, 6]])
def test_lost_modes_show_in_the_eubo_alone(visited):
    blind = mixture_draws(visited, exact_sampler=False)
    assert blind.ess > 0.9
    assert blind.log_z == pytest.approx(math.log(7 * len(visited) / 4), abs=0.05)
    last = blind.summary().splitlines()[-2:]
    assert last == ["a mode that the sampler never visits cannot be detected from weights", "no problem detected"]
    (problem,) = mixture_draws(visited).problems()
    assert problem.startswith("EUBO ")
    assert problem.endswith("exact samples lie where no draws are")
    assert mixture_draws(visited).summary().splitlines()[-1] == f"unreliable, because {problem}"


@pytest.mark.parametrize("claimed", [0.85, 2.0])
def test_a_wrong_density_is_caught(claimed):
    """Draws have the width 1.15, their weights suppose another: E[w] ≠ Z, and exact samples have smaller weights."""
    problem = mixture_draws([-18, -6, 6, 18], width=1.15, claimed=claimed).problems()[-1]
    assert problem.startswith("EUBO ")
    assert problem.endswith("a density in the weights, or the exact sampler, is wrong")


def test_equal_weights_are_no_contradiction():
    """A perfect sampler: all differences are rounding."""
    found = mixture_draws([-18, -6, 6, 18], width=1.0)
    assert found.problems() == []
    assert found.log_z == pytest.approx(math.log(7), abs=1e-12)


def test_an_upper_bound_below_log_z_is_a_contradiction():
    log_w = 0.1 * np.random.default_rng(0).normal(size=(50, 20))
    for groups in (1, 50):
        assert of(log_w.ravel(), lambda: (0.0, 0.01), groups=groups).problems() == []
        (problem,) = of(log_w.ravel(), lambda: (-0.2, 0.01), groups=groups).problems()
        assert problem.startswith("EUBO -0.2000 ± 0.0100 is below log Z")
    assert of(log_w.ravel(), lambda: (3.0, 0.01), groups=50).problems() == []  # not weights of paths: only a bound
    assert len(of(log_w.ravel(), lambda: (3.0, 0.01)).problems()) == 1
    (lost,) = of(log_w.ravel(), lambda: (math.inf, math.nan)).problems()
    assert "exact samples lie where no draws are" in lost


def test_uneven_weights_are_a_problem():
    rng = np.random.default_rng(0)
    (few,) = of(0.1 * rng.normal(size=99)).problems()
    assert few.startswith("ESS 0.9")
    assert of(0.1 * rng.normal(size=110)).problems() == []
    uneven = of(2 * rng.normal(size=20_000)).problems()  # ESS e^−4
    assert uneven[0].startswith("ESS 0.0")
    (heavy,) = of(np.log(3 + rng.pareto(1 / 0.9, size=100_000)).astype(np.float64)).problems()[-1:]
    assert heavy.startswith("Pareto k̂ 0.")
    assert heavy.endswith("exceeds 0.70: a few large weights dominate")


def test_halves_that_disagree_are_a_problem():
    log_w = 0.5 * np.random.default_rng(0).normal(size=4000)
    assert of(log_w).problems() == []
    log_w[2000:] += 0.1
    (problem,) = of(log_w).problems()
    first, second = of(log_w).halves
    assert problem.startswith(f"halves give log Z {first:.4f} and {second:.4f}, ")
    assert second - first == pytest.approx(0.1, abs=0.05)
    # Two groups a half make a poor standard error: 14 standard errors are not unusual (Student's law).
    assert of(np.repeat([0.0, 0.01, 0.1, 0.11], 250), groups=4).problems() == []
    one = of([0.5])
    assert math.isnan(one.halves[0])
    assert "independent draws or groups: 1, at least 4" in one.summary().splitlines()[-1]


def test_zero_weights_are_legal():
    """Half the draws break a hard constraint: everything is finite but the ELBO, and nothing is wrong."""
    log_w = 0.2 * np.random.default_rng(0).normal(size=4000)
    exact = 0.5 * 0.04 + log_w[:2000]
    log_w[np.random.default_rng(1).random(4000) < 0.5] = -math.inf
    found = of(log_w, mean_and_error(exact + 0.02))
    assert found.problems() == []
    assert found.elbo == -math.inf
    assert found.log_z == pytest.approx(0.02 - math.log(2), abs=0.05)
    assert "ELBO -inf" in found.summary()
    (problem,) = of(log_w, mean_and_error(exact + 0.2)).problems()
    assert problem.startswith("EUBO ")
