"""An E(n)-equivariant network for particles x_i ∈ R^dim with zero centre of mass, with symbols as node features.

Messages depend on positions through distances d_ij alone, so node features h_i are invariant under rotations and
reflections, and every sum over particles is symmetric:

    h_i ← embedding(symbols of i) + U τ(t),
    m_ij = φ_k(h_i, h_j, d_ij),      h_i ← h_i + ψ_k(h_i, mean_j m_ij, τ(t)).

Logits are linear in h_i, scalars are Σ_i of one number per particle, and the mean of the particles' positions is the
equivariant displacement o_i = mean_j (x_i − x_j)/(1 + d_ij) · φ(h_i, h_j, d_ij), projected to zero centre of mass.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from egm.networks.base import Body, Head, is_particles, positive
from egm.networks.embeddings import TIME_FEATURES, SymbolEmbedding, TimeEmbedding
from egm.spaces import Space, State

RADIAL = 16  # Gaussian bumps over distances of up to six standard deviations of the reference law
FARTHEST = 6.0


class EGNN(Body):
    """`depth` rounds of messages between all pairs of particles, with `width` features."""

    symmetries = ("permutation", "rotation", "reflection")

    def __init__(
        self, space: Space, outputs: Mapping[str, tuple[int, ...]], *, width: int = 64, depth: int = 4
    ) -> None:
        super().__init__(space, outputs)
        positive(width=width, depth=depth)
        if not is_particles(space):
            raise ValueError(
                "EGNN needs one Real of shape (particles, dimension) with centered=True, and all other variables"
                f" Categorical of shape (particles,); got {space!r}; use ResidualMLP"
            )
        ((self.positions, self.variable),) = space.real.items()
        if self.outputs.get(self.positions, self.variable.latent_shape) != self.variable.latent_shape:
            raise ValueError(
                f"EGNN returns means of '{self.positions}', not the log-rates of a jump kernel, which moves one"
                " coordinate at a time; follow its path with Flow or Diffusion"
            )
        self.width, self.depth = width, depth
        self.time, self.radial = TimeEmbedding(), _Radial()
        self.start = nn.Linear(TIME_FEATURES, width)
        self.tables = nn.ModuleList(SymbolEmbedding(v.size + 1, width) for v in space.categorical.values())
        self.layers = nn.ModuleList(_Layer(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.pull = _Pairs(width) if self.positions in self.outputs else None
        # for positions, a weight per pair; for symbols, logits per particle; for scalars, one number per particle
        self.heads = nn.ModuleList(
            Head(width, () if name == self.positions else shape[1:]) for name, shape in self.outputs.items()
        )

    def forward(self, state: State, t: Tensor) -> State:
        batch = self.batch_shape(state, t)
        x = state[self.positions]
        difference = x[..., :, None, :] - x[..., None, :, :]
        distance = (difference.square().sum(-1, keepdim=True) + 1e-6).sqrt()  # smooth at i = j
        radial, time = self.radial(distance), self.time(t)[..., None, :]
        h = self.start(time)
        for name, table in zip(self.space.categorical, self.tables, strict=True):
            h = h + table(state[name])
        h = h.expand(*batch, x.shape[-2], self.width)
        for layer in self.layers:
            h = layer(h, radial, time)
        h, pull = self.norm(h), self.pull
        result: State = {}
        for (name, shape), head in zip(self.outputs.items(), self.heads, strict=True):
            if name == self.positions and pull is not None:
                weight = head(pull(h, radial))[..., None] / (1 + distance)
                result[name] = self.variable.project((weight * difference).mean(-2))
            else:
                result[name] = head(h) if shape else head(h).sum(-1)
        return result


class _Radial(nn.Module):
    """Features of distances [..., 1]: the distance and Gaussian bumps, [..., 1 + RADIAL]."""

    centres: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(0, FARTHEST, RADIAL), persistent=False)

    def forward(self, distance: Tensor) -> Tensor:
        width = FARTHEST / (RADIAL - 1)
        return torch.cat([distance, torch.exp(-0.5 * ((distance - self.centres) / width).square())], -1)


class _Pairs(nn.Module):
    """φ(h_i, h_j, d_ij), [..., particles, particles, width]; its first layer acts on particles, then broadcasts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.receiver, self.sender = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.radial = nn.Linear(1 + RADIAL, width)
        self.second = nn.Linear(width, width)

    def forward(self, h: Tensor, radial: Tensor) -> Tensor:
        pair = self.radial(radial).add_(self.receiver(h)[..., :, None, :]).add_(self.sender(h)[..., None, :, :])
        return silu(self.second(silu(pair, inplace=True)), inplace=True)


class _Layer(nn.Module):
    """One round of messages."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.pairs = nn.LayerNorm(width), _Pairs(width)
        self.node, self.message = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.time = nn.Linear(TIME_FEATURES, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor, radial: Tensor, time: Tensor) -> Tensor:
        x = self.norm(h)
        message = self.pairs(x, radial).mean(-2)
        update = self.node(x).add_(self.message(message)).add_(self.time(time))
        return h + self.out(silu(update, inplace=True))
