"""Records of runs: `results/*.json`, lists with one object per run, and their assignment to cells.

A record belongs to a cell if recipe, method and role agree and the same options were changed. Budgets and
options of logging are not compared, except that runs with role "cost" differ by their seconds. So a smoke run or an
ablation never enters a main row, in any file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from egm.reproduce.definitions import BUDGETS, CALLS_OF, Cell, Table
from egm.util.files import write_json

Record = dict[str, Any]
NO_SETTINGS = ("log_every", "checkpoint_every", "evaluate_every", "evaluation_size")


def read(file: Path) -> list[Record]:
    """Return the records of a file, none if there is no such file."""
    if not file.is_file():
        return []
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, list) or not all(isinstance(record, dict) and "role" in record for record in content):
        raise ValueError(f"{file} does not hold a list of runs; move it away, or give another folder as --results")
    return content


def merge(file: Path, new: Sequence[Record], *, cell: Cell | None = None) -> None:
    """Add records to a file, and replace older records of the same runs; the write is atomic.

    With `cell`, they replace all runs of the cell with the same seeds, because the number of equal calls may have
    changed. So a table cannot have a row at equal calls and a row of the same recipe with a number of calls.
    """
    seeds = {record["seed"] for record in new}
    old = [run for run in read(file) if cell is None or run["seed"] not in seeds or not belongs(run, cell)]
    records = {key(record): record for record in (*old, *new)}
    write_json(file, [records[name] for name in sorted(records)])


def key(record: Record) -> str:
    """Return what identifies a run: recipe, method, role, settings and seed."""
    parts = [record["recipe"], record["method"], record["role"], settings(record), record["seed"]]
    return json.dumps(parts, sort_keys=True, ensure_ascii=False)


def settings(record: Record) -> dict[str, Any]:
    """Return the options that a run changed, without budgets and options of logging (see above)."""
    ignored = NO_SETTINGS if record["role"] == "cost" else (*NO_SETTINGS, *BUDGETS)
    return {name: value for name, value in record["overrides"].items() if name not in ignored}


def belongs(record: Record, cell: Cell) -> bool:
    """Return whether a run belongs to a cell."""
    if (record["recipe"], record["method"], record["role"]) != (cell.recipe, cell.method, cell.role):
        return False
    return same_settings(settings(record), cell)


def same_settings(found: Mapping[str, Any], cell: Cell) -> bool:
    """Return whether a run and a cell change the same options; values that the recipe states are not changes."""
    wanted = dict(cell.overrides)
    if cell.role == "cost" and cell.time_limit is not None:
        wanted["time_limit"] = cell.time_limit
    stated = cell.stated
    ignored = NO_SETTINGS if cell.role == "cost" else (*NO_SETTINGS, *BUDGETS)
    wanted = {k: v for k, v in wanted.items() if k not in ignored and (k not in stated or stated[k] != v)}
    if set(wanted) != set(found):
        return False
    return all(_calls(value) or value == found[name] for name, value in wanted.items())


def changed_since(record: Record, cell: Cell) -> dict[str, Any]:
    """Return the options that the recipe has changed since a run, with their old values (None: not stated).

    Options that the cell sets are left out, and budgets if the cell has seconds. For records without "stated", the
    result is empty.
    """
    then, now = record.get("stated"), cell.stated
    if then is None or not now:
        return {}
    budgets = () if cell.time_limit is None else BUDGETS
    left_out = {*NO_SETTINGS, *budgets, *cell.overrides, "method"}
    names = dict.fromkeys((*then, *now))
    return {name: then.get(name) for name in names if name not in left_out and then.get(name) != now.get(name)}


def _calls(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(CALLS_OF)


def records_of(table: Table, cell: Cell, folder: Path) -> list[Record]:
    """Return the runs of a cell by seed, each from the table's own file or else from the first of its further files."""
    found: dict[int, Record] = {}
    for name in (table.name, *table.results):
        for record in read(folder / f"{name}.json"):
            if belongs(record, cell):
                found.setdefault(record["seed"], record)
    return [found[seed] for seed in sorted(found)]
