"""Diffusion: dx = (u_t + ½ g_t² ∇log p_t) dt + g_t dw, with g_t² = 2σ²(α̇/α − σ̇/σ).

With this g, the time reversal has the path's kernels p_{t|r}. Where the posterior of x_1 has mean x̂_1 and variance
err in each coordinate, the step from t to r is, to second order, N(A x_t + B x̂_1, (V + B² err) I).
"""

from __future__ import annotations

import torch
from torch import Tensor

from egm.paths.base import Time
from egm.processes.base import RealGenerator
from egm.processes.denoising import BridgingProcess


class Diffusion(BridgingProcess):
    """The SDE that follows a Gaussian path; its prediction is the denoiser E[x_1 | x_t]."""

    def conditional(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> RealGenerator:
        g2 = self.path.diffusion(self.path.over_sites(t, x_t))
        drift = self.path.velocity(x_t, x_r, t, r) + 0.5 * g2 * self.path.score(x_t, x_r, t, r)
        return RealGenerator(drift, g2)

    def bridge(self, x_t: Tensor, x_1: Tensor, t: Time, r: Time) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the bridge of the path, because the time reversal has the kernels p_{t|r} of the path."""
        return self.path.bridge(x_t, x_1, t, r)

    def finite_at(self, t: Tensor) -> bool:
        return bool(torch.isfinite(self.path.diffusion(t)))
