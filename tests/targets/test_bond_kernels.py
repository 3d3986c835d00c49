"""Bonds counted by the kernel give the energies that torch gives."""

import pytest
import torch

import egm.kernels
from egm.targets import Ising, Potts
from egm.targets.lattice import KERNELS
from gpu_cases import DEVICE, OnAGpu

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
        monkeypatch.setattr(egm.kernels, "_MISSING", {KERNELS})
        expected = energy(s=x)
        monkeypatch.setattr(egm.kernels, "_MISSING", set())
        torch.testing.assert_close(found, expected)
        assert found.shape == batch
    assert used == [1, 1]
