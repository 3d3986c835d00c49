"""Circular convolutions for variables that live on one periodic 2-D grid.

    h_0 = Σ_variables embedding(x),
    h_{k+1} = h_k + A_k SiLU(C_k * N(h_k) + G_k mean_sites N(h_k) + U_k τ(t) + b_k),

with C_k * a convolution on the torus and N(h) = (h − mean)/std over the channels of a site. The mean over sites reaches
every site in one block, as long-range order needs. The outputs of a variable are computed site by site, so the network
commutes with translations; a scalar is the plain sum over sites of one number per site (not divided by their number:
energies are extensive), so it is invariant.

On a GPU these blocks are limited by memory bandwidth, so the blocks of symbols are Triton kernels
(`egm.networks.lattice_kernels`), and float32 networks keep h in bfloat16 if all outputs are logits. This rounding (2⁻⁹)
changes the sampler slightly but leaves its weights exact, because they use the same logits as the draws. Scalars, whose
rounding would grow with the lattice, are computed in float32, and so are networks of reals, which a flow
differentiates: these use no Triton kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, layer_norm, linear, silu

from egm.networks.base import Body, Head, positive
from egm.networks.embeddings import TIME_FEATURES, SymbolEmbedding, TimeEmbedding
from egm.spaces import Categorical, Space, State
from egm.util.triton import find_kernels, report

KERNELS = "egm.networks.lattice_kernels"
_WORKS: dict[tuple[Any, ...], bool] = {}  # by device, dtype and shape: whether `try_out` passed


class LatticeConv(Body):
    """`depth` blocks of `width` channels with a `kernel` × `kernel` neighbourhood (`kernel` is odd).

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
            SymbolEmbedding(v.size + 1, width) if isinstance(v, Categorical) else nn.Linear(1, width)
            for v in space.variables.values()
        )
        self.blocks = nn.ModuleList(_Block(width, kernel) for _ in range(depth))
        # the head of a variable returns the outputs of one site: symbols, bins, or one number
        self.heads = nn.ModuleList(Head(width, shape[2:]) for shape in self.outputs.values())

    def forward(self, state: State, t: Tensor) -> State:
        if not torch.is_autocast_enabled(t.device.type):
            return self._outputs(state, t)
        with torch.autocast(t.device.type, enabled=False):  # what is rounded is decided here
            return self._outputs(state, t)

    def _outputs(self, state: State, t: Tensor) -> State:
        batch = self.batch_shape(state, t)
        dtype, time = self._block_dtype(), self.time(t)
        embedded: list[Tensor] = []
        for (name, variable), embed in zip(self.space.variables.items(), self.inputs, strict=True):
            x = state[name].reshape(batch.numel(), *self.grid)
            embedded.append(embed(x if isinstance(variable, Categorical) else x[..., None]).to(dtype))
        h = self._blocks(functools.reduce(torch.add, embedded), time, batch).to(self.time.frequencies.dtype)
        result: State = {}
        for (name, shape), head in zip(self.outputs.items(), self.heads, strict=True):
            sites = head(h)
            result[name] = (sites if shape else sites.sum((1, 2))).reshape((*batch, *shape))
        return result

    def _blocks(self, h: Tensor, time: Tensor, batch: torch.Size) -> Tensor:
        """Returns N(h) after all blocks."""
        blocks = cast(Iterable[_Block], self.blocks)
        if (kernels := self._kernels(h)) is not None:
            parts = [block.parts(time.expand(*batch, -1).reshape(len(h), -1)) for block in blocks]
            with torch.cuda.device_of(h):
                return kernels.normalised_blocks(h, parts, self.kernel)
        for block in blocks:
            h = block(h, time, batch)
        return layer_norm(h, h.shape[-1:])

    def _kernels(self, h: Tensor) -> Any:
        """Returns `egm.networks.lattice_kernels` if it supports this network and passed `try_out`, or None."""
        kernels = find_kernels(KERNELS) if self._has_kernels(h) else None
        if kernels is None or self.width not in kernels.WIDTHS.get(h.dtype, ()):
            return None
        key = (h.device, h.dtype, self.width, self.kernel, self.grid)
        if key not in _WORKS:  # forwards and backwards: a later failure has no fallback
            try:
                with torch.cuda.device_of(h):
                    kernels.try_out(self.grid, self.width, self.kernel, h)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                report(KERNELS, error)
                _WORKS[key] = False
            else:
                _WORKS[key] = True
        return kernels if _WORKS[key] else None

    def _has_kernels(self, h: Tensor) -> bool:
        return h.is_cuda and not self.space.real

    def _block_dtype(self) -> torch.dtype:
        weight = self.blocks[0].get_parameter("conv")
        logits = all(name in self.space.categorical for name in self.outputs)
        rounded = weight.is_cuda and weight.dtype == torch.float32 and logits
        return torch.bfloat16 if rounded else weight.dtype


class _Block(nn.Module):
    """One residual block on h [N, rows, columns, width]; channels come last, as GPUs prefer."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        conv = nn.Conv2d(width, width, kernel, bias=False)
        self.conv = nn.Parameter(conv.weight.detach().contiguous(memory_format=torch.channels_last))
        self.mean = nn.Linear(width, width, bias=False)
        self.time = nn.Linear(TIME_FEATURES, width)
        self.out = nn.Parameter(nn.Linear(width, width).weight.detach())

    def parts(self, time: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns U τ(t) + b at times embedded as [n, features], and the weights C, G and A."""
        return self.time(time), self.conv, self.mean.weight, self.out

    def forward(self, h: Tensor, time: Tensor, batch: torch.Size) -> Tensor:
        n, width = h.shape[0], h.shape[-1]
        x = layer_norm(h, (width,))
        mean = linear(x.mean((1, 2)), self.mean.weight.to(h.dtype)).reshape(*batch, width)
        shift = (mean + self.time(time).to(h.dtype)).reshape(n, 1, 1, width)
        padded = wrap(x, self.conv.shape[-1] // 2).permute(0, 3, 1, 2)
        y = conv2d(padded, self.conv.to(h.dtype)).permute(0, 2, 3, 1)
        y = silu(y.add_(shift), inplace=True)
        return torch.addmm(h.reshape(-1, width), y.reshape(-1, width), self.out.T.to(h.dtype)).reshape(h.shape)


def wrap(x: Tensor, margin: int) -> Tensor:
    """Pads [N, rows, columns, channels] circularly by a margin of at most one period.

    `torch.nn.functional.pad` would lose the memory layout with channels last.
    """
    if margin == 0:
        return x
    x = torch.cat([x[:, -margin:], x, x[:, :margin]], 1)
    return torch.cat([x[:, :, -margin:], x, x[:, :, :margin]], 2)
