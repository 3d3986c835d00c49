"""Forty Gaussians in the plane, the common benchmark of continuous neural samplers.

    p(x) = 1/40 Σ_k N(x; μ_k, s²I),   μ_k uniform on [−40, 40]², s = log(1 + e)

The energy is −log p, so log Z = 0. The means are `(torch.rand(40, 2) − ½)·80` after `torch.manual_seed(0)` on the CPU,
as in the published benchmark.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from egm.spaces import Real, Space, State
from egm.targets.base import Target
from egm.targets.modes import Modes
from egm.targets.support import Constants

COMPONENTS = 40
WIDTH = 80.0
STD = math.log1p(math.e)


@final
class GMM40(Target):
    """Variable x: Real(2).

    `scale` is the standard deviation of x over a random choice of the means: √(80²/12 + s²).

    >>> target = GMM40()
    >>> target.log_z, target.modes.centers.shape
    (0.0, torch.Size([40, 2]))
    """

    reference_kind = "exact"

    def __init__(self) -> None:
        # Single precision, as published; a separate generator leaves the global random state unchanged.
        uniform = torch.rand(COMPONENTS, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        self.means = (uniform - 0.5) * WIDTH
        self._constants = Constants(means=self.means)
        scale = math.sqrt(WIDTH**2 / 12 + STD**2)
        super().__init__(Space(x=Real(2, scale=scale)), self._mixture_energy, name="GMM40()")

    @cached_property
    def modes(self) -> Modes:
        """The means [40, 2] and their masses, all 1/40."""
        return Modes(self.means.double(), torch.full((COMPONENTS,), 1 / COMPONENTS, dtype=torch.float64), 4 * STD)

    def _mixture_energy(self, x: Tensor) -> Tensor:
        square = (x[..., None, :] - self._constants.like(x).means).square().sum(-1)
        log_normaliser = math.log(COMPONENTS) + math.log(2 * math.pi * STD**2)
        return log_normaliser - (-square / (2 * STD**2)).logsumexp(-1)

    def _log_z(self) -> float:
        return 0.0

    def _exact_sample(self, n: int, seed: int) -> State:
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randint(COMPONENTS, (n,), generator=generator)
        noise = torch.randn(n, 2, generator=generator)
        return {"x": self.means.to(noise)[chosen] + STD * noise}

    def observables(self, **state: Tensor) -> dict[str, Tensor]:
        """Returns x [..., 2] and `mode` [...]: index of the nearest mean within four standard deviations, or −1."""
        return {**super().observables(**state), "mode": self.modes.assign(state["x"])}
