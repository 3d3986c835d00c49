"""Exact Wasserstein distances between samples, W_p = (min over couplings of E‖x − y‖^p)^{1/p}.

In one dimension the optimal coupling is monotone. In R^d equal unweighted sets are matched by linear assignment;
weighted or unequal sets need a transport plan, which POT (the extra `ot`) computes. Log-weights need not be normalised.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from scipy.stats import wasserstein_distance
from torch import Tensor

from egm.util.extras import needed

Array = NDArray[np.float64]


def w1(a: Tensor, b: Tensor, *, a_log_weights: Tensor | None = None) -> float:
    """Returns W1 between scalars a [n] and b [m]; `a` may carry weights.

    >>> w1(torch.tensor([0.0, 1.0]), torch.tensor([3.0, 2.0]))
    2.0
    """
    a, weights = _weighted(a, a_log_weights)
    return float(wasserstein_distance(_scalars("a", a), _scalars("b", b), weights))


def w2(a: Tensor, b: Tensor, *, a_log_weights: Tensor | None = None) -> float:
    """Returns W2 between points a [n, d] and b [m, d] (or scalars [n], [m]); `a` may carry weights.

    >>> w2(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 2.0], [0.0, 2.0]]))
    2.0
    """
    if a.ndim != b.ndim or a.shape[1:] != b.shape[1:] or a.ndim not in (1, 2):
        raise ValueError(f"w2 compares [n, d] with [m, d] or [n] with [m], got {tuple(a.shape)} and {tuple(b.shape)}")
    if a_log_weights is not None or len(a) != len(b):
        return _transport(a, b, a_log_weights)
    if a.ndim == 1:
        x, y = np.sort(_scalars("a", a)), np.sort(_scalars("b", b))
        return float(np.sqrt(np.mean((x - y) ** 2)))
    cost = cdist(_array(a), _array(b), "sqeuclidean")
    rows, columns = linear_sum_assignment(cost)
    return float(np.sqrt(cost[rows, columns].mean()))


def w1_to_quantiles(a: Tensor, quantiles: list[float], *, a_log_weights: Tensor | None = None) -> float:
    """Returns W1 between scalars and a distribution given by equally spaced quantiles (a reference summary)."""
    levels = (np.arange(16 * len(quantiles)) + 0.5) / (16 * len(quantiles))
    atoms = np.interp(levels, np.linspace(0, 1, len(quantiles)), quantiles)
    a, weights = _weighted(a, a_log_weights)
    return float(wasserstein_distance(_scalars("a", a), atoms, weights))


def _transport(a: Tensor, b: Tensor, a_log_weights: Tensor | None) -> float:
    library = needed("ot", what="W2 of weighted or unequal sets", extra="ot")
    a, weights = _weighted(a, a_log_weights)
    cost = cdist(_array(a.reshape(len(a), -1)), _array(b.reshape(len(b), -1)), "sqeuclidean")
    masses = np.full(len(a), 1 / len(a)) if weights is None else weights
    return float(np.sqrt(library.emd2(masses, np.full(len(b), 1 / len(b)), cost, numItermax=10_000_000)))


def _weighted(values: Tensor, log_weights: Tensor | None) -> tuple[Tensor, Array | None]:
    """Returns the values of positive weight and their normalised weights; others may be infinite energies."""
    if log_weights is None:
        return values, None
    if tuple(log_weights.shape) != (len(values),):
        raise ValueError(f"log-weights need the shape [{len(values)}], one per draw, got {tuple(log_weights.shape)}")
    kept = log_weights > -torch.inf
    if not bool(kept.any()):
        raise ValueError("every weight is zero: no draw has positive density")
    return values[kept], torch.softmax(log_weights[kept].double(), 0).cpu().numpy()


def _scalars(name: str, values: Tensor) -> Array:
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"{name} must be a non-empty vector of scalars, got shape {tuple(values.shape)}")
    return _array(values)


def _array(values: Tensor) -> Array:
    array = values.detach().double().cpu().numpy()
    if not np.isfinite(array).all():
        raise ValueError("samples hold NaN or infinite values (for energies: draws of zero density)")
    return array
