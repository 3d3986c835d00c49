"""The data of figures: a small file of draws in each run, and its shown part in `results/figures.json`.

`figures.npz` of a run holds n draws with narrow dtypes, one array for each variable. Further arrays, with names that no
variable can have, hold energies and magnetisations of the draws and of as many reference draws, two-point correlations
of both, and the effective sample size over training. `figures.json` holds histograms, some points, correlations and
series of one seed of each cell: enough for the figures, and small enough to commit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from egm.metrics import two_point_correlation
from egm.report.plotting import bin_edges
from egm.reproduce.records import Record
from egm.runs.directory import RunDirectory
from egm.sampler import AnySampler
from egm.spaces import State
from egm.targets.base import Target
from egm.util.files import replacing, write_json
from egm.util.seeds import derive_seed

FILE = "figures.npz"
SEED = 20_000  # of the draws; training and evaluation have other seeds
POINTS, MOMENTS = 400, 100
SERIES = ("step", "seconds", "energy_calls", "ess")


def save_draws(folder: Path, sampler: AnySampler, target: Target, n: int) -> None:
    """Draw n times and write `figures.npz`."""
    drawn = {name: x.cpu() for name, x in sampler.sample(n, seed=SEED, weigh=False).state.items()}
    arrays = {name: _narrow(x) for name, x in drawn.items()}
    for prefix, state in ((".", drawn), (".reference.", target.exact_sample(n, seed=derive_seed(SEED, 1)))):
        arrays |= {f"{prefix}{name}": x for name, x in _observed(target, state).items()}
    rows = [row for row in RunDirectory(folder).read_metrics() if row.get("ess")]
    rows = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, MOMENTS).round().astype(int))] if rows else []
    arrays |= {f".series.{name}": np.array([float(row[name]) for row in rows]) for name in SERIES}
    with replacing(folder / FILE) as stream:
        np.savez_compressed(stream, **arrays)  # pyright: ignore[reportArgumentType]


def _observed(target: Target, state: State) -> dict[str, NDArray[np.generic]]:
    """Return energies, and the magnetisation and correlations of lattices."""
    found = {"energy": target.energy(**state).float()}
    observed = target.observables(**state)
    if "magnetization" in observed:
        found["magnetization"] = observed["magnetization"].float()
        found["correlation"] = two_point_correlation(target, state).float()
    return {name: x.numpy() for name, x in found.items()}


def _narrow(x: torch.Tensor) -> NDArray[np.generic]:
    return x.float().numpy() if x.is_floating_point() else x.to(torch.uint8).numpy()


def compact(folder: Path, record: Record, *, label: str) -> dict[str, Any]:
    """Return the part of a run's draws that figures show, with the label of its row."""
    with np.load(folder / FILE, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    entry: dict[str, Any] = {name: record[name] for name in ("target", "recipe", "role", "seed", "n", "commit")}
    entry["label"] = label
    for name in ("energy", "magnetization"):
        if f".{name}" in arrays:
            entry[name] = _histogram(arrays[f".{name}"], arrays[f".reference.{name}"])
    if ".correlation" in arrays:
        both = {"draws": arrays[".correlation"], "reference": arrays[".reference.correlation"]}
        entry["correlation"] = {name: _rounded(x) for name, x in both.items()}
    real = [x for name, x in arrays.items() if not name.startswith(".") and x.dtype.kind == "f"]
    if real and (points := real[0][:POINTS].reshape(min(POINTS, len(real[0])), -1)).shape[1] > 1:
        entry["points"] = [_rounded(pair, 3) for pair in points[:, :2]]
    series = {name: _rounded(arrays[f".series.{name}"], 4) for name in SERIES}
    return entry | ({"series": series} if series["ess"] else {})


def _histogram(draws: NDArray[np.generic], reference: NDArray[np.generic]) -> dict[str, list[float]]:
    """Count both sets in the same bins; the reference sets the range, and values outside are in the last bins."""
    known = reference.astype(float)
    edges = bin_edges(known)
    sets = {"draws": np.clip(draws.astype(float), edges[0], edges[-1]), "reference": known}
    counts = {name: np.histogram(x, edges)[0].tolist() for name, x in sets.items()}
    return {"edges": _rounded(edges), **counts}


def _rounded(values: NDArray[Any], digits: int = 5) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in np.asarray(values, float)]


def read(file: Path) -> list[dict[str, Any]]:
    """Return the entries of `figures.json`, none if there is no such file."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []


def merge(file: Path, entry: dict[str, Any]) -> None:
    """Replace the entry of the same row, unless that entry has a smaller seed."""
    entries = {_row(old): old for old in read(file)}
    own = _row(entry)
    if own in entries and entries[own]["seed"] < entry["seed"]:
        return
    entries[own] = entry
    write_json(file, [entries[name] for name in sorted(entries)], indent=None)


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    return tuple(entry[name] for name in ("recipe", "label", "role"))
