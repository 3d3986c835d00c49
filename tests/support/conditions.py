"""What is not everywhere: a test that needs it is skipped where it is missing, and fails where `EGM_NEEDED` names it.

`make test` names nothing; `make test-browser` and `make test-adapters` name what they install.
"""

import importlib
import os
from typing import Any, NoReturn

import pytest


def missing(what: str, fix: str) -> NoReturn:
    """Skip, unless this was asked for."""
    message = f"there is no {what} here; {fix}"
    if what in os.environ.get("EGM_NEEDED", "").split():
        pytest.fail(message)
    pytest.skip(message)


def package(name: str) -> Any:
    """The package of that name, which the extra of the same name brings."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # it is here, and broken
            raise
        missing(name, f"pip install 'egm[{name}]', or `make test-adapters`")
