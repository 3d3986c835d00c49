"""`docs/results.md`: every result that is committed, from `results/*.json` and the tables' definitions alone.

Nothing in it depends on what this version of egm can run, and nothing is written by hand: `egm reproduce page` makes
it, and a test makes it again and compares.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egm.recipes import load, names
from egm.report.markup import Grid
from egm.reproduce.definitions import TABLES, Cell, Kind, Table, table
from egm.reproduce.figures import CAPTIONS
from egm.reproduce.rendering import Shown, commit_text, markdown
from egm.util.files import replacing

NAME = "results.md"
KINDS: tuple[Kind, ...] = ("fast", "paper")
INTRODUCTION = """\
<!-- Written by `egm reproduce page` from results/*.json. Do not edit: change records or the tables' definitions. -->

# Results

Written by `egm reproduce page` from the files of `results/`; nothing here is typed by hand, and a test compares.
[reproducing.md](reproducing.md) says how to make these runs.

- E-W1 and E-W2 are Wasserstein distances (of order 1 and 2) between the energies of draws and of reference draws,
  M-W1 that of their magnetisations, x-W2 that of the states themselves; ESS is the effective share of weighted draws.
- Recipes: `paper` are the paper's settings, `fast` are our own for minutes of a GPU.
- A value is the mean ± standard deviation over seeds, each seed the mean of its evaluations with fresh draws and
  fresh reference draws, n on either side. Without ± there is one seed. Chains are run once: their draws are n of the
  states that they visited.
- The *floor* is the value that reference draws have: exact ones, but for particles and lattices above 12 × 12, where
  they are of MCMC. *At the floor* means at most 1.25 times that, on average over at least 20 evaluations, for every
  seed; runs with fewer evaluations have no such verdict. *Resampled* draws are n out of five times as many, by their
  weights. *Best* counts only what is above the floor.
- *Worse than the paper*: by more than two of its standard deviations, or at all (beyond its rounding) where it has
  none. EGM-SP is not the paper's and stands beside EGM-BS. *Best* and *worse than a baseline* compare runs of the
  same role on the same target.
- *By an earlier recipe*: the recipe has changed since; how the runs were made says in what.
- *n = …*: chains of which one at least visited no more than n states, fewer than the n of other lines; they are
  compared with none of them.
- *Error of log Z* is the mean of absolute errors, *modes* the least number of them among n draws. *Symmetries* are
  those built into the networks.
- *At equal calls*: chains that made as many energy calls as EGM-SP did with the same seed. Gradients, which tempering
  of reals asks for and EGM-SP does not, come on top.
- Only runs of the role "main" are in the main rows; ablations and runs about cost are in tables of their own, and
  smoke runs in none.
- Seconds are of training. "At a time" says how many runs shared the device at most: then seconds buy fewer steps (the
  command of a run may say fewer, if others came later). Commands train; `egm evaluate RUN --n 2000 --repeats 20`
  compares with the reference, as `egm reproduce` does after training.
- A + after a commit: that commit with changes, which one of the next commits holds.
"""


@dataclass(frozen=True)
class Extra:
    """A file of `results/` that does not hold runs.

    Attributes:
        title, text: of its section.
        columns: heading by key; dots lead into a record.
        command: what writes the file.
        derived: what follows from a record, by key.
    """

    title: str
    text: str
    columns: Mapping[str, str]
    command: str
    derived: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda record: {}


def _whole(record: Mapping[str, Any]) -> dict[str, Any]:
    """Minutes that all steps of a recipe would take at a measured speed; not of draws, nor of recipes that are gone."""
    if record["name"].startswith("draws") or record["recipe"] not in names():
        return {}
    return {"minutes": record["ms"] * load(record["recipe"], record["method"])["steps"] / 6e4}


MARGINALS = ("inclusion", "coefficient", "together", "fitted", "labelled")  # of either posterior
MACHINE = {"hardware": "hardware", "torch": "torch", "commit": "commit"}
EXTRAS = {
    "bayes": Extra(
        "Posteriors: spike-and-slab regression and a Gaussian mixture",
        "The largest error of marginals that are known by enumeration (see [bayes.md](bayes.md)), one line a run, from"
        " weighted draws (mean of several sets) or from all states of the chains after warm-up. Chains make as many"
        " calls, of energy and gradient together, as EGM-SP made for training and one set of draws. Floors are the mean"
        " errors of as many exact draws as EGM-SP has. Seconds are of cores that did other work beside.",
        {
            **{"problem": "posterior", "method": "method", "seed": "seed", "calls": "calls", "ess": "ESS"},
            **{
                f"metrics.{name}_max.{key}": f"{name}{', floor' if key == 'floor' else ''}"
                for name in MARGINALS
                for key in ("mean", "floor")
            },
            **{"n": "n", "train_seconds": "seconds", "r_hat": "R-hat", **MACHINE},
        },
        "python benchmarks/bayes.py --results results/bayes.json",
    ),
    "speed": Extra(
        "Speed",
        "Milliseconds of a gradient step with the paper's settings (`draws`: of 2000 draws), beside the authors' code"
        " on the same kind of GPU and the least that the machine allows; and the minutes that all steps of the recipe"
        " take at that speed, one run alone on the GPU, without the draws for the buffer.",
        {
            **{"name": "case", "recipe": "recipe", "method": "method", "authors_ms": "authors' ms", "ms": "ms"},
            **{"spread_ms": "spread", "floor_ms": "least", "minutes": "all steps, min", "authors_gib": "authors' GiB"},
            **{"gib": "GiB", **MACHINE},
        },
        "python benchmarks/speed.py --results results/speed.json",
        _whole,
    ),
    "scaling": Extra(
        "Scaling",
        "Milliseconds of a gradient step and its memory, by lattice size, proposals and batch size.",
        {
            **{"axis": "varied", "value": "value", "what": "what", "ms": "ms", "spread_ms": "spread", "gib": "GiB"},
            **MACHINE,
        },
        "python benchmarks/scaling.py --results results/scaling.json",
    ),
    "compare_cpu": Extra(
        "Steps on a CPU beside an earlier version",
        "Medians; the earlier version ran twice in each round, which shows what the machine alone does.",
        {
            **{"case": "case", "what": "what", "before_ms": "before, ms", "now_ms": "now, ms"},
            **{"again_ms": "before again, ms", "rounds": "rounds", "hardware": "hardware", "torch": "torch"},
            **{"before": "commit before", "now": "commit now"},
        },
        "python benchmarks/compare_cpu.py /tmp/before/src --results results/compare_cpu.json",
    ),
    "quickstart": Extra(
        "The time of `make quickstart`",
        "In an empty clone, on CPU cores.",
        {
            **{"setup_seconds": "set-up, s", "training_seconds": "training, s", "other_seconds": "the rest, s"},
            **{"total_seconds": "in all, s", "steps": "steps", "ess": "ESS", "log_z": "log Z"},
            **{"cores": "cores", "hardware": "hardware", "commit": "commit"},
        },
        "python benchmarks/quickstart.py --results results/quickstart.json",
    ),
}


def write_page(results: Path, docs: Path) -> Path:
    """Write the page and return its path."""
    with replacing(docs / NAME) as stream:
        stream.write(page(results, docs).encode())
    return docs / NAME


def page(results: Path, docs: Path) -> str:
    """The text of the page; figures that `docs/figures` holds are shown."""
    parts = [INTRODUCTION.rstrip()]
    for name in TABLES:
        parts += _table(name, results)
    for name, extra in EXTRAS.items():
        if (file := results / f"{name}.json").is_file():
            content = json.loads(file.read_text(encoding="utf-8"))
            parts += [f"## {extra.title}", extra.text, f"`{extra.command}`"]
            found = content if isinstance(content, list) else [content]
            parts.append(markdown(_grid(extra.columns, [{**record, **extra.derived(record)} for record in found])))
    figures = sorted((docs / "figures").glob("*.svg")) if (docs / "figures").is_dir() else []
    if figures:
        parts.append("## Figures")
        parts.append(
            "Drawn by `egm reproduce figures` from `results/figures.json` and records: rows whose draws were kept."
        )
        for file in figures:
            parts += [f"![{file.stem}](figures/{file.name})", CAPTIONS.get(file.stem, file.stem)]
    return "\n\n".join(parts) + "\n"


def _table(name: str, results: Path) -> list[str]:
    definition = table(name)
    shown = Shown(definition, KINDS, results)
    parts = [f"## {definition.title}", _commands(definition)]
    if shown.lines:
        parts.append(markdown(shown.comparison()))
    if definition.note:
        parts.append(definition.note)
    parts += [f"About {', '.join(cells)}: {note}." for note, cells in shown.notes().items()]
    if shown.missing:
        parts.append(f"No run is committed yet of: {_names(shown.missing)}.")
    if shown.provenance()[1]:
        parts += ["<details><summary>How the runs were made</summary>", markdown(shown.provenance()), "</details>"]
    return parts


def _commands(definition: Table) -> str:
    """What makes a table: the plain command, and that for the paper's recipes where it has cells of them alone."""
    plain = {cell.name for cell in definition.cells("fast")}
    more = any(cell.name not in plain for cell in definition.cells("paper"))
    command = f"egm reproduce {definition.name}"
    return f"`{command}`" + (f", `{command} --recipe paper`" if more else "")


def _names(cells: Sequence[Cell]) -> str:
    """Cells by recipe: "fast/gbrbm (gibbs, egm)"."""
    labels: dict[str, list[str]] = {}
    for cell in cells:
        labels.setdefault(cell.recipe, []).append(cell.label)
    return ", ".join(f"{recipe} ({', '.join(names)})" for recipe, names in labels.items())


def _grid(columns: Mapping[str, str], records: Sequence[Mapping[str, Any]]) -> Grid:
    return list(columns.values()), [[_text(key, _at(record, key)) for key in columns] for record in records]


def _at(record: Any, key: str) -> Any:
    for part in key.split("."):
        record = record.get(part) if isinstance(record, Mapping) else None
    return record


def _text(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key in ("commit", "before", "now"):
        return commit_text(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
