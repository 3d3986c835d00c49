"""`egm reproduce`: makes the paper's tables and figures, and the pages of results."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import fill
from typing import Literal

import torch

from egm.cli.parsing import Count, Parser, Seconds, Seed
from egm.cli.tables import show
from egm.reproduce.definitions import BY_NAME_ONLY, TABLES, Kind, table
from egm.reproduce.selection import Selection
from egm.reproduce.workflow import Plan, carry_out, describe, write_table
from egm.util.expressions import nearest

OTHERS = ("all", "figures", "page")
DESCRIPTION = f"""\
Train, evaluate and print a table: published numbers, ours over seeds, a baseline and the floor.

  egm reproduce table1 --recipe smoke            a test of every part on a CPU; not results
  egm reproduce table1 --seeds 0 1 2 --jobs 4    with the fast recipes, four runs at a time
  egm reproduce table1 --recipe paper --only ising5-b02 ising5-b04 egm-bs  two rows, paper's recipes
  egm reproduce all --only egm-sp --stretch 2.5 --jobs 8     more seconds where runs share the GPU
  egm reproduce figures                          docs/figures/ from results/, no training
  egm reproduce page                             docs/results* and README.md from results/

{fill(f"WHAT is {', '.join(TABLES)}, all (except {', '.join(BY_NAME_ONLY)}), figures, page, or a YAML file.", 98)}
Finished runs are kept and stopped runs are continued: after Ctrl-C, repeat the command.
Records go to results/WHAT.json, tables to the folder of the runs.
"""
EVALUATED, REPEATS, SMOKE_REPEATS = 2000, 20, 2  # draws of an evaluation, and evaluations


def reproduce(argv: list[str]) -> int:
    """Run `egm reproduce` with these arguments."""
    values, given = reproduce_parser().read(argv)
    out = Path(values.out)
    results = Path(values.results or (out / "smoke" if values.recipe == "smoke" else "results"))
    what = values.what
    if not what.endswith((".yaml", ".yml")):
        what = nearest(what, (*TABLES, *OTHERS), kind="something to reproduce (nor the path of a .yaml file)")
    if what in ("figures", "page"):
        return _from_records(what, results, docs=out if values.recipe == "smoke" else Path("docs"))
    if "time_limit" in given and "stretch" in given:
        raise ValueError("--time_limit and --stretch both set the seconds of a run; leave one out")
    smoke = values.recipe == "smoke"
    less = {"--time_limit": "time_limit" in given, "--stretch": values.stretch < 1, "--n": values.n < EVALUATED,
            "--repeats": values.repeats is not None and values.repeats < REPEATS}  # fmt: skip
    if not smoke and values.results is None and any(less.values()):
        names = ", ".join(name for name, short in less.items() if short)
        raise ValueError(
            f"{names}: such runs would replace the runs of the tables in results/; give another folder, such as"
            " --results trial"
        )
    kind: Kind = values.recipe
    device = values.device or ("cuda" if torch.cuda.is_available() else "cpu")
    one_each = max(1, (os.cpu_count() or 1) // values.threads)
    tables = [table(name) for name in _names(what)]
    cells = [cell for each in tables for cell in each.cells(kind)]
    if not cells:
        raise ValueError(f"no row of {what} has a {kind} recipe; try --recipe {'fast' if kind == 'paper' else 'paper'}")
    plan = Plan(
        tables=tables,
        kind=kind,
        seeds=sorted(set(values.seeds or ((0,) if smoke else (0, 1, 2)))),
        only=Selection.of(values.only, cells),
        device=device,
        jobs=values.jobs or (one_each if device == "cpu" else 1),
        threads=values.threads,
        time_limit=values.time_limit,
        stretch=values.stretch,
        n=values.n,
        repeats=values.repeats or (SMOKE_REPEATS if smoke else REPEATS),
        out=out,
        results=results,
    )
    if values.dry_run:
        describe(plan)
        return 0
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"the device '{device}' cannot be used here: there is no GPU; use --device cpu")
    done = carry_out(plan)
    for each in (each for each in plan.tables if plan.cells(each)):
        made = write_table(plan, each)
        for label, grid in made.grids:
            show(f"{each.title}: {label}", *grid)
        for text in made.texts:
            print(text)
        print(f"written to {', '.join(map(str, made.files))}; records are in {results / each.name}.json")
    return 0 if done else 1


def reproduce_parser() -> Parser:
    """Return the parser of `egm reproduce`."""
    parser = Parser("reproduce", DESCRIPTION, usage="WHAT [options]")
    add = parser.add_argument
    add("what", type=str, help="see above")
    add("--recipe", type=Literal["fast", "paper", "smoke"], default="fast", help="kind of recipe")
    add("--seeds", type=Seed, nargs="+", metavar="SEED", help="by default 0 1 2, and 0 for smoke")
    add("--only", type=str, nargs="+", default=[], metavar="ROW", help="recipes, methods, or rows (gbrbm-egm-bs)")
    add("--device", metavar="DEVICE", type=str | None, help="by default a GPU if there is one")
    add("--jobs", metavar="N", type=Count | None, help="runs at a time, by default 1 on a GPU, or one for each core")
    add("--threads", metavar="N", type=Count, default=1, help="threads of each run")
    add("--time_limit", metavar="S", type=Seconds | None, help="seconds of every run instead of its row's")
    add("--stretch", metavar="F", type=Seconds, default=1.0, help="factor on the seconds of every row")
    add("--n", metavar="N", type=Count, default=EVALUATED, help="draws on either side of an evaluation")
    add("--repeats", metavar="N", type=Count | None, help="evaluations of a run, by default 20, and 2 for smoke")
    add("--out", metavar="DIR", type=str, default="runs/reproduce", help="folder of the runs")
    add("--results", metavar="DIR", type=str | None, help="folder of records, by default results, or OUT/smoke")
    add("--dry_run", action="store_true", help="print what would be run, and what cannot be run")
    return parser


def _names(what: str) -> list[str]:
    return [name for name in TABLES if name not in BY_NAME_ONLY] if what == "all" else [what]


def _from_records(what: str, results: Path, *, docs: Path) -> int:
    """Write figures or the pages of results from records; smoke runs have their own figures and no pages."""
    if not results.is_dir():
        raise ValueError(f"there is no folder {results} with records; run this where results/ is, or give --results")
    smoke = docs != Path("docs")
    if what == "figures":
        from egm.reproduce.figures import draw_all  # noqa: PLC0415  (needs matplotlib)

        for file in draw_all(results, docs / "figures", role="smoke" if smoke else "main"):
            print(f"written to {file}")
        return 0
    if smoke:
        raise ValueError("smoke runs have no pages of results; leave --recipe out")
    from egm.reproduce.pages import write_pages  # noqa: PLC0415
    from egm.reproduce.summary import write_summary  # noqa: PLC0415

    for file in (*write_pages(results, docs), write_summary(results, docs.parent / "README.md")):
        if file is not None:
            print(f"written to {file}")
    return 0
