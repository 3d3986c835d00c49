"""Makes the records of tables: trains missing runs, evaluates them, and writes their records.

All training comes before all evaluation, so that a run with a time limit shares the device only with other training.
Both can be stopped at any time; the next call continues from the existing files.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from egm.report import markup
from egm.report.markup import Grid, element, prose
from egm.reproduce import figure_data, judge, records
from egm.reproduce.comparison import QUANTITIES
from egm.reproduce.definitions import Cell, Kind, Table
from egm.reproduce.footnotes import footnotes
from egm.reproduce.formats import bullets, markdown
from egm.reproduce.layout import grids
from egm.reproduce.run_list import csv_text, rows_of
from egm.reproduce.runner import Job, last_lines, locked, run_jobs
from egm.reproduce.runs import Run, runs_of, with_budget
from egm.reproduce.selection import Selection
from egm.reproduce.shown import Shown
from egm.util.files import replacing


@dataclass(frozen=True)
class Plan:
    """The runs to make, and how.

    Attributes:
        tables, kind, seeds, only: selection of the runs.
        device, jobs, threads: device, number of runs at a time, and threads of each run.
        time_limit, stretch: seconds of every run instead of its own seconds, or a factor on them.
        n, repeats: draws and repeats of the evaluation.
        out, results: folders of runs and of records.
    """

    tables: Sequence[Table]
    kind: Kind
    seeds: Sequence[int]
    only: Selection
    device: str
    jobs: int
    threads: int
    time_limit: float | None
    stretch: float
    n: int
    repeats: int
    out: Path
    results: Path

    def cells(self, table: Table) -> list[Cell]:
        """Return the selected cells of a table."""
        chosen = [cell for cell in table.cells(self.kind) if self.only.takes(cell)]
        return [with_budget(cell, time_limit=self.time_limit, stretch=self.stretch) for cell in chosen]

    @cached_property
    def runs(self) -> list[Run]:
        """The runs that are possible here, in their order; runs at equal calls are last."""
        possible = [cell for table in self.tables for cell in self.cells(table) if cell.why_not() is None]
        runs = runs_of(possible, self.seeds, self.out)
        return sorted(runs, key=lambda run: bool(run.waits_for()))

    def evaluation(self, run: Run) -> dict[str, Any]:
        """Return the options of the evaluation of a run, for all tables that show it."""
        tables = [table for table in self.tables if any(cell.name == run.cell.name for cell in self.cells(table))]
        metrics = list(dict.fromkeys(metric for table in tables for metric in table.metrics))
        resample_from = max(table.resample_from for table in tables) if self.kind != "smoke" else 1
        return {"n": self.n, "repeats": self.repeats, "metrics": metrics, "resample_from": resample_from}

    def calls(self, run: Run, method: str) -> int | None:
        """Return the energy calls of another method's run on the same target and seed, from the runs or the records."""

        def meant(cell: Cell) -> bool:
            return (cell.stem, cell.method, cell.role) == (run.cell.stem, method, run.cell.role)

        for other in self.runs:
            if meant(other.cell) and other.seed == run.seed and other.finished:
                return other.energy_calls()
        kinds: tuple[Kind, ...] = ("smoke",) if self.kind == "smoke" else ("fast", "paper")
        cells = ((table, cell) for kind in kinds for table in self.tables for cell in table.cells(kind) if meant(cell))
        found = (record for table, cell in cells for record in records.records_of(table, cell, self.results))
        return next((record["energy_calls"] for record in found if record["seed"] == run.seed), None)


def say(text: str) -> None:
    """Print a message to stderr."""
    print(text, file=sys.stderr, flush=True)


def describe(plan: Plan) -> None:
    """Print what would be run, and what cannot be run."""
    width = max((len(run.name) for run in plan.runs), default=0)
    for run in plan.runs:
        state = "finished" if run.finished else "to be continued" if run.begun else "to be run"
        steps = f"the energy calls of {', '.join(run.waits_for())}" if run.waits_for() else "the recipe's steps"
        limit = steps if run.cell.time_limit is None else f"{run.cell.time_limit:g} s"
        print(f"{run.name:<{width}}  {state:<15}  {limit}")
    left = sum(run.cell.time_limit or 0.0 for run in plan.runs if not run.finished)
    unlimited = sum(run.cell.time_limit is None for run in plan.runs if not run.finished)
    more = f", and {unlimited} runs without a time limit" if unlimited else ""
    print(f"about {left / 60 / plan.jobs:.0f} min of training, {plan.jobs} at a time{more}; then evaluation")
    for table in plan.tables:
        for cell in plan.cells(table):
            if (reason := cell.why_not()) is not None:
                print(f"cannot be run: {table.name}, {cell.recipe} by {cell.label}: {reason}")


def carry_out(plan: Plan) -> bool:
    """Train and evaluate; return whether everything succeeded."""
    with locked(plan.out) as lock:
        for run in plan.runs:
            if run.begun:
                run.check()
                run.forget()
            if run.begun and (kept := run.kept_limit()) is not None:
                say(kept)
        first = [run for run in plan.runs if not run.waits_for()]
        ended = [_train(plan, wave, lock) for wave in (first, plan.runs[len(first) :])]
        return _evaluate(plan, lock) and all(ended)


def _train(plan: Plan, runs: Sequence[Run], lock: int) -> bool:
    """Train unfinished runs; return whether all of them finished."""
    todo = [run for run in runs if not run.finished]
    commands, together = {}, min(plan.jobs, len(todo))
    for run in todo:
        calls = {method: plan.calls(run, method) for method in run.waits_for()}
        if lacking := [method for method, number in calls.items() if number is None]:
            say(f"{run.name} needs the energy calls of {', '.join(lacking)}, which has not run with seed {run.seed}")
            continue
        commands[run.name] = run.command(device=plan.device, concurrent=together, calls=lambda m, c=calls: c[m] or 0)
    jobs = [Job(name, command, plan.out / name / "train.log") for name, command in commands.items()]
    named = {run.name: run for run in todo if run.name in commands}
    for run in named.values():
        run.note(finished=False, concurrent=together)
    progress = _Progress("trained", len(jobs))

    def ended(job: Job, code: int, seconds: float) -> None:
        if code == 0:
            named[job.name].note(finished=True, concurrent=together)
        progress(job, code, seconds)

    if jobs:
        say(f"training {len(jobs)} runs, {min(plan.jobs, len(jobs))} at a time on {plan.device}")
    run_jobs(jobs, at_once=plan.jobs, threads=plan.threads, lock=lock, ended=ended)
    return not progress.failed and len(jobs) == len(todo)


def _evaluate(plan: Plan, lock: int) -> bool:
    """Evaluate finished runs and write their records; return whether all evaluations succeeded."""
    jobs, named = [], {}
    for run in plan.runs:
        options = plan.evaluation(run)
        if run.finished and judge.judged(run, **options) is None:
            command = judge.command(run, **options, device=plan.device)
            jobs.append(Job(run.name, command, run.folder / "evaluate.log"))
            named[run.name] = run
        elif run.finished:
            _write_down(plan, run)
    progress = _Progress("evaluated", len(jobs))

    def ended(job: Job, code: int, seconds: float) -> None:
        if code == 0:
            named[job.name].note(evaluated=plan.evaluation(named[job.name]))
            _write_down(plan, named[job.name])
        progress(job, code, seconds)

    if jobs:
        say(f"evaluating {len(jobs)} runs on {plan.device}, {plan.repeats} times {plan.n} draws each")
    run_jobs(jobs, at_once=plan.jobs, threads=plan.threads, lock=lock, ended=ended)
    return not progress.failed


def _write_down(plan: Plan, run: Run) -> None:
    """Write a run's record to the file of every table that shows it, and draws of plain rows to `figures.json`."""
    record = judge.judged(run, **plan.evaluation(run))
    if record is None:
        raise ValueError(f"the evaluation of {run.folder} did not write the requested scores; see its evaluate.log")
    for table in plan.tables:
        for cell in (cell for cell in plan.cells(table) if records.belongs(record, cell)):
            records.merge(plan.results / f"{table.name}.json", [record], cell=cell)
    if run.cell.role in ("main", "smoke") and not run.cell.row.overrides:
        entry = figure_data.compact(run.folder, record, label=run.cell.label)
        figure_data.merge(plan.results / "figures.json", entry)


class _Progress:
    """Prints a line for each process that ends."""

    def __init__(self, done: str, total: int) -> None:
        self.done, self.total, self.count, self.failed = done, total, 0, 0
        self._began = time.monotonic()

    def __call__(self, job: Job, code: int, seconds: float) -> None:
        self.count += 1
        self.failed += code != 0
        spent = time.monotonic() - self._began
        left = f", about {spent / self.count * (self.total - self.count):.0f} s left" if self.count < self.total else ""
        what = self.done if code == 0 else "FAILED"
        say(f"[{self.count}/{self.total}] {job.name} {what} after {seconds:.0f} s{left}")
        if code != 0:
            say(f"  exit code {code}; the end of {job.log}:\n{_indented(last_lines(job.log))}")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


@dataclass(frozen=True)
class Written:
    """A table that was written.

    Attributes:
        grids: tables with their labels; a wide one is in two parts.
        texts: sentences below them.
        files: the written files, in the folder of the runs.
    """

    grids: Sequence[tuple[str, Grid]]
    texts: Sequence[str]
    files: Sequence[Path]


def write_table(plan: Plan, table: Table) -> Written:
    """Write a table as Markdown and HTML, and the list of its runs as CSV."""
    shown = Shown(table, [plan.kind], plan.results, chosen=plan.only.takes)
    made = [(QUANTITIES[metric].label, grid) for metric in table.metrics for grid in grids(shown, metric)]
    warning = "Smoke runs test that everything works; their numbers mean nothing." if plan.kind == "smoke" else ""
    notes = (sentence for metric in table.metrics for sentence in footnotes(shown, metric))
    texts = [text for text in (warning, *notes, *_missing(shown)) if text]
    title = table.title
    text = "\n\n".join([f"# {title}", *(f"## {label}\n\n{markdown(grid)}" for label, grid in made), bullets(texts)])
    parts = [part for label, grid in made for part in (element("h2", label), _html_table(grid, label=label))]
    page = markup.page(title, element("h1", title), *parts, *(element("p", prose(text)) for text in texts))
    files = {"md": f"{text}\n", "html": page, "csv": csv_text(rows_of([shown], table.metrics))}
    written = []
    for ending, content in files.items():
        with replacing(plan.out / f"{table.name}.{ending}") as stream:
            stream.write(content.encode())
        written.append(plan.out / f"{table.name}.{ending}")
    return Written(made, texts, written)


def _html_table(grid: Grid, *, label: str) -> markup.Html:
    return markup.table(grid[0], grid[1], label=label)


def _missing(shown: Shown) -> Iterator[str]:
    """Yield why rows cannot be run here; `footnotes` names the missing runs that are possible."""
    for reason, cells in shown.reasons().items():
        if reason:
            yield f"No run of {', '.join(cells)}: {reason}."
