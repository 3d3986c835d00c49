"""Arithmetic of tables: each line is one quantity of one cell, mean ± standard deviation over seeds.

Beside it stand the published number, a baseline's value and the floor that exact draws set, and marks:

    best                    the best mean of all lines of its role on the same target; of distances, only what is above
                            the floor counts: to be closer than exact draws is luck
    at the floor            every seed is, by the rule of `egm.metrics.floors` (or "2 of 3 at the floor")
    resampled at the floor  draws are not, but every seed's resampled ones are
    worse than the paper    than its mean by more than two of its standard deviations, and by more than it was rounded
    worse than METHOD       a baseline's mean is better (above the floor), and this one is not at the floor
    n = 790                 fewer draws than in the other lines (chains may visit fewer states), which distances feel:
                            such a line is compared with no other
    not at equal calls      the other method was run again since, with another number of energy calls
    by an earlier recipe    which has changed since the runs were made; how they were made says in what

Smoke runs are not judged, and what runs cost is held against published numbers alone: they are of different lengths
and machines. A row that was published and not run has a line without a value.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from egm.metrics.floors import LEAST_EVALUATIONS, LEAST_PAIRS, TOLERANCE
from egm.metrics.metrics import LABELS
from egm.reproduce.definitions import CALLS_OF, Cell, Published, Table
from egm.reproduce.records import Record, changed_since

OURS = ("egm", "egm-bs", "egm-sp")


@dataclass(frozen=True)
class Quantity:
    """Something that a record states.

    Attributes:
        label: how it is called in print.
        value: of a record, None where it has none.
        more: whether more of it is better.
        unit: "distance", "count" or "share", for its format.
        cost: whether it is what a run took, not what came out.
    """

    label: str
    value: Callable[[Record], float | None]
    more: bool = False
    unit: str = "distance"
    cost: bool = False


def _distance(name: str) -> Callable[[Record], float | None]:
    return lambda record: record["metrics"][name]["mean"] if name in record["metrics"] else None


def _ms_per_step(record: Record) -> float | None:
    return 1e3 * record["train_seconds"] / record["steps"] if record["steps"] and record["train_seconds"] else None


def _log_z_error(record: Record) -> float | None:
    found, exact = record["log_z"], record["log_z_exact"]
    return None if found is None or exact is None else abs(found - exact)


QUANTITIES = {
    **{name: Quantity(label, _distance(name)) for name, label in LABELS.items()},
    "modes": Quantity("modes", lambda record: record.get("modes"), more=True, unit="count"),
    "ess": Quantity("ESS", lambda record: record["ess"], more=True, unit="share"),
    "log_z_error": Quantity("error of log Z", _log_z_error, unit="share"),
    "ms_per_step": Quantity("ms a step", _ms_per_step, cost=True),
    "energy_calls": Quantity("energy calls", lambda record: record["energy_calls"], unit="count", cost=True),
    "score_calls": Quantity("gradient calls", lambda record: record["score_calls"], unit="count", cost=True),
    "peak_memory_gib": Quantity("GPU memory, GiB", lambda record: record["peak_memory_gib"], cost=True),
}


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds (None for a single one)."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value a seed."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Line:
    """One quantity of one cell; `at_floor` counts seeds, None where it cannot be said.

    `run` says whether there are records, which may be without this quantity; `unequal` that a run at equal calls had
    not those of the run that is shown for the other method; `outdated` that the recipe of a run has changed.
    """

    target: str
    metric: str
    cell: Cell
    published: Published | None
    seeds: tuple[int, ...] = ()
    n: int = 0
    value: Spread | None = None
    resampled: Spread | None = None
    floor: float | None = None
    at_floor: int | None = None
    resampled_at_floor: int | None = None
    beside: Spread | Published | None = None
    run: bool = True
    unequal: bool = False
    outdated: bool = False
    marks: tuple[str, ...] = ()

    @property
    def all_at_floor(self) -> bool:
        """Whether every seed is at the floor."""
        return self.at_floor == len(self.seeds)

    @property
    def mean(self) -> float:
        """Of the value, the better the smaller; infinite where there is none."""
        if self.value is None:
            return math.inf
        return -self.value.mean if QUANTITIES[self.metric].more else self.value.mean


def compare(table: Table, found: Mapping[str, Sequence[tuple[Cell, Sequence[Record]]]]) -> list[Line]:
    """The lines of a table: targets in their order, metrics, then cells.

    Args:
        table: its definition.
        found: cells with their records, by target.
    """
    lines: list[Line] = []
    for target, cells in found.items():
        for metric in table.metrics:
            group = [line for cell, records in cells if (line := _line(table, target, metric, cell, records))]
            ran = {id(cell.row) for cell, records in cells if records}
            group = [replace(line, unequal=_unequal(line.cell, cells), run=id(line.cell.row) in ran) for line in group]
            lines += _judged(table, [line for line in group if line.value is not None or _alone(line, group)])
    return lines


def _unequal(cell: Cell, cells: Sequence[tuple[Cell, Sequence[Record]]]) -> bool:
    """Whether a run was given other calls than those of the run, of the same seed, that the cell says they equal."""
    wanted = str(cell.overrides.get("energy_calls", ""))
    if not wanted.startswith(CALLS_OF):
        return False
    calls: dict[str, dict[int, int]] = {"own": {}, "other": {}}
    for each, records in cells:
        part = "own" if each is cell else "other" if each.method == wanted.removeprefix(CALLS_OF) else None
        if part is not None and each.role == cell.role:
            given = [r["overrides"].get("energy_calls") if part == "own" else r["energy_calls"] for r in records]
            calls[part] |= {record["seed"]: number for record, number in zip(records, given, strict=True)}
    pairs = [(n, calls["other"][seed]) for seed, n in calls["own"].items() if seed in calls["other"]]
    return any(own != other for own, other in pairs)


def _alone(line: Line, group: Sequence[Line]) -> bool:
    """Whether a line without a value is the only one of its row: no kind of recipe has one, and it is the first."""
    same = [other for other in group if other.cell.row is line.cell.row]
    return line is same[0] and all(other.value is None for other in same)


def _line(table: Table, target: str, metric: str, cell: Cell, records: Sequence[Record]) -> Line | None:
    quantity = QUANTITIES[metric]
    pairs = [(record, value) for record in records if (value := quantity.value(record)) is not None]
    name, published = table.targets.get(target, target), cell.published.get(metric)
    if not pairs:
        return None if published is None or published.of else Line(name, metric, cell, published)
    scores = [record["metrics"][metric] for record, _ in pairs if metric in record["metrics"]]
    again = [record["resampled"][metric]["mean"] for record, _ in pairs if metric in (record["resampled"] or {})]
    return Line(
        target=name,
        metric=metric,
        cell=cell,
        published=published,
        seeds=tuple(record["seed"] for record, _ in pairs),
        n=min(record["n"] for record, _ in pairs),
        value=Spread.of([value for _, value in pairs]),
        resampled=Spread.of(again) if again else None,
        floor=statistics.fmean(score["floor"] for score in scores) if scores else None,
        at_floor=_at_floor([record for record, _ in pairs], "metrics", metric),
        resampled_at_floor=_at_floor([record for record, _ in pairs], "resampled", metric),
        outdated=any(changed_since(record, cell) for record, _ in pairs),
    )


def _at_floor(records: Sequence[Mapping[str, Any]], part: str, metric: str) -> int | None:
    """How many runs are at the floor; None where there are too few evaluations, or too few pairs behind a floor."""
    verdicts = []
    for record in records:
        score = (record[part] or {}).get(metric)
        if score is None or record["repeats"] < LEAST_EVALUATIONS or score["floor_pairs"] < LEAST_PAIRS:
            return None
        verdicts.append(score["mean"] <= TOLERANCE * score["floor"])
    return sum(verdicts)


def _judged(table: Table, group: Sequence[Line]) -> list[Line]:
    """Lines of one quantity on one target with what stands beside them and their marks."""
    others = [line for line in group if line.cell.method == table.beside and not line.cell.row.overrides]
    beside = next((line.value or line.published for line in others), None)
    shown = [replace(line, beside=beside) for line in group]
    whose = "the paper" if table.source == "paper" else table.source
    return [replace(line, marks=_marks(line, shown, whose)) for line in shown]


def _marks(line: Line, group: Sequence[Line], whose: str) -> tuple[str, ...]:
    if line.value is None or line.cell.role == "smoke":
        return ()
    most = max(other.n for other in group)
    peers = [other for other in group if other.value is not None and other.cell.role == line.cell.role]
    peers = [other for other in peers if other.n == line.n == most]
    marks = [f"n = {line.n}"] if line.n < most else []
    if line.unequal:
        marks.append("not at equal calls: run it again")
    if line.outdated:
        marks.append("by an earlier recipe")
    floors = [other.floor for other in peers if other.floor is not None]
    floor = statistics.fmean(floors) if floors else -math.inf  # those of several lines differ a little
    others = [other for other in peers if other is not line and not QUANTITIES[line.metric].cost]
    own = max(floor, line.mean)
    if others and all(own < max(floor, other.mean) for other in others):
        marks.append("best")
    if line.at_floor and line.n == most:  # that of fewer draws is a wider one
        marks.append("at the floor" if line.all_at_floor else f"{line.at_floor} of {len(line.seeds)} at the floor")
    if not line.all_at_floor and line.resampled_at_floor == len(line.seeds):
        marks.append("resampled at the floor")
    if (stated := line.published) is not None:
        sign = -1 if QUANTITIES[line.metric].more else 1
        if line.mean > sign * stated.mean + max(2 * (stated.std or 0.0), stated.rounding):
            of = f"'s {stated.of}" if whose == "the paper" else f" ({stated.of})"
            marks.append(f"worse than {whose}" + (of if stated.of else ""))
    if line.cell.method in OURS and not line.all_at_floor:
        better = [other for other in others if other.cell.method not in OURS and max(floor, other.mean) < own]
        marks += [f"worse than {other.cell.label}" for other in better]
    return tuple(marks)
