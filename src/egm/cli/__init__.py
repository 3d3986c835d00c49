"""The command line: `egm list | train | sample | evaluate`, on the same functions as the Python interface."""

from egm.cli.main import main

__all__ = ["main"]
