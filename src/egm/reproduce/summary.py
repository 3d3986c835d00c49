"""Writes the table of the README between two markers: EGM-SP on six targets, with E-W1, floor, ESS and energy calls.

`egm reproduce page` writes it from `results/*.json`, like the pages of results, and a test checks that it is
up to date.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from egm.report.markup import Grid, count
from egm.reproduce.definitions import Cell, Kind, table
from egm.reproduce.formats import listed, markdown, number_text, paragraph, spread_text
from egm.reproduce.records import Record
from egm.reproduce.shown import Shown
from egm.util.files import replacing

METHOD, METRIC = "egm-sp", "e_w1"
ROWS = {  # variables of the target, by table and recipe
    ("table1", "ising10-b04"): "100 spins",
    ("beyond", "ising16-critical"): "256 spins",
    ("table2", "gbrbm"): "2 reals, 3 bits",
    ("table2", "jointdw4"): "4 typed particles",
    ("manywell", "manywell"): "32 reals",
    ("particles", "lj13"): "13 particles",
}
KINDS: tuple[Kind, ...] = ("fast", "paper")
BEGIN, END = "<!-- results -->", "<!-- /results -->"


def write_summary(results: Path, readme: Path) -> Path | None:
    """Write the results between the markers of a file; return None if the file or the markers are missing."""
    if not readme.is_file():
        return None
    text = readme.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        return None
    before, after = text.split(BEGIN, 1)[0], text.split(END, 1)[1]
    with replacing(readme) as stream:
        stream.write(f"{before}{BEGIN}\n{summary(results)}{END}{after}".encode())
    return readme


def summary(results: Path) -> str:
    """Return the table, and a sentence about its runs."""
    rows: list[list[str]] = []
    runs: list[Record] = []
    for name in dict.fromkeys(name for name, _ in ROWS):
        for stem, row, records in _rows(Shown(table(name), KINDS, results)):
            if (name, stem) in ROWS:
                rows.append([row[0], ROWS[name, stem], *row[1:]])
                runs += records
    if not rows:
        return "No run is committed yet.\n"
    grid: Grid = (["target", "variables", "E-W1", "floor", "ESS", "energy calls"], rows)
    seconds = [run["train_seconds"] for run in runs]
    hardware = listed(sorted({run["hardware"] for run in runs}))
    took = f"{min(seconds):.0f} to {max(seconds):.0f} s on {hardware}"
    made = f"Mean ± standard deviation over seeds, or one seed. Training took {took}."
    return f"{markdown(grid)}\n\n{paragraph(made)}\n"


def _rows(shown: Shown) -> list[tuple[str, list[str], Sequence[Record]]]:
    """Return for each target its recipe, its row, and its runs."""
    found = []
    for line in shown.of(METRIC):
        if line.value is not None and _is_plain(line.cell):
            records = next(runs for runs in shown.found[line.cell.stem] if runs[0] is line.cell)[1]
            row = [line.target, spread_text(line.value, METRIC), number_text(line.floor, METRIC)]
            row += [number_text(_mean(records, "ess"), "ess"), count(_mean(records, "energy_calls"))]
            found.append((line.cell.stem, row, records))
    return found


def _is_plain(cell: Cell) -> bool:
    """Return whether a cell holds main runs of EGM-SP without changed options."""
    return cell.method == METHOD and cell.role == "main" and not cell.row.overrides


def _mean(records: Sequence[Record], key: str) -> float | None:
    values = [record[key] for record in records if record[key] is not None]
    return statistics.fmean(values) if values else None
