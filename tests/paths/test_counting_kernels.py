"""Counts of symbols: the Triton kernels against torch, and the fallback where they do not work."""

import pytest
import torch

import egm.util.triton
from egm.paths import Masked, Uniform
from egm.paths.discrete import COUNTING_KERNELS
from egm.spaces.variables import Categorical
from support.gpu_cases import DEVICE, OnAGpu

kernels = pytest.importorskip("egm.paths.counting_kernels", reason="no Triton")


def counted(x, w, symbols):
    return torch.stack([(w[..., None] * (x == y)).sum(0) for y in range(symbols)], -1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (33, 3, 5), (40, 1, 200), (16, 2, 128), (7, 30, 9)])
@pytest.mark.parametrize("symbols", [2, 3])
def test_counts(shape, dtype, symbols):
    """One tile and several, one part of the sum and several, with and without remainders."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(symbols, shape, generator=generator).to(DEVICE, dtype)
    w = torch.rand(shape[:2], generator=generator, dtype=torch.float64).to(DEVICE)
    torch.testing.assert_close(kernels.count(x, w, symbols), counted(x, w, symbols))
    torch.testing.assert_close(kernels.count(x, w.float(), symbols), counted(x, w.float(), symbols))


def test_sums_are_split_where_there_are_few_states(monkeypatch):
    """The sums agree."""
    x, w = torch.randint(5, (100, 2, 7), device=DEVICE), torch.rand(100, 2, device=DEVICE)
    tables = []
    for programs in (1, 2048):
        monkeypatch.setattr(kernels, "PROGRAMS", programs)
        tables.append(kernels.count(x, w, 5))
    torch.testing.assert_close(*tables)


@pytest.mark.parametrize("make", [Masked, Uniform])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_averages_on_a_gpu(monkeypatch, make, shape):
    path = make(Categorical(3, shape=shape))
    x_r, weights = torch.randint(path.alphabet, (20, 2, 5, *shape), device=DEVICE), torch.rand(20, 2, 5, device=DEVICE)
    monkeypatch.setattr(egm.util.triton, "_MISSING", {COUNTING_KERNELS})
    expected = path.average(x_r, weights)
    used, count = [], kernels.count
    monkeypatch.setattr(kernels, "count", lambda *given: (used.append(1), count(*given))[1])
    monkeypatch.setattr(egm.util.triton, "_MISSING", set())
    found = path.average(x_r.as_subclass(OnAGpu), weights)
    assert used == [1]
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected)


def test_a_kernel_that_fails_is_replaced_with_one_warning(monkeypatch):
    path, weights = Masked(Categorical(2, shape=3)), torch.rand(20, 4, device=DEVICE)
    x_r = torch.randint(3, (20, 4, 3), device=DEVICE).as_subclass(OnAGpu)
    monkeypatch.setattr(egm.util.triton, "_MISSING", set())
    monkeypatch.setattr(kernels, "count", lambda *given: 1 / 0)
    with pytest.warns(RuntimeWarning, match=r"counting_kernels do not work here.*division by zero"):
        found = path.average(x_r, weights)
    torch.testing.assert_close(found, path.average(x_r, weights))  # no other warning
    plain = counted(x_r.as_subclass(torch.Tensor), weights, 3)
    torch.testing.assert_close(found.as_subclass(torch.Tensor), plain)


def test_more_symbols_than_it_counts(monkeypatch):
    path = Uniform(Categorical(20, shape=2))
    monkeypatch.setattr(kernels, "count", None)
    x_r = torch.randint(20, (9, 4, 2), device=DEVICE).as_subclass(OnAGpu)
    assert path.average(x_r, torch.rand(9, 4, device=DEVICE)).shape == (4, 2, 20)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (200,)])
def test_occurrences(monkeypatch, shape):
    path = Masked(Categorical(2, shape=shape))
    x = torch.randint(3, (7, 300, *shape), device=DEVICE, dtype=torch.uint8)
    used, plain = [], kernels.occurrences
    monkeypatch.setattr(kernels, "occurrences", lambda *given: (used.append(1), plain(*given))[1])
    for symbol in (0, 2):
        found = path.occurrences(x.as_subclass(OnAGpu), symbol).as_subclass(torch.Tensor)
        assert torch.equal(found, path.sum_sites(x == symbol).to(found.dtype))
    assert used == [1, 1]


def test_values_that_are_not_side_by_side_in_memory():
    x, w = torch.randint(3, (6, 4, 5), device=DEVICE).mT, torch.rand(5, 6, device=DEVICE).T
    torch.testing.assert_close(kernels.count(x, w, 3), counted(x, w, 3))
    flat = torch.randint(3, (9, 40), dtype=torch.uint8, device=DEVICE).T
    assert torch.equal(kernels.occurrences(flat, 2), (flat == 2).sum(1).int())


def test_weights_with_a_gradient_or_broadcast_do_without(monkeypatch):
    path = Masked(Categorical(2, shape=3))
    monkeypatch.setattr(kernels, "count", None)
    x_r = torch.randint(3, (7, 4, 3), device=DEVICE).as_subclass(OnAGpu)
    assert path.average(x_r, torch.rand(7, 4, device=DEVICE, requires_grad=True)).requires_grad
    assert path.average(x_r, torch.rand(7, 1, device=DEVICE)).shape == (4, 3, 3)


def test_no_memory_is_said_as_it_is(monkeypatch):
    def full(*given):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(kernels, "occurrences", full)
    x = torch.zeros(2, 3, dtype=torch.uint8, device=DEVICE).as_subclass(OnAGpu)
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        Masked(Categorical(2, shape=3)).occurrences(x, 2)
    assert Masked(Categorical(2, shape=3)).occurrences(x[:0], 2).shape == (
        0,
    )  # nothing to count: the kernel is left out
