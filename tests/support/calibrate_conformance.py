"""Calibrates the conformance matrix; prints the table and writes it as JSON.

    PYTHONPATH=tests python -m support.calibrate_conformance

Every cell is trained with each of SEEDS; the threshold of a cell is mean + 4 standard deviations of its distances, for
every cell alike. (It is always above the worst of them: of n values none is more than (n−1)/√n ≤ 4 standard deviations
off, n ≤ 17.) `test_conformance.py` trains with a seed that is not among them.
"""

import json
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from support.conformance import CELLS, COMMON, DRAWS, Cell

SEEDS = tuple(range(16))
TABLE = Path(__file__).with_name("conformance.json")
DEVIATIONS = 4


def threshold(row: dict[str, float]) -> float:
    """The largest distance that passes."""
    return row["mean"] + DEVIATIONS * row["sd"]


def calibrate(cell: Cell) -> dict[str, float]:
    """Mean, standard deviation and worst distance over SEEDS, and the seconds that one training takes."""
    torch.set_num_threads(1)
    start = time.process_time()
    samplers = [cell.train(seed) for seed in SEEDS]
    seconds = (time.process_time() - start) / len(SEEDS)
    found = [cell.score(sampler, seed) for sampler, seed in zip(samplers, SEEDS, strict=True)]
    row = {"mean": statistics.mean(found), "sd": statistics.stdev(found), "worst": max(found)}
    return {**{name: round(value, 4) for name, value in row.items()}, "seconds": round(seconds, 1)}


def main() -> None:
    print(f"{'mean':>6} {'sd':>6} {'worst':>6} {'limit':>6} {'s':>4}  cell")
    rows: dict[str, dict[str, float]] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name, row in zip(CELLS, pool.map(calibrate, CELLS.values()), strict=True):
            rows[name] = row
            numbers = " ".join(f"{value:6.3f}" for value in (row["mean"], row["sd"], row["worst"], threshold(row)))
            print(f"{numbers} {row['seconds']:4.1f}  {name}", flush=True)
    table = {"seeds": SEEDS, "draws": DRAWS, "common": COMMON, "cells": rows}
    TABLE.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
