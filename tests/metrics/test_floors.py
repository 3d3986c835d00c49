"""Floors: scores of exact draws against independently measured values, and the rule 'at the floor'."""

import numpy as np
import pytest
import torch

from egm import Target
from egm.metrics import Floor, at_floor, e_w1, floor, m_w1, w1
from egm.targets import GBRBM, Ising, JointDW4, JointMoG
from egm.util.seeds import derive_seed

#: measured elsewhere, from 40 pairs of 2000 draws, rounded to the digits shown
PUBLISHED = [
    (Ising(5, 0.2), 0.073, 0.013),
    (Ising(5, 0.4), 0.172, 0.022),
    (Ising(10, 0.2), 0.124, 0.0065),
    (Ising(10, 0.4), 0.426, 0.021),
]


def assert_agrees(measured: Floor, published: float, rounding: float) -> None:
    noise = measured.std * (1 / measured.pairs + 1 / 40) ** 0.5
    assert abs(measured.mean - published) <= 4 * noise + rounding, (measured, published)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "energy", "magnetization"), PUBLISHED, ids=repr)
def test_ising_floors_reproduce_the_published_ones(target, energy, magnetization):
    assert_agrees(floor("e_w1", target, 2000, pairs=200), energy, 5e-4)
    assert_agrees(floor("m_w1", target, 2000, pairs=200), magnetization, 5e-4)


@pytest.mark.parametrize(("target", "energy"), [(GBRBM(), 0.05), (JointMoG(), 0.08)], ids=["gbrbm", "jointmog"])
def test_mixed_floors_reproduce_the_published_ones(target, energy):
    assert_agrees(floor("e_w1", target, 2000, pairs=200), energy, 5e-3)


def assert_agrees_with_theory(measured: Floor, target: Target, draws: int) -> None:
    """For n draws on each side, E W1 → ∫ √(2F(1−F)/n)·√(2/π) dx, the mean of a Brownian bridge's absolute value."""
    energies = target.energy(**target.exact_sample(draws, seed=5)).double().sort().values
    step = torch.linspace(0, 1, draws, dtype=torch.float64)
    density = (step * (1 - step)).sqrt()
    expected = float(torch.trapezoid(density, energies)) * (2 / measured.n) ** 0.5 * (2 / np.pi) ** 0.5
    assert abs(measured.mean - expected) < 4 * measured.stderr + 0.02 * expected


def test_floor_agrees_with_theory():
    assert_agrees_with_theory(floor("e_w1", GBRBM(), 2000, pairs=200, seed=3), GBRBM(), 400_000)


@pytest.mark.slow
def test_floor_of_an_mcmc_reference(tmp_path, monkeypatch):
    monkeypatch.setenv("EGM_CACHE_DIR", str(tmp_path))
    target = JointDW4()
    measured = floor("e_w1", target, 2000, pairs=200)
    assert measured.reference_kind == "mcmc"
    assert_agrees(measured, 0.08, 5e-3)
    assert_agrees_with_theory(measured, target, 100_000)


@pytest.mark.slow
@pytest.mark.parametrize("target", [Ising(5, 0.2), Ising(5, 0.4), GBRBM()], ids=repr)
def test_exact_draws_are_at_the_floor(target):
    """The rule accepts exact draws in at least 95 of 100 repetitions, and rejects draws of a slightly wrong target."""
    reference = floor("e_w1", target, 2000, pairs=200)
    draws = target.energy(**target.exact_sample(100 * 20 * 4000, seed=1)).reshape(100, 20, 2, 2000)
    passed = [at_floor([w1(a, b) for a, b in repetition], reference) for repetition in draws]
    assert sum(passed) >= 95
    wrong = [w1(1.1 * a, b) for a, b in draws[0]]
    assert not at_floor(wrong, reference)


def test_untrained_draws_are_not_at_the_floor():
    target = Ising(5, 0.4)
    for metric in (e_w1, m_w1):
        reference = floor(metric, target, 2000, pairs=200)
        untrained = target.space.reference_sample(2000, generator=torch.Generator().manual_seed(0))
        values = [metric(target, untrained, target.exact_sample(2000, seed=i)) for i in range(20)]
        assert not at_floor(values, reference)


def test_a_verdict_needs_enough_evaluations():
    reference = Floor("e_w1", 2000, 200, 0, 1.0, 0.1, "exact")
    assert at_floor([1.249] * 20, reference)
    assert not at_floor([1.251] * 20, reference)
    with pytest.raises(ValueError, match="at least 20 evaluations and a floor of 200 pairs, got 19 and 200"):
        at_floor([1.0] * 19, reference)
    with pytest.raises(ValueError, match="got 20 and 40"):
        at_floor([1.0] * 20, Floor("e_w1", 2000, 40, 0, 1.0, 0.1, "exact"))
    with pytest.raises(ValueError, match="at least 2"):
        floor("e_w1", GBRBM(), 10, pairs=1)


def test_pairs_are_independent_and_repeatable():
    target = GBRBM()
    assert floor("e_w1", target, 100, pairs=5, seed=4) == floor("e_w1", target, 100, pairs=5, seed=4)
    assert floor("e_w1", target, 100, pairs=5, seed=4).mean != floor("e_w1", target, 100, pairs=5, seed=5).mean
    seeds = {derive_seed(seed, index) for seed in range(50) for index in range(50)}
    assert len(seeds) == 2500
    assert floor(e_w1, target, 100, pairs=5).metric == "e_w1"
