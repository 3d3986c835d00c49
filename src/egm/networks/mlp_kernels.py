"""Triton kernels for the operations around the matrix products of perceptrons, without gradients.

    one_hot        one-hot symbols in bfloat16; the columns are a multiple of eight, which suits matrix products
    add_silu       h ← SiLU(h + u) in place, u repeated along the first axis
    dot            h · w in float32, without a copy of h in float32

All three read and write each state once; these networks process hundreds of thousands of states at once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, LARGEST_TILE = 2048, 256


@triton.jit
def _one_hot(
    x_ptr, out_ptr, P,
    S: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    p, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * TILE + tl.arange(0, TILE)
    row = p.to(tl.int64)[:, None]
    known = (p < P)[:, None] & (c < S * N)[None, :]
    x = tl.load(x_ptr + row * S + (c // N)[None, :], mask=known, other=0).to(tl.int32)
    present = tl.where(known & (x == (c % N)[None, :]), 1.0, 0.0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * COLUMNS + c[None, :], present, mask=(p < P)[:, None] & (c < COLUMNS)[None, :])


@triton.jit
def _add_silu(h_ptr, u_ptr, period, BLOCK: tl.constexpr):
    """Handles one block of u at one of its repetitions along h."""
    blocks = tl.cdiv(period, BLOCK)
    c = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    here = h_ptr + (tl.program_id(0) // blocks).to(tl.int64) * period + c
    z = tl.load(here, mask=c < period, other=0.0).to(tl.float32)
    z += tl.load(u_ptr + c, mask=c < period, other=0.0).to(tl.float32)
    tl.store(here, (z * tl.sigmoid(z)).to(h_ptr.dtype.element_ty), mask=c < period)


@triton.jit
def _dot(h_ptr, w_ptr, out_ptr, P, WIDTH, TILES: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr):
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros([ROWS], tl.float32)
    for tile in range(TILES):
        c = tile * TILE + tl.arange(0, TILE)
        inside = (p < P)[:, None] & (c < WIDTH)[None, :]
        h = tl.load(h_ptr + p.to(tl.int64)[:, None] * WIDTH + c[None, :], mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(h * tl.load(w_ptr + c, mask=c < WIDTH, other=0.0)[None, :], 1)
    tl.store(out_ptr + p, total, mask=p < P)


def one_hot(x: Tensor, n: int) -> Tensor:
    """Maps integers [..., S] to bfloat16 [..., ≥ n · S]: column n·s + y is one if site s holds y, others are zero."""
    sites, states = x.shape[-1], x.shape[:-1].numel()
    columns = 8 * -(-n * sites // 8)
    tile = min(LARGEST_TILE, 1 << (columns - 1).bit_length())
    rows = BLOCK // tile
    out = torch.empty(*x.shape[:-1], columns, dtype=torch.bfloat16, device=x.device)
    sizes: Any = {"S": sites, "N": n, "COLUMNS": columns, "ROWS": rows, "TILE": tile}
    _one_hot[(-(-states // rows), -(-columns // tile))](x.contiguous(), out, states, **sizes)
    return out


def add_silu(h: Tensor, u: Tensor) -> Tensor:
    """Overwrites h, which is contiguous, with SiLU(h + u); u has the shape of h up to leading axes."""
    sizes: Any = {"BLOCK": BLOCK}
    _add_silu[(h.numel() // u.numel() * -(-u.numel() // BLOCK),)](h, u.contiguous(), u.numel(), **sizes)
    return h


def dot(h: Tensor, w: Tensor) -> Tensor:
    """Returns h [..., width] times w [width], float32 [...]."""
    width, states = h.shape[-1], h.shape[:-1].numel()
    tile = min(LARGEST_TILE, 1 << (width - 1).bit_length())
    rows = BLOCK // tile
    out = torch.empty(h.shape[:-1], dtype=torch.float32, device=h.device)
    sizes: Any = {"TILES": -(-width // tile), "ROWS": rows, "TILE": tile}
    _dot[(-(-states // rows),)](h.contiguous(), w.contiguous(), out, states, width, **sizes)
    return out
