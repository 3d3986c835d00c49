"""A user-defined table with a recipe that takes seconds, and made-up records."""

import json
from pathlib import Path
from typing import Any

RECIPE = """
target: Ising(size=3, beta=0.3)
paper: {egm: {e_w1: [0.5, 0.1]}}
common: {batch_size: 8, refresh: 16, inner_steps: 4, network: MLP(width=8), log_every: 2, checkpoint_every: 4}
egm: {steps: 8, proposals: 4}
egm-sp: {steps: 8, buffer: 32}
"""
TABLE = """
title: A tiny table
metrics: [e_w1, m_w1]
resample_from: 1
targets: {tiny: Tiny}
rows:
  - {recipe: tiny.yaml, method: gibbs, fast: full, published: {e_w1: [0.9, null]}}
  - {recipe: tiny.yaml, method: egm, fast: full}
  - {recipe: tiny.yaml, method: egm-sp, fast: full}
"""


def write_table(folder: Path, table: str = TABLE, recipe: str = RECIPE) -> Path:
    """Both files in a folder; returns the table's."""
    (folder / "tiny.yaml").write_text(recipe, encoding="utf-8")
    (folder / "small.yaml").write_text(table, encoding="utf-8")
    return folder / "small.yaml"


def record(seed: int = 0, e_w1: float = 1.0, **changes: Any) -> dict[str, Any]:
    """A run that was evaluated, of the row egm on fast/ising5-b04 unless something is changed."""
    score = {"mean": e_w1, "std": 0.1, "floor": 0.16, "floor_pairs": 200}
    return {
        "target": "Ising(size=5, beta=0.4)", "method": "egm", "role": "main", "overrides": {"time_limit": 90.0},
        "recipe": "fast/ising5-b04", "seed": seed, "n": 2000, "repeats": 20, "resampled": None, "ess": None,
        "metrics": {"e_w1": score, "m_w1": {**score, "floor": 0.02}}, "log_z": None, "log_z_stderr": None,
        "log_z_exact": 21.5, "elbo": None, "eubo": None, "observables": {}, "modes": None, "train_seconds": 90.0,
        "concurrent": 1, "steps": 3000, "energy_calls": 1_800_000, "score_calls": 0, "eval_energy_calls": 1000,
        "peak_memory_gib": 0.5, "symmetries": [], "dtype": "float32", "hardware": "NVIDIA H200", "torch": "2.11.0",
        "commit": "0123456789", "command": "egm train --recipe fast/ising5-b04", **changes,
    }  # fmt: skip


def write_records(folder: Path, name: str, records: list[dict[str, Any]]) -> Path:
    """A file of `results/`."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(records), encoding="utf-8")
    return folder
