"""Lists the runs of a page: one row for each run, as CSV and as a page of HTML.

The rows hold what the tables of Markdown leave out: the values, steps, calls, seconds, machine, commit and command of
every seed. Numbers have six digits. Folders outside of the project are shown as `runs/`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from egm.report import markup
from egm.report.markup import Html, element
from egm.reproduce.comparison import QUANTITIES
from egm.reproduce.definitions import Cell
from egm.reproduce.formats import command_text, commit_text
from egm.reproduce.records import Record, changed_since
from egm.reproduce.shown import Shown

Value = str | float | None
Rows = list[dict[str, Value]]


def rows_of(shown: Sequence[Shown], metrics: Sequence[str]) -> Rows:
    """Return a row for every run of these tables that has one of these metrics."""
    found: Rows = []
    for each in shown:
        for target, cell, record in each.runs():
            values = _values(record, metrics)
            if any(value is not None for value in values.values()):
                row = {"table": each.table.name, "target": target, "method": cell.label, "recipe": cell.recipe}
                found.append({**row, **values, **_made(cell, record)})
    return found


def _values(record: Record, metrics: Sequence[str]) -> dict[str, Value]:
    """Return a run's values of the metrics of a page; distances with their spread over evaluations and their floors."""
    found: dict[str, Value] = {}
    for name in metrics:
        label, score = QUANTITIES[name].label, record["metrics"].get(name)
        found[label] = QUANTITIES[name].value(record)
        if score is not None:
            again = (record["resampled"] or {}).get(name)
            found |= {f"{label}, spread of evaluations": score["std"], f"{label}, floor": score["floor"]}
            found |= {"pairs behind the floor": score["floor_pairs"]}
            found |= {f"{label}, resampled": again["mean"] if again else None}
    return found


def _made(cell: Cell, record: Record) -> dict[str, Value]:
    """Return how a run was made."""
    share, hours = _share(cell, record)
    then = changed_since(record, cell)
    return {
        "settings of an earlier recipe": ", ".join(f"{k} {'not set' if v is None else v}" for k, v in then.items()),
        "role": record["role"],
        "seed": record["seed"],
        "draws": record["n"],
        "evaluations": record["repeats"],
        "steps": record["steps"],
        "share of the paper's steps": share,
        "hours for all of them": hours,
        "ms a step": QUANTITIES["ms_per_step"].value(record),
        "energy calls": record["energy_calls"],
        "gradient calls": record["score_calls"],
        "seconds": record["train_seconds"],
        "runs at a time": record["concurrent"],
        "GPU memory, GiB": record["peak_memory_gib"],
        "hardware": record["hardware"],
        "torch": record["torch"],
        "commit": commit_text(record["commit"]),
        "symmetries": ", ".join(record["symmetries"] or ()),
        "note": record.get("note"),
        "command": command_text(record["command"] or ""),
    }


def _share(cell: Cell, record: Record) -> tuple[float | None, float | None]:
    """Return a run's share of the steps of a paper recipe, and the hours that all steps would take."""
    whole = cell.stated.get("steps") if cell.recipe.startswith("paper/") and not cell.is_chain else None
    if not whole or not record["steps"]:
        return None, None
    share = record["steps"] / whole
    return min(share, 1.0), None if share >= 1 else record["train_seconds"] / share / 3600


def csv_text(rows: Sequence[Mapping[str, Value]]) -> str:
    """Return rows as CSV, without empty columns."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _columns(rows), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: value_text(value) for name, value in row.items()} for row in rows)
    return stream.getvalue()


def html_page(title: str, rows: Sequence[Mapping[str, Value]]) -> Html:
    """Return rows as a page with one table, which a click on a heading sorts."""
    columns = _columns(rows)
    cells = [[value_text(row.get(name)) for name in columns] for row in rows]
    return markup.page(title, element("h1", title), markup.table(columns, cells, label=title))


def _columns(rows: Sequence[Mapping[str, Value]]) -> list[str]:
    filled = {name: any(row.get(name) not in (None, "") for row in rows) for row in rows for name in row}
    return [name for name, some in filled.items() if some]


def value_text(value: Any) -> str:
    """Return a value with six digits.

    >>> value_text(0.123456789), value_text(117_000_000_000), value_text(None)
    ('0.123457', '117000000000', '')
    """
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
