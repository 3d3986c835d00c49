"""Many wells: independent pairs of a double well and a Gaussian.

    E(x) = Σ_i  D(x_{2i}) + ½ x_{2i+1}²,    D(y) = y⁴ − 6y² − ½y

Every double well is a one-dimensional distribution: quadrature computes its normaliser, and inversion of the
distribution function F draws its samples. Both use the trapezoid rule on |y| ≤ 4, outside of which exp(−D) is below
e^{−158}, while its integral is e^{9.4}, so the normaliser converges faster than any power of the spacing. F is
tabulated at 2^18 + 1 points and inverted by linear interpolation, which misplaces a sample by less than the spacing,
3·10⁻⁵.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

import torch
from torch import Tensor

from egm.spaces import Real, Space, State
from egm.targets.base import Target
from egm.targets.support import describe, whole_number

LIMIT = 4.0
INTERVALS = 2**18


@final
class ManyWell(Target):
    """Variable x: Real(dim); entries 2i are double wells, entries 2i+1 standard Gaussians.

    Args:
        dim: even number of dimensions.

    `scale` is √3 for the double wells (the minima of y⁴ − 6y² are at ±√3) and 1 for the Gaussians.

    >>> round(ManyWell().log_z or 0, 6)
    164.695675
    """

    reference_kind = "exact"

    def __init__(self, dim: int = 32) -> None:
        dim = whole_number("dim", dim, least=2)
        if dim % 2:
            raise ValueError(f"dim must be even (pairs of a double well and a Gaussian), got {dim}; use {dim + 1}")
        self.dim = dim
        scale = [math.sqrt(3.0), 1.0] * (dim // 2)
        super().__init__(Space(x=Real(dim, scale=scale)), self._wells_energy, name=describe(self, dim=dim))

    def _wells_energy(self, x: Tensor) -> Tensor:
        return (double_well(x[..., 0::2]) + 0.5 * x[..., 1::2].square()).sum(-1)

    def _log_z(self) -> float:
        _, _, log_z = _double_well_table()
        return self.dim / 2 * (log_z + 0.5 * math.log(2 * math.pi))

    def _exact_sample(self, n: int, seed: int) -> State:
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand(n, self.dim // 2, generator=generator, dtype=torch.float64)
        gauss = torch.randn(n, self.dim // 2, generator=generator, dtype=torch.float64)
        x = torch.stack([_invert(uniform), gauss], -1).flatten(-2)
        return {"x": x.to(torch.get_default_dtype())}

    def observables(self, **state: Tensor) -> dict[str, Tensor]:
        """Returns x [..., dim], `left` [..., dim/2] and `mode` [...].

        `left` is whether each double well is on its left (lighter) side; `mode` is the sign pattern of the first two
        double wells, from 0 (both left) to 3 (0 or 1 when dim = 2).
        """
        wells = state["x"][..., 0::2]
        right = (wells[..., :2] > 0).long()
        weights = 2 ** torch.arange(right.shape[-1], device=right.device)
        return {
            "x": state["x"].to(torch.get_default_dtype()),
            "left": (wells < 0).to(torch.get_default_dtype()),
            "mode": (right * weights).sum(-1),
        }


def double_well(y: Tensor) -> Tensor:
    """D(y) = y⁴ − 6y² − ½y, written so that it overflows to +inf and not to NaN."""
    square = y.square()
    return square * (square - 6) - 0.5 * y


@lru_cache(maxsize=1)
def _double_well_table() -> tuple[Tensor, Tensor, float]:
    """Returns grid points y, distribution function F(y), both [INTERVALS + 1] float64, and log ∫ exp(−D)."""
    y = torch.linspace(-LIMIT, LIMIT, INTERVALS + 1, dtype=torch.float64)
    log_density = -double_well(y)
    offset = float(log_density.max())
    mass = torch.cumulative_trapezoid((log_density - offset).exp(), y)
    distribution = torch.cat([mass.new_zeros(1), mass / mass[-1]])
    return y, distribution, math.log(float(mass[-1])) + offset


def _invert(uniform: Tensor) -> Tensor:
    """F⁻¹(u) by linear interpolation."""
    y, distribution, _ = _double_well_table()
    right = torch.searchsorted(distribution, uniform).clamp(1, INTERVALS)
    low, high = distribution[right - 1], distribution[right]
    # u = 0 falls on the flat start of the table, where F underflows to zero on both ends.
    fraction = torch.where(high > low, (uniform - low) / (high - low), 1.0)
    return y[right - 1] + fraction * (y[right] - y[right - 1])
