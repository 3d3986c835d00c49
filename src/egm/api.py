"""`fit`, `resume` and `load`: train a sampler for a target, continue a run, and load the sampler of a run."""

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
    """Trains a sampler for a target, or runs Markov chains.

    Args:
        target: the space and its energy; it is checked first, on the device.
        method: "egm-sp", "egm", "egm-bs", one of the baselines "iefm", "idem", "bnem", "pis", "leaps" and "leaps-mcmc",
            or for chains "gibbs", "mala", "swendsen-wang" or "tempering"; or a method that you registered
            (`egm.methods.register_method`).
        steps: gradient steps to take, or steps of each chain (a scan over all sites, for example; 6000 by default).
        time_limit: seconds to train instead, 60 if neither is given.
        seed: seed of every random number.
        device: "cpu", "cuda", …; by default a GPU if there is one.
        dtype: torch.float32 or torch.float64.
        network: the denoiser, a module (`egm.networks.Denoiser`) or an expression such as "ResidualMLP(width=256)".
        energy_network: network of the intermediate energy (egm-bs): a module from (state, t) to [...], or an
            expression.
        paths: paths of some variables, as objects or expressions such as "VE(sigma_max=2.0)".
        processes: processes of some variables, "flow", "diffusion", "jump" or "discrete-jump".
        start: a sampler or the folder of a run, from whose network training starts; its paths, processes and network
            are used unless others are given.
        out: folder for checkpoints, metrics and the trained network.
        progress: show a bar (on a terminal) or lines.
        tensorboard: write the curves of the log as event files for TensorBoard too, into out/tensorboard.
        **options: options of the training loop (`egm.train.options.TrainingOptions`) and of the method, see
            [the list of options](options.md).

    Returns an `egm.Sampler`, or an `egm.ChainSampler` for chains; Ctrl-C stops early and returns the sampler so far.
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
    """Runs the method of a request."""
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
    """Continues a run from its last checkpoint, on the run's device unless another is given.

    `steps` or `time_limit` extend the run. The target is needed only if it is not a built-in one. Existing event files
    (`tensorboard`) are continued.
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
    """Returns the sampler of a run; imports nothing that the files name.

    Args:
        folder: what `Sampler.save` or `fit(out=...)` wrote.
        target: the target of the run, if it is user-defined; built-in targets are rebuilt from the files.
        network: a module of the same architecture, if the run had a user-defined network.
        device: device of the sampler.
    """
    run = RunDirectory(folder)
    config = run.read_config()
    kind = find_method(config["method"])
    target = target_of(config, target, required=False)
    return kind.load(Request.of_run(run, config, target, network=network, device=torch.device(device)))


def _check_names(options: Mapping[str, Any]) -> None:
    """Raises for unknown options; the nearest name may be an argument of `fit` itself."""
    own = [p.name for p in inspect.signature(fit).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name in options:
        known = nearest(name, [*option_names(), *own], kind="an option")
        if known in own:  # equal up to case and hyphens
            raise ValueError(f"'{name}' is not an option; did you mean '{known}'?")
