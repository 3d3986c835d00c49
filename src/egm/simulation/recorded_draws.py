"""Repeated simulations of one size: on a GPU, replayed as CUDA graphs (`egm.simulation.capture`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from egm.simulation.capture import CapturedStep
from egm.simulation.simulate import Simulation

KEPT = 2  # CUDA graphs: draws come in batches of one size and a remainder; each graph holds its own memory


class RecordedDraws:
    """The CUDA graphs of a sampler's latest kinds of simulations, and the random generator that they share."""

    def __init__(self) -> None:
        self._steps: dict[Hashable, CapturedStep] = {}
        self._generator: torch.Generator | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordedDraws, ()  # copies start empty: a CUDA graph uses the original's networks

    def generator(self, device: torch.device, seed: int) -> torch.Generator:
        """Returns a generator with that seed; on a GPU always the same object, which is registered with the graphs."""
        if device.type != "cuda":
            return torch.Generator(device).manual_seed(seed)
        if self._generator is None or self._generator.device != device:
            self._generator, self._steps = torch.Generator(device), {}
        return self._generator.manual_seed(seed)

    def __call__(self, key: Hashable, draw: Callable[[], Simulation], generator: torch.Generator) -> Simulation:
        """Returns draw(); on a GPU, after a warm-up, replays its CUDA graph.

        Args:
            key: identifies everything that `draw` depends on; under a known key the recorded `draw` is used.
            draw: runs a simulation with random numbers from `generator`.
            generator: the result of the method `generator`.
        """
        step = self._steps.pop(key, None)
        if step is None:
            step = CapturedStep(lambda: draw().tensors(), generator, None, what="the simulation")
        self._steps[key] = step  # the latest is the last
        while len(self._steps) > KEPT:
            self._steps.pop(next(iter(self._steps)))
        return Simulation.of({name: x.clone() for name, x in step(key).items()})
