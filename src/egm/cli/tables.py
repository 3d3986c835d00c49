"""Prints tables: with rich on a terminal, as aligned plain text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to stdout."""
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415  (only terminals need it)
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))  # Text, so that brackets are not read as markup
        Console().print(table)
        return
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    print(title)
    for row in (columns, *rows):
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()


def show_metrics(record: Mapping[str, Any], published: Mapping[str, Sequence[float | None]]) -> None:
    """Print the scores of an evaluation: value ± spread over repeats, floor, and the paper's number if there is one."""
    weighted = record["resampled"] is not None
    paper = "paper (egm-bs)" if record["method"] == "egm-sp" else "paper"
    columns = ["metric", "value", *(["resampled"] if weighted else []), "floor", *([paper] if published else [])]
    rows = []
    for name, score in record["metrics"].items():
        row = [name, _with_spread(score["mean"], score["std"])]
        if weighted:
            row.append(_with_spread(record["resampled"][name]["mean"], record["resampled"][name]["std"]))
        row.append(f"{score['floor']:.3f}")
        rows.append([*row, _with_spread(*published[name]) if name in published else ""] if published else row)
    title = f"{record['target']} by {record['method']}: {record['repeats']} × {record['n']} draws on either side"
    show(title, columns, rows)
    if weighted:
        bounds = ", ".join(f"{x.upper()} {record[x]:.3f}" for x in ("elbo", "eubo") if record[x] is not None)
        exact = "" if record["log_z_exact"] is None else f" (exactly {record['log_z_exact']:.4f})"
        print(f"ESS {record['ess']:.3f}, log Z {record['log_z']:.4f} ± {record['log_z_stderr']:.4f}{exact}, {bounds}")


def _with_spread(mean: float | None, std: float | None) -> str:
    return f"{mean:.3f}" + (f" ± {std:.3f}" if std is not None else "")
