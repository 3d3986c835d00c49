"""Command-line parsers (jsonargparse) with help from docstrings, and with short errors that name the nearest option."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import Any, NoReturn, Union, get_args, get_origin

import jsonargparse
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from egm.util.expressions import nearest

Count: Any = PositiveInt  # types of options, which the type checker takes for aliases
Seed: Any = NonNegativeInt
Seconds: Any = PositiveFloat
HELP_ALL = "show every option: parts, training loop, methods"
FREE_KEYS = ("paths.", "processes.")  # --paths.NAME for any variable NAME


class _Formatter(argparse.RawDescriptionHelpFormatter, jsonargparse.DefaultHelpFormatter):
    """A help formatter that keeps lines of descriptions, and shows an option's default and a letter for its type."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "max_help_position": 28})

    def _get_help_string(self, action: argparse.Action) -> str:
        said, default = (action.help or "").removesuffix("."), action.default
        if action.required and action.option_strings:
            return f"{said} (required)".strip()
        empty = isinstance(default, dict | list) and not default
        if default is None or default is False or default == argparse.SUPPRESS or empty:
            return said
        return f"{said} (default: {'true' if default is True else default})".strip()

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        kinds = plain_types(action)
        return "N" if int in kinds else "X" if float in kinds else "TEXT"


class _HelpAll(argparse.Action):
    """The action of --help_all, which prints the help with every option."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=HELP_ALL)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        if isinstance(parser, Parser):
            parser.folded = frozenset()
        parser.print_help()
        parser.exit()


class Parser(jsonargparse.ArgumentParser):
    """The parser of one command; `read` parses a command line."""

    def __init__(self, command: str, description: str, *, usage: str, folds: bool = False) -> None:
        """Make the parser of `egm command`.

        Args:
            command: name of the command.
            description: text at the beginning of --help.
            usage: text after the name of the command.
            folds: whether there are groups that only --help_all shows, see `fold`.
        """
        super().__init__(
            prog=f"egm {command}",
            usage=f"egm {command} {usage}",
            description=description,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        self.folded: frozenset[str] = frozenset()
        if folds:
            self.add_argument("--help_all", action=_HelpAll)

    def fold(self, *titles: str) -> None:
        """Hide groups of options from --help, which should fit on a screen; --help_all shows them."""
        self.folded |= set(titles)

    def format_help(self, *args: Any, **kwargs: Any) -> str:
        """Return the help without folded groups."""
        groups = self._action_groups
        self._action_groups = [group for group in groups if group.title not in self.folded]
        try:
            return super().format_help(*args, **kwargs)
        finally:
            self._action_groups = groups

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise a ValueError instead of printing the usage and exiting."""
        text = re.sub(r'Parser key "([^"]*)":\s*', r"--\1: ", message)
        text = re.sub(r"Expected a <class '(\w+)'>", r"expected \1", text).replace("Expected a ", "expected ")
        raise ValueError(f"{text}\n(`{self.prog} --help` lists the options)") from None

    def read(self, argv: Sequence[str]) -> tuple[jsonargparse.Namespace, set[str]]:
        """Return the values of a command line, and the names of the options that it sets."""
        given = given_options(argv)
        known = [option.removeprefix("--") for option in self._option_string_actions if option.startswith("--")]
        for name in given:
            if not name.startswith(FREE_KEYS):
                _known_option(name, known)
        values = self.parse_args(list(argv))
        for name, value in list(values.items()):
            if isinstance(value, int | float) and not isinstance(value, bool):  # from restricted to plain numbers
                values[name] = int(value) if isinstance(value, int) else float(value)
        return values, given


def _known_option(name: str, known: list[str]) -> None:
    if name in known:
        return
    try:
        close = f"--{nearest(name, known, kind='an option')}"  # the same name with other hyphens
        hint = f"; did you mean '{close}'?"
    except ValueError as error:
        suggestion = re.search(r"did you mean '([^']*)'", str(error))
        hint = f"; did you mean '--{suggestion[1]}'?" if suggestion else ""
    raise ValueError(f"'--{name}' is not an option of this command{hint} (`--help` lists them)")


def plain_types(action: argparse.Action) -> set[type]:
    """Return the types of an option, without None and restrictions: some of bool, int, float and str."""
    hint = getattr(action, "_typehint", None) or action.type
    parts = (
        [part for part in get_args(hint) if part is not NoneType] if get_origin(hint) in (Union, UnionType) else [hint]
    )
    plain = (bool, int, float, str)
    return {next((kind for kind in plain if isinstance(part, type) and issubclass(part, kind)), str) for part in parts}


def value_of(values: jsonargparse.Namespace, name: str) -> Any:
    """Return the value of an option by its full name, such as `paths.x`."""
    group, _, key = name.partition(".")
    return values[group].get(key) if name.startswith(FREE_KEYS) else values.get(name)


def given_options(argv: Iterable[str]) -> set[str]:
    """Return the names of the long options on a command line."""
    return {token[2:].split("=")[0] for token in argv if token.startswith("--") and len(token) > 2}


def peek(argv: Sequence[str], option: str) -> str | None:
    """Return the value of an option, or None if it is not given."""
    return _split(argv, option)[0]


def without(argv: Sequence[str], option: str) -> list[str]:
    """Return a command line without an option and its value."""
    return _split(argv, option)[1]


def _split(argv: Sequence[str], option: str) -> tuple[str | None, list[str]]:
    value, rest, tokens = None, [], iter(argv)
    for token in tokens:
        name, equals, text = token.partition("=")
        if name != option:
            rest.append(token)
            continue
        value = text if equals else next(tokens, None)
        if value is None or value.startswith("--"):
            raise ValueError(f"{option} needs a value")
    return value, rest


def documented(thing: Any) -> dict[str, str]:
    """Return the entries of a docstring's "Args" or "Attributes", by name."""
    texts: dict[str, str] = {}
    names: list[str] = []
    section = False
    for line in inspect.cleandoc(thing.__doc__ or "").splitlines():
        if not line.startswith(" "):
            section = section if not line else line in ("Args:", "Attributes:")
        elif section and (entry := re.match(r"    (\*{0,2}\w+(?:, \w+)*): (.*)", line)):
            names = entry[1].split(", ")
            shared = f"({entry[1]}) " if len(names) > 1 else ""
            texts |= dict.fromkeys(names, shared + entry[2])
        elif section:
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return {name: text.replace("`", "").replace("%", "%%") for name, text in texts.items()}
