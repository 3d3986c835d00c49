"""Named metrics: distances between draws of a sampler and draws of the target.

    e_w1, e_w2   W1, W2 of the energies              m_w1   W1 of the magnetisation (lattices)
    x_w2         W2 of all real variables together, in x

Each takes (target, draws, reference draws) and evaluates the target's energy if needed. Compare a distance with its
value for exact draws, `floor` (egm.metrics.floors).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from egm.metrics.wasserstein import w1, w2
from egm.spaces import State
from egm.targets.base import Target

Metric: TypeAlias = Callable[..., float]


def distance(of: Metric) -> Callable[[Callable[[Target, State, State], tuple[Tensor, Tensor]]], Metric]:
    """Makes a metric of the function that returns what is compared: a distance `of` the two values."""

    def make(values: Callable[[Target, State, State], tuple[Tensor, Tensor]]) -> Metric:
        @functools.wraps(values)
        def metric(target: Target, draws: State, reference: State, *, log_weights: Tensor | None = None) -> float:
            if log_weights is not None:
                warnings.warn(
                    "log_weights of metrics are deprecated: pass states of equal weight, draws.resample(n)",
                    DeprecationWarning,
                    stacklevel=2,
                )
            a, b = values(target, draws, reference)
            return of(a, b, a_log_weights=log_weights)

        return metric

    return make


@distance(of=w1)
def e_w1(target: Target, draws: State, reference: State) -> tuple[Tensor, Tensor]:
    """Returns W1 between the energies of two sets of states [n, ...]."""
    return target.energy(**draws), target.energy(**reference)


@distance(of=w2)
def e_w2(target: Target, draws: State, reference: State) -> tuple[Tensor, Tensor]:
    """Returns W2 between the energies of two sets of states [n, ...]."""
    return target.energy(**draws), target.energy(**reference)


@distance(of=w1)
def m_w1(target: Target, draws: State, reference: State) -> tuple[Tensor, Tensor]:
    """Returns W1 between the magnetisations of two sets of states [n, ...]."""
    observed, expected = target.observables(**draws), target.observables(**reference)
    if "magnetization" not in observed:
        raise ValueError(f"{target!r} has no magnetisation, which m_w1 compares; its observables are {list(observed)}")
    return observed["magnetization"], expected["magnetization"]


@distance(of=w2)
def x_w2(target: Target, draws: State, reference: State) -> tuple[Tensor, Tensor]:
    """Returns W2 between the concatenated real variables of two sets of states [n, ...]."""
    names = list(target.space.real)
    if not names:
        raise ValueError(f"{target!r} has no Real variable, which x_w2 compares; use e_w1")
    a, b = (torch.cat([state[name].flatten(1) for name in names], 1) for state in (draws, reference))
    return a, b


METRICS: dict[str, Metric] = {"e_w1": e_w1, "e_w2": e_w2, "m_w1": m_w1, "x_w2": x_w2}
LABELS = {"e_w1": "E-W1", "e_w2": "E-W2", "m_w1": "M-W1", "x_w2": "x-W2"}  # in print


def mode_shares(target: Target, draws: State) -> dict[int, float]:
    """Returns the share of the draws in each mode that holds any; −1 collects draws outside all modes."""
    observed = target.observables(**draws)
    if "mode" not in observed:
        raise ValueError(f"{target!r} does not name its modes; its observables are {list(observed)}")
    modes, counts = observed["mode"].flatten().unique(return_counts=True)
    return {int(m): int(c) / observed["mode"].numel() for m, c in zip(modes, counts, strict=True)}


def mode_count(target: Target, draws: State) -> int:
    """Returns the number of modes that hold at least a tenth of their exact mass (any draw, if it is unknown)."""
    shares = mode_shares(target, draws)
    modes = getattr(target, "modes", None)
    needed = {m: 0.1 * float(modes.masses[m]) if modes is not None else 0.0 for m in shares if m >= 0}
    return sum(shares[m] >= least for m, least in needed.items())


def two_point_correlation(target: Target, draws: State) -> Tensor:
    """Returns G(r) = (q P(s_i = s_{i+r}) − 1)/(q − 1) along both axes of a lattice, r = 0 .. L/2, float64 [L/2 + 1].

    For two symbols this is ⟨s_i s_{i+r}⟩ of spins ±1.
    """
    lattices = [name for name, v in target.space.categorical.items() if len(v.shape) == 2 and v.shape[0] == v.shape[1]]
    if not lattices:
        raise ValueError(f"{target!r} has no symbols on a square lattice, which a two-point correlation needs")
    s, q = draws[lattices[0]], target.space.categorical[lattices[0]].size
    equal = [
        torch.stack([(s == s.roll(r, axis)).double().mean() for axis in (-1, -2)]).mean()
        for r in range(s.shape[-1] // 2 + 1)
    ]
    return (q * torch.stack(equal) - 1) / (q - 1)
