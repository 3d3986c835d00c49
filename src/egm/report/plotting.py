"""Figures for light and dark pages: matplotlib draws them, and the page embeds them as SVG in its own colours.

matplotlib draws with the placeholders of `COLOURS`; in the SVG, each becomes a variable of `page.css`. Text stays text,
in the font of the page. References to other files (document types, name spaces, metadata) are removed.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from egm.report.markup import Html, element, joined
from egm.util.extras import needed

Array = NDArray[np.float64]
BINS = 40
MOST_POINTS = 1000  # of a grid; values on finer grids count as real
ROUNDING = 2e-6  # share of the largest value; closer values differ only by the order of summation
SIZE = (3.6, 2.5)  # inches of a figure
INK, MUTED, LINE, REFERENCE = "#010101", "#020202", "#030303", "#040404"
SERIES = ("#050101", "#050202", "#050303", "#050404")
COLOURS = {
    **{INK: "ink", MUTED: "muted", LINE: "line", REFERENCE: "reference"},
    **{colour: f"c{i}" for i, colour in enumerate(SERIES, 1)},
}
FILES = {"svg.fonttype": "none", "svg.hashsalt": "egm", "font.size": 8, "axes.titlesize": 8}  # text stays text
SETTINGS = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), MUTED),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon", "text.parse_math"), False),
    **dict.fromkeys(("font.size", "axes.titlesize"), 9),
    **{"legend.fontsize": 8, "axes.linewidth": 0.8, "axes.axisbelow": True, "axes.grid": True},
    **{"grid.color": LINE, "grid.linewidth": 0.5, "lines.linewidth": 1.4},
}


def library() -> Any:
    """Return matplotlib without pyplot, which would choose how to show figures; that is the user's choice."""
    return needed("matplotlib", what="drawing figures", extra="report")


def new_figure(**options: Any) -> Any:
    """Return an empty figure for a file; only the figure and `plain_style` influence the file."""
    library()
    return importlib.import_module("matplotlib.figure").Figure(layout="constrained", **options)


@contextmanager
def plain_style(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Set matplotlib while a figure is made and written: to its defaults, `FILES` and `more`; also a decorator.

    The settings of the user do not influence the file, and are restored afterwards.
    """
    library()
    with importlib.import_module("matplotlib.style").context(["default", {**FILES, **(more or {})}]):
        yield


def draw(paint: Callable[[Any], None], *, alt: str, caption: str = "", size: tuple[float, float] = SIZE) -> Html:
    """Return a figure with one set of axes, on which `paint` draws.

    Args:
        paint: draws on the axes.
        alt: description for screen readers; different for every figure of a page.
        caption: text below the figure, by default `alt`.
        size: size in inches.
    """
    return draw_many(lambda axes: paint(axes[0]), alt=alt, caption=caption, size=size)


def draw_many(
    paint: Callable[[Sequence[Any]], None],
    *,
    alt: str,
    caption: str = "",
    size: tuple[float, float] = SIZE,
    grid: tuple[int, int] = (1, 1),
) -> Html:
    """Return a figure as `draw` does, with rows × columns of axes."""
    with plain_style(SETTINGS):
        figure = new_figure(figsize=size)
        paint(list(figure.subplots(*grid, squeeze=False).flat))
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return element("figure", _inline(stream.getvalue(), alt), element("figcaption", caption or alt))


def picture(pixels: Array, *, alt: str, caption: str = "") -> Html:
    """Return an image from colours [height, width, 4] between 0 and 1."""
    stream = io.BytesIO()
    with plain_style():
        importlib.import_module("matplotlib.image").imsave(stream, pixels, format="png")
    source = f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
    return element("figure", element("img", src=source, alt=alt), element("figcaption", caption or alt))


def figures(parts: Sequence[Html]) -> Html | None:
    """Return figures side by side, as many as fit in a row; None if there are none."""
    return element("div", joined(parts), class_="figures") if parts else None


def _inline(svg: str, alt: str) -> Html:
    """Return an SVG file as part of a page."""
    box = re.search(r'viewBox="[^"]*"', svg)
    body = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"font: ([\d. a-z]*?[\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", body)
    for colour, name in COLOURS.items():
        body = body.replace(colour, f"var(--{name})")
    # ids must be unique in the page: used ids get a prefix of this figure, and other ids are removed
    own = hashlib.sha256((alt + body).encode()).hexdigest()[:8]
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', body))
    body = re.sub(r' id="([^"]+)"', lambda found: f' id="{own}-{found[1]}"' if found[1] in used else "", body)
    body = re.sub(r'(href="|url\()#', rf"\1#{own}-", body)
    body = re.sub(r"\n\s*", "\n", body)
    start = element("svg", role="img", aria_label=alt).removesuffix("></svg>")
    return Html(f"{start} {box[0] if box else ''}>{body}</svg>")


def bin_edges(values: Array, bins: int = BINS) -> Array:
    """Return the edges of about `bins` bins for values and a margin.

    Values of a lattice lie on a grid. Then each bin but the last holds the same number of grid points (one if there are
    few), so that no bin is taller because it holds more of them.
    """
    low, high = float(values.min()), float(values.max())
    points = _grid_points(values)
    if points is None:
        margin = 0.1 * (high - low) or 0.5
        return np.linspace(low - margin, high + margin, bins + 1)
    gap = (high - low) / (points - 1)
    each = 1 if points <= 2 * bins else -(-points // bins)
    many = -(-points // each)
    return np.linspace(low - gap / 2, low - gap / 2 + each * gap * many, many + 1)


def _grid_points(values: Array) -> int | None:
    """Return the number of points of the grid that the values lie on, from first to last; None if there is no grid."""
    distinct = np.unique(values)
    rounding = ROUNDING * np.abs(distinct).max()
    gaps = np.diff(distinct[np.diff(distinct, prepend=-np.inf) > rounding])
    if len(gaps) == 0:
        return None
    span = distinct[-1] - distinct[0]
    steps = round(span / gaps[gaps < 1.5 * gaps.min()].mean())
    off = distinct - distinct[0] - span / steps * np.round((distinct - distinct[0]) * steps / span)
    return steps + 1 if steps < MOST_POINTS and np.abs(off).max() <= 4 * rounding else None


def density(values: Array, edges: Array, weights: Array | None = None) -> Array:
    """Return the heights of a histogram of area one; values outside are in the first and last bins."""
    return np.histogram(np.clip(values, edges[0], edges[-1]), edges, weights=weights, density=True)[0]


def legend(axis: Any) -> None:
    """Draw the legend above the axes, where it covers nothing."""
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderpad=0, columnspacing=1, handlelength=1.4)


def logarithmic(*axes: Any) -> None:
    """Make x- or y-axes logarithmic, with plain numbers as labels: formulas are not parsed, see `SETTINGS`."""
    for axis in axes:
        getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(lambda value, _: "")
