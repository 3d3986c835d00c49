"""Files by which a run can be watched from outside: `status.json`, and event files for TensorBoard.

status.json     state ("running", "finished", "stopped" or "failed", and why), the share of training that is done, and
                the process that works on it; written when something changes, at most once a second
tensorboard/    the lines of metrics.csv as curves over steps, one event file for each start of the run

Both are updated when a line of the log is written (`Progress.update`), so the loop does not wait for them.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from egm.runs.directory import RunDirectory
from egm.train.progress import Progress, Silent
from egm.util.extras import needed
from egm.util.files import write_json

STATUS, EVENTS = "status.json", "tensorboard"
WRITE_EVERY = 1.0  # seconds between two updates of a running run
QUIET = 120.0  # seconds without an update after which a run on another machine counts as lost


def watched(progress: Progress, run: RunDirectory | None, *, tensorboard: bool) -> Progress:
    """Returns a progress that also writes the files of this module into the run's folder, if there is one."""
    if run is None:
        if tensorboard:
            raise ValueError("tensorboard writes event files into the folder of a run; give that folder, out=...")
        return progress
    return Several([progress, Status(run.folder), *([Events(run)] if tensorboard else [])])


class Several(Silent):
    """Progress that passes everything on to several others."""

    def __init__(self, parts: Sequence[Progress]) -> None:
        self.parts = parts
        self._entered = ExitStack()

    def __enter__(self) -> Several:
        with ExitStack() as entered:
            for part in self.parts:
                entered.enter_context(part)
            self._entered = entered.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.__exit__(*error)

    def update(self, done: float, row: dict[str, Any]) -> None:
        """Passes the line on."""
        for part in self.parts:
            part.update(done, row)

    def say(self, text: str) -> None:
        """Passes the remark on."""
        for part in self.parts:
            part.say(text)


class Status(Silent):
    """Progress that keeps `status.json` up to date."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / STATUS
        self._done, self._written = 0.0, -WRITE_EVERY

    def __enter__(self) -> Status:
        self._done = read_status(self.file.parent)["done"] or 0.0  # nonzero if the run is continued
        self._write("running")
        return self

    def __exit__(self, *error: object) -> None:
        raised = error[1] if len(error) > 1 else None
        if raised is None:
            self._write("finished")
        elif isinstance(raised, KeyboardInterrupt):
            self._write("stopped")
        else:
            self._write("failed", why=f"{type(raised).__name__}: {raised}")

    def update(self, done: float, row: dict[str, Any]) -> None:
        """Writes the share of training that is done, at most every `WRITE_EVERY` seconds."""
        self._done = done
        if time.monotonic() - self._written >= WRITE_EVERY:
            self._write("running")

    def _write(self, state: str, *, why: str | None = None) -> None:
        self._written = time.monotonic()
        process = {"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}
        write_json(self.file, {"state": state, "why": why, "done": min(1.0, self._done), **process}, sync=False)


def read_status(folder: Path) -> dict[str, Any]:
    """Reads `status.json`; the state is "lost" if no process runs a "running" run, "unknown" without the file."""
    file = folder / STATUS
    if not file.is_file():
        return {"state": "unknown", "why": None, "done": None}
    status = json.loads(file.read_text(encoding="utf-8"))
    return status | {"state": "lost"} if status["state"] == "running" and not _alive(status) else status


def _alive(status: dict[str, Any]) -> bool:
    if status["host"] != socket.gethostname():
        return time.time() - status["time"] < QUIET
    try:
        os.kill(status["pid"], 0)  # signal 0 only tests whether the process exists
    except ProcessLookupError:
        return False
    except PermissionError:  # the process exists, and belongs to another user
        return True
    return True


class Events(Silent):
    """Progress that writes the log as event files.

    A continued run hides the points after its last checkpoint (TensorBoard's purge step) and extends the same curves;
    if it had no event files, all lines of its log are written.
    """

    def __init__(self, run: RunDirectory) -> None:
        needed("tensorboard", what=f"writing event files into {run.folder / EVENTS}", extra="log")
        self.run, self._writer = run, None

    def __enter__(self) -> Events:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (needs tensorboard)

        folder, rows = self.run.folder / EVENTS, self.run.read_metrics()
        again = folder.is_dir() and any(folder.iterdir())
        first = int(rows[-1]["step"]) if again and rows else 0
        self._writer = SummaryWriter(str(folder), purge_step=first if again else None)
        for row in rows:
            if int(row["step"]) >= first:
                self.update(0.0, {name: float(text) for name, text in row.items() if text})
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def update(self, done: float, row: dict[str, Any]) -> None:
        """Adds one point to each curve."""
        if self._writer is None:
            return
        for name, value in row.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, int(row["step"]))
        self._writer.flush()


def has_events(run: RunDirectory) -> bool:
    """Returns whether a run has event files."""
    return (run.folder / EVENTS).is_dir()
