"""Detection of NaN and −inf energies without waiting for the device.

Each batch of energies sets a flag and stores the first illegal state on the device; `check` reads them when the trainer
waits anyway (before a refresh of the buffer, before a checkpoint and at the end). Until then an illegal energy counts
as +inf, a weight of zero, so it never reaches the networks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from egm.spaces import State
from egm.targets.base import EnergyError, Target, raise_on_bad_energy


class EnergyGuard:
    """A target's energy on latent states that detects illegal values."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._bad = self._finite = self._seen = self._energy = torch.zeros(0)  # one entry each after the first call
        self._state: State = {}

    def __call__(self, latent: State, r: object = 1.0) -> Tensor:
        """Returns the latent energy [...], with +inf instead of NaN and −inf."""
        return self._watched(self.target.latent_energy(latent), latent)

    def with_gradient(self, latent: State, r: object = 1.0) -> tuple[Tensor, State]:
        """Returns the same energy and its gradients with respect to the real variables."""
        energy, gradient = self.target.latent_energy_and_gradient(latent)
        return self._watched(energy, latent), gradient

    def _watched(self, energy: Tensor, latent: State) -> Tensor:
        bad = ~(energy > -torch.inf)  # NaN compares as false
        first = bad.flatten().to(torch.uint8).argmax(keepdim=True)
        found = bad.any().reshape(1)
        state = {
            name: latent[name].reshape(-1, *variable.latent_shape).index_select(0, first)
            for name, variable in self.target.space.variables.items()
        }
        value, finite = energy.flatten().index_select(0, first), (energy < torch.inf).any().reshape(1)
        if not len(self._bad):
            self._bad, self._finite, self._seen = (torch.zeros_like(found) for _ in range(3))
            self._energy, self._state = value.clone(), {name: x.clone() for name, x in state.items()}
        # In place, because a replayed CUDA graph (egm.simulation.capture) keeps writing to these tensors.
        for name, x in state.items():
            self._state[name].copy_(torch.where(self._bad, self._state[name], x))
        self._energy.copy_(torch.where(self._bad, self._energy, value))
        self._bad.logical_or_(found)
        self._finite.logical_or_(finite)
        self._seen.fill_(True)
        return torch.where(bad, torch.inf, energy)

    def check(self) -> None:
        """Raises `EnergyError` with the state if any energy since the last check was illegal, or all were +inf."""
        if not len(self._bad):
            return
        bad, finite, seen = torch.cat([self._bad, self._finite, self._seen]).tolist()
        if bad:
            raise_on_bad_energy(self._energy, self.target.space.from_latent(self._state))
        if seen and not finite:
            raise EnergyError(
                f"{self.target!r} had energy +inf (zero density) on every proposal since the last check;"
                " set loc and scale of the Real variables so that the sampler reaches the support"
            )
        for flag in (self._bad, self._finite, self._seen):
            flag.zero_()
