"""Runs many processes on one device: a given number at a time, each with a log, and stops them together.

Each process has its own process group, so that Ctrl-C reaches only the parent. The parent passes one interrupt on, and
runs of `egm train` save themselves; a second Ctrl-C kills them. The processes share a lock in the folder of the runs:
as long as one of them lives, even if the parent was killed, no other `egm reproduce` continues their runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from egm.train.signals import held_back

POLL = 0.1  # seconds
GRACE = 60.0  # seconds that processes have to save themselves


@dataclass(frozen=True)
class Job:
    """A command with a name and a file for its output."""

    name: str
    command: Sequence[str]
    log: Path


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Lock a folder; pass the yielded descriptor on to processes that work in it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"another `egm reproduce`, or a run that one started, is at work in {folder}; wait for it, or choose"
                " another folder with --out"
            ) from None
        yield descriptor
    finally:
        os.close(descriptor)


def run_jobs(
    jobs: Sequence[Job],
    *,
    at_once: int,
    threads: int,
    lock: int,
    ended: Callable[[Job, int, float], None],
) -> None:
    """Run every job and call `ended(job, exit code, seconds)` after each; an interrupt stops the running jobs."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    waiting, running = deque(jobs), dict[subprocess.Popen[bytes], tuple[Job, float]]()
    with held_back() as deliver_interrupt:
        try:
            while waiting or running:
                deliver_interrupt()
                while waiting and len(running) < at_once:
                    job = waiting.popleft()
                    running[_start(job, environment, lock)] = job, time.monotonic()
                time.sleep(POLL)
                for process in [process for process in running if process.poll() is not None]:
                    job, began = running.pop(process)
                    ended(job, process.returncode, time.monotonic() - began)
        finally:
            _stop(list(running))


def _start(job: Job, environment: Mapping[str, str], lock: int) -> subprocess.Popen[bytes]:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        return subprocess.Popen(
            job.command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, pass_fds=(lock,),
        )  # fmt: skip


def _stop(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupt every process, wait until it has saved, and kill it after `GRACE` seconds."""
    try:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()


def last_lines(log: Path, n: int = 5) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-n:]) if log.is_file() else ""
