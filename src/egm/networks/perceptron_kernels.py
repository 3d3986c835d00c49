"""A perceptron with one scalar output, from symbols to the scalar, as one Triton kernel for GPUs; without gradients.

    h_1 = SiLU(A x + c_b),    h_{k+1} = SiLU(W_k h_k + b_k),    out = w · h_last + w_0,    two or three layers

x are the one-hot symbols, and c_b holds all terms that depend on the time alone. States are [K, B] and times [B]: a
program handles ROWS of the K states that share a time. Matrices are read in pieces of CHUNK units, and no activation
leaves the chip: W_1 consumes each piece of h_1 as soon as it is computed, and w each piece of the last layer.
Activations are rounded between layers to the dtype of A (bfloat16), and sums are accumulated in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad
from triton import knobs

WIDTHS, DEPTHS, MOST_COLUMNS = (16, 32, 64, 128, 256), (2, 3), 64
ROWS, CHUNK, WARPS, STAGES = 64, 64, 4, 2  # the fastest on an H200
INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def _silu(z):
    """Returns z/2 (1 + tanh z/2) by the GPU's tanh instruction (relative error 2⁻¹¹); the interpreter has none."""
    if INTERPRETED:
        return z * tl.sigmoid(z)
    half = 0.5 * z
    return half + half * tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [half], tl.float32, True, 1)


@triton.jit
def _perceptron(
    x_ptr, a_ptr, c_ptr, weight_ptr, bias_ptr, head_ptr, constant_ptr, out_ptr, K, B,
    S: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, LAYERS: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    b, k = tl.program_id(0) % B, tl.program_id(0) // B * ROWS + tl.arange(0, ROWS)
    state = k.to(tl.int64) * B + b
    column, unit = tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    known = (k < K)[:, None] & (column < S * N)[None, :]
    symbol = tl.load(x_ptr + state[:, None] * S + (column // N)[None, :], mask=known, other=0).to(tl.int32)
    x = tl.where(known & (symbol == (column % N)[None, :]), 1.0, 0.0).to(a_ptr.dtype.element_ty)

    z = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, WIDTH, CHUNK):
        piece = start + tl.arange(0, CHUNK)
        a = tl.load(a_ptr + piece[None, :] * COLUMNS + column[:, None])
        first = tl.dot(x, a) + tl.load(c_ptr + b * WIDTH + piece)[None, :]
        w = tl.load(weight_ptr + unit[None, :] * WIDTH + piece[:, None])
        z = tl.dot(_silu(first).to(w.dtype), w, z)
    z += tl.load(bias_ptr + unit)[None, :]
    if LAYERS == 1:
        total = tl.sum(_silu(z) * tl.load(head_ptr + unit)[None, :], 1)
    else:
        h = _silu(z).to(a_ptr.dtype.element_ty)
        parts = tl.zeros([ROWS, CHUNK], tl.float32)
        for start in range(0, WIDTH, CHUNK):
            piece = start + tl.arange(0, CHUNK)
            w = tl.load(weight_ptr + (WIDTH + piece)[None, :] * WIDTH + unit[:, None])
            last = tl.dot(h, w) + tl.load(bias_ptr + WIDTH + piece)[None, :]
            parts += _silu(last) * tl.load(head_ptr + piece)[None, :]
        total = tl.sum(parts, 1)
    tl.store(out_ptr + state, total + tl.load(constant_ptr), mask=k < K)


def serves(x: Tensor, n: int, times: int, width: int, depth: int) -> bool:
    """Returns whether `scalars` supports these sizes, and states fill at least half of the rows of its programs."""
    repeated = x.shape[:-1].numel() // max(times, 1)
    return width in WIDTHS and depth in DEPTHS and n * x.shape[-1] <= MOST_COLUMNS and repeated >= ROWS // 2


def scalars(
    x: Tensor, n: int, a: Tensor, c: Tensor, weights: Tensor, biases: Tensor, head: Tensor, last: Tensor
) -> Tensor:
    """Returns the network's scalar for each state, float32 [...].

    Args:
        x: integers [..., sites]; symbols n and above have no column in A.
        n: number of symbols with columns in A, which are n · site + symbol.
        a: [width, n · sites].
        c: [..., width], with the shape of x up to leading axes and the last axis.
        weights: weights of the second layer and, if any, the third, [layers, width, width].
        biases: biases of the same layers, [layers, width].
        head: w, [width].
        last: w_0, [1].
    """
    sites, width, states = x.shape[-1], a.shape[0], x.shape[:-1].numel()
    times = c.numel() // width
    columns = max(16, 1 << (n * sites - 1).bit_length())
    out = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    sizes: Any = {"S": sites, "N": n, "COLUMNS": columns, "WIDTH": width, "LAYERS": len(weights)}
    tuning: Any = {"ROWS": ROWS, "CHUNK": min(CHUNK, width), "num_warps": WARPS, "num_stages": STAGES}
    _perceptron[(times * -(-states // times // ROWS),)](
        x.contiguous(), pad(a, (0, columns - n * sites)), c.float().contiguous(), weights.to(a.dtype), biases.float(),
        head.float(), last.float(), out, states // times, times, **sizes, **tuning,
    )  # fmt: skip
    return out
