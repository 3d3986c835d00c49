"""Distances against closed forms, mode counts and correlations on states made by hand."""

import math
import sys

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

from egm import Categorical, Real, Space, Target
from egm.metrics import (
    e_w1,
    e_w2,
    floor,
    m_w1,
    mode_count,
    mode_shares,
    two_point_correlation,
    w1,
    w1_to_quantiles,
    w2,
    x_w2,
)
from egm.targets import DW4, GBRBM, GMM40, Ising, JointMoG, Potts


def normal(n, seed, *shape):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_distances_of_shifted_and_scaled_gaussians():
    quantiles = torch.tensor(scipy_stats.norm.ppf((np.arange(4000) + 0.5) / 4000))
    assert w1(quantiles, quantiles + 0.7) == pytest.approx(0.7)
    assert w1(quantiles, 3 * quantiles) == pytest.approx(2 * math.sqrt(2 / math.pi), rel=1e-3)
    assert w2(quantiles, 3 * quantiles + 1) == pytest.approx(math.sqrt(1 + 4), rel=2e-3)


def test_w2_finds_the_best_matching():
    a, b = normal(40, 0, 3), normal(40, 1, 3)
    shuffled = a[torch.randperm(40, generator=torch.Generator().manual_seed(2))]
    assert w2(a, shuffled) == pytest.approx(0, abs=1e-9)
    assert w2(a, shuffled + torch.tensor([1.0, 2.0, 2.0])) == pytest.approx(3)
    assert w2(a[:, :1], b[:, :1]) == pytest.approx(w2(a[:, 0], b[:, 0]))  # matching and sorting agree on the line
    assert w2(a, b) < math.sqrt(float((a - b).square().sum(-1).mean()))


def test_weights_stand_for_repetitions():
    pytest.importorskip("ot")
    a, b, c = normal(60, 0), normal(120, 1), normal(60, 2)
    repeated = torch.cat([a, a[:30], a[:30]])
    log_weights = torch.where(torch.arange(60) < 30, math.log(3.0), 0.0) + 5.0
    assert w1(a, c, a_log_weights=log_weights) == pytest.approx(w1(repeated, c))
    assert w2(a, b, a_log_weights=log_weights) == pytest.approx(w2(repeated, b))
    points, others = normal(20, 3, 2), normal(40, 4, 2)
    assert w2(points, others) == pytest.approx(w2(torch.cat([points, points]), others))  # unequal sizes


PAIR = Target(Space(x=Real(2), y=Real((2, 1)), h=Categorical(2)), lambda x, y, h: x.square().sum(-1) + h)


@pytest.mark.parametrize(
    ("metric", "target"), [(e_w1, Ising(4, 0.4)), (e_w2, Ising(4, 0.4)), (m_w1, Ising(4, 0.4)), (x_w2, PAIR)]
)
def test_weighted_states_stand_for_repetitions(metric, target):
    """Deprecated, and still right."""
    if metric in (e_w2, x_w2):
        pytest.importorskip("ot")
    generator = torch.Generator().manual_seed(0)
    draws, reference = (target.space.reference_sample(n, generator=generator) for n in (60, 120))
    repeated = {name: torch.cat([x, x[:30], x[:30]]) for name, x in draws.items()}
    log_weights = torch.where(torch.arange(60) < 30, math.log(3.0), 0.0) - 2.0
    expected = metric(target, repeated, reference)
    with pytest.warns(DeprecationWarning, match=r"log_weights of metrics are deprecated.*draws\.resample\(n\)"):
        assert metric(target, draws, reference, log_weights=log_weights) == pytest.approx(expected, rel=1e-5)
    assert metric(target, draws, reference) != pytest.approx(expected, rel=1e-2)  # the weights matter here


def test_x_w2_joins_every_real_variable():
    a = {"x": torch.zeros(5, 2), "y": torch.zeros(5, 2, 1), "h": torch.zeros(5, dtype=torch.int64)}
    b = {"x": a["x"] + 2, "y": a["y"] + 4, "h": 1 - a["h"]}
    assert x_w2(PAIR, a, b) == pytest.approx(math.sqrt(2 * 4 + 2 * 16))


DISTANCES = {
    "w1": lambda a, log_weights: w1(a, normal(40, 1), a_log_weights=log_weights),
    "w2": lambda a, log_weights: w2(a, normal(40, 1), a_log_weights=log_weights),
    "w2 of points": lambda a, log_weights: w2(torch.stack([a, 2 * a], -1), normal(40, 1, 2), a_log_weights=log_weights),
    "quantiles": lambda a, log_weights: w1_to_quantiles(a, [-1.0, 0.0, 3.0], a_log_weights=log_weights),
}


@pytest.mark.parametrize("distance", DISTANCES.values(), ids=DISTANCES)
def test_draws_of_zero_density_carry_no_weight(distance):
    pytest.importorskip("ot")
    a, log_weights = normal(20, 0), normal(20, 2)
    walled = torch.cat([torch.tensor([math.inf]), a, torch.tensor([math.inf])])
    padded = torch.cat([torch.tensor([-math.inf]), log_weights, torch.tensor([-math.inf])])
    assert distance(walled, padded) == pytest.approx(distance(a, log_weights))
    repeated = a.repeat_interleave(torch.arange(20) + 1)
    assert distance(a, torch.log(torch.arange(20) + 1.0)) == pytest.approx(distance(repeated, None))
    with pytest.raises(ValueError, match="zero density"):
        distance(walled, torch.zeros(22))
    with pytest.raises(ValueError, match="every weight is zero"):
        distance(a, torch.full((20,), -math.inf))


def test_missing_pot_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(ImportError, match=r"pip install 'egm\[ot\]'"):
        w2(normal(3, 0), normal(4, 1))


def test_quantiles_stand_for_a_sample():
    sample = normal(20_000, 0)
    quantiles = np.quantile(sample.numpy(), np.linspace(0, 1, 501)).tolist()
    assert w1_to_quantiles(sample, quantiles) < 0.002  # a fifteenth of the floor of 2000 draws
    assert w1_to_quantiles(sample + 0.5, quantiles) == pytest.approx(0.5, abs=0.002)


def test_bad_samples_are_named():
    with pytest.raises(ValueError, match="zero density"):
        w1(torch.tensor([0.0, math.inf]), torch.zeros(2))
    with pytest.raises(ValueError, match="vector of scalars"):
        w1(torch.zeros(2, 2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"\[n, d\]"):
        w2(torch.zeros(2, 2), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="one per draw"):
        w1(torch.zeros(3), torch.zeros(3), a_log_weights=torch.zeros(2))


def test_state_metrics_read_the_right_quantity():
    target = Ising(4, 0.4)
    up, down = torch.ones(10, 4, 4, dtype=torch.int64), torch.zeros(10, 4, 4, dtype=torch.int64)
    assert e_w1(target, {"s": up}, {"s": down}) == 0  # the spin flip keeps the energy
    assert m_w1(target, {"s": up}, {"s": down}) == 2
    one = up.clone()
    one[:, 0, 0] = 0
    assert e_w1(target, {"s": up}, {"s": one}) == pytest.approx(8 * 0.4)  # four bonds change sign
    assert e_w2(target, {"s": up}, {"s": one}) == pytest.approx(8 * 0.4)
    assert target.energy_calls == 60
    mixed = JointMoG(2)
    a = {"x": torch.zeros(5, 2), "b": torch.zeros(5, 2, dtype=torch.int64)}
    b = {"x": torch.ones(5, 2), "b": torch.ones(5, 2, dtype=torch.int64)}
    assert x_w2(mixed, a, b) == pytest.approx(math.sqrt(2))


def test_metrics_that_do_not_apply_say_so():
    ising, mixed = Ising(3, 0.4), JointMoG(2)
    spins, points = ising.exact_sample(4), mixed.exact_sample(4)
    with pytest.raises(ValueError, match="no Real variable"):
        x_w2(ising, spins, spins)
    with pytest.raises(ValueError, match="no magnetisation"):
        m_w1(mixed, points, points)
    with pytest.raises(ValueError, match="does not name its modes"):
        mode_count(mixed, points)
    with pytest.raises(ValueError, match="no symbols on a square lattice"):
        two_point_correlation(DW4(), {"x": torch.zeros(2, 4, 2)})
    with pytest.raises(ValueError, match=r"unknown metric 'e_w3'; choose one of \['e_w1'"):
        floor("e_w3", mixed, 10, pairs=2)


def test_modes_are_counted():
    target = GBRBM()
    exact = target.exact_sample(2000)
    assert mode_count(target, exact) == 6
    one_mode = {"v": exact["v"] * 0.1, "h": exact["h"]}
    assert mode_count(target, one_mode) == 1
    far = {"v": exact["v"] + 100, "h": exact["h"]}
    assert mode_shares(target, far) == {-1: 1.0}
    assert mode_count(target, far) == 0
    assert mode_count(GMM40(), GMM40().exact_sample(2000)) == 40
    untrained = GMM40().space.reference_sample(2000, generator=torch.Generator().manual_seed(0))
    assert mode_shares(GMM40(), untrained)[-1] > 0.4


@pytest.mark.parametrize("mode", range(1, 6))
def test_a_mode_is_found_at_a_tenth_of_its_mass(mode):
    target, n = GBRBM(), 10_000
    below = int(0.1 * float(target.modes.masses[mode]) * n)
    for inside, found in ((below, 1), (below + 1, 2)):
        index = torch.where(torch.arange(n) < inside, mode, 0)
        draws = {"v": target.modes.centers[index], "h": torch.zeros(n, 3, dtype=torch.int64)}
        assert mode_count(target, draws) == found


def test_two_point_correlation():
    stripes = torch.tensor([0, 1, 0, 1]).expand(3, 4, 4)  # alternate along one axis, constant along the other
    assert two_point_correlation(Ising(4, 0.4), {"s": stripes}).tolist() == pytest.approx([1.0, 0.0, 1.0])
    target = Ising(3, 0.4)
    states = torch.cartesian_prod(*[torch.arange(2)] * 9).reshape(-1, 3, 3)
    probability = torch.softmax(-target.energy(s=states).double(), 0)
    spins = 2.0 * states - 1
    exact = (probability @ (spins * spins.roll(1, -1)).mean((-1, -2)).double()).item()
    got = two_point_correlation(target, target.exact_sample(40_000))
    assert float(got[1]) == pytest.approx(exact, abs=0.01)
    free = Potts(4, 3, 0.0)
    assert two_point_correlation(free, free.exact_sample(20_000)).tolist() == pytest.approx([1, 0, 0], abs=0.01)
