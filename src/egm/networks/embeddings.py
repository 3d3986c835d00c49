"""Embeddings of times, symbols and reals, as inputs of a network.

    time      (sin ω_k t, cos ω_k t), with ω_k in geometric progression from 1 to 256
    symbols   one learned vector for each data symbol and one for the mask, shared by all sites of a variable
    reals     the latent coordinates z themselves, and with frequencies (sin ω_k z, cos ω_k z), ω_k = 2^k π/2 for k = 0,
              1, ...: perceptrons are slow to learn functions that vary over a small part of a coordinate

A time is embedded in its own shape and broadcast only after its projection: for [K, B] states with t of shape [B], only
B times are embedded.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from egm.networks.fused import one_hot
from egm.spaces import Space, State
from egm.util.cached_tensors import cached_tensor

TIME_FEATURES = 64
TOKEN_FEATURES = 4
HIGHEST_FREQUENCY = 256.0  # resolves 1/256 of the path, about the step of a simulation


class TimeEmbedding(nn.Module):
    """Sinusoids of t: [...] to [..., 64]."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        exponents = torch.linspace(0, math.log(HIGHEST_FREQUENCY), TIME_FEATURES // 2)
        self.register_buffer("frequencies", exponents.exp(), persistent=False)

    def forward(self, t: Tensor) -> Tensor:
        angles = t[..., None].to(self.frequencies.dtype) * self.frequencies
        return torch.cat([angles.sin(), angles.cos()], -1)


class SymbolEmbedding(nn.Embedding):
    """A learned vector for each symbol and for the mask; takes symbols of any integer dtype."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.int() if input.dtype == torch.uint8 else input)


class FlatTokens(nn.Module):
    """The symbols of a state, embedded and concatenated: [..., 4 · sites], so that sites stay distinct."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.sites = {name: variable.sites for name, variable in space.categorical.items()}
        # a list, because a ModuleDict rejects names of its own methods ("values", "type"), which users may choose
        self.tables = nn.ModuleList(SymbolEmbedding(v.size + 1, TOKEN_FEATURES) for v in space.categorical.values())
        self.features = TOKEN_FEATURES * sum(self.sites.values())

    def forward(self, state: State, batch: torch.Size) -> list[Tensor]:
        """Returns one tensor [..., 4 · sites] for each categorical variable."""
        pairs = zip(self.sites.items(), self.tables, strict=True)
        return [table(state[name].reshape(*batch, sites)).flatten(-2) for (name, sites), table in pairs]

    def factors(self, state: State, batch: torch.Size, weight: Tensor) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Returns (x, A, b) for each categorical variable: x Aᵀ + b is weight [width, features] times embedded symbols.

        Variables with few symbols use `by_symbol`: a site then has one number for each symbol, at most as many as its
        embedding.
        """
        parts: list[tuple[Tensor, Tensor, Tensor | None]] = []
        shares = weight.split([TOKEN_FEATURES * sites for sites in self.sites.values()], 1)
        for (name, sites), table, own in zip(self.sites.items(), self.tables, shares, strict=True):
            x = state[name].reshape(*batch, sites)
            embedding, n = table.get_parameter("weight"), len(table.get_parameter("weight")) - 1
            if n > TOKEN_FEATURES:
                parts.append((table(x).flatten(-2), own, None))
                continue
            present = one_hot(x, n, working_dtype(weight))
            matrix, hidden = by_symbol(own, embedding)
            if (more := present.shape[-1] - matrix.shape[-1]) > 0:
                matrix = pad(matrix, (0, more))
            parts.append((present, matrix, hidden))
        return parts


def by_symbol(weight: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (A, b) with A x + b = weight [width, 4 · sites] times embedded symbols, for x the `one_hot` of symbols.

    A [width, n · sites] holds the contribution of each symbol minus that of the mask, and b [width] the contribution of
    a fully masked state.
    """
    each = weight.unflatten(1, (-1, TOKEN_FEATURES)) @ embedding.T  # [width, sites, n + 1]
    hidden = each[..., -1]
    return (each[..., :-1] - hidden[..., None]).flatten(1), hidden.sum(1)


class FlatReals(nn.Module):
    """The real variables of a state, concatenated, with `frequencies` sines and cosines of every coordinate."""

    def __init__(self, space: Space, *, frequencies: int = 0) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.sizes = {name: math.prod(variable.latent_shape) for name, variable in space.real.items()}
        self.features = sum(self.sizes.values()) * (1 + 2 * frequencies)

    def forward(self, state: State, batch: torch.Size) -> list[Tensor]:
        """Returns one tensor [..., size · (1 + 2 · frequencies)] for each real variable."""
        parts = [state[name].reshape(*batch, size) for name, size in self.sizes.items()]
        return [sinusoids(x, self.frequencies).flatten(-2) for x in parts] if self.frequencies else parts


def sinusoids(x: Tensor, frequencies: int) -> Tensor:
    """Returns (z, sin ω_k z, cos ω_k z) of every coordinate: [...] to [..., 1 + 2 · frequencies]."""
    omega = tuple(0.5 * math.pi * 2**k for k in range(frequencies))
    angles = x[..., None] * cached_tensor(omega, x.dtype, x.device)
    return torch.cat([x[..., None], angles.sin(), angles.cos()], -1)


def working_dtype(weight: Tensor) -> torch.dtype:
    """Returns the dtype in which a linear layer computes: the dtype of its weight, or of autocast."""
    device = weight.device.type
    rounded = torch.is_autocast_enabled(device) and weight.dtype == torch.float32
    return torch.get_autocast_dtype(device) if rounded else weight.dtype


def join(parts: list[Tensor]) -> Tensor:
    """Concatenates along the last axis; returns a single part without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
