"""Swendsen–Wang leaves enumerated lattices invariant at every temperature; wrong bonds and fields are caught."""

import pytest
import torch

from egm.mcmc import Gibbs, SwendsenWang
from support.mcmc_laws import CHAINS, Lattice, assert_invariant, generator, take
from support.stats import assert_counts

ISING = {"no field": Lattice(3, 0.6, (0.0, 0.0)), "field": Lattice(3, 0.6, (0.15, -0.05))}
POTTS = Lattice(2, 0.5, (0.0, 0.3, -0.2))


@pytest.mark.parametrize("b", [1.0, 0.5])
@pytest.mark.parametrize("lattice", [*ISING.values(), POTTS], ids=["ising", "ising with field", "potts 2x2"])
def test_swendsen_wang_is_invariant(lattice, b):
    kernel = SwendsenWang(lattice)
    assert_invariant(kernel, lambda n, s: lattice.exact(n, s, b), lattice.features, steps=1, inverse_temperature=b)
    counts = lattice.counts(take(kernel, lattice.exact(4 * CHAINS, 6, b), 1, b=b))
    assert_counts(counts, lattice.probabilities(b))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SwendsenWang, Gibbs])
def test_lattice_kernels_move_to_the_target_from_one_state(kind):
    lattice = ISING["field"]
    start = {"s": torch.zeros(CHAINS, 3, 3, dtype=torch.int64)}
    assert_counts(lattice.counts(take(kind(lattice), start, 30)), lattice.probabilities())


def test_swendsen_wang_takes_a_temperature_for_each_chain():
    lattice, kernel = ISING["field"], SwendsenWang(ISING["field"])
    both = {"s": torch.stack([lattice.exact(CHAINS, 1, b)["s"] for b in (1.0, 0.5)])}
    moved, _ = kernel.step(both, generator=generator(0), inverse_temperature=torch.tensor([[1.0], [0.5]]))
    for row, b in enumerate((1.0, 0.5)):
        assert_counts(lattice.counts({"s": moved["s"][row]}), lattice.probabilities(b))


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_wrong_bond_probability_is_caught(factor):
    lattice, kernel = ISING["no field"], SwendsenWang(ISING["no field"])
    kernel.coupling *= factor
    with pytest.raises(AssertionError):
        assert_invariant(kernel, lattice.exact, lattice.features)


def test_a_wrong_cluster_field_is_caught():
    lattice, kernel = ISING["field"], SwendsenWang(ISING["field"])
    kernel.site_energies = (0.0, 0.0)
    with pytest.raises(AssertionError):
        assert_invariant(kernel, lattice.exact, lattice.features)
