"""Gaussian paths x_t = α_t x_1 + σ_t ε. With a = α_t/α_r and s² = σ_t² − a² σ_r²:

    p_{t|r}   = N(a x_r, s² I)
    q_{r|t}   = N(x_t/a, (s/a)² I),      log Z_{r|t} = −d log a
    u_{t|r}   = (α̇_t/α_r) x_r + ½ (d/dt log s²) (x_t − a x_r)
    p_{r|1,t} = N(A x_t + B x_1, V I),   A = a σ_r²/σ_t²,  B = α_r s²/σ_t²,  V = σ_r² s²/σ_t²

Four functions define the schedule, in forms that do not cancel as t → r; since σ_1 = 0, σ_t² is s² at r = 1.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from egm.paths.base import Draw, Path, Proposal, Time
from egm.spaces.variables import Real

HALF_PI = math.pi / 2


class GaussianPath(Path[Real]):
    """A Gaussian path; subclasses define the schedule."""

    def __init__(self, variable: Real) -> None:
        if not isinstance(variable, Real):
            raise TypeError(f"{type(self).__name__} acts on Real variables, got {variable!r}; use Masked or Uniform")
        self.variable = variable

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """α_t, with α_1 = 1."""

    @abstractmethod
    def alpha_dot(self, t: Tensor) -> Tensor:
        """dα_t/dt."""

    @abstractmethod
    def variance(self, t: Tensor, r: Tensor | float = 1.0) -> Tensor:
        """s² of p_{t|r}; at r = 1 this is σ_t²."""

    @abstractmethod
    def log_variance_dot(self, t: Tensor, r: Tensor | float = 1.0) -> Tensor:
        """d/dt log s²; at r = 1 this is 2 σ̇_t/σ_t."""

    # ------------------------------------------------------------------ kernels

    def sample(self, x_r: Tensor, t: Time, r: Time = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
        t, r = self.times(t, r, x_r)
        return self.alpha(t) / self.alpha(r) * x_r + self.variance(t, r).sqrt() * self._noise_like(x_r, (), generator)

    def log_prob(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        ts, rs = self.times(t, r, x_t)
        residual = x_t - self.alpha(ts) / self.alpha(rs) * x_r
        return self.variable.gaussian_log_prob(
            residual, self.variance(self.over_batch(t, x_t), self.over_batch(r, x_t))
        )

    def proposer(self, x_t: Tensor, t: Time, r: Time = 1.0, *, law: Proposal = "flat") -> Draw:
        mean, std = self.proposal_law(x_t, t, r, law=law)
        return lambda count, generator: mean + std * self._noise_like(x_t, (count,), generator)

    def proposal_law(self, x_t: Tensor, t: Time, r: Time, *, law: Proposal) -> tuple[Tensor, Tensor]:
        """Returns mean and standard deviation of the proposals that `proposer` draws.

        The flat law is N(x_t/a, (s/a)² I), the reference law is N(a (v_r/v_t) x_t, (v_r/v_t) s² I); v = α² + σ² is the
        variance of the reference law on the path.
        """
        t, r = self.times(t, r, x_t)
        a, variance = self.alpha(t) / self.alpha(r), self.variance(t, r)
        if law == "flat":
            return x_t / a, variance.sqrt() / a
        ratio = self._reference_variance(r) / self._reference_variance(t)
        return a * ratio * x_t, (ratio * variance).sqrt()

    def log_normaliser(self, x_t: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        a = self.alpha(self.over_batch(t, x_t)) / self.alpha(self.over_batch(r, x_t))
        return (-self.variable.dimension * torch.log(a)).expand(torch.broadcast_shapes(a.shape, self.batch_shape(x_t)))

    def prior_log_prob(self, x_t: Tensor, t: Time = 0.0) -> Tensor:
        time = self.over_batch(t, x_t)
        return self.variable.gaussian_log_prob(x_t, self._reference_variance(time))

    def _reference_variance(self, t: Tensor) -> Tensor:
        return self.alpha(t).square() + self.variance(t)

    def _noise_like(self, x: Tensor, count: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        batch = (*count, *self.batch_shape(x))
        return self.variable.noise(batch, generator=generator, dtype=x.dtype, device=x.device)

    # ------------------------------------------------------------------ terms of processes

    def velocity(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        """u_{t|r}(x_t | x_r), affine in x_r: at x_r = E[x_r | x_t] it is the marginal velocity."""
        t, r = self.times(t, r, x_t)
        a = self.alpha(t) / self.alpha(r)
        return self.alpha_dot(t) / self.alpha(r) * x_r + 0.5 * self.log_variance_dot(t, r) * (x_t - a * x_r)

    def score(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        """∇ log p_{t|r}(x_t | x_r), affine in x_r."""
        t, r = self.times(t, r, x_t)
        return (self.alpha(t) / self.alpha(r) * x_r - x_t) / self.variance(t, r)

    def diffusion(self, t: Tensor) -> Tensor:
        """g_t² = 2σ²(α̇/α − σ̇/σ), the diffusion whose time reversal has the kernels p_{t|r}; infinite where α_t = 0."""
        return self.variance(t) * (2 * self.alpha_dot(t) / self.alpha(t) - self.log_variance_dot(t))

    def bridge(self, x_t: Tensor, x_1: Tensor, t: Time, r: Time) -> tuple[Tensor, Tensor, Tensor]:
        """Returns mean, V and B of p_{r|1,t}(x_r | x_1, x_t) = N(A x_t + B x_1, V I); V and B broadcast over sites."""
        a, b, variance = self._bridge_coefficients(*self.times(t, r, x_t))
        return a * x_t + b * x_1, variance, b

    def _bridge_coefficients(self, t: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns A, B and V."""
        sigma2_t, sigma2_r, s2 = self.variance(t), self.variance(r), self.variance(t, r)
        a = self.alpha(t) / self.alpha(r)
        return a * sigma2_r / sigma2_t, self.alpha(r) * s2 / sigma2_t, sigma2_r * s2 / sigma2_t

    # ------------------------------------------------------------------ from weighted end points to a denoiser

    def average(self, x_r: Tensor, weights: Tensor) -> Tensor:
        """Σ_k w_k x_r^k over the first axis of end points [K, ..., *shape] with weights [K, ...]."""
        return (weights.reshape((*weights.shape, *(1,) * len(self.variable.latent_shape))) * x_r).sum(0)

    def denoised(self, x_t: Tensor, average: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        """E[x_1 | x_t] from the average E[x_r | x_t]: (average − A x_t)/B."""
        a, b, _ = self._bridge_coefficients(*self.times(t, r, x_t))
        return (average - a * x_t) / b

    def denoised_by_score(self, x_t: Tensor, average: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        """E[x_1 | x_t] = (x_t + σ_t² ∇ log p_t(x_t))/α_t with ∇ log p_t(x_t) = (α_r/α_t)·average.

        `average` is E[∇ log p_r(x_r) | x_t].
        """
        t, r = self.times(t, r, x_t)
        alpha = self.alpha(t)
        return (x_t + self.variance(t) * self.alpha(r) / alpha * average) / alpha


class CondOT(GaussianPath):
    """Conditional optimal transport: α_t = t, σ_t = 1 − t."""

    def alpha(self, t: Tensor) -> Tensor:
        return t

    def alpha_dot(self, t: Tensor) -> Tensor:
        return torch.ones_like(t)

    def variance(self, t: Tensor, r: Tensor | float = 1.0) -> Tensor:
        return (r - t) * (r * (1 - t) + t * (1 - r)) / r**2

    def log_variance_dot(self, t: Tensor, r: Tensor | float = 1.0) -> Tensor:
        return (1 - 2 * r) / (r * (1 - t) + t * (1 - r)) - 1 / (r - t)


class VE(GaussianPath):
    """Variance exploding: α = 1, σ_t² = σ_min² ((σ_max/σ_min)^{2(1−t)} − 1), in units of the variable's scale."""

    singular_at_start = False

    def __init__(self, variable: Real, *, sigma_min: float = 0.01, sigma_max: float = 2.0) -> None:
        super().__init__(variable)
        if not 0 < sigma_min < sigma_max:
            raise ValueError(f"VE needs 0 < sigma_min < sigma_max, got sigma_min={sigma_min}, sigma_max={sigma_max}")
        self.sigma_min, self.sigma_max = sigma_min, sigma_max
        self._rate = 2 * math.log(sigma_max / sigma_min)  # d/dt log of the growing part

    def alpha(self, t: Tensor) -> Tensor:
        return torch.ones_like(t)

    def alpha_dot(self, t: Tensor) -> Tensor:
        return torch.zeros_like(t)

    def variance(self, t: Tensor, r: Tensor | float = 1.0) -> Tensor:
        r = r if isinstance(r, Tensor) else torch.full_like(t, r)  # filled on the device, not copied there
        return self.sigma_min**2 * torch.exp(self._rate * (1 - r)) * torch.expm1(self._rate * (r - t))

    def log_variance_dot(self, t: Tensor, r: Tensor | float = 1.0) -> Tensor:
        return self._rate / torch.expm1(-self._rate * (r - t))


class Foellmer(GaussianPath):
    """Brownian motion from the origin: α_t = t, σ_t² = t(1 − t). Its diffusion is g² = 1 at all times.

    At t = 0 every path is at the origin, so simulations begin a little later, from N(0, t).
    """

    earliest = 0.01

    def alpha(self, t: Tensor) -> Tensor:
        return t

    def alpha_dot(self, t: Tensor) -> Tensor:
        return torch.ones_like(t)

    def variance(self, t: Tensor, r: Tensor | float = 1.0) -> Tensor:
        return t * (r - t) / r

    def log_variance_dot(self, t: Tensor, r: Tensor | float = 1.0) -> Tensor:
        return 1 / t - 1 / (r - t)


class VP(GaussianPath):
    """Variance preserving: α_t = sin(πt/2), σ_t = cos(πt/2)."""

    def alpha(self, t: Tensor) -> Tensor:
        return torch.sin(HALF_PI * t)

    def alpha_dot(self, t: Tensor) -> Tensor:
        return HALF_PI * torch.sin(HALF_PI * (1 - t))

    def variance(self, t: Tensor, r: Tensor | float = 1.0) -> Tensor:
        r = r if isinstance(r, Tensor) else torch.full_like(t, r)  # filled on the device, not copied there
        return torch.sin(HALF_PI * (r - t)) * self._sin_of_sum(t, r) / torch.sin(HALF_PI * r).square()

    def log_variance_dot(self, t: Tensor, r: Tensor | float = 1.0) -> Tensor:
        r = r if isinstance(r, Tensor) else torch.full_like(t, r)  # filled on the device, not copied there
        growing = torch.cos(HALF_PI * (r + t)) / self._sin_of_sum(t, r)
        return HALF_PI * (growing - 1 / torch.tan(HALF_PI * (r - t)))

    @staticmethod
    def _sin_of_sum(t: Tensor, r: Tensor) -> Tensor:
        """sin(π(r + t)/2) from 1 − t and 1 − r, so that it does not cancel near t = r = 1."""
        sine, cosine = torch.sin(HALF_PI * r), torch.sin(HALF_PI * (1 - r))
        return sine * torch.sin(HALF_PI * (1 - t)) + cosine * torch.sin(HALF_PI * t)
