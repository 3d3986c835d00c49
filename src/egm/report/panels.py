"""Draws figures of numbers: metrics relative to their floors, histograms, weights, and training over time.

*Weights* are shown in units of their mean, and log-weights minus log Z; every weight of a perfect sampler is 1. The
Pareto plot shows the largest weights by rank on logarithmic axes, where a Pareto tail of shape k has the slope −k. The
weights that k̂ is fitted to are marked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from egm.draws.diagnostics import pareto_k, pareto_k_limit
from egm.metrics.floors import TOLERANCE
from egm.metrics.metrics import LABELS
from egm.report.contents import Contents
from egm.report.markup import Html
from egm.report.plotting import (
    INK,
    LINE,
    MUTED,
    REFERENCE,
    SERIES,
    Array,
    bin_edges,
    density,
    draw,
    legend,
    logarithmic,
)

MOST_ENTRIES, MOST_PANELS = 4, 9  # entries shown of one observable, and figures in total
LOWEST = 0.05  # share of log-weights, the lowest, that the histogram does not resolve
LETTERS = 16  # of a label of an axis
FEW = 8  # up to this number of different values, each gets a tick
MOMENTS, RANKS = 300, 400  # points of a curve
WIDE_RANGE = 20  # an axis with a larger ratio of values is logarithmic
CURVES = {
    "ess": "ESS in training",
    "b": "inverse temperature b",
    "sampler_loss": "loss of the sampler",
    "energy_loss": "loss of the energy model",
    "e_w1": f"{LABELS['e_w1']} in training",
    "mean_energy": "mean energy of new states",
}
SETS = {"draws": "metrics", "resampled": "resampled"}  # sets of draws that an evaluation scores


def metric_figure(run: Contents) -> Html | None:
    """Draw distances in units of their floors, with their spread over repeats."""
    results: dict[str, Any] = run.results or {}
    sets: dict[str, dict[str, Any]] = {name: results.get(key) or {} for name, key in SETS.items()}
    scores = [(i, kind, score) for kind, named in sets.items() for i, score in enumerate(named.values())]
    if not scores or any(score["mean"] is None or not score["floor"] for _, _, score in scores):
        return None  # null stands for values that are not finite
    names = [LABELS.get(name, name) for name in sets["draws"]]

    def paint(axis: Any) -> None:
        axis.axvspan(1 / TOLERANCE, TOLERANCE, color=LINE, alpha=0.5, linewidth=0)
        axis.axvline(1, color=MUTED, linewidth=1, linestyle="--")
        for i, kind, score in scores:
            first = kind == "draws"
            axis.errorbar(
                score["mean"] / score["floor"], i + (-0.12 if first else 0.12), fmt="o" if first else "s", markersize=5,
                xerr=(score["std"] or 0) / score["floor"], color=SERIES[0 if first else 1], capsize=3,
                label=kind if i == 0 else None,
            )  # fmt: skip
        axis.set_yticks(range(len(names)), [name[:LETTERS] for name in names])
        axis.set_ylim(len(names) - 0.5, -0.5)
        if max(score["mean"] / score["floor"] for _, _, score in scores) > WIDE_RANGE:
            logarithmic(axis.xaxis)
        else:
            axis.set_xlim(left=0)
        axis.set_xlabel("distance / floor")
        axis.grid(visible=False, axis="y")
        legend(axis)

    told = ", ".join(f"{names[i]} {kind} {score['mean'] / score['floor']:.2f}" for i, kind, score in scores)
    caption = f"1 is the value of exact draws; up to {TOLERANCE} counts as at the floor. Bars: spread over repeats."
    return draw(paint, alt=f"Distances over floors of {run.name}: {told}", caption=caption)


def histograms(run: Contents) -> tuple[list[Html], int]:
    """Draw energies and observables of draws and reference draws; also return the number of entries left out."""
    found, hidden = [], 0
    weights = None if run.log_weights is None else torch.softmax(run.log_weights, 0).numpy()
    for name, (ours, theirs) in run.observed.items():
        for entry in range(ours.shape[1]):
            if entry >= MOST_ENTRIES or len(found) >= MOST_PANELS:
                hidden += 1
                continue
            label = name if ours.shape[1] == 1 else f"{name}[{entry}]"
            reference = None if theirs is None else theirs[:, entry].numpy()
            figure = _histogram(run, label, ours[:, entry].numpy(), reference, weights)
            found += [] if figure is None else [figure]
    return found, hidden


def _histogram(run: Contents, label: str, values: Array, reference: Array | None, weights: Array | None) -> Html | None:
    finite = np.isfinite(values)
    known = reference[np.isfinite(reference)] if reference is not None else values[finite]
    if not finite.any() or not len(known):
        return None
    edges = bin_edges(known)
    shares = None if weights is None else weights[finite]
    sets = [("draws", density(values[finite], edges), SERIES[0], "-")]
    if shares is not None and shares.sum() > 0:
        sets.append(("weighted draws", density(values[finite], edges, shares), SERIES[1], "--"))

    def paint(axis: Any) -> None:
        highest = 1.1 * max(float(heights.max()) for _, heights, _, _ in sets)
        if reference is not None:
            heights = density(known, edges)
            most = float(heights.max())
            highest = max(1.1 * most, min(highest, 2 * most))  # the last bins hold all values outside
            axis.stairs(heights, edges, fill=True, color=REFERENCE, label="reference")
        for name, heights, colour, style in sets:
            axis.stairs(heights, edges, color=colour, linestyle=style, linewidth=1.4, label=name)
        axis.set_ylim(0, highest)
        if len(values_seen := np.unique(known)) <= FEW:
            axis.set_xticks(values_seen, [f"{value:g}" for value in values_seen])
        axis.set_xlabel(label)
        axis.set_yticks([])
        legend(axis)

    told = _told(label, values[finite], None if reference is None else known, shares if len(sets) > 1 else None)
    missing = f"; {int((~finite).sum())} draws of zero density are not shown" if not finite.all() else ""
    return draw(paint, alt=f"Histogram of {label} of {run.name}: {told}", caption=f"{label}: {told}{missing}")


def _told(label: str, values: Array, reference: Array | None, weights: Array | None) -> str:
    """Describe a histogram in words. Modes are labels, which have no mean; −1 is no mode."""
    if label == "mode":
        counts = [len(np.unique(x[x >= 0])) for x in (values, *(() if reference is None else (reference,)))]
        return ", reference in ".join([f"draws are in {counts[0]} modes", *map(str, counts[1:])])
    told = f"draws have mean {values.mean():.4g}"
    told += "" if weights is None else f", weighted {weights @ values / weights.sum():.4g}"
    return told + ("" if reference is None else f", reference {reference.mean():.4g}")


def weight_figures(run: Contents) -> list[Html]:
    """Draw log-weights, and the largest weights by rank."""
    if run.log_weights is None:
        return []
    log_w = run.log_weights.numpy()
    relative = np.sort((log_w - np.logaddexp.reduce(log_w) + math.log(len(log_w)))[log_w > -np.inf])
    ranks = np.arange(1, len(relative) + 1)
    largest, tail = relative[::-1], math.ceil(min(len(log_w) / 5, 3 * math.sqrt(len(log_w))))
    k, limit = pareto_k(log_w), pareto_k_limit(len(log_w))
    shown = np.unique(np.geomspace(1, min(len(ranks), 5 * tail), RANKS).round().astype(int)) - 1
    low, high = np.quantile(relative, LOWEST), relative[-1]

    def paint_histogram(axis: Any) -> None:
        edges = bin_edges(np.clip(relative, low, high))
        axis.stairs(density(relative, edges), edges, fill=True, color=SERIES[0], alpha=0.7)
        axis.axvline(0, color=INK, linewidth=1, linestyle="--")
        axis.set_xlabel("log weight − log Z")
        axis.set_yticks([])

    def paint_ranks(axis: Any) -> None:
        for part, colour, label in ((shown < tail, SERIES[1], "tail of k̂"), (shown >= tail, SERIES[0], "others")):
            axis.plot(ranks[shown[part]], np.exp(largest[shown[part]]), ".", markersize=3, color=colour, label=label)
        axis.axhline(1, color=MUTED, linewidth=1, linestyle="--")
        logarithmic(axis.xaxis, axis.yaxis)
        axis.set_xlabel("rank of the draw")
        axis.set_ylabel("weight / mean weight")
        legend(axis)

    share = np.exp(largest - math.log(len(log_w)))
    top = math.ceil(len(log_w) / 100)
    told = f"the largest weight holds {share[0]:.2%} of all, the largest {top} of {len(log_w)} {share[:top].sum():.2%}"
    tells = "k̂ could not be estimated" if math.isnan(k) else f"Pareto k̂ {k:.2f} (it should be at most {limit:.2f})"
    spread = f"Log-weights, with standard deviation {relative.std():.3g} (all are 0 for a perfect sampler); the lowest"
    spread += f" {LOWEST:.0%} are in the first bins"
    return [
        draw(paint_histogram, alt=f"Histogram of log-weights of {run.name}, sd {relative.std():.3g}", caption=spread),
        draw(paint_ranks, alt=f"Pareto plot of {run.name}: {told}", caption=f"Largest weights: {told}. {tells}."),
    ]


def training_figures(run: Contents) -> list[Html]:
    """Draw ESS, temperature, losses and similar quantities over the steps."""
    found = (_curve(run, name, label) for name, label in CURVES.items())
    return [figure for figure in found if figure is not None]


def _curve(run: Contents, name: str, label: str) -> Html | None:
    x, y = _series(run.rows, name)
    if len(x) < 2:
        return None
    floor = _series(run.rows, f"{name}_floor")[1]

    def paint(axis: Any) -> None:
        axis.plot(x, y, color=SERIES[0])
        if len(floor):
            axis.axhline(floor[-1], color=MUTED, linewidth=1, linestyle="--", label="floor")
            legend(axis)
        if name in ("ess", "b"):
            axis.set_ylim(0, 1.02)
        elif (y > 0).all() and y.max() > WIDE_RANGE * y.min():
            logarithmic(axis.yaxis)
        axis.set_xlabel("steps")
        axis.set_ylabel(label)

    told = f"{label}: from {y[0]:.3g} to {y[-1]:.3g} in {x[-1]:.0f} steps"
    return draw(paint, alt=f"{run.name}, {told}", caption=told)


def _series(rows: Sequence[Mapping[str, str]], name: str) -> tuple[Array, Array]:
    """Return steps and values of a column, at most `MOMENTS` of them."""
    pairs = [(float(row["step"]), float(row[name])) for row in rows if row.get(name)]
    pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
    chosen = np.unique(np.linspace(0, len(pairs) - 1, MOMENTS).round().astype(int)) if pairs else []
    values = np.array([pairs[i] for i in chosen]).reshape(-1, 2)
    return values[:, 0], values[:, 1]
