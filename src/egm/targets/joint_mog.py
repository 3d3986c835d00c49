"""Joint mixture of Gaussians: one real and one binary variable per dimension.

    E(x, b) = Σ_i (x_i − b_i)²/(2σ²),  b_i ∈ {−1, +1}

The dimensions are independent: b_i is a fair coin, x_i | b_i ~ N(b_i, σ²), and log Z = dim·(log 2 + ½ log 2πσ²). There
are 2^dim modes, one for each b.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from egm.spaces import Categorical, Real, Space, State
from egm.targets.base import Target
from egm.targets.support import describe, require_positive, whole_number


@final
class JointMoG(Target):
    """Variables x: Real(dim) and b: Categorical(2, dim), whose symbols 0, 1 stand for −1, +1.

    Args:
        dim: number of real (and of binary) dimensions.
        sigma: standard deviation of every component.

    `scale` of x is its exact standard deviation, √(1 + σ²).

    >>> round(JointMoG().log_z or 0, 5)
    4.08113
    """

    reference_kind = "exact"

    def __init__(self, dim: int = 10, *, sigma: float = 0.3) -> None:
        require_positive(sigma=sigma)
        self.dim = dim = whole_number("dim", dim, least=1)
        self.sigma = float(sigma)
        space = Space(x=Real(dim, scale=math.sqrt(1 + sigma**2)), b=Categorical(2, dim))
        super().__init__(space, self._joint_energy, name=describe(self, dim=dim, sigma=sigma))

    def _joint_energy(self, x: Tensor, b: Tensor) -> Tensor:
        return (x - (2 * b - 1)).square().sum(-1) / (2 * self.sigma**2)

    def _log_z(self) -> float:
        return self.dim * (math.log(2) + 0.5 * math.log(2 * math.pi * self.sigma**2))

    def _exact_sample(self, n: int, seed: int) -> State:
        generator = torch.Generator().manual_seed(seed)
        b = torch.randint(2, (n, self.dim), generator=generator)
        x = (2 * b - 1) + self.sigma * torch.randn(n, self.dim, generator=generator)
        return {"x": x, "b": b}
