"""Constants as tensors: each is copied to its device once."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor

Nested: TypeAlias = "float | tuple[Nested, ...]"


def constant(value: Nested, like: Tensor) -> Tensor | float:
    """Returns a number unchanged, and an array as a tensor of `like`'s dtype on its device, copied there once."""
    return value if isinstance(value, float) else cached_tensor(value, like.dtype, like.device)


@lru_cache(maxsize=256)
def cached_tensor(value: tuple[Nested, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a tuple as a tensor, the same object for every call."""
    return torch.tensor(value, dtype=dtype, device=device)
