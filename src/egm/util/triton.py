"""Triton kernels where they work, plain torch where they do not.

torch can compute everything that a Triton kernel computes. Without Triton, torch is used silently. If Triton finds no C
compiler or does not support the GPU, the first failure is reported in one warning (lattice networks: one warning for
each shape and dtype that is tried).
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
    """Returns the module of Triton kernels of that name, or None if it cannot be imported or has failed."""
    if module in _MISSING:
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        _MISSING.add(module)
        return None


def attempt(module: str, x: Tensor, run: Callable[[Any], T]) -> T | None:
    """Returns run(kernels) for the module of Triton kernels of that name, on the GPU of x.

    Returns None if x is not on a GPU or is empty, or if the Triton kernels are missing or fail.
    """
    kernels = find_kernels(module) if x.is_cuda and x.numel() else None
    if kernels is None:
        return None
    try:
        with torch.cuda.device_of(x):
            return run(kernels)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # after any other error, torch computes the result
        give_up(module, error)
        return None


def give_up(module: str, error: Exception) -> None:
    """Warns that the Triton kernels of a module failed, and disables them from now on."""
    _MISSING.add(module)
    report(module, error, depth=4)


def report(module: str, error: Exception, *, depth: int = 3) -> None:
    """Warns, `depth` calls above, that Triton kernels failed."""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    warnings.warn(
        f"the Triton kernels of {module} do not work here; plain torch is used instead and is slower ({reason})",
        RuntimeWarning,
        stacklevel=depth,
    )
