"""Processes that predict the denoiser x̂_1 = E[x_1 | x_t] of a real variable, and the loss that trains it:

    ‖F̂ − F_θ‖²/d,   F the drift ("generator") or the rescaled denoiser ("denoiser"),
                    F = (x̂_1 − α_t x_t/v_t) √v_t/σ_t with v_t = α_t² + σ_t²: of unit size at every t under the
                    reference law

The steps of a `BridgingProcess` are Gaussian, N(M x_t + B x̂_1, (V + B² err) I).
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from egm.paths.base import Time
from egm.paths.gaussian import GaussianPath
from egm.processes.base import PLAIN, Loss, RealGenerator, RealProcess
from egm.spaces.variables import Real


class DenoisingProcess(RealProcess):
    """A process on a Gaussian path whose prediction is the denoiser E[x_1 | x_t]."""

    predicts_mean = True

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.path.variable.latent_shape

    def link(self, output: Tensor) -> Tensor:
        return self.path.variable.project(output)

    def marginal(self, x_t: Tensor, prediction: Tensor, t: Time) -> RealGenerator:
        return self.conditional(x_t, self.path.variable.project(prediction), t)

    def average(self, x_t: Tensor, x_r: Tensor, weights: Tensor, t: Time) -> Tensor:
        return self.path.average(x_r, weights)

    def prediction(self, x_t: Tensor, average: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        return self.path.denoised(x_t, average, t, r)

    def loss(
        self, x_t: Tensor, t: Tensor, estimate: Tensor, output: Tensor, *, by: Loss = PLAIN, sites: Tensor | None = None
    ) -> Tensor:
        """Returns ‖F̂ − F_θ‖²/d, [...]; the norm of F̂ is clipped at `by.clip`."""
        variable = self.path.variable
        if by.real == "generator":
            expected, found = (self.marginal(x_t, x_1, t).drift for x_1 in (estimate, output))
        else:
            middle, size = rescaling(self.path, x_t, t)
            expected, found = ((x_1 - middle) / size for x_1 in (estimate, variable.project(output)))
        if by.clip is not None:
            expected = cut(expected, by.clip, variable)
        error = (expected - found).square()
        return (error.sum(variable.axes) if variable.axes else error) / variable.dimension


class BridgingProcess(DenoisingProcess):
    """A denoising process whose steps are Gaussian: the bridge towards x_1, averaged over x_1 ~ N(x̂_1, err I).

    With the bridge N(M x_t + B x_1, V I), the step is K(x_r | x_t) = N(M x_t + B x̂_1, (V + B² err) I).
    """

    has_density = True
    widened = True

    @abstractmethod
    def bridge(self, x_t: Tensor, x_1: Tensor, t: Time, r: Time) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the mean, V and B of the law of x_r given x_t and a known x_1 (V and B broadcast over sites).

        For x_t ~ p_{t|1}(· | x_1), the law must yield x_r ~ p_{r|1}(· | x_1).
        """

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
        """Draws from the bridge towards the denoised point, widened by the denoiser's error variance per coordinate.

        `error` has the batch's shape, followed by the variable's axes if it differs between coordinates. With
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
        """Returns log K(x_r | x_t) of `step`, shape [...]."""
        mean, variance = self._moments(x_t, prediction, t, r, error)
        return self.path.variable.diagonal_log_prob(x_r - mean, variance)

    def _moments(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, error: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        mean, variance, b = self.bridge(x_t, self.path.variable.project(prediction), t, r)
        each = isinstance(error, Tensor) and error.ndim == x_t.ndim
        return mean, variance + b.square() * (error if each else self.path.over_sites(error, x_t))


def rescaling(path: GaussianPath, x_t: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Returns m = α_t x_t/v_t and s = σ_t/√v_t of the rescaled denoiser F = (x̂_1 − m)/s."""
    time = path.over_sites(t, x_t)
    alpha, variance = path.alpha(time), path.variance(time)
    total = alpha.square() + variance
    return alpha / total * x_t, (variance / total).sqrt()


def cut(x: Tensor, limit: float, variable: Real) -> Tensor:
    """Returns values x of a variable with their norm clipped at the limit; directions are kept."""
    norm = x.square().sum(variable.axes, keepdim=True).sqrt() if variable.axes else x.abs()
    return x * (limit / norm.clamp(min=limit))
