"""`fit`, `resume` and `load`: from a target to a sampler, and from a run on disk to either."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from egm.baselines.chain_options import CHAIN_METHODS
from egm.baselines.chain_sampler import ChainSampler
from egm.baselines.chains import fit_chains, load_chains, refuse_to_resume
from egm.config.arguments import check_names, check_parts, device_of, limits, network_expression
from egm.config.build import (
    DTYPES,
    default_energy_body,
    default_network,
    make_config,
    make_energy_model,
    make_method,
    make_path,
    make_processes,
    make_sampler,
    make_target,
    outputs_of,
)
from egm.config.options import checked_option, split_options
from egm.config.registry import METHODS, method_names
from egm.config.start import Start
from egm.evaluation.scores import quick_scores
from egm.paths.product import AnyPath
from egm.processes.base import Process
from egm.runs.directory import RunDirectory
from egm.sampler import Sampler
from egm.targets.base import Target
from egm.train.options import TrainingOptions
from egm.train.progress import make_progress
from egm.train.signals import Stopped
from egm.train.trainer import Trainer
from egm.train.watching import has_events, watched
from egm.util.expressions import nearest

DEFAULT_SECONDS = 60.0


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
    processes: Mapping[str, str | type | Process[Any]] | None = None,
    start: Sampler | str | Path | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    tensorboard: bool = False,
    source: str | None = None,
    notes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Sampler:
    """Train a sampler for a target, or run Markov chains.

    Args:
        target: the space and its energy; it is checked first, on the device.
        method: "egm-sp", "egm", "egm-bs", one of the baselines "iefm", "idem", "bnem", "pis", "leaps" and "leaps-mcmc",
            or for chains "gibbs", "mala", "swendsen-wang" or "tempering"; or one of your own (`egm.config.registry`).
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
        source: how `egm train --resume` finds the target again, "module:function".
        notes: kept in the run's configuration as they are, plain values; the command line notes the recipe here.
        **options: of the loop (`egm.train.options.TrainingOptions`) and the method
            (`egm.methods.egm_options.EGMOptions`, `egm.methods.self_proposal.SPOptions`,
            `egm.baselines.pis.PISOptions`, `egm.baselines.leaps.LeapsOptions`), or of chains
            (`egm.baselines.chain_options.ChainOptions`).

    Ctrl-C stops early and returns the sampler so far. Chains give an `egm.ChainSampler`.
    """
    if not isinstance(target, Target):
        raise TypeError(f"fit needs an egm.Target, for example egm.Target(space, energy); got {type(target).__name__}")
    method = nearest(method, method_names(), kind="a method")
    check_names(fit, options)
    where = device_of(device)
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {list(DTYPES)}, got {dtype}")
    if (seed := checked_option("seed", seed, int)) < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    if method in CHAIN_METHODS:
        parts = {"network": network, "energy_network": energy_network, "paths": paths, "processes": processes}
        chains = fit_chains(
            target, method, options, **limits(steps, time_limit), seed=seed, device=where, dtype=name,
            parts={**parts, "start": start}, out=out, progress=progress, tensorboard=tensorboard, source=source,
            notes=notes or {},
        )  # fmt: skip
        return _as_sampler(chains)
    begun = None if start is None else Start.of(start)
    own_parts = [
        name for name, given in (("network", network), ("symmetries", options.get("symmetries"))) if given is not None
    ]
    if begun is not None:
        network, paths, processes = begun.parts(target, network, paths, processes)
        options.setdefault("symmetries", begun.config["symmetries"])
    given = split_options(method, options)
    if steps is None and time_limit is None:
        time_limit = DEFAULT_SECONDS
    kind = METHODS[method]
    check_parts(method, kind, target, energy_network)
    path = make_path(target.space, paths or {}, reals=kind.path, symbols=kind.symbol_path)
    chosen = make_processes(path, processes or {}, default=kind.process)
    config = make_config(
        target,
        method=method,
        source=source,
        path=path,
        chosen=chosen,
        network=network_expression(network, default_network(kind, target), target, outputs_of(kind, chosen)),
        energy_network=network_expression(energy_network, default_energy_body(target.space), target, {"energy": ()})
        if kind.learns_energy
        else None,
        options=given,
        **limits(steps, time_limit),
        seed=seed,
        device=str(where),
        dtype=name,
        notes=dict(notes or {}),
    )
    sampler = make_sampler(config, target, network=network if isinstance(network, nn.Module) else None, device=where)
    if begun is not None:
        begun.hand_over(sampler, given=own_parts)
    energy_module = energy_network if isinstance(energy_network, nn.Module) else None
    run = None if out is None else RunDirectory(out)
    trainer = _trainer(config, sampler, energy_module, run, progress=progress, tensorboard=tensorboard)
    target.check(where, seed=seed, dtype=DTYPES[name])
    if trainer.run_directory is not None:
        trainer.run_directory.create(config)
    return _train(trainer)


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
) -> Sampler:
    """Continue a run from its last checkpoint, on its own device unless another is given.

    `steps` or `time_limit` extend it. The target is needed only where the run's is not a built-in one. Event files
    (`tensorboard`) are continued where there are some.
    """
    run = RunDirectory(out)
    config = run.read_config()
    if config["method"] in CHAIN_METHODS:
        refuse_to_resume(out, config)
    if steps is not None or time_limit is not None:
        config |= limits(steps, time_limit)
    where = device_of(device or config["device"])
    sampler = make_sampler(config, _target_of(config, target), network=network, device=where)
    tensorboard = tensorboard or has_events(run)
    trainer = _trainer(config, sampler, energy_network, run, progress=progress, tensorboard=tensorboard)
    state = run.read_state(where)
    if state is not None:
        trainer.load_state_dict(state)
        if steps is not None or time_limit is not None:
            trainer.extend()
        run.forget_metrics_after(trainer.step)
    else:  # from the beginning, with the energy calls of the check that `fit` makes
        run.forget_metrics_after(-1)
        trainer.method.energy.target.check(where, seed=config["seed"], dtype=sampler.dtype)
    run.record_start()
    return _train(trainer)


def load(
    folder: str | Path,
    target: Target | None = None,
    *,
    network: nn.Module | None = None,
    device: torch.device | str = "cpu",
) -> Sampler:
    """The sampler of a run; nothing that the files name is imported.

    Args:
        folder: what `Sampler.save` or `fit(out=...)` wrote.
        target: the energy it was trained for, if it is one's own; built-in targets are made again.
        network: a module of the same architecture, if the run had one of the user's.
        device: where to put it.
    """
    run = RunDirectory(folder)
    config = run.read_config()
    if config["method"] in CHAIN_METHODS:
        return _as_sampler(load_chains(run.folder, config, _target_of(config, target, required=False), device))
    sampler = make_sampler(config, _target_of(config, target, required=False), network=network, device=device)
    saved = run.read_sampler()
    own_energy = (config["energy_network"] or "user:").startswith("user:")
    if "energy_model" in saved and not own_energy and sampler.target is not None:
        sampler.energy_model = make_energy_model(config, sampler)
    for name, module in sampler.modules().items():
        module.load_state_dict(saved.get(name, {}))  # some have nothing to save
    return sampler


def _as_sampler(chains: ChainSampler) -> Sampler:
    """Annotations promise what is trained, so that its network and the like are known to type checkers.

    Chains keep to what every sampler has: sample, save, why_unweighted, space, target, device and config.
    """
    return cast(Sampler, chains)


def _target_of(config: dict[str, Any], target: Target | None, *, required: bool = True) -> Target | None:
    """The target of a configuration: built in, or given and checked against it."""
    text = config["target"]
    own = ":" in text  # "user: …" or "module:function"
    if own and target is None and required:
        raise ValueError(f"the run's target ({text}) is not a built-in one; pass it as target=")
    if not own:
        built = make_target(text)
        if target is not None and repr(target) != text:
            raise ValueError(f"the run was made for {text}, not for {target!r}; leave target out or start another run")
        return target or built
    if target is not None and repr(target) != config["prints_as"]:
        raise ValueError(f"the run was made for {config['prints_as']}, not for {target!r}")
    return target


def _trainer(
    config: dict[str, Any],
    sampler: Sampler,
    energy_network: nn.Module | None,
    run: RunDirectory | None,
    *,
    progress: bool,
    tensorboard: bool,
) -> Trainer:
    for limit in ("steps", "time_limit"):
        if config[limit] is not None and not config[limit] > 0:
            raise ValueError(f"{limit} must be positive, got {config[limit]}")
    method = make_method(config, sampler, energy_network=energy_network)
    loop = {name: config[name] for name in TrainingOptions.__dataclass_fields__}
    options, _ = split_options(config["method"], loop)
    target = method.energy.target
    scored = target.reference_kind is not None and options.evaluate_every > 0
    return Trainer(
        method,
        sampler,
        options,
        steps=config["steps"],
        time_limit=config["time_limit"],
        seed=config["seed"],
        progress=watched(make_progress(progress), run, tensorboard=tensorboard),
        run=run,
        evaluate=quick_scores(target, options.evaluation_size) if scored else None,
    )


def _train(trainer: Trainer) -> Sampler:
    try:
        trainer.train()
    except Stopped:  # the command line's own
        raise
    except KeyboardInterrupt:
        if trainer.run_directory is not None:
            folder, config = trainer.run_directory.folder, trainer.sampler.config
            own = [
                name for name in ("target", "network", "energy_network") if (config[name] or "").startswith("user: ")
            ]
            given = "".join(f", {name}=..." for name in own)
            command = f"egm.resume({str(folder)!r}{given})" if own else f"egm train --resume {folder}"
            what = "stopped and saved" if trainer.between_steps else "stopped in a step; the last checkpoint is kept"
            print(f"\n{what}; continue with: {command}")
    trainer.sampler.network.eval()
    return trainer.sampler
