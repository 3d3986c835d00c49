"""From a configuration to the parts of a run, and back.

A configuration is a plain dict (`config.yaml`): targets, spaces, paths, processes and networks are constructor
expressions (`egm.util.expressions`), options are numbers and words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from egm.baselines.bnem import EnergyScore
from egm.baselines.leaps import LeapsSampler
from egm.config.registry import PATHS, PROCESSES, SCHEDULES, TARGETS, MethodKind, method_kind
from egm.estimation.energy_model import EnergyModel
from egm.methods.base import Method
from egm.methods.egm import EGM, default_t_min
from egm.networks import (
    NETWORKS,
    RATE_NETWORKS,
    LatticeConv,
    Preconditioned,
    Scalar,
    SiteMLP,
    default_body,
    symmetrise,
)
from egm.networks.base import Body
from egm.networks.locally_equivariant import is_locally_equivariant
from egm.paths.product import AnyPath, ProductPath
from egm.processes.base import Process
from egm.sampler import Sampler
from egm.simulation.denoiser_error import DenoiserError
from egm.spaces import Categorical, Real, Space
from egm.targets.base import Target
from egm.targets.guard import EnergyGuard
from egm.train.options import TrainingOptions
from egm.util.expressions import describe, evaluate, nearest

DTYPES = {"float32": torch.float32, "float64": torch.float64}
Part = TypeVar("Part")


# ---------------------------------------------------------------------- targets and spaces


def make_target(text: str) -> Target:
    """A built-in target from its expression, such as "Ising(size=5, beta=0.4)"."""
    return evaluate(text, TARGETS, kind="a target")


def target_expression(target: Target) -> str | None:
    """The expression that makes a target again, or None for energies of one's own and targets made from data."""
    text = repr(target)
    if type(target) not in TARGETS.values():
        return None
    try:
        again = make_target(text)
    except (ValueError, TypeError):
        return None
    return text if repr(again) == text and again.space == target.space else None


def make_space(text: str) -> Space:
    """A space from its representation."""
    return evaluate(text, {"Space": Space, "Real": Real, "Categorical": Categorical}, kind="a space")


# ---------------------------------------------------------------------- paths, processes, networks


def default_network(kind: MethodKind, target: Target) -> str:
    """The network that a method has by default, as an expression.

    A target that declares symmetries, but no translation, has sites that differ: convolutions would see them alike.
    """
    if kind.network is not None:
        return kind.network(target)
    body = default_body(target.space)
    differ = bool(target.symmetries) and "translation" not in target.symmetries
    if kind.network_is_energy or (body is LatticeConv and differ):
        return default_energy_body(target.space)
    return body.__name__


def make_path(
    space: Space, given: Mapping[str, str | AnyPath], *, reals: str = "CondOT", symbols: str = "Masked"
) -> ProductPath:
    """The product path; what is given may be expressions or paths, `reals` and `symbols` are those of the others."""
    made: dict[str, AnyPath] = {}
    defaults = {**dict.fromkeys(space.real, reals), **dict.fromkeys(space.categorical, symbols)}
    for name, path in {**defaults, **given}.items():
        variable = space[nearest(name, space, kind="a variable of the space")]
        names = {**{key: partial(cls, variable) for key, cls in PATHS.items()}, **SCHEDULES}
        made[name] = evaluate(path, names, kind="a path") if isinstance(path, str) else _registered(path, PATHS)
    return ProductPath(space, made)


def make_processes(
    path: ProductPath, given: Mapping[str, str | type | Process[Any]], *, default: str = "Diffusion"
) -> dict[str, Process[Any]]:
    """A process for each variable; `default` is that of other real variables, symbols follow a DiscreteJump."""
    for name in given:
        nearest(name, path.space, kind="a variable of the space")
    made: dict[str, Process[Any]] = {}
    for name, variable in path.space.variables.items():
        choice = given.get(name, default if isinstance(variable, Real) else "DiscreteJump")
        if isinstance(choice, str):
            choice = evaluate(choice, {k: partial(cls, path[name]) for k, cls in PROCESSES.items()}, kind="a process")
        elif isinstance(choice, type) and issubclass(choice, Process):
            choice = choice(path[name])  # pyright: ignore[reportCallIssue]
        if not isinstance(choice, Process):
            raise TypeError(f"the process of '{name}' must be one of {list(PROCESSES)}, got {choice!r}")
        if getattr(choice, "path", None) is not path[name]:
            raise ValueError(
                f"the process of '{name}' follows another path than the variable; give it by name"
                f" (processes={{'{name}': '{type(choice).__name__.lower()}'}}) or pass the same path in paths"
            )
        made[name] = _registered(choice, PROCESSES)
    return made


def _registered(part: Part, table: Mapping[str, type]) -> Part:
    if type(part) not in table.values():
        raise ValueError(
            f"{type(part).__name__} is not registered, so no run could name it; put @egm.config.register before the"
            f" class (known: {', '.join(table)})"
        )
    return part


def make_body(space: Space, outputs: Mapping[str, tuple[int, ...]], text: str) -> Body:
    """A network body from its expression."""
    known = {**NETWORKS, **RATE_NETWORKS}
    return evaluate(text, {name: partial(cls, space, outputs) for name, cls in known.items()}, kind="a network")


def default_energy_body(space: Space) -> str:
    """E^φ is evaluated on thousands of proposals a state, so perceptrons are preferred to convolutions."""
    body = default_body(space)
    return {LatticeConv: "MLP", SiteMLP: "ResidualMLP"}.get(body, body.__name__)


def make_config(
    target: Target,
    *,
    method: str,
    source: str | None,
    path: ProductPath,
    chosen: Mapping[str, Process[Any]],
    network: str,
    energy_network: str | None,
    options: tuple[TrainingOptions, Any],
    **limits: Any,
) -> dict[str, Any]:
    """The configuration of a run: enough to build it again."""
    return {
        **target_entries(target, source),
        "method": method,
        **limits,
        "paths": {name: describe(part) for name, part in path.paths.items()},
        "processes": {name: describe(process) for name, process in chosen.items()},
        "network": network,
        "energy_network": energy_network,
        **dataclasses.asdict(options[0]),
        **dataclasses.asdict(options[1]),
    }


def target_entries(target: Target, source: str | None) -> dict[str, Any]:
    """What a configuration says of the target, and the version of this library."""
    from egm import __version__  # noqa: PLC0415  (the package imports this module)

    return {
        "egm": __version__,
        "target": source or target_expression(target) or f"user: {target!r}",
        "prints_as": repr(target),
        "space": repr(target.space),
        "target_symmetries": list(target.symmetries),
    }


# ---------------------------------------------------------------------- the parts of a run


def make_sampler(
    config: Mapping[str, Any], target: Target | None, *, network: nn.Module | None, device: torch.device | str
) -> Sampler:
    """The sampler of a configuration with an untrained network (or the user's own)."""
    space = make_space(config["space"])
    if target is not None and target.space != space:
        raise ValueError(f"the run was made for {space!r}, but {target!r} has {target.space!r}; pass the same target")
    path = make_path(space, config["paths"])
    chosen = make_processes(path, config["processes"])
    dtype = DTYPES[config["dtype"]]
    kind = method_kind(config["method"])
    if network is None:
        if config["network"].startswith("user:"):
            raise ValueError(f"the run has a network of its own ({config['network'][6:]}); pass it as network=")
        with _seeded(config["seed"]):
            body = make_body(space, outputs_of(kind, chosen), config["network"])
            network = Preconditioned(symmetrise(body, _built_in(config)), path)
            network = Scalar(network) if kind.network_is_energy else network
    if kind.network_is_energy:
        network = EnergyScore(EnergyModel(network, path, target), path, config["clip_estimate"])
    if is_locally_equivariant(network) and kind.sampler is Sampler:
        raise ValueError(f"a network of rates serves leaps and leaps-mcmc alone, not {config['method']}")
    t_min = config.get("t_min", kind.t_min)
    t_min = default_t_min(path) if t_min is None else t_min
    t_min = max(t_min, *(part.earliest for part in path.paths.values()))
    error = DenoiserError(path).to(device=device)
    sampler = Sampler(
        space, path, chosen, network.to(device=device, dtype=dtype), error, target,
        steps=config["sample_steps"], solver=config["solver"], t_min=t_min, dtype=dtype, config=dict(config),
    )  # fmt: skip
    return kind.sampler.of(sampler) if issubclass(kind.sampler, LeapsSampler) else sampler


def make_method(config: Mapping[str, Any], sampler: Sampler, *, energy_network: nn.Module | None = None) -> Method:
    """The method of a configuration, on a sampler's network."""
    if sampler.target is None:
        raise ValueError("training needs the target")
    kind = method_kind(config["method"])
    options = kind.options(**{f.name: config[f.name] for f in dataclasses.fields(kind.options) if f.name in config})
    parts = (EnergyGuard(sampler.target), sampler.path, sampler.processes, sampler.network)
    given: dict[str, Any] = {"error": sampler.error, "options": options}
    if kind.learns_energy:
        given["energy_model"] = make_energy_model(config, sampler, energy_network)
    with _seeded(config["seed"] + 1):  # some have small networks of their own
        method = kind.method(*parts, **given)
    if isinstance(method, EGM):
        sampler.energy_model = method.averaged_energy_model() if kind.learns_energy else None
    return method


def outputs_of(kind: MethodKind, processes: Mapping[str, Process[Any]]) -> dict[str, tuple[int, ...]]:
    """What the network of a sampler has to give for each variable, or for all of them."""
    if kind.network_is_energy:
        return {"energy": ()}
    return {name: process.output_shape for name, process in processes.items()}


def make_energy_model(config: Mapping[str, Any], sampler: Sampler, network: nn.Module | None = None) -> EnergyModel:
    """The energy model of a configuration with an untrained network (or the user's own)."""
    if sampler.target is None:
        raise ValueError("an energy model needs the target")
    if network is None:
        if (text := config["energy_network"]).startswith("user:"):
            raise ValueError(f"the run has an energy network of its own ({text[6:]}); pass it as energy_network=")
        with _seeded(config["seed"] + 1):
            body = make_body(sampler.space, {"energy": ()}, config["energy_network"])
            network = Scalar(Preconditioned(symmetrise(body, _built_in(config)), sampler.path))
    model = EnergyModel(network, sampler.path, sampler.target, forward_looking=config["forward_looking"])
    return model.to(device=sampler.device, dtype=sampler.dtype)


def _built_in(config: Mapping[str, Any]) -> Sequence[str]:
    """Symmetries of the target that networks are to have."""
    return config["target_symmetries"] if config["symmetries"] else ()


class _seeded:
    """Modules draw their parameters from torch's global generator; it is set for them and put back."""

    def __init__(self, seed: int) -> None:
        self._seed, self._fork = seed, torch.random.fork_rng(devices=[])

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *error: Any) -> None:
        self._fork.__exit__(*error)
