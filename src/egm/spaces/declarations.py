"""Checks and conversions of the arguments that declare a variable, each with an error that names the fix."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch

from egm.util.cached_tensors import Nested

Constraint: TypeAlias = "str | tuple[float, float] | None"


def nested(values: object) -> Nested:
    """Returns lists as tuples, at every depth."""
    return tuple(nested(v) for v in values) if isinstance(values, list) else values  # type: ignore[return-value]


def as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Returns a shape as a tuple of positive ints."""
    try:
        sizes = tuple(operator.index(s) for s in shape) if isinstance(shape, Iterable) else (operator.index(shape),)
    except TypeError:
        raise TypeError(f"a shape must be a whole number or a tuple of whole numbers, got {shape!r}") from None
    if any(s < 1 for s in sizes):
        raise ValueError(f"every axis of a shape needs at least one entry, got {shape}")
    return sizes


def number_or_array(name: str, value: object, shape: tuple[int, ...]) -> Nested:
    """Returns a number as a float, and an array as nested tuples of the given shape."""
    try:
        array = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number or an array of numbers, got {value!r}") from None
    if not bool(torch.isfinite(array).all()):
        raise ValueError(f"{name} must be finite, got {value}")
    if array.ndim == 0:
        return float(array)
    try:
        return nested(array.expand(shape).tolist())
    except RuntimeError:
        raise ValueError(f"{name} of shape {tuple(array.shape)} does not broadcast to the shape {shape}") from None


def check_constraint(constraint: Constraint, shape: tuple[int, ...]) -> Constraint:
    """Validates a constraint and returns it, an interval as a pair of floats."""
    if isinstance(constraint, tuple | list):
        ends = tuple(float(end) for end in constraint)
        if len(ends) != 2 or not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
            raise ValueError(
                f"an interval (lo, hi) as constraint needs two finite numbers lo < hi, got {constraint};"
                " for x > 0 use 'positive'"
            )
        return (ends[0], ends[1])
    if not (constraint is None or (isinstance(constraint, str) and constraint in ("positive", "simplex"))):
        raise ValueError(f"constraint must be None, 'positive', 'simplex' or an interval (lo, hi), got {constraint!r}")
    if constraint == "simplex" and (not shape or shape[-1] < 2):
        raise ValueError(f"constraint='simplex' needs a last axis of at least two entries, got shape {shape}")
    return constraint
