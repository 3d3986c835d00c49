"""Runs and draws of an earlier version, kept as test data: `python tests/support/kept_runs.py` records them.

They were recorded with commit c263602, on the CPU with one thread. Later versions have to load and resume the runs,
and to repeat the fits bit by bit on the same kind of machine. Recording again would defeat their purpose.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import egm

DATA = Path(__file__).parents[1] / "data"
#: run folders; what made them, and the step to which a test resumes them
RUNS: dict[str, tuple[Callable[[], egm.Target], dict[str, Any], int]] = {
    "mixed-egm-sp": (
        egm.targets.GBRBM,
        {"method": "egm-sp", "network": "ResidualMLP(width=16, depth=1)", "batch_size": 32, "inner_steps": 4,
         "refresh": 64, "buffer": 128, "sample_steps": 8, "ema": 0.9},
        24,
    ),
    "symbols-egm-bs": (
        lambda: egm.targets.Ising(3, 0.4),
        {"method": "egm-bs", "network": "MLP(width=16, depth=2)", "energy_network": "MLP(width=16, depth=2)",
         "batch_size": 16, "inner_steps": 4, "refresh": 32, "buffer": 64, "sample_steps": 8, "proposals": 16,
         "ema": 0.9, "symmetries": True, "epsilon": 0.2},
        24,
    ),
    "reals-flow": (
        egm.targets.GMM40,
        {"method": "egm", "processes": {"x": "flow"}, "network": "ResidualMLP(width=16, depth=1)", "batch_size": 16,
         "inner_steps": 4, "refresh": 32, "buffer": 64, "sample_steps": 8, "proposals": 16, "dtype": "float64"},
        24,
    ),
}  # fmt: skip
STEPS = 12  # of each kept run

#: small fits whose draws are compared
FITS: dict[str, tuple[Callable[[], egm.Target], dict[str, Any]]] = {
    "symbols": (lambda: egm.targets.Ising(4, 0.4), {"method": "egm-bs", "steps": 10, "proposals": 16,
                                                    "batch_size": 16, "refresh": 32, "buffer": 64}),
    "reals": (lambda: egm.targets.ManyWell(4), {"method": "egm-sp", "steps": 10, "batch_size": 32, "refresh": 64,
                                                "buffer": 128, "sample_steps": 10}),
    "mixed": (egm.targets.GBRBM, {"method": "egm-sp", "steps": 10, "batch_size": 32, "refresh": 64,
                                            "buffer": 128, "sample_steps": 10, "inner_steps": 5}),
    "flow": (lambda: egm.targets.Funnel(3), {"method": "iefm", "steps": 10, "proposals": 16, "batch_size": 32,
                                             "refresh": 64, "buffer": 128, "sample_steps": 10}),
    "scores": (lambda: egm.targets.Funnel(2), {"method": "idem", "steps": 10, "proposals": 16, "batch_size": 32,
                                               "refresh": 64, "buffer": 128, "sample_steps": 10}),
    "energy": (lambda: egm.targets.ManyWell(4), {"method": "bnem", "steps": 6, "proposals": 8, "batch_size": 16,
                                                 "refresh": 32, "buffer": 64, "sample_steps": 6}),
    "steered": (lambda: egm.targets.ManyWell(4), {"method": "pis", "steps": 6, "batch_size": 16,
                                                  "simulation_steps": 6, "sample_steps": 6}),
    "jumps": (lambda: egm.targets.Ising(3, 0.4), {"method": "leaps-mcmc", "steps": 8, "batch_size": 16, "refresh": 8,
                                                  "buffer": 80, "sample_steps": 8}),
    "opened": (lambda: egm.targets.Ising(3, 0.4), {"method": "egm-bs", "steps": 10, "bootstrap": "single-site",
                                                   "opening": 0.5, "batch_size": 16, "refresh": 32, "buffer": 64}),
    "chains": (egm.targets.GBRBM, {"method": "gibbs", "steps": 30, "warmup": 20}),
}  # fmt: skip


def machine() -> dict[str, str]:
    """Returns what bitwise equality depends on."""
    kind = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__.partition("+")[0], "machine": platform.machine(), "capability": kind}


def fingerprint(draws: egm.Draws) -> dict[str, Any]:
    """A digest and the mean of each tensor of draws."""
    tensors = {name: draws[name] for name in draws.space}
    if draws.log_weights is not None:
        tensors["log_weights"] = draws.log_weights
    return {
        name: {
            "sha256": hashlib.sha256(np.ascontiguousarray(x.cpu().numpy()).tobytes()).hexdigest(),
            "mean": float(x.double().mean()),
        }
        for name, x in tensors.items()
    }


def fitted(name: str) -> dict[str, Any]:
    """Draws of one of the small fits."""
    make, options = FITS[name]
    return fingerprint(egm.fit(make(), seed=3, device="cpu", progress=False, **options).sample(32, seed=5))


def loaded(folder: Path) -> dict[str, Any]:
    """Draws of a kept run."""
    return fingerprint(egm.load(folder).sample(64, seed=7))


def resumed(folder: Path, steps: int) -> dict[str, Any]:
    """Draws after resuming a kept run, which writes into its folder."""
    return fingerprint(egm.resume(folder, steps=steps, progress=False, device="cpu").sample(64, seed=7))


def record_fits() -> None:
    """Adds the fits that are not recorded yet; those that are there have to be found again."""
    expected = json.loads((DATA / "kept_runs.json").read_text())
    found = {name: fitted(name) for name in FITS}
    if any(found[name] != values for name, values in expected["fits"].items()):
        raise SystemExit("this is another machine or another version than the one that recorded the fits")
    (DATA / "kept_runs.json").write_text(json.dumps(expected | {"fits": found}, indent=1) + "\n")


def record() -> None:
    """Makes the runs and writes the digests of their draws."""
    expected: dict[str, Any] = {"machine": machine(), "fits": {name: fitted(name) for name in FITS}, "runs": {}}
    for name, (make, options, steps) in RUNS.items():
        folder = DATA / "kept_runs" / name
        shutil.rmtree(folder, ignore_errors=True)
        egm.fit(make(), steps=STEPS, seed=1, device="cpu", progress=False, out=folder, **options)
        for file in ("environment.json", "status.json"):  # they name a machine
            (folder / file).unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(folder, copy, dirs_exist_ok=True)
            after = resumed(Path(copy), steps)
        expected["runs"][name] = {"loaded": loaded(folder), "resumed": after}
    (DATA / "kept_runs.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    record()
