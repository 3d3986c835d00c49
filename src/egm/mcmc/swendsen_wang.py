"""Swendsen–Wang cluster updates for ferromagnetic Ising and Potts models on a periodic square lattice.

For E(s) = −K Σ_<ij> δ(s_i, s_j) + Σ_i e(s_i) + const with K > 0, at inverse temperature b:

1. every bond between equal neighbours opens with probability 1 − exp(−bK), all others stay closed;
2. every connected cluster C gets one new symbol k with probability ∝ exp(−b |C| e(k)).

Given the bonds, equal symbols within clusters are the only constraint and the bonds' weights no longer depend on the
symbols, so step 2 draws from the exact conditional of the joint law of symbols and bonds. Each site has a bond to its
right and to its lower neighbour: 2·L² bonds, also at L = 2, where each pair of neighbours has two.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from egm.mcmc.base import Kernel, SupportsEnergy, draw_symbols
from egm.spaces import State


class SwendsenWang(Kernel):
    """Swendsen–Wang: one cluster update of the whole lattice, without energy calls.

    Args:
        target: a lattice model with attributes `coupling` (K) and `site_energies` (e, one number per symbol).
    """

    def __init__(self, target: SupportsEnergy) -> None:
        coupling: Any = getattr(target, "coupling", None)
        site_energies: Any = getattr(target, "site_energies", None)
        if coupling is None or site_energies is None:
            raise TypeError(
                f"SwendsenWang needs a target with the attributes coupling and site_energies, which {target!r} lacks;"
                " use egm.targets.Ising or Potts, or Gibbs for other models"
            )
        if not 0 < coupling < math.inf:
            raise ValueError(
                f"SwendsenWang needs a ferromagnetic coupling > 0, got {coupling}; use Gibbs or ParallelTempering"
            )
        variables = list(target.space.categorical.items())
        if len(target.space) != 1 or len(variables) != 1 or len(variables[0][1].shape) != 2:
            raise TypeError(
                f"SwendsenWang needs one categorical variable of shape (L, L), got {target.space}; use Gibbs"
            )
        self.name, variable = variables[0]
        if variable.n != len(site_energies):
            raise ValueError(f"site_energies needs one number for each of {variable.n} symbols, got {site_energies}")
        self.target = target
        self.coupling = float(coupling)
        self.site_energies = tuple(float(energy) for energy in site_energies)

    def __repr__(self) -> str:
        return "SwendsenWang()"

    def step(
        self, latent: State, *, generator: torch.Generator, inverse_temperature: Tensor | float = 1.0
    ) -> tuple[State, Tensor]:
        symbols = latent[self.name]
        batch, device = symbols.shape[:-2], symbols.device
        b = torch.as_tensor(inverse_temperature, dtype=torch.float64, device=device).expand(batch)[..., None, None]
        open_probability = -torch.expm1(-b * self.coupling)
        node = torch.arange(symbols.numel(), device=device).reshape(symbols.shape)
        ends: list[Tensor] = []
        for axis in (-1, -2):
            u = torch.rand(symbols.shape, generator=generator, dtype=torch.float64, device=device)
            opened = (symbols == symbols.roll(-1, axis)) & (u < open_probability)
            ends.append(torch.stack([node[opened], node.roll(-1, axis)[opened]]))

        cluster = _clusters(torch.cat(ends, 1), symbols.numel()).to(device)
        size = torch.bincount(cluster)
        # A cluster lies within one chain, so all of its sites have the same inverse temperature.
        b_cluster = torch.empty(size.shape, dtype=torch.float64, device=device)
        b_cluster[cluster] = b.expand(symbols.shape).flatten()
        site_energies = torch.tensor(self.site_energies, dtype=torch.float64, device=device)
        new = draw_symbols(b_cluster * size * site_energies[:, None], generator=generator)
        return {self.name: new[cluster].reshape(symbols.shape)}, torch.ones(batch, device=device)


def _clusters(edges: Tensor, nodes: int) -> Tensor:
    """Returns the label 0, 1, ... of each node's connected component, int64 [nodes], from edges of shape [2, m]."""
    row, column = edges.cpu().numpy()
    graph = coo_matrix((np.ones(len(row), dtype=np.int8), (row, column)), shape=(nodes, nodes))
    _, labels = connected_components(graph, directed=False)
    return torch.as_tensor(labels, dtype=torch.int64)
