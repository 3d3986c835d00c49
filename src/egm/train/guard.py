"""Watching energies for NaN and −inf without waiting for the device.

Each batch of energies leaves a flag and the first offending state on the device; `check` reads them when the trainer
stops anyway (before a refresh of the buffer, a checkpoint or a line of the log). Until then an illegal energy counts as
+inf, a weight of zero, so it never reaches the networks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from egm.spaces import State
from egm.targets.base import EnergyError, Target, raise_on_bad_energy


class EnergyGuard:
    """A target's energy on latent states, watched."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._bad: Tensor | None = None
        self._finite: Tensor | None = None
        self._energy: Tensor | None = None
        self._state: State = {}

    def __call__(self, latent: State, r: object = 1.0) -> Tensor:
        """The latent energy [...], with +inf in the place of NaN and −inf."""
        energy = self.target.latent_energy(latent)
        bad = ~(energy > -torch.inf)  # NaN compares as false
        first = bad.flatten().to(torch.uint8).argmax(keepdim=True)
        found = bad.any()
        state = {
            name: latent[name].reshape(-1, *variable.latent_shape).index_select(0, first)
            for name, variable in self.target.space.variables.items()
        }
        value, finite = energy.flatten().index_select(0, first), (energy < torch.inf).any()
        if self._bad is None or self._energy is None or self._finite is None:
            self._bad, self._finite, self._energy, self._state = found, finite, value, state
        else:
            self._state = {name: torch.where(self._bad, self._state[name], x) for name, x in state.items()}
            self._energy = torch.where(self._bad, self._energy, value)
            self._bad, self._finite = self._bad | found, self._finite | finite
        return torch.where(bad, torch.inf, energy)

    def check(self) -> None:
        """Raise `EnergyError` with the state if any energy since the last check was illegal, or all were +inf."""
        if self._bad is None or self._energy is None or self._finite is None:
            return
        bad, finite = torch.stack([self._bad, self._finite]).tolist()
        if bad:
            raise_on_bad_energy(self._energy, self.target.space.from_latent(self._state))
        if not finite:
            raise EnergyError(
                f"{self.target!r} had energy +inf (zero density) on every proposal since the last check;"
                " set loc and scale of the Real variables so that the sampler reaches the support"
            )
        self._bad = None
