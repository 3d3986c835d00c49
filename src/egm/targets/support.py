"""Helpers of built-in targets: constants that follow a device, printing, and checks of arguments."""

from __future__ import annotations

import inspect
import math
import operator
from types import SimpleNamespace

import torch
from torch import Tensor


class Constants:
    """Named arrays that follow a tensor to its device and dtype, copied there once.

    >>> Constants(W=[[1.0, 2.0]]).like(torch.zeros(1, dtype=torch.float64)).W.dtype
    torch.float64
    """

    def __init__(self, **values: object) -> None:
        arrays = {name: torch.as_tensor(value) for name, value in values.items()}
        # Python floats are doubles: reading them as float32 would leave 1e-8 errors in double-precision energies.
        doubles = {
            name: torch.as_tensor(values[name], dtype=torch.float64)
            for name, x in arrays.items()
            if x.is_floating_point()
        }
        self._values = {**arrays, **doubles}
        self._copies: dict[tuple[torch.dtype, torch.device], SimpleNamespace] = {}

    def like(self, x: Tensor) -> SimpleNamespace:
        """Returns the arrays on x's device; floating-point arrays get x's dtype (the default if x holds symbols)."""
        dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        key = (dtype, x.device)
        if key not in self._copies:
            self._copies[key] = SimpleNamespace(
                **{
                    name: value.to(device=x.device, dtype=dtype if value.is_floating_point() else value.dtype)
                    for name, value in self._values.items()
                }
            )
        return self._copies[key]


def describe(target: object, **arguments: object) -> str:
    """Returns the name of a built-in target: its class and the arguments that differ from their defaults."""
    parameters = inspect.signature(type(target).__init__).parameters
    shown = [f"{k}={v!r}" for k, v in arguments.items() if parameters[k].default != v]
    return f"{type(target).__name__}({', '.join(shown)})"


def require_positive(**values: float) -> None:
    """Raises `ValueError` naming the first argument that is not a positive finite number."""
    for name, value in values.items():
        if not (value > 0 and value != float("inf")):
            raise ValueError(f"{name} must be positive and finite, got {value}")


def whole_number(name: str, value: int, *, least: int) -> int:
    """Returns the value as an int; raises with the argument's name if it is not a whole number or below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}; pass an int") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return number


def finite(name: str, value: float) -> float:
    """Returns the value as a float; raises with the argument's name if it is NaN or infinite."""
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value}")
    return float(value)
