"""Formats numbers for print, and tables and paragraphs as Markdown."""

from __future__ import annotations

import re
import textwrap

from egm.report.markup import Grid, count
from egm.reproduce.comparison import QUANTITIES, Spread
from egm.reproduce.definitions import Published

SMALL = 0.1  # smaller distances have one more decimal
WIDTH = 120
SCRATCH = re.compile(r"(?<![\w.])(?:/|~/|\.scratch/|\.\./)(?:[^\s/]+/)*(?=[^\s/])")  # a folder outside of the project


def number_text(value: float | None, metric: str) -> str:
    """Return a value of a metric as text; empty for None."""
    if value is None:
        return ""
    unit = QUANTITIES[metric].unit
    return count(value) if unit == "count" else f"{value:.{_decimals(value, unit)}f}"


def _decimals(value: float, unit: str) -> int:
    return 4 if unit == "share" or abs(value) < SMALL else 3


def spread_text(spread: Spread | None, metric: str) -> str:
    """Return mean ± standard deviation over seeds, with the same number of decimals."""
    if spread is None:
        return ""
    text, unit = number_text(spread.mean, metric), QUANTITIES[metric].unit
    if spread.std is None:
        return text
    deviation = count(spread.std) if unit == "count" else f"{spread.std:.{_decimals(spread.mean, unit)}f}"
    return f"{text} ± {deviation}"


def stated_text(published: Published | None, metric: str, *, named: bool = True) -> str:
    """Return a published number, with its method if it is not the row's own."""
    if published is None:
        return ""
    spread = "" if published.std is None else f" ± {_as_printed(published.std, metric)}"
    return _as_printed(published.mean, metric) + spread + (f" ({published.of})" if published.of and named else "")


def _as_printed(value: float, metric: str) -> str:
    return count(value) if QUANTITIES[metric].unit == "count" else f"{value:.{Published(value, None).decimals}f}"


def commit_text(commit: str | None) -> str:
    """Return seven digits of a commit, and the "+" of a tree with changes."""
    return "" if commit is None else commit[:7] + "+" * commit.endswith("+")


def command_text(command: str) -> str:
    """Return a recorded command, with `runs/` instead of a folder outside of the project.

    >>> command_text("egm train --recipe fast/gbrbm --out /tmp/a/b/gbrbm-0 --seed 0")
    'egm train --recipe fast/gbrbm --out runs/gbrbm-0 --seed 0'
    """
    return SCRATCH.sub("runs/", command)


def listed(words: list[str]) -> str:
    """Join words as in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def markdown(grid: Grid) -> str:
    """Return a Markdown table."""
    columns, rows = grid
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def paragraph(text: str) -> str:
    """Return a paragraph of Markdown in lines of moderate length."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def bullets(sentences: list[str]) -> str:
    """Return a list of Markdown in lines of moderate length."""
    options = {"initial_indent": "- ", "subsequent_indent": "  ", "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(textwrap.fill(text, WIDTH, **options) for text in sentences)
