"""The Potts model on a periodic square lattice.

    E(s) = −β Σ_<ij> δ(s_i, s_j),      s_i ∈ {0, .., states−1}

over 2·size² bonds. The critical point is β = log(1 + √states); two states at β are the Ising model at β/2.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from egm.mcmc.reference import ReferencePlan
from egm.targets.lattice import LatticeTarget, below, counted_bonds, inverse_temperature, right
from egm.targets.support import describe, whole_number


@final
class Potts(LatticeTarget):
    """Variable s: Categorical(states, shape=(size, size)).

    Args:
        size: number of rows and columns, at least 2.
        states: number of symbols, at least 2.
        beta: inverse temperature, at least 0.

    Attributes:
        coupling, site_energies: K = β and e = 0 in E = −K Σ_<ij> δ(s_i, s_j) + Σ_i e(s_i), for cluster updates.

    Draws and log Z are exact if states^size ≤ 6561 (transfer matrix); otherwise draws use Swendsen–Wang.

    >>> target = Potts(4, 3, 1.0)
    >>> target.energy(s=torch.zeros(4, 4, dtype=torch.int64)), target.reference_kind
    (tensor(-32.), 'exact')
    """

    symmetries = ("symbol-permutation", "translation")

    def __init__(self, size: int, states: int, beta: float) -> None:
        size = whole_number("size", size, least=2)
        states = whole_number("states", states, least=2)
        self.beta = inverse_temperature(beta, hint="only the ferromagnet is offered")
        self.coupling = self.beta
        self.site_energies = (0.0,) * states
        super().__init__(
            size,
            states,
            site_energies=self.site_energies,
            spread=self.beta * size,
            name=describe(self, size=size, states=states, beta=self.beta),
        )

    def _full_energy(self, s: Tensor) -> Tensor:
        return self._energy_of(s, mask=None)

    def _partial_energy(self, **state: Tensor) -> Tensor:
        return self._energy_of(state["s"], mask=self.states)

    def _energy_of(self, s: Tensor, mask: int | None) -> Tensor:
        if (counted := counted_bonds(s, mask)) is not None:
            equal, _ = counted
        else:  # two masked neighbours hold the same symbol too, but their bond is not determined
            revealed = s != self.states
            equal = ((s == right(s)) & revealed).sum((-2, -1)) + ((s == below(s)) & revealed).sum((-2, -1))
        return -self.beta * equal.to(torch.get_default_dtype())

    def observables(self, **state: Tensor) -> dict[str, Tensor]:
        """Returns the order parameter (q·max_k n_k/L² − 1)/(q − 1) as `magnetization` [...]."""
        s = state["s"]
        counts = torch.stack([(s == k).sum((-2, -1)) for k in range(self.states)])
        largest = counts.amax(0).to(torch.get_default_dtype()) / self.size**2
        return {
            "magnetization": (self.states * largest - 1) / (self.states - 1),
        }

    def _pair_tables(self) -> tuple[Tensor, Tensor]:
        pair = -self.beta * torch.eye(self.states, dtype=torch.float64)
        table = pair.expand(self.size, self.size, self.states, self.states)
        return table, table

    def _reference_plan(self) -> ReferencePlan:
        return self._cluster_plan()
