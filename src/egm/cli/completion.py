"""`egm completion`: prints a shell script that completes commands, options, targets, methods and recipes.

shtab makes the script from an argparse parser. The parsers of `egm` depend on the target, so shtab gets a plain copy:
one subparser for each command, with the options of every target.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterable
from importlib import import_module
from typing import Literal, get_args, get_origin

from egm import recipes
from egm.cli.listing import SECTIONS
from egm.cli.main import COMMANDS
from egm.cli.parsing import Parser, plain_types
from egm.config.registry import TARGETS
from egm.methods.registry import METHODS
from egm.reproduce.definitions import TABLES
from egm.util.expressions import nearest
from egm.util.extras import needed

SHELLS = ("bash", "zsh")
DESCRIPTION = """\
Print a script with which a shell completes the commands, options, targets, methods and recipes of
`egm`. The command needs shtab: pip install 'egm[completion]'.

  egm completion bash > ~/.local/share/bash-completion/completions/egm
  egm completion zsh > ~/.zfunc/_egm

Create the folder if it does not exist, and open a new shell. For zsh, ~/.zshrc needs the lines
`fpath+=~/.zfunc` and `autoload -Uz compinit && compinit`.
"""
FOLDERS, FILES = {"run", "resume", "start", "results"}, {"out"}


def completion(argv: list[str]) -> int:
    """Run `egm completion` with these arguments."""
    values, _ = completion_parser().read(argv)
    shell = nearest(values.shell, SHELLS, kind="a supported shell")
    shtab = needed("shtab", what="egm completion", extra="completion")
    parser = whole_parser()
    for action in (action for sub in _commands(parser).values() for action in sub._actions):
        if action.dest in FOLDERS:
            action.complete = shtab.DIRECTORY  # pyright: ignore[reportAttributeAccessIssue]
        elif action.dest in FILES:
            action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
    print(shtab.complete(parser, shell=shell))
    return 0


def completion_parser() -> Parser:
    """Return the parser of `egm completion`."""
    parser = Parser("completion", DESCRIPTION, usage="SHELL")
    parser.add_argument("shell", type=str, help=" or ".join(SHELLS))
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """Return one argparse parser with the names and choices of all commands; it is not used to parse."""
    whole = argparse.ArgumentParser("egm", add_help=False)
    whole.add_argument("-h", "--help", action="store_true", help="show the commands")
    whole.add_argument("--version", action="store_true", help="show the version")
    commands = whole.add_subparsers()
    for name, (where, about) in COMMANDS.items():
        copy = commands.add_parser(name, help=about, add_help=False)
        if name == "train":
            _add_targets(copy)
        module, _, function = where.partition(":")
        make_parser = getattr(import_module(module), f"{function}_parser")
        for action in make_parser()._actions:
            _copy(copy, action)
    return whole


def _add_targets(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `egm train` reads before its parser: the target, and the arguments of every target."""
    parser.add_argument("target", choices=[name.lower() for name in TARGETS], help="what to sample")
    parser.add_argument("--target", help="your own energy, module:function")
    for name in sorted({name for target in TARGETS.values() for name in inspect.signature(target).parameters}):
        parser.add_argument(f"--target.{name}", help="an argument of the target")


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _copy(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
    """Add a copy of an option or argument to a parser."""
    if action.help == argparse.SUPPRESS:
        return
    help = (action.help or "").replace("%%", "%").replace("%", "%%")
    names = action.option_strings or [action.dest]
    if action.nargs == 0:
        parser.add_argument(*names, action="store_true", help=help)
    else:
        parser.add_argument(*names, choices=choices(action), nargs=action.nargs, help=help)


def choices(action: argparse.Action) -> list[str] | None:
    """Return the possible values of an option, or None if they cannot be listed."""
    hint = getattr(action, "_typehint", None)
    for part in (hint, *get_args(hint)):
        if get_origin(part) is Literal:
            return [str(value) for value in get_args(part)]
    if bool in plain_types(action):
        return ["true", "false"]
    known: dict[str, Iterable[str]] = {
        "method": tuple(METHODS),
        "recipe": recipes.names(),
        "section": SECTIONS,
        "what": (*TABLES, "all", "figures", "page"),
        "shell": SHELLS,
    }
    return list(known[action.dest]) if action.dest in known else None
