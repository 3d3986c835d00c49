"""Keeps states of running chains at every `thin`-th step, their energies, and the scalars of their diagnostics.

At most `most` states are kept. When there would be more, every second kept step is dropped and `thin` doubles, so that
the same steps are left that a run with the doubled `thin` would have kept: thin, 2·thin, 3·thin, …
"""

from __future__ import annotations

import torch
from torch import Tensor

from egm.mcmc.diagnostics import summarise
from egm.spaces import State
from egm.targets.base import Target, raise_on_bad_energy

TOGETHER = 10_000  # states whose energies are computed at once
LEAST_STEPS = 4  # smallest number that diagnostics need


class KeptStates:
    """Kept states of `chains` chains, [steps, chains, ...], on the chains' device."""

    def __init__(self, target: Target, *, chains: int, thin: int, most: int) -> None:
        self.target, self.chains, self.thin = target, chains, thin
        self._most_steps = most // chains
        self._states: list[State] = []
        self._scalars: dict[str, Tensor] = {}  # of the first states, [steps, chains] each
        self._described = 0  # number of these steps
        self._new_energies: list[Tensor] = []  # since the last call of `mean_energy`

    def __len__(self) -> int:
        return len(self._states) * self.chains

    def due(self, step: int) -> bool:
        """Returns whether the states after a step are kept, which costs an energy for each chain."""
        return step % self.thin == 0

    @property
    def energies_to_come(self) -> int:
        """Energy calls that the states kept so far still need."""
        return (len(self._states) - self._described) * self.chains

    def add(self, step: int, state: State) -> None:
        """Keeps the states [chains, ...] after a step, if it is due."""
        if self.due(step) and len(self._states) == self._most_steps:
            self._halve()
        if self.due(step):
            self._states.append(self.target.space.narrowed(state))
            if self.energies_to_come >= TOGETHER:
                self._describe()

    def mean_energy(self) -> float | None:
        """Returns the mean energy of the states kept since the last call, None without any; waits for the device."""
        self._describe()
        new, self._new_energies = self._new_energies, []
        return float(torch.cat(new).double().mean()) if new else None

    def visited(self) -> State:
        """Returns all kept states, [steps, chains, ...]."""
        return {name: torch.stack([state[name] for state in self._states]) for name in self.target.space}

    def diagnostics(self) -> dict[str, dict[str, float]]:
        """Returns mean, sd, stderr, r_hat and ess of the energy and of scalar observables; {} for few states."""
        self._describe()
        return {name: summarise(x) for name, x in self._scalars.items()} if self._described >= LEAST_STEPS else {}

    def _halve(self) -> None:
        self._states = self._states[1::2]
        self._scalars = {name: x[1::2] for name, x in self._scalars.items()}
        self._described //= 2
        self.thin *= 2

    def _describe(self) -> None:
        """Computes energies and observables of the states added since the last call."""
        if not self.energies_to_come:
            return
        new = self._states[self._described :]
        state = {name: torch.stack([x[name] for x in new]) for name in self.target.space}
        state = self.target.space.widened(state)
        energy = self.target.energy(**state)
        raise_on_bad_energy(energy, state)
        if bool(energy.isinf().any()):
            chain = int(energy.isinf().any(0).nonzero()[0])
            raise ValueError(
                f"chain {chain} of {self.target!r} is where the density is zero (energy +inf), so its states are no"
                " draws; raise warmup until it has left, or set loc and scale of the Real variables so that it starts"
                " inside the support"
            )
        observed = {name: x for name, x in self.target.observables(**state).items() if x.shape == energy.shape}
        for name, x in {"energy": energy, **observed}.items():
            self._scalars[name] = torch.cat([self._scalars[name], x]) if name in self._scalars else x
        self._described = len(self._states)
        self._new_energies.append(energy)
