"""Draws pictures of samples, with a kind of picture for each shape of a variable.

symbols or reals on a lattice [h, w]   images, side by side
particles [n, 2 or 3], centred         plots; colours show a variable of symbols [n], sizes the depth in space
other reals                            the first two coordinates, over contours of the density
other symbols                          a table of the most frequent states
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from egm.report.contents import Contents
from egm.report.markup import Html, Number, table
from egm.report.planes import LEVELS, contours
from egm.report.plotting import MUTED, SERIES, Array, draw, draw_many, library, picture
from egm.spaces import Categorical, Space, Variable

POINTS, PARTICLE_PLOTS, IMAGES, STATES = 700, 8, 16, 12
WIDE = 20  # sites; fewer images of this width are in a row
MOST_LETTERS = 80  # of a state in the table


def sample_figures(run: Contents) -> list[Html]:
    """Draw pictures of the draws of a run, before weighting."""
    if run.draws is None:
        return []
    space, found, reals = run.draws.space, [], []
    for name, variable in space.variables.items():
        if is_lattice(variable):
            found += _lattices(run, name)
        elif is_particles(variable):
            found.append(_particles(run, name))
        elif name in space.real:
            reals.append(name)
    if sum(math.prod(space[name].shape) for name in reals) > 1:
        found.append(_scatter(run, reals))
    return found


def is_lattice(variable: Variable) -> bool:
    """Return whether values are shown as images; a few coordinates of several points are not."""
    if len(variable.shape) != 2:
        return False
    return min(variable.shape) >= (2 if isinstance(variable, Categorical) else 3) and not is_particles(variable)


def is_particles(variable: Variable) -> bool:
    """Return whether values are particles in the plane or in space."""
    centred = not isinstance(variable, Categorical) and variable.centered
    return centred and len(variable.shape) == 2 and variable.shape[1] in (2, 3)


def _lattices(run: Contents, name: str) -> list[Html]:
    sets = {"draws": run.state[name]} | ({} if run.reference is None else {"reference draws": run.reference[name]})
    low, high = _range(run, name, sets.values())
    found = []
    for kind, x in sets.items():
        shown = x[:IMAGES].double().numpy()
        told = f"{len(shown)} {kind} of {name} ({shown.shape[1]} × {shown.shape[2]}), from {low:g} to {high:g}"
        pixels = _montage((shown - low) / ((high - low) or 1.0))
        found.append(picture(pixels, alt=f"{told}, of {run.name}", caption=told))
    return found


def _range(run: Contents, name: str, values: Iterable[Tensor]) -> tuple[float, float]:
    """Return the lowest and the highest value of the colours."""
    symbols = run.draws.space.categorical.get(name) if run.draws is not None else None
    if symbols is not None:
        return 0.0, symbols.size - 1.0
    together = torch.cat([x.flatten() for x in values])
    return float(together.min()), float(together.max())


def _montage(images: Array) -> Array:
    """Return images [k, h, w] between 0 and 1 as colours [height, width, 4] of one, with transparent gaps of a site."""
    k, h, w = images.shape
    columns = min(k, 8 if w < WIDE else 4)
    rows = math.ceil(k / columns)
    pixels = np.zeros((rows * (h + 1) - 1, columns * (w + 1) - 1, 4))
    for i, colours in enumerate(library().colormaps["viridis"](0.08 + 0.84 * images)):
        y, x = (h + 1) * (i // columns), (w + 1) * (i % columns)
        pixels[y : y + h, x : x + w] = colours
    return pixels


def _particles(run: Contents, name: str) -> Html:
    x = run.state[name][:PARTICLE_PLOTS].double().numpy()
    kinds = _kinds(run, name)
    reach = 1.15 * float(np.abs(x[..., :2]).max())

    def paint(axes: Any) -> None:
        for axis, points, types in zip(axes, x, kinds, strict=False):
            depth = points[:, 2] / reach if points.shape[1] == 3 else np.zeros(len(points))
            for kind in np.unique(types):
                own, colour = types == kind, SERIES[int(kind) % len(SERIES)]
                axis.scatter(*points[own, :2].T, s=45 * (1 + 0.7 * depth[own]), color=colour, alpha=0.85, linewidths=0)
            axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
        for axis in axes[len(x) :]:
            axis.set_axis_off()

    told = f"{len(x)} draws of {name}: {x.shape[1]} particles in {'space' if x.shape[2] == 3 else 'the plane'}"
    coloured = "; colours show symbols" if len(np.unique(kinds)) > 1 else ""
    deep = "; larger ones are nearer" if x.shape[2] == 3 else ""
    return draw_many(
        paint,
        alt=f"{told}, of {run.name}",
        caption=told + coloured + deep,
        size=(4.8, 2.5),
        grid=(2, PARTICLE_PLOTS // 2),
    )


def _kinds(run: Contents, name: str) -> Array:
    """Return the symbols of the plotted particles, if a variable has one for each, and zeros otherwise."""
    space = run.state[name].shape[:2]
    for state in (x for key, x in run.state.items() if key != name and not x.is_floating_point()):
        if state.shape == space:
            return state[:PARTICLE_PLOTS].numpy()
    return np.zeros((min(len(run.state[name]), PARTICLE_PLOTS), space[1]))


def _scatter(run: Contents, names: list[str]) -> Html:
    """Draw the first two coordinates."""
    points = _plane(run.state, names)
    reference = None if run.reference is None else _plane(run.reference, names)
    labels = [f"{n}[{i}]" for n in names for i in range(math.prod(run.state[n].shape[1:]))][:2]
    dtype = run.state[names[0]].dtype
    known = None if run.target is None else contours(run.target, points, reference, dtype)

    def paint(axis: Any) -> None:
        axis.plot(*points[:POINTS].T, "o", markersize=2.5, markeredgewidth=0, color=SERIES[0], alpha=0.55)
        if known is not None:
            first, second, heights = known
            axis.contour(first, second, heights, levels=heights.max() * np.array(LEVELS), colors=MUTED, linewidths=0.8)
            axis.set(xlim=(first[0], first[-1]), ylim=(second[0], second[-1]))
        axis.set_xlabel(labels[0])
        axis.set_ylabel(labels[1])

    told = f"{min(POINTS, len(points))} draws of {labels[0]} and {labels[1]}"
    over = " over contours of the target's density" if known is not None else ""
    return draw(paint, alt=f"{told}{over}, of {run.name}", caption=told + over, size=(3.6, 3.0))


def _plane(state: dict[str, Tensor], names: list[str]) -> Array:
    return torch.cat([state[name].reshape(len(state[name]), -1) for name in names], 1)[:, :2].double().numpy()


# ---------------------------------------------------------------------- symbols


def symbol_table(run: Contents) -> Html | None:
    """Return the most frequent states of the symbols that are not images, with their shares."""
    if run.draws is None:
        return None
    names = _written(run.draws.space)
    if not names:
        return None
    ours = _states(run.state, names)
    weights = None if run.log_weights is None else torch.softmax(run.log_weights, 0).tolist()
    theirs = None if run.reference is None else Counter(_states(run.reference, names))
    weighted: Counter[str] = Counter()
    for state, weight in zip(ours, weights or [], strict=False):
        weighted[state] += weight
    columns = [", ".join(names), "share of draws", *(["weighted share"] if weights else [])]
    columns += ["share of reference"] if theirs is not None else []
    rows = []
    for state, times in Counter(ours).most_common(STATES):
        shown = state if len(state) <= MOST_LETTERS else f"{state[:MOST_LETTERS]} …"
        row = [shown, _share(times / len(ours)), *([_share(weighted[state])] if weights else [])]
        rows.append([*row, *([_share(theirs[state] / theirs.total())] if theirs is not None else [])])
    return table(columns, rows, label=f"Most frequent states of {', '.join(names)}")


def _written(space: Space) -> list[str]:
    return [name for name, v in space.categorical.items() if not is_lattice(v)]


def _states(state: dict[str, Tensor], names: list[str]) -> list[str]:
    """Return states as text: one-digit symbols side by side, others with spaces, and variables with bars."""
    parts = []
    for name in names:
        x = state[name].flatten(1) if state[name].ndim > 1 else state[name][:, None]
        gap = "" if int(x.max()) < 10 else " "
        parts.append([gap.join(map(str, row)) for row in x.tolist()])
    return [" | ".join(each) for each in zip(*parts, strict=True)]


def _share(value: float) -> Number:
    return Number(f"{value:.2%}", value)
