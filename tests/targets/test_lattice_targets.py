"""Ising, Potts and spin glass: energies against loops, log Z against enumeration and Kaufman, draws against moments."""

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
from stats import assert_counts, assert_mean, assert_variance

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

TARGETS = [
    Ising(2, 0.4),
    Ising(3, 0.4, field=0.3),
    Ising(5, 0.3, J=-0.7, field=-0.2),
    Ising(16, 0.2),
    Potts(2, 3, 0.9),
    Potts(5, 4, 1.1),
    SpinGlass(2, 0, 0.8),
    SpinGlass(5, 3, 1.3),
]


def loop_energy(target, s):
    """The energy of one configuration (nested lists, mask allowed) from its definition, term by term."""
    size, mask, energy = target.size, target.space["s"].mask, 0.0
    for r, c in itertools.product(range(size), range(size)):
        a = s[r][c]
        if a == mask:
            continue
        if isinstance(target, Ising):
            energy += target.beta * target.field * (2 * a - 1)
        for kind, b in enumerate((s[r][(c + 1) % size], s[(r + 1) % size][c])):
            if b == mask:
                continue
            if isinstance(target, Potts):
                energy -= target.beta * (a == b)
            else:
                J = target.J if isinstance(target, Ising) else float(target.couplings[kind, r, c])
                energy -= target.beta * J * (2 * a - 1) * (2 * b - 1)
    return energy


def random_states(target, n, seed=0):
    return target.space.reference_sample(n, generator=torch.Generator().manual_seed(seed))["s"]


def enumerate_target(target):
    """Number of each configuration to base q is its index; returns log Z, probabilities, mean and variance of E."""
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


# ---------------------------------------------------------------------- energies


@pytest.mark.parametrize("target", TARGETS, ids=repr)
def test_energy_equals_a_loop_over_bonds(target):
    s = random_states(target, 6)
    expected = [loop_energy(target, one) for one in s.tolist()]
    assert target.energy(s=s).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("target", TARGETS, ids=repr)
def test_partial_energy_keeps_the_revealed_terms(target):
    s = random_states(target, 9)
    mask = target.space["s"].mask
    for share in (0.2, 0.5, 0.9):
        hidden = torch.rand(s.shape, generator=torch.Generator().manual_seed(1)) < share
        masked = torch.where(hidden, mask, s)
        expected = [loop_energy(target, one) for one in masked.tolist()]
        assert target.partial_energy(s=masked).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)
        grouped = target.partial_energy(s=masked.reshape(3, 1, 3, *masked.shape[1:]))
        assert grouped.shape == (3, 1, 3)
        torch.testing.assert_close(grouped.flatten(), target.partial_energy(s=masked))
    assert target.has_partial_energy
    assert torch.equal(target.partial_energy(s=s), target.energy(s=s))
    assert float(target.partial_energy(s=torch.full_like(s[0], mask))) == 0


@pytest.mark.parametrize("target", TARGETS, ids=repr)
def test_energy_passes_the_check_that_fit_makes(target):
    before = target.energy_calls
    target.check()
    assert target.energy_calls > before
    s = random_states(target, 24)
    assert target.energy(s=s.reshape(2, 3, 4, *s.shape[1:])).shape == (2, 3, 4)
    assert target.energy(s=s[0]).shape == ()


@pytest.mark.parametrize("target", TARGETS, ids=repr)
def test_results_stay_on_the_device_of_the_state(target):
    s = random_states(target, 3).to("meta")
    results = [target.energy(s=s), target.partial_energy(s=s), *target.observables(s=s).values()]
    assert {(result.device.type, tuple(result.shape)) for result in results} == {("meta", (3,))}


def test_energies_follow_the_default_dtype():
    state = torch.zeros(3, 3, dtype=torch.int64)
    torch.set_default_dtype(torch.float64)
    try:
        for target in (Ising(3, 0.1, field=0.3), Potts(3, 3, 0.1), SpinGlass(3, 0, 0.1)):
            assert target.energy(s=state).dtype == torch.float64
            assert float(target.energy(s=state)) == pytest.approx(loop_energy(target, state.tolist()), abs=1e-14)
            assert target.observables(s=state)["magnetization"].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert SpinGlass(3, 0, 0.1).energy(s=state).dtype == torch.float32


def test_conventions():
    """Eight bonds at size 2; symbols 0, 1 are spins −1, +1; a positive field favours −1; Potts bonds count once."""
    down = torch.zeros(2, 2, dtype=torch.int64)
    assert float(Ising(2, 0.4).energy(s=down)) == pytest.approx(-8 * 0.4)
    assert float(Ising(2, 0.4, field=0.5).energy(s=down)) == pytest.approx(-8 * 0.4 - 4 * 0.4 * 0.5)
    assert float(Ising(2, 0.4, field=0.5).energy(s=1 - down)) == pytest.approx(-8 * 0.4 + 4 * 0.4 * 0.5)
    assert float(Ising(2, 0.4).observables(s=down)["magnetization"]) == -1
    assert float(Potts(2, 3, 0.7).energy(s=down)) == pytest.approx(-8 * 0.7)


@pytest.mark.parametrize("target", [t for t in TARGETS if not isinstance(t, SpinGlass)], ids=repr)
def test_cluster_form_of_the_energy(target):
    """E = −coupling Σ δ + Σ site_energies + const, which Swendsen–Wang relies on."""
    s = random_states(target, 20)
    equal = (s == s.roll(-1, -1)).sum((1, 2)) + (s == s.roll(-1, -2)).sum((1, 2))
    other = -target.coupling * equal + torch.tensor(target.site_energies)[s].sum((1, 2))
    difference = target.energy(s=s) - other
    assert len(target.site_energies) == target.states
    torch.testing.assert_close(difference, difference[:1].expand(20), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS, ids=repr)
def test_declared_symmetries_hold(target):
    s = random_states(target, 20)
    moves = {
        "spin-flip": lambda s: 1 - s,
        "translation": lambda s: s.roll((1, 2), (-2, -1)),
        "symbol-permutation": lambda s: (s + 1) % target.states,
    }
    kept = {
        name
        for name, move in moves.items()
        if torch.allclose(target.energy(s=move(s)), target.energy(s=s), rtol=1e-4, atol=1e-4)
    }
    # For two symbols a permutation is the spin flip.
    assert kept - ({"symbol-permutation"} if target.states == 2 else {"spin-flip"}) == set(target.symmetries)


def test_observables():
    s = torch.tensor([[[0, 0], [0, 1]], [[1, 1], [1, 1]]])
    ising = Ising(2, 0.4).observables(s=s)
    assert ising["magnetization"].tolist() == [-0.5, 1.0]
    assert ising["abs_magnetization"].tolist() == [0.5, 1.0]
    assert "staggered_magnetization" not in ising
    staggered = Ising(2, 0.4, J=-1.0).observables(
        s=torch.tensor([[[1, 0], [0, 1]], [[0, 1], [1, 0]], [[1, 1], [0, 0]]])
    )
    assert staggered["staggered_magnetization"].tolist() == [1.0, -1.0, 0.0]
    t = torch.tensor([[[0, 2, 1], [1, 0, 2], [2, 1, 0]], [[1, 1, 1], [1, 1, 1], [0, 2, 2]]])
    potts = Potts(3, 3, 0.5)
    assert potts.observables(s=t)["magnetization"].tolist() == pytest.approx([0.0, (3 * 6 / 9 - 1) / 2])
    assert potts.energy_calls == 0
    glass = SpinGlass(4, 1, 0.9)
    states = random_states(glass, 7)
    spins = 2 * states.double() - 1
    agreement = (glass.couplings[0] * spins * spins.roll(-1, 2) > 0).sum((1, 2))
    agreement += (glass.couplings[1] * spins * spins.roll(-1, 1) > 0).sum((1, 2))
    observed = glass.observables(s=states.reshape(7, 1, 4, 4))
    assert observed["satisfied_bonds"].flatten().tolist() == pytest.approx((agreement / 32).tolist())
    assert all(value.shape == (7, 1) for value in observed.values())


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


def test_spin_glass_couplings_are_standard_normal_and_follow_the_seed():
    J = SpinGlass(64, 5, 1.0).couplings
    assert torch.equal(J, SpinGlass(64, 5, 0.3).couplings)
    assert not torch.equal(J, SpinGlass(64, 6, 1.0).couplings)
    assert_mean(J.flatten(), 0.0)
    assert_variance(J.flatten(), 1.0)


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


# ---------------------------------------------------------------------- names and errors


def test_names():
    assert repr(Ising(10, 0.4)) == "Ising(size=10, beta=0.4)"
    assert repr(Ising(4, 0.6, J=-1, field=0.1)) == "Ising(size=4, beta=0.6, J=-1.0, field=0.1)"
    assert repr(Potts(8, 3, 1)) == "Potts(size=8, states=3, beta=1.0)"
    assert repr(SpinGlass(8, seed=0, beta=0.5)) == "SpinGlass(size=8, seed=0, beta=0.5)"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Ising(0, 0.4), ValueError, "size must be at least 2, got 0"),
        (lambda: Ising(1, 0.4), ValueError, "size must be at least 2, got 1"),
        (lambda: Ising(4.5, 0.4), TypeError, "size must be a whole number, got 4.5; pass an int"),  # type: ignore[arg-type]
        (lambda: Ising(4, -0.4), ValueError, r"beta .* must be >= 0, got -0.4; for the antiferromagnet use J < 0"),
        (lambda: Ising(4, math.nan), ValueError, "beta must be a finite number, got nan"),
        (lambda: Ising(4, math.inf), ValueError, "beta must be a finite number, got inf"),
        (lambda: Ising(4, 0.4, J=math.inf), ValueError, "J must be a finite number, got inf"),
        (lambda: Ising(4, 0.4, field=math.nan), ValueError, "field must be a finite number, got nan"),
        (lambda: Potts(1, 3, 0.4), ValueError, "size must be at least 2, got 1"),
        (lambda: Potts(4, 1, 0.4), ValueError, "states must be at least 2, got 1"),
        (lambda: Potts(4, 3, -1.0), ValueError, r"beta .* must be >= 0, got -1.0; only the ferromagnet"),
        (lambda: SpinGlass(1, 0, 0.4), ValueError, "size must be at least 2, got 1"),
        (lambda: SpinGlass(4, -1, 0.4), ValueError, "seed must be at least 0, got -1"),
        (lambda: SpinGlass(4, 0, -0.4), ValueError, r"beta .* got -0.4; the couplings have both signs"),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_swendsen_wang_refuses_an_antiferromagnet():
    with pytest.raises(ValueError, match=r"ferromagnetic coupling > 0, got -0\.8"):
        SwendsenWang(Ising(4, 0.4, J=-1.0))
