"""What a process is: a Markov process that follows one variable's path, given by its generator. On real variables

    L f(x) = drift·∇f(x) + ½ g² Δf(x) + Σ_i ∫ (f(x with x_i = y) − f(x)) k_i(y | x) dy,

and on symbols L f(x) = Σ_i Σ_y rate_i(y | x) (f(x with x_i = y) − f(x)). Generators are linear in their parameters, so
averaging the *conditional* generators F_{t|r} over the law of the end point x_r given x_t gives the *marginal* one.

Flow, diffusion and discrete jump depend on the end point through the denoiser alone (E[x_1 | x_t] for reals,
p(x_1 | x_t) for symbols), the continuous jump through its kernel; that is the `prediction` a network makes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from egm.paths.base import Time
from egm.paths.gaussian import GaussianPath
from egm.spaces.variables import Real

G = TypeVar("G")


@dataclass(frozen=True)
class RealGenerator:
    """Parameters of a generator on a real variable.

    Attributes:
        drift: [..., *shape].
        diffusion: g², broadcasts over `drift`.
        kernel: rates of jumping, coordinate by coordinate, into each bin, [..., *shape, bins]; None for no jumps.
        edges: the bins' edges, [bins + 1]; a jump lands uniformly inside its bin.
    """

    drift: Tensor
    diffusion: Tensor
    kernel: Tensor | None = None
    edges: Tensor | None = None

    def __rmul__(self, weight: float) -> RealGenerator:
        kernel = None if self.kernel is None else weight * self.kernel
        return RealGenerator(weight * self.drift, weight * self.diffusion, kernel, self.edges)

    def __add__(self, other: RealGenerator) -> RealGenerator:
        if self.kernel is not None and other.kernel is not None:
            raise ValueError("only one of the generators that are added may jump: each has bins of its own")
        kernel, edges = (other.kernel, other.edges) if self.kernel is None else (self.kernel, self.edges)
        return RealGenerator(self.drift + other.drift, self.diffusion + other.diffusion, kernel, edges)


class Process(ABC, Generic[G]):
    """A process on one path; G is the type of its generator (`RealGenerator`, or a tensor of rates).

    Attributes:
        path: the path it follows.
        has_density: whether `log_step` exists.
    """

    path: Any
    has_density: bool = False

    @property
    @abstractmethod
    def output_shape(self) -> tuple[int, ...]:
        """Trailing shape of what a network gives for this process."""

    @abstractmethod
    def link(self, output: Tensor) -> Tensor:
        """The prediction from a network's output: means as they are, logits through softmax, log-rates through exp."""

    @abstractmethod
    def conditional(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> G:
        """F_{t|r}: the generator at x_t of the path p_{t|r}(· | x_r) towards a known end point."""

    @abstractmethod
    def marginal(self, x_t: Tensor, prediction: Tensor, t: Time) -> G:
        """F_t: the generator at x_t from a prediction (denoiser or kernel)."""

    @abstractmethod
    def average(self, x_t: Tensor, x_r: Tensor, weights: Tensor, t: Time) -> Tensor:
        """Weighted sum over the first axis of what the prediction averages, for end points [K, ...]."""

    @abstractmethod
    def prediction(self, x_t: Tensor, average: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        """The prediction (denoiser or kernel) from an average over end points at r with weights that sum to one."""

    @abstractmethod
    def step(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """One simulation step from t to r with the prediction held fixed."""

    def log_step(self, x_r: Tensor, x_t: Tensor, prediction: Tensor, t: Time, r: Time) -> Tensor:
        """log K(x_r | x_t) of `step`, shape [...]; the batches of x_r and x_t broadcast."""
        raise NotImplementedError(f"the step of {type(self).__name__} has no density")

    @abstractmethod
    def euler(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """One Euler step from t to r with the generator frozen at t."""

    def tau_leap(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """One step from t to r in which frozen rates act for the whole step; for reals this is the Euler step."""
        return self.euler(x_t, prediction, t, r, generator=generator)

    def finite_at(self, t: Tensor) -> bool:
        """Whether the generator is finite at t < 1 (a number on the host): elsewhere no Euler step can begin."""
        return True

    @abstractmethod
    def divergence(self, estimate: G, prediction: G) -> Tensor:
        """The Bregman divergence D(estimate, prediction) that trains the process, shape [...]."""


class RealProcess(Process[RealGenerator]):
    """A process on a Gaussian path."""

    def __init__(self, path: GaussianPath) -> None:
        if not isinstance(path, GaussianPath):
            raise TypeError(f"{type(self).__name__} follows a Gaussian path (CondOT, VE, VP), got {path!r}")
        self.path = path

    def euler(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        start, end = self.path.times(t, r, x_t)
        return euler_step(self.marginal(x_t, prediction, t), x_t, end - start, self.path.variable, generator=generator)

    def divergence(self, estimate: RealGenerator, prediction: RealGenerator) -> Tensor:
        return real_divergence(estimate, prediction, self.path.variable)


class DenoisingProcess(RealProcess):
    """A process on a Gaussian path whose prediction is the denoiser E[x_1 | x_t]."""

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


class BridgingProcess(DenoisingProcess):
    """A denoising process whose steps are Gaussian: the bridge towards x_1, averaged over x_1 ~ N(x̂_1, err I).

    With the bridge N(M x_t + B x_1, V I), the step is K(x_r | x_t) = N(M x_t + B x̂_1, (V + B² err) I).
    """

    has_density = True

    @abstractmethod
    def bridge(self, x_t: Tensor, x_1: Tensor, t: Time, r: Time) -> tuple[Tensor, Tensor, Tensor]:
        """The law of x_r given x_t, on the way to a known x_1: its mean, V and B (the last two broadcast over sites).

        For x_t ~ p_{t|1}(· | x_1) it has to give x_r ~ p_{r|1}(· | x_1).
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

    def _moments(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, error: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        mean, variance, b = self.bridge(x_t, self.path.variable.project(prediction), t, r)
        each = isinstance(error, Tensor) and error.ndim == x_t.ndim
        return mean, variance + b.square() * (error if each else self.path.over_sites(error, x_t))


def euler_step(
    parameters: RealGenerator,
    x_t: Tensor,
    h: Tensor | float,
    variable: Real,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One Euler step of length h (broadcasting over x_t): drift, noise, then at most one jump a coordinate."""
    batch = x_t.shape[: x_t.ndim - len(variable.latent_shape)]
    noise = variable.noise(batch, generator=generator, dtype=x_t.dtype, device=x_t.device)
    x = x_t + h * parameters.drift + (h * parameters.diffusion).sqrt() * noise
    if parameters.kernel is None or parameters.edges is None:
        return x
    rate = parameters.kernel.sum(-1)
    jumps, inside = torch.rand((2, *x.shape), generator=generator, dtype=x.dtype, device=x.device)
    bin_ = sample_table(parameters.kernel, generator=generator)
    lower, upper = parameters.edges[bin_], parameters.edges[bin_ + 1]
    return torch.where(jumps < -torch.expm1(-h * rate), lower + inside * (upper - lower), x)


def sample_table(table: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """Draw an index from each (unnormalised) table [..., n] by inversion; entries of weight zero are never drawn."""
    cumulative = table.cumsum(-1)
    u = torch.rand(table.shape[:-1], generator=generator, dtype=table.dtype, device=table.device)
    # clamp: a table that sums to zero (no jump can happen) still yields a legal index
    return (cumulative <= (u * cumulative[..., -1])[..., None]).sum(-1).clamp(max=table.shape[-1] - 1)


def generalised_kl(estimate: Tensor, prediction: Tensor, axes: int) -> Tensor:
    """Σ a log(a/b) − a + b over the last `axes` axes, a = estimate ≥ 0, b = prediction ≥ 0 (zero at a = b = 0)."""
    positive = estimate > 0
    ratio = torch.where(positive, estimate, 1.0).log() - torch.where(positive, prediction, 1.0).log()
    return _sum_last(estimate * ratio - estimate + prediction, axes)


def real_divergence(estimate: RealGenerator, prediction: RealGenerator, variable: Real) -> Tensor:
    """‖drift − drift‖², plus the generalised KL of the jump kernels where there are any, shape [...]."""
    axes = len(variable.latent_shape)
    total = _sum_last((estimate.drift - prediction.drift).square(), axes)
    if estimate.kernel is None and prediction.kernel is None:
        return total
    if estimate.kernel is None or prediction.kernel is None:
        raise ValueError("one generator jumps and the other does not; both must come from the same kind of process")
    return total + generalised_kl(estimate.kernel, prediction.kernel, axes + 1)


def _sum_last(values: Tensor, axes: int) -> Tensor:
    return values.flatten(values.ndim - axes).sum(-1) if axes else values
