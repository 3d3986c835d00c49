"""Parallel tempering: replicas at a ladder of inverse temperatures 1 = b_0 > b_1 > ... > b_{R−1} > 0 that swap states.

The joint law is Π_r exp(−b_r U(z_r)) / Z_r, U the latent energy (see `egm.mcmc.base` for why the Jacobian is tempered
too). Each step moves every replica with the kernel at its own temperature, then proposes to exchange neighbours r and
r + 1, for all even r and for all odd r at alternate steps. An exchange is accepted with probability

    min(1, exp((b_r − b_{r+1}) (U(z_r) − U(z_{r+1})))).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from egm.mcmc.base import Kernel
from egm.spaces import State


class ParallelTempering(Kernel):
    """Parallel tempering, a kernel on states of batch shape [R, chains]; replica 0 is at the target itself.

    Args:
        kernel: moves every replica; its step size, if it has one, adapts separately at each temperature.
        inverse_temperatures: b_0 = 1 and then decreasing, all positive.
    """

    def __init__(self, kernel: Kernel, *, inverse_temperatures: Sequence[float]) -> None:
        ladder = [float(b) for b in inverse_temperatures]
        descending = all(a > b for a, b in pairwise(ladder))
        if len(ladder) < 2 or ladder[0] != 1 or not descending or not ladder[-1] > 0:
            raise ValueError(
                "inverse_temperatures must start at 1 and decrease, at least two of them, all positive, for example"
                f" [1.0, 0.7, 0.5]; got {inverse_temperatures}"
            )
        self.kernel = kernel
        self.target = kernel.target
        self.inverse_temperatures = tuple(ladder)
        self.reset()

    def __repr__(self) -> str:
        shown = ", ".join(f"{b:.4g}" for b in self.inverse_temperatures)
        return f"ParallelTempering({self.kernel!r}, inverse_temperatures=[{shown}])"

    def reset(self) -> None:
        self.kernel.reset()
        self._steps = 0
        self._ladder = torch.tensor(self.inverse_temperatures)[:, None]
        self._acceptance = torch.zeros(len(self.inverse_temperatures) - 1, dtype=torch.float64)
        self._proposals = torch.zeros_like(self._acceptance)

    def step(
        self, latent: State, *, generator: torch.Generator, inverse_temperature: Tensor | float = 1.0
    ) -> tuple[State, Tensor]:
        batch = self.target.space.batch_shape(latent, latent=True)
        replicas = len(self.inverse_temperatures)
        if len(batch) != 2 or batch[0] != replicas:
            raise ValueError(f"parallel tempering needs states of batch shape [{replicas}, chains], got {tuple(batch)}")
        device = next(iter(latent.values())).device
        if self._ladder.device != device:  # copied once, so that steps do not wait for the device
            self._ladder = self._ladder.to(device)
            self._acceptance, self._proposals = self._acceptance.to(device), self._proposals.to(device)
        b = (self._ladder * inverse_temperature).expand(batch)
        latent, acceptance = self.kernel.step(latent, generator=generator, inverse_temperature=b)
        return self._swap(latent, b, generator), acceptance

    def _swap(self, latent: State, b: Tensor, generator: torch.Generator) -> State:
        """Exchanges neighbouring replicas (r, r+1), r even at even steps and odd at odd steps."""
        replicas, chains = b.shape
        lower = torch.arange(self._steps % 2, replicas - 1, 2, device=b.device)
        self._steps += 1
        energy = self.target.latent_energy(latent).double()
        log_ratio = (b[lower] - b[lower + 1]) * (energy[lower] - energy[lower + 1])
        # Two states of zero density, or an energy that is not a number, give NaN: no exchange.
        acceptance = torch.where(torch.isnan(log_ratio), 0.0, log_ratio.clamp(max=0).exp())
        u = torch.rand(acceptance.shape, generator=generator, dtype=torch.float64, device=b.device)
        swapped = u < acceptance
        self._acceptance[lower] += acceptance.sum(1)
        self._proposals[lower] += chains

        source = torch.arange(replicas, device=b.device)[:, None].repeat(1, chains)
        source[lower] += swapped.long()
        source[lower + 1] -= swapped.long()
        chain = torch.arange(chains, device=b.device)
        return {name: value[source, chain] for name, value in latent.items()}

    def adapt(self, acceptance: Tensor) -> None:
        self.kernel.adapt(acceptance)
        # Warm-up starts from equal replicas, whose exchanges say nothing about the ladder.
        self._acceptance.zero_()
        self._proposals.zero_()

    def expand(self, latent: State) -> State:
        replicas = len(self.inverse_temperatures)
        return {name: z.expand(replicas, *z.shape).clone() for name, z in latent.items()}

    def cold(self, values: Tensor) -> Tensor:
        return values[0]

    @property
    def swap_rates(self) -> tuple[float, ...]:
        """Mean acceptance of the exchanges between replicas r and r + 1 since warm-up, r = 0 .. R−2."""
        return tuple((self._acceptance / self._proposals.clamp(min=1)).tolist())

    def report(self) -> dict[str, float]:
        swaps = {f"swap rate {r}-{r + 1}": rate for r, rate in enumerate(self.swap_rates)}
        return {**self.kernel.report(), **swaps}
