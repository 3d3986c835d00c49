"""Flow: dx = u_t(x) dt, with u_t = E[u_{t|r}(x | x_r) | x_t = x]."""

from __future__ import annotations

import torch
from torch import Tensor

from egm.paths.base import Time
from egm.processes.base import RealGenerator
from egm.processes.denoising import DenoisingProcess


class Flow(DenoisingProcess):
    """The ODE that follows a Gaussian path; its prediction is the denoiser E[x_1 | x_t]."""

    deterministic = True

    def conditional(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> RealGenerator:
        drift = self.path.velocity(x_t, x_r, t, r)
        return RealGenerator(drift, torch.zeros_like(self.path.over_sites(t, x_t)))

    def step(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Follows the exact conditional flow to the denoised point: x_r = α_r x̂_1 + (σ_r/σ_t)(x_t − α_t x̂_1)."""
        path, (ts, rs) = self.path, self.path.times(t, r, x_t)
        prediction = path.variable.project(prediction)
        shrink = (path.variance(rs) / path.variance(ts)).sqrt()
        return path.alpha(rs) * prediction + shrink * (x_t - path.alpha(ts) * prediction)

    def euler(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        start, end = self.path.times(t, r, x_t)
        return x_t + (end - start) * self.marginal(x_t, prediction, t).drift
