"""Registry of targets, paths, schedules and processes that a run can name, built-in and user-defined.

Runs are recorded by names (`egm.config.parts`), and nothing that a file names is imported. So a user's class must be
registered before `egm.fit`, `egm.load`, a recipe or a command names it. Methods have a separate registry
(`egm.methods.registry`).
"""

from __future__ import annotations

from typing import Any, TypeVar

from egm import paths, processes, targets
from egm.paths.product import AnyPath
from egm.targets.base import Target
from egm.util.expressions import normal_form

PATHS: dict[str, type[AnyPath]] = {
    "CondOT": paths.CondOT,
    "VE": paths.VE,
    "VP": paths.VP,
    "Foellmer": paths.Foellmer,
    "Masked": paths.Masked,
    "Uniform": paths.Uniform,
}
SCHEDULES: dict[str, type[paths.Schedule]] = {"Polynomial": paths.Polynomial, "Cosine": paths.Cosine}
PROCESSES: dict[str, type[processes.Process[Any]]] = {
    "Flow": processes.Flow,
    "Diffusion": processes.Diffusion,
    "Jump": processes.Jump,
    "DiscreteJump": processes.DiscreteJump,
}
TARGETS: dict[str, type[Target]] = {
    name: getattr(targets, name) for name in targets.__all__ if name not in ("Target", "EnergyError")
}

KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "target": (Target, TARGETS),
    "path": (paths.Path, PATHS),
    "schedule": (paths.Schedule, SCHEDULES),
    "process": (processes.Process, PROCESSES),
}
BUILT_IN = {normal_form(name) for _, table in KINDS.values() for name in table}
Part = TypeVar("Part", bound=type)


def register(part: Part) -> Part:
    """Registers a user's class, a `Target`, `Path`, `Schedule` or `Process`; usable as a decorator.

    The name is the name of the class. Options must be keyword-only and kept as attributes of the same names (a target
    writes them in its `repr`), because `config.yaml` records them in this form. A user's name may be registered again.
    """
    table = next((table for base, table in KINDS.values() if isinstance(part, type) and issubclass(part, base)), None)
    if table is None:
        raise TypeError(f"a {' or '.join(KINDS)} can be registered, got {part!r}; for methods use register_method")
    require_own(part.__name__)
    table[part.__name__] = part
    return part


def reserve(name: str) -> None:
    """Reserves a name for the library: a user's part cannot have it."""
    BUILT_IN.add(normal_form(name))


def require_own(name: str) -> None:
    """Raises for a name that the library uses."""
    if normal_form(name) in BUILT_IN:
        raise ValueError(f"'{name}' is a name of the library; choose another one")
