"""Runs of cells: their folders, their progress, and the commands that start or continue them.

A run is a folder of `egm train`. Its `reproduce.json` says whether `egm train` finished, how many runs shared the
device at most, over all starts of the run, and how the run was evaluated. A stopped run is continued (chains cannot be
continued and start again), and a finished run is kept.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egm.reproduce.definitions import CALLS_OF, Cell
from egm.reproduce.records import same_settings, settings
from egm.runs.directory import RunDirectory
from egm.util.files import write_json

NOTES = "reproduce.json"


@dataclass(frozen=True)
class Run:
    """One cell with one seed, in its own folder."""

    cell: Cell
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def begun(self) -> bool:
        """Whether `egm train` has written its configuration."""
        return (self.folder / "config.yaml").is_file()

    @property
    def finished(self) -> bool:
        """Whether `egm train` has finished."""
        return bool(self.notes().get("finished"))

    def notes(self) -> dict[str, Any]:
        """Return the contents of `reproduce.json`."""
        file = self.folder / NOTES
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    def note(self, *, concurrent: int = 1, **changes: Any) -> None:
        """Change entries of `reproduce.json`; the number of runs that share the device only grows."""
        most = max(concurrent, self.notes().get("concurrent", 1))
        write_json(self.folder / NOTES, {**self.notes(), **changes, "concurrent": most})

    def check(self) -> None:
        """Raise if the folder holds another run."""
        config = RunDirectory(self.folder).read_config()
        notes = config.get("notes") or {}
        found = {"role": notes.get("role", "main"), "overrides": notes.get("overrides", {})}
        own = (notes.get("recipe"), config["method"], config["seed"], found["role"])
        wanted = (self.cell.recipe, self.cell.method, self.seed, self.cell.role)
        if own != wanted or not same_settings(settings(found), self.cell):
            raise ValueError(
                f"{self.folder} holds another run ({', '.join(map(str, own))}, changed {found['overrides']}); move it"
                " away, or choose another folder with --out"
            )

    def forget(self) -> None:
        """Remove the folder of chains that were stopped."""
        if self.begun and not self.finished and self.cell.is_chain:
            shutil.rmtree(self.folder)

    def kept_limit(self) -> str | None:
        """Return a message if the limit of an existing run differs from the requested one, otherwise None."""
        config = RunDirectory(self.folder).read_config()
        limit = config.get("time_limit")
        if limit == self.cell.time_limit:
            return None
        shown = f"{config.get('steps')} steps" if limit is None else f"{limit:g} s"
        return f"{self.name} has a limit of {shown}; it is kept (delete the folder to train it again)"

    def command(self, *, device: str, concurrent: int, calls: Callable[[str], int]) -> list[str]:
        """Return the command that starts or continues the run; `calls` returns another method's energy calls."""
        program = [sys.executable, "-m", "egm.cli", "train"]
        if self.begun:
            return [*program, "--resume", str(self.folder), "--evaluate", "false", "--device", device]
        cell = self.cell
        options = dict(cell.overrides)
        if cell.time_limit is not None:
            options = {name: value for name, value in options.items() if name != "steps"}
            options["time_limit"] = cell.time_limit
        return [
            *(*program, "--recipe", cell.recipe, "--method", cell.method, "--seed", str(self.seed)),
            *("--device", device, "--out", str(self.folder), "--role", cell.role, "--concurrent", str(concurrent)),
            *("--evaluate", "false"),
            *(() if cell.is_chain else ("--evaluate_every", "0")),  # evaluation would take time from training
            *(word for name, value in options.items() for word in (f"--{name}", _word(value, calls))),
        ]

    def energy_calls(self) -> int | None:
        """Return the energy calls of its training so far."""
        counted = [row["energy_calls"] for row in RunDirectory(self.folder).read_metrics() if row.get("energy_calls")]
        return int(counted[-1]) if counted else None

    def waits_for(self) -> set[str]:
        """Return the methods whose energy calls limit this run."""
        values = (value for value in self.cell.overrides.values() if isinstance(value, str))
        return {value.removeprefix(CALLS_OF) for value in values if value.startswith(CALLS_OF)}


def runs_of(cells: Iterable[Cell], seeds: Iterable[int], out: Path) -> list[Run]:
    """Return a run for every cell and seed, each once, in descending order of their seconds."""
    seeds, runs = list(seeds), {}
    for cell in cells:
        for seed in seeds:
            if cell.row.seeds is None or seed in cell.row.seeds:
                run = Run(cell, seed, out / f"{cell.name}-{seed}")
                runs.setdefault(run.folder, run)
    return sorted(runs.values(), key=lambda run: -(run.cell.time_limit or 0.0))


def with_budget(cell: Cell, *, time_limit: float | None, stretch: float) -> Cell:
    """Return a cell with other seconds; a cell with role "cost" keeps its own."""
    if cell.role == "cost":
        return cell
    if time_limit is not None:
        return dataclasses.replace(cell, time_limit=time_limit)
    if cell.time_limit is None:
        return cell
    return dataclasses.replace(cell, time_limit=round(stretch * cell.time_limit, 3))


def _word(value: Any, calls: Callable[[str], int]) -> str:
    if isinstance(value, str):
        return str(calls(value.removeprefix(CALLS_OF))) if value.startswith(CALLS_OF) else value
    return json.dumps(value)
