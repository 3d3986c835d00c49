"""Replay buffer: a ring of the sampler's latest draws, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from egm.spaces import State


class ReplayBuffer:
    """Ring buffer of the newest `capacity` latent states."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"the buffer needs room for at least one state, got {capacity}")
        self.capacity = capacity
        self.filled = 0
        self._next = 0
        self._states: State = {}

    def add(self, states: State) -> None:
        """Stores states [n, ...], overwriting the oldest."""
        states = {name: x[-self.capacity :] for name, x in states.items()}
        n = len(next(iter(states.values())))
        if not self._states:
            self._states = {name: x.new_zeros((self.capacity, *x.shape[1:])) for name, x in states.items()}
        first = min(n, self.capacity - self._next)
        for name, x in states.items():
            self._states[name][self._next : self._next + first] = x[:first]
            self._states[name][: n - first] = x[first:]
        self._next = (self._next + n) % self.capacity
        self.filled = min(self.filled + n, self.capacity)

    @property
    def held(self) -> State:
        """The states in the buffer, [filled, ...], in no particular order."""
        return {name: x[: self.filled] for name, x in self._states.items()}

    def sample(self, n: int, generator: torch.Generator) -> State:
        """Draws n states with replacement."""
        if not self.filled:
            raise ValueError("the buffer is empty; add draws of the sampler first")
        index = torch.randint(self.filled, (n,), generator=generator, device=generator.device)
        return {name: x[index] for name, x in self._states.items()}

    def state_dict(self) -> dict[str, Tensor | int | State]:
        """Returns the buffer's states and its position."""
        return {"states": self.held, "next": self._next}

    def load_state_dict(self, state: dict) -> None:
        """Restores the output of `state_dict`, each state in its old place; another capacity keeps the newest."""
        self._states, self._next, self.filled = {}, 0, 0
        if state["states"]:
            oldest_first = {name: x.roll(-state["next"], 0) for name, x in state["states"].items()}
            n = len(next(iter(oldest_first.values())))
            self._next = (state["next"] - n) % self.capacity if n >= self.capacity else 0
            self.add(oldest_first)
