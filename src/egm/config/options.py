"""Checks values of options against the types that dataclasses declare, and handles options of earlier versions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from numbers import Real as Number
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from egm.util.expressions import nearest

#: removed options, and what applies instead
REMOVED = {
    "weight_decay": "each method has its own, and a run keeps what it began with",
    "evaluation_size": "an evaluation while training takes 2000 draws",
    "source": "`egm train --target module:function` writes it",
    "notes": "`egm train` writes them",
}
COMMAND_OPTIONS = ("weight_decay", "evaluation_size")  # removed options that `egm train` had


def without_removed(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the current options and the removed ones, and warns about the latter."""
    gone = {name: value for name, value in options.items() if name in REMOVED}
    for name in gone:
        warnings.warn(f"{name} is no longer an option: {REMOVED[name]}", DeprecationWarning, stacklevel=3)
    return {name: value for name, value in options.items() if name not in gone}, gone


def removed_from_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns a command line without removed options and their values, and a warning for each of them."""
    kept, said, rest = [], [], list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.removeprefix("--").replace("-", "_").partition("=")
        if word.startswith("--") and name in COMMAND_OPTIONS:
            said.append(f"--{name} is ignored, it is no longer an option: {REMOVED[name]}")
            if not equals and rest and not rest[0].startswith("--"):
                rest.pop(0)
        else:
            kept.append(word)
    return kept, said


def checked_option(name: str, value: Any, hint: Any) -> Any:
    """Returns the value as the declared type of an option; raises if it has another type."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if value is None and NoneType in kinds:
        return None
    for kind in kinds:
        if get_origin(kind) is Literal:
            return nearest(str(value), get_args(kind), kind=f"a value of {name}")
        if kind is bool and isinstance(value, bool):
            return value
        if kind is int and isinstance(value, Integral) and not isinstance(value, bool):
            return int(value)
        if kind is float and isinstance(value, Number) and not isinstance(value, bool):
            return float(value)
    words = {int: "a whole number", float: "a number", bool: "True or False", NoneType: "None"}
    raise TypeError(f"{name} must be {' or '.join(words[kind] for kind in kinds)}, got {value!r}")


def check_numbers(
    options: object,
    *,
    positive: Iterable[str] = (),
    non_negative: Iterable[str] = (),
    decays: Iterable[str] = (),
    shares: Iterable[str] = (),
) -> None:
    """Raises unless the options of these names lie in their ranges; None passes, NaN and infinity do not."""
    ranges = (
        (positive, "must be positive", lambda x: 0 < x < math.inf),
        (non_negative, "must not be negative", lambda x: 0 <= x < math.inf),
        (decays, "is the decay of a running average and lies in [0, 1)", lambda x: 0 <= x < 1),
        (shares, "is a share of training and lies in [0, 1]", lambda x: 0 <= x <= 1),
    )
    for names, requirement, holds in ranges:
        for name in names:
            value = getattr(options, name)
            if value is not None and not holds(value):
                raise ValueError(f"{name} {requirement}, got {value}")
