"""`egm list`: lists targets, methods, paths, processes, networks and recipes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from egm import recipes
from egm.cli.parsing import Parser
from egm.cli.tables import show
from egm.config.registry import PATHS, PROCESSES, SCHEDULES, TARGETS
from egm.methods.registry import METHODS
from egm.networks import NETWORKS, RATE_NETWORKS
from egm.targets.base import Target
from egm.util.expressions import nearest

#: descriptions of targets that share a module
ABOUT = {
    "DW4": "Four particles in the plane, a double well between any two",
    "JointDW4": "Four particles in the plane of two types, which are drawn with the positions",
    "LJ13": "Thirteen Lennard-Jones particles",
    "LJ55": "Fifty-five Lennard-Jones particles",
    "SpikeSlab": "Linear regression in which each coefficient may be switched off",
    "GaussianMixturePosterior": "Means and assignments of a mixture, given data",
}
SMALL, LARGE = {"size": 4, "beta": 0.4, "states": 3, "seed": 0}, {"size": 16, "beta": 0.4, "states": 3, "seed": 0}


def show_list(argv: list[str]) -> int:
    """Run `egm list` with these arguments."""
    values, _ = show_list_parser().read(argv)
    names = list(SECTIONS) if values.section is None else [nearest(values.section, SECTIONS, kind="a section")]
    for name in names:
        SECTIONS[name]()
    return 0


def show_list_parser() -> Parser:
    """Return the parser of `egm list`."""
    description = f"""\
List {", ".join(SECTIONS)}, or one of these.

  egm list
  egm list targets
  egm list recipes
"""
    parser = Parser("list", description, usage="[SECTION]")
    parser.add_argument("section", type=str, nargs="?", help="what to list, by default everything")
    return parser


def _methods() -> None:
    show("methods (--method)", ["name", "what it does"], [[name, kind.about] for name, kind in METHODS.items()])


def _targets() -> None:
    rows = [[name.lower(), _about(name, cls), _options(cls), _reference(cls)] for name, cls in sorted(TARGETS.items())]
    title = "targets: egm train NAME --target.ARGUMENT VALUE"
    show(title, ["name", "what it is", "arguments", "reference draws"], rows)


def _about(name: str, target: type[Target]) -> str:
    """Return a line about a target: from `ABOUT`, or the first line of its module."""
    return ABOUT.get(name) or (sys.modules[target.__module__].__doc__ or "").strip().splitlines()[0].removesuffix(".")


def _reference(target: type[Target]) -> str:
    """Return the kind of reference draws of a small and of a large target."""
    needed = [p.name for p in inspect.signature(target).parameters.values() if p.default is p.empty]
    if not set(needed) <= set(SMALL):
        return "made from data: --target module:function"
    kinds = [str(target(**{name: size[name] for name in needed}).reference_kind) for size in (SMALL, LARGE)]  # pyright: ignore[reportCallIssue]
    return kinds[0] if kinds[0] == kinds[1] else f"{kinds[0]}, {kinds[1]} when large"


def _classes(title: str, classes: Mapping[str, type[Any]]) -> None:
    rows = [[name, _options(cls), (cls.__doc__ or "").strip().splitlines()[0]] for name, cls in classes.items()]
    show(title, ["name", "options", ""], rows)


def _options(cls: type[Any]) -> str:
    """Return the arguments that a user chooses, with their defaults."""
    skipped = ("self", "space", "outputs", "variable", "path")
    parameters = [p for p in inspect.signature(cls).parameters.values() if p.name not in skipped]
    return ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)


def _recipes() -> None:
    rows = []
    for name in recipes.names():
        stated = {method: recipes.published(name, method) for method in recipes.methods(name) if method != "egm-sp"}
        numbers = {m: ", ".join(f"{metric} {mean:g}" for metric, (mean, _) in s.items()) for m, s in stated.items()}
        shown = "; ".join(f"{method} {text}" for method, text in numbers.items() if text)
        rows.append([name, recipes.read(name)["target"], recipes.about(name).removesuffix("."), shown])
    show("recipes (--recipe)", ["name", "target", "what it is", "the paper's results"], rows)


SECTIONS: dict[str, Callable[[], None]] = {
    "targets": _targets,
    "methods": _methods,
    "paths": lambda: _classes("paths (--paths.VARIABLE) and their schedules", {**PATHS, **SCHEDULES}),
    "processes": lambda: _classes("processes (--processes.VARIABLE)", PROCESSES),
    "networks": lambda: _classes("networks (--network, --energy_network)", {**NETWORKS, **RATE_NETWORKS}),
    "recipes": _recipes,
}
