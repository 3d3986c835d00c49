"""Measures how time and memory of a gradient step and of draws grow with the lattice, the proposals and the batch.

    python benchmarks/scaling.py measure --results results/scaling.json
    python benchmarks/scaling.py plot --results results/scaling.json --out docs/scaling.svg

One axis is varied at a time, the others stay at 10 × 10 sites, 2000 proposals and batches of 300; networks are the
networks of the paper's EGM rows, with width 256.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from egm.runs.environment import commit, hardware
from egm.util.files import write_json
from timing import timed, trainer_of

RECIPE = "paper/ising10-b04"
WIDTH = "MLP(width=256, depth=3)"
AXES: dict[str, list[int]] = {
    "size": [5, 8, 10, 12, 16, 20, 24, 32],
    "proposals": [125, 250, 500, 1000, 2000, 4000, 8000],
    "batch_size": [75, 150, 300, 600, 1200],
}
LABELS = {"size": "rows of the lattice", "proposals": "proposals", "batch_size": "states in a batch"}
DRAWS = 2000


def measure(axis: str, value: int, method: str, device: str, *, draws: bool, base: dict[str, int]) -> dict[str, Any]:
    """Measure one point."""
    changes: dict[str, Any] = {"network": WIDTH, **base}
    if method == "egm-bs":
        changes["energy_network"] = WIDTH
    changes |= {"target": f"Ising(size={value}, beta=0.4)"} if axis == "size" else {axis: value}
    trainer = trainer_of(RECIPE, method, device, **changes)
    found = timed(trainer, device, draws=DRAWS if draws else None, repeats=5)
    return {
        "axis": axis, "value": value, "what": "draws" if draws else method, **found,
        "hardware": hardware(torch.device(device)), "torch": torch.__version__, "commit": commit(),
    }  # fmt: skip


def measure_all(device: str, results: Path, *, quick: bool) -> None:
    """Measure every point of every axis, and write the file after each; `quick` measures the first of each axis."""
    base = {"proposals": 8, "batch_size": 8} if quick else {}
    kinds = [("egm", False), ("egm-bs", False), ("egm", True)]
    records: list[dict[str, Any]] = []
    for axis, values in AXES.items():
        for method, draws in kinds:
            if draws and axis != "size":
                continue
            for value in values[:1] if quick else values:
                records.append(measure(axis, value, method, device, draws=draws, base=base))
                print({k: records[-1][k] for k in ("axis", "value", "what", "ms", "gib")}, flush=True)
                write_json(results, records)


def plot(results: Path, out: Path) -> None:
    """Plot time above and memory below, with a column for each axis."""
    try:
        from matplotlib import pyplot as plt  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
    except ImportError:
        sys.exit("plots need matplotlib: pip install matplotlib")
    records = json.loads(results.read_text(encoding="utf-8"))
    figure, panels = plt.subplots(2, len(AXES), figsize=(11, 6), sharex="col", squeeze=False)
    for column, axis in enumerate(AXES):
        for row, (key, label) in enumerate((("ms", "milliseconds"), ("gib", "GiB"))):
            panel = panels[row][column]
            for what in ("egm", "egm-bs", "draws"):
                points = [(r["value"], r[key]) for r in records if r["axis"] == axis and r["what"] == what and r[key]]
                if points:
                    panel.loglog(*zip(*points, strict=True), marker="o", markersize=3, label=what)
            panel.set_xlabel(LABELS[axis] if row else "")
            panel.set_ylabel("" if column else label)
            panel.grid(alpha=0.3)
    panels[0][0].legend(frameon=False)
    figure.suptitle(f"A gradient step, and {DRAWS} draws, on {records[0]['hardware']}")
    figure.tight_layout()
    figure.savefig(out)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    one, two = commands.add_parser("measure"), commands.add_parser("plot")
    for command in (one, two):
        command.add_argument("--results", type=Path, required=True)
    one.add_argument("--device", default="cuda")
    one.add_argument("--quick", action="store_true", help="a few small points, as a test")
    two.add_argument("--out", type=Path, required=True)
    values = parser.parse_args()
    if values.command == "plot":
        plot(values.results, values.out)
    else:
        measure_all(values.device, values.results, quick=values.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
