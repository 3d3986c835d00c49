"""Draws the figures of `CAPTIONS` from `results/figures.json` and the records alone: `egm reproduce figures`.

A label has the same colour in every figure that shows its draws.

Contours: p(v) = Σ_h exp(−E(v, h))/Z of GB-RBM, by summing its hidden states; a pair of coordinates of JointMoG is
independent, p(x) = Π_i ½[N(x_i; −1, σ²) + N(x_i; 1, σ²)].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from egm.config.targets import make_target
from egm.metrics.metrics import LABELS
from egm.report.planes import log_marginal
from egm.report.plotting import library, new_figure, plain_style
from egm.reproduce import figure_data
from egm.reproduce.definitions import TABLES, Kind, table
from egm.reproduce.records import records_of
from egm.targets.gbrbm import GBRBM
from egm.targets.joint_mog import JointMoG
from egm.util.files import replacing

Array = NDArray[np.float64]
Entry = dict[str, Any]
RECIPES: tuple[Kind, ...] = ("fast", "paper")
COLUMNS = 4
SIZE = 3.0  # inches of a panel
PALETTE, REFERENCE = "tab20", "reference"
CAPTIONS = {
    "energy": "Energies of 2000 draws of one seed (lines) and of reference draws (grey) on all targets. The last bins"
    " hold everything outside. Some runs were made for this figure; results/figures.json has their commits.",
    "magnetization": "Magnetisations of lattices: draws of one seed (lines) and reference draws (grey).",
    "gbrbm": "The two visible units of GB-RBM: draws, and contours of the exact marginal density.",
    "jointmog": "The first two coordinates of JointMoG: draws, and contours of the exact marginal density.",
    "correlation": "The two-point correlation G(r) of lattices: draws, and reference draws.",
    "ess": "Effective sample size during training. For PIS and EGM-SP it belongs to the sampler's weighted draws (of"
    " EGM-SP at the temperature that it has reached, so it begins at `ess_target`). For the other methods it belongs to"
    " the proposals of each estimate. The two kinds cannot be compared.",
    "epsilon": "EGM-BS by its bootstrapping time ε: seeds (points), their mean (line), the paper's numbers (dashed).",
    "ema": "EGM-BS with and without the running average of its energy: seeds (points) and the paper's numbers.",
}


@plain_style()
def draw_all(results: Path, folder: Path, *, role: str = "main") -> list[Path]:
    """Draw every figure that has data from runs of one role; return the files."""
    entries = [entry for entry in figure_data.read(results / "figures.json") if entry["role"] == role]
    figures = {
        "energy": lambda: _histograms(entries, "energy"),
        "magnetization": lambda: _histograms(entries, "magnetization"),
        "gbrbm": lambda: _projections(entries, GBRBM, _gbrbm_density),
        "jointmog": lambda: _projections(entries, JointMoG, _jointmog_density),
        "correlation": lambda: _correlations(entries),
        "ess": lambda: _ess(entries),
        "epsilon": lambda: _ablation(results, "epsilon", _epsilon),
        "ema": lambda: _ablation(results, "ema", None),
    }
    written = []
    for name, draw in figures.items():
        figure = draw()
        if figure is None:
            print(f"nothing to draw for {name}: no such runs in {results}")
            continue
        with replacing(folder / f"{name}.svg") as stream:
            figure.savefig(stream, format="svg", metadata={"Date": None})
        written.append(folder / f"{name}.svg")
    return written


def _panels(titles: Sequence[str]) -> tuple[Any, Iterator[Any]]:
    """Return a figure with a panel for each title."""
    columns = min(COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = new_figure(figsize=(SIZE * columns, 0.8 * SIZE * rows))
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, title in itertools.zip_longest(axes.flat, titles):
        if title is None:
            axis.set_axis_off()
        else:
            axis.set_title(title)
    return figure, iter(axes.flat)


def _label(entry: Entry) -> str:
    folder = entry["recipe"].partition("/")[0]
    return entry["label"] + ("" if folder == "fast" else f" ({folder})")


def _colours(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return a colour for each label."""
    palette = library().colormaps[PALETTE].colors
    labels = sorted({_label(entry) for entry in entries})
    return dict(zip(labels, itertools.cycle([*palette[::2], *palette[1::2]]), strict=False))


@lru_cache
def _titles() -> dict[str, str]:
    """Return the names of targets in tables, by recipe."""
    return {recipe: title for name in TABLES for recipe, title in table(name).targets.items()}


def _by_target(entries: Sequence[Entry], part: str) -> dict[str, list[Entry]]:
    """Return the entries that have a part, sorted by label, by the name of their target."""
    found: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=_label):
        if part in entry:
            stem = entry["recipe"].rpartition("/")[2]
            found.setdefault(_titles().get(stem) or entry["target"], []).append(entry)
    order = list(dict.fromkeys(_titles().values()))  # the order of the tables
    return dict(sorted(found.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def _largest(runs: Sequence[Entry]) -> Entry:
    """Return the run with the most reference draws, which are as many as its draws."""
    return max(runs, key=lambda entry: entry["n"])


def _legend(figure: Any) -> None:
    """Draw one legend above all panels."""
    shown = {label: line for axis in figure.axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    labels = sorted(shown, key=lambda label: (label != REFERENCE, label))
    columns = figure.axes[0].get_gridspec().ncols
    figure.legend([shown[label] for label in labels], labels, loc="outside upper left", ncols=columns, fontsize=7)


def _histograms(entries: Sequence[Entry], part: str) -> Any:
    targets, colours = _by_target(entries, part), _colours(entries)
    if not targets:
        return None
    figure, axes = _panels(list(targets))
    for (_, runs), axis in zip(targets.items(), axes, strict=False):
        known = _largest(runs)[part]
        edges = np.array(known["edges"])
        reference = _density(known["reference"], edges)
        axis.stairs(reference, edges, fill=True, color="0.85", label=REFERENCE)
        for entry in runs:
            shown, label = entry[part], _label(entry)
            edges = np.array(shown["edges"])
            axis.stairs(_density(shown["draws"], edges), edges, label=label, color=colours[label], linewidth=1)
        axis.set_ylim(0, 1.5 * reference.max())  # the last bins hold all values outside, and may be tall
        axis.set_xlabel(part)
    _legend(figure)
    return figure


def _density(counts: Sequence[float], edges: Array) -> Array:
    return np.array(counts, float) / (sum(counts) * np.diff(edges))


def _projections(entries: Sequence[Entry], kind: type, density: Callable[[Any, Array, Array], Array]) -> Any:
    runs = [entry for entry in entries if "points" in entry and entry["target"].startswith(f"{kind.__name__}(")]
    colours = _colours(entries)
    if not runs:
        return None
    figure, axes = _panels([_label(entry) for entry in runs])
    for entry, axis in zip(runs, axes, strict=False):
        points = np.array(entry["points"])
        target = make_target(entry["target"])
        reach = 1.25 * max(1.0, float(np.quantile(np.abs(points), 0.99)))
        grid = np.linspace(-reach, reach, 120)
        values = density(target, *np.meshgrid(grid, grid))
        axis.contour(grid, grid, values, levels=values.max() * np.array([0.02, 0.1, 0.3, 0.7]), colors="0.6")
        axis.scatter(*points.T, s=2, alpha=0.6, color=colours[_label(entry)], rasterized=True)
        axis.set_aspect("equal")
    return figure


def _gbrbm_density(target: GBRBM, first: Array, second: Array) -> Array:
    """Return p(v) = Σ_h exp(−E(v, h))/Z on a grid of two visible units."""
    return np.exp(log_marginal(target, first, second) - (target.log_z or 0.0))


def _jointmog_density(target: JointMoG, first: Array, second: Array) -> Array:
    """Return p(x_1) p(x_2), each an equal mixture of Gaussians at −1 and 1."""
    sigma = target.sigma

    def marginal(x: Array) -> Array:
        sides = (np.exp(-((x - b) ** 2) / (2 * sigma**2)) for b in (-1.0, 1.0))
        return sum(sides, np.zeros_like(x)) / (2 * sigma * math.sqrt(2 * math.pi))

    return marginal(first) * marginal(second)


def _correlations(entries: Sequence[Entry]) -> Any:
    targets, colours = _by_target(entries, "correlation"), _colours(entries)
    if not targets:
        return None
    figure, axes = _panels(list(targets))
    for (_, runs), axis in zip(targets.items(), axes, strict=False):
        axis.plot(_largest(runs)["correlation"]["reference"], color="0.7", linewidth=4, label=REFERENCE)
        for entry in runs:
            values, label = entry["correlation"]["draws"], _label(entry)
            axis.plot(values, marker=".", linewidth=1, label=label, color=colours[label])
        axis.set_xlabel("distance r")
        axis.set_ylabel("G(r)")
    _legend(figure)
    return figure


def _ess(entries: Sequence[Entry]) -> Any:
    targets, colours = _by_target(entries, "series"), _colours(entries)
    if not targets:
        return None
    figure, axes = _panels(list(targets))
    for (_, runs), axis in zip(targets.items(), axes, strict=False):
        for entry in runs:
            series, label = entry["series"], _label(entry)
            axis.plot(series["seconds"], series["ess"], linewidth=1, label=label, color=colours[label])
        axis.set_xlabel("seconds of training")
        axis.set_ylabel("ESS")
        axis.set_ylim(0, 1)
    _legend(figure)
    return figure


def _epsilon(label: str) -> float:
    return float(label.removeprefix("ε = "))


def _ablation(results: Path, name: str, position: Callable[[str], float] | None) -> Any:
    """Draw each quantity of a table by its rows: seeds as points with their mean, and the published numbers."""
    definition = table(name)
    kinds: list[Kind] = [
        kind for kind in RECIPES if any(records_of(definition, c, results) for c in definition.cells(kind))
    ]
    if not kinds:
        return None
    metrics = definition.metrics
    figure, axes = _panels([f"{definition.targets[definition.rows[0].recipe]}: {LABELS[m]}" for m in metrics])
    for metric, axis in zip(metrics, axes, strict=False):
        labels = [row.label for row in definition.rows]
        where = [position(label) for label in labels] if position else list(range(len(labels)))
        stated = [row.published[metric] for row in definition.rows]
        spread = [std or 0.0 for _, std in stated]
        means = [mean for mean, _ in stated]
        axis.errorbar(where, means, spread, color="0.6", marker="s", linestyle="--", label="paper")
        for kind in kinds:
            cells = [cell for cell in definition.cells(kind) if records_of(definition, cell, results)]
            seeds = [[r["metrics"][metric]["mean"] for r in records_of(definition, c, results)] for c in cells]
            x = [where[labels.index(cell.label)] for cell in cells]
            (line,) = axis.plot(x, [float(np.mean(values)) for values in seeds], marker="o", linewidth=1, label=kind)
            for at, values in zip(x, seeds, strict=True):
                axis.scatter([at] * len(values), values, s=6, color=line.get_color())
        axis.set_yscale("log")
        if position:
            axis.set_xscale("log")
            axis.set_xlabel("ε")
        else:
            axis.set_xticks(where, labels)
        axis.legend(fontsize=6)
    return figure
