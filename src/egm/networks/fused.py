"""Operations around matrix products that a GPU can do in one pass: by a Triton kernel, and elsewhere by torch.

Kernels serve networks that are rounded to bfloat16, as E^φ is for its proposals. They know no gradients (`one_hot` has
none).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from egm.util.triton import attempt

KERNELS = "egm.networks.mlp_kernels"


def one_hot(x: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Whether a site holds each of n symbols, [..., S] to [..., ≥ n · S]; columns past those are zero."""
    if dtype == torch.bfloat16:
        found = attempt(KERNELS, x, lambda kernels: kernels.one_hot(x, n))
        if found is not None:
            return found
    symbols = torch.arange(n, device=x.device, dtype=x.dtype)
    return (x[..., None] == symbols).flatten(-2).to(dtype)


def add_silu(h: Tensor, u: Tensor) -> Tensor:
    """SiLU(h + u) in the place of h."""
    if _rounded(h) and h.is_contiguous() and u.shape == h.shape[h.ndim - u.ndim :]:
        found = attempt(KERNELS, h, lambda kernels: kernels.add_silu(h, u))
        if found is not None:
            return found
    return silu(h.add_(u), inplace=True)


def project(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """h · w + b in the dtype of the weight [1, width], [..., width] to [...]."""
    if _rounded(h):
        found = attempt(KERNELS, h, lambda kernels: kernels.dot(h, weight[0]))
        if found is not None:
            return (found + bias[0]).to(weight.dtype)
    return linear(h.to(weight.dtype), weight, bias).squeeze(-1)


def _rounded(h: Tensor) -> bool:
    return h.dtype == torch.bfloat16 and not torch.is_grad_enabled()
