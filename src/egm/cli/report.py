"""After training: the record of a run (`results.json`), and what is said about it."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from egm.baselines.chain_sampler import ChainSampler
from egm.cli.tables import show_metrics
from egm.evaluation import evaluate as compare
from egm.runs.directory import RunDirectory
from egm.sampler import Sampler

N, REPEATS, FLOOR_PAIRS = 2000, 3, 5  # enough to look at; `egm evaluate` does it properly


def finish(folder: Path, sampler: Sampler | ChainSampler, *, evaluate: bool) -> None:
    """Compare a trained sampler with its reference, and say where the run is."""
    if sampler.device.type == "cuda":
        RunDirectory(folder).record_peak(torch.cuda.max_memory_allocated(sampler.device) / 2**30)
    target = sampler.target
    if evaluate and target is not None and target.reference_kind is None:
        print(f"{target!r} has no exact draws to compare with")
    elif evaluate:
        print("comparing with reference draws", file=sys.stderr)
        n = min(N, sampler.kept) if isinstance(sampler, ChainSampler) else N
        record = write_results(folder, sampler, compare(sampler, n=n, repeats=REPEATS, floor_pairs=FLOOR_PAIRS))
        show_metrics(record, published(sampler.config))
        print(f"a proper comparison:  egm evaluate {shlex.quote(str(folder))}")
    source = str(sampler.config["target"])  # module:function is imported only where it is named, and weights need it
    named, loaded = (f" --target {shlex.quote(source)}", ", target") if ":" in source else ("", "")
    print(f"the run is in:        {folder}")
    print(f"draw from it:         egm sample {shlex.quote(str(folder))} -n 1000 --seed 1{named} --out draws.npz")
    print(f"or in Python:         egm.load({str(folder)!r}{loaded}).sample(1000, seed=1)")


def published(config: dict[str, Any]) -> dict[str, list[float | None]]:
    """The paper's numbers for a run, if its recipe states any."""
    return (config.get("notes") or {}).get("paper") or {}


def write_results(folder: Path, sampler: Sampler | ChainSampler, comparison: dict[str, Any]) -> dict[str, Any]:
    """Complete an evaluation by what the run cost, and write `results.json`; null where something is undefined.

    Args:
        folder: of the run.
        sampler: of the run.
        comparison: what `egm.evaluate` gave.
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
    """A record without infinities and NaN, which JSON has no words for."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
