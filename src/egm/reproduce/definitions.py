"""Tables as data: the runs of a table, the published numbers, and which runs are possible here.

A *row* is a line of `tables/*.yaml`. It is run with each kind of recipe that it has a budget for: seconds, or `full`
for the recipe's own steps. A row with one kind is a *cell*. `smoke` is `fast` with the changes of `methods.yaml` and
the role "smoke". A value `calls of METHOD` in `overrides` stands for the energy calls of that method's run on the same
target and seed.

>>> table("table1").cells("smoke")[0].role
'smoke'
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from egm import recipes
from egm.methods.registry import METHODS
from egm.util.expressions import nearest

Kind = Literal["fast", "paper", "smoke"]
ROLES = ("main", "ablation", "smoke", "cost")
CALLS_OF = "calls of "
BUDGETS = ("steps", "time_limit")
#: tables in the order of the results page; `all` runs all of them except `BY_NAME_ONLY`
TABLES = (
    *("table1", "table2", "manywell", "leaps", "cost", "epsilon", "ema", "particles"),
    *("beyond", "symmetries", "opening", "time_to_floor", "cpu"),
)
BY_NAME_ONLY = ("cpu",)


@dataclass(frozen=True)
class Published:
    """A published number.

    Attributes:
        mean, std: mean and standard deviation; std is None if it was not published.
        of: method of the number, if it is not the row's own.
    """

    mean: float
    std: float | None
    of: str | None = None

    @property
    def decimals(self) -> int:
        """The number of decimals in print: two, as in the paper, or more if more were published."""
        return max(2, -int(Decimal(repr(float(self.mean))).normalize().as_tuple().exponent))

    @property
    def rounding(self) -> float:
        """The largest rounding error of the mean."""
        return 0.5 * 10.0**-self.decimals


@dataclass(frozen=True)
class Row:
    """One line of a table's definition.

    Attributes:
        recipe: name without folder, or with a folder that is used for every kind, or path of a YAML file.
        method: as in `egm train --method`.
        fast, paper: seconds of training with that kind of recipe, or "full"; None: not run with it.
        label: name of the row in print, by default its method.
        role: role of the runs; only rows of the same role are compared.
        overrides: options that replace the recipe's.
        published: numbers by metric that the recipe does not state: a mean, a standard deviation or null, and the
            method of the number if it is not the row's own.
        seeds: seeds that are run, if they are requested; None: all requested seeds.
    """

    recipe: str
    method: str
    fast: float | Literal["full"] | None = None
    paper: float | Literal["full"] | None = None
    label: str = ""
    role: str = "main"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Sequence[float | str | None]] = field(default_factory=dict)
    seeds: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for kind in ("fast", "paper"):
            budget = getattr(self, kind)
            if budget not in (None, "full") and not (isinstance(budget, int | float) and budget > 0):
                raise ValueError(f"{kind} of {self.recipe} by {self.method} must be seconds or 'full', got {budget!r}")
        if self.fast is None and self.paper is None:
            raise ValueError(f"{self.recipe} by {self.method} needs a budget: `fast: SECONDS` or `fast: full`")
        if self.role not in ROLES:
            raise ValueError(f"the role of {self.recipe} by {self.method} must be one of {ROLES}, got {self.role!r}")

    def cell(self, kind: Kind) -> Cell | None:
        """Return the row with one kind of recipe, or None if it is not run with that kind."""
        budget = self.paper if kind == "paper" else self.fast
        if budget is None:
            return None
        folder = "paper" if kind == "paper" else "fast"
        own = "/" in self.recipe or self.recipe.endswith((".yaml", ".yml"))
        recipe = self.recipe if own else f"{folder}/{self.recipe}"
        seconds = None if budget == "full" else float(budget)
        if kind == "smoke":
            changes = _methods()["smoke"]
            smoke = {**changes["common"], **changes.get(self.method, {})}
            seconds = smoke.pop("time_limit")
            return Cell(self, recipe, "smoke", {**self.overrides, **smoke}, seconds)
        return Cell(self, recipe, self.role, dict(self.overrides), seconds)


@dataclass(frozen=True)
class Cell:
    """A row with one kind of recipe, which is trained once for each seed."""

    row: Row
    recipe: str
    role: str
    overrides: dict[str, Any]
    time_limit: float | None

    @property
    def method(self) -> str:
        """The method of the row."""
        return self.row.method

    @property
    def is_chain(self) -> bool:
        """Whether the method runs Markov chains."""
        return not METHODS[self.method].trains

    @property
    def label(self) -> str:
        """The label of the row, or its method without one."""
        return self.row.label or self.row.method

    @property
    def stem(self) -> str:
        """The recipe without its folder."""
        return Path(self.recipe).stem

    @property
    def name(self) -> str:
        """The name of its runs without the seed; names of runs with role "cost" include their seconds."""
        folder = Path(self.recipe).parent.name or "own"
        role = "" if self.role == "main" else f"-{self.role}"
        changes = "".join(f"-{key}-{value}" for key, value in self.row.overrides.items() if key not in BUDGETS)
        seconds = f"-{self.time_limit:g}s" if self.role == "cost" and self.time_limit else ""
        return re.sub(r"[^\w.=-]+", "_", f"{folder}-{self.stem}-{self.method}{role}{changes}{seconds}")

    @property
    def published(self) -> dict[str, Published]:
        """The published numbers by metric: the row's, and the recipe's if no option is changed.

        EGM-SP is not in the paper, and has the numbers of EGM-BS.
        """
        found: dict[str, Published] = {}
        if self._recipe_exists() and self.role in ("main", "smoke") and not self.row.overrides:
            of = "egm-bs" if self.method == "egm-sp" else None
            stated = recipes.published(self.recipe, self.method)
            found = {metric: Published(mean, std, of) for metric, (mean, std) in stated.items()}
        return found | {metric: _published(pair) for metric, pair in self.row.published.items()}

    @cached_property
    def stated(self) -> dict[str, Any]:
        """The options that its recipe states; empty if there is no such recipe or method."""
        return {} if self.why_not() else recipes.load(self.recipe, self.method)

    def why_not(self) -> str | None:
        """Return why the cell cannot be run here, or None if it can."""
        if self.method not in METHODS:
            return f"this version of egm has no method '{self.method}'"
        if not self._recipe_exists():
            return f"there is no recipe '{self.recipe}'"
        if self.method not in recipes.methods(self.recipe):
            return f"the recipe '{self.recipe}' has no section '{self.method}'"
        return None

    def _recipe_exists(self) -> bool:
        return self.recipe in recipes.names() or Path(self.recipe).is_file()


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        name: name of its definition, and of its file in `results/`.
        title: title, which names the published table.
        metrics: quantities of `egm.reproduce.comparison`; notes on the runs are below the first.
        targets: names of recipes in print.
        rows: rows of the table.
        source: source of the published numbers: "paper", or "published" for several sources.
        results: further files of `results/` with runs of these rows, read in this order after its own file.
        resample_from: weighted draws for each resampled draw; 1 for no resampled scores.
        about: a sentence above the tables.
        note: sentences below the first metric.
        notes: sentences below other metrics, by metric.
        figures: names of figures above the table of a metric, by metric.
    """

    name: str
    title: str
    metrics: tuple[str, ...]
    targets: Mapping[str, str]
    rows: tuple[Row, ...]
    source: str = "paper"
    results: tuple[str, ...] = ()
    resample_from: int = 5
    about: str = ""
    note: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def cells(self, kind: Kind) -> list[Cell]:
        """Return its rows with one kind of recipe."""
        return [cell for row in self.rows if (cell := row.cell(kind)) is not None]


def table(name: str) -> Table:
    """Return the table of that name, or of a YAML file; paths of recipes are relative to that file."""
    if name.endswith((".yaml", ".yml")):
        file = Path(name)
        if not file.is_file():
            raise ValueError(f"there is no file {name}; tables are {', '.join(TABLES)}, or YAML files")
        return _parse(file.stem, file, beside=file.parent)
    return _built_in(nearest(name, TABLES, kind="a table (nor the path of a .yaml file)"))


@lru_cache(maxsize=len(TABLES))
def _built_in(name: str) -> Table:
    return _parse(name, resources.files("egm.reproduce") / "tables" / f"{name}.yaml", beside=Path())


def _parse(name: str, file: Traversable | Path, *, beside: Path) -> Table:
    content = _yaml(file)
    known = {*Table.__dataclass_fields__} - {"name"}
    for key in content:
        nearest(str(key), known, kind=f"a part of the table '{name}'")
    for key in ("title", "metrics", "rows"):
        if not content.get(key):
            raise ValueError(f"the table '{name}' needs {key}; see src/egm/reproduce/tables for examples")
    rows = []
    for line in content.pop("rows"):
        for key in line:
            nearest(str(key), Row.__dataclass_fields__, kind=f"a part of a row of the table '{name}'")
        if line["recipe"].endswith((".yaml", ".yml")):
            line["recipe"] = str(beside / line["recipe"])
        rows.append(Row(**line))
    for key in ("metrics", "results"):
        content[key] = tuple(content.get(key, ()))
    return Table(name=name, rows=tuple(rows), targets=content.pop("targets", {}), **content)


def _published(stated: Sequence[float | str | None]) -> Published:
    mean, std, *of = stated
    if mean is None or len(of) > 1:
        raise ValueError(
            "a published number is [mean, standard deviation], of another method [mean, standard deviation, method],"
            f" and only the second may be null; got {list(stated)}"
        )
    return Published(float(mean), None if std is None else float(std), *map(str, of))


@lru_cache(maxsize=1)
def _methods() -> dict[str, Any]:
    return _yaml(resources.files("egm.reproduce") / "methods.yaml")


def _yaml(file: Traversable | Path) -> dict[str, Any]:
    import yaml  # noqa: PLC0415  (the library itself trains without it)

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold names and values")
    return content
