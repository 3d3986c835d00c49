"""Real and categorical variables: shapes, ranges, constraints and the latent coordinates that paths act on.

For a real variable, with latent z, location, scale and (where constrained) a bijection onto the support:

    y = loc + scale · z,    x = bijection(y),    log |∂x/∂z| = Σ log scale + log |∂x/∂y|.

Categorical variables are their own latents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import cast

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints
from torch.distributions.transforms import Transform

from egm.spaces.declarations import (
    Constraint,
    as_shape,
    check_constraint,
    nested,
    number_or_array,
)
from egm.util.cached_tensors import Nested, cached_tensor, constant


def check_trailing_shape(x: Tensor, shape: tuple[int, ...], name: str) -> None:
    """Raises unless x has the shape [..., *shape]."""
    if x.ndim < len(shape) or tuple(x.shape[x.ndim - len(shape) :]) != shape:
        raise ValueError(f"variable '{name}' needs shape [..., {', '.join(map(str, shape))}], got {tuple(x.shape)}")


def require(condition: bool, name: str, requirement: str) -> None:
    """Raises unless the values of the variable `name` satisfy a condition."""
    if not condition:
        raise ValueError(f"variable '{name}' {requirement}")


@dataclass(frozen=True, repr=False)
class Real:
    """A real array variable.

    Args:
        shape: shape of one value; an int means one axis.
        loc, scale: rough centre and spread of the (unconstrained) variable: a number, or an array that broadcasts
            to the latent shape.
        centered: whether the first axis counts particles with zero centre of mass. The variable then has (n−1)·dim
            degrees of freedom, and densities refer to orthonormal coordinates of that subspace.
        constraint: None, "positive", an interval (lo, hi), or "simplex" (the last axis is non-negative and sums to
            one; densities refer to all but its last entry).

    >>> Real(2, scale=3.0)
    Real(shape=(2,), scale=3.0)
    >>> Real(2).dimension, Real((4, 2), centered=True).dimension, Real(3, constraint="simplex").dimension
    (2, 6, 2)
    """

    shape: tuple[int, ...]
    loc: Nested = 0.0
    scale: Nested = 1.0
    centered: bool = False
    constraint: Constraint = None

    def __init__(
        self,
        shape: int | Sequence[int],
        loc: object = 0.0,
        scale: object = 1.0,
        centered: bool = False,
        constraint: Constraint = None,
    ) -> None:
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "shape", as_shape(shape))
        set_field(self, "centered", bool(centered))
        set_field(self, "constraint", check_constraint(constraint, self.shape))
        set_field(self, "loc", number_or_array("loc", loc, self.latent_shape))
        set_field(self, "scale", number_or_array("scale", scale, self.latent_shape))
        if not bool((torch.as_tensor(self.scale) > 0).all()):
            raise ValueError(f"scale must be positive, got {scale}")
        if self.centered:
            if len(self.shape) < 2 or self.shape[0] < 2:
                raise ValueError(
                    f"centered=True needs a shape (particles, dimension) with at least two particles, got {self.shape}"
                )
            if self.constraint is not None or self.loc != 0.0 or not isinstance(self.scale, float):
                raise ValueError("centered=True needs loc=0, one number for scale and no constraint")

    def __repr__(self) -> str:
        shown = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return f"Real({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of one latent value: `shape`, except that a simplex of k entries has k−1 latent entries."""
        return (*self.shape[:-1], self.shape[-1] - 1) if self.constraint == "simplex" else self.shape

    @cached_property
    def dimension(self) -> int:
        """Number of degrees of freedom d, which enters every normaliser."""
        size = math.prod(self.latent_shape)
        return size - size // self.shape[0] if self.centered else size

    @cached_property
    def _bijection(self) -> Transform | None:
        if self.constraint is None:
            return None
        if isinstance(self.constraint, tuple):
            return biject_to(constraints.interval(*self.constraint))
        return biject_to(constraints.positive if self.constraint == "positive" else constraints.simplex)

    def from_latent(self, z: Tensor) -> Tensor:
        """x(z), for z of shape [..., *latent_shape]."""
        y = constant(self.loc, z) + constant(self.scale, z) * z
        return y if self._bijection is None else cast(Tensor, self._bijection(y))

    def to_latent(self, x: Tensor) -> Tensor:
        """z(x), the inverse of `from_latent`."""
        y = x if self._bijection is None else cast(Tensor, self._bijection.inv(x))
        return (y - constant(self.loc, x)) / constant(self.scale, x)

    def log_det(self, z: Tensor) -> Tensor:
        """log |∂x/∂z| for each batch element, shape [...]."""
        log_scale = torch.log(torch.as_tensor(self.scale, dtype=torch.float64))
        total = float(log_scale.expand(self.latent_shape).sum()) if log_scale.ndim else self.dimension * log_scale
        batch = z.shape[: z.ndim - len(self.latent_shape)]
        if self._bijection is None:
            return torch.full(batch, float(total), dtype=z.dtype, device=z.device)
        y = constant(self.loc, z) + constant(self.scale, z) * z
        log_jacobian = self._bijection.log_abs_det_jacobian(y, cast(Tensor, self._bijection(y)))
        return log_jacobian.reshape(*batch, -1).sum(-1) + float(total)

    def project(self, z: Tensor) -> Tensor:
        """Removes the centre of mass if the variable is centred; otherwise returns z unchanged."""
        return z - z.mean(-len(self.shape), keepdim=True) if self.centered else z

    def noise(
        self,
        batch: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draws standard Gaussian latents (on the centred subspace if the variable is centred)."""
        return self.project(torch.randn((*batch, *self.latent_shape), generator=generator, dtype=dtype, device=device))

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of a latent value, counted from the end."""
        return tuple(range(-len(self.latent_shape), 0))

    def gaussian_log_prob(self, residual: Tensor, variance: Tensor | float) -> Tensor:
        """log N(residual; 0, variance·I) in the variable's d degrees of freedom; `variance` has the batch's shape."""
        square = residual.square().sum(self.axes) if self.axes else residual.square()
        variance = torch.as_tensor(variance, dtype=residual.dtype, device=residual.device)
        return -0.5 * (square / variance + self.dimension * torch.log(2 * math.pi * variance))

    def diagonal_log_prob(self, residual: Tensor, variance: Tensor) -> Tensor:
        """log N(residual; 0, diag variance), shape [...]; `variance` broadcasts (one number per state if centred)."""
        if self.centered or not self.latent_shape:
            return self.gaussian_log_prob(residual, variance.reshape(variance.shape[: variance.ndim - len(self.shape)]))
        each = residual.square() / variance + torch.log(2 * math.pi * variance)
        return -0.5 * each.sum(self.axes)

    def check(self, x: Tensor, name: str) -> None:
        """Raises if x is not a value of this variable; `name` is used in the message."""
        check_trailing_shape(x, self.shape, name)
        if not x.is_floating_point():
            raise TypeError(
                f"variable '{name}' is Real and must be floating point, got {x.dtype}; convert with .float()"
            )
        if not bool(torch.isfinite(x).all()):
            raise ValueError(f"variable '{name}' holds NaN or infinite values; every Real entry must be finite")
        if self.centered:
            offset = x.mean(-len(self.shape)).abs().max() if x.numel() else x.new_zeros(())
            if float(offset) > 1e-3 * float(torch.as_tensor(self.scale)):
                raise ValueError(
                    f"variable '{name}' is centered, but a centre of mass is {float(offset):.3g} away from zero;"
                    f" subtract the mean over the particles (axis {-len(self.shape)})"
                )
        if isinstance(self.constraint, tuple):
            lo, hi = self.constraint
            require(bool(((x >= lo) & (x <= hi)).all()), name, f"must lie in the interval [{lo}, {hi}]")
        elif self.constraint == "positive":
            require(bool((x > 0).all()), name, "must be positive")
        elif self.constraint == "simplex":
            sums_to_one = bool(((x.sum(-1) - 1).abs() < 1e-4).all())
            require(sums_to_one and bool((x >= 0).all()), name, "must be non-negative and sum to one on its last axis")


@dataclass(frozen=True)
class Categorical:
    """An array of symbols 0 .. n−1.

    Args:
        n: number of symbols, or an array with one number for each site.
        shape: shape of one value; an int means one axis. By default, the shape of `n`.

    On a masked path, a state may also hold the mask symbol, which is the largest n; energies never receive it.

    >>> Categorical(2, shape=3)
    Categorical(n=2, shape=(3,))
    >>> Categorical([2, 3, 4]).mask
    4
    """

    n: int | tuple[Nested, ...]
    shape: tuple[int, ...]

    def __init__(self, n: object, shape: int | Sequence[int] | None = None) -> None:
        try:
            counts = torch.as_tensor(n)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"n must be a whole number of symbols (or an array of them), got {n!r}") from None
        if counts.is_floating_point() or counts.dtype == torch.bool or counts.numel() == 0 or int(counts.min()) < 1:
            raise ValueError(f"n must be a positive whole number of symbols (or one number per site), got {n}")
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "shape", tuple(counts.shape) if shape is None else as_shape(shape))
        if counts.ndim and tuple(counts.shape) != self.shape:
            raise ValueError(f"n has shape {tuple(counts.shape)}, but the variable has shape {self.shape}")
        equal = bool((counts == counts.flatten()[0]).all())
        set_field(self, "n", int(counts.flatten()[0]) if equal else nested(counts.tolist()))

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Categorical variables are their own latents."""
        return self.shape

    @cached_property
    def size(self) -> int:
        """The largest number of symbols at any site: the length of every table over symbols."""
        return int(torch.as_tensor(self.n).max())

    @property
    def mask(self) -> int:
        """The mask symbol."""
        return self.size

    @property
    def narrow(self) -> torch.dtype:
        """uint8 if it holds the sum of any two symbols (mask included), which saves memory in proposals; else int64."""
        return torch.uint8 if 2 * self.size <= torch.iinfo(torch.uint8).max else torch.int64

    @cached_property
    def sites(self) -> int:
        """Number of sites."""
        return math.prod(self.shape)

    @cached_property
    def log_volume(self) -> float:
        """Σ_i log n_i, the logarithm of the number of values."""
        counts = torch.as_tensor(self.n, dtype=torch.float64).expand(self.shape)
        return float(counts.log().sum())

    def counts(self, like: Tensor) -> Tensor | int:
        """Returns the number of symbols at each site, on the device of `like`: an int, or int64 of shape `shape`."""
        return self.n if isinstance(self.n, int) else cached_tensor(self.n, torch.int64, like.device)

    def legal(self, like: Tensor) -> Tensor:
        """Returns which symbols each site may hold: bool of shape [*shape, size] (or [size] if all sites agree)."""
        symbols = torch.arange(self.size, device=like.device)
        counts = self.counts(like)
        return symbols < (counts if isinstance(counts, int) else counts[..., None])

    def uniform(
        self,
        batch: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.int64,
    ) -> Tensor:
        """Draws independent uniform symbols of shape [*batch, *shape]."""
        size = (*batch, *self.shape)
        if isinstance(self.n, int):
            return torch.randint(self.n, size, generator=generator, device=device, dtype=dtype)
        u = torch.rand(size, generator=generator, device=device, dtype=torch.float64)
        return (u * self.counts(u)).to(dtype)

    def check(self, x: Tensor, name: str, *, masked: bool = False) -> None:
        """Raises if x is not a value of this variable; with `masked`, the mask symbol is legal too."""
        check_trailing_shape(x, self.shape, name)
        if x.dtype != torch.int64:
            raise TypeError(f"variable '{name}' is Categorical and must be int64, got {x.dtype}; convert with .long()")
        legal = (x >= 0) & (x < self.counts(x))
        legal = legal | (x == self.mask) if masked else legal
        if not bool(legal.all()):
            bad = int(x[~legal].flatten()[0])
            hint = " (that is the mask symbol, which energies never see)" if bad == self.mask else ""
            raise ValueError(
                f"variable '{name}' holds the symbol {bad}{hint}; symbols run from 0 to n-1 with n={self.n}"
            )
