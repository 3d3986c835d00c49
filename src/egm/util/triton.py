"""Triton kernels where they work, plain torch where they do not.

Whatever a kernel computes, torch can compute as well. Where there is no Triton it does, and nothing is said; where
Triton has no C compiler to call or does not know the GPU, the first failure is reported in one warning (those of
lattices in one for each shape and dtype that is tried out).
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

_MISSING: set[str] = set()
T = TypeVar("T")


def find_kernels(module: str) -> Any:
    """The module of kernels of that name, or None where it cannot be imported or has failed."""
    if module in _MISSING:
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        _MISSING.add(module)
        return None


def attempt(module: str, x: Tensor, run: Callable[[Any], T]) -> T | None:
    """run(kernels) with the module of that name, on the GPU that x is on.

    None where x is not on one or is empty, where there are no such kernels, or where they fail.
    """
    kernels = find_kernels(module) if x.is_cuda and x.numel() else None
    if kernels is None:
        return None
    try:
        with torch.cuda.device_of(x):
            return run(kernels)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever else went wrong, torch can do it
        give_up(module, error)
        return None


def give_up(module: str, error: Exception) -> None:
    """From now on there are no such kernels."""
    _MISSING.add(module)
    report(module, error, depth=4)


def report(module: str, error: Exception, *, depth: int = 3) -> None:
    """Warn, `depth` calls above, that kernels failed."""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    warnings.warn(
        f"the kernels of {module} do not work here, plain torch takes their place and is slower ({reason})",
        RuntimeWarning,
        stacklevel=depth,
    )
