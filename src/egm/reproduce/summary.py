"""The results of the README, between two markers: one line for each target that EGM-SP was run on.

`egm reproduce page` writes them from `results/*.json`, like `docs/results.md`, and a test compares.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from egm.metrics.metrics import LABELS
from egm.report.markup import Grid, count
from egm.reproduce.definitions import Cell, Kind, table
from egm.reproduce.records import Record
from egm.reproduce.rendering import Shown, beside_text, markdown, number_text, spread_text, stated_text
from egm.util.files import replacing

TABLES = ("table1", "table2", "manywell", "leaps", "particles", "beyond")
METHOD, METRIC = "egm-sp", "e_w1"
KINDS: tuple[Kind, ...] = ("fast", "paper")
BEGIN, END = "<!-- results -->", "<!-- /results -->"
TEXT = """\
{metric}, the W1 distance between the energies of {n} draws, as they were drawn, and of {n} reference draws: mean ±
standard deviation over seeds, or one seed. The floor is its value where reference draws are on both sides; what is
below it is so by chance, and all seeds of a line together, for they are compared with the same reference draws. Calls
of the energy and the ESS of EGM-SP are means over seeds; it was trained on {on}. Numbers of the first column are the
paper's, all others were run here.
"""


def write_summary(results: Path, readme: Path) -> Path | None:
    """Put the results between the markers of a file; None where there is no such file, or it has no markers."""
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
    """The table and what it says."""
    columns = ["target", "EGM-BS, paper", "EGM-SP", "calls", "ESS", "Gibbs", "calls", "floor"]
    rows: dict[str, list[str]] = {}
    runs: list[Record] = []
    for name in TABLES:
        shown = Shown(table(name), KINDS, results)
        for target, row, records in _lines(shown):
            if target not in rows:
                rows[target] = row
                runs += records
    if not rows:
        return "No run is committed yet.\n"
    sizes, hardware = ({str(run[key]) for run in runs} for key in ("n", "hardware"))
    text = TEXT.format(metric=LABELS[METRIC], n=" or ".join(sorted(sizes)), on=" or ".join(sorted(hardware)))
    grid: Grid = (columns, [[target, *row] for target, row in rows.items()])
    return f"{markdown(grid)}\n\n{text}"


def _lines(shown: Shown) -> list[tuple[str, list[str], Sequence[Record]]]:
    """Target, what is printed of it, and the runs behind."""
    found = []
    for line in shown.lines:
        if line.metric != METRIC or line.value is None or not _is(line.cell, METHOD):
            continue
        cells = next(cells for cells in shown.found.values() if any(cell is line.cell for cell, _ in cells))
        records = next(records for cell, records in cells if cell is line.cell)
        beside = [run for cell, runs in cells for run in runs if _is(cell, shown.table.beside)]
        published = line.published if line.published is not None and line.published.of == "egm-bs" else None
        row = [stated_text(published, METRIC, named=False), spread_text(line.value, METRIC)]
        row += [count(_mean(records, "energy_calls")), number_text(_mean(records, "ess"), "ess")]
        row += [beside_text(line, shown.table), count(_mean(beside, "energy_calls")), number_text(line.floor, METRIC)]
        found.append((line.target, row, records))
    return found


def _is(cell: Cell, method: str | None) -> bool:
    """Whether these are the main runs of a method, with nothing changed."""
    return cell.method == method and cell.role == "main" and not cell.row.overrides


def _mean(records: Sequence[Record], key: str) -> float | None:
    values = [record[key] for record in records if record[key] is not None]
    return statistics.fmean(values) if values else None
