"""Texts of targets, spaces and user-defined parts in a configuration, and the objects that they stand for.

A built-in target is written as a constructor expression. A user's target is written as "module:function" or "user: …",
a user's network as "user: …": such parts must be given again to load or resume the run.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from egm.config.registry import TARGETS
from egm.spaces import Categorical, Real, Space
from egm.targets.base import Target
from egm.util.expressions import arguments, evaluate
from egm.util.version import VERSION

OWN = "user: "


def named_own(thing: Target | nn.Module) -> str:
    """Returns the text of a user-defined part."""
    return f"{OWN}{thing!r}" if isinstance(thing, Target) else f"{OWN}{type(thing).__name__}"


def own_name(text: object) -> str | None:
    """Returns the name of a user-defined part, or None if the part can be built from its text."""
    return text.removeprefix(OWN) if isinstance(text, str) and text.startswith(OWN) else None


def is_importable(text: str) -> bool:
    """Returns whether a target is named as "module:function"."""
    return ":" in text and own_name(text) is None


def make_target(text: str) -> Target:
    """Builds a built-in target from its expression, such as "Ising(size=5, beta=0.4)"."""
    return evaluate(text, TARGETS, kind="a target")


def make_space(text: str) -> Space:
    """Builds a space from its representation."""
    return evaluate(text, {"Space": Space, "Real": Real, "Categorical": Categorical}, kind="a space")


def target_expression(target: Target) -> str | None:
    """Returns the expression that rebuilds a target, or None for users' energies and targets made from data.

    A registered target of the user is made a second time and compared.
    """
    text = repr(target)
    if type(target) not in TARGETS.values():
        return None
    try:
        if target.built_in:
            arguments(text, TARGETS, kind="a target")
            return text
        again = make_target(text)
    except (ValueError, TypeError):
        return None
    return text if repr(again) == text and again.space == target.space else None


def target_entries(target: Target, source: str | None) -> dict[str, Any]:
    """Returns a configuration's entries on the target, and the version of this library."""
    return {
        "egm": VERSION,
        "target": source or target_expression(target) or named_own(target),
        "prints_as": repr(target),
        "space": repr(target.space),
        "target_symmetries": list(target.symmetries),
    }


def target_of(config: dict[str, Any], target: Target | None, *, required: bool = True) -> Target | None:
    """Returns the target of a configuration: a built-in one, or the given one after comparing both."""
    text = config["target"]
    own = own_name(text) is not None or is_importable(text)
    if own and target is None and required:
        raise ValueError(f"the run's target ({text}) is not a built-in one; pass it as target=")
    if target is None:
        return None if own else make_target(text)
    stated = config["prints_as"] if own else text
    if repr(target) != stated:
        fix = "" if own else "; leave target out or start another run"
        raise ValueError(f"the run was made for {stated}, not for {target!r}{fix}")
    if target.space != (space := make_space(config["space"])):
        raise ValueError(f"the run was made for {space!r}, but {target!r} has {target.space!r}; pass the same target")
    return target
