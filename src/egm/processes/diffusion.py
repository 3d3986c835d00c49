"""Diffusion: dx = (u_t + ½ g_t² ∇log p_t) dt + g_t dw, with g_t² = 2σ²(α̇/α − σ̇/σ).

With this g its time reversal has the path's own kernels p_{t|r}. Where the posterior of x_1 has mean x̂_1 and variance
err in each coordinate, the step from t to r is, to second order, N(A x_t + B x̂_1, (V + B² err) I).
"""

from __future__ import annotations

import torch
from torch import Tensor

from egm.paths.base import Time
from egm.processes.base import DenoisingProcess, RealGenerator


class Diffusion(DenoisingProcess):
    """The SDE that follows a Gaussian path; its prediction is the denoiser E[x_1 | x_t]."""

    has_density = True

    def conditional(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> RealGenerator:
        g2 = self.path.diffusion(self.path.over_sites(t, x_t))
        drift = self.path.velocity(x_t, x_r, t, r) + 0.5 * g2 * self.path.score(x_t, x_r, t, r)
        return RealGenerator(drift, g2)

    def step(
        self,
        x_t: Tensor,
        prediction: Tensor,
        t: Time,
        r: Time,
        *,
        error: Tensor | float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The bridge towards the denoised point, widened by the denoiser's error variance a coordinate.

        `error` has the batch's shape, or also the variable's own axes where it differs between coordinates. With
        error = 0 the last step (r = 1) lands on the prediction and has no density.
        """
        mean, variance = self._moments(x_t, prediction, t, r, error)
        noise = self.path.variable.noise(
            self.path.batch_shape(x_t), generator=generator, dtype=x_t.dtype, device=x_t.device
        )
        return mean + variance.sqrt() * noise

    def log_step(
        self, x_r: Tensor, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, error: Tensor | float = 0.0
    ) -> Tensor:
        """log K(x_r | x_t) of `step`, shape [...]."""
        mean, variance = self._moments(x_t, prediction, t, r, error)
        return self.path.variable.diagonal_log_prob(x_r - mean, variance)

    def finite_at(self, t: Tensor) -> bool:
        return bool(torch.isfinite(self.path.diffusion(t)))

    def _moments(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, error: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        mean, variance, b = self.path.bridge(x_t, self.path.variable.project(prediction), t, r)
        each = isinstance(error, Tensor) and error.ndim == x_t.ndim
        return mean, variance + b.square() * (error if each else self.path.over_sites(error, x_t))
