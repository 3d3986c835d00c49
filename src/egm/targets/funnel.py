"""Neal's funnel.

    x_0 ~ N(0, 9),    x_i | x_0 ~ N(0, e^{x_0})  for i = 1 .. dim−1    (second arguments are variances)

The energy is −log p, so log Z = 0.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from egm.spaces import Real, Space, State
from egm.targets.base import Target
from egm.targets.support import describe, whole_number

VARIANCE = 9.0


@final
class Funnel(Target):
    """Variable x: Real(dim), with x_0 the logarithm of the variance of all other entries.

    Args:
        dim: number of dimensions, at least 2.

    `scale` holds the exact standard deviations: 3 for x_0 and √E[e^{x_0}] = e^{9/4} for the rest.

    >>> Funnel().log_z
    0.0
    """

    reference_kind = "exact"

    def __init__(self, dim: int = 10) -> None:
        self.dim = dim = whole_number("dim", dim, least=2)
        scale = [math.sqrt(VARIANCE)] + [math.exp(VARIANCE / 4)] * (dim - 1)
        super().__init__(Space(x=Real(dim, scale=scale)), self._funnel_energy, name=describe(self, dim=dim))

    def _funnel_energy(self, x: Tensor) -> Tensor:
        log_variance, rest = x[..., :1], x[..., 1:]
        standard = rest * torch.exp(-0.5 * log_variance)
        first = log_variance[..., 0]
        quadratic = 0.5 * (first.square() / VARIANCE + standard.square().sum(-1))
        normaliser = 0.5 * (self.dim * math.log(2 * math.pi) + math.log(VARIANCE))
        return quadratic + 0.5 * (self.dim - 1) * first + normaliser

    def chain_start(
        self, chains: int, *, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype
    ) -> State:
        """Returns standard normal states: many draws of the reference law lie in the neck, too steep for any step."""
        return {"x": torch.randn(chains, self.dim, generator=generator, device=device, dtype=dtype)}

    def _log_z(self) -> float:
        return 0.0

    def _exact_sample(self, n: int, seed: int) -> State:
        noise = torch.randn(n, self.dim, generator=torch.Generator().manual_seed(seed))
        first = math.sqrt(VARIANCE) * noise[:, :1]
        return {"x": torch.cat([first, torch.exp(0.5 * first) * noise[:, 1:]], -1)}
