"""A table with its records: the lines of `comparison`, and remarks on the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from egm.reproduce.comparison import Line, compare
from egm.reproduce.definitions import Cell, Kind, Table
from egm.reproduce.records import Record, records_of


class Shown:
    """A table with its records.

    Args:
        table: its definition.
        kinds: kinds of recipes.
        folder: folder of the records, `results/`.
        chosen: whether a cell is included; by default all are.
    """

    def __init__(
        self, table: Table, kinds: Sequence[Kind], folder: Path, *, chosen: Callable[[Cell], bool] = lambda cell: True
    ) -> None:
        self.table = table
        self.found: dict[str, list[tuple[Cell, list[Record]]]] = {}
        cells = list({cell.name: cell for kind in kinds for cell in table.cells(kind) if chosen(cell)}.values())
        for stem in dict.fromkeys(cell.stem for cell in cells):
            for cell in sorted((cell for cell in cells if cell.stem == stem), key=lambda c: table.rows.index(c.row)):
                records = records_of(table, cell, folder)
                self.found.setdefault(stem, []).append((cell, records))
        self.lines = compare(table, self.found)

    def of(self, metric: str) -> list[Line]:
        """Return the lines of one metric."""
        return [line for line in self.lines if line.metric == metric]

    def runs(self) -> list[tuple[str, Cell, Record]]:
        """Return every run with the name of its target and its cell."""
        named = ((self.table.targets.get(stem, stem), cells) for stem, cells in self.found.items())
        return [(target, cell, run) for target, cells in named for cell, runs in cells for run in runs]

    @property
    def missing(self) -> list[Cell]:
        """The cells without runs."""
        return [cell for cells in self.found.values() for cell, records in cells if not records]

    def remarks(self) -> dict[str, list[str]]:
        """Return the notes of records, with the cells of these records."""
        found: dict[str, list[str]] = {}
        for cell, records in (pair for cells in self.found.values() for pair in cells):
            for note in dict.fromkeys(record["note"] for record in records if record.get("note")):
                found.setdefault(note, []).append(f"`{cell.recipe}` by *{cell.label}*")
        return found

    def reasons(self) -> dict[str, list[str]]:
        """Return the cells without runs, by the reason why they cannot be run ("" if they can)."""
        found: dict[str, list[str]] = {}
        for cell in self.missing:
            found.setdefault(cell.why_not() or "", []).append(f"{cell.recipe} by {cell.label}")
        return found
