"""Options given by name: which dataclass declares each, whether a method looks at it, and whether it fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from numbers import Integral
from numbers import Real as Number
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from egm.baselines.chain_options import CHAIN_METHODS, ChainOptions
from egm.config.registry import METHODS, OPTION_GROUPS
from egm.train.options import TrainingOptions
from egm.util.expressions import nearest


def split_options(method: str, options: Mapping[str, Any]) -> tuple[TrainingOptions, Any]:
    """Keyword options as those of the loop and those of the method; unknown names suggest the nearest one."""
    kind = METHODS[method]
    chosen = options_by_group(method, (TrainingOptions, kind.options), {**kind.defaults, **options})
    return TrainingOptions(**chosen[TrainingOptions]), kind.options(**chosen[kind.options])


def options_by_group(method: str, groups: tuple[type, ...], options: Mapping[str, Any]) -> dict[type, dict[str, Any]]:
    """Keyword options, checked, by those of the groups of a method that declare them."""
    names = {f.name: group for group in OPTION_GROUPS.values() for f in dataclasses.fields(group)}
    chosen: dict[type, dict[str, Any]] = {group: {} for group in groups}
    for name, value in options.items():
        known = nearest(name, names, kind="an option")
        known_to = _methods_with(names[known], known)
        if method not in known_to:
            raise ValueError(f"{known} is an option of {', '.join(known_to)}, not of {method}")
        chosen[names[known]][known] = checked_option(known, value, get_type_hints(names[known])[known])
    return chosen


def _methods_with(group: type, option: str) -> list[str]:
    if group is ChainOptions:
        return list(CHAIN_METHODS)
    having = {name: kind for name, kind in METHODS.items() if group in (kind.options, TrainingOptions)}
    return [name for name, kind in having.items() if option not in kind.ignores]


def checked_option(name: str, value: Any, hint: Any) -> Any:
    """The value as the type that an option is declared with; raises if it is of another one."""
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
