"""Optional packages: importing a missing one raises an error that names the command that installs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: module -> package, where the names differ
DISTRIBUTIONS = {"ot": "POT", "pyro": "pyro-ppl", "sklearn": "scikit-learn"}


class MissingPackage(ImportError):
    """An optional package that is not installed."""


def needed(name: str, *, what: str, extra: str) -> Any:
    """Imports and returns a module; raises `MissingPackage` if its package is not installed.

    Args:
        name: name of the module.
        what: what needs the module, for the error message.
        extra: the extra of pyproject.toml that installs the package.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        known_as = DISTRIBUTIONS.get(package, package)
        raise MissingPackage(f"{what} needs {known_as}: pip install 'egm[{extra}]'", name=package) from error
