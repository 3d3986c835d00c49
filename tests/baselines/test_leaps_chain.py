"""The jump process of LEAPS against enumeration: its generator term, its exact weights, and moves between jumps."""

import itertools
import math

import pytest
import torch
from torch import nn

from egm import targets
from egm.baselines import leaps_chain
from egm.baselines.leaps_chain import BLOCK, Chain, blocks, generator_term
from egm.targets.base import Target
from support.leaps_cases import Exact, make_chain, neighbours_of, number_of, random_network, states_of, step_matrices
from support.stats import assert_counts, assert_mean

LATTICES = [
    targets.Ising(2, 0.7), targets.Ising(3, 0.3, field=0.4), targets.Ising(4, 0.5, J=-1.0), targets.Potts(3, 3, 0.8),
    targets.SpinGlass(4, 1, 0.9), targets.SpinGlass(5, 0, 0.4),
]  # fmt: skip


@pytest.mark.parametrize("target", LATTICES, ids=repr)
def test_energies_of_all_sites(target):
    x = torch.randint(target.states, (5, target.size, target.size), generator=torch.Generator().manual_seed(0))
    before = target.energy_calls
    found = make_chain(nn.Identity(), target).energies(x)
    assert target.energy_calls - before == 5 * target.size**2 * target.states
    each = [target.conditional_energies({"s": x}, "s", (site,))[..., 0] for site in range(target.size**2)]
    torch.testing.assert_close(found.flatten(1, 2), torch.stack(each, -1).movedim(0, -1))
    other = Target(target.space, lambda s: target.energy(s=s))  # knows complete energies alone
    complete = make_chain(nn.Identity(), other).differences(x)
    assert other.energy_calls == 5 * target.size**2 * target.states
    torch.testing.assert_close(make_chain(nn.Identity(), target).differences(x), complete, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------- the generator term


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "target", [targets.Ising(2, 0.6), targets.Ising(3, 0.4, field=0.2), targets.Potts(2, 3, 0.9)], ids=repr
)
def test_the_residual_vanishes_for_exact_currents(target, t):
    exact = Exact(target)
    x, F = states_of(exact.variable), exact.table(t)
    differences, times = make_chain(exact, target).differences(x), torch.full((len(F),), t, dtype=torch.float64)

    def residual(F: torch.Tensor, sign: float = 1.0) -> float:
        term = sign * generator_term(F, differences, times)
        return float((-exact.energies - term - exact.free_energy(t)).abs().max())

    assert residual(F) < 1e-4  # energies are float32
    assert residual(-F) > 0.5
    assert residual(F, sign=-1.0) > 0.5


def test_weights_of_continuous_time_are_biased_by_the_step():
    """E of exp(h Σ (−E − K_t F)(x_k)) over Euler steps, summed over all paths, tends to Z/Z_0 as h does to zero."""
    target, errors = targets.Ising(2, 0.6), []
    chain = make_chain(random_network(2, scale=0.5), target)
    x = states_of(chain.variable)
    neighbours, differences = neighbours_of(chain.variable).flatten(1), chain.differences(x)
    energies = target.energy(s=x).double()
    for steps in (200, 400, 800):
        h, mass = 1 / steps, torch.full((len(x),), 1 / len(x), dtype=torch.float64)
        for k in range(steps):
            t = torch.full((len(x),), k * h, dtype=torch.float64)
            with torch.no_grad():
                F = chain.rates(x, t)
            mass = mass * torch.exp(h * (-energies - generator_term(F, differences, t)))
            moving = h * mass[:, None] * F.relu().flatten(1)
            mass = (mass - moving.sum(1)).index_add(0, neighbours.flatten(), moving.flatten())
        errors.append(math.log(float(mass.sum()) * len(x)) - float(torch.logsumexp(-energies, 0)))
    for coarse, fine in itertools.pairwise(errors):
        assert 0.9 < math.log2(coarse / fine) < 1.1
    assert abs(errors[0]) > 1e-3


# ---------------------------------------------------------------------- exact weights


@pytest.mark.parametrize(("target", "n"), [(targets.Ising(2, 0.6), 2), (targets.Potts(2, 3, 0.9), 3)], ids=str)
@pytest.mark.parametrize("h", [0.02, 0.5])
def test_steps_are_probabilities_of_matching_support(target, n, h):
    """Hence Σ_paths p_0 Π K · w = Σ_paths Π L e^{−E} = Z: L sums to one, and K is positive wherever L is."""
    chain = make_chain(random_network(2, n, positions=True), target)
    forward, backward = step_matrices(chain, 0.7, 0.6, h)
    ones = torch.ones(len(forward), dtype=torch.float64)
    torch.testing.assert_close(forward.sum(1), ones)
    torch.testing.assert_close(backward.sum(1), ones)
    assert ((backward.T > 0) == (forward > 0)).all()
    assert 0.05 < float((forward > 0).double().mean()) < 0.95
    network = random_network(2, n, positions=True)
    network.centre.fill_(1.0)  # without local equivariance the supports differ
    forward, backward = step_matrices(make_chain(network, target), 0.7, 0.6, h)
    assert not ((backward.T > 0) == (forward > 0)).all()


def test_steps_are_drawn_as_their_probabilities_say():
    target, n = targets.Ising(2, 0.6), 20_000
    chain = make_chain(random_network(2), target)
    start = torch.tensor([[0, 1], [1, 1]]).expand(n, 2, 2)
    for backwards in (False, True):
        rates = chain._rates(start, 0.5, weigh=True)
        moved, _, _ = chain._step(
            start, rates, t=0.5, s=0.4, h=0.3, backwards=backwards, generator=torch.Generator().manual_seed(1)
        )
        counts = torch.bincount(number_of(moved, 2), minlength=16)
        expected = step_matrices(chain, 0.5, 0.4, 0.3)[backwards][int(number_of(start[:1], 2))]
        assert_counts(counts, expected)


def weights(chain: Chain, *, steps: int, n: int = 10_000, seed: int = 0, backwards: bool = False) -> torch.Tensor:
    """Log-weights of n paths, from uniform symbols, or backwards from exact draws."""
    target, generator = chain.target, torch.Generator().manual_seed(seed)
    x = target.exact_sample(n, seed=seed)["s"] if backwards else chain.variable.uniform((n,), generator=generator)
    end, log_ratio = chain.run(x, steps=steps, backwards=backwards, generator=generator)
    return log_ratio - target.energy(s=x if backwards else end).double()


CHAINS = [
    (targets.Ising(2, 0.6), 3, 0), (targets.Ising(3, 0.2), 10, 0), (targets.Potts(2, 3, 0.9), 6, 0),
    (targets.Ising(2, 0.6), 5, 2), (targets.Ising(3, 0.2), 9, 1), (targets.SpinGlass(3, 0, 0.5), 6, 1),
]  # fmt: skip


@pytest.mark.parametrize(("target", "steps", "sweeps"), CHAINS, ids=str)
def test_weights_have_the_mean_z(target, steps, sweeps):
    """Forwards E[w] = Z, and backwards from exact draws E[1/w] = 1/Z; for a random network, and with few steps."""
    assert target.log_z is not None
    chain = make_chain(random_network(target.size, target.states), target, sweeps=sweeps)
    assert_mean((weights(chain, steps=steps) - target.log_z).exp(), 1.0, "w/Z")
    assert_mean((target.log_z - weights(chain, steps=steps, backwards=True)).exp(), 1.0, "Z/w backwards")


def test_sweeps_that_leave_no_trace_are_noticed(monkeypatch):
    target = targets.Ising(2, 0.6)
    assert target.log_z is not None
    chain = make_chain(random_network(2), target, sweeps=1)
    swept = Chain._swept
    monkeypatch.setattr(Chain, "_swept", lambda *args: (swept(*args)[0], args[3]))
    with pytest.raises(AssertionError, match="w/Z"):
        assert_mean((weights(chain, steps=5) - target.log_z).exp(), 1.0, "w/Z")


def test_weights_of_exact_currents_spread_by_the_square_of_the_step(monkeypatch):
    target = targets.Ising(2, 0.6)
    chain = make_chain(Exact(target), target)
    spread = [float(weights(chain, steps=steps, n=500).std()) for steps in (16, 32, 64)]
    for coarse, fine in itertools.pairwise(spread):
        assert 1.8 < math.log2(coarse / fine) < 2.2
    assert spread[-1] < 0.005
    right = leaps_chain.reversed_rates
    monkeypatch.setattr(leaps_chain, "reversed_rates", lambda F, d, t: right(F, -d, t))  # the other sign
    assert float(weights(chain, steps=64, n=500).std()) > 0.5


def test_sweeps_leave_the_path_invariant():
    """Draws of p_t stay draws of p_t; at another time they do not."""
    target, n = targets.Ising(3, 0.5), 20_000
    chain = make_chain(nn.Identity(), target, sweeps=1)
    probability = torch.softmax(-0.6 * target.energy(s=states_of(chain.variable)).double(), 0)
    generator = torch.Generator().manual_seed(0)
    start = states_of(chain.variable)[torch.multinomial(probability, n, replacement=True, generator=generator)]
    for t, fits in ((0.6, True), (0.1, False)):
        for sign in (1.0, -1.0):
            moved, added = chain._swept(start, t, torch.zeros(n, dtype=torch.float64), sign, generator)
            gained = (target.energy(s=moved) - target.energy(s=start)).double()
            torch.testing.assert_close(added, sign * t * gained, rtol=1e-4, atol=1e-4)
            counts = torch.bincount(number_of(moved, 2), minlength=len(probability))
            if fits:
                assert_counts(counts, probability)
            else:
                with pytest.raises(AssertionError, match="chi-square"):
                    assert_counts(counts, probability)


def test_blocks_and_calls():
    """A network is called once a step and once a block; energies as often, but only for weights."""
    target, times = targets.Ising(3, 0.3), []
    network = random_network(3)

    def rates(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        times.append(float(t[0]))
        return network({"s": x}, t.double())["s"]

    chain = Chain(rates, target, "s", target.space.categorical["s"])
    x, generator = torch.zeros(4, 3, 3, dtype=torch.int64), torch.Generator().manual_seed(0)
    chain.run(x, steps=10, weigh=False, generator=generator)
    assert target.energy_calls == 0
    assert times == pytest.approx([0.2] * 5 + [0.6] * 5 + [0.9] * 3)
    assert len(times) == 10 + len(list(blocks(10)))
    times.clear()
    chain.run(x, steps=BLOCK, end=torch.tensor(0.5), generator=generator)
    assert times == pytest.approx([0.25] * (BLOCK + 1))
    assert target.energy_calls == 4 * (BLOCK + 1) * 9 * 2
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        chain.run(x, steps=0, generator=generator)
