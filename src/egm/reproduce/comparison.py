"""Computes the lines of a table: the mean ± standard deviation of a quantity over seeds, and its verdicts.

A line is a quantity of a cell (a row of a table with one kind of recipe). Its verdicts come from published
numbers, other lines of the same target and the floor of exact draws:

    at the floor             the number of seeds at the floor, by `egm.metrics.floors.score_at_floor`; lines of fewer
                             draws than the others have no such verdict, because their floor is higher
    worse than published     worse than the published mean by more than two of its standard deviations, and by more
                             than its rounding
    better baselines         other methods with a better mean than a method of EGM that is not at the floor;
                             differences below the floor do not count, and only lines of the same role and the same
                             number of draws are compared
    not at equal calls       the other method was run again since, with another number of energy calls
    by an earlier recipe     the recipe has changed since the runs were made

Smoke runs are not judged, and the costs of runs are compared with published numbers alone: the runs are of different
lengths and machines. A row that was published and not run has a line without a value.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from egm.metrics.floors import score_at_floor
from egm.metrics.metrics import LABELS
from egm.reproduce.definitions import CALLS_OF, Cell, Published, Table
from egm.reproduce.records import Record, changed_since

OURS = ("egm", "egm-bs", "egm-sp")


@dataclass(frozen=True)
class Quantity:
    """A quantity of a record.

    Attributes:
        label: name in print.
        value: value of a record; None if it has none.
        more: whether larger values are better.
        unit: "distance", "count" or "share", which sets the format.
        cost: whether it is a cost of the run instead of a result.
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
        """Return the spread of one value per seed."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Line:
    """One quantity of one cell.

    Attributes:
        target, metric, cell, published: target, metric and cell of the line, and the published number.
        seeds: seeds of the runs that have the quantity.
        n: the smallest number of draws of a run.
        evaluations, pairs: the smallest number of evaluations of a value, and of pairs of a floor.
        value, resampled: values of draws before weighting, and of draws resampled by their weights.
        floor: mean floor over seeds.
        at_floor, resampled_at_floor: numbers of seeds at the floor; None if unknown.
        unequal: whether a run at equal calls had another number of calls than the shown run of the other method.
        outdated: whether the recipe of a run has changed since.
        fewer: whether other lines of the target have more draws.
        worse: whether the value is worse than the published one.
        baselines: labels of better baselines.
    """

    target: str
    metric: str
    cell: Cell
    published: Published | None
    seeds: tuple[int, ...] = ()
    n: int = 0
    evaluations: int = 0
    pairs: int = 0
    value: Spread | None = None
    resampled: Spread | None = None
    floor: float | None = None
    at_floor: int | None = None
    resampled_at_floor: int | None = None
    unequal: bool = False
    outdated: bool = False
    fewer: bool = False
    worse: bool = False
    baselines: tuple[str, ...] = ()

    @property
    def all_at_floor(self) -> bool:
        """Whether every seed is at the floor."""
        return self.at_floor == len(self.seeds)

    @property
    def mean(self) -> float:
        """The mean of the value, negated if larger is better; infinite without a value."""
        if self.value is None:
            return math.inf
        return -self.value.mean if QUANTITIES[self.metric].more else self.value.mean


def compare(table: Table, found: Mapping[str, Sequence[tuple[Cell, Sequence[Record]]]]) -> list[Line]:
    """Return the lines of a table: targets in their order, then metrics, then cells.

    Args:
        table: its definition.
        found: cells with their records, by target.
    """
    lines: list[Line] = []
    for target, cells in found.items():
        for metric in table.metrics:
            group = [line for cell, records in cells if (line := _line(table, target, metric, cell, records))]
            group = [replace(line, unequal=_unequal(line.cell, cells)) for line in group]
            lines += _judged([line for line in group if line.value is not None or _alone(line, group)])
    return lines


def _unequal(cell: Cell, cells: Sequence[tuple[Cell, Sequence[Record]]]) -> bool:
    """Return whether a run at equal calls got another number than the other method's run with the same seed made."""
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
    """Return whether a line is the first of a row in which no kind of recipe has a value."""
    same = [other for other in group if other.cell.row is line.cell.row]
    return line is same[0] and all(other.value is None for other in same)


def _line(table: Table, target: str, metric: str, cell: Cell, records: Sequence[Record]) -> Line | None:
    quantity = QUANTITIES[metric]
    pairs = [(record, value) for record in records if (value := quantity.value(record)) is not None]
    name, published = table.targets.get(target, target), cell.published.get(metric)
    if not pairs:
        return None if published is None or published.of else Line(name, metric, cell, published)
    runs = [record for record, _ in pairs]
    scores = [record["metrics"][metric] for record in runs if metric in record["metrics"]]
    again = [record["resampled"][metric]["mean"] for record in runs if metric in (record["resampled"] or {})]
    return Line(
        target=name,
        metric=metric,
        cell=cell,
        published=published,
        seeds=tuple(record["seed"] for record in runs),
        n=min(record["n"] for record in runs),
        evaluations=min(record["repeats"] for record in runs),
        pairs=min((score["floor_pairs"] for score in scores), default=0),
        value=Spread.of([value for _, value in pairs]),
        resampled=Spread.of(again) if again else None,
        floor=statistics.fmean(score["floor"] for score in scores) if scores else None,
        at_floor=_at_floor(runs, "metrics", metric),
        resampled_at_floor=_at_floor(runs, "resampled", metric),
        outdated=any(changed_since(record, cell) for record in runs),
    )


def _at_floor(records: Sequence[Record], part: str, metric: str) -> int | None:
    """Return how many runs are at the floor; None if this is unknown for a run."""
    found = [(record, record[part][metric]) for record in records if metric in (record[part] or {})]
    verdicts = [score_at_floor(score, evaluations=record["repeats"]) for record, score in found]
    return None if None in verdicts or len(found) < len(records) else sum(map(bool, verdicts))


def _judged(group: Sequence[Line]) -> list[Line]:
    """Return lines of one quantity on one target, each compared with the others and with published numbers."""
    most = max((line.n for line in group), default=0)
    return [_with_verdict(line, group, most) for line in group]


def _with_verdict(line: Line, group: Sequence[Line], most: int) -> Line:
    if line.value is None or line.cell.role == "smoke":
        return replace(line, at_floor=None, resampled_at_floor=None)
    if line.n < most:
        line = replace(line, fewer=True, at_floor=None, resampled_at_floor=None)
    return replace(line, worse=_worse(line), baselines=_better_baselines(line, group))


def _worse(line: Line) -> bool:
    """Return whether a value is worse than the published one."""
    if (stated := line.published) is None:
        return False
    sign = -1 if QUANTITIES[line.metric].more else 1
    return line.mean > sign * stated.mean + max(2 * (stated.std or 0.0), stated.rounding)


def _better_baselines(line: Line, group: Sequence[Line]) -> tuple[str, ...]:
    """Return labels of the baselines that are better than a method of EGM; differences below the floor are chance."""
    if line.cell.method not in OURS or line.all_at_floor or line.fewer or QUANTITIES[line.metric].cost:
        return ()
    peers = [other for other in group if other.value is not None and other.cell.role == line.cell.role]
    peers = [other for other in peers if other.n == line.n]
    floors = [other.floor for other in peers if other.floor is not None]
    floor = statistics.fmean(floors) if floors else -math.inf  # floors of several lines differ a little
    better = [other for other in peers if max(floor, other.mean) < max(floor, line.mean)]
    return tuple(other.cell.label for other in better if other.cell.method not in OURS)
