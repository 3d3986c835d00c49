"""Builds each part of a sampler once, from a user's objects or expressions, or from `config.yaml`.

Networks draw their parameters from torch's global generator, which `seeded` sets and restores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from egm.config.registry import PATHS, PROCESSES, SCHEDULES
from egm.config.targets import named_own, own_name
from egm.networks import NETWORKS, RATE_NETWORKS, LatticeConv, Preconditioned, Scalar, SiteMLP, default_body, symmetrise
from egm.networks.base import Body
from egm.paths.product import AnyPath, ProductPath
from egm.processes.base import Process
from egm.spaces import Real, Space
from egm.targets.base import Target
from egm.util.expressions import describe, evaluate, nearest

DTYPES = {"float32": torch.float32, "float64": torch.float64}
AnyProcess = str | type | Process[Any]
ENERGY: dict[str, tuple[int, ...]] = {"energy": ()}  # the output of a network that is an energy
Part = TypeVar("Part")


@dataclass(frozen=True)
class Network:
    """A network and its text in `config.yaml`."""

    module: nn.Module
    text: str


@dataclass(frozen=True)
class Parts:
    """All parts of a run.

    Attributes:
        space: the variables.
        target: the energy, None if unknown.
        path, processes: the path and the process of every variable.
        network: the denoiser, or E^φ where the method has no other network.
        energy_network: E^φ if the method trains it in addition to the denoiser and its network is known.
        loop, options: options of the training loop and of the method.
        device, dtype: device and dtype of the run.
        config: the run's configuration, which describes all of this.
    """

    space: Space
    target: Target | None
    path: ProductPath
    processes: Mapping[str, Process[Any]]
    network: Network
    energy_network: Network | None
    loop: Any
    options: Any
    device: torch.device
    dtype: torch.dtype
    config: dict[str, Any]

    def described(self) -> dict[str, Any]:
        """Returns the entries of `config.yaml`."""
        return {
            "paths": {name: describe(part) for name, part in self.path.paths.items()},
            "processes": {name: describe(process) for name, process in self.processes.items()},
            "network": self.network.text,
            "energy_network": None if self.energy_network is None else self.energy_network.text,
        }


def make_path(
    space: Space, given: Mapping[str, str | AnyPath], *, reals: str = "CondOT", symbols: str = "Masked"
) -> ProductPath:
    """Builds the product path from expressions or paths; `reals` and `symbols` are the paths of other variables."""
    made: dict[str, AnyPath] = {}
    defaults = {**dict.fromkeys(space.real, reals), **dict.fromkeys(space.categorical, symbols)}
    for name, path in {**defaults, **given}.items():
        variable = space[nearest(name, space, kind="a variable of the space")]
        names = {**{key: partial(cls, variable) for key, cls in PATHS.items()}, **SCHEDULES}
        made[name] = evaluate(path, names, kind="a path") if isinstance(path, str) else _registered(path, PATHS)
    return ProductPath(space, made)


def make_processes(
    path: ProductPath, given: Mapping[str, AnyProcess], *, default: str = "Diffusion"
) -> dict[str, Process[Any]]:
    """Builds a process for each variable: if not given, reals follow `default` and symbols a DiscreteJump."""
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


# ---------------------------------------------------------------------- networks


def make_body(space: Space, outputs: Mapping[str, tuple[int, ...]], text: str) -> Body:
    """Builds a network body from its expression."""
    known = {**NETWORKS, **RATE_NETWORKS}
    return evaluate(text, {name: partial(cls, space, outputs) for name, cls in known.items()}, kind="a network")


def make_network(
    choice: nn.Module | str,
    path: ProductPath,
    outputs: Mapping[str, tuple[int, ...]],
    *,
    symmetries: Sequence[str] = (),
    scalar: bool = False,
    seed: int,
) -> Network:
    """Returns a user's module unchanged, or builds a body from its expression, with preconditioning and symmetries."""
    if isinstance(choice, nn.Module):
        if next(choice.parameters(), None) is None:
            raise ValueError(f"the network {type(choice).__name__} has no parameters, so there is nothing to train")
        return Network(choice, named_own(choice))
    with seeded(seed):
        body = make_body(path.space, outputs, choice)
        network = Preconditioned(symmetrise(body, symmetries) if symmetries else body, path)
    return Network(Scalar(network) if scalar else network, describe(body))


def require_network(
    text: str, given: nn.Module | str | None, *, argument: str, what: str = "a user-defined network"
) -> nn.Module | str:
    """Returns the network of a configuration; a user-defined network must be given again."""
    if given is None and (name := own_name(text)) is not None:
        raise ValueError(f"the run has {what} ({name}); pass it as {argument}=")
    return text if given is None else given


def default_network(target: Target) -> str:
    """Returns the default network of a target, as an expression.

    The sites of a target that declares symmetries, but no translation, differ: convolutions would treat them alike.
    """
    body = default_body(target.space)
    differ = bool(target.symmetries) and "translation" not in target.symmetries
    return default_energy_network(target) if body is LatticeConv and differ else body.__name__


def default_energy_network(target: Target) -> str:
    """Returns the default network of E^φ, which has thousands of proposals per state: no convolutions, perceptrons."""
    body = default_body(target.space)
    return {LatticeConv: "MLP", SiteMLP: "ResidualMLP"}.get(body, body.__name__)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's global generator, from which modules draw their parameters, and restores it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
