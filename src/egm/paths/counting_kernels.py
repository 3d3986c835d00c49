"""Triton kernels that count symbols; they read end points once, without conversion.

    table[b, s, y] = Σ_k w[k, b] δ(x[k, b, s] = y)      and      number[p] = Σ_s δ(x[p, s] = y)

torch would write a tensor of the size of all end points for each symbol. One program of the first kernel sums over some
of the k for one state b and one tile of its sites; the partial sums are added in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST_TILE = 128
ENTRIES = 4096  # largest number of sums in one program
PROGRAMS = 2048  # enough to fill a GPU


@triton.jit
def _count(
    x_ptr, w_ptr, out_ptr, K, B, S,
    SHARE: tl.constexpr, SYMBOLS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Sums over SHARE of the k, a multiple of ROWS, in one program."""
    b, tile, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    s, y = tile * TILE + tl.arange(0, TILE), tl.arange(0, PADDED)
    total = tl.zeros([PADDED, ROWS, TILE], w_ptr.dtype.element_ty)
    for start in range(0, SHARE, ROWS):
        k = (split * SHARE + start + tl.arange(0, ROWS)).to(tl.int64)
        w = tl.load(w_ptr + k * B + b, mask=k < K, other=0.0)
        at = (k * B + b)[:, None] * S + s[None, :]
        x = tl.load(x_ptr + at, mask=(k < K)[:, None] & (s < S)[None, :], other=0)
        equal = x[None, :, :] == y[:, None, None]
        total += tl.where(equal, w[None, :, None], 0.0)
    at = ((split * B + b) * S + s)[None, :] * SYMBOLS + y[:, None]
    tl.store(out_ptr + at, tl.sum(total, 1), mask=(y < SYMBOLS)[:, None] & (s < S)[None, :])


def count(x: Tensor, w: Tensor, symbols: int) -> Tensor:
    """Returns the table [B, S, symbols] of end points x [K, B, S], integers, with weights w [K, B]."""
    K, B, S = x.shape
    tile = min(LARGEST_TILE, 1 << (S - 1).bit_length())
    tiles = -(-S // tile)  # rounded up, here and below
    padded = 1 << (symbols - 1).bit_length()  # the next power of two
    rows = max(1, ENTRIES // (padded * tile))
    wanted = max(1, min(-(-K // rows), PROGRAMS // (B * tiles)))
    share = rows * -(-K // (wanted * rows))
    splits = -(-K // share)
    out = torch.empty(splits, B, S, symbols, dtype=w.dtype, device=w.device)
    sizes: Any = {"SHARE": share, "SYMBOLS": symbols, "PADDED": padded, "ROWS": rows, "TILE": tile}
    _count[(B, tiles, splits)](x.contiguous(), w.contiguous(), out, K, B, S, **sizes)
    return out.sum(0)


@triton.jit
def _occurrences(
    x_ptr, out_ptr, P, S, SYMBOL: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr
):
    """Counts the symbol in ROWS states in one program."""
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    number = tl.zeros([ROWS, TILE], tl.int32)
    for tile in range(TILES):
        s = tile * TILE + tl.arange(0, TILE)
        inside = (p < P)[:, None] & (s < S)[None, :]
        x = tl.load(x_ptr + p.to(tl.int64)[:, None] * S + s[None, :], mask=inside, other=0)
        number += ((x == SYMBOL) & inside).to(tl.int32)
    tl.store(out_ptr + p, tl.sum(number, 1), mask=p < P)


def occurrences(x: Tensor, symbol: int) -> Tensor:
    """Returns the number of sites at which each state of x [P, S], integers, holds a symbol: int32 [P]."""
    P, S = x.shape
    tile = min(LARGEST_TILE, 1 << (S - 1).bit_length())
    rows = max(1, 2048 // tile)
    out = torch.empty(P, dtype=torch.int32, device=x.device)
    sizes: Any = {"SYMBOL": symbol, "TILES": -(-S // tile), "ROWS": rows, "TILE": tile}
    _occurrences[(-(-P // rows),)](x.contiguous(), out, P, S, **sizes)
    return out
