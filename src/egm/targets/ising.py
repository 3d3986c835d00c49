"""The Ising model on a periodic square lattice.

    E(s) = −βJ Σ_<ij> s_i s_j + β·field·Σ_i s_i,      s_i ∈ {−1, +1}

over 2·size² bonds; symbols 0, 1 stand for spins −1, +1. The critical point is βJ = ½ log(1 + √2) ≈ 0.4407.

Without field, log Z is Kaufman's closed form. With K = βJ > 0, its dual K* (sinh 2K sinh 2K* = 1), m = n = size and
sinh²(γ_l/2) = sinh²(K − K*) + sin²(πl/2n), γ_0 = 2(K − K*) with its sign,

    Z = ½ (2 sinh 2K)^(mn/2) [ Π_r 2cosh(m γ_2r+1 / 2) + Π_r 2sinh(m γ_2r+1 / 2)
                             + Π_r 2cosh(m γ_2r / 2)   + Π_r 2sinh(m γ_2r / 2) ],      r = 0 .. n−1.

Flipping one sublattice maps the antiferromagnet (J < 0) of even size to the ferromagnet; at odd size it is frustrated.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np
import torch
from torch import Tensor

from egm.mcmc.reference import ReferencePlan
from egm.targets.lattice import (
    LatticeTarget,
    below,
    counted_bonds,
    inverse_temperature,
    revealed_spins,
    right,
    to_spins,
)
from egm.targets.support import Constants, describe, finite, whole_number


@final
class Ising(LatticeTarget):
    """Variable s: Categorical(2, shape=(size, size)).

    Args:
        size: number of rows and columns, at least 2.
        beta: inverse temperature, at least 0.
        J: coupling; negative for the antiferromagnet.
        field: external field. The energy is +β·field·Σ s: a positive field favours −1.

    Attributes:
        coupling, site_energies: K and e of the same energy written as −K Σ_<ij> δ(s_i, s_j) + Σ_i e(s_i) + const, the
            form for cluster updates.

    Draws are exact up to size 12 (transfer matrix); larger lattices use Swendsen–Wang (J < 0: parallel tempering).

    >>> target = Ising(10, 0.4)
    >>> target, round(target.log_z, 4), target.reference_kind
    (Ising(size=10, beta=0.4), 88.1877, 'exact')
    """

    def __init__(self, size: int, beta: float, *, J: float = 1.0, field: float = 0.0) -> None:
        size = whole_number("size", size, least=2)
        self.beta = inverse_temperature(beta, hint="for the antiferromagnet use J < 0")
        self.J = finite("J", J)
        self.field = finite("field", field)
        self.coupling = 2 * self.beta * self.J
        self.site_energies = (-self.beta * self.field, self.beta * self.field)
        super().__init__(
            size,
            2,
            site_energies=self.site_energies,
            spread=abs(self.coupling) * size,
            name=describe(self, size=size, beta=self.beta, J=self.J, field=self.field),
        )
        parity = (torch.arange(size)[:, None] + torch.arange(size)) % 2
        self._constants = Constants(checkerboard=1.0 - 2.0 * parity)
        self.symmetries = ("translation",) if self.field else ("spin-flip", "translation")

    def _full_energy(self, s: Tensor) -> Tensor:
        return self._energy_of(s, mask=None)

    def _partial_energy(self, **state: Tensor) -> Tensor:
        return self._energy_of(state["s"], mask=2)

    def _energy_of(self, s: Tensor, mask: int | None) -> Tensor:
        dtype = torch.get_default_dtype()
        energy = -self.beta * self.J * _aligned(s, mask).to(dtype)
        if not self.field:
            return energy
        return energy + self.beta * self.field * revealed_spins(s).sum((-2, -1), dtype=torch.int32).to(dtype)

    def observables(self, **state: Tensor) -> dict[str, Tensor]:
        """Returns the mean spin and its absolute value, each [...].

        For J < 0 also returns the mean of (−1)^(r+c) s_rc, which tells the two ordered states apart.
        """
        spins = to_spins(state["s"])
        magnetization = spins.mean((-2, -1))
        observed = {
            "magnetization": magnetization,
            "abs_magnetization": magnetization.abs(),
        }
        if self.J < 0:
            observed["staggered_magnetization"] = (spins * self._constants.like(spins).checkerboard).mean((-2, -1))
        return observed

    def _log_z(self) -> float | None:
        unfrustrated = self.coupling > 0 or self.size % 2 == 0
        if self.coupling and not self.field and unfrustrated:
            return kaufman_log_z(self.size, abs(self.beta * self.J))
        return super()._log_z()

    def _pair_tables(self) -> tuple[Tensor, Tensor]:
        spin = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        pair = (-self.beta * self.J * spin[:, None] * spin).expand(self.size, self.size, 2, 2)
        return pair, pair

    def _reference_plan(self) -> ReferencePlan:
        return self._cluster_plan() if self.coupling > 0 else self._tempering_plan(abs(self.beta * self.J))


def _aligned(s: Tensor, mask: int | None) -> Tensor:
    """Σ_<ij> s_i s_j over the bonds whose sites are both revealed, int32 [...]."""
    if (counted := counted_bonds(s, mask)) is not None:
        equal, known = counted
        return 2 * equal - known
    spins = revealed_spins(s)  # int8 saves memory with millions of proposals
    return (spins * (right(spins) + below(spins))).sum((-2, -1), dtype=torch.int32)


def kaufman_log_z(size: int, K: float) -> float:
    """log Z of the size × size ferromagnet without field at K = βJ > 0, exact to rounding for every size and K.

    >>> round(kaufman_log_z(64, 0.4407), 1)
    3808.7
    """
    dual = -0.5 * math.log(math.tanh(K))
    gap = K - dual
    momenta = np.arange(2 * size) * math.pi / (2 * size)
    # Beyond a gap of 20, sin² is negligible next to sinh², which overflows for larger gaps.
    sines = np.sin(momenta)
    half_gamma = np.arcsinh(np.hypot(math.sinh(gap), sines)) if abs(gap) < 20 else np.full(2 * size, abs(gap))
    half_gamma[0] = gap
    x = size * half_gamma
    with np.errstate(divide="ignore"):  # at the critical point γ_0 = 0, and its sinh drops out as log 0 = −inf
        log_2sinh = np.abs(x) + np.log(-np.expm1(-2 * np.abs(x)))
    log_2cosh = np.abs(x) + np.log1p(np.exp(-2 * np.abs(x)))
    logs = np.array([log_2cosh[1::2].sum(), log_2sinh[1::2].sum(), log_2cosh[::2].sum(), log_2sinh[::2].sum()])
    signs = np.array([1.0, 1.0, 1.0, math.copysign(1.0, gap)])
    top = float(logs.max())
    bracket = top + math.log(float(signs @ np.exp(logs - top)))
    log_2sinh_2K = 2 * K + math.log(-math.expm1(-4 * K))
    return 0.5 * size**2 * log_2sinh_2K + bracket - math.log(2)
