"""Stopping a run from outside: SIGINT (Ctrl-C) and SIGTERM as one exception, which the trainer answers by saving.

`egm.fit` returns what it has on a plain `KeyboardInterrupt`; a `Stopped` goes through it, so that a command can exit
with the code that shells expect, 128 + the signal's number.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """A signal asked this process to stop.

    Attributes:
        signal: its number.
        saved: whether a run was saved before this was passed on.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal, self.saved = number, False


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise `Stopped` on SIGINT and SIGTERM while in this context; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Hold an interrupt back until the function that this gives is called, or the end: a step is never torn apart.

    A second interrupt goes through at once. Only handlers that someone has set are held back, in the main thread.
    """
    pending: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Callable[[int, FrameType | None], object]] = {}

    def hold(number: int, frame: FrameType | None) -> None:
        if pending:
            handlers[number](number, frame)
        else:
            pending.append((number, frame))

    def deliver() -> None:
        if pending:
            number, frame = pending.pop()
            handlers[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, hold)
    try:
        yield deliver
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    deliver()
