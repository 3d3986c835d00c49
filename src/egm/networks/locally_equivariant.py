"""A locally equivariant network on a periodic square grid: jump rates that determine their reverse rates (LEAPS).

With x[i=τ] the state x whose site i holds τ, F(τ, i | x) is *locally equivariant* if

    F(τ, i | x) = −F(x_i, i | x[i=τ])        (so F(x_i, i | x) = 0),

which means F(τ, i | x) = A_i(τ, x_i) with a matrix A_i over pairs of symbols that is antisymmetric and does not depend
on x_i. Here A_i = M_i − M_iᵀ, with M_i read off features of site i that never see x_i: one convolution over the whole
lattice without the tap at its centre, followed only by perceptrons at each site,

    h_0 = SiLU(C * e(x) + U_0 τ(t) + b),   h_{k+1} = h_k + SiLU(A_k N(h_k) + U_k τ(t) + b_k),   M = B h_depth,

with e(x) the one-hot symbols and N(h) = (h − mean)/std over the channels of a site. A second convolution would bring
x_i back through its neighbours. So one perceptron, shared by all sites, acts on the surroundings of each site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, layer_norm, silu

from egm.networks.base import Body, positive
from egm.networks.embeddings import TIME_FEATURES, TimeEmbedding
from egm.spaces import Space, State

SITE_FEATURES = 8  # of a symbol, if every site has its own embedding
SMALL = 1e-2  # scale of the initial rates: at zero, [F]₊ and [−F]₊ would have no gradient


class LocallyEquivariantConv(Body):
    """A convolution over the whole lattice without the centre, then `depth` layers of `width` at every site.

    Args:
        space: one Categorical variable on a square grid, with the same number n of symbols everywhere.
        outputs: the variable's name with (size, size, n), the shape of F(τ, i | x).
        width, depth: width and depth of the perceptron.
        positions: learn a symbol embedding and a bias for every site, for energies that are not translation invariant.

    >>> from egm.spaces import Categorical
    >>> network = LocallyEquivariantConv(Space(s=Categorical(2, shape=(4, 4))), {"s": (4, 4, 2)}, width=8)
    >>> network({"s": torch.zeros(3, 4, 4, dtype=torch.int64)}, torch.zeros(3))["s"].shape
    torch.Size([3, 4, 4, 2])
    """

    locally_equivariant = True
    centre: Tensor

    def __init__(
        self,
        space: Space,
        outputs: Mapping[str, tuple[int, ...]],
        *,
        width: int = 64,
        depth: int = 2,
        positions: bool = False,
    ) -> None:
        super().__init__(space, outputs)
        positive(width=width, depth=depth)
        self.name = next(iter(self.outputs))
        variable = space.categorical.get(self.name)
        if variable is None or len(space.variables) != 1 or len(self.outputs) != 1:
            raise ValueError(f"LocallyEquivariantConv needs a space with a single Categorical variable, got {space!r}")
        if len(variable.shape) != 2 or variable.shape[0] != variable.shape[1] or not isinstance(variable.n, int):
            raise ValueError(
                "LocallyEquivariantConv needs a square grid with the same number of symbols at every site, got"
                f" {variable!r}"
            )
        self.width, self.depth, self.positions = width, depth, positions
        self.size, self.symbols = size, n = variable.shape[0], variable.n
        self.symmetries = () if positions else ("translation",)
        features = SITE_FEATURES if positions else n
        self.time = TimeEmbedding()
        self.embedding = nn.Parameter(torch.randn(size**2, n, features)) if positions else None
        self.bias = nn.Parameter(torch.zeros(size, size, width)) if positions else None
        self.taps = nn.Parameter(torch.randn(width, features, size, size) / math.sqrt(size**2))
        self.register_buffer("centre", torch.ones(size, size), persistent=False)
        self.centre[size // 2, size // 2] = 0.0
        self.times = nn.ModuleList(nn.Linear(TIME_FEATURES, width) for _ in range(depth + 1))
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.head = nn.Linear(width, n**2, bias=False)
        with torch.no_grad():
            self.head.weight.mul_(SMALL)

    def forward(self, state: State, t: Tensor) -> State:
        batch, size, n = self.batch_shape(state, t), self.size, self.symbols
        x = state[self.name].reshape(batch.numel(), size, size).long()
        tau = self.time(t)
        shifts = [layer(tau).expand(*batch, -1).reshape(len(x), 1, 1, self.width) for layer in self.times]
        surroundings = conv2d(self._wrapped(self._embedded(x)).permute(0, 3, 1, 2), self.taps * self.centre)
        h = surroundings.permute(0, 2, 3, 1) + shifts[0]
        h = silu(h if self.bias is None else h + self.bias)
        for layer, shift in zip(self.layers, shifts[1:], strict=True):
            h = h + silu(layer(layer_norm(h, (self.width,))) + shift)
        pairs = self.head(h).unflatten(-1, (n, n))
        own = x[..., None, None].expand(*x.shape, n, 1)
        rates = (pairs - pairs.mT).gather(-1, own)
        return {self.name: rates.reshape(*batch, size, size, n)}

    def _embedded(self, x: Tensor) -> Tensor:
        """Returns e(x), [b, size, size, features]."""
        if self.embedding is None:
            return (x[..., None] == torch.arange(self.symbols, device=x.device)).to(self.taps.dtype)
        return self.embedding[torch.arange(self.size**2, device=x.device).reshape(self.size, self.size), x]

    def _wrapped(self, e: Tensor) -> Tensor:
        """Pads circularly, such that the tap at size // 2 meets a site itself and every other site meets one tap."""
        before, after = self.size // 2, self.size - 1 - self.size // 2
        e = torch.cat([e[:, self.size - before :], e, e[:, :after]], 1)
        return torch.cat([e[:, :, self.size - before :], e, e[:, :, :after]], 2)
