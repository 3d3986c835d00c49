"""`module:function`: user-defined energies on the command line."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType

from egm.targets.base import Target
from egm.util.expressions import nearest


def import_target(source: str) -> Target:
    """Return the target that `module:function` returns, or that `module:object` is.

    The current directory is searched first. Errors in the module itself are passed on.
    """
    name, _, attribute = source.partition(":")
    if not name or not attribute:
        raise ValueError(f"'{source}' does not name a target; write module:function")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            fix = f"; leave out .py: {name[:-3]}:{attribute}" if name.endswith(".py") else ""
            raise ValueError(f"there is no module '{name}' in {here} or on Python's path{fix}") from None
        raise
    if (thing := getattr(module, attribute, None)) is None:
        kind = f"in {name} an egm.Target, or a function without arguments that returns one"
        thing = getattr(module, nearest(attribute, _candidates(module), kind=kind))
    if callable(thing) and not isinstance(thing, Target):
        if (lacking := _lacking(thing)) is not None:
            raise TypeError(f"{source} is called without arguments, but it needs some: {lacking}")
        thing = thing()
    if not isinstance(thing, Target):
        raise TypeError(f"{source} must be an egm.Target or a function that returns one, got {type(thing).__name__}")
    return thing


def _candidates(module: ModuleType) -> list[str]:
    """Return names of a module that can be targets: targets, and its functions and classes that need no arguments."""
    found = []
    for name, thing in vars(module).items():
        own = callable(thing) and getattr(thing, "__module__", None) == module.__name__
        if not name.startswith("_") and (isinstance(thing, Target) or (own and _lacking(thing) is None)):
            found.append(name)
    return found


def _lacking(function: Callable[..., object]) -> str | None:
    """Return why a call without arguments would fail; None if it would not, or if that is unknown."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        return str(error)
    except ValueError:  # no signature, for example of classes derived from dict
        return None
    return None
