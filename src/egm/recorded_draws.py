"""Draws of one size, again and again: on a GPU the simulation is recorded and replayed (`egm.train.capture`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from egm.simulate import Simulation
from egm.train.capture import CapturedStep

KEPT = 2  # recordings: draws come in batches of one size and a remainder; each holds memory of its own


class RecordedDraws:
    """The last few kinds of simulations of a sampler, and the generator that all of them draw from."""

    def __init__(self) -> None:
        self._steps: dict[Hashable, CapturedStep] = {}
        self._generator: torch.Generator | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordedDraws:
        return RecordedDraws()  # a recording is of the original's networks

    def generator(self, device: torch.device, seed: int) -> torch.Generator:
        """The one generator, which a recording has to know, with a new seed."""
        if self._generator is None or self._generator.device != device:
            self._generator, self._steps = torch.Generator(device), {}
        return self._generator.manual_seed(seed)

    def __call__(self, key: Hashable, draw: Callable[[], Simulation]) -> Simulation:
        """draw(), from some time on by replaying it.

        Args:
            key: stands for everything that `draw` depends on: what has the same key is not called again.
            draw: simulates with random numbers of `generator`.
        """
        if self._generator is None:
            raise ValueError("ask for the generator first")
        step = self._steps.pop(key, None)
        if step is None:
            step = CapturedStep(lambda: draw().tensors(), self._generator, None, what="the simulation")
        self._steps[key] = step  # the latest is the last
        while len(self._steps) > KEPT:
            self._steps.pop(next(iter(self._steps)))
        return Simulation.of({name: x.clone() for name, x in step(key).items()})
