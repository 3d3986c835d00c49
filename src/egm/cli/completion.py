"""`egm completion`: the script by which a shell completes commands, options, targets, methods and recipes.

shtab makes scripts from argparse's parsers. Those of `egm` depend on the target, so it gets a plain copy of them: one
subparser for each command, with the options of every target.
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
Print the script by which a shell completes what follows `egm`: commands, options, targets, methods
and recipes. Needs shtab: pip install 'egm[completion]'.

  egm completion bash > ~/.local/share/bash-completion/completions/egm
  egm completion zsh > ~/.zfunc/_egm

Make the folder first if it is not there, and open another shell. For zsh, ~/.zshrc needs the lines
`fpath+=~/.zfunc` and `autoload -Uz compinit && compinit`.
"""
FOLDERS, FILES = {"run", "resume", "start", "results"}, {"out"}


def completion(argv: list[str]) -> int:
    """Run `egm completion` with these arguments."""
    values, _ = completion_parser().read(argv)
    shell = nearest(values.shell, SHELLS, kind="a shell that is known here")
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
    """The options of `egm completion`."""
    parser = Parser("completion", DESCRIPTION, usage="SHELL")
    parser.add_argument("shell", type=str, help=" or ".join(SHELLS))
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """All of `egm` as one parser by argparse, which knows names and choices and parses nothing."""
    whole = argparse.ArgumentParser("egm", add_help=False)
    whole.add_argument("-h", "--help", action="store_true", help="what there is")
    whole.add_argument("--version", action="store_true", help="of the library")
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
    """What `egm train` takes apart before its parser: the target, and the arguments of all that there are."""
    parser.add_argument("target", choices=[name.lower() for name in TARGETS], help="what to sample")
    parser.add_argument("--target", help="an energy of your own, module:function")
    for name in sorted({name for target in TARGETS.values() for name in inspect.signature(target).parameters}):
        parser.add_argument(f"--target.{name}", help="an argument of the target")


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _copy(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
    """Give a parser an option or argument like this one."""
    if action.help == argparse.SUPPRESS:
        return
    help = (action.help or "").replace("%%", "%").replace("%", "%%")
    names = action.option_strings or [action.dest]
    if action.nargs == 0:
        parser.add_argument(*names, action="store_true", help=help)
    else:
        parser.add_argument(*names, choices=choices(action), nargs=action.nargs, help=help)


def choices(action: argparse.Action) -> list[str] | None:
    """The values that an option takes, where they can be listed."""
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
