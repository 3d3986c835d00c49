"""Computes densities of two real coordinates, for contours under a scatter of draws.

If the space has no other reals and few symbols, the density is exact up to Z: log Σ_symbols exp(−E) on a grid.
Otherwise it is estimated from reference draws: counts on a grid, smoothed by a Gaussian of one and a half bins.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

from egm.report.plotting import Array
from egm.spaces import Space
from egm.targets.base import Target

MOST_SYMBOLS = 64  # states of the symbols in the sum, at most
POINTS, BINS, SMOOTHING = 80, 48, 1.5
LEVELS = (0.02, 0.1, 0.3, 0.7)  # of contours, as shares of the highest density


def log_marginal(target: Target, first: Array, second: Array, dtype: torch.dtype = torch.float64) -> Array:
    """Return log Σ_symbols exp(−E) at the only two real coordinates, `first` and `second`, of any shape.

    User-defined energies may require the `dtype` of their run.
    """
    real = torch.tensor(np.stack([first, second], -1), dtype=dtype)
    name, variable = next(iter(target.space.real.items()))
    x = {name: real.reshape(*first.shape, *variable.shape)}
    total = torch.full(first.shape, -math.inf, dtype=torch.float64)
    for symbols in _symbol_states(target.space):
        state = {key: s.expand(*first.shape, *s.shape) for key, s in symbols.items()}
        total = torch.logaddexp(total, -target.energy(**x, **state).double())
    return total.numpy()


def can_sum(space: Space) -> bool:
    """Return whether `log_marginal` applies to a space: two free real coordinates in one variable, and few symbols."""
    reals = list(space.real.values())
    states = math.prod(n for _, sizes in _sizes(space) for n in sizes)
    free = len(reals) == 1 and math.prod(reals[0].shape) == 2 and reals[0].constraint is None and not reals[0].centered
    return free and states <= MOST_SYMBOLS


def contours(
    target: Target, points: Array, reference: Array | None, dtype: torch.dtype
) -> tuple[Array, Array, Array] | None:
    """Return both axes of a grid around points [n, 2], and the density on it [second, first]; None if it is not known.

    Args:
        target: target of the density.
        points: points of the draws, which the grid has to cover.
        reference: points [m, 2] of reference draws, if there are any.
        dtype: dtype of the reals that the energy is called with.
    """
    if reference is None and not can_sum(target.space):
        return None
    seen = points if reference is None else np.concatenate([points, reference])
    low, high = np.quantile(seen, 0.002, axis=0), np.quantile(seen, 0.998, axis=0)
    margin = 0.15 * np.maximum(high - low, 1e-6)
    if reference is None or can_sum(target.space):
        axes = [np.linspace(a, b, POINTS) for a, b in zip(low - margin, high + margin, strict=True)]
        first, second = np.meshgrid(*axes)
        values = np.nan_to_num(log_marginal(target, first, second, dtype), nan=-np.inf, neginf=-np.inf)
        return (axes[0], axes[1], np.exp(values - values.max())) if values.max() > -np.inf else None
    edges = [np.linspace(a, b, BINS + 1) for a, b in zip(low - margin, high + margin, strict=True)]
    counts, *_ = np.histogram2d(*reference.T, bins=edges)
    smooth = gaussian_filter(counts, SMOOTHING)
    centres = [(e[1:] + e[:-1]) / 2 for e in edges]
    return centres[0], centres[1], smooth.T / smooth.max()


def _sizes(space: Space) -> list[tuple[str, list[int]]]:
    """Return the number of symbols of every site."""
    return [
        (name, torch.as_tensor(v.n).expand(v.shape).flatten().tolist() if v.shape else [v.size])
        for name, v in space.categorical.items()
    ]


def _symbol_states(space: Space) -> list[dict[str, torch.Tensor]]:
    sizes = _sizes(space)
    found = []
    for symbols in itertools.product(*(range(n) for _, each in sizes for n in each)):
        rest, state = iter(symbols), {}
        for name, each in sizes:
            state[name] = torch.tensor([next(rest) for _ in each]).reshape(space.categorical[name].shape)
        found.append(state)
    return found
