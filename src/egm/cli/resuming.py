"""Checks before a run is continued: whether it is complete, and whether options differ from its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from egm import recipes
from egm.cli.parsing import value_of
from egm.cli.train_parser import split_target
from egm.config.parts import ENERGY, make_body, make_path, make_processes
from egm.config.targets import make_space
from egm.methods.registry import METHODS, find_method
from egm.util.expressions import describe, nearest

CHANGEABLE = ("resume", "steps", "time_limit", "device", "progress", "tensorboard", "evaluate")


def is_complete(config: Mapping[str, Any], state: Mapping[str, Any] | None) -> bool:
    """Return whether a run has reached its limit."""
    if state is None:
        return False
    if config["steps"] is not None and config["time_limit"] is not None:
        return False  # `resume` explains that one of them is meant
    if config["steps"] is not None:
        return state["step"] >= config["steps"]
    return state["seconds"] >= config["time_limit"]


def refuse_differences(
    folder: Path, config: Mapping[str, Any], target: str | None, values: Namespace, given: set[str]
) -> None:
    """Raise if an option differs from the run's own, except for the options of `CHANGEABLE`."""
    if target is not None:
        _compare(folder, "target", *_targets(config["target"], target))
    if built := [name for name in sorted(given) if name.startswith("target.")]:
        _, own = split_target(config["target"])
        for name in built:
            _compare(folder, name, own.get(name.removeprefix("target.")), values[name])
    for name in sorted(given.difference(CHANGEABLE).difference(built)):
        _compare(folder, name, *_pair(folder, config, name, values))


def _compare(folder: Path, name: str, own: Any, given: Any) -> None:
    if own != given:
        raise ValueError(
            f"the run {folder} has {name} = {own}, but --{name} {given} is given; leave it out, or start another run"
        )


def _targets(own: str, given: str) -> tuple[str, str]:
    """Return both targets as text; a bare name stands for any arguments of the run."""
    if ":" in own or ":" in given or "(" in given:
        return own, given
    return split_target(own)[0].__name__, nearest(given, [split_target(own)[0].__name__], kind="the run's target")


def _pair(folder: Path, config: Mapping[str, Any], name: str, values: Namespace) -> tuple[Any, Any]:
    """Return the run's value of an option and the given value, in the same form."""
    notes, given = config.get("notes") or {}, value_of(values, name)
    special = {
        "out": lambda: (folder.resolve(), Path(given).resolve()),
        "recipe": lambda: (notes.get("recipe"), recipes.find(given)),
        "start": lambda: (notes.get("start"), given),
        "role": lambda: (notes.get("role"), given),
        "concurrent": lambda: (notes.get("concurrent"), given),
        "method": lambda: (config["method"], nearest(given, METHODS, kind="a method")),
    }
    if name in special:
        return special[name]()
    if given is not None and (name in ("network", "energy_network") or "." in name):
        return _expressions(config, name, given)
    return config[name], given


def _expressions(config: Mapping[str, Any], name: str, given: str) -> tuple[str, str]:
    """Return both values of a network, path or process, as expressions with all options."""
    space = make_space(config["space"])
    path = make_path(space, config["paths"])
    processes = make_processes(path, config["processes"])
    if "." not in name:
        outputs = find_method(config["method"]).outputs(processes) if name == "network" else ENERGY
        return config[name], describe(make_body(space, outputs, given))
    group, _, variable = name.partition(".")
    variable = nearest(variable, space, kind="a variable of the space")
    made = make_path(space, {variable: given}).paths if group == "paths" else make_processes(path, {variable: given})
    return config[group][variable], describe(made[variable])
