"""`egm list`: everything there is to choose from."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from egm import recipes
from egm.baselines.chain_options import CHAIN_METHODS
from egm.cli.parsing import Parser
from egm.cli.tables import show
from egm.expressions import nearest
from egm.networks import NETWORKS, RATE_NETWORKS
from egm.registry import METHODS, PATHS, PROCESSES, SCHEDULES, TARGETS
from egm.targets.base import Target

SMALL, LARGE = {"size": 4, "beta": 0.4, "states": 3, "seed": 0}, {"size": 16, "beta": 0.4, "states": 3, "seed": 0}


def show_list(argv: list[str]) -> int:
    """Run `egm list` with these arguments."""
    sections = {
        "targets": _targets,
        "methods": _methods,
        "paths": lambda: _classes("paths (--paths.VARIABLE) and their schedules", {**PATHS, **SCHEDULES}),
        "processes": lambda: _classes("processes (--processes.VARIABLE)", PROCESSES),
        "networks": lambda: _classes("networks (--network, --energy_network)", {**NETWORKS, **RATE_NETWORKS}),
        "recipes": _recipes,
    }
    parser = Parser("list", f"List {', '.join(sections)}, or one of these.\n", usage="[SECTION]")
    parser.add_argument("section", type=str, nargs="?", help="what to list, by default everything")
    values, _ = parser.read(argv)
    names = list(sections) if values.section is None else [nearest(values.section, sections, kind="a section")]
    for name in names:
        sections[name]()
    return 0


def _methods() -> None:
    about = {**{name: kind.about for name, kind in METHODS.items()}, **CHAIN_METHODS}
    show("methods (--method)", ["name", "what it does"], [[*item] for item in about.items()])


def _targets() -> None:
    rows = [[name.lower(), _options(cls), _reference(cls)] for name, cls in sorted(TARGETS.items())]
    show("targets: egm train NAME --target.ARGUMENT VALUE", ["name", "arguments", "reference draws"], rows)


def _reference(target: type[Target]) -> str:
    """How reference draws are made, found by making small and large ones."""
    needed = [p.name for p in inspect.signature(target).parameters.values() if p.default is p.empty]
    if not set(needed) <= set(SMALL):
        return "made from data: --target module:function"
    kinds = [str(target(**{name: size[name] for name in needed}).reference_kind) for size in (SMALL, LARGE)]  # pyright: ignore[reportCallIssue]
    return kinds[0] if kinds[0] == kinds[1] else f"{kinds[0]}, {kinds[1]} when large"


def _classes(title: str, classes: Mapping[str, type[Any]]) -> None:
    rows = [[name, _options(cls), (cls.__doc__ or "").strip().splitlines()[0]] for name, cls in classes.items()]
    show(title, ["name", "options", ""], rows)


def _options(cls: type[Any]) -> str:
    """The arguments that a user chooses, with their defaults."""
    skipped = ("self", "space", "outputs", "variable", "path")
    parameters = [p for p in inspect.signature(cls).parameters.values() if p.name not in skipped]
    return ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)


def _recipes() -> None:
    rows = []
    for name in recipes.names():
        stated = {method: recipes.published(name, method) for method in recipes.methods(name) if method != "egm-sp"}
        numbers = {m: ", ".join(f"{metric} {mean:g}" for metric, (mean, _) in s.items()) for m, s in stated.items()}
        shown = "; ".join(f"{method} {text}" for method, text in numbers.items() if text)
        rows.append([name, recipes.read(name)["target"], shown])
    show("recipes (--recipe)", ["name", "target", "the paper's results"], rows)
