"""Reference draws: long MCMC runs that carry their seed and diagnostics, cached on disk outside the repository.

The cache directory is $EGM_CACHE_DIR if set, else egm/references under $XDG_CACHE_HOME or ~/.cache. Each reference is
one `.npz` file with plain arrays and the diagnostics as a JSON string; loading executes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from egm.mcmc.base import Kernel, SupportsEnergy
from egm.mcmc.diagnostics import scalars, summarise
from egm.mcmc.run import run
from egm.spaces import State
from egm.util.files import replacing

R_HAT_LIMIT = 1.05
FORMAT_VERSION = 2
QUANTILES = 501


class ConvergenceError(RuntimeError):
    """A run that did not converge well enough to serve as a reference."""


@dataclass(frozen=True)
class ReferencePlan:
    """The plan of an MCMC reference; see `egm.mcmc.run` for the meaning of the numbers.

    `gpu_only` marks plans that take hours without a GPU.
    """

    kernel: Kernel
    chains: int
    warmup: int
    steps: int
    thin: int = 1
    seed: int = 0
    init: State | None = field(default=None, repr=False)
    gpu_only: bool = field(default=False, repr=False)

    def key(self) -> str:
        """Returns everything the draws depend on as text; the cache file is named after it."""
        start = hashlib.sha256()
        for value in (self.init or {}).values():
            start.update(value.cpu().contiguous().numpy().tobytes())
        return f"{self!r} from {start.hexdigest()[:12] if self.init else 'the reference law'}"


@dataclass(frozen=True)
class Reference:
    """A pool of draws with their diagnostics.

    Attributes:
        state: the draws, [n, ...] on the CPU.
        diagnostics: how they were made (method, seed, chains, warmup, steps, thin, acceptance, energy_calls,
            score_calls, seconds, torch, report), and under "observables" the mean, sd, stderr, r_hat and ess of each.
        observables: the energy and every scalar observable of the draws, float64 [n] each.
    """

    state: State
    diagnostics: dict[str, Any]
    observables: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.state.values())))

    def draw(self, n: int, seed: int = 0) -> State:
        """Returns n different draws of the pool, in random order; [n, ...] for each variable."""
        if not 1 <= n <= len(self):
            raise ValueError(
                f"n must lie between 1 and the {len(self)} draws of this reference pool, got {n}; make a larger one"
                " with egm.mcmc.make_reference(target, ReferencePlan(...)) and draw from that"
            )
        index = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[:n]
        return {name: value[index] for name, value in self.state.items()}


def make_reference(
    target: SupportsEnergy, plan: ReferencePlan, *, device: torch.device | str = "cpu", progress: bool = False
) -> Reference:
    """Runs the plan and returns its draws; raises `ConvergenceError` if any observable has R-hat above 1.05."""
    if plan.gpu_only and torch.device(device).type == "cpu":
        raise RuntimeError(
            f"the reference of {target!r} takes hours without a GPU; make it on a machine with CUDA and copy the cache"
            " (EGM_CACHE_DIR), or use target.reference_summary"
        )
    chains = run(
        target,
        plan.kernel,
        chains=plan.chains,
        warmup=plan.warmup,
        steps=plan.steps,
        thin=plan.thin,
        seed=plan.seed,
        init=plan.init,
        device=device,
        progress=progress,
    )
    values = scalars(target, chains)
    observables = {name: summarise(x) for name, x in values.items()}
    worst = max(observables, key=lambda name: observables[name]["r_hat"])
    if not observables[worst]["r_hat"] <= R_HAT_LIMIT:
        raise ConvergenceError(
            f"the chains disagree on '{worst}' of {target!r}: R-hat {observables[worst]['r_hat']:.3f} is above"
            f" {R_HAT_LIMIT}; use more steps (warmup={plan.warmup}, steps={plan.steps}, thin={plan.thin} were too few)"
            " or a kernel that mixes better, for example ParallelTempering"
        )
    diagnostics: dict[str, Any] = {
        "method": repr(plan.kernel),
        "seed": plan.seed,
        "chains": plan.chains,
        "warmup": plan.warmup,
        "steps": plan.steps,
        "thin": plan.thin,
        "acceptance": chains.acceptance,
        "energy_calls": chains.energy_calls,
        "score_calls": chains.score_calls,
        "seconds": chains.seconds,
        "device": str(device),
        "torch": torch.__version__,
        "report": chains.report,
        "observables": observables,
    }
    pool = {name: value.flatten(0, 1).cpu() for name, value in chains.state.items()}
    kept = {name: torch.from_numpy(x.reshape(-1)) for name, x in values.items() if not name.endswith("]")}
    return Reference(state=pool, diagnostics=diagnostics, observables=kept)


def summary(reference: Reference) -> dict[str, Any]:
    """Returns a small JSON-able summary: diagnostics, moments and quantiles of the energy and scalar observables."""
    levels = np.linspace(0, 1, QUANTILES)
    described: dict[str, Any] = {}
    for name, values in reference.observables.items():
        quantiles = np.quantile(values.numpy(), levels)
        described[name] = {
            **reference.diagnostics["observables"][name],
            "quantiles": [float(f"{q:.7g}") for q in quantiles],
        }
    return {
        **{key: value for key, value in reference.diagnostics.items() if key != "observables"},
        "n": len(reference),
        "observables": described,
    }


def cache_directory() -> Path:
    """Returns the directory of cached references."""
    if chosen := os.environ.get("EGM_CACHE_DIR"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "egm" / "references"


def cache_path(name: str) -> Path:
    """Returns the file of the reference called `name`."""
    digest = hashlib.sha256(f"{FORMAT_VERSION}\n{name}".encode()).hexdigest()[:12]
    return cache_directory() / f"{slug(name)[:60]}-{digest}.npz"


def slug(name: str) -> str:
    """Returns a name as part of a file name.

    >>> slug("Ising(size=15, beta=0.28)")
    'Ising-size-15-beta-0.28'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def load_or_make(name: str, make: Callable[[], Reference]) -> Reference:
    """Returns the cached reference called `name`; if there is none, calls `make` and caches the result.

    `name` must contain everything the reference depends on: the target with its parameters, and the plan.
    A file that cannot be read is made again, with a warning; a directory that cannot be written to gives a warning.
    """
    path = cache_path(name)
    if path.exists():
        try:
            return _load(path, name)
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            warnings.warn(f"the cached reference {path} cannot be read ({error!r}) and is made again", stacklevel=2)
    reference = make()
    try:
        _save(reference, path, name)
    except (OSError, ValueError) as error:  # a failed write must not lose a finished run
        warnings.warn(
            f"the reference could not be cached ({error!r}); set EGM_CACHE_DIR to a directory that can be written to",
            stacklevel=2,
        )
    return reference


def _save(reference: Reference, path: Path, name: str) -> None:
    """Writes an .npz file atomically."""
    arrays: dict[str, Any] = {f"state/{name}": value.numpy() for name, value in reference.state.items()}
    arrays |= {f"observables/{name}": value.numpy() for name, value in reference.observables.items()}
    arrays["name"] = np.array(name)
    arrays["diagnostics"] = np.array(json.dumps(reference.diagnostics, allow_nan=False))
    with replacing(path) as stream:
        np.savez(stream, **arrays)


def _load(path: Path, name: str) -> Reference:
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        parts: dict[str, State] = {"state": {}, "observables": {}}
        if str(file["name"]) != name:
            raise ValueError(f"it belongs to {file['name']}")
        for key in file.files:
            group, _, part = key.partition("/")
            if group in parts:
                parts[group][part] = torch.from_numpy(file[key])
        diagnostics = json.loads(str(file["diagnostics"]))
    if not parts["state"]:
        raise ValueError("it holds no draws")
    return Reference(diagnostics=diagnostics, **parts)
