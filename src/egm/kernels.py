"""Triton kernels where they work, plain torch where they do not.

Triton may be missing, have no C compiler to call, or not know the GPU. Whatever a kernel computes, torch can compute as
well; so the first failure is reported in one warning, and from there on torch takes its place.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

_MISSING: set[str] = set()


def find_kernels(module: str) -> Any:
    """The module of kernels of that name, or None where it cannot be imported or has failed."""
    if module in _MISSING:
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        _MISSING.add(module)
        return None


def give_up(module: str, error: Exception) -> None:
    """From now on there are no such kernels."""
    _MISSING.add(module)
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    warnings.warn(
        f"the kernels of {module} do not work here, plain torch takes their place and is slower ({reason})",
        RuntimeWarning,
        stacklevel=3,
    )
