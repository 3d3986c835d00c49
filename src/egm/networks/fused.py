"""Operations around matrix products, on a GPU in one pass by a Triton kernel, and elsewhere by torch.

The Triton kernels are for networks rounded to bfloat16, such as E^φ at its proposals. They have no gradients (`one_hot`
needs none).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from egm.util.triton import attempt

KERNELS = "egm.networks.mlp_kernels"


def one_hot(x: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Returns the one-hot encoding of n symbols at each site, [..., S] to [..., ≥ n · S]; extra columns are zero."""
    if dtype == torch.bfloat16:
        found = attempt(KERNELS, x, lambda kernels: kernels.one_hot(x, n))
        if found is not None:
            return found
    symbols = torch.arange(n, device=x.device, dtype=x.dtype)
    return (x[..., None] == symbols).flatten(-2).to(dtype)


def add_silu(h: Tensor, u: Tensor) -> Tensor:
    """Overwrites h with SiLU(h + u) and returns it."""
    if _rounded(h) and h.is_contiguous() and u.shape == h.shape[h.ndim - u.ndim :]:
        found = attempt(KERNELS, h, lambda kernels: kernels.add_silu(h, u))
        if found is not None:
            return found
    return silu(h.add_(u), inplace=True)


def project(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Returns h · w + b in the dtype of the weight [1, width], [..., width] to [...]."""
    if _rounded(h):
        found = attempt(KERNELS, h, lambda kernels: kernels.dot(h, weight[0]))
        if found is not None:
            return (found + bias[0]).to(weight.dtype)
    return linear(h.to(weight.dtype), weight, bias).squeeze(-1)


def _rounded(h: Tensor) -> bool:
    return h.dtype == torch.bfloat16 and not torch.is_grad_enabled()
