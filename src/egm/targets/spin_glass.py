"""The Edwards–Anderson spin glass on a periodic square lattice.

    E(s) = −β Σ_<ij> J_ij s_i s_j,      s_i ∈ {−1, +1},  J_ij ~ N(0, 1) drawn once from `seed`

over 2·size² bonds; symbols 0, 1 stand for spins −1, +1. With couplings of both signs, in general no configuration
satisfies every bond.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from egm.mcmc.reference import ReferencePlan
from egm.targets.lattice import (
    LatticeTarget,
    below,
    inverse_temperature,
    revealed_spins,
    right,
    to_spins,
)
from egm.targets.support import Constants, describe, whole_number


@final
class SpinGlass(LatticeTarget):
    """Variable s: Categorical(2, shape=(size, size)).

    Args:
        size: number of rows and columns, at least 2.
        seed: seed of the couplings, at least 0.
        beta: inverse temperature, at least 0.

    Attributes:
        couplings: J, float64 [2, size, size], of the bonds from each site to its right and of the bonds below.

    Draws and log Z are exact up to size 12 (transfer matrix); draws of larger lattices use parallel tempering.

    >>> SpinGlass(6, seed=0, beta=1.0).couplings.shape
    torch.Size([2, 6, 6])
    """

    symmetries = ("spin-flip",)

    def __init__(self, size: int, seed: int, beta: float) -> None:
        size = whole_number("size", size, least=2)
        self.seed = whole_number("seed", seed, least=0)
        self.beta = inverse_temperature(beta, hint="the couplings have both signs already")
        generator = torch.Generator().manual_seed(self.seed)
        self.couplings = torch.randn(2, size, size, generator=generator, dtype=torch.float64)
        self._constants = Constants(J=self.couplings)
        super().__init__(
            size,
            2,
            site_energies=(0.0, 0.0),
            spread=2 * self.beta * float(self.couplings[1].abs().sum(1).max()),
            name=describe(self, size=size, seed=self.seed, beta=self.beta),
        )

    def _full_energy(self, s: Tensor) -> Tensor:
        return self._partial_energy(s=s)

    def _partial_energy(self, **state: Tensor) -> Tensor:
        spins = revealed_spins(state["s"]).to(torch.get_default_dtype())
        J = self._constants.like(spins).J
        return -self.beta * (spins * (J[0] * right(spins) + J[1] * below(spins))).sum((-2, -1))

    def observables(self, **state: Tensor) -> dict[str, Tensor]:
        """Returns the mean spin and the share of satisfied bonds (J_ij s_i s_j > 0), each [...]."""
        s = state["s"]
        spins, J = to_spins(s), self._constants.like(s).J
        satisfied = [(J[0] * spins * right(spins) > 0), (J[1] * spins * below(spins) > 0)]
        share = sum(bonds.sum((-2, -1)) for bonds in satisfied) / (2 * self.size**2)
        return {
            "magnetization": spins.mean((-2, -1)),
            "satisfied_bonds": torch.as_tensor(share),
        }

    def _pair_tables(self) -> tuple[Tensor, Tensor]:
        spin = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        table = -self.beta * self.couplings[..., None, None] * spin[:, None] * spin
        return table[0], table[1]

    def _reference_plan(self) -> ReferencePlan:
        return self._tempering_plan(self.beta)
