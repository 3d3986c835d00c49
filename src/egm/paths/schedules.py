"""Schedules κ_t of discrete paths: the share of sites that hold their final symbol; κ_0 = 0, κ_1 = 1, increasing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Schedule(Protocol):
    """A schedule: κ_t, its derivative and its inverse."""

    def __call__(self, t: Tensor) -> Tensor:
        """κ_t, exactly one at t = 1, so that rounding leaves no site masked."""
        ...

    def derivative(self, t: Tensor) -> Tensor:
        """dκ_t/dt."""
        ...

    def inverse(self, kappa: Tensor) -> Tensor:
        """The time t at which κ_t = kappa."""
        ...


@dataclass(frozen=True)
class Polynomial:
    """κ_t = t^power; power = 1 is the linear schedule of the paper."""

    power: float = 1.0

    def __post_init__(self) -> None:
        if not self.power > 0:
            raise ValueError(f"power must be positive, got {self.power}")

    def __call__(self, t: Tensor) -> Tensor:
        return t if self.power == 1 else t**self.power

    def derivative(self, t: Tensor) -> Tensor:
        """dκ_t/dt."""
        return self.power * t ** (self.power - 1)

    def inverse(self, kappa: Tensor) -> Tensor:
        """The time t at which κ_t = kappa."""
        return kappa ** (1 / self.power)


@dataclass(frozen=True)
class Cosine:
    """κ_t = 1 − cos(πt/2): few symbols are revealed at first, most at the end."""

    def __call__(self, t: Tensor) -> Tensor:
        kappa = 2 * torch.sin(math.pi / 4 * t).square()  # does not cancel at small t
        return torch.where(t >= 1, 1.0, kappa)

    def derivative(self, t: Tensor) -> Tensor:
        """dκ_t/dt."""
        return math.pi / 2 * torch.sin(math.pi / 2 * t)

    def inverse(self, kappa: Tensor) -> Tensor:
        """The time t at which κ_t = kappa."""
        return 4 / math.pi * torch.asin((kappa / 2).sqrt())
