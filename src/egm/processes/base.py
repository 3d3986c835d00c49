"""Processes: Markov processes that follow one variable's path, each defined by its generator L. On real variables

    L f(x) = drift·∇f(x) + ½ g² Δf(x) + Σ_i ∫ (f(x with x_i = y) − f(x)) k_i(y | x) dy,

and on symbols L f(x) = Σ_i Σ_y rate_i(y | x) (f(x with x_i = y) − f(x)). Generators are linear in their parameters, so
averaging the *conditional* generators F_{t|r} over the law of the end point x_r given x_t gives the *marginal* one.

The marginal generators of flow, diffusion and discrete jump depend on the denoiser alone (E[x_1 | x_t] for reals,
p(x_1 | x_t) for symbols), that of the continuous jump on its averaged kernel; this is the `prediction` of a network. It
is trained with a Bregman divergence D(estimate, prediction), whose minimiser is the mean of the noisy estimates; each
kind of prediction has its own divergence (`Process.loss`).
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
    """Options of `Process.loss`.

    Attributes:
        real: quantity compared for means of real variables: the rescaled "denoiser" or the drift of the "generator".
        symbols: loss of tables of symbols, "cross-entropy" or "squared".
        clip: largest norm of the regression target of a mean.
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
        kernel: jump rate of each coordinate into each bin, [..., *shape, bins]; None for no jumps.
        edges: edges of the bins, [bins + 1]; a jump lands uniformly inside its bin.
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
            raise ValueError("only one of the added generators may have a jump kernel: each kernel has its own bins")
        kernel, edges = (other.kernel, other.edges) if self.kernel is None else (self.kernel, self.edges)
        return RealGenerator(self.drift + other.drift, self.diffusion + other.diffusion, kernel, edges)


class Process(ABC, Generic[G]):
    """A process on one path; G is the type of its generator (`RealGenerator`, or a tensor of rates).

    Attributes:
        path: the path it follows.
        has_density: whether `log_step` is implemented.
        deterministic: whether a step is a differentiable map without noise, and the generator is a drift alone. Path
            weights then use the determinant of the map, and the process cannot be run backwards.
        widened: whether `step` and `log_step` take `error`, the error variance of the prediction.
        predicts_mean: whether the prediction is the mean E[x_1 | x_t] of a real variable.
        bootstraps: whether `conditional` supports r < 1, such that its mean over x_r is F_{t|1}; EGM-BS needs this.
    """

    path: Any
    has_density: bool = False
    deterministic: bool = False
    widened: bool = False
    predicts_mean: bool = False
    bootstraps: bool = True

    @property
    def reveals(self) -> bool:
        """Whether sites may be revealed one at a time, with values drawn from the predicted table (first hitting)."""
        return False

    @property
    def expansion(self) -> int:
        """Numbers that `average` holds at once for each number of an end point; used to bound memory."""
        return 1

    @property
    @abstractmethod
    def output_shape(self) -> tuple[int, ...]:
        """Trailing shape of a network's output for this process."""

    @abstractmethod
    def link(self, output: Tensor) -> Tensor:
        """Returns the prediction from an output: means unchanged, logits through softmax, log-rates through exp."""

    @abstractmethod
    def conditional(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> G:
        """Returns F_{t|r}, the generator at x_t of the path p_{t|r}(· | x_r) towards a known end point."""

    @abstractmethod
    def marginal(self, x_t: Tensor, prediction: Tensor, t: Time) -> G:
        """Returns F_t, the generator at x_t from a prediction (denoiser or kernel)."""

    @abstractmethod
    def average(self, x_t: Tensor, x_r: Tensor, weights: Tensor, t: Time) -> Tensor:
        """Returns the weighted sum over end points [K, ...] of the quantity whose mean is the prediction."""

    @abstractmethod
    def prediction(self, x_t: Tensor, average: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        """Returns the prediction (denoiser or kernel) from an `average` over x_r with weights that sum to one."""

    @abstractmethod
    def step(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws x_r by one simulation step from t to r with the prediction held fixed."""

    def log_step(self, x_r: Tensor, x_t: Tensor, prediction: Tensor, t: Time, r: Time) -> Tensor:
        """Returns log K(x_r | x_t) of `step`, shape [...]; the batches of x_r and x_t broadcast."""
        raise NotImplementedError(f"the step of {type(self).__name__} has no density")

    @abstractmethod
    def euler(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws x_r by one Euler step from t to r with the generator frozen at t."""

    def tau_leap(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws x_r by one step in which frozen rates act for the whole step; for reals this is the Euler step."""
        return self.euler(x_t, prediction, t, r, generator=generator)

    def finite_at(self, t: Tensor) -> bool:
        """Returns whether the generator is finite at t < 1 (on the host); otherwise no Euler step can begin at t."""
        return True

    @abstractmethod
    def loss(
        self, x_t: Tensor, t: Tensor, estimate: Tensor, output: Tensor, *, by: Loss = PLAIN, sites: Tensor | None = None
    ) -> Tensor:
        """Returns the regression loss of an output, [...]; its minimum is at the mean estimate.

        Args:
            x_t: states [..., *shape] at the times t.
            t: [...].
            estimate: regression target of the prediction (`Estimate.prediction`).
            output: output of the network, before `link`.
            by: options of the loss; each process uses the options of its kind of prediction.
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
    """Draws one Euler step of length h (broadcast over x_t): drift, noise, then at most one jump per coordinate."""
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
    """Draws an index from each (unnormalised) table [..., n] by inversion; entries of weight zero are never drawn."""
    cumulative = table.cumsum(-1)
    u = torch.rand(table.shape[:-1], generator=generator, dtype=table.dtype, device=table.device)
    # clamp: a table that sums to zero (no jump can happen) still yields a legal index
    return (cumulative <= (u * cumulative[..., -1])[..., None]).sum(-1).clamp(max=table.shape[-1] - 1)
