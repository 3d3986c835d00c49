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
from dataclasses import dataclass
from pathlib import Path

from egm.api import load
from egm.cli.report import published, write_results
from egm.evaluation import evaluate
from egm.train.run_directory import RunDirectory


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
    Cell("fast/gbrbm", "egm", 60),
    Cell("fast/jointdw4", "egm", 90),
    Cell("fast/jointmog", "egm", 120),
    Cell("fast/gbrbm", "egm-bs", 130),
    Cell("fast/jointdw4", "egm-bs", 150),
    Cell("fast/ising5-b04", "egm-bs", 300),
    Cell("fast/jointmog", "egm-bs", 450),
    Cell("fast/ising10-b04", "egm", 120, (0,)),
    Cell("fast/ising10-b04", "egm-bs", 450, (0,)),
    Cell("fast/ising10-b04", "egm-bs", 450, (0,), "ablation", ("--epsilon", "0.03")),
    # without the symmetries of the equivariant network
    Cell("fast/jointdw4", "egm", 90, (0,), "ablation", ("--network", "ResidualMLP(width=128, depth=6)")),
]


def train(out: Path, device: str, scale: float) -> int:
    """Start every cell at once; wait for all of them."""
    jobs = []
    count = sum(len(cell.seeds) for cell in CELLS)
    for cell in CELLS:
        for seed in cell.seeds:
            name = f"{cell.recipe.split('/')[1]}-{cell.method}-{seed}" + (
                "" if cell.role == "main" else f"-{cell.role}"
            )
            command = [
                *(sys.executable, "-m", "egm.cli", "train", "--recipe", cell.recipe, "--method", cell.method),
                *("--seed", str(seed), "--time_limit", str(cell.seconds * scale), "--device", device),
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


def judge(out: Path, results: Path, repeats: int) -> int:
    """Evaluate every run of a folder and write one list of records."""
    records = []
    for folder in sorted(path.parent for path in out.glob("*/model.safetensors")):
        sampler = load(folder)
        record = write_results(folder, sampler, evaluate(sampler, repeats=repeats, seed=10_000))
        records.append({**record, "paper": published(sampler.config)})
        values = "  ".join(
            f"{k} {v['mean']:.3f} ± {v['std']:.3f} (floor {v['floor']:.3f})" for k, v in record["metrics"].items()
        )
        print(f"{folder.name:<36}{values}   paper {records[-1]['paper']}", flush=True)
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    one = commands.add_parser("train")
    one.add_argument("out", type=Path)
    one.add_argument("--device", default="cuda")
    one.add_argument("--scale", type=float, default=1.0, help="factor on every time limit")
    two = commands.add_parser("evaluate")
    two.add_argument("out", type=Path)
    two.add_argument("--results", type=Path, required=True)
    two.add_argument("--repeats", type=int, default=20)
    values = parser.parse_args()
    if values.command == "train":
        return train(values.out, values.device, values.scale)
    return judge(values.out, values.results, values.repeats)


if __name__ == "__main__":
    sys.exit(main())
