"""Registry of methods by name: built-in methods are added on import, a user's methods by `register_method`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from egm.config.options import checked_option
from egm.config.registry import require_own, reserve
from egm.methods.kind import MethodKind
from egm.train.options import TrainingOptions
from egm.util.expressions import nearest

METHODS: dict[str, MethodKind] = {}
#: groups of options by their titles in help and documentation
OPTION_GROUPS: dict[str, type] = {"training loop": TrainingOptions}


def add_method(name: str, kind: MethodKind) -> None:
    """Adds a method of the library."""
    METHODS[name] = kind
    reserve(name)


def add_options(title: str, group: type) -> None:
    """Adds a group of options of the library, a dataclass from which options classes inherit."""
    OPTION_GROUPS[title] = group


def register_method(name: str, kind: MethodKind) -> None:
    """Registers a user's method for `egm.fit(target, name)`; the names of its options must be new."""
    require_own(name)
    others = {title: group for title, group in OPTION_GROUPS.items() if title != name}
    inherited = {option for group in others.values() if issubclass(kind.options, group) for option in names(group)}
    new = set(names(kind.options)) - inherited
    for title, group in others.items():
        if taken := new & set(names(group)):
            raise ValueError(f"{', '.join(sorted(taken))} of '{name}' is an option of {title}; choose another name")
    OPTION_GROUPS.pop(name, None)  # of an earlier registration
    if new:
        OPTION_GROUPS[name] = kind.options
    METHODS[name] = kind


def names(options: type) -> list[str]:
    """Returns the names of the options in a dataclass."""
    return [option.name for option in fields(options)]


def declared(group: type) -> list[str]:
    """Returns the options of a group, without those that it inherits from other groups."""
    bases = [other for other in OPTION_GROUPS.values() if other is not group and issubclass(group, other)]
    inherited = {name for other in bases for name in names(other)}
    return [name for name in names(group) if name not in inherited]


def find_method(name: str) -> MethodKind:
    """Returns the method that a run names."""
    if name not in METHODS:
        raise ValueError(
            f"the method '{name}' is not known here ({', '.join(METHODS)}); import the module that registers it, on the"
            " command line by --target module:function"
        )
    return METHODS[name]


def option_names() -> list[str]:
    """Returns the names of all options of the loop and of the methods."""
    return [option for group in OPTION_GROUPS.values() for option in declared(group)]


def split_options(method: str, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Checks keyword options, adds the method's defaults, and returns one object for each of its options classes."""
    return _assigned(method, {**METHODS[method].defaults, **options})


def options_from(method: str, config: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the options in a configuration, as `split_options`."""
    return _assigned(method, {name: config[name] for name in METHODS[method].option_names if name in config})


def _assigned(method: str, options: Mapping[str, Any]) -> tuple[Any, ...]:
    classes = METHODS[method].option_classes
    chosen: list[dict[str, Any]] = [{} for _ in classes]
    for name, value in options.items():
        known = nearest(name, option_names(), kind="an option")
        place = next((i for i, cls in enumerate(classes) if known in names(cls)), None)
        if place is None:
            having = [other for other, kind in METHODS.items() if known in kind.option_names]
            raise ValueError(f"{known} is an option of {', '.join(having)}, not of {method}")
        chosen[place][known] = checked_option(known, value, get_type_hints(classes[place])[known])
    return tuple(cls(**values) for cls, values in zip(classes, chosen, strict=True))
