"""Ising, Potts and spin glass: log Z against enumeration and Kaufman, draws against exact moments, reference plans."""

import itertools
import math

import numpy as np
import pytest
import torch

from egm.mcmc.swendsen_wang import SwendsenWang
from egm.mcmc.tempering import ParallelTempering
from egm.targets.ising import Ising, kaufman_log_z
from egm.targets.potts import Potts
from egm.targets.spin_glass import SpinGlass
from support.stats import assert_counts, assert_mean, assert_variance

CRITICAL = 0.5 * math.log(1 + math.sqrt(2))

# The tables of one object serve several tests.
SAMPLED = [
    Ising(5, 0.2),
    Ising(5, 0.4),
    Ising(10, 0.2),
    Ising(10, 0.4),
    Ising(8, 0.4, field=0.1),
    Ising(7, 0.5, J=-1.0),
    Potts(5, 3, 1.0),
    SpinGlass(8, 2, 1.0),
]


def enumerate_target(target):
    """Log Z and the probability of each configuration, whose number to base q is its index."""
    q, size = target.states, target.size
    s = np.array(list(itertools.product(range(q), repeat=size * size))).reshape(-1, size, size)
    energy = np.zeros(len(s))
    for r, c in itertools.product(range(size), range(size)):
        a = s[:, r, c]
        if isinstance(target, Ising):
            energy += target.beta * target.field * (2 * a - 1)
        for kind, b in enumerate((s[:, r, (c + 1) % size], s[:, (r + 1) % size, c])):
            if isinstance(target, Potts):
                energy -= target.beta * (a == b)
            else:
                J = target.J if isinstance(target, Ising) else float(target.couplings[kind, r, c])
                energy -= target.beta * J * (2 * a - 1) * (2 * b - 1)
    weights = np.exp(energy.min() - energy)
    probabilities = weights / weights.sum()
    return math.log(weights.sum()) - energy.min(), probabilities


def numbers(s, q):
    """Index of each configuration in the enumeration."""
    return s.flatten(1).numpy() @ (q ** np.arange(s[0].numel())[::-1])


# ---------------------------------------------------------------------- log Z


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("beta", [0.1, 0.4, CRITICAL, 1.0])
@pytest.mark.parametrize(("J", "field"), [(1.0, 0.0), (-1.0, 0.0), (0.8, 0.1), (-1.2, -0.4)])
def test_ising_log_z_by_enumeration_transfer_matrix_and_kaufman(size, beta, J, field):
    target = Ising(size, beta, J=J, field=field)
    log_z, _ = enumerate_target(target)
    assert target.log_z == pytest.approx(log_z, abs=1e-8)
    assert target.transfer_matrix.log_z == pytest.approx(log_z, abs=1e-8)
    if field == 0 and (J > 0 or size % 2 == 0):
        assert kaufman_log_z(size, beta * abs(J)) == pytest.approx(log_z, abs=1e-8)


@pytest.mark.parametrize("size", [5, 8, 9])
@pytest.mark.parametrize("K", [0.05, 0.2, CRITICAL, 0.9, 3.0])
def test_transfer_matrix_equals_kaufman(size, K):
    assert Ising(size, K).transfer_matrix.log_z == pytest.approx(kaufman_log_z(size, K), abs=1e-8)
    if size % 2 == 0:
        assert Ising(size, K, J=-1.0).transfer_matrix.log_z == pytest.approx(Ising(size, K, J=-1.0).log_z, abs=1e-8)


@pytest.mark.parametrize(
    ("size", "beta", "log_z", "digits"),
    [
        (2, 0.4, 4.1133, 4),
        (10, 0.4, 88.1877, 4),
        (10, 0.2, 73.4531, 4),
        (10, 0.4407, 93.6123, 4),
        (15, 0.4407, 209.8261, 4),
        (16, 0.28, 198.9354, 4),
        (16, 0.4407, 238.6472, 4),
        (16, 0.6, 310.487, 3),
    ],
)
def test_published_log_z(size, beta, log_z, digits):
    assert Ising(size, beta).log_z == pytest.approx(log_z, abs=0.5 * 10**-digits)


def test_kaufman_in_its_limits():
    """Neither overflow nor cancellation: two ground states when cold, free spins when hot, and at the critical point
    the known free energy log 2 / 2 + 2 G/π a site plus the universal constant 0.639912 of a square torus."""
    catalan = 0.915965594177219
    for size in (64, 256):
        extra = kaufman_log_z(size, CRITICAL) - size**2 * (math.log(2) / 2 + 2 * catalan / math.pi)
        assert extra == pytest.approx(0.639912, abs=3e-5)
    assert kaufman_log_z(64, 1e-200) == pytest.approx(4096 * math.log(2), rel=1e-12)
    for K in (10.0, 500.0, 1e5):
        assert kaufman_log_z(64, K) == pytest.approx(2 * 4096 * K + math.log(2), rel=1e-15)


@pytest.mark.parametrize("target", [Potts(2, 3, 0.9), Potts(3, 3, 1.2), Potts(2, 5, 0.4), Potts(4, 2, 0.7)], ids=repr)
def test_potts_log_z_by_enumeration(target):
    assert target.log_z == pytest.approx(enumerate_target(target)[0], abs=1e-8)


def test_two_state_potts_is_ising():
    assert Potts(8, 2, 0.8).log_z == pytest.approx(kaufman_log_z(8, 0.4) + 2 * 64 * 0.4, abs=1e-8)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_spin_glass_log_z_by_enumeration(size, seed):
    target = SpinGlass(size, seed, 0.9)
    assert target.log_z == pytest.approx(enumerate_target(target)[0], abs=1e-8)


# ---------------------------------------------------------------------- draws


@pytest.mark.parametrize(
    "target",
    [
        Ising(3, 0.4),
        Ising(3, 0.3, field=0.4),
        Ising(3, 0.5, J=-0.8, field=-0.1),
        Ising(2, 0.3),
        Potts(2, 3, 0.8),
        SpinGlass(3, 0, 0.7),
        SpinGlass(3, 1, 0.5),
    ],
    ids=repr,
)
def test_draws_have_the_enumerated_probabilities(target):
    _, probabilities = enumerate_target(target)
    s = target.exact_sample(60_000, seed=1)["s"]
    assert_counts(np.bincount(numbers(s, target.states), minlength=len(probabilities)), probabilities, repr(target))


@pytest.mark.parametrize("target", SAMPLED, ids=repr)
def test_draws_have_the_exact_energy_moments(target):
    mean, variance = target.transfer_matrix.energy_moments
    energy = target.energy(**target.exact_sample(20_000, seed=2))
    assert_mean(energy, mean, f"mean energy of {target}")
    assert_variance(energy, variance, f"variance of the energy of {target}")


def kaufman_moments(size, K):
    """Mean and variance of the energy from derivatives of the closed form, by five-point differences."""
    h = 4e-3
    f = [kaufman_log_z(size, K * (1 + step * h)) for step in (-2, -1, 0, 1, 2)]
    first = (f[0] - 8 * f[1] + 8 * f[3] - f[4]) / (12 * h)
    second = (-f[0] + 16 * f[1] - 30 * f[2] + 16 * f[3] - f[4]) / (12 * h**2)
    return -first, second


@pytest.mark.parametrize("target", SAMPLED[:4], ids=repr)
def test_energy_moments_equal_derivatives_of_kaufman(target):
    expected = kaufman_moments(target.size, target.beta)
    assert target.transfer_matrix.energy_moments == pytest.approx(expected, rel=1e-5)


def test_every_bond_and_site_of_a_draw_is_right():
    """By translation all 200 bonds have the same mean; by spin flip all spins have mean zero."""
    target = SAMPLED[3]
    spins = 2 * target.exact_sample(20_000, seed=3)["s"].double() - 1
    mean, _ = kaufman_moments(10, 0.4)
    bonds = torch.stack([spins * spins.roll(-1, 2), spins * spins.roll(-1, 1)], 1)
    assert_mean(bonds, mean / (-0.4 * 200), "bonds")
    assert_mean(spins, 0.0, "spins")


@pytest.mark.parametrize("target", SAMPLED[:4], ids=repr)
def test_transfer_matrix_equals_kaufman_where_it_is_sampled(target):
    assert target.transfer_matrix.log_z == pytest.approx(target.log_z, abs=1e-8)


@pytest.mark.slow
def test_the_largest_ising_lattice_with_exact_draws():
    target = Ising(12, 0.42)
    assert target.transfer_matrix.log_z == pytest.approx(target.log_z, abs=1e-8)
    mean, variance = kaufman_moments(12, 0.42)
    energy = target.energy(**target.exact_sample(2000, seed=0))
    assert_mean(energy, mean)
    assert_variance(energy, variance)


def test_draws_follow_the_seed():
    target = Ising(6, 0.3)
    assert torch.equal(target.exact_sample(50, seed=4)["s"], Ising(6, 0.3).exact_sample(50, seed=4)["s"])
    assert not torch.equal(target.exact_sample(50, seed=4)["s"], target.exact_sample(50, seed=5)["s"])
    target.space.check(target.exact_sample(50))


@pytest.mark.parametrize("target", [Ising(20, 0.0), Ising(20, 0.5, J=0.0, field=0.6), Potts(20, 3, 0.0)], ids=repr)
def test_uncoupled_sites_are_exact_at_any_size(target):
    assert target.reference_kind == "exact"
    weights = np.exp(-np.array(target.site_energies))
    assert target.log_z == pytest.approx(400 * math.log(weights.sum()), abs=1e-9)
    s = target.exact_sample(300, seed=6)["s"]
    assert s.shape == (300, 20, 20)
    assert_counts(np.bincount(s.flatten().numpy(), minlength=target.states), weights / weights.sum())
    assert SpinGlass(20, 0, 0.0).log_z == pytest.approx(400 * math.log(2))


# ---------------------------------------------------------------------- beyond the transfer matrix


def test_large_lattices_have_a_reference_by_markov_chain():
    assert Ising(12, 0.4).reference_kind == "exact"
    large = Ising(13, 0.4)
    assert large.reference_kind == "mcmc"
    assert large.log_z == kaufman_log_z(13, 0.4)
    assert isinstance(large._reference_plan().kernel, SwendsenWang)
    assert Ising(14, 0.4, J=-1.0).log_z == kaufman_log_z(14, 0.4)
    assert isinstance(Ising(14, 0.4, J=-1.0)._reference_plan().kernel, ParallelTempering)
    for unknown in (Ising(13, 0.4, J=-1.0), Ising(14, 0.4, field=0.1), Potts(9, 3, 1.0), SpinGlass(13, 0, 1.0)):
        assert unknown.reference_kind == "mcmc"
        assert unknown.log_z is None
        with pytest.raises(ValueError, match=r"row states, more than 6561; use a Markov chain"):
            _ = unknown.transfer_matrix
    assert isinstance(Potts(9, 3, 1.0)._reference_plan().kernel, SwendsenWang)
    assert Potts(8, 3, 1.0).reference_kind == "exact"


def test_tempering_ladder_reaches_weak_coupling():
    kernel = SpinGlass(16, 0, 2.0)._reference_plan().kernel
    assert isinstance(kernel, ParallelTempering)
    ladder = np.array(kernel.inverse_temperatures)
    assert ladder[0] == 1
    assert 2.0 * ladder[-1] == pytest.approx(0.2)
    assert np.all(np.diff(2.0 * ladder) >= -1 / 16 - 1e-12)


def test_too_cold_for_the_transfer_matrix():
    target = Ising(10, 20.0)
    assert target.reference_kind == "mcmc"
    assert target.log_z == pytest.approx(200 * 20 + math.log(2))
