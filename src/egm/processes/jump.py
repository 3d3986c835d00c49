"""Continuous jump: every coordinate of a Gaussian path jumps by itself. Towards a known x_1, with p = p_{t|1}(· | x_1),

    rate λ(x) = [∂_t log p(x)]_−,   law J(y) = [∂_t p(y)]_+ / ∫ [∂_t p]_+,   kernel k(y | x) = λ(x) J(y).

With u = (x − α x_1)/σ, a = α̇ x_1/σ and b = σ̇/σ < 0:  ∂_t log p = a u + b (u² − 1), which is positive between the roots
u₋ = −1/u₊ of b u² + a u − b, and ∂_t p du has the antiderivative G(u) = −φ(u)(a + b u). So the mass of J in any bin has
a closed form: the difference of G at the ends of the bin, clipped to [u₋, u₊].

The loss of the binned kernel is Σ a log(a/b) − a + b over the bins, with a the estimate and b the prediction, per
coordinate and in units of the path's rate ½|d/dt log σ_t²|.

There is no consistent F_{t|r} with r < 1 for this process: averaging [·]_− and [·]_+ over x_r does not reproduce
the positive parts at x_1, so the premise of the bootstrap theorem does not hold.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from egm.paths.base import Time
from egm.paths.gaussian import GaussianPath
from egm.processes.base import PLAIN, Loss, RealGenerator, RealProcess


class Jump(RealProcess):
    """Jumps along a Gaussian path; its prediction is the binned kernel E[k | x_t], [..., *shape, bins], ≥ 0.

    Args:
        path: a Gaussian path of a variable that is not centred (coordinates move one at a time).
        bins: number of bins of each coordinate's kernel.
        limit: bins cover [−limit, limit] in latent units, by default four standard deviations of the prior; mass
            beyond the limit is counted in the outermost bins.
    """

    bootstraps = False

    def __init__(self, path: GaussianPath, *, bins: int = 64, limit: float | None = None) -> None:
        super().__init__(path)
        if path.variable.centered:
            raise ValueError(
                "the continuous jump moves one coordinate at a time and leaves the centred subspace;"
                " use Flow or Diffusion for centered variables"
            )
        times = torch.linspace(0.01, 0.99, 99, dtype=torch.float64, device="cpu")
        if not bool((path.log_variance_dot(times) < 0).all()):
            raise ValueError(
                f"the continuous jump follows paths on which σ_t falls, and along {type(path).__name__} it rises;"
                " use CondOT, VE or VP, or a Diffusion"
            )
        if bins < 2:
            raise ValueError(f"bins must be at least 2, got {bins}")
        if limit is None:
            start = torch.zeros((), dtype=torch.float64)
            limit = 4 * float((path.alpha(start).square() + path.variance(start)).sqrt())
        if not limit > 0:
            raise ValueError(f"limit must be positive, got {limit}")
        self.bins, self.limit = bins, limit

    @property
    def expansion(self) -> int:
        return self.bins

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (*self.path.variable.latent_shape, self.bins)

    def link(self, output: Tensor) -> Tensor:
        return torch.exp(output)

    def conditional(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> RealGenerator:
        _require_end(r)
        return self.marginal(x_t, self.kernel(x_t, x_r, t), t)

    def marginal(self, x_t: Tensor, prediction: Tensor, t: Time) -> RealGenerator:
        still = torch.zeros_like(self.path.over_sites(t, x_t))
        return RealGenerator(torch.zeros_like(x_t), still, prediction, self.edges(x_t))

    def edges(self, like: Tensor) -> Tensor:
        """Returns the edges of the bins, [bins + 1]."""
        return torch.linspace(-self.limit, self.limit, self.bins + 1, dtype=like.dtype, device=like.device)

    def kernel(self, x_t: Tensor, x_1: Tensor, t: Time) -> Tensor:
        """Returns λ(x_t) times the mass of J in each bin, [..., *shape, bins]."""
        path, t = self.path, self.path.over_sites(t, x_t)
        sigma, b = path.variance(t).sqrt(), 0.5 * path.log_variance_dot(t)
        a = path.alpha_dot(t) * x_1 / sigma
        mean = path.alpha(t) * x_1
        u = (x_t - mean) / sigma
        rate = (-(a * u + b * (u.square() - 1))).clamp(min=0)

        # The roots −1/far and far (or mirrored). Beyond 40 standard deviations φ is zero; a = b = 0 is a path at rest.
        far = ((a.abs() + (a.square() + 4 * b.square()).sqrt()) / (2 * b.abs())).nan_to_num(nan=1.0, posinf=torch.inf)
        near, far = 1 / far, far.clamp(max=40.0)
        low = torch.where(a > 0, -near, -far)[..., None]
        high = torch.where(a > 0, far, near)[..., None]
        ends = (self.edges(x_t)[1:-1] - mean[..., None]) / sigma[..., None]
        ends = torch.cat([low, ends.clamp(low, high), high], dim=-1)
        density = torch.exp(-0.5 * ends.square()) / math.sqrt(2 * math.pi)
        mass = (-density * (a[..., None] + b[..., None] * ends)).diff(dim=-1).clamp(min=0)
        total = mass.sum(-1, keepdim=True)
        return torch.where(total > 0, rate[..., None] * mass / total, 0.0)

    def average(self, x_t: Tensor, x_r: Tensor, weights: Tensor, t: Time) -> Tensor:
        weights = weights.reshape((*weights.shape, *(1,) * (len(self.path.variable.latent_shape) + 1)))
        return (weights * self.kernel(x_t, x_r, t)).sum(0)

    def prediction(self, x_t: Tensor, average: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        _require_end(r)
        return average

    def step(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.euler(x_t, prediction, t, r, generator=generator)

    def loss(
        self, x_t: Tensor, t: Tensor, estimate: Tensor, output: Tensor, *, by: Loss = PLAIN, sites: Tensor | None = None
    ) -> Tensor:
        """Returns the generalised KL divergence of the kernels per coordinate, [...]."""
        axes = len(self.path.variable.latent_shape) + 1
        rate = 0.5 * self.path.log_variance_dot(self.path.over_batch(t, x_t)).abs()
        return generalised_kl(estimate, self.link(output), axes) / (rate * self.path.variable.dimension)


def _require_end(r: Time) -> None:
    if not (isinstance(r, int | float) and r == 1):
        raise ValueError(
            "the continuous jump has no consistent conditional generator for r < 1, so it cannot be bootstrapped;"
            " condition on r = 1, passed as a number (method 'egm'), or use a Flow or Diffusion"
        )


def generalised_kl(estimate: Tensor, prediction: Tensor, axes: int) -> Tensor:
    """Returns Σ a log(a/b) − a + b over the last `axes` axes; a = estimate ≥ 0, b = prediction ≥ 0 (0 at a = b = 0)."""
    positive = estimate > 0
    ratio = torch.where(positive, estimate, 1.0).log() - torch.where(positive, prediction, 1.0).log()
    values = estimate * ratio - estimate + prediction
    return values.flatten(values.ndim - axes).sum(-1)
