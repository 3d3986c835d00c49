"""The rows of the paper's tables with the fast recipes: many runs at once on one GPU, then their evaluation.

    python benchmarks/paper_rows.py train runs/rows --device cuda       trains every cell, each in a process of its own
    python benchmarks/paper_rows.py evaluate runs/rows --results results/paper_rows.json

Each cell is an `egm train --recipe … --time_limit …` command; processes share the GPU, so the time limit of a cell buys
fewer steps than it would alone (`concurrent` in the results says how many there were). Evaluation uses fresh draws and
fresh references, 20 times 2000 on each side, and never changes a run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from egm.api import load
from egm.cli.report import published, write_results
from egm.evaluation import evaluate
from egm.train.run_directory import RunDirectory

NOTE = "a fast recipe; the paper's own settings (recipes/paper) were not run in full"


@dataclass(frozen=True)
class Cell:
    """One run: a recipe, a method, seconds of training, and seeds."""

    recipe: str
    method: str
    seconds: int
    seeds: tuple[int, ...] = (0, 1, 2)
    role: str = "main"
    extra: tuple[str, ...] = ()


CELLS = [
    Cell("fast/ising5-b04", "egm", 90),
    Cell("fast/gbrbm", "egm", 80),
    Cell("fast/jointdw4", "egm", 90),
    Cell("fast/jointmog", "egm", 120),
    Cell("fast/gbrbm", "egm-bs", 120),
    Cell("fast/jointdw4", "egm-bs", 150),
    Cell("fast/ising5-b04", "egm-bs", 160),
    Cell("fast/jointmog", "egm-bs", 240),
    Cell("fast/ising10-b04", "egm", 120, (0,)),
    Cell("fast/ising10-b04", "egm-bs", 300, (0,)),
    # without the symmetries of the equivariant network
    Cell("fast/jointdw4", "egm", 90, (0,), "ablation", ("--network", "ResidualMLP(width=128, depth=6)")),
]


def train(out: Path, device: str, only: list[str]) -> int:
    """Start every cell at once, or those named; wait for all of them."""
    jobs = []
    cells = [cell for cell in CELLS if not only or f"{cell.recipe}:{cell.method}" in only]
    count = sum(len(cell.seeds) for cell in cells)
    for cell in cells:
        for seed in cell.seeds:
            name = f"{cell.recipe.split('/')[1]}-{cell.method}-{seed}" + (
                "" if cell.role == "main" else f"-{cell.role}"
            )
            command = [
                *(sys.executable, "-m", "egm.cli", "train", "--recipe", cell.recipe, "--method", cell.method),
                *("--seed", str(seed), "--time_limit", str(cell.seconds), "--device", device),
                *("--out", str(out / name), "--evaluate", "false", "--role", cell.role),
                *("--concurrent", str(count), *cell.extra),
            ]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            jobs.append((name, subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)))
    failed = 0
    for name, job in jobs:
        _, said = job.communicate()
        if job.returncode:
            failed += 1
            print(f"{name} failed:\n{said[-2000:]}")
    for name, _ in jobs:
        rows = RunDirectory(out / name).read_metrics()
        if rows:
            shown = {key: rows[-1].get(key) for key in ("step", "seconds", "energy_calls")}
            ess = [row["ess"] for row in rows if row.get("ess")]
            print(f"{name:<36}{shown}  ess {ess[-1][:6] if ess else None}")
    return 1 if failed else 0


def judge(out: Path, results: Path, repeats: int, device: str, jobs: int) -> int:
    """Evaluate every run of a folder and write one list of records."""
    records = []
    folders = sorted(path.parent for path in out.glob("*/model.safetensors"))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for folder, record in zip(folders, pool.map(_judged, folders, repeat(repeats), repeat(device)), strict=True):
            records.append(record)
            values = "  ".join(
                f"{k} {v['mean']:.3f} ± {v['std']:.3f} (floor {v['floor']:.3f})" for k, v in record["metrics"].items()
            )
            print(f"{folder.name:<36}{values}   paper {record['paper']}", flush=True)
            results.parent.mkdir(parents=True, exist_ok=True)
            results.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return 0


def _judged(folder: Path, repeats: int, device: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    sampler = load(folder, device=device)
    return {
        **write_results(folder, sampler, evaluate(sampler, repeats=repeats, seed=10_000)),
        "paper": published(sampler.config),
        "note": NOTE,
    }


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    one = commands.add_parser("train")
    one.add_argument("out", type=Path)
    one.add_argument("--device", default="cuda")
    one.add_argument("--only", nargs="*", default=[], help="cells to run, such as fast/gbrbm:egm-bs; all if left out")
    two = commands.add_parser("evaluate")
    two.add_argument("out", type=Path)
    two.add_argument("--results", type=Path, required=True)
    two.add_argument("--repeats", type=int, default=20)
    two.add_argument("--device", default="cpu")
    two.add_argument("--jobs", type=int, default=1, help="runs to evaluate at the same time")
    values = parser.parse_args()
    if values.command == "train":
        return train(values.out, values.device, values.only)
    return judge(values.out, values.results, values.repeats, values.device, values.jobs)


if __name__ == "__main__":
    sys.exit(main())
