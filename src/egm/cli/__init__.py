"""The command line `egm list | train | sample | evaluate | reproduce`, on the functions of the Python interface."""

from egm.cli.main import main

__all__ = ["main"]
