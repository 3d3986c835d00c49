"""Energies from bonds that the Triton kernel counts equal those of torch."""

import pytest
import torch

import egm.util.triton
from egm.targets import Ising, Potts
from egm.targets.lattice import KERNELS, LARGEST, counted_bonds
from support.gpu_cases import DEVICE, OnAGpu

kernels = pytest.importorskip("egm.targets.bond_kernels", reason="no Triton")


@pytest.mark.parametrize(
    "target",
    [
        Ising(2, 0.4),
        Ising(3, 0.3, J=-1.0),
        Ising(5, 0.4, field=0.3),
        Ising(12, 0.4),
        Potts(4, 3, 0.7),
        Potts(13, 4, 1.0),
    ],
    ids=repr,
)
@pytest.mark.parametrize("batch", [(1,), (3, 50)])
def test_energies(monkeypatch, target, batch):
    used, plain = [], kernels.bonds
    monkeypatch.setattr(kernels, "bonds", lambda *given: (used.append(1), plain(*given))[1])
    s = torch.randint(target.states + 1, (*batch, target.size, target.size), device=DEVICE).to(torch.uint8)
    for x, energy in ((s, target.partial_energy), (s % target.states, target.energy)):
        found = energy(s=x.as_subclass(OnAGpu)).as_subclass(torch.Tensor)
        monkeypatch.setattr(egm.util.triton, "_MISSING", {KERNELS})
        expected = energy(s=x)
        monkeypatch.setattr(egm.util.triton, "_MISSING", set())
        torch.testing.assert_close(found, expected)
        assert found.shape == batch
    assert used == [1, 1]


def test_the_largest_lattice():
    """All bonds equal: the most that the kernel has to count; beyond it torch does."""
    s = torch.ones(1, LARGEST, LARGEST, dtype=torch.uint8, device=DEVICE)
    assert [x.tolist() for x in kernels.bonds(s, 2)] == [[2 * LARGEST**2]] * 2
    larger = torch.ones(1, LARGEST + 1, LARGEST + 1, dtype=torch.uint8, device=DEVICE).as_subclass(OnAGpu)
    assert counted_bonds(larger, 2) is None


def test_states_that_are_not_side_by_side_in_memory():
    s = torch.randint(3, (5, 5, 30), dtype=torch.uint8, device=DEVICE).permute(2, 0, 1)
    for found, expected in zip(kernels.bonds(s, 2), kernels.bonds(s.contiguous(), 2), strict=True):
        assert torch.equal(found, expected)
