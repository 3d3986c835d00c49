"""Bonds of a lattice as a Triton kernel, for GPUs: states are read once, as bytes.

Every site of a torus owns the bond to its right and the one below. The kernel counts the bonds whose sites are both
revealed and those among them whose symbols are equal; what a bond is worth is the target's affair.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, LARGEST_TILE = 2048, 128


@triton.jit
def _bonds(
    s_ptr, equal_ptr, known_ptr, P,
    SIZE: tl.constexpr, MASK: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """ROWS states are one program's."""
    SITES: tl.constexpr = SIZE * SIZE
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    both = tl.zeros([ROWS, TILE], tl.int32)  # known bonds in the lower half of the bits, equal ones in the upper
    base = s_ptr + p.to(tl.int64)[:, None] * SITES
    for tile in range(TILES):
        at = tile * TILE + tl.arange(0, TILE)
        right = at - at % SIZE + (at + 1) % SIZE
        inside = (p < P)[:, None] & (at < SITES)[None, :]
        here = tl.load(base + at[None, :], mask=inside, other=MASK)
        beside = tl.load(base + right[None, :], mask=inside, other=MASK)
        below = tl.load(base + ((at + SIZE) % SITES)[None, :], mask=inside, other=MASK)
        revealed = here != MASK
        for_beside = tl.where(beside == here, 65537, tl.where(beside != MASK, 1, 0))
        for_below = tl.where(below == here, 65537, tl.where(below != MASK, 1, 0))
        both += tl.where(revealed, for_beside + for_below, 0)
    both = tl.sum(both, 1)
    tl.store(equal_ptr + p, both >> 16, mask=p < P)
    tl.store(known_ptr + p, both & 65535, mask=p < P)


def bonds(s: Tensor, mask: int) -> tuple[Tensor, Tensor]:
    """How many bonds of each state s [P, L, L], uint8, join equal symbols, and how many are known: int32 [P] each.

    Fifteen bits count up to 2 L² bonds, so L is at most 127.
    """
    P, size, sites = len(s), s.shape[-1], s.shape[-1] ** 2
    tile = min(LARGEST_TILE, 1 << (sites - 1).bit_length())
    rows = BLOCK // tile
    equal, known = (torch.empty(P, dtype=torch.int32, device=s.device) for _ in range(2))
    sizes: Any = {"SIZE": size, "MASK": mask, "TILES": -(-sites // tile), "ROWS": rows, "TILE": tile}
    _bonds[(-(-P // rows),)](s.contiguous(), equal, known, P, **sizes)
    return equal, known
