"""`egm watch`: shows a run of another process from its files."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

from egm.cli.parsing import Parser, Seconds
from egm.config.targets import own_name
from egm.draws.draws import MIN_ESS
from egm.methods.registry import METHODS
from egm.runs.directory import RunDirectory
from egm.train.progress import SHOWN, describe, label
from egm.train.signals import Stopped
from egm.train.watching import read_status

DESCRIPTION = """\
Show the state of a run from its files: progress, losses, ESS, energy calls, curves and problems.

  egm watch runs/a            until the run ends, or Ctrl-C; the run is not affected
  egm watch runs/a --once     the current state

Curves in a browser: train with --tensorboard, then `tensorboard --logdir runs`.
"""
BLOCKS = "▁▂▃▄▅▆▇█"
COUNTS = ("energy_calls", "score_calls")
LABEL, VALUE, CURVE = 14, 10, 60  # widths in characters; the curve has the rest of the line, at most CURVE
WORDS = {"lost": "process gone", "unknown": "unknown status"}


def watch(argv: list[str]) -> int:
    """Run `egm watch` with these arguments."""
    values, _ = watch_parser().read(argv)
    run = RunDirectory(Path(values.run))
    run.read_config()  # raises where there is no run
    try:
        if values.once:
            print(frame(run, get_terminal_size().columns))
        elif sys.stdout.isatty():
            _live(run, values.every)
        else:
            _lines(run, values.every)
    except Stopped as stopped:
        if stopped.signal != signal.SIGINT:
            raise  # only Ctrl-C is the normal end
    return 0


def watch_parser() -> Parser:
    """Return the parser of `egm watch`."""
    parser = Parser("watch", DESCRIPTION, usage="RUN [options]")
    parser.add_argument("run", type=str, help="folder of a run")
    parser.add_argument("--once", action="store_true", help="print one frame and exit")
    parser.add_argument("--every", type=Seconds, default=1.0, help="seconds between two reads of the files")
    return parser


def _live(run: RunDirectory, every: float) -> None:
    from rich.console import Console  # noqa: PLC0415  (only terminals need it)
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            going = read_status(run.folder)["state"] == "running"  # before the frame: the last one is complete
            live.update(Text(frame(run, console.width), no_wrap=True), refresh=True)
            if not going:
                return
            time.sleep(every)


def _lines(run: RunDirectory, every: float) -> None:
    """Print every new line of the log, and the last frame."""
    shown = 0
    while True:
        going = read_status(run.folder)["state"] == "running"
        rows = run.read_metrics()
        for row in rows[min(shown, len(rows)) :]:  # a resumed run drops some lines
            print(f"step {row['step']}  {describe(numbers(row))}", flush=True)
        shown = len(rows)
        if not going:
            print(frame(run, get_terminal_size().columns))
            return
        time.sleep(every)


def frame(run: RunDirectory, width: int) -> str:
    """Return the current state of a run, in lines of at most `width` characters."""
    config, status = run.read_config(), read_status(run.folder)
    rows = [numbers(row) for row in run.read_metrics()]
    state = WORDS.get(status["state"], status["state"])
    lines = [
        f"{state}: {config['target']} by {config['method']} in {run.folder}",
        _progress(config, status, rows, width),
    ]
    last = {name: value for row in rows for name, value in row.items()}
    for name in (*SHOWN, "learning_rate"):
        if name in last:
            series = [row[name] for row in rows if name in row]
            lines.append(f"{label(name):<{LABEL}}{last[name]:>{VALUE}.3g}  {curve(series, width - LABEL - VALUE - 2)}")
    lines += [f"{label(name):<{LABEL}}{last[name]:>{VALUE},.0f}" for name in COUNTS if last.get(name)]
    lines = [line.rstrip()[:width] for line in lines]
    for text in problems(run.folder, config, status, last):
        lines += wrap(f"problem: {text}", max(width, 20), subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def problems(folder: Path, config: dict[str, Any], status: dict[str, Any], last: dict[str, float]) -> list[str]:
    """Return the problems of a run, each with a remedy."""
    found = []
    if status["state"] == "failed":
        found.append(str(status["why"]))
    if status["state"] in ("lost", "stopped"):
        found.append(f"the run ended before its limit; {_continue(folder, config)}")
    if broken := [label(name) for name in SHOWN if name in last and not math.isfinite(last[name])]:
        found.append(f"{' and '.join(broken)} {'is' if len(broken) == 1 else 'are'} not finite; lower --learning_rate")
    if last.get("ess", 1.0) < MIN_ESS and last.get("b", 1.0) >= 1:
        found.append(f"ESS {last['ess']:.2g} is below {MIN_ESS}: weights are uneven; train longer or a larger network")
    return found


def _continue(folder: Path, config: dict[str, Any]) -> str:
    kind = METHODS.get(config["method"])  # a user's method may not be registered here
    if kind is not None and (reason := kind.why_not_resumed(RunDirectory(folder), config)) is not None:
        return reason
    in_python = own_name(config["target"]) is not None
    return (
        f"continue with: {f'egm.resume({str(folder)!r}, target=...)' if in_python else f'egm train --resume {folder}'}"
    )


def _progress(config: dict[str, Any], status: dict[str, Any], rows: list[dict[str, float]], width: int) -> str:
    """Return a bar, the share, steps and seconds of a run."""
    if not rows:
        return "no line in the log yet"
    step, seconds, done = int(rows[-1]["step"]), rows[-1]["seconds"], status["done"]
    limit = f" of {config['steps']}" if config["steps"] else ""
    text = f"step {step}{limit}, {_clock(seconds)}"
    if done is None:
        return text
    if status["state"] == "running" and 0 < done < 1:
        text += f", {_clock(seconds / done * (1 - done))} left"
    room = min(30, width - len(text) - 8)
    filled = round(done * room) if room > 4 else 0
    bar = f"{'█' * filled}{'░' * (room - filled)} " if room > 4 else ""
    return f"{bar}{done:.0%}  {text}"


def curve(values: Sequence[float], width: int) -> str:
    """Return a line of blocks, each for the mean of its share of the values; empty if fewer than two blocks fit.

    >>> curve([0.0, 1.0, 2.0, 3.0], 40)
    '▁▃▆█'
    >>> curve(range(100), 10)
    '▁▂▃▃▄▅▆▆▇█'
    """
    width = min(width, CURVE, len(values))
    if width < 2:
        return ""
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    parts = [values[start:end] for start, end in pairwise(edges)]
    means = [sum(part) / len(part) for part in parts]
    finite = [mean for mean in means if math.isfinite(mean)]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    heights = [round((mean - low) / span * (len(BLOCKS) - 1)) if span and math.isfinite(mean) else 0 for mean in means]
    return "".join(BLOCKS[height] if math.isfinite(mean) else " " for height, mean in zip(heights, means, strict=True))


def numbers(row: dict[str, str]) -> dict[str, float]:
    """Return a line of metrics.csv without its empty cells."""
    return {name: float(text) for name, text in row.items() if text}


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
