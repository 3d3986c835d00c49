"""`egm report`: writes one HTML file about runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from egm.cli.own_target import import_target
from egm.cli.parsing import Count, Parser, Seed, documented
from egm.report.write import SEED, N, write_report


def report_parser() -> Parser:
    """Return the parser of `egm report`."""
    parser = Parser(
        "report",
        "Write one HTML file about a run, or about several side by side: a verdict, metrics with their\n"
        "floors, histograms, samples, weights, training, cost and settings. The file needs no network.\n\n"
        "  egm report runs/a                                  writes runs/a/report.html\n"
        "  egm report runs/a runs/b --out compared.html\n"
        "  egm report runs/c --target my_module:make_target   a run on your own energy\n",
        usage="RUN... [options]",
    )
    told = documented(write_report)
    parser.add_argument("runs", type=str, nargs="+", metavar="RUN", help="folders of runs")
    parser.add_argument("--out", type=str | None, help=told["out"])
    parser.add_argument("--n", type=Count, default=N, help=told["n"])
    parser.add_argument("--seed", type=Seed, default=SEED, help=told["seed"])
    parser.add_argument("--target", type=str | None, help="module:function, for runs on your own energy")
    parser.add_argument("--reference", type=bool, default=True, help=told["reference"])
    parser.add_argument("--device", type=str, default="cpu", help="where to draw, cpu or cuda")
    return parser


def report(argv: list[str]) -> int:
    """Run `egm report` with these arguments."""
    values, _ = report_parser().read(argv)
    target = None if values.target is None else import_target(values.target)
    file = write_report(
        values.runs, values.out, target=target, n=values.n, seed=values.seed, device=values.device,
        reference=values.reference, say=_with_seconds(),
    )  # fmt: skip
    print(f"written to {file} ({file.stat().st_size / 1e6:.1f} MB); open it in a browser")
    return 0


def _with_seconds() -> Callable[[str], None]:
    """Return a function that prints lines to stderr, with the seconds since the start."""
    began = time.monotonic()
    return lambda text: print(f"[{time.monotonic() - began:5.1f} s] {text}", file=sys.stderr, flush=True)
