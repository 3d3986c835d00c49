"""Files of `results/` that benchmarks write, without runs of tables: times, memory, posteriors.

Each file has its own page: `Measurement.grids` returns its tables, and the list of the page has the complete records.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egm.recipes import load, names
from egm.report.markup import Grid
from egm.reproduce.formats import commit_text
from egm.reproduce.run_list import Rows

Records = Sequence[Mapping[str, Any]]
MARGINALS = {  # the largest errors of a posterior, by their key in records
    "inclusion": "inclusion of a coefficient",
    "coefficient": "mean of a coefficient",
    "together": "two points in one component",
    "fitted": "fitted mean of a point",
    "labelled": "mean of a component",
}
AXES = {"size": "sites along a side", "proposals": "proposals", "batch_size": "batch size"}
SPEED = {
    "case": "name",
    "authors' ms": "authors_ms",
    "ms": "ms",
    "least ms": "floor_ms",
    "all steps, min": "minutes",
    "authors' GiB": "authors_gib",
    "GiB": "gib",
}
BEFORE = {
    "case": "case",
    "what": "what",
    "before, ms": "before_ms",
    "now, ms": "now_ms",
    "before again, ms": "again_ms",
}
QUICKSTART = {
    "set-up, s": "setup_seconds",
    "training, s": "training_seconds",
    "the rest, s": "other_seconds",
    "in all, s": "total_seconds",
    "steps": "steps",
    "ESS": "ess",
    "log Z": "log_z",
    "cores": "cores",
}


@dataclass(frozen=True)
class Measurement:
    """A file of `results/` and its page.

    Attributes:
        title, text: title and text of the page.
        command: command that writes the file.
        grids: returns the tables.
        left_out: prefixes of keys of records that are not listed.
        figure: a file in `docs`.
    """

    title: str
    text: str
    command: str
    grids: Callable[[Records], list[Grid]]
    left_out: tuple[str, ...] = ()
    figure: str = ""


def read(file: Path) -> Records:
    """Return the records of a file; measured speeds also get the minutes that all steps of a recipe take."""
    content = json.loads(file.read_text(encoding="utf-8"))
    found = content if isinstance(content, list) else [content]
    return [{**record, **_whole(record)} for record in found]


def _whole(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the minutes of all steps of a recipe at the measured speed; empty for draws and for removed recipes."""
    if "ms" not in record or record.get("recipe") not in names() or record["name"].startswith("draws"):
        return {}
    return {"minutes": record["ms"] * load(record["recipe"], record["method"])["steps"] / 6e4}


def rows_of(measurement: Measurement, records: Records) -> Rows:
    """Return the records for the list of the page; names of nested values are joined by dots."""
    flat = map(_flat, records)
    return [{k: v for k, v in record.items() if not k.startswith(measurement.left_out)} for record in flat]


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= _flat(value, f"{name}.")
        elif name in ("commit", "before", "now"):
            found[name] = commit_text(value)
        else:
            found[name] = json.dumps(value) if isinstance(value, list) else value
    return found


def _picked(columns: Mapping[str, str]) -> Callable[[Records], list[Grid]]:
    """Return a function that makes one table with some columns of the records."""
    return lambda records: [(list(columns), [[_text(r.get(key)) for key in columns.values()] for r in records])]


def _scaling(records: Records) -> list[Grid]:
    """Return a table for each quantity that was varied."""
    return [
        _crossed([r for r in records if r["axis"] == axis], title, "value", lambda r: _text(r["ms"]))
        for axis, title in AXES.items()
        if any(r["axis"] == axis for r in records)
    ]


def _crossed(records: Records, corner: str, row: str, cell: Callable[[Mapping[str, Any]], str]) -> Grid:
    columns = list(dict.fromkeys(record["what"] for record in records))
    rows = list(dict.fromkeys(record[row] for record in records))
    cells = {(record[row], record["what"]): cell(record) for record in records}
    return [corner, *columns], [[str(value), *(cells.get((value, name), "") for name in columns)] for value in rows]


def _posteriors(records: Records) -> list[Grid]:
    """Return a row for each marginal of each posterior: mean ± standard deviation over seeds for each method."""
    methods = list(dict.fromkeys(record["method"] for record in records))
    rows = []
    for problem in dict.fromkeys(record["problem"] for record in records):
        own = [record for record in records if record["problem"] == problem]
        for name, words in MARGINALS.items():
            scores = {m: [r["metrics"].get(f"{name}_max") for r in own if r["method"] == m] for m in methods}
            if not any(score for values in scores.values() for score in values):
                continue
            cells = [_spread([score["mean"] for score in scores[m] if score]) for m in methods]
            floors = [score["floor"] for values in scores.values() for score in values if score]
            rows.append([problem, words, *cells, f"{statistics.fmean(floors):.4f}"])
    return [(["posterior", "largest error of", *methods, "floor"], rows)]


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{spread}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


MEASUREMENTS = {
    "bayes": Measurement(
        "Posteriors: spike-and-slab regression and a Gaussian mixture",
        "The table shows the largest errors of marginals that are known by enumeration ([bayes.md](../bayes.md)"
        " describes the posteriors). A value of EGM-SP is a mean over several sets of weighted draws. A value of a"
        " chain uses all states after its warm-up. Every chain makes as many calls, of energy and gradient together, as"
        " EGM-SP made for training and one set of draws."
        " The floor is the mean error of as many exact draws as EGM-SP has. The cores did other work at the same time.",
        "python benchmarks/bayes.py --results results/bayes.json",
        _posteriors,
        ("marginals", "report", "overrides"),
    ),
    "speed": Measurement(
        "Speed of the paper's settings",
        "The table shows the milliseconds and the memory of one gradient step; the row `draws-10` is for 2000 draws."
        " The authors' code ran on the same kind of GPU. The column `least ms` is the lower bound of the machine. The"
        " column `all steps` is for one run alone on the GPU, without the draws for the buffer.",
        "python benchmarks/speed.py --results results/speed.json",
        _picked(SPEED),
    ),
    "scaling": Measurement(
        "Scaling",
        "The tables show the milliseconds of one gradient step, and of 2000 draws, as one quantity of the problem"
        " grows. The list also has the spreads and the memory.",
        "python benchmarks/scaling.py --results results/scaling.json",
        _scaling,
        figure="scaling.svg",
    ),
    "compare_cpu": Measurement(
        "Speed on a CPU before and after a change",
        "The table shows medians of milliseconds. The earlier version ran twice in each round: its two columns show the"
        " variation of the machine alone.",
        "python benchmarks/compare_cpu.py runs/before/src --results results/compare_cpu.json",
        _picked(BEFORE),
    ),
    "quickstart": Measurement(
        "The time of `make quickstart`",
        "The table shows seconds in an empty clone, on CPU cores.",
        "python benchmarks/quickstart.py --results results/quickstart.json",
        _picked(QUICKSTART),
    ),
}
