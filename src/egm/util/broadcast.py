"""Reshaping for broadcasting."""

from __future__ import annotations

from torch import Tensor


def over(values: Tensor, like: Tensor) -> Tensor:
    """Returns `values` of batch shape with trailing axes of length one, so that they broadcast over `like`."""
    return values.reshape((*values.shape, *(1,) * (like.ndim - values.ndim)))
