"""Turns SIGINT (Ctrl-C) and SIGTERM into one exception, on which the trainer saves the run.

`egm.fit` returns the sampler so far on a plain `KeyboardInterrupt`, but re-raises `Stopped`, so that a command can exit
with the code that shells expect, 128 + the signal's number.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """Interrupt by a signal that asks this process to stop.

    Attributes:
        signal: number of the signal.
        saved: whether a run was saved before the exception was passed on.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal, self.saved = number, False


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raises `Stopped` on SIGINT and SIGTERM while in this context; does nothing outside the main thread."""
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
    """Delays an interrupt until the yielded function is called or the context ends, so that no step is interrupted.

    A second interrupt is delivered at once. Only handlers that are Python functions are delayed, in the main thread.
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
