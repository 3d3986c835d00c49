"""Draws of one size, again and again: on a GPU the simulation is recorded and replayed (`egm.simulation.capture`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from egm.simulation.capture import CapturedStep
from egm.simulation.simulate import Simulation

KEPT = 2  # recordings: draws come in batches of one size and a remainder; each holds memory of its own


class RecordedDraws:
    """The last few kinds of simulations of a sampler, and the generator that all of them draw from."""

    def __init__(self) -> None:
        self._steps: dict[Hashable, CapturedStep] = {}
        self._generator: torch.Generator | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordedDraws, ()  # copies begin without: a recording is of the original's networks

    def generator(self, device: torch.device, seed: int) -> torch.Generator:
        """A generator with that seed; on a GPU always the same object, which a recording has to know."""
        if device.type != "cuda":
            return torch.Generator(device).manual_seed(seed)
        if self._generator is None or self._generator.device != device:
            self._generator, self._steps = torch.Generator(device), {}
        return self._generator.manual_seed(seed)

    def __call__(self, key: Hashable, draw: Callable[[], Simulation], generator: torch.Generator) -> Simulation:
        """draw(), from some time on by replaying it.

        Args:
            key: stands for everything that `draw` depends on: what has the same key is not called again.
            draw: simulates with random numbers of `generator`.
            generator: the one that `generator` gave.
        """
        step = self._steps.pop(key, None)
        if step is None:
            step = CapturedStep(lambda: draw().tensors(), generator, None, what="the simulation")
        self._steps[key] = step  # the latest is the last
        while len(self._steps) > KEPT:
            self._steps.pop(next(iter(self._steps)))
        return Simulation.of({name: x.clone() for name, x in step(key).items()})
