"""Which command, and how it ends.

Exit codes: 0 done, 1 an energy misbehaved or has a problem (`egm check`), 2 the input is wrong (a message, no
traceback), 130 and 143 stopped by SIGINT and SIGTERM. `EGM_TRACEBACK=1` shows the traceback of a message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from egm.expressions import nearest
from egm.extras import MissingPackage
from egm.targets.base import EnergyError
from egm.train.signals import Stopped, stop_on_signals

USAGE = """\
usage: egm COMMAND [options]

Train samplers for energies on continuous, discrete and mixed spaces.

  egm list       targets, methods, paths, processes, networks and recipes
  egm check      look at an energy of your own before training
  egm train      train a sampler, or continue a run
  egm sample     draw from a trained sampler
  egm evaluate   compare a trained sampler with exact draws
  egm reproduce  the paper's tables and figures, with ours beside them

`egm COMMAND --help` explains each of them. A first run:

  egm train --recipe fast/gbrbm --time_limit 80
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
    name = nearest(name, ("list", "check", "train", "sample", "evaluate", "reproduce"), kind="a command")
    # Each command imports what it needs, so that `egm list` does not wait for what only training uses.
    if name == "list":
        from egm.cli.listing import show_list as command  # noqa: PLC0415
    elif name == "check":
        from egm.cli.check import check as command  # noqa: PLC0415
    elif name == "train":
        from egm.cli.train import train as command  # noqa: PLC0415
    elif name == "sample":
        from egm.cli.draw import sample as command  # noqa: PLC0415
    elif name == "reproduce":
        from egm.cli.reproduce import reproduce as command  # noqa: PLC0415
    else:
        from egm.cli.draw import evaluate as command  # noqa: PLC0415
    return command
