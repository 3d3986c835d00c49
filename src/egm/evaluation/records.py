"""The record of a run, `results.json`: its scores and its cost, as one object of `results/*.json`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from egm.runs.directory import RunDirectory
from egm.sampler import AnySampler


def published(config: dict[str, Any]) -> dict[str, list[float | None]]:
    """Returns the paper's numbers for a run, if its recipe states any."""
    return (config.get("notes") or {}).get("paper") or {}


def write_results(folder: Path, sampler: AnySampler, comparison: dict[str, Any]) -> dict[str, Any]:
    """Adds the cost of the run to an evaluation and writes `results.json`, with null for undefined values.

    Args:
        folder: folder of the run.
        sampler: sampler of the run.
        comparison: result of `egm.evaluate`.
    """
    run = RunDirectory(folder)
    cost = run.cost(sampler.config)
    outcome = sampler.config.get("outcome")  # of chains
    notes = sampler.config.get("notes") or {}
    started = run.last_start()
    record = {
        "target": comparison["target"],
        "method": comparison["method"],
        "role": notes.get("role", "main"),
        "overrides": notes.get("overrides", {}),
        "recipe": notes.get("recipe"),
        "stated": notes.get("stated"),
        "seed": comparison["seed"],
        "n": comparison["n"],
        "repeats": comparison["repeats"],
        **{name: comparison[name] for name in ("metrics", "resampled", "ess", "log_z", "log_z_stderr")},
        **{name: comparison[name] for name in ("log_z_exact", "elbo", "eubo", "observables", "modes")},
        "train_seconds": cost["seconds"],
        "concurrent": notes.get("concurrent", 1),
        "steps": cost["step"],
        "energy_calls": cost["energy_calls"],
        "score_calls": cost["score_calls"],
        "eval_energy_calls": comparison["eval_energy_calls"],
        "peak_memory_gib": started.get("peak_memory_gib"),
        **{name: comparison[name] for name in ("symmetries", "dtype")},
        **{name: started.get(name) for name in ("hardware", "torch", "commit")},
        "command": notes.get("command"),
        **({"diagnostics": outcome["diagnostics"]} if outcome else {}),
    }
    record = _finite(record)
    run.write_results(record)
    return record


def _finite(value: Any) -> Any:
    """Returns a record with None instead of infinities and NaN, which JSON cannot represent."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
