"""The command line: each command of `egm.cli.main.COMMANDS` calls functions of the Python interface."""

from egm.cli.main import main

__all__ = ["main"]
