"""The blocks of `LatticeConv` as Triton kernels, for GPUs: one per block forwards, three backwards.

With x = N(h) the normalised channels of each site, N(h) = (h − mean)/std, and m the mean of x over sites, a block is

    z = Σ_k x[near_k] W_k + m G + u,        h' = h + silu(z) A,        x' = N(h'),

with near_k the k-th neighbours of the sites on the torus. A block passes on h and x, in bfloat16 or float32, and the
sums of x over tiles of sites in float32. So it reads and writes each of them once; a chain of library calls would do so
at every stage, and spend most of its time on normalising and padding. Backwards, with ḡ the gradient with respect to g,

    h̄' ← h̄' + N'ᵀ(x̄' + m̄'/S),    z̄ = (h̄' Aᵀ) silu'(z),    x̄ = Σ_k z̄[near_{−k}] W_kᵀ,    W̄_k = Σ_sites x[near_k]ᵀ z̄,

and h̄' is passed on as h̄. A program handles one tile of sites of one state; sums run in a fixed order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

WIDTHS = {torch.bfloat16: (16, 32, 64, 128), torch.float32: (16, 32, 64)}
LARGEST_TILE = 128
WARPS = 4
EPSILON = 1e-5  # as in torch's layer_norm
CHUNKS = 64  # partial sums behind the gradient of each W_k
PRECISION = {torch.float32: "tf32x3"}  # of products: three tensor-core products, with relative error of about 2⁻²¹


# ---------------------------------------------------------------------- kernels


@triton.jit
def _forward(
    h_ptr, x_ptr, sums_ptr, u_ptr, w_ptr, g_ptr, a_ptr, near_ptr,
    h_out, x_out, sums_out, z_out, scale_out,
    S: tl.constexpr, TILES: tl.constexpr, C: tl.constexpr, K: tl.constexpr, M: tl.constexpr,
    BLOCK: tl.constexpr, SAVE: tl.constexpr, EPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Computes a block, or with BLOCK = False the normalisation of h alone."""
    n, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, c = tile * M + tl.arange(0, M), tl.arange(0, C)
    inside = (rows < S)[:, None]
    square = c[:, None] * C + c[None, :]
    here = n * S * C + rows[:, None] * C + c[None, :]
    h = tl.load(h_ptr + here, mask=inside, other=0.0).to(tl.float32)
    if BLOCK:
        m = tl.zeros([C], tl.float32)
        for j in range(TILES):
            m += tl.load(sums_ptr + (n * TILES + j) * C + c)
        shift = tl.sum((m / S)[:, None] * tl.load(g_ptr + square).to(tl.float32), 0)
        shift += tl.load(u_ptr + n * C + c).to(tl.float32)
        z = tl.zeros([M, C], tl.float32) + shift[None, :]
        for k in range(K):
            at = tl.load(near_ptr + k * S + rows, mask=rows < S, other=0)
            x_k = tl.load(x_ptr + n * S * C + at[:, None] * C + c[None, :])
            z = tl.dot(x_k, tl.load(w_ptr + k * C * C + square), z, input_precision=PRECISION)
        if SAVE:
            tl.store(z_out + here, z.to(z_out.dtype.element_ty), mask=inside)
        y = (z * tl.sigmoid(z)).to(x_ptr.dtype.element_ty)
        h = tl.dot(y, tl.load(a_ptr + square), h, input_precision=PRECISION)
        tl.store(h_out + here, h.to(h_out.dtype.element_ty), mask=inside)
    d = h - (tl.sum(h, 1) / C)[:, None]
    scale = tl.rsqrt(tl.sum(d * d, 1) / C + EPS)
    x = d * scale[:, None]
    tl.store(x_out + here, x.to(x_out.dtype.element_ty), mask=inside)
    tl.store(sums_out + (n * TILES + tile) * C + c, tl.sum(tl.where(inside, x, 0.0), 0))
    if SAVE:
        tl.store(scale_out + n * S + rows, scale, mask=rows < S)


@triton.jit
def _backward_sites(
    gh_ptr, gx_ptr, gm_ptr, x_ptr, scale_ptr, z_ptr, a_ptr,
    gh_out, y_out, gz_out, gu_out,
    S: tl.constexpr, TILES: tl.constexpr, C: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Goes back through normalisation, and with BLOCK through A and silu; `gm` [n, C] is the gradient of a sum of x."""
    n, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, c = tile * M + tl.arange(0, M), tl.arange(0, C)
    inside = (rows < S)[:, None]
    here = n * S * C + rows[:, None] * C + c[None, :]
    x = tl.load(x_ptr + here, mask=inside, other=0.0).to(tl.float32)
    gx = tl.load(gx_ptr + here, mask=inside, other=0.0).to(tl.float32) + tl.load(gm_ptr + n * C + c)[None, :]
    scale = tl.load(scale_ptr + n * S + rows, mask=rows < S, other=0.0)
    gh = tl.load(gh_ptr + here, mask=inside, other=0.0).to(tl.float32)
    gh += scale[:, None] * (gx - (tl.sum(gx, 1) / C)[:, None] - x * (tl.sum(gx * x, 1) / C)[:, None])
    tl.store(gh_out + here, gh.to(gh_out.dtype.element_ty), mask=inside)
    if BLOCK:
        z = tl.load(z_ptr + here, mask=inside, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(z)
        a_transposed = tl.load(a_ptr + c[None, :] * C + c[:, None])
        gy = tl.dot(gh.to(a_ptr.dtype.element_ty), a_transposed, input_precision=PRECISION)
        gz = gy * sigmoid * (1 + z * (1 - sigmoid))
        tl.store(y_out + here, (z * sigmoid).to(y_out.dtype.element_ty), mask=inside)
        tl.store(gz_out + here, gz.to(gz_out.dtype.element_ty), mask=inside)
        tl.store(gu_out + (n * TILES + tile) * C + c, tl.sum(tl.where(inside, gz, 0.0), 0))


@triton.jit
def _backward_neighbours(
    gz_ptr, w_ptr, near_ptr, gx_out,
    S: tl.constexpr, TILES: tl.constexpr, C: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Computes x̄ = Σ_k z̄[near_{−k}] W_kᵀ; the opposite of neighbour k is neighbour K − 1 − k."""
    n, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, c = tile * M + tl.arange(0, M), tl.arange(0, C)
    gx = tl.zeros([M, C], tl.float32)
    for k in range(K):
        at = tl.load(near_ptr + (K - 1 - k) * S + rows, mask=rows < S, other=0)
        gz = tl.load(gz_ptr + n * S * C + at[:, None] * C + c[None, :])
        w_transposed = tl.load(w_ptr + k * C * C + c[None, :] * C + c[:, None])
        gx = tl.dot(gz, w_transposed, gx, input_precision=PRECISION)
    here = n * S * C + rows[:, None] * C + c[None, :]
    tl.store(gx_out + here, gx.to(gx_out.dtype.element_ty), mask=(rows < S)[:, None])


@triton.jit
def _backward_weights(
    x_ptr, gz_ptr, near_ptr, gw_out, states,
    EACH: tl.constexpr, S: tl.constexpr, TILES: tl.constexpr, C: tl.constexpr, M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Computes partial sums of W̄_k = Σ x[near_k]ᵀ z̄ over some of the states."""
    k, chunk = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, C)
    gw = tl.zeros([C, C], tl.float32)
    for i in range(EACH):
        n = chunk * EACH + i
        base = tl.minimum(n, states - 1).to(tl.int64) * S * C
        for tile in range(TILES):
            rows = tile * M + tl.arange(0, M)
            at = tl.load(near_ptr + k * S + rows, mask=rows < S, other=0)
            x_k = tl.load(x_ptr + base + at[None, :] * C + c[:, None])
            counts = (rows < S) & (n < states)
            gz = tl.load(gz_ptr + base + rows[:, None] * C + c[None, :], mask=counts[:, None], other=0.0)
            gw = tl.dot(x_k, gz, gw, input_precision=PRECISION)
    tl.store(gw_out + (chunk * tl.num_programs(0) + k) * C * C + c[:, None] * C + c[None, :], gw)


# ---------------------------------------------------------------------- with gradients


class _Normalise(torch.autograd.Function):
    """The normalisation of h [n, S, C], with outputs (h, x, sums)."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, sums, scale = _new(h)
        none = h.new_empty(0)
        pointers = (h, none, none, none, none, none, none, none, none, x, sums, none, scale)
        _launch(_forward, h, *pointers, K=1, BLOCK=False, SAVE=True, EPS=EPSILON)
        ctx.save_for_backward(x, scale)
        return h, x, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gh: Tensor, gx: Tensor, gsums: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, scale = ctx.saved_tensors
        out, none = torch.empty_like(x), x.new_empty(0)
        gradients = (gh.contiguous(), gx.contiguous(), gsums[:, 0].contiguous())  # sums: same in all tiles
        _launch(_backward_sites, x, *gradients, x, scale, none, none, out, none, none, none, BLOCK=False)
        return out


class _Block(torch.autograd.Function):
    """One block; `near` [K, S] int32, u [n, C], W [K, C, C] (neighbour, in, out), G and A [C, C] (in, out)."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, x: Tensor, sums: Tensor, u: Tensor, w: Tensor, g: Tensor, a: Tensor, near: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        save = any(ctx.needs_input_grad)
        x_out, sums_out, scale = _new(h)
        h_out = torch.empty_like(h)
        z = torch.empty_like(h) if save else h.new_empty(0)
        pointers = (h, x, sums, u, w, g, a, near, h_out, x_out, sums_out, z, scale)
        _launch(_forward, h, *pointers, K=len(near), BLOCK=True, SAVE=save, EPS=EPSILON)
        if save:
            ctx.save_for_backward(x, sums, w, g, a, near, x_out, scale, z)
        return h_out, x_out, sums_out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gh: Tensor, gx: Tensor, gsums: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, sums, w, g, a, near, x_out, scale, z = ctx.saved_tensors
        n, sites, width = x.shape
        gh_in, y, gz, gx_in = (torch.empty_like(x) for _ in range(4))
        gu = torch.empty_like(sums)
        gradients = (gh.contiguous(), gx.contiguous(), gsums[:, 0].contiguous())
        _launch(_backward_sites, x, *gradients, x_out, scale, z, a, gh_in, y, gz, gu, BLOCK=True)
        _launch(_backward_neighbours, x, gz, w, near, gx_in, K=len(near))
        chunks = min(CHUNKS, n)
        gw = x.new_empty(chunks, *w.shape, dtype=torch.float32)
        each = -(-n // chunks)
        _launch(_backward_weights, x, x, gz, near, gw, n, EACH=each, grid=(len(near), chunks))
        ga = y.reshape(-1, width).T @ gh_in.reshape(-1, width)
        gu = gu.sum(1)
        gg = (sums.sum(1) / sites).T @ gu
        gm = (gu @ g.float().T / sites)[:, None].expand_as(sums)
        return gh_in, gx_in, gm, gu, gw.sum(0).to(w.dtype), gg.to(g.dtype), ga, None


def _new(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Allocates x, its sums over tiles, and 1/std of every site."""
    n, sites, width = h.shape
    sums = h.new_empty(n, -(-sites // _tile(sites)), width, dtype=torch.float32)
    return torch.empty_like(h), sums, h.new_empty(n, sites, dtype=torch.float32)


def _tile(sites: int) -> int:
    """Returns the number of sites that one program handles."""
    return min(LARGEST_TILE, max(16, 1 << (sites - 1).bit_length()))


def _launch(kernel: Any, h: Tensor, *pointers: Any, grid: tuple[int, int] | None = None, **options: Any) -> None:
    """Launches a Triton kernel on states of the shape of h, [n, S, C]; by default one program per state and tile."""
    n, sites, width = h.shape
    tile = _tile(sites)
    tiles = -(-sites // tile)  # rounded up
    options |= {"S": sites, "TILES": tiles, "C": width, "M": tile, "PRECISION": PRECISION.get(h.dtype)}
    kernel[grid or (n, tiles)](*pointers, num_warps=WARPS, **options)


# ---------------------------------------------------------------------- called by lattice.py


def normalised_blocks(h: Tensor, blocks: Sequence[Sequence[Tensor]], kernel: int) -> Tensor:
    """Returns N(h) after a sequence of blocks, each (u [n, C], conv [C, C, kernel, kernel], G [C, C], A [C, C]) in the
    layout of `torch.nn` (out, in); h is [n, rows, columns, C].
    """
    n, rows, columns, width = h.shape
    near = neighbours(rows, columns, kernel, h.device)
    h, x, sums = _Normalise.apply(h.reshape(n, rows * columns, width).contiguous())
    for u, conv, g, a in blocks:
        w = conv.permute(2, 3, 1, 0).reshape(-1, width, width)
        weights = (part.to(h.dtype).contiguous() for part in (w, g.T, a.T))
        h, x, sums = _Block.apply(h, x, sums, u.float().contiguous(), *weights, near)
    return x.reshape(n, rows, columns, width)


def try_out(grid: tuple[int, int], width: int, kernel: int, like: Tensor) -> None:
    """Runs a block forwards and backwards on zeros; raises if a Triton kernel cannot be compiled or does not fit.

    There are more states than chunks, because a loop over several states takes more memory than a single state.
    """
    with torch.inference_mode(False), torch.enable_grad():
        h = torch.zeros(CHUNKS + 1, *grid, width, dtype=like.dtype, device=like.device, requires_grad=True)
        shapes = ((len(h), width), (width, width, kernel, kernel), (width, width), (width, width))
        block = [torch.zeros(shape, device=like.device, requires_grad=True) for shape in shapes]
        normalised_blocks(h, [block], kernel).sum().backward()


@functools.lru_cache(maxsize=64)
def neighbours(rows: int, columns: int, kernel: int, device: torch.device) -> Tensor:
    """Returns the site at each offset of a kernel × kernel neighbourhood on a torus, int32 [kernel², sites]."""
    row, column = torch.arange(rows)[:, None], torch.arange(columns)[None]
    reach = range(-(kernel // 2), kernel // 2 + 1)
    sites = [((row + i) % rows * columns + (column + j) % columns).reshape(-1) for i in reach for j in reach]
    return torch.stack(sites).int().to(device)
