"""Lays out tables for readers: one metric, a row for each target and a column for each method.

A table of one target is transposed: it has a row for each method. A table of more than ten columns is split into one of
learned samplers and one of Markov chains. A cell holds the mean ± standard deviation over seeds, and marks:

    ✓                     at the floor (`egm.metrics.floors`) with every seed; ✓ 2/3: with two seeds of three
    ✗                     worse than the published number
    (n = 8, floor 4.093)  fewer draws than in the other cells of the row, and the floor for that number

The other verdicts of `comparison` are in the sentences of `footnotes`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from egm.report.markup import Grid
from egm.reproduce.comparison import Line
from egm.reproduce.definitions import Cell
from egm.reproduce.formats import number_text, spread_text, stated_text
from egm.reproduce.shown import Shown

AT_FLOOR, WORSE = "✓", "✗"
MOST_COLUMNS = 10
SOURCES = {"paper": "in the paper", "published": "published"}
Columns = dict[str, dict[str, str]]
"""Cells by heading of the column, then by row."""


def grids(shown: Shown, metric: str) -> list[Grid]:
    """Return the tables of one metric: none without values, and two if one would be too wide."""
    labels = list(dict.fromkeys(row.label or row.method for row in shown.table.rows))
    lines = sorted(shown.of(metric), key=lambda line: labels.index(line.cell.label))
    targets = list(dict.fromkeys(line.target for line in shown.of(metric)))
    if not lines:
        return []
    if len(targets) == 1:
        return [_rows_of_methods(lines, shown.table.source)]
    floors = {target: _floor([line for line in lines if line.target == target]) for target in targets}
    whole = _columns_of_methods(lines, shown.table.source, floors)
    if len(whole[0]) <= MOST_COLUMNS:
        return [whole]
    parts = ([line for line in lines if line.cell.is_chain is chains] for chains in (False, True))
    return [_columns_of_methods(part, shown.table.source, floors) for part in parts if part]


def heading(cell: Cell) -> str:
    """Return the name of a method, marked if it ran with the paper's settings."""
    papers = Path(cell.recipe).parent.name == "paper" and not cell.is_chain
    return f"{cell.label} (paper's settings)" if papers else cell.label


def _columns_of_methods(lines: Sequence[Line], source: str, floors: Mapping[str, str]) -> Grid:
    columns: Columns = {}
    for name in dict.fromkeys(heading(line.cell) for line in lines):
        own = [line for line in lines if heading(line.cell) == name]
        for line in own:
            if line.published is not None:
                column, text = _published(line, source)
                columns.setdefault(column, {}).setdefault(line.target, text)
        for line in own:
            if line.value is not None:
                columns.setdefault(name, {})[line.target] = value_text(line)
        for line in own:
            if line.resampled is not None:
                columns.setdefault(f"{name}, resampled", {})[line.target] = resampled_text(line)
    some = {line.target for line in lines}
    return _filled("target", {**columns, "floor": dict(floors)}, [target for target in floors if target in some])


def _rows_of_methods(lines: Sequence[Line], source: str) -> Grid:
    names = list(dict.fromkeys(heading(line.cell) for line in lines))
    by_name = {heading(line.cell): line for line in lines}
    columns: Columns = {
        SOURCES.get(source, source): {n: stated_text(line.published, line.metric) for n, line in by_name.items()},
        "here": {name: value_text(line) for name, line in by_name.items()},
        "resampled": {name: resampled_text(line) for name, line in by_name.items()},
        "floor": {name: number_text(line.floor, line.metric) for name, line in by_name.items()},
    }
    return _filled(lines[0].target, columns, names)


def _filled(corner: str, columns: Columns, rows: Sequence[str]) -> Grid:
    """Return a table of the columns that are not empty."""
    kept = {name: cells for name, cells in columns.items() if any(cells.values())}
    return [corner, *kept], [[row, *(cells.get(row, "") for cells in kept.values())] for row in rows]


def _published(line: Line, source: str) -> tuple[str, str]:
    """Return the column of a published number, and the number."""
    words, of = SOURCES.get(source, source), line.published.of if line.published else None
    if of is None:
        return f"{line.cell.label} {words}", stated_text(line.published, line.metric)
    if source == "paper":
        return f"{of} {words}", stated_text(line.published, line.metric, named=False)
    return f"others {words}", stated_text(line.published, line.metric)


def value_text(line: Line) -> str:
    """Return the value of a line with its marks."""
    floor = f", floor {number_text(line.floor, line.metric)}" if line.floor is not None else ""
    fewer = f" (n = {line.n}{floor})" if line.fewer else ""
    marks = _mark(line.at_floor, len(line.seeds)) + f" {WORSE}" * line.worse
    return spread_text(line.value, line.metric) + fewer + marks


def resampled_text(line: Line) -> str:
    """Return the value of resampled draws with its mark."""
    return spread_text(line.resampled, line.metric) + _mark(line.resampled_at_floor, len(line.seeds))


def _mark(reached: int | None, seeds: int) -> str:
    if not reached:
        return ""
    return f" {AT_FLOOR}" if reached == seeds else f" {AT_FLOOR} {reached}/{seeds}"


def _floor(lines: Sequence[Line]) -> str:
    """Return the mean floor of the lines of a target that have all draws."""
    floors = [line.floor for line in lines if line.floor is not None and not line.fewer]
    return number_text(statistics.fmean(floors), lines[0].metric) if floors else ""
