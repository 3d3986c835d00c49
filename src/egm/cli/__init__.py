"""The command line (`egm.cli.main.COMMANDS`), on the functions of the Python interface."""

from egm.cli.main import main

__all__ = ["main"]
