"""A Triton kernel that counts the bonds of a lattice; it reads states once, as bytes.

Every site of a torus owns the bond to its right and the bond below. The kernel counts the bonds between revealed sites,
and how many of these join equal symbols; the target computes energies from the counts.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, LARGEST_TILE = 4096, 128


@triton.jit
def _bonds(
    s_ptr, equal_ptr, known_ptr, P,
    SIZE: tl.constexpr, MASK: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Handles ROWS states in one program. If MASK is negative, every site is revealed and known_ptr is not used."""
    SITES: tl.constexpr = SIZE * SIZE
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    both = tl.zeros([ROWS, TILE], tl.int32)  # known bonds in the lower half of the bits, equal ones in the upper
    base = s_ptr + p.to(tl.int64)[:, None] * SITES
    for tile in range(TILES):
        at = tile * TILE + tl.arange(0, TILE)
        right = at - at % SIZE + (at + 1) % SIZE
        inside = (p < P)[:, None] & (at < SITES)[None, :]
        here = tl.load(base + at[None, :], mask=inside, other=0)
        beside = tl.load(base + right[None, :], mask=inside, other=0)
        below = tl.load(base + ((at + SIZE) % SITES)[None, :], mask=inside, other=0)
        if MASK < 0:
            found = tl.where(beside == here, 65536, 0) + tl.where(below == here, 65536, 0)
            both += tl.where(inside, found, 0)
        else:
            for_beside = tl.where(beside == here, 65537, tl.where(beside != MASK, 1, 0))
            for_below = tl.where(below == here, 65537, tl.where(below != MASK, 1, 0))
            both += tl.where(inside & (here != MASK), for_beside + for_below, 0)
    both = tl.sum(both, 1)
    tl.store(equal_ptr + p, both >> 16, mask=p < P)
    if MASK >= 0:
        tl.store(known_ptr + p, both & 65535, mask=p < P)


def bonds(s: Tensor, mask: int | None) -> tuple[Tensor, Tensor | int]:
    """Returns how many bonds of each state s [P, L, L], uint8, join equal symbols, and how many are known: int32 [P].

    A bond is known if both of its sites are revealed; without a mask symbol all 2 L² are. Fifteen bits hold a count, so
    L is at most 127.
    """
    P, size, sites = len(s), s.shape[-1], s.shape[-1] ** 2
    tile = min(LARGEST_TILE, 1 << (sites - 1).bit_length())
    rows = BLOCK // tile
    equal = torch.empty(P, dtype=torch.int32, device=s.device)
    known = equal if mask is None else torch.empty_like(equal)
    symbol = -1 if mask is None else mask
    sizes: Any = {"SIZE": size, "MASK": symbol, "TILES": -(-sites // tile), "ROWS": rows, "TILE": tile}
    _bonds[(-(-P // rows),)](s.contiguous(), equal, known, P, **sizes)
    return equal, 2 * sites if mask is None else known
