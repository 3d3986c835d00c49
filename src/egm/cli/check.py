"""`egm check`: looks for problems of an energy before training."""

from __future__ import annotations

from typing import Literal

import torch

from egm.checking import check as inspect_target
from egm.cli.own_target import import_target
from egm.cli.parsing import Parser, Seed
from egm.cli.tables import show
from egm.config.targets import make_target


def check_parser() -> Parser:
    """Return the parser of `egm check`."""
    parser = Parser(
        "check",
        "Check an energy before training: shapes and batches, sign, NaN, scale and location, directions\n"
        "along which the density cannot be normalised, gradients, symbols and speed. The check takes\n"
        "seconds and trains nothing. The exit code is 1 if it finds a problem.\n\n"
        "  egm check my_module:make_target               your own function that returns an egm.Target\n"
        '  egm check "Ising(size=5, beta=0.4)"           a built-in target\n',
        usage="TARGET [options]",
    )
    parser.add_argument("target", type=str, help="module:function, or the expression of a built-in target")
    parser.add_argument("--seed", type=Seed, default=0, help="seed of the states that are tried")
    parser.add_argument("--device", type=str, default="cpu", help="device that evaluates the energy, cpu or cuda")
    parser.add_argument("--dtype", type=Literal["float32", "float64"], default="float32", help="of the real variables")
    return parser


def check(argv: list[str]) -> int:
    """Run `egm check` with these arguments; return 0 without problems and 1 with problems."""
    values, _ = check_parser().read(argv)
    text: str = values.target
    try:
        target = import_target(text) if ":" in text else make_target(text)
    except (ValueError, TypeError) as error:
        if ":" in text or "(" in text:
            raise
        # A bare name is unknown, or belongs to a target that needs arguments.
        fix = 'write "Name(argument=value)"' if isinstance(error, TypeError) else "write your own as module:function"
        raise ValueError(f"{error}; {fix}") from None
    found = inspect_target(target, device=values.device, dtype=getattr(torch, values.dtype), seed=values.seed)
    if found.findings:
        show(repr(target), ["", "check", "finding"], [[f.level, f.name, f.text] for f in found.findings])
    print(f"{target!r}: {found.verdict}")
    return 0 if found.ok else 1
