"""Circular convolutions for variables that live on one periodic 2-D grid.

    h_0 = Σ_variables embedding(x),
    h_{k+1} = h_k + A_k SiLU(C_k * LN(h_k) + G_k mean_sites LN(h_k) + U_k τ(t)),

with C_k * a convolution on the torus. The mean over sites reaches every site in one block, as long-range order needs.
Outputs of a variable are read off site by site, so the network commutes with translations; a scalar is the plain sum
over sites of one number a site (not divided by their number: energies are extensive), so it is invariant.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, silu

from egm.networks.base import Body, Head, positive
from egm.networks.embeddings import TIME_FEATURES, TimeEmbedding
from egm.spaces import Categorical, Space, State


class LatticeConv(Body):
    """`depth` blocks of `width` channels with a `kernel` × `kernel` neighbourhood (odd).

    The default width was the best of 32 and 64 for a minute of training on one CPU core; on a GPU, try wider.
    """

    symmetries = ("translation",)

    def __init__(
        self,
        space: Space,
        outputs: Mapping[str, tuple[int, ...]],
        *,
        width: int = 32,
        depth: int = 6,
        kernel: int = 3,
    ) -> None:
        super().__init__(space, outputs)
        positive(width=width, depth=depth, kernel=kernel)
        grids = {variable.latent_shape for variable in space.variables.values()}
        if len(grids) != 1 or len(grid := next(iter(grids))) != 2:
            raise ValueError(
                f"LatticeConv needs variables of one common 2-D shape, got {space!r}; use MLP or ResidualMLP"
            )
        if kernel % 2 == 0 or kernel // 2 > min(grid):
            raise ValueError(
                f"kernel must be odd and at most {2 * min(grid) + 1} on a grid of shape {grid}, got {kernel}; try 3"
            )
        self.width, self.depth, self.kernel, self.grid = width, depth, kernel, grid
        self.time = TimeEmbedding()
        self.inputs = nn.ModuleList(
            nn.Embedding(v.size + 1, width) if isinstance(v, Categorical) else nn.Linear(1, width)
            for v in space.variables.values()
        )
        self.blocks = nn.ModuleList(_Block(width, kernel) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        # a variable's head gives what one site needs: its symbols, its bins, or a number
        self.heads = nn.ModuleList(Head(width, shape[2:]) for shape in self.outputs.values())

    def forward(self, state: State, t: Tensor) -> State:
        batch = self.batch_shape(state, t)
        embedded: list[Tensor] = []
        for (name, variable), embed in zip(self.space.variables.items(), self.inputs, strict=True):
            x = state[name].reshape(batch.numel(), *self.grid)
            embedded.append(embed(x if isinstance(variable, Categorical) else x[..., None]))
        h, time = functools.reduce(torch.add, embedded), self.time(t)
        for block in self.blocks:
            h = block(h, time, batch)
        h = self.norm(h)
        result: State = {}
        for (name, shape), head in zip(self.outputs.items(), self.heads, strict=True):
            sites = head(h)
            result[name] = (sites if shape else sites.sum((1, 2))).reshape((*batch, *shape))
        return result


class _Block(nn.Module):
    """One residual block on h [N, rows, columns, width]; channels come last, which is what LayerNorm and GPUs like."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv2d(width, width, kernel)
        self.mean = nn.Linear(width, width, bias=False)
        self.time = nn.Linear(TIME_FEATURES, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor, time: Tensor, batch: torch.Size) -> Tensor:
        x = self.norm(h)
        shift = self.mean(x.mean((1, 2))).reshape(*batch, h.shape[-1]) + self.time(time)
        padded = wrap(x, self.conv.kernel_size[0] // 2).permute(0, 3, 1, 2)
        y = conv2d(padded, self.conv.weight, self.conv.bias).permute(0, 2, 3, 1)
        return h + self.out(silu(y.add_(shift.reshape(h.shape[0], 1, 1, h.shape[-1])), inplace=True))


def wrap(x: Tensor, margin: int) -> Tensor:
    """Circular padding of [N, rows, columns, channels] by a margin of at most one period.

    (`torch.nn.functional.pad` would do, but loses the memory layout with channels last.)
    """
    if margin == 0:
        return x
    x = torch.cat([x[:, -margin:], x, x[:, :margin]], 1)
    return torch.cat([x[:, :, -margin:], x, x[:, :, :margin]], 2)
