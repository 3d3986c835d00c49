"""What `fit` and `resume` are given: names of options, parts of a method, limits, a device, a network; checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from egm.config.build import make_body
from egm.config.options import checked_option
from egm.config.registry import MethodKind, option_names
from egm.targets.base import Target
from egm.util.expressions import describe, nearest


def check_names(function: Callable[..., Any], options: Iterable[str]) -> None:
    """Raise for options that nothing has; the nearest name may be an argument of the function itself."""
    own = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name in options:
        known = nearest(name, [*option_names(), *own], kind="an option")
        if known in own:  # the same but for case or hyphens
            raise ValueError(f"'{name}' is not an option; did you mean '{known}'?")


def check_parts(method: str, kind: MethodKind, target: Target, energy_network: nn.Module | str | None) -> None:
    """Raise for what the method would not look at."""
    if energy_network is not None and not kind.learns_energy:
        own = "its network is the energy, pass it as network=" if kind.network_is_energy else "leave it out"
        raise ValueError(f"energy_network is a part of egm-bs, not of {method}: {own}")
    if kind.needs_reals and not target.space.real:
        raise ValueError(f"{method} is about real variables and {target!r} has none; use method='egm'")


def limits(steps: int | None, time_limit: float | None) -> dict[str, Any]:
    """The limits of a run as plain numbers."""
    seconds = checked_option("time_limit", time_limit, float | None)
    return {"steps": checked_option("steps", steps, int | None), "time_limit": seconds}


def device_of(device: torch.device | str | None) -> torch.device:
    """The device, tried once; a GPU if there is one and none is named."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the device '{device}' cannot be used here ({reason}); use 'cpu'") from None
    return where


def network_expression(
    network: nn.Module | str | None, default: str, target: Target, outputs: Mapping[str, tuple[int, ...]]
) -> str:
    """How a network is written in a configuration, with all its options."""
    if isinstance(network, nn.Module):
        if next(network.parameters(), None) is None:
            raise ValueError(f"the network {type(network).__name__} has no parameters, so there is nothing to train")
        return f"user: {type(network).__name__}"
    with torch.random.fork_rng(devices=[]):  # the parameters of this one are not used
        return describe(make_body(target.space, outputs, network or default))
