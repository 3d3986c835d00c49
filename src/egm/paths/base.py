"""Base class of paths: for one variable, backward kernels p_{t|r}(x_t | x_r), 0 ≤ t < r ≤ 1, that compose,

    p_{t|q}(x_t | x_q) = ∫ p_{t|r}(x_t | x_r) p_{r|q}(x_r | x_q) dx_r        (Chapman–Kolmogorov),

and two proposals for importance sampling, with p^ref_r the law of x_r if x_1 follows the reference law:

    flat        q_{r|t}(x_r | x_t) = p_{t|r}(x_t | x_r) / Z_{r|t}(x_t)
    reference   q^ref_{r|t}(x_r | x_t) = p_{t|r}(x_t | x_r) p^ref_r(x_r) / p^ref_t(x_t)

Time runs from 0 (prior) to 1 (target). Paths act on latent coordinates (`egm.spaces.variables`); t and r are numbers,
or tensors that broadcast to the batch shape of the states. Results are undefined outside 0 ≤ t < r ≤ 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from egm.spaces.space import reference_draw
from egm.spaces.variables import Categorical, Real

Time: TypeAlias = float | Tensor
Proposal: TypeAlias = Literal["flat", "reference"]
Draw: TypeAlias = Callable[[int, torch.Generator | None], Tensor]
V = TypeVar("V", Real, Categorical)


class Path(ABC, Generic[V]):
    """The path of one variable: its backward kernels and proposals.

    Attributes:
        earliest: the first time at which the prior has a density; simulations begin there or later.
        singular_at_start: whether flat proposals, velocities or rates diverge at t = 0, so that training and
            simulations begin a little later by default.
        reveals: whether sites are masked and revealed one by one, each at a time τ with P(τ ≤ t) = κ_t; such a path
            is a `DiscretePath`.
    """

    variable: V
    earliest: float = 0.0
    singular_at_start: bool = True
    reveals: bool = False

    @abstractmethod
    def sample(self, x_r: Tensor, t: Time, r: Time = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
        """Draws x_t ~ p_{t|r}(· | x_r)."""

    @abstractmethod
    def log_prob(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        """log p_{t|r}(x_t | x_r), shape [...]."""

    @abstractmethod
    def proposer(self, x_t: Tensor, t: Time, r: Time = 1.0, *, law: Proposal = "flat") -> Draw:
        """Returns a function draw(count, generator) of `count` proposals x_r, [count, ..., *latent_shape].

        They follow q_{r|t}(· | x_t), or q^ref_{r|t}(· | x_t), the law of x_r given x_t if x_1 ~ p_ref.
        """

    @abstractmethod
    def log_normaliser(self, x_t: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        """log Z_{r|t}(x_t) = log ∫ p_{t|r}(x_t | x_r) dx_r, shape [...]."""

    @abstractmethod
    def average(self, x_r: Tensor, weights: Tensor) -> Tensor:
        """Returns the sum of end points [K, ..., *shape] (symbols: of their one-hots) with weights [K, ...]."""

    @abstractmethod
    def denoised(self, x_t: Tensor, average: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        """Returns the denoiser, E[x_1 | x_t] or the table p(x_1 | x_t), which is linear in `average`.

        `average` is E[x_r | x_t] or the table of x_r given x_t.
        """

    @abstractmethod
    def prior_log_prob(self, x_t: Tensor, t: Time = 0.0) -> Tensor:
        """Log-density of `prior_sample`, shape [...]."""

    def prior_sample(
        self,
        batch: Sequence[int],
        t: Time = 0.0,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draws from ∫ p_{t|1}(· | x_1) p_ref(x_1) dx_1, the initial law of a simulation that begins at t."""
        x_1 = reference_draw(self.variable, batch, generator=generator, dtype=dtype, device=device)
        return self.sample(x_1, t, generator=generator)

    def batch_shape(self, x: Tensor) -> torch.Size:
        """Returns the leading shape of a value of this path's variable."""
        return x.shape[: x.ndim - len(self.variable.latent_shape)]

    def over_sites(self, t: Time, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Returns t as a float tensor that broadcasts against x: one trailing axis for each axis of a value.

        Numbers are put on x's device; tensors must already be there. The default dtype is that of x, or of t if x
        holds symbols.
        """
        dtype = dtype or _time_dtype(x, t)
        # torch.full fills on the device, where torch.tensor would copy from the host
        t = t.to(dtype) if isinstance(t, Tensor) else torch.full((), t, dtype=dtype, device=x.device)
        return t.reshape((*t.shape, *(1,) * len(self.variable.latent_shape)))

    def times(self, t: Time, r: Time, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns `over_sites` of both times, in the dtype of the first floating-point tensor among x, t and r."""
        dtype = _time_dtype(x, t, r)
        return self.over_sites(t, x, dtype), self.over_sites(r, x, dtype)

    def over_batch(self, t: Time, x: Tensor) -> Tensor:
        """Returns t as a float tensor that broadcasts against the batch of x."""
        t = self.over_sites(t, x)
        return t.reshape(t.shape[: t.ndim - len(self.variable.latent_shape)])


def _time_dtype(*values: Time) -> torch.dtype:
    floating = [value.dtype for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    return floating[0] if floating else torch.get_default_dtype()
