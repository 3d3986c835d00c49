"""Writes the pages of results: `docs/results.md` (E-W1), and one in `docs/results/` for each other metric or benchmark.

The pages depend on `results/*.json` and the tables' definitions alone, not on what this version of egm can run. Each
page has two lists of its runs, `NAME.csv` and `NAME.html`. `egm reproduce page` writes all files, and a test checks
that they are up to date.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from egm.reproduce.comparison import QUANTITIES
from egm.reproduce.definitions import TABLES, Kind, table
from egm.reproduce.figures import CAPTIONS
from egm.reproduce.footnotes import commands, footnotes
from egm.reproduce.formats import bullets, markdown, paragraph
from egm.reproduce.layout import grids
from egm.reproduce.measurements import MEASUREMENTS, Measurement, Records, read
from egm.reproduce.measurements import rows_of as listed_rows
from egm.reproduce.run_list import Rows, csv_text, html_page, rows_of
from egm.reproduce.shown import Shown
from egm.util.files import replacing

KINDS: tuple[Kind, ...] = ("fast", "paper")
FOLDER, MAIN = "results", "results.md"
GENERATED = "<!-- Written by `egm reproduce page` from results/*.json. Do not edit: change records or definitions. -->"
READING = """\
This page compares the methods by **E-W1**, the Wasserstein distance of order 1 between the energies of draws and the
energies of reference draws. Smaller is better. `egm reproduce page` writes this page from the files of `results/`, and
a test checks that it is up to date. [reproducing.md](reproducing.md) explains how to repeat the runs.

| mark | meaning |
|---|---|
| ✓ | **At the floor** with every seed: the distance is at most 1.25 times the floor. ✓ 2/3: with two seeds of three. |
| ✗ | **Worse than the published number** by more than two of its standard deviations, or by more than its rounding. |

- The **floor** is the distance between two sets of reference draws. No sampler is below it on average. Reference draws
  are exact, except for particles and for lattices above 12 × 12, where they come from long Markov chains.
- A **cell** is the mean ± standard deviation over seeds, and a cell without ± has one seed. The value of a seed is the
  mean of 20 evaluations, each with 2000 fresh draws and 2000 fresh reference draws. A footnote names the runs with
  fewer evaluations; they have no ✓. An empty cell has no run.
- **(n = 784, floor 0.575)** marks chains that visited fewer than 2000 states, with the smallest number of states and
  the floor for that number. This floor is higher than the floor of the row, so the chains have no ✓ and are compared
  with no other method.
- Numbers **in the paper** and **published** numbers are by others. EGM-SP is a method of this library, and the paper
  has no number for it: its ✗ is relative to EGM-BS in the paper.
- **Methods** have the names of `egm train --method`. They run with the recipes of this library, which take minutes of
  a GPU; "(paper's settings)" marks runs with the recipes of the paper. Markov chains are 4 chains of 6000 steps, as in
  the paper. Chains "at equal calls" make as many energy calls as `egm-sp` made with the same seed. Gradient calls
  are not counted there: `tempering` makes gradient calls, and `egm-sp` does not.
- **Resampled** draws are chosen by their weights from five times as many draws.
- A **baseline** is a Markov chain, or a neural sampler other than EGM. A footnote names every method of EGM that is not
  at the floor while a baseline is better. Differences below the floor do not count.
- Ablations and runs about cost have their own tables. Smoke runs are not shown.
"""
OTHERS = """\
[How to read the tables](../results.md) explains the columns and the marks. That page also has notes on the
runs, under the same headings.
"""
LISTS = """\
[{stem}.csv]({folder}{stem}.csv) and [{stem}.html]({folder}{stem}.html) list every run of this page: value, floor,
steps, energy and gradient calls, seconds of training, hardware, versions, commit and command. A + after a commit marks
changes that are part of a later commit. "Runs at a time" is the number of runs that shared the device; with more runs,
each makes fewer steps in its seconds. The commands train, and `egm evaluate RUN --n 2000 --repeats 20` evaluates as
`egm reproduce` does.
"""


@dataclass(frozen=True)
class Page:
    """A page about runs.

    Attributes:
        stem: name of its files without the suffix.
        title, about: texts at the top.
        metrics: metrics of its tables.
    """

    stem: str
    title: str
    about: str
    metrics: tuple[str, ...]


MAIN_PAGE = Page("e_w1", "Results", READING, ("e_w1",))
PAGES = (
    Page(
        "m_w1",
        "M-W1: magnetisation",
        "The Wasserstein distance of order 1 between the magnetisations of draws and of reference draws, for lattices."
        " It detects a sampler that prefers one sign, which energies do not show. Smaller is better.",
        ("m_w1",),
    ),
    Page(
        "x_w2",
        "x-W2: states",
        "The Wasserstein distance of order 2 between draws and reference draws, for targets with real variables."
        " Smaller is better.",
        ("x_w2",),
    ),
    Page(
        "e_w2",
        "E-W2: energies, order 2",
        "The Wasserstein distance of order 2 between the energies of draws and of reference draws, which is the"
        " published metric for particles. Smaller is better.",
        ("e_w2",),
    ),
    Page(
        "ess",
        "Effective sample size",
        "The effective share of weighted draws, from 0 to 1. Larger is better. Markov chains have no weights.",
        ("ess",),
    ),
    Page(
        "log_z",
        "Error of log Z",
        "The absolute error of log Z where the exact value is known, as a mean over seeds. Smaller is better.",
        ("log_z_error",),
    ),
    Page(
        "modes",
        "Modes",
        "The number of modes that 2000 draws visit; for each seed, the smallest number over its evaluations. Larger is"
        " better.",
        ("modes",),
    ),
    Page(
        "cost",
        "Cost of training",
        "The cost of the runs. Here ✗ means a higher cost than published; machines differ.",
        ("ms_per_step", "energy_calls", "score_calls", "peak_memory_gib"),
    ),
)


def write_pages(results: Path, docs: Path) -> list[Path]:
    """Write every page with its lists; return the files."""
    written = []
    for name, text in pages(results, docs).items():
        with replacing(docs / name) as stream:
            stream.write(text.encode())
        written.append(docs / name)
    return written


def pages(results: Path, docs: Path) -> dict[str, str]:
    """Return the texts of all files by their path in `docs`; the pages show the figures of `docs/figures`."""
    tables = [Shown(table(name), KINDS, results) for name in TABLES]
    figures = {file.stem for file in (docs / "figures").glob("*.svg")}
    valued = {line.metric for each in tables for line in each.lines if line.value is not None}
    shown = [page for page in PAGES if valued & {*page.metrics}]
    files: dict[str, str] = {}
    for page in (MAIN_PAGE, *shown):
        rows = rows_of([each for each in tables if any(map(each.of, page.metrics))], page.metrics)
        files |= _lists(page.stem, page.title if page != MAIN_PAGE else "E-W1: energies", rows)
    measured = {name: read(file) for name in MEASUREMENTS if (file := results / f"{name}.json").is_file()}
    for name, records in measured.items():
        files |= _lists(name, MEASUREMENTS[name].title, listed_rows(MEASUREMENTS[name], records))
        files[f"{FOLDER}/{name}.md"] = _joined(_benchmark(name, MEASUREMENTS[name], records))
    for page in shown:
        files[f"{FOLDER}/{page.stem}.md"] = _joined(_page(page, tables, figures))
    titles = {page.stem: page.title for page in shown} | {name: MEASUREMENTS[name].title for name in measured}
    return {MAIN: _joined(_main(tables, figures, titles)), **files}


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join([GENERATED, *(part.rstrip() for part in parts)]) + "\n"


def _main(tables: Sequence[Shown], figures: set[str], titles: dict[str, str]) -> list[str]:
    others = [f"[{title}]({FOLDER}/{stem}.md)" for stem, title in titles.items()]
    parts = [f"# {MAIN_PAGE.title}", MAIN_PAGE.about, "Other metrics, costs and benchmarks:", bullets(others)]
    parts.append(LISTS.format(stem=MAIN_PAGE.stem, folder=f"{FOLDER}/"))
    for shown in tables:
        parts += _section(shown, MAIN_PAGE.metrics, figures, prefix="")
    return parts


def _page(page: Page, tables: Sequence[Shown], figures: set[str]) -> list[str]:
    parts = [f"# {page.title}", paragraph(page.about), OTHERS, LISTS.format(stem=page.stem, folder="")]
    for shown in tables:
        parts += _section(shown, page.metrics, figures, prefix="../")
    return parts


def _section(shown: Shown, metrics: Sequence[str], figures: set[str], *, prefix: str) -> list[str]:
    """Return the tables of some metrics of one definition, each with its figures above and its sentences below."""
    several = len(metrics) > 1
    found = [part for each in metrics for part in _metric(shown, each, figures, prefix=prefix, named=several)]
    if not found:
        return []
    about = [paragraph(shown.table.about)] if shown.table.about else []
    return [f"## {shown.table.title}", *about, *found, f"Made by {commands(shown.table)}."]


def _metric(shown: Shown, metric: str, figures: set[str], *, prefix: str, named: bool) -> list[str]:
    made = grids(shown, metric)
    if not made:
        return []
    parts = [f"### {QUANTITIES[metric].label}"] if named else []
    for name in (name for name in shown.table.figures.get(metric, ()) if name in figures):
        parts += [f"![{name}]({prefix}figures/{name}.svg)", paragraph(CAPTIONS.get(name, name))]
    notes = footnotes(shown, metric)
    return [*parts, *map(markdown, made), *([bullets(notes)] if notes else [])]


def _benchmark(name: str, measurement: Measurement, records: Records) -> list[str]:
    lists = f"[{name}.csv]({name}.csv) and [{name}.html]({name}.html) hold everything that was recorded."
    tables = map(markdown, measurement.grids(records))
    figure = [f"![{name}](../{measurement.figure})"] if measurement.figure else []
    made = f"Made by `{measurement.command}`."
    return [f"# {measurement.title}", paragraph(measurement.text), *figure, *tables, lists, made]


def _lists(stem: str, title: str, rows: Rows) -> dict[str, str]:
    return {f"{FOLDER}/{stem}.csv": csv_text(rows), f"{FOLDER}/{stem}.html": html_page(f"{title}: list of runs", rows)}
