"""The parts of a sampler, each built once: from what a user gives (objects or expressions), or from `config.yaml`.

Networks draw their parameters from torch's global generator, which `seeded` sets and puts back.
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
    """A network and how `config.yaml` names it."""

    module: nn.Module
    text: str


@dataclass(frozen=True)
class Parts:
    """What a run consists of.

    Attributes:
        space: the variables.
        target: the energy, None where it is not at hand.
        path, processes: of every variable.
        network: the denoiser, or E^φ where the method has no other network.
        energy_network: E^φ where the method trains one besides the denoiser and its network is at hand.
        loop, options: options of the training loop and of the method.
        device, dtype: where and in which precision to work.
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
        """The entries of `config.yaml`."""
        return {
            "paths": {name: describe(part) for name, part in self.path.paths.items()},
            "processes": {name: describe(process) for name, process in self.processes.items()},
            "network": self.network.text,
            "energy_network": None if self.energy_network is None else self.energy_network.text,
        }


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
    path: ProductPath, given: Mapping[str, AnyProcess], *, default: str = "Diffusion"
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


# ---------------------------------------------------------------------- networks


def make_body(space: Space, outputs: Mapping[str, tuple[int, ...]], text: str) -> Body:
    """A network body from its expression."""
    known = {**NETWORKS, **RATE_NETWORKS}
    return evaluate(text, {name: partial(cls, space, outputs) for name, cls in known.items()}, kind="a network")


def make_network(
    choice: nn.Module | str,
    path: ProductPath,
    outputs: Mapping[str, tuple[int, ...]],
    *,
    symmetries: Sequence[str] = (),
    seed: int,
) -> Network:
    """A user's module as it is; a body from its expression, preconditioned and with symmetries built in."""
    if isinstance(choice, nn.Module):
        if next(choice.parameters(), None) is None:
            raise ValueError(f"the network {type(choice).__name__} has no parameters, so there is nothing to train")
        return Network(choice, named_own(choice))
    with seeded(seed):
        body = make_body(path.space, outputs, choice)
        network = Preconditioned(symmetrise(body, symmetries) if symmetries else body, path)
    return Network(Scalar(network) if outputs == ENERGY else network, describe(body))


def require_network(
    text: str, given: nn.Module | str | None, *, argument: str, what: str = "network"
) -> nn.Module | str:
    """The network of a configuration: given again where it is the user's own."""
    if given is None and (name := own_name(text)) is not None:
        raise ValueError(f"the run has {what} of its own ({name}); pass it as {argument}=")
    return text if given is None else given


def default_network(target: Target) -> str:
    """The network that suits a target, as an expression.

    A target that declares symmetries, but no translation, has sites that differ: convolutions would see them alike.
    """
    body = default_body(target.space)
    differ = bool(target.symmetries) and "translation" not in target.symmetries
    return default_energy_network(target) if body is LatticeConv and differ else body.__name__


def default_energy_network(target: Target) -> str:
    """E^φ is evaluated on thousands of proposals a state, so perceptrons are preferred to convolutions."""
    body = default_body(target.space)
    return {LatticeConv: "MLP", SiteMLP: "ResidualMLP"}.get(body, body.__name__)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Set torch's global generator, from which modules draw their parameters, and put it back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
