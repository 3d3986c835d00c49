"""The transfer matrix against plain enumeration, on random tables without any symmetry."""

import itertools
import math

import numpy as np
import pytest
import torch

from egm.targets import transfer_matrix
from egm.targets.transfer_matrix import TransferMatrix, fits
from support.stats import assert_counts

SHAPES = [(2, 2, 2), (3, 3, 2), (2, 4, 2), (4, 2, 2), (3, 2, 3), (2, 3, 3)]


def random_tables(rows, columns, q, scale=0.7):
    """Energies that differ on every bond and site, and under exchange of a bond's ends."""
    generator = torch.Generator().manual_seed(100 * rows + 10 * columns + q)
    shapes = (rows, columns, q, q), (rows, columns, q, q), (rows, columns, q)
    return tuple(scale * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


def enumerate_energies(right, down, site):
    """Every configuration [n, R, C] and its energy [n], term by term."""
    rows, columns, q = site.shape
    s = np.array(list(itertools.product(range(q), repeat=rows * columns))).reshape(-1, rows, columns)
    energy = np.zeros(len(s))
    for r, c in itertools.product(range(rows), range(columns)):
        here, beside, beneath = s[:, r, c], s[:, r, (c + 1) % columns], s[:, (r + 1) % rows, c]
        energy += right[r, c].numpy()[here, beside] + down[r, c].numpy()[here, beneath] + site[r, c].numpy()[here]
    return s, energy


def enumerated_moments(energy):
    weights = np.exp(-(energy - energy.min()))
    probabilities = weights / weights.sum()
    mean = probabilities @ energy
    return math.log(weights.sum()) - energy.min(), mean, probabilities @ (energy - mean) ** 2, probabilities


@pytest.mark.parametrize("shape", SHAPES)
def test_log_z_and_energy_moments_equal_enumeration(shape):
    tables = random_tables(*shape)
    log_z, mean, variance, _ = enumerated_moments(enumerate_energies(*tables)[1])
    matrix = TransferMatrix(*tables)
    assert matrix.log_z == pytest.approx(log_z, abs=1e-11)
    assert matrix.energy_moments == pytest.approx((mean, variance), rel=1e-11)


@pytest.mark.parametrize("shape", SHAPES)
def test_draws_have_the_enumerated_probabilities(shape):
    tables = random_tables(*shape)
    states, energy = enumerate_energies(*tables)
    *_, probabilities = enumerated_moments(energy)
    draws = TransferMatrix(*tables).sample(60_000, generator=torch.Generator().manual_seed(1))
    assert draws.shape == (60_000, *shape[:2])
    assert draws.dtype == torch.int64
    # Configurations are enumerated as numbers to base q, so a draw's number is its place in the list.
    place = shape[2] ** np.arange(shape[0] * shape[1])[::-1]
    assert np.array_equal(states.reshape(len(states), -1) @ place, np.arange(len(states)))
    counts = np.bincount(draws.flatten(1).numpy() @ place, minlength=len(states))
    assert_counts(counts, probabilities, f"states of {shape}")


def test_a_wrong_table_is_rejected():
    """The histogram test would notice vertical and horizontal bonds exchanged, or a bond read backwards."""
    right, down, site = random_tables(3, 3, 2)
    states, energy = enumerate_energies(right, down, site)
    *_, probabilities = enumerated_moments(energy)
    place = 2 ** np.arange(9)[::-1]
    for wrong in ((down, right, site), (right.mT, down, site), (right.roll(1, 1), down, site)):
        draws = TransferMatrix(*wrong).sample(60_000, generator=torch.Generator().manual_seed(1))
        counts = np.bincount(draws.flatten(1).numpy() @ place, minlength=len(states))
        with pytest.raises(AssertionError, match="chi-square"):
            assert_counts(counts, probabilities)


def test_tables_by_groups_of_first_rows_give_the_same_draws(monkeypatch):
    tables = random_tables(4, 5, 2)
    kept = TransferMatrix(*tables).sample(500, generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(transfer_matrix, "_CACHED_ROW_STATES", 1)
    monkeypatch.setattr(transfer_matrix, "_TABLE_BYTES", 3 * 16 * 3 * 32)  # three first rows a group
    grouped = TransferMatrix(*tables).sample(500, generator=torch.Generator().manual_seed(2))
    assert torch.equal(kept, grouped)


def test_draws_in_several_blocks_are_fresh(monkeypatch):
    monkeypatch.setattr(transfer_matrix, "_BLOCK", 64)
    draws = TransferMatrix(*random_tables(4, 5, 2)).sample(150, generator=torch.Generator().manual_seed(3))
    assert draws.shape == (150, 4, 5)
    assert not torch.equal(draws[:64], draws[64:128])


@pytest.mark.parametrize("scale", [1e-3, 20.0])
def test_hot_and_cold_models(scale):
    """Cold: weights span e^±300 in a row and are mostly below the range of float64 in the whole."""
    tables = random_tables(3, 3, 2, scale=scale)
    log_z, mean, variance, probabilities = enumerated_moments(enumerate_energies(*tables)[1])
    matrix = TransferMatrix(*tables)
    assert matrix.log_z == pytest.approx(log_z, rel=1e-12)
    # The variance is a difference of squares of order (18·scale)².
    assert matrix.energy_moments == pytest.approx((mean, variance), rel=1e-9, abs=1e-9)
    draws = matrix.sample(1000, generator=torch.Generator().manual_seed(4))
    if scale > 1:
        number = (draws.flatten(1) * 2 ** torch.arange(8, -1, -1)).sum(1)
        share = float((number == int(probabilities.argmax())).double().mean())
        assert share == pytest.approx(probabilities.max(), abs=0.05)


def test_fits():
    assert fits(states=2, size=12, spread=10.0)
    assert not fits(states=2, size=13, spread=10.0)
    assert fits(states=3, size=8, spread=10.0)
    assert not fits(states=3, size=9, spread=10.0)
    assert not fits(states=2, size=4, spread=1000.0)


def test_errors_name_the_argument_and_the_fix():
    right, down, site = random_tables(3, 3, 2)
    with pytest.raises(ValueError, match=r"needs right and down of shape \(3, 3, 2, 2\), got \(3, 3, 2\)"):
        TransferMatrix(site, down, site)
    with pytest.raises(ValueError, match="at least 2 rows and 2 columns, got 1 and 3"):
        TransferMatrix(right[:1], down[:1], site[:1])
    with pytest.raises(ValueError, match="8192 row states, more than 6561; use a Markov chain"):
        TransferMatrix(torch.zeros(2, 13, 2, 2), torch.zeros(2, 13, 2, 2), torch.zeros(2, 13, 2))
    with pytest.raises(ValueError, match=r"span .*use a higher temperature"):
        TransferMatrix(right, 1e3 * down, site)
    with pytest.raises(ValueError, match="span nan"):
        TransferMatrix(right, math.nan * down, site)
