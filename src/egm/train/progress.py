"""Progress of a run: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

from egm.metrics import metrics

SHOWN = ("sampler_loss", "energy_loss", "mean_energy", "b", "ess", "e_w1", "e_w1_floor")
LABELS = {**metrics.LABELS, "e_w1_floor": "floor", "ess": "ESS", "sampler_loss": "loss"}
LINE_EVERY = 5.0  # seconds between plain lines


class Progress(Protocol):
    """Display of a run's progress; a context manager."""

    def __enter__(self) -> Progress: ...

    def __exit__(self, *error: object) -> None: ...

    def update(self, done: float, row: dict[str, Any]) -> None:
        """Shows the share of training that is done, and the newest line of the log."""
        ...

    def say(self, text: str) -> None:
        """Shows a remark."""
        ...


def make_progress(wanted: bool) -> Progress:
    """Returns a bar if stderr is a terminal and rich is installed, otherwise plain lines; silent unless `wanted`."""
    if not wanted:
        return Silent()
    if sys.stderr.isatty():
        try:
            return Bar()
        except ImportError:
            return Lines()
    return Lines()


class Silent:
    """Progress that shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def update(self, done: float, row: dict[str, Any]) -> None:
        """Does nothing."""

    def say(self, text: str) -> None:
        """Does nothing."""


class Lines(Silent):
    """Plain lines on stderr, every few seconds and for every evaluation."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._began: tuple[float, float] | None = None  # time and share at the first call: a run may be resumed

    def update(self, done: float, row: dict[str, Any]) -> None:
        """Prints the line if it is due."""
        now = time.monotonic()
        self._began = began, first = self._began or (now, done)
        if now - self._last < LINE_EVERY and "e_w1" not in row and done < 1:
            return
        self._last = now
        left = f", {(now - began) / (done - first) * (1 - done):.0f} s left" if first < done < 1 else ""
        print(f"step {row['step']} ({done:.0%}{left})  {describe(row)}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Prints the text."""
        print(text, file=sys.stderr, flush=True)


class Bar(Silent):
    """A progress bar by rich."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415  (the library trains without rich)
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415

        columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task("starting", total=1.0)
        self._values: dict[str, Any] = {}

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(self, done: float, row: dict[str, Any]) -> None:
        """Moves the bar."""
        self._values |= row  # evaluations are rarer than steps: keep showing the last one
        self._bar.update(self._task, completed=done, description=describe(self._values))

    def say(self, text: str) -> None:
        """Prints the text above the bar."""
        self._bar.console.print(text, markup=False)


def describe(row: dict[str, Any]) -> str:
    """Returns the shown values as text: losses or mean energy, the exponent b, ESS, E-W1 and its floor."""
    return "  ".join(f"{label(name)} {row[name]:.3g}" for name in SHOWN if name in row)


def label(name: str) -> str:
    """Returns the displayed name of a column of the log."""
    return LABELS.get(name, name.replace("_", " "))
