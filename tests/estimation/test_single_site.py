"""The single-site bootstrap with exact intermediate energies: exact tables and energies, nothing sampled but sites."""

import itertools
import math

import pytest
import torch

from egm.estimation.single_site import single_site
from egm.paths import VE, CondOT, Cosine, Masked, Polynomial, ProductPath, Uniform
from egm.spaces import Categorical, Space
from support.marginals import LabelledGaussians, TinyIsing
from support.stats import assert_counts

SCHEDULES = {"linear": Polynomial(), "cosine": Cosine()}


def exact_ising(oracle):
    """E_t with a time for each state."""
    return lambda x, t: -torch.logsumexp(oracle._log_joint(x["s"], t), -1)


def partial_states(repeats=1):
    """All 81 states of 2×2 spins that may be masked, each at its own time."""
    s = torch.cartesian_prod(*[torch.arange(3)] * 4).reshape(81, 2, 2).repeat(repeats, 1, 1)
    t = 0.05 + 0.9 * torch.rand(len(s), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return s, t


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_exact_energies_give_the_exact_denoiser_and_the_exact_energy(schedule, count):
    oracle = TinyIsing(lambda v: Masked(v, schedule=schedule), beta=0.7)  # type: ignore[arg-type]
    s, t = partial_states()
    masked = s == 2
    generator = torch.Generator().manual_seed(1)
    found = single_site(exact_ising(oracle), oracle.path, "s", {"s": s}, t, count=count, generator=generator)

    looked = found.sites > 0
    assert bool((looked <= masked).all())  # a revealed site is never looked at
    torch.testing.assert_close(looked.sum((1, 2)), masked.sum((1, 2)).clamp(max=count))
    torch.testing.assert_close(found.sites.sum((1, 2)), masked.sum((1, 2)).double())
    exact = oracle.prediction({"s": s}, t)["s"]
    torch.testing.assert_close(found.table[looked], exact[looked], rtol=1e-6, atol=1e-6)
    assert float((exact[looked][:, 0] - 0.5).abs().max()) > 0.2  # the tables are not trivial
    assert float(found.table[~looked].abs().max()) == 0
    some = masked.any(-1).any(-1)
    energy = exact_ising(oracle)({"s": s}, t)
    torch.testing.assert_close(found.energy[some], energy[some], rtol=1e-6, atol=1e-6)
    assert found.energy[~some].isnan().tolist() == [True] * 16  # nothing is said


def test_sites_are_chosen_uniformly_among_the_masked_ones():
    oracle, n = TinyIsing(), 4000
    s = torch.tensor([[2, 0], [2, 2]]).expand(n, 2, 2)
    t, generator = torch.full((n,), 0.5, dtype=torch.float64), torch.Generator().manual_seed(0)
    found = single_site(exact_ising(oracle), oracle.path, "s", {"s": s}, t, count=1, generator=generator)
    assert set(found.sites.unique().tolist()) == {0.0, 3.0}
    assert_counts((found.sites > 0).flatten(1).sum(0), [1 / 3, 0, 1 / 3, 1 / 3])


@pytest.mark.parametrize("make", [CondOT, lambda v: VE(v, sigma_min=0.2)], ids=["condot", "ve"])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_on_a_mixed_space_the_identity_holds_at_equal_time(schedule, make):
    oracle = LabelledGaussians(make, lambda v: Masked(v, schedule=schedule))  # type: ignore[arg-type]
    n = 40
    x_t = {"x": torch.linspace(-3, 3, n, dtype=torch.float64), "b": torch.where(torch.arange(n) % 4 == 3, 1, 2)}
    t = torch.linspace(0.05, 0.95, n, dtype=torch.float64)

    def energy(x, t):
        return -torch.logsumexp(oracle._log_joint(x, t)[0], -1)

    found = single_site(energy, oracle.path, "b", x_t, t, count=8, generator=torch.Generator().manual_seed(0))
    masked = x_t["b"] == 2
    torch.testing.assert_close(found.table[masked], oracle.prediction(x_t, t)["b"][masked])
    torch.testing.assert_close(found.energy[masked], energy(x_t, t)[masked])
    torch.testing.assert_close(found.sites, masked.double())
    assert bool(found.energy[~masked].isnan().all())
    assert float(found.table[~masked].abs().max()) == 0


def unequal():
    """A random law on 2 × 3 × 4 symbols: weights of all partial states [5, 5, 5], zero where a symbol is illegal."""
    space = Space(s=Categorical([2, 3, 4]))
    law = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 3 + 0.01
    weights = torch.zeros(5, 5, 5, dtype=torch.float64)
    weights[:2, :3, :4] = law
    for site in range(3):
        weights.index_copy_(site, torch.tensor([4]), weights.sum(site, keepdim=True))
    states = torch.tensor(list(itertools.product([0, 1, 4], [0, 1, 2, 4], [0, 1, 2, 3, 4])))
    return space, weights, states


def test_unequal_symbol_counts_by_enumeration():
    space, weights, states = unequal()
    path = ProductPath(space)
    t = torch.linspace(0.05, 0.95, len(states), dtype=torch.float64)

    def energy(x, t):
        s = x["s"]
        masked = (s == 4).sum(-1)
        free = -weights[s[..., 0], s[..., 1], s[..., 2]].log() - masked * torch.log1p(-t) - (3 - masked) * torch.log(t)
        assert bool(((s < torch.tensor([2, 3, 4])) | (s == 4)).all())  # only existing states are evaluated
        return free

    generator = torch.Generator().manual_seed(0)
    found = single_site(energy, path, "s", {"s": states}, t, count=3, generator=generator)
    for x, table, sites, e, time in zip(states, found.table, found.sites, found.energy, t, strict=True):
        masked = x == 4
        torch.testing.assert_close(sites, masked.double())
        for site, n in enumerate((2, 3, 4)):
            shown = torch.stack([weights[tuple(torch.where(torch.arange(3) == site, y, x))] for y in range(n)])
            expected = torch.zeros(4, dtype=torch.float64)
            expected[:n] = shown / shown.sum() if masked[site] else 0.0
            torch.testing.assert_close(table[site], expected)
        if masked.any():
            torch.testing.assert_close(e, energy({"s": x[None]}, time)[0])
    some = single_site(energy, path, "s", {"s": states}, t, count=1, generator=generator)
    torch.testing.assert_close(some.energy, found.energy, equal_nan=True)
    assert bool(torch.isfinite(some.table).all())


def test_the_energy_is_asked_once_about_neighbours_of_every_state():
    space = Space(a=Categorical(3, shape=(2, 2)), b=Categorical(2), c=Categorical(4, shape=3))
    path, seen = ProductPath(space), []

    def energy(x, t):
        seen.append({name: value.clone() for name, value in x.items()} | {"t": t})
        return torch.zeros(x["b"].shape)

    x_t = {"a": torch.full((5, 2, 2), 3), "b": torch.arange(5) % 3, "c": torch.arange(15).reshape(5, 3) % 5}
    x_t["a"][:, 0, 0] = 1
    t = torch.linspace(0.2, 0.8, 5)
    found = single_site(energy, path, "a", x_t, t, count=2, generator=torch.Generator().manual_seed(0))
    (asked,) = seen
    assert asked["a"].shape == (3, 2, 5, 2, 2)
    torch.testing.assert_close(asked["t"], t)
    for name in ("b", "c"):
        torch.testing.assert_close(asked[name], x_t[name].expand(3, 2, *x_t[name].shape))
    changed = asked["a"] != x_t["a"]
    assert bool((changed.sum((-2, -1)) == 1).all())  # one site each, and no other
    for symbol in range(3):
        assert bool((asked["a"][symbol][changed[symbol]] == symbol).all())
    torch.testing.assert_close((found.sites > 0), changed.any(0).any(0))
    torch.testing.assert_close(found.table[found.sites > 0], torch.full((10, 3), 1 / 3))
    torch.testing.assert_close(found.sites.unique(), torch.tensor([0.0, 1.5]))  # two of three masked sites


def test_neighbours_of_zero_density():
    """+inf is a zero in the table; a state whose neighbours all have zero density has none itself and says nothing."""
    space = Space(s=Categorical(3, shape=2))
    t = torch.full((3,), 0.5)

    def energy(x, t):
        s = x["s"]
        illegal = (s[..., 0] == 1) | (s[..., 1] == 0)
        return torch.where(illegal, math.inf, s.sum(-1).float())

    states = torch.tensor([[3, 2], [3, 0], [1, 3]])
    found = single_site(energy, ProductPath(space), "s", {"s": states}, t, count=2)  # looks at revealed sites as well
    p = math.exp(2) / (1 + math.exp(2))
    torch.testing.assert_close(found.table[0, 0], torch.tensor([p, 0.0, 1 - p]))
    assert found.energy.tolist()[1:] == [math.inf, math.inf]
    assert float(found.energy[0]) == pytest.approx(-math.log(math.exp(-2) + math.exp(-4)))  # κ = 1/2
    assert bool(torch.isfinite(found.table).all())
    torch.testing.assert_close(found.sites, torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))


def test_at_time_zero_nothing_is_nan():
    """Nothing can be revealed at κ = 0, so neighbours have zero density."""
    oracle = TinyIsing()
    x_t, t = {"s": torch.full((2, 2, 2), 2)}, torch.zeros(2, dtype=torch.float64)
    found = single_site(exact_ising(oracle), oracle.path, "s", x_t, t, count=2)
    assert bool(torch.isfinite(found.table).all())
    assert found.energy.tolist() == [math.inf, math.inf]
    assert float(found.sites.abs().max()) == 0


def test_other_paths_are_refused_by_name():
    oracle = TinyIsing(Uniform)
    x_t, t = {"s": oracle.states}, torch.full((16,), 0.5)
    with pytest.raises(ValueError, match="reveals masked sites, but 's' follows Uniform"):
        single_site(exact_ising(oracle), oracle.path, "s", x_t, t, count=1)
