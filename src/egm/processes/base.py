"""What a process is: a Markov process that follows one variable's path, given by its generator. On real variables

    L f(x) = drift·∇f(x) + ½ g² Δf(x) + Σ_i ∫ (f(x with x_i = y) − f(x)) k_i(y | x) dy,

and on symbols L f(x) = Σ_i Σ_y rate_i(y | x) (f(x with x_i = y) − f(x)). Generators are linear in their parameters, so
averaging the *conditional* generators F_{t|r} over the law of the end point x_r given x_t gives the *marginal* one.

Flow, diffusion and discrete jump depend on the end point through the denoiser alone (E[x_1 | x_t] for reals,
p(x_1 | x_t) for symbols), the continuous jump through its kernel; that is the `prediction` a network makes. It is
trained by a Bregman divergence D(estimate, prediction), which the mean of noisy estimates minimises; each kind of
prediction has its own (`Process.loss`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from egm.paths.base import Time
from egm.paths.gaussian import GaussianPath
from egm.spaces.variables import Real

G = TypeVar("G")
RealLoss: TypeAlias = Literal["denoiser", "generator"]
SymbolLoss: TypeAlias = Literal["cross-entropy", "squared"]


@dataclass(frozen=True)
class Loss:
    """What `Process.loss` compares.

    Attributes:
        real: for means of real variables, the rescaled "denoiser" or the drift of the "generator".
        symbols: for tables of symbols, "cross-entropy" or "squared".
        clip: largest norm of what a mean is regressed on.
    """

    real: RealLoss = "denoiser"
    symbols: SymbolLoss = "cross-entropy"
    clip: float | None = None


PLAIN = Loss()


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
        deterministic: whether a step is a differentiable map without noise, and the generator a drift alone. Path
            weights then take the determinant of the map, and the process is not run backwards.
        widened: whether `step` and `log_step` take `error`, the variance of the prediction's error.
        predicts_mean: whether the prediction is the mean E[x_1 | x_t] of a real variable.
        bootstraps: whether `conditional` knows r < 1, with F_{t|1} as its mean over x_r; EGM-BS needs that.
    """

    path: Any
    has_density: bool = False
    deterministic: bool = False
    widened: bool = False
    predicts_mean: bool = False
    bootstraps: bool = True

    @property
    def reveals(self) -> bool:
        """Whether sites may be revealed one at a time, by the table that is predicted (first hitting)."""
        return False

    @property
    def expansion(self) -> int:
        """How many numbers `average` makes at once of each number of an end point; memory is planned by it."""
        return 1

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
    def loss(
        self,
        x_t: Tensor,
        t: Tensor,
        estimate: Tensor,
        output: Tensor,
        *,
        by: Loss = PLAIN,
        sites: Tensor | None = None,
    ) -> Tensor:
        """The regression loss of a network's output, [...]: it is least where the prediction is the mean estimate.

        Args:
            x_t: states [..., *shape] at the times t.
            t: [...].
            estimate: what the prediction is regressed on (`Estimate.prediction`).
            output: what the network gives, before `link`.
            by: what is compared; each process takes the options that concern its prediction.
            sites: weights [..., *shape] of the sites of a symbol, see `DiscreteJump.loss`.
        """


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
