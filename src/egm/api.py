"""`fit`, `resume` and `load`: from a target to a sampler, and from a run on disk to either."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from egm import baselines as _baselines  # noqa: F401  (baselines register themselves)
from egm.config.options import without_removed
from egm.config.parts import AnyProcess
from egm.config.request import Request, device_of, limits, make_request
from egm.config.targets import target_of
from egm.methods.registry import METHODS, find_method, option_names
from egm.paths.product import AnyPath
from egm.runs.directory import RunDirectory
from egm.sampler import AnySampler
from egm.targets.base import Target
from egm.util.expressions import nearest


def fit(
    target: Target,
    method: str = "egm-sp",
    *,
    steps: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str = torch.float32,
    network: nn.Module | str | None = None,
    energy_network: nn.Module | str | None = None,
    paths: Mapping[str, str | AnyPath] | None = None,
    processes: Mapping[str, AnyProcess] | None = None,
    start: AnySampler | str | Path | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    tensorboard: bool = False,
    **options: Any,
) -> AnySampler:
    """Train a sampler for a target, or run Markov chains.

    Args:
        target: the space and its energy; it is checked first, on the device.
        method: "egm-sp", "egm", "egm-bs", one of the baselines "iefm", "idem", "bnem", "pis", "leaps" and "leaps-mcmc",
            or for chains "gibbs", "mala", "swendsen-wang" or "tempering"; or a method that you registered
            (`egm.methods.register_method`).
        steps: gradient steps to take, or steps of each chain (a scan over all sites, for example; 6000 by default).
        time_limit: seconds to train instead, 60 if neither is given.
        seed: of everything random.
        device: "cpu", "cuda", …; by default a GPU if there is one.
        dtype: torch.float32 or torch.float64.
        network: the denoiser, a module (`egm.networks.Denoiser`) or an expression such as "ResidualMLP(width=256)".
        energy_network: of the intermediate energy (egm-bs): a module from (state, t) to [...], or an expression.
        paths: of some variables, as objects or expressions such as "VE(sigma_max=2.0)".
        processes: of some variables, "flow", "diffusion", "jump" or "discrete-jump".
        start: a sampler, or the folder of a run, whose network to begin with; paths, processes and network are then its
            own unless given.
        out: folder for checkpoints, metrics and the trained network.
        progress: show a bar (on a terminal) or lines.
        tensorboard: write the curves of the log as event files for TensorBoard too, into out/tensorboard.
        **options: of the loop (`egm.train.options.TrainingOptions`) and the method, as
            [the list of options](options.md) has them.

    Ctrl-C stops early and returns the sampler so far: an `egm.Sampler`, or an `egm.ChainSampler` of chains.
    """
    options, removed = without_removed(options)
    return begin(
        make_request(
            target, method, steps=steps, time_limit=time_limit, seed=seed, device=device, dtype=dtype, options=options,
            network=network, energy_network=energy_network, paths=paths or {}, processes=processes or {}, start=start,
            out=out, progress=progress, tensorboard=tensorboard, source=removed.get("source"),
            notes=removed.get("notes") or {},
        )
    )  # fmt: skip


def begin(request: Request) -> AnySampler:
    """Fit what a request asks for."""
    method = nearest(request.method, METHODS, kind="a method")
    _check_names(request.options)
    return METHODS[method].fit(dataclasses.replace(request, method=method))


def resume(
    out: str | Path,
    *,
    target: Target | None = None,
    steps: int | None = None,
    time_limit: float | None = None,
    network: nn.Module | None = None,
    energy_network: nn.Module | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
    tensorboard: bool = False,
) -> AnySampler:
    """Continue a run from its last checkpoint, on its own device unless another is given.

    `steps` or `time_limit` extend it. The target is needed only where the run's is not a built-in one. Event files
    (`tensorboard`) are continued where there are some.
    """
    run = RunDirectory(out)
    config = run.read_config()
    kind = find_method(config["method"])
    if (reason := kind.why_not_resumed(run, config)) is not None:
        raise ValueError(reason)
    extended = steps is not None or time_limit is not None
    if extended:
        config |= limits(steps, time_limit)
    where = device_of(device or config["device"])
    request = Request.of_run(
        run, config, target_of(config, target), network=network, energy_network=energy_network, device=where,
        progress=progress, tensorboard=tensorboard,
    )  # fmt: skip
    return kind.resume(request, extended=extended)


def load(
    folder: str | Path,
    target: Target | None = None,
    *,
    network: nn.Module | None = None,
    device: torch.device | str = "cpu",
) -> AnySampler:
    """The sampler of a run; nothing that the files name is imported.

    Args:
        folder: what `Sampler.save` or `fit(out=...)` wrote.
        target: the energy it was trained for, if it is the user's; built-in targets are made again.
        network: a module of the same architecture, if the run had one of the user's.
        device: where to put it.
    """
    run = RunDirectory(folder)
    config = run.read_config()
    kind = find_method(config["method"])
    target = target_of(config, target, required=False)
    return kind.load(Request.of_run(run, config, target, network=network, device=torch.device(device)))


def _check_names(options: Mapping[str, Any]) -> None:
    """Raise for options that nothing has; the nearest name may be an argument of `fit` itself."""
    own = [p.name for p in inspect.signature(fit).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name in options:
        known = nearest(name, [*option_names(), *own], kind="an option")
        if known in own:  # the same but for case or hyphens
            raise ValueError(f"'{name}' is not an option; did you mean '{known}'?")
