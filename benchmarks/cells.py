"""What the benchmarks of whole runs share: many `egm train` processes on one device, then their evaluation.

Each cell is an `egm train --recipe … --time_limit …` command. Processes that share a GPU buy fewer steps with a time
limit than one alone: `--stretch` gives them more seconds, and `concurrent` in the results says how many there were.
Evaluation uses fresh draws and fresh references, 20 times 2000 on each side, and never changes a run; records of other
runs stay in the file of results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from egm.api import load
from egm.cli.report import published, write_results
from egm.evaluation import evaluate
from egm.files import write_json
from egm.train.run_directory import RunDirectory


@dataclass(frozen=True)
class Cell:
    """Runs of one kind: a recipe, a method, seconds of training, and seeds."""

    recipe: str
    method: str
    seconds: int
    seeds: tuple[int, ...] = (0, 1, 2)
    role: str = "main"
    extra: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Without the seed; runs whose cost is the question differ by their seconds."""
        ending = {"main": "", "cost": f"-{self.seconds}s"}.get(self.role, f"-{self.role}")
        return f"{self.recipe.split('/')[1]}-{self.method}{ending}"


def train(cells: list[Cell], out: Path, *, device: str, jobs: int, threads: int) -> int:
    """Run every cell for every seed, `jobs` processes at a time."""
    runs = [(cell, seed) for cell in sorted(cells, key=lambda cell: -cell.seconds) for seed in cell.seeds]
    start = partial(_train_one, out=out, device=device, concurrent=min(jobs, len(runs)), threads=threads)
    with ThreadPoolExecutor(jobs) as pool:
        failed = sum(pool.map(start, runs))
    for cell, seed in runs:
        rows = [row for row in RunDirectory(out / f"{cell.name}-{seed}").read_metrics() if row.get("sampler_loss")]
        if rows:
            shown = {key: rows[-1].get(key) for key in ("step", "seconds", "energy_calls", "b", "ess")}
            print(f"{cell.name}-{seed:<4}{shown}")
    return 1 if failed else 0


def _train_one(run: tuple[Cell, int], *, out: Path, device: str, concurrent: int, threads: int) -> bool:
    cell, seed = run
    command = [
        *(sys.executable, "-m", "egm.cli", "train", "--recipe", cell.recipe, "--method", cell.method),
        *("--seed", str(seed), "--time_limit", str(cell.seconds), "--device", device),
        *("--out", str(out / f"{cell.name}-{seed}"), "--evaluate", "false", "--role", cell.role),
        *("--concurrent", str(concurrent), *cell.extra),
    ]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{cell.name}-{seed} failed:\n{done.stderr[-2000:]}", flush=True)
    return bool(done.returncode)


def judge(
    out: Path, results: Path, only: list[str], *, jobs: int, device: str, note: str | None, options: dict[str, Any]
) -> int:
    """Evaluate the runs of a folder and put them into one list of records, in the place of older ones of the same."""
    records = {_key(record): record for record in json.loads(results.read_text())} if results.exists() else {}
    folders = sorted(path.parent for path in out.glob("*/model.safetensors"))
    folders = [folder for folder in folders if not only or folder.name.rpartition("-")[0] in only]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        judged = pool.map(partial(_judged, device=device, note=note, options=options), folders)
        for folder, record in zip(folders, judged, strict=True):
            records[_key(record)] = record
            values = "  ".join(
                f"{k} {v['mean']:.3f} ± {v['std']:.3f} (floor {v['floor']:.3f})" for k, v in record["metrics"].items()
            )
            ess = "" if record["ess"] is None else f"ESS {record['ess']:.3f}  log Z {record['log_z']:.4f}  "
            print(f"{folder.name:<36}{ess}{values}   paper {record['paper']}", flush=True)
            write_json(results, [records[key] for key in sorted(records)])
    return 0


def _key(record: dict[str, Any]) -> tuple[str, ...]:
    seconds = record["overrides"].get("time_limit") if record["role"] == "cost" else None
    return (*(str(record[name]) for name in ("recipe", "method", "role", "seed")), str(seconds))


def _judged(folder: Path, *, device: str, note: str | None, options: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    sampler = load(folder, device=device)
    return {
        **write_results(folder, sampler, evaluate(sampler, seed=10_000, **options)),
        "paper": published(sampler.config),
        "note": note,
    }


def main(cells: list[Cell], description: str | None, *, note: str | None = None) -> int:
    """Read the command line of a benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    one = commands.add_parser("train")
    one.add_argument("out", type=Path)
    one.add_argument("--device", default="cuda")
    one.add_argument("--jobs", type=int, default=64, help="runs at the same time")
    one.add_argument("--threads", type=int, default=1, help="of each run")
    one.add_argument("--stretch", type=float, default=1.0, help="factor of the seconds of every run")
    one.add_argument("--seeds", nargs="*", type=int, help="of those that the cells have; all if left out")
    two = commands.add_parser("evaluate")
    two.add_argument("out", type=Path)
    two.add_argument("--results", type=Path, required=True)
    two.add_argument("--repeats", type=int, default=20)
    two.add_argument("--device", default="cpu")
    two.add_argument("--jobs", type=int, default=1, help="runs to evaluate at the same time")
    two.add_argument("--resample_from", type=int, default=5, help="draws behind a resampled one; 1 for none of those")
    for command in (one, two):
        command.add_argument("--only", nargs="*", default=[], help="cells, such as gbrbm-egm-bs; all if left out")
    values = parser.parse_args()
    if values.command == "evaluate":
        options = {"repeats": values.repeats, "resample_from": values.resample_from}
        return judge(
            values.out, values.results, values.only, jobs=values.jobs, device=values.device, note=note, options=options
        )
    chosen = [cell for cell in cells if not values.only or cell.name in values.only]
    chosen = [replace(cell, seconds=round(values.stretch * cell.seconds)) for cell in chosen]
    if values.seeds is not None:
        chosen = [replace(cell, seeds=tuple(s for s in cell.seeds if s in values.seeds)) for cell in chosen]
    return train(chosen, values.out, device=values.device, jobs=values.jobs, threads=values.threads)
