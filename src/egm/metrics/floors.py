"""Floors: the mean of a metric between sets of exact draws; on average, no sampler can be below the floor.

A sampler is *at the floor* when the mean of at least 20 evaluations, with fresh draws and fresh exact samples on both
sides, is at most 1.25 × a floor estimated from at least 200 pairs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from egm.metrics.metrics import METRICS, Metric
from egm.targets.base import Target
from egm.util.seeds import derive_seed

TOLERANCE = 1.25
LEAST_EVALUATIONS = 20
LEAST_PAIRS = 200


@dataclass(frozen=True)
class Floor:
    """Distribution of a metric between two independent sets of n exact draws.

    Attributes:
        metric: name of the metric.
        n: number of draws in each set.
        pairs: number of pairs of sets.
        seed: seed of the draws.
        mean: mean over the pairs.
        std: standard deviation over the pairs.
        reference_kind: kind of the draws: "exact", or "mcmc" (disjoint draws of one long simulation).
    """

    metric: str
    n: int
    pairs: int
    seed: int
    mean: float
    std: float
    reference_kind: str

    @property
    def stderr(self) -> float:
        """Standard error of `mean`."""
        return self.std / math.sqrt(self.pairs)


def floor(metric: str | Metric, target: Target, n: int = 2000, *, pairs: int = LEAST_PAIRS, seed: int = 0) -> Floor:
    """Evaluates a metric (a name in `METRICS`, or a function) on `pairs` independent pairs of n exact draws.

    >>> import egm
    >>> 0.03 < floor("e_w1", egm.targets.GBRBM(), n=500, pairs=20).mean < 0.2
    True
    """
    function = find_metric(metric)
    if pairs < 2:
        raise ValueError(f"pairs must be at least 2 to have a spread, got {pairs}")
    values = []
    for pair in range(pairs):
        both = target.exact_sample(2 * n, seed=derive_seed(seed, pair))
        first, second = ({name: x[part] for name, x in both.items()} for part in (slice(n), slice(n, None)))
        values.append(function(target, first, second))
    name = metric if isinstance(metric, str) else getattr(metric, "__name__", repr(metric))
    kind = str(target.reference_kind)
    return Floor(name, n, pairs, seed, float(np.mean(values)), float(np.std(values, ddof=1)), kind)


def known_floor(metric: str, target: Target, n: int) -> Floor | None:
    """Returns the floor that ships with the package for a built-in target, or None (`benchmarks/floors.py`)."""
    built_in = target.built_in
    stored = _shipped().get(floor_key(metric, target, n)) if built_in else None
    return None if stored is None else Floor(**stored)


def at_floor(values: Sequence[float], floor: Floor) -> bool:
    """Returns whether evaluations with fresh draws on both sides are at the floor; raises if there are too few."""
    score = {"mean": float(np.mean(values)), "floor": floor.mean, "floor_pairs": floor.pairs}
    verdict = score_at_floor(score, evaluations=len(values))
    if verdict is None:
        raise ValueError(
            f"'at the floor' needs at least {LEAST_EVALUATIONS} evaluations and a floor of {LEAST_PAIRS} pairs, got"
            f" {len(values)} and {floor.pairs}"
        )
    return verdict


def score_at_floor(score: Mapping[str, float], *, evaluations: int) -> bool | None:
    """Returns whether a metric in the record of a run is at the floor; None if there are too few evaluations or pairs.

    Args:
        score: "mean" of the evaluations, "floor", and the number of its pairs, "floor_pairs".
        evaluations: number of evaluations.

    >>> score = {"mean": 0.12, "floor": 0.1, "floor_pairs": 200}
    >>> score_at_floor(score, evaluations=20), score_at_floor(score, evaluations=19)
    (True, None)
    """
    if evaluations < LEAST_EVALUATIONS or score["floor_pairs"] < LEAST_PAIRS:
        return None
    return score["mean"] <= TOLERANCE * score["floor"]


def find_metric(metric: str | Metric) -> Metric:
    """Returns the metric of that name; a function is returned unchanged."""
    if not isinstance(metric, str):
        return metric
    if metric not in METRICS:
        raise ValueError(f"unknown metric '{metric}'; choose one of {sorted(METRICS)} or pass a function")
    return METRICS[metric]


def floor_key(metric: str, target: Target, n: int) -> str:
    """Returns the key of a floor in the file that ships with the package."""
    return f"{metric} of {target!r}, n = {n}"


@lru_cache(maxsize=1)
def _shipped() -> dict[str, dict[str, Any]]:
    return json.loads((resources.files("egm.metrics") / "floors.json").read_text(encoding="utf-8"))
