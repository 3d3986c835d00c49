"""Recipes: named settings in YAML files, one file for each target.

`paper/` holds the paper's hyper-parameters, `fast/` settings that take minutes. A file has a `target` expression, the
published numbers (`paper`, [mean, standard deviation] by method and metric), and options of `egm.fit`: one section for
each method, and a section `common` whose options are defaults for all methods that train networks.

>>> load("paper/ising5-b04", "egm-bs")["epsilon"]
0.05
>>> published("paper/ising5-b04", "egm-bs")["e_w1"]
(0.6, 0.12)
"""

from __future__ import annotations

import inspect
import re
from importlib import resources
from pathlib import Path
from typing import Any

from egm.api import fit
from egm.config.options import without_removed
from egm.methods.registry import METHODS
from egm.methods.registry import option_names as options_of_methods
from egm.util.expressions import nearest

FOLDERS = ("fast", "paper")
SECTIONS = ("target", "paper", "common")  # and one for each method
NOT_IN_RECIPES = ("target", "method", "options", "start", "out", "progress", "tensorboard")
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def names() -> list[str]:
    """Return the names of the recipes that come with the library."""
    files = resources.files("egm.recipes")
    return sorted(
        f"{folder}/{file.name.removesuffix('.yaml')}"
        for folder in FOLDERS
        for file in (files / folder).iterdir()
        if file.name.endswith(".yaml")
    )


def find(name: str) -> str:
    """Return the name of a recipe: the unchanged path of a YAML file, otherwise one of `names()`."""
    return name if _is_file(name) else nearest(name, names(), kind="a recipe (nor the path of a .yaml file)")


def load(name: str, method: str = "egm-sp") -> dict[str, Any]:
    """Return keywords for `egm.fit`: "target" (an expression), "method" and the recipe's options.

    Args:
        name: one of `names()`, or the path of a YAML file.
        method: method whose section is read.
    """
    recipe = read(name)
    method = nearest(method, METHODS, kind="a method")
    if recipe.get(method) is None:
        raise ValueError(f"the recipe '{name}' has no section '{method}'; it has {', '.join(methods(name))}")
    options: dict[str, Any] = {"target": recipe["target"], "method": method}
    for section in ("common", method) if METHODS[method].trains else (method,):
        stated, _ = without_removed(recipe.get(section) or {})
        for key, value in stated.items():
            known = nearest(key, option_names(), kind=f"an option that the recipe '{name}' can set")
            merged = {**options.get(known, {}), **value} if isinstance(value, dict) else value
            options[known] = _number(merged)
    return options


def methods(name: str) -> list[str]:
    """Return the methods that a recipe has a section for."""
    recipe = read(name)
    return [method for method in METHODS if recipe.get(method) is not None]


def published(name: str, method: str) -> dict[str, tuple[float, float | None]]:
    """Return the numbers that the paper reports for this target: mean and standard deviation (None: not given).

    EGM-SP is not in the paper, and gets the numbers of EGM-BS.
    """
    paper = read(name).get("paper") or {}
    stated = paper.get("egm-bs" if method == "egm-sp" else method) or {}
    return {metric: (float(mean), None if std is None else float(std)) for metric, (mean, std) in stated.items()}


def about(name: str) -> str:
    """Return the comment in the first line of a recipe; empty if there is none."""
    first, *_ = _text(find(name)).splitlines() or [""]
    return first.removeprefix("# ").strip() if first.startswith("# ") else ""


def read(name: str) -> dict[str, Any]:
    """Return the content of a recipe, with checked sections."""
    import yaml  # noqa: PLC0415  (the library itself trains without it)

    name = find(name)
    try:
        recipe = yaml.safe_load(_text(name))
    except yaml.YAMLError as error:
        raise ValueError(f"the recipe '{name}' is not YAML: {error}") from None
    if not isinstance(recipe, dict) or not isinstance(recipe.get("target"), str):
        raise ValueError(f"the recipe '{name}' needs a target, such as `target: Ising(size=5, beta=0.4)`")
    for section, content in recipe.items():
        nearest(str(section), (*SECTIONS, *METHODS), kind=f"a section of the recipe '{name}'")
        if section != "target" and not isinstance(content, dict | None):
            raise ValueError(f"the section '{section}' of the recipe '{name}' must hold names and values")
    return recipe


def option_names() -> list[str]:
    """Return every option of `egm.fit` that a recipe can set."""
    keywords = [name for name in inspect.signature(fit).parameters if name not in NOT_IN_RECIPES]
    return keywords + options_of_methods()


def _text(name: str) -> str:
    file = Path(name) if _is_file(name) else resources.files("egm.recipes") / f"{name}.yaml"
    return file.read_text(encoding="utf-8")


def _is_file(name: str) -> bool:
    return Path(name).suffix in (".yaml", ".yml")


def _number(value: Any) -> Any:
    """Convert text such as 1e-3 to a number; YAML reads only 1.0e-3 as one."""
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value
