"""A gradient step or a simulation as one CUDA graph: thousands of small kernels are launched by one call.

The first calls run as they are. Then the step is recorded, and from there on replayed; whatever may change what the
step does (the size of the buffer, whether averaging has begun, which times are open) is part of a key, and under a new
key it runs once as it is, since kernels that it has not met yet could not be loaded in a recording, and is recorded
anew. A step that cannot be recorded (an energy that waits for the device, say) goes on as it is, with one warning.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from egm.targets.base import Target

WARM_UP = 3  # calls before recording: optimisers and libraries allocate their state


class CapturedStep:
    """Calls `step`, on a GPU by replaying a recording of it.

    Args:
        step: does one step and returns what to log; it must draw random numbers from `generator` alone.
        generator: decides the device.
        target: its counts of calls grow with every replay, as if the step had run; None if it calls none.
        what: how a warning calls it.
    """

    def __init__(
        self,
        step: Callable[[], dict[str, Tensor]],
        generator: torch.Generator,
        target: Target | None,
        *,
        what: str = "the training step",
    ) -> None:
        self._step, self._generator, self._target, self._what = step, generator, target, what
        self._enabled = generator.device.type == "cuda"
        self._calls = 0
        self._key: Hashable = None  # of the recording
        self._last: Hashable = None  # of the last call
        self._graph: torch.cuda.CUDAGraph | None = None
        self._values: dict[str, Tensor] = {}
        self._cost = 0, 0  # energies and gradients of one replay

    def __call__(self, key: Hashable) -> dict[str, Tensor]:
        """One step; the values returned are overwritten by the next."""
        self._calls += 1
        new, self._last = key != self._last, key
        if not self._enabled or self._calls <= WARM_UP or new:
            return self._step()
        if self._graph is None or key != self._key:
            self._record(key)
        if self._graph is None:
            return self._step()
        self._graph.replay()
        if self._target is not None:
            self._target.energy_calls += self._cost[0]
            self._target.score_calls += self._cost[1]
        return self._values

    def _record(self, key: Hashable) -> None:
        self._graph, self._values = None, {}
        graph, before = torch.cuda.CUDAGraph(), self._counts()
        graph.register_generator_state(self._generator)
        generators = (self._generator, torch.cuda.default_generators[self._generator.device.index])
        spares = [generator.clone_state() for generator in generators]
        try:
            with _no_collection(), torch.cuda.graph(graph):
                values = self._step()
        except Exception as error:  # whatever went wrong, the plain step still works
            warnings.warn(
                f"{self._what} could not be recorded as a CUDA graph and runs more slowly without ({error})",
                RuntimeWarning,
                stacklevel=2,
            )
            self._enabled = False
            torch.cuda.synchronize()
            for generator, spare in zip(generators, spares, strict=True):
                generator.graphsafe_set_state(spare)  # theirs may still be in the middle of the recording
        else:
            self._graph, self._key, self._values = graph, key, values
        if self._target is not None:
            energies, scores = self._counts()
            self._cost = energies - before[0], scores - before[1]
            self._target.energy_calls, self._target.score_calls = before

    def _counts(self) -> tuple[int, int]:
        return (0, 0) if self._target is None else (self._target.energy_calls, self._target.score_calls)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage waits: a recording breaks off if another, dead one is freed in the middle of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
