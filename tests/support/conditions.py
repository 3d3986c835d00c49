"""Optional packages: a test that needs one is skipped where it is missing, and fails where `EGM_NEEDED` names it.

`make test` names nothing; `make test-browser` and `make test-adapters` name what they install.
"""

import importlib
import os
from typing import Any, NoReturn

import pytest


def missing(what: str, fix: str) -> NoReturn:
    """Skips the test, or fails it if `EGM_NEEDED` names what is missing."""
    message = f"there is no {what} here; {fix}"
    if what in os.environ.get("EGM_NEEDED", "").split():
        pytest.fail(message)
    pytest.skip(message)


def package(name: str) -> Any:
    """Returns the package of that name, which the extra of the same name installs."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # the package is installed, but broken
            raise
        missing(name, f"pip install 'egm[{name}]', or `make test-adapters`")
