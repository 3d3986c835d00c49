"""Writes the sentences below a table, which go beyond its marks, from the lines of `comparison`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from egm.metrics.floors import LEAST_EVALUATIONS, LEAST_PAIRS
from egm.reproduce.comparison import Line
from egm.reproduce.definitions import Cell, Table
from egm.reproduce.formats import listed
from egm.reproduce.layout import heading
from egm.reproduce.shown import Shown


def footnotes(shown: Shown, metric: str) -> list[str]:
    """Return the sentences below the table of a metric; notes on the runs are below the first metric of a table."""
    lines = [line for line in shown.of(metric) if line.value is not None]
    judged = [line for line in lines if line.floor is not None and not line.fewer]
    rare = [line for line in judged if line.evaluations < LEAST_EVALUATIONS]
    unsure = [line for line in judged if line.pairs < LEAST_PAIRS]
    changed = [line for line in lines if line.outdated]
    found = [
        _said("A baseline is better than", [line for line in lines if line.baselines]),
        _said(f"Evaluated fewer than {LEAST_EVALUATIONS} times, so without ✓", rare, lambda line: line.evaluations),
        _said(f"A floor from fewer than {LEAST_PAIRS} pairs, so without ✓", unsure, lambda line: line.pairs),
        _said("The recipe has changed since (the list of runs has the old settings)", changed),
        _said("No longer at equal calls, to be run again", [line for line in lines if line.unequal]),
    ]
    sentences = [sentence for sentence in found if sentence]
    if metric == shown.table.metrics[0]:
        sentences += [shown.table.note] if shown.table.note else []
        sentences += [f"About {', '.join(cells)}: {remark}." for remark, cells in shown.remarks().items()]
        sentences += [f"Not run yet: {_by_recipe(shown.missing)}."] if shown.missing else []
    else:
        sentences += [shown.table.notes[metric]] if metric in shown.table.notes else []
    return sentences


def commands(table: Table) -> str:
    """Return the commands that make the runs of a table; one is for the paper's recipes if some cells need it."""
    plain = {cell.name for cell in table.cells("fast")}
    more = any(cell.name not in plain for cell in table.cells("paper"))
    command = f"egm reproduce {table.name}"
    return f"`{command}`" + (f" and `{command} --recipe paper`" if more else "")


def _said(what: str, lines: Sequence[Line], number: Callable[[Line], int] | None = None) -> str:
    """Return a sentence that names the methods of lines by target, each with an optional number."""
    methods: dict[str, list[str]] = {}
    for line in lines:
        words = f"*{heading(line.cell)}*" + ("" if number is None else f" ({number(line)})")
        methods.setdefault(line.target, []).append(words)
    parts = [f"{listed(names)} on {target}" for target, names in methods.items()]
    return f"{what}: {'; '.join(parts)}." if parts else ""


def _by_recipe(cells: Sequence[Cell]) -> str:
    """Return cells by recipe: `fast/gbrbm` (gibbs, egm)."""
    labels: dict[str, list[str]] = {}
    for cell in cells:
        labels.setdefault(cell.recipe, []).append(cell.label)
    return "; ".join(f"`{recipe}` ({', '.join(names)})" for recipe, names in labels.items())
