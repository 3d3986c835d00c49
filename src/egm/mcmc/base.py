"""Markov kernels: transitions that leave exp(−b·U(z)) invariant, z latent, b the inverse temperature.

A kernel acts on *latent* states (see `egm.spaces`), whose energy is U(z) = E(x(z)) − log |∂x/∂z|. Tempering multiplies
the whole of U, Jacobian included: exp(−b·U) is then normalisable for every b > 0 as soon as the latent density has
exponential tails, whereas p(x)^b need not be (p(x) ∝ x^(−3/2) on x > 1 at b = ½). At b = 1 both are the target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from egm.spaces import Space, State


class SupportsEnergy(Protocol):
    """Interface that a kernel needs of a target; `egm.Target` implements it."""

    space: Space
    energy_calls: int
    score_calls: int

    def energy(self, **state: Tensor) -> Tensor:
        """E(x), shape [...]."""
        ...

    def latent_energy(self, latent: State) -> Tensor:
        """U(z) = E(x(z)) − log |∂x/∂z|, shape [...]."""
        ...

    def latent_energy_and_gradient(self, latent: State) -> tuple[Tensor, State]:
        """U(z) and its gradient with respect to every real variable."""
        ...

    def independent_sites(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Returns groups of sites of a categorical variable; the sites of a group are independent given all others."""
        ...

    def conditional_energies(self, state: State, name: str, sites: tuple[int, ...]) -> Tensor:
        """Returns E(x) for each symbol at each of k sites, up to a number shared by the symbols, shape [n, ..., k]."""
        ...

    def observables(self, **state: Tensor) -> dict[str, Tensor]:
        """Named summaries, each [...] or [..., k]."""
        ...


class Kernel(ABC):
    """A Markov kernel: one transition for a batch of chains.

    A kernel may store what it adapts (a step size) or counts (swaps), but must not rely on earlier states, which
    another kernel may have changed in between.
    """

    target: SupportsEnergy

    @abstractmethod
    def step(
        self, latent: State, *, generator: torch.Generator, inverse_temperature: Tensor | float = 1.0
    ) -> tuple[State, Tensor]:
        """Returns the next latent state and the acceptance probability of the move, both of batch shape [...].

        Args:
            latent: latent state with leading shape [...], one entry per chain.
            generator: source of every random number.
            inverse_temperature: b, a number or a tensor that broadcasts to [...].
        """

    def adapt(self, acceptance: Tensor) -> None:
        """Tunes the kernel from the acceptance of the last step; called during warm-up only."""
        del acceptance

    def reset(self) -> None:
        """Resets adapted values and counts; `run` calls it first, so that its result depends on its arguments alone."""
        return None

    def expand(self, latent: State) -> State:
        """Returns the kernel's state for one of leading shape [chains]; kernels with replicas add them here."""
        return latent

    def cold(self, values: Tensor) -> Tensor:
        """Returns the part of a tensor of the kernel's batch shape that belongs to the target itself, [chains, ...]."""
        return values

    def report(self) -> dict[str, float]:
        """Returns adapted values and counts since `reset`, by name."""
        return {}


class Alternate(Kernel):
    """A kernel that makes one step of each given kernel in turn, for example Gibbs for symbols and HMC for reals.

    Its acceptance is the mean over the kernels; each kernel adapts to its own acceptance.
    """

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.kernels = tuple(kernels)
        if not self.kernels:
            raise ValueError("Alternate needs at least one kernel, for example Alternate([Gibbs(target), HMC(target)])")
        self.target = self.kernels[0].target
        if any(kernel.target is not self.target for kernel in self.kernels):
            raise ValueError("the kernels of Alternate act on different targets; build them all from the same object")
        if any(type(kernel).expand is not Kernel.expand for kernel in self.kernels):
            raise ValueError("a kernel with replicas cannot be alternated; put Alternate inside ParallelTempering")
        self._acceptances: list[Tensor] = []

    def __repr__(self) -> str:
        return f"Alternate([{', '.join(map(repr, self.kernels))}])"

    def step(
        self, latent: State, *, generator: torch.Generator, inverse_temperature: Tensor | float = 1.0
    ) -> tuple[State, Tensor]:
        self._acceptances = []
        for kernel in self.kernels:
            latent, acceptance = kernel.step(latent, generator=generator, inverse_temperature=inverse_temperature)
            self._acceptances.append(acceptance)
        return latent, torch.stack(self._acceptances).mean(0)

    def adapt(self, acceptance: Tensor) -> None:
        del acceptance  # a mean over kernels; each kernel is tuned by its own acceptance
        for kernel, own in zip(self.kernels, self._acceptances, strict=True):
            kernel.adapt(own)

    def reset(self) -> None:
        for kernel in self.kernels:
            kernel.reset()

    def report(self) -> dict[str, float]:
        return {name: value for kernel in self.kernels for name, value in kernel.report().items()}


def draw_symbols(energies: Tensor, *, generator: torch.Generator) -> Tensor:
    """Draws symbols k with probability ∝ exp(−energies[k]), shape [...], from energies of shape [n, ...].

    Uses an exponential race in double precision: argmin_k τ_k exp(energies[k]) with τ_k ~ Exp(1). Symbols of infinite
    energy never win; at least one energy must be finite.
    """
    weights = torch.softmax(-energies.double(), 0)
    race = torch.empty_like(weights).exponential_(generator=generator)
    return (weights / race).argmax(0)
