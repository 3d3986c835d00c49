"""The arguments of `egm.fit` as one object; limits, device, dtype and seed are checked and typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from egm.config.options import checked_option
from egm.config.parts import DTYPES, AnyProcess
from egm.config.targets import make_space, target_entries
from egm.paths.product import AnyPath
from egm.runs.directory import RunDirectory
from egm.sampler import AnySampler
from egm.spaces import Space
from egm.targets.base import Target

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Request:
    """The arguments of `egm.fit`, given or read from a run on disk; a method raises for those that it cannot use.

    Attributes:
        target: the energy; None where a run is loaded without it.
        method, seed: as given.
        steps, time_limit: limits as plain numbers.
        device, dtype: device and dtype of the run.
        options: of the loop and the method, not checked yet.
        network, energy_network, paths, processes: parts in the form they were given; None or empty where left out.
        start: a sampler or a run to begin with.
        run: folder of the run, if files are written.
        progress, tensorboard: whether to show progress, and whether to write event files.
        source: how the target can be imported, "module:function".
        notes: notes that are copied into the run's configuration.
        config: the configuration of a run that is resumed or loaded.
    """

    target: Target | None
    method: str
    steps: int | None = None
    time_limit: float | None = None
    seed: int = 0
    device: torch.device = CPU
    dtype: str = "float32"
    options: Mapping[str, Any] = field(default_factory=dict)
    network: nn.Module | str | None = None
    energy_network: nn.Module | str | None = None
    paths: Mapping[str, str | AnyPath] = field(default_factory=dict)
    processes: Mapping[str, AnyProcess] = field(default_factory=dict)
    start: AnySampler | str | Path | None = None
    run: RunDirectory | None = None
    progress: bool = True
    tensorboard: bool = False
    source: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    config: dict[str, Any] | None = None

    @classmethod
    def of_run(cls, run: RunDirectory, config: dict[str, Any], target: Target | None, **others: Any) -> Request:
        """Builds a request from a run on disk; `others` are further fields."""
        return cls(
            target, config["method"], config["steps"], config["time_limit"], config["seed"], dtype=config["dtype"],
            options=config, paths=config.get("paths", {}), processes=config.get("processes", {}), run=run,
            config=config, **others,
        )  # fmt: skip

    @property
    def required_target(self) -> Target:
        """The target, which training needs."""
        if self.target is None:
            raise ValueError("training needs the target")
        return self.target

    @cached_property
    def space(self) -> Space:
        """The space of the target, or of a run that is loaded without its target."""
        return self.target.space if self.target is not None else make_space((self.config or {})["space"])

    def described(self) -> dict[str, Any]:
        """Returns the entries of `config.yaml` that every method has."""
        return {
            **target_entries(self.required_target, self.source),
            "method": self.method,
            "steps": self.steps,
            "time_limit": self.time_limit,
            "seed": self.seed,
            "device": str(self.device),
            "dtype": self.dtype,
            "notes": dict(self.notes),
        }


def make_request(
    target: Target,
    method: str,
    *,
    steps: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str = torch.float32,
    out: str | Path | None = None,
    **others: Any,
) -> Request:
    """Builds a request from the arguments of `egm.fit`; `others` are fields of `Request`."""
    if not isinstance(target, Target):
        raise TypeError(f"fit needs an egm.Target, for example egm.Target(space, energy); got {type(target).__name__}")
    where, name = device_of(device), dtype_name(dtype)
    if (seed := checked_option("seed", seed, int)) < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    run = None if out is None else RunDirectory(out)
    return Request(target, method, **limits(steps, time_limit), seed=seed, device=where, dtype=name, run=run, **others)


def limits(steps: int | None, time_limit: float | None) -> dict[str, Any]:
    """Returns the limits of a run as plain numbers."""
    seconds = checked_option("time_limit", time_limit, float | None)
    return {"steps": checked_option("steps", steps, int | None), "time_limit": seconds}


def dtype_name(dtype: torch.dtype | str) -> str:
    """Returns the name of a dtype; raises if samplers do not support it."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {list(DTYPES)}, got {dtype}")
    return name


def device_of(device: torch.device | str | None) -> torch.device:
    """Returns the device, after one allocation on it; by default a GPU if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the device '{device}' cannot be used here ({reason}); use 'cpu'") from None
    return where
