"""A Triton kernel for one step of masked symbols; it writes only the symbols.

A masked site is revealed with the probability p of the step; its symbol is drawn by inversion of its table. torch would
write the law of every site, its running sums and a dozen more tensors of that size. Random numbers come from Philox:
torch's generator draws the key, and the counter is the site.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from egm.paths.proposal_kernels import uniform

TILE = 256


@triton.jit
def _reveal(
    x_ptr, table_ptr, p_ptr, key_ptr, out_ptr, SITES, S, MASK, N: tl.constexpr, EACH: tl.constexpr, TILE: tl.constexpr
):
    """Reveals masked sites in a tile of the sites of all states."""
    site = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = site < SITES
    x = tl.load(x_ptr + site, mask=inside, other=0)
    p = tl.load(p_ptr + (site // S if EACH else site * 0), mask=inside, other=0.0)
    zero = tl.zeros([TILE], tl.uint32)
    a, b, _, _ = tl.philox(tl.load(key_ptr), site.to(tl.uint32), zero, zero, zero)
    reveals = inside & (x == MASK) & (uniform(a) < p)
    entry = table_ptr + site.to(tl.int64) * N
    total = tl.zeros([TILE], tl.float32)
    for y in range(N):
        total += tl.load(entry + y, mask=reveals, other=0.0)
    goal, below, drawn = uniform(b) * total, tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.int32)
    for y in range(N - 1):
        below += tl.load(entry + y, mask=reveals, other=0.0)
        drawn += (below <= goal).to(tl.int32)
    tl.store(out_ptr + site, tl.where(reveals, drawn.to(x.dtype), x), mask=inside)


def revealed(x: Tensor, table: Tensor, p: Tensor, mask: int, key: Tensor) -> Tensor:
    """Returns the symbols after a step from x [B, S], integers.

    Args:
        x: symbols, `mask` at masked sites.
        table: weights of the symbols at each site, float32 [B, S, n].
        p: probability of being revealed, float32 [B], or [1] for all states.
        mask: the mask symbol.
        key: [1], int64; it determines the random numbers.
    """
    sites = x.numel()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sizes: Any = {"N": table.shape[-1], "EACH": p.numel() > 1, "TILE": TILE}
    _reveal[(-(-sites // TILE),)](
        x.contiguous(), table.contiguous(), p.contiguous(), key, out, sites, x.shape[1], mask, **sizes
    )
    return out
