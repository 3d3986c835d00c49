"""Multilayer perceptrons on any space: the networks of the paper's experiments.

`MLP` (lattices): h_1 = SiLU(W [tokens, reals] + U τ(t) + b), h_{k+1} = SiLU(W_k h_k + b_k), one linear head per output.

`ResidualMLP` (mixed spaces): h_0 = W [tokens, SiLU(V reals)] + U τ(t) + b, h_{k+1} = h_k + A_k SiLU(B_k LN(h_k)), and
a separate predictor head(SiLU(P LN(h))) for each output.

Concatenating the time embedding τ(t) is the same as adding its projection U τ(t), which is computed in the shape of t.
Activations are overwritten in place, because these networks process hundreds of thousands of states at once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from egm.networks.base import Body, Head, not_negative, positive
from egm.networks.embeddings import (
    TIME_FEATURES,
    TOKEN_FEATURES,
    FlatReals,
    FlatTokens,
    TimeEmbedding,
    by_symbol,
    join,
    working_dtype,
)
from egm.networks.fused import add_silu
from egm.spaces import Space, State
from egm.util.triton import attempt

KERNELS = "egm.networks.perceptron_kernels"
REAL_FEATURES = 64
MANY_STATES = 4096  # from this many on, splitting the first layer's matrix pays on a CPU


class MLP(Body):
    """A plain perceptron with `depth` hidden layers of `width` units."""

    def __init__(
        self, space: Space, outputs: Mapping[str, tuple[int, ...]], *, width: int = 256, depth: int = 3
    ) -> None:
        super().__init__(space, outputs)
        positive(width=width, depth=depth)
        self.width, self.depth = width, depth
        self.tokens, self.reals, self.time = FlatTokens(space), FlatReals(space), TimeEmbedding()
        self.first = nn.Linear(self.tokens.features + self.reals.features, width)
        self.first_time = nn.Linear(TIME_FEATURES, width, bias=False)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth - 1))
        self.heads = nn.ModuleList(Head(width, shape) for shape in self.outputs.values())

    def forward(self, state: State, t: Tensor) -> State:
        batch = self.batch_shape(state, t)
        if (scalar := self._in_one_pass(state, t, batch)) is not None:
            return dict.fromkeys(self.outputs, scalar)
        h = first_layer(self.first, self.tokens, state, batch, self.reals(state, batch))
        h = add_silu(h, self.first_time(self.time(t)))
        for layer in self.hidden:
            h = silu(layer(h), inplace=True)
        return {name: head(h) for name, head in zip(self.outputs, self.heads, strict=True)}

    def _in_one_pass(self, state: State, t: Tensor, batch: torch.Size) -> Tensor | None:
        """Returns the scalar of symbol states by one Triton kernel, [...]; None if unsupported or with gradients."""
        rounded = working_dtype(self.first.weight) == torch.bfloat16 and not torch.is_grad_enabled()
        alone = list(self.outputs.values()) == [()] and list(self.space) == list(self.tokens.sites)[:1]
        if not (rounded and alone and t.shape == batch[len(batch) - t.ndim :]):
            return None
        ((name, sites),) = self.tokens.sites.items()
        x, embedding = state[name].reshape(*batch, sites), self.tokens.tables[0].get_parameter("weight")
        n, head = len(embedding) - 1, self.heads[0].get_submodule("linear")

        def run(kernels: Any) -> Tensor | None:
            if n > TOKEN_FEATURES or not kernels.serves(x, n, t.numel(), self.width, self.depth):
                return None
            a, c = by_symbol(self.first.weight, embedding)
            c = self.first_time(self.time(t)) + (self.first.bias + c)
            weights, biases = (torch.stack([m.get_parameter(p) for m in self.hidden]) for p in ("weight", "bias"))
            w, last = head.get_parameter("weight"), head.get_parameter("bias")
            return kernels.scalars(x, n, a, c, weights, biases, w[0], last).to(w.dtype)

        return attempt(KERNELS, x, run)


class ResidualMLP(Body):
    """`depth` residual blocks of `width` units, and a separate predictor for each output.

    Args:
        frequencies: number of sines and of cosines added to every real coordinate (`egm.networks.embeddings`), instead
            of the 64 features SiLU(V reals); for many coordinates, or for many narrow modes, such as six for modes of a
            twentieth of the whole width.
    """

    def __init__(
        self,
        space: Space,
        outputs: Mapping[str, tuple[int, ...]],
        *,
        width: int = 128,
        depth: int = 6,
        frequencies: int = 0,
    ) -> None:
        super().__init__(space, outputs)
        positive(width=width, depth=depth)
        not_negative(frequencies=frequencies)
        self.width, self.depth, self.frequencies = width, depth, frequencies
        self.tokens, self.time = FlatTokens(space), TimeEmbedding()
        self.reals = FlatReals(space, frequencies=frequencies)
        learned = bool(space.real) and not frequencies
        self.real_embedding = nn.Linear(self.reals.features, REAL_FEATURES) if learned else None
        self.first = nn.Linear(self.tokens.features + (REAL_FEATURES if learned else self.reals.features), width)
        self.first_time = nn.Linear(TIME_FEATURES, width, bias=False)
        self.blocks = nn.ModuleList(perceptron(width, nn.Linear(width, width)) for _ in range(depth))
        self.predictors = nn.ModuleList(perceptron(width, Head(width, shape)) for shape in self.outputs.values())

    def forward(self, state: State, t: Tensor) -> State:
        batch = self.batch_shape(state, t)
        reals = self.reals(state, batch)
        if self.real_embedding is not None:
            reals = [silu(self.real_embedding(join(reals)), inplace=True)]
        h = first_layer(self.first, self.tokens, state, batch, reals).add_(self.first_time(self.time(t)))
        for block in self.blocks:
            h = h + block(h)
        return {name: predictor(h) for name, predictor in zip(self.outputs, self.predictors, strict=True)}


def first_layer(layer: nn.Linear, tokens: FlatTokens, state: State, batch: torch.Size, reals: list[Tensor]) -> Tensor:
    """Returns W [tokens, reals] + b, [..., width]; if faster, by parts and without embedding the tokens."""
    if batch.numel() < MANY_STATES and not layer.weight.is_cuda:
        return layer(join(tokens(state, batch) + reals))
    parts = tokens.factors(state, batch, layer.weight[:, : tokens.features])
    if reals:
        parts.append((join(reals), layer.weight[:, tokens.features :], None))
    (x, matrix, _), *others = parts
    constants = [b for _, _, b in parts if b is not None]
    h = linear(x, matrix, functools.reduce(torch.add, constants, layer.bias))
    for x, matrix, _ in others:
        h = h.add_(linear(x, matrix))
    return h


def perceptron(width: int, last: nn.Module) -> nn.Sequential:
    """Returns the module last(SiLU(P LN(h)))."""
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(inplace=True), last)
