"""A Triton kernel that draws proposals of symbols; it writes only the proposals.

Random numbers come from Philox, a counter-based generator: torch's generator draws the key, and the counters are the
site and a group of proposals. (torch would write uniform symbols, uniform numbers and their combination.) One call of
Philox returns four words of 32 bits: four symbols, or two symbols and two words that decide whether a site stays.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, GROUPS = 1024, 4


@triton.jit
def _put(out_ptr, row, count, site, SITES, changes, old, word, N: tl.constexpr):
    """Writes one proposal at some sites: a uniform symbol from `word` where `changes`, else the old symbol."""
    new = tl.umulhi(word, tl.full(word.shape, N, tl.uint32)).to(tl.uint8)
    inside = (site < SITES) & (row < count)
    tl.store(out_ptr + row.to(tl.int64) * SITES + site, tl.where(changes, new, old), mask=inside)


@triton.jit
def uniform(word):
    """Returns a number in [0, 1) from 24 bits of a word."""
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _renewed(
    x_ptr, stay_ptr, key_ptr, out_ptr, count, SITES, S,
    N: tl.constexpr, ONLY: tl.constexpr, STAYS: tl.constexpr, GROUPS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Draws some of the proposals for a tile of the sites of all states."""
    tiles = tl.cdiv(SITES, TILE)
    site = tl.program_id(0) % tiles * TILE + tl.arange(0, TILE)
    x = tl.load(x_ptr + site, mask=site < SITES, other=0)
    changes = site < SITES
    if ONLY >= 0:
        changes = x == ONLY
    stay = tl.zeros([TILE], tl.float32)
    if STAYS:
        stay = tl.load(stay_ptr + site // S, mask=site < SITES, other=0.0)
    key, zero = tl.load(key_ptr), tl.zeros([TILE], tl.uint32)
    for i in range(GROUPS):
        group = tl.program_id(0) // tiles * GROUPS + i
        a, b, c, d = tl.philox(key, site.to(tl.uint32), zero + group.to(tl.uint32), zero, zero)
        if STAYS:
            _put(out_ptr, 2 * group, count, site, SITES, changes & (uniform(a) >= stay), x, b, N)
            _put(out_ptr, 2 * group + 1, count, site, SITES, changes & (uniform(c) >= stay), x, d, N)
        else:
            _put(out_ptr, 4 * group, count, site, SITES, changes, x, a, N)
            _put(out_ptr, 4 * group + 1, count, site, SITES, changes, x, b, N)
            _put(out_ptr, 4 * group + 2, count, site, SITES, changes, x, c, N)
            _put(out_ptr, 4 * group + 3, count, site, SITES, changes, x, d, N)


def renewed(x: Tensor, stay: Tensor | None, n: int, count: int, key: Tensor, only: int | None) -> Tensor:
    """Returns `count` copies of x [B, S], uint8, with uniform symbols of n at all sites, or at sites that hold `only`.

    With the probability stay [B] a site keeps its symbol. The key [1], int64, determines the random numbers.
    """
    sites = x.numel()
    out = torch.empty(count, *x.shape, dtype=x.dtype, device=x.device)
    rows = GROUPS * (4 if stay is None else 2)  # proposals per program
    sizes: Any = {
        "N": n,
        "ONLY": -1 if only is None else only,
        "STAYS": stay is not None,
        "GROUPS": GROUPS,
        "TILE": TILE,
    }
    _renewed[(-(-sites // TILE) * -(-count // rows),)](
        x.contiguous(), (key if stay is None else stay.float().contiguous()), key, out, count, sites, x.shape[1],
        **sizes,
    )  # fmt: skip
    return out
