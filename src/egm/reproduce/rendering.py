"""Tables in print: columns of text, as Markdown and as HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from egm.report import markup
from egm.report.markup import Grid, Html, count, prose
from egm.reproduce.comparison import QUANTITIES, Line, Spread, compare
from egm.reproduce.definitions import Cell, Kind, Published, Table
from egm.reproduce.records import Record, changed_since, records_of

SMALL = 0.1  # distances below it have a decimal more


class Shown:
    """A table with its records: what is printed of it.

    Args:
        table: its definition.
        kinds: of recipes.
        folder: `results/`.
        chosen: which cells, by default all.
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

    @property
    def missing(self) -> list[Cell]:
        """Cells without runs."""
        return [cell for cells in self.found.values() for cell, records in cells if not records]

    def comparison(self) -> Grid:
        """Published, ours, a baseline and the floor side by side."""
        beside = self.table.beside if any(line.beside is not None for line in self.lines) else None
        resampled = any(line.resampled for line in self.lines)
        published = any(line.published for line in self.lines)
        columns = ["target", "metric", "method", "recipe", "seeds", *([self.table.source] if published else []), "ours"]
        columns += [*(["resampled"] if resampled else []), *([beside] if beside else []), "floor", "verdict"]
        rows = []
        for line in self.lines:
            made = [_folder(line.cell), str(len(line.seeds))] if line.seeds else ["", ""]
            row = [line.target, QUANTITIES[line.metric].label, line.cell.label, *made]
            row += [stated_text(line.published, line.metric)] if published else []
            row += [spread_text(line.value, line.metric) or ("none" if line.run else "not run")]
            row += [spread_text(line.resampled, line.metric)] if resampled else []
            row += [beside_text(line, self.table)] if beside else []
            rows.append([*row, number_text(line.floor, line.metric), "; ".join(line.marks)])
        return columns, rows

    def provenance(self) -> Grid:
        """How the runs of each cell were made."""
        columns = ["target", "method", "recipe", "n × repeats", "seeds", "steps", "of the recipe", "ms a step"]
        columns += ["energy calls", "gradient calls", "seconds", "at a time", "GiB", "hardware", "torch", "commit"]
        columns += ["symmetries", "command"]
        rows = []
        for stem, cells in self.found.items():
            for cell, records in ((cell, records) for cell, records in cells if records):
                row = [self.table.targets.get(stem, stem), cell.label, _recipe(cell, records)]
                row += [
                    _each(records, lambda r: f"{r['n']} × {r['repeats']}"),
                    _each(records, lambda r: f"{r['seed']}"),
                ]
                row += [_each(records, lambda r: count(r["steps"])), _share(cell, records)]
                row += ["" if cell.is_chain else _each(records, _milliseconds)]
                row += [_each(records, lambda r: count(r["energy_calls"]))]
                row += [_each(records, lambda r: count(r["score_calls"]))]
                row += [_each(records, lambda r: f"{r['train_seconds'] or 0:.0f}")]
                row += [_each(records, lambda r: f"{r['concurrent']}"), _each(records, _memory)]
                row += [_each(records, lambda r: r["hardware"] or ""), _each(records, lambda r: r["torch"] or "")]
                row += [_each(records, lambda r: commit_text(r["commit"]))]
                row += [_each(records, lambda r: ", ".join(r["symmetries"] or ()))]
                rows.append([*row, f"`{records[0]['command']}`"])
        return columns, rows

    def notes(self) -> dict[str, list[str]]:
        """What records remark, with the cells that they belong to."""
        found: dict[str, list[str]] = {}
        for cell, records in (pair for cells in self.found.values() for pair in cells):
            for note in dict.fromkeys(record["note"] for record in records if record.get("note")):
                found.setdefault(note, []).append(f"{cell.recipe} by {cell.label}")
        return found

    def reasons(self) -> dict[str, list[str]]:
        """Cells without runs by why they cannot be run ("" if they can)."""
        found: dict[str, list[str]] = {}
        for cell in self.missing:
            found.setdefault(cell.why_not() or "", []).append(f"{cell.recipe} by {cell.label}")
        return found


def _folder(cell: Cell) -> str:
    return "smoke" if cell.role == "smoke" else Path(cell.recipe).parent.name or "own"


def _recipe(cell: Cell, records: Sequence[Record]) -> str:
    """Its kind, and what it said otherwise when the runs were made."""
    then = {name: value for record in records for name, value in changed_since(record, cell).items()}
    words = [f"{name} {'not set' if value is None else value}" for name, value in then.items()]
    return _folder(cell) + (f", earlier: {', '.join(words)}" if words else "")


def _share(cell: Cell, records: Sequence[Record]) -> str:
    """Steps as a share of the recipe's, and what all of them would take; for recipes of the paper."""
    if not cell.recipe.startswith("paper/") or cell.is_chain:
        return ""
    whole = cell.stated.get("steps")
    taken = [record for record in records if record["steps"]]
    if not whole or not taken:
        return ""
    steps = sum(record["steps"] for record in taken) / len(taken)
    seconds = sum(record["train_seconds"] * whole / record["steps"] for record in taken) / len(taken)
    return "all" if steps >= whole else f"{steps / whole:.0%} (all would take {seconds / 3600:.1f} h)"


def _each(records: Sequence[Record], shown: Callable[[Record], str]) -> str:
    """A value for every seed, once if they agree."""
    values = [shown(record) for record in records]
    return values[0] if len(set(values)) == 1 else ", ".join(values)


def _milliseconds(record: Record) -> str:
    value = QUANTITIES["ms_per_step"].value(record)
    return "" if value is None else f"{value:.3g}"


def commit_text(commit: str | None) -> str:
    """Seven digits, and the "+" of a tree with changes."""
    return "" if commit is None else commit[:7] + "+" * commit.endswith("+")


def _memory(record: Record) -> str:
    return "" if record["peak_memory_gib"] is None else f"{record['peak_memory_gib']:.2f}"


def number_text(value: float | None, metric: str) -> str:
    """A value of a metric; nothing for None."""
    if value is None:
        return ""
    unit = QUANTITIES[metric].unit
    return count(value) if unit == "count" else f"{value:.{_decimals(value, unit)}f}"


def _decimals(value: float, unit: str) -> int:
    return 4 if unit == "share" or abs(value) < SMALL else 3


def spread_text(spread: Spread | None, metric: str) -> str:
    """Mean ± standard deviation over seeds, with the same number of decimals."""
    if spread is None:
        return ""
    text, unit = number_text(spread.mean, metric), QUANTITIES[metric].unit
    if spread.std is None:
        return text
    deviation = count(spread.std) if unit == "count" else f"{spread.std:.{_decimals(spread.mean, unit)}f}"
    return f"{text} ± {deviation}"


def stated_text(published: Published | None, metric: str, *, named: bool = True) -> str:
    """A published number, with its method where that is another than the row's."""
    if published is None:
        return ""
    spread = "" if published.std is None else f" ± {_as_printed(published.std, metric)}"
    return _as_printed(published.mean, metric) + spread + (f" ({published.of})" if published.of and named else "")


def _as_printed(value: float, metric: str) -> str:
    return count(value) if QUANTITIES[metric].unit == "count" else f"{value:.{Published(value, None).decimals}f}"


def beside_text(line: Line, table: Table) -> str:
    """The value of the method that a table shows in every line."""
    if line.cell.method == table.beside:
        return ""
    if isinstance(line.beside, Published):
        return f"{stated_text(line.beside, line.metric)} ({table.source})"
    return spread_text(line.beside, line.metric)


def markdown(grid: Grid) -> str:
    """A Markdown table."""
    columns, rows = grid
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def html_table(grid: Grid, *, label: str) -> Html:
    """An HTML table; text between backticks is code."""
    columns, rows = grid
    return markup.table(columns, [[prose(cell) for cell in row] for row in rows], label=label)
