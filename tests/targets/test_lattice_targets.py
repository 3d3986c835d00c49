"""Ising, Potts and spin glass: energies and partial energies against loops, conventions, symmetries, input errors."""

import itertools
import math

import pytest
import torch

from egm.mcmc.swendsen_wang import SwendsenWang
from egm.targets.base import Target
from egm.targets.ising import Ising
from egm.targets.potts import Potts
from egm.targets.spin_glass import SpinGlass
from support.stats import assert_mean, assert_variance

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


def test_spin_glass_couplings_are_standard_normal_and_follow_the_seed():
    J = SpinGlass(64, 5, 1.0).couplings
    assert torch.equal(J, SpinGlass(64, 5, 0.3).couplings)
    assert not torch.equal(J, SpinGlass(64, 6, 1.0).couplings)
    assert_mean(J.flatten(), 0.0)
    assert_variance(J.flatten(), 1.0)


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


@pytest.mark.parametrize(
    "target",
    [Ising(2, 0.4), Ising(3, 0.3, J=-1.0, field=0.4), Potts(3, 3, 0.7), SpinGlass(4, seed=0, beta=0.8)],
    ids=repr,
)
def test_energies_of_one_site(target):
    """By its bonds: those of complete energies up to a number that the symbols share; the same number of calls."""
    s = torch.randint(target.states, (5, 2, target.size, target.size), generator=torch.Generator().manual_seed(0))
    for sites in ((0,), (3, 1), *target.independent_sites("s")):
        before = target.energy_calls
        found = target.conditional_energies({"s": s}, "s", sites)
        assert found.shape == (target.states, 5, 2, len(sites))
        assert target.energy_calls - before == target.states * 10 * len(sites)
        complete = Target._conditional_energies(target, {"s": s}, "s", sites, target.states)
        torch.testing.assert_close(found - found[0], complete - complete[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 15, 16])
def test_sites_of_one_colour_are_no_neighbours(size):
    groups = Ising(size, 0.4).independent_sites("s")
    assert sorted(site for group in groups for site in group) == list(range(size**2))
    assert len(groups) == (3 if size % 2 else 2)
    for group in groups:
        for r, c in (divmod(site, size) for site in group):
            neighbours = {(r, (c + 1) % size), (r, (c - 1) % size), ((r + 1) % size, c), ((r - 1) % size, c)}
            assert not {row * size + column for row, column in neighbours} & set(group)
