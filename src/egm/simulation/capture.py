"""CUDA graphs of a gradient step or a simulation: one call launches thousands of small GPU kernels.

The first calls run the step eagerly. Then the step is recorded as a CUDA graph, and later calls replay the graph.
Everything that may change what the step does (the size of the buffer, whether averaging has begun, which times are
open) is part of a key. Under a new key the step runs eagerly once, because new GPU kernels cannot be loaded while
recording, and is then recorded again. A step that cannot be recorded (for example because the energy waits for the
device) keeps running eagerly, after one warning.
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
    """A callable that runs `step`; on a GPU, after a warm-up, it replays a CUDA graph of the step.

    Args:
        step: runs one step and returns the values to log; it must draw random numbers from `generator` alone.
        generator: source of random numbers; its device is the device of the step.
        target: its call counters grow with every replay, as if the step had run; None if the step calls no target.
        what: name of the step in warnings.
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
        self._key: Hashable = None  # of the recorded graph
        self._last: Hashable = None  # of the last call
        self._graph: torch.cuda.CUDAGraph | None = None
        self._values: dict[str, Tensor] = {}
        self._cost = 0, 0  # energies and gradients of one replay

    def __call__(self, key: Hashable) -> dict[str, Tensor]:
        """Runs one step; the next step overwrites the returned values."""
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
        except Exception as error:  # after any error, the eager step still works
            warnings.warn(
                f"{self._what} could not be recorded as a CUDA graph and runs more slowly without one ({error})",
                RuntimeWarning,
                stacklevel=2,
            )
            self._enabled = False
            torch.cuda.synchronize()
            for generator, spare in zip(generators, spares, strict=True):
                generator.graphsafe_set_state(spare)  # their old states may belong to the aborted recording
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
    """Suspends garbage collection, because recording fails if another CUDA graph is freed meanwhile."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
