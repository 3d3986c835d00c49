"""Superposition: generators of one path may be mixed, F = Σ_k w_k F_k with w_k ≥ 0 and Σ w_k = 1.

Each F_k satisfies the path's forward equation, which is linear in the generator, so the mixture does as well.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from egm.paths.base import Time
from egm.processes.base import RealGenerator, euler_step
from egm.processes.diffusion import Diffusion
from egm.processes.flow import Flow
from egm.processes.jump import Jump


class Superposition:
    """A convex combination of flow, diffusion and continuous jump on one Gaussian path.

    Args:
        parts: pairs (weight, process). Predictions are given in the same order, one for each part.
    """

    def __init__(self, parts: Sequence[tuple[float, Flow | Diffusion | Jump]]) -> None:
        weights = [weight for weight, _ in parts]
        if not parts or any(weight < 0 for weight in weights) or abs(sum(weights) - 1) > 1e-6:
            raise ValueError(f"the weights of a superposition must be non-negative and sum to one, got {weights}")
        if not all(isinstance(process, Flow | Diffusion | Jump) for _, process in parts):
            raise TypeError("a superposition mixes Flow, Diffusion and Jump processes; symbols take one process")
        if any(process.path is not parts[0][1].path for _, process in parts):
            raise ValueError("the processes of a superposition must share one path object")
        if sum(isinstance(process, Jump) for _, process in parts) > 1:
            raise ValueError("a superposition holds at most one Jump, because each Jump has its own bins")
        self.path = parts[0][1].path
        self.parts = tuple(parts)

    def conditional(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> RealGenerator:
        """Returns F_{t|r} of the mixture; raises for r < 1 if the mixture has a `Jump`."""
        return self._mix([process.conditional(x_t, x_r, t, r) for _, process in self.parts])

    def marginal(self, x_t: Tensor, predictions: Sequence[Tensor], t: Time) -> RealGenerator:
        """Returns F_t of the mixture from one prediction for each part."""
        pairs = zip(self.parts, predictions, strict=True)
        return self._mix([process.marginal(x_t, prediction, t) for (_, process), prediction in pairs])

    def _mix(self, generators: Sequence[RealGenerator]) -> RealGenerator:
        # A part of weight zero is left out: its g² may be infinite where α_t = 0.
        weighted = [weight * g for (weight, _), g in zip(self.parts, generators, strict=True) if weight > 0]
        return functools.reduce(operator.add, weighted)

    def step(
        self,
        x_t: Tensor,
        predictions: Sequence[Tensor],
        t: Time,
        r: Time,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws x_r by one Euler step of the mixture from t to r."""
        start, end = self.path.times(t, r, x_t)
        return euler_step(self.marginal(x_t, predictions, t), x_t, end - start, self.path.variable, generator=generator)
