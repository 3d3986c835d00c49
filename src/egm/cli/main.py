"""Runs the command that a command line names, and returns its exit code.

Exit codes: 0 success, 1 an energy failed or has a problem (`egm check`), 2 wrong input (a message without traceback),
130 and 143 stopped by SIGINT and SIGTERM. `EGM_TRACEBACK=1` shows the traceback of an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from egm.targets.base import EnergyError
from egm.train.signals import Stopped, stop_on_signals
from egm.util.expressions import nearest
from egm.util.extras import MissingPackage

#: name -> the function of the command (`NAME_parser` in its module returns the parser) and a description. Modules
#: are imported when a command runs, so that `egm list` does not import what only training needs.
COMMANDS = {
    "list": ("egm.cli.listing:show_list", "list targets, methods, paths, processes, networks and recipes"),
    "check": ("egm.cli.check:check", "check your own energy before training"),
    "train": ("egm.cli.train:train", "train a sampler, or continue a run"),
    "watch": ("egm.cli.watch:watch", "show the progress of a run, in another terminal"),
    "sample": ("egm.cli.draw:sample", "draw from a trained sampler into a file for ArviZ, NumPy or others (.csv)"),
    "evaluate": ("egm.cli.draw:evaluate", "compare a trained sampler with reference draws"),
    "report": ("egm.cli.report:report", "write an HTML file about one run or several"),
    "reproduce": ("egm.cli.reproduce:reproduce", "repeat the paper's tables and figures, and make our own"),
    "completion": ("egm.cli.completion:completion", "print a script with which bash or zsh completes these commands"),
}
USAGE = f"""\
usage: egm COMMAND [options]

Train samplers for energies on continuous, discrete and mixed spaces.

{chr(10).join(f"  egm {name:<12}{about}" for name, (_, about) in COMMANDS.items())}

`egm COMMAND --help` explains a command. A first run:

  egm train --recipe fast/gbrbm --time_limit 80 --out runs/a
  egm sample runs/a -n 1000 --out draws.csv
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        from egm import __version__  # noqa: PLC0415  (the package imports lazily used modules only)

        print(__version__)
        return 0
    try:
        with stop_on_signals():
            return _command(argv[0])(argv[1:])
    except Stopped as stopped:
        print(f"egm: stopped by {stopped}", file=sys.stderr)
        return 128 + stopped.signal
    except SystemExit as done:  # --help
        return done.code if isinstance(done.code, int) else 0
    except (ValueError, TypeError, OSError, NotImplementedError, ArithmeticError, MissingPackage) as error:
        if os.environ.get("EGM_TRACEBACK"):
            raise
        print(f"egm: {error}", file=sys.stderr)
        return 1 if isinstance(error, EnergyError | ArithmeticError) else 2


def _command(name: str) -> Callable[[list[str]], int]:
    module, _, function = COMMANDS[nearest(name, COMMANDS, kind="a command")][0].partition(":")
    return getattr(import_module(module), function)
