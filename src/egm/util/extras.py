"""Packages that only some parts need; where one is missing, the message names the command that installs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: module -> the name of its package, where that is another
DISTRIBUTIONS = {"ot": "POT", "pyro": "pyro-ppl", "sklearn": "scikit-learn"}


class MissingPackage(ImportError):
    """A package of an extra is not installed."""


def needed(name: str, *, what: str, extra: str) -> Any:
    """The module of that name.

    Args:
        name: of the module.
        what: needs it, for the message.
        extra: of pyproject.toml that brings it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        known_as = DISTRIBUTIONS.get(package, package)
        raise MissingPackage(f"{what} needs {known_as}: pip install 'egm[{extra}]'", name=package) from error
