"""Gibbs leaves a law with unequal and forbidden symbols invariant and reaches it; a wrong conditional is caught."""

import math

import pytest
import torch

from egm import Categorical, Space, Target
from egm.mcmc import Gibbs
from support.mcmc_laws import CHAINS, Table, assert_invariant, take
from support.stats import assert_counts


@pytest.mark.parametrize("b", [1.0, 0.5])
def test_gibbs_is_invariant(b):
    model = Table()
    kernel = Gibbs(model.target)
    assert_invariant(kernel, lambda n, s: model.exact(n, s, b), model.features, inverse_temperature=b)
    counts = torch.bincount(model.index(take(kernel, model.exact(CHAINS, 5, b), 2, b=b)), minlength=48)
    assert_counts(counts, model.probabilities(b))


def test_gibbs_moves_to_the_target_from_one_state():
    model = Table()
    start = {"a": torch.zeros(CHAINS, 3, dtype=torch.int64), "b": torch.zeros(CHAINS, dtype=torch.int64)}
    counts = torch.bincount(model.index(take(Gibbs(model.target), start, 60)), minlength=48)
    assert_counts(counts, model.probabilities())


def test_random_sites_in_the_place_of_a_scan():
    model = Table()
    assert_invariant(Gibbs(model.target, sites=6), model.exact, model.features)
    start = {"a": torch.zeros(CHAINS, 3, dtype=torch.int64), "b": torch.zeros(CHAINS, dtype=torch.int64)}
    counts = torch.bincount(model.index(take(Gibbs(model.target, sites=4), start, 100)), minlength=48)
    assert_counts(counts, model.probabilities())
    after = take(Gibbs(model.target, sites=1), start, 1)
    changed = torch.cat([after["a"] != start["a"], (after["b"] != start["b"])[:, None]], 1).any(0)
    assert int(changed.sum()) == 1  # the same site in all chains
    with pytest.raises(ValueError, match="sites must be at least 1, got 0"):
        Gibbs(model.target, sites=0)


def test_gibbs_redraws_only_the_named_variables_and_counts_its_calls():
    model = Table()
    start = model.exact(50, 1)
    after = take(Gibbs(model.target, names=["b"]), start, 1)
    assert torch.equal(after["a"], start["a"])
    assert model.target.energy_calls == 50 * 2
    take(Gibbs(model.target), start, 1)
    assert model.target.energy_calls == 50 * 2 + 50 * (2 + 3 + 4 + 2)


def test_gibbs_redraws_among_the_legal_symbols():
    table = torch.tensor([0.0, math.inf, 0.5])
    target = Target(Space(s=Categorical(3, shape=1)), lambda s: table[s].sum(-1))
    after = take(Gibbs(target), {"s": torch.zeros(CHAINS, 1, dtype=torch.int64)}, 1)
    assert_counts(torch.bincount(after["s"][:, 0], minlength=3), torch.softmax(-table, 0).double())


def test_gibbs_leaves_a_state_without_legal_neighbours_where_it_is():
    target = Target(Space(s=Categorical(2, shape=2)), lambda s: torch.full(s.shape[:-1], math.inf))
    start = {"s": torch.tensor([[0, 1], [1, 0]])}
    assert torch.equal(take(Gibbs(target), start, 2)["s"], start["s"])


class GibbsWithOtherConditional(Gibbs):
    """Draws from the conditional at another temperature: everything right but a factor."""

    def step(self, latent, *, generator, inverse_temperature=1.0):
        return super().step(latent, generator=generator, inverse_temperature=1.1 * inverse_temperature)


def test_a_wrong_conditional_is_caught():
    model = Table()
    with pytest.raises(AssertionError):
        assert_invariant(GibbsWithOtherConditional(model.target), model.exact, model.features)
