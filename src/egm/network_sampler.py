"""Base class of the samplers of trained networks: draws in batches, with weights, energies and an upper bound.

    log w = log_ratio − E(x_1),   ELBO = E[log w] ≤ log Z ≤ EUBO = E[log w of paths drawn backwards from the target]

Subclasses implement the simulation (`latent`, `reverse_log_ratio`); this file turns simulations into `Draws`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor, nn

from egm.draws import Draws
from egm.networks.base import activation_bytes
from egm.paths.product import ProductPath
from egm.runs.directory import RunDirectory
from egm.simulation.denoiser_error import DenoiserError
from egm.simulation.simulate import Simulation
from egm.simulation.smc import SMC, resample_groups
from egm.spaces import Space, State
from egm.targets.base import Target
from egm.targets.guard import EnergyGuard
from egm.util.seeds import derive_seed

LEAST_TOGETHER, MOST_TOGETHER = 1000, 10_000  # smallest and largest default number of draws simulated together
MOST_BYTES = 2**31  # of activations; a constant, not the free memory, because random numbers depend on the batches
NO_TARGET = "the sampler was loaded without its target; pass target= to egm.load, or --target to `egm sample`"
Exchange: TypeAlias = Callable[[State, Tensor, Tensor], tuple[State, Tensor]] | None


@dataclass(kw_only=True)
class NetworkSampler(ABC):
    """Base class of samplers that simulate with a network.

    Attributes:
        space: the space of the states.
        path: the path of each variable; networks are built for it.
        network: computes predictions or rates.
        error: the denoiser's error, by which diffusions are widened; empty without real variables.
        target: the target that the sampler was trained for; None if unknown (`egm.load` without it).
        steps: steps of a simulation.
        dtype: dtype of the real variables.
        config: everything that defines the run (`config.yaml`).
    """

    space: Space
    path: ProductPath
    network: nn.Module
    error: DenoiserError
    target: Target | None = None
    steps: int = 100
    dtype: torch.dtype = torch.float32
    config: dict[str, Any] = field(default_factory=dict)

    # ------------------------------------------------------------------ what a subclass implements

    @abstractmethod
    def latent(
        self, n: int, *, generator: Generator, steps: int | None = None, weigh: bool = False, between: Exchange = None
    ) -> Simulation:
        """Returns n draws in latent coordinates, with log-ratios of their path weights if `weigh`; see `simulate`."""

    @abstractmethod
    def reverse_log_ratio(
        self, x_1: State, *, generator: Generator, steps: int | None = None, exchanged: bool = False
    ) -> Tensor:
        """Returns the log-ratio [n] of paths that are drawn backwards from latent states x_1."""

    @abstractmethod
    def why_unweighted(self, steps: int | None = None) -> str | None:
        """Returns why draws have no importance weights, or None if they have weights."""

    @abstractmethod
    def intermediate_energy(self) -> Callable[[State, Tensor], Tensor]:
        """Returns E_t(x_t) ≈ −log p_t, a function of latent states and times."""

    @abstractmethod
    def modules(self) -> dict[str, nn.Module]:
        """Returns the modules of a saved sampler by name."""

    @property
    @abstractmethod
    def reversible(self) -> bool:
        """Whether paths can be drawn backwards."""

    @abstractmethod
    def _generator(self, seed: int) -> Generator:
        """Returns a generator with a seed."""

    @abstractmethod
    def _repeated(self, n: int, *, generator: Generator, steps: int | None, weigh: bool) -> Simulation:
        """Runs `latent` with a generator of `_generator`; a sampler may replay it as a CUDA graph."""

    # ------------------------------------------------------------------ what all samplers share

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return next(self.network.parameters()).device

    @property
    def most_draws(self) -> None:
        """Largest number of draws: None, there is no limit."""
        return None

    @property
    def independent(self) -> bool:
        """Whether draws are independent of each other."""
        return True

    def sample(
        self,
        n: int,
        *,
        seed: int | None = None,
        generator: Generator | None = None,
        batch_size: int | None = None,
        steps: int | None = None,
        weigh: bool = True,
        smc: SMC | None = None,
    ) -> Draws:
        """Returns n independent draws, with importance weights where the simulation has them.

        Args:
            n: number of draws.
            seed: seed of the random numbers, 0 unless a generator is given.
            generator: a generator on the sampler's device, instead of a seed.
            batch_size: draws simulated together; by default 10 000, or down to 1000 where the network would need more
                than 2 GiB for them. The draws of a seed depend on it.
            steps: steps of the simulation, by default as in training. Where every variable is masked, sites are
                revealed one at a time unless this number is given.
            weigh: whether to compute weights; False saves the energies, and the Jacobians of flows.
            smc: resampling along the path; needs an intermediate energy, learned (egm-bs) or partial.
        """
        if n < 1 or (batch_size is not None and batch_size < 1):
            raise ValueError(f"n and a given batch_size must be at least 1, got {n} and {batch_size}")
        if seed is not None and generator is not None:
            raise ValueError("give a seed or a generator, not both")
        own = generator is None
        generator = generator or self._generator(seed or 0)
        reason = self.why_unweighted(steps) if weigh else "they were drawn with weigh=False"
        if smc is not None and reason is not None:
            raise ValueError(f"smc needs weights, and there are none: {reason}")
        called = 0 if self.target is None else self.target.energy_calls
        together = batch_size or self._together(n)
        if smc is not None:
            parts = self._groups(n, smc, generator, batch_size=together, steps=steps)
        else:
            sizes = [min(together, n - start) for start in range(0, n, together)]
            options: dict[str, Any] = {"generator": generator, "steps": steps, "weigh": reason is None}
            draw = self._repeated if own else self.latent
            parts = [draw(size, **options) for size in sizes]
        latent = {name: torch.cat([part.state[name] for part in parts]) for name in self.space}
        folded = sum(int((~part.invertible).sum()) for part in parts if part.invertible is not None)
        if folded:
            reason = f"the flow's map may not be invertible at {folded} of {n} draws; take more steps"
        if self.target is None or reason is not None:
            return Draws(self.space, self.space.from_latent(latent), why_unweighted=reason)
        energies, log_weights = self._weighed(parts, latent)
        if smc is not None:
            latent = smc.move(self.target, latent, generator)
        moved = smc is not None and smc.moves > 0  # `energies` belong to the states before the moves
        return Draws(
            self.space, self.space.from_latent(latent), log_weights=log_weights, energies=None if moved else energies,
            groups=1 if smc is None else smc.groups, energy_calls=self.target.energy_calls - called,
            eubo=self._bound(generator.initial_seed(), steps, exchanged=smc is not None),
        )  # fmt: skip

    def _weighed(self, parts: list[Simulation], latent: State) -> tuple[Tensor, Tensor]:
        """Returns the energies and the log-weights of draws."""
        energy = EnergyGuard(self._required_target())
        log_ratio = torch.cat([part.log_ratio for part in parts if part.log_ratio is not None])
        energies = torch.cat([energy(part.state).double() for part in parts])  # in latent coordinates
        log_weights = log_ratio - energies
        energy.check()
        return energies + self.space.log_det(latent), log_weights

    def _groups(
        self, n: int, smc: SMC, generator: Generator, *, batch_size: int, steps: int | None
    ) -> list[Simulation]:
        """Returns n draws in independent groups that were resampled along the path."""
        if n % smc.groups:
            raise ValueError(f"n must be a multiple of the {smc.groups} groups of smc, got {n}")
        intermediate, size = self.intermediate_energy(), n // smc.groups
        together = max(1, batch_size // size)
        parts = []
        for start in range(0, smc.groups, together):
            groups = min(together, smc.groups - start)

            def between(x: State, log_ratio: Tensor, r: Tensor, groups: int = groups) -> tuple[State, Tensor]:
                return resample_groups(
                    x, log_ratio, lambda x: intermediate(x, r.expand(len(log_ratio))), groups=groups,
                    threshold=smc.threshold, generator=generator,
                )  # fmt: skip

            parts.append(self.latent(groups * size, generator=generator, steps=steps, weigh=True, between=between))
        return parts

    def _together(self, n: int) -> int:
        """Returns how many of n draws are simulated together by default."""
        if n <= LEAST_TOGETHER:
            return n
        with self.evaluating():
            each = activation_bytes(self.network, self.path)
        return max(LEAST_TOGETHER, min(MOST_TOGETHER, MOST_BYTES // max(1, each)))

    def _bound(self, seed: int, steps: int | None, *, exchanged: bool) -> Callable[[], tuple[float, float]] | None:
        """Returns a function that estimates the evidence upper bound from new exact draws, or None without a bound."""
        if not self.reversible or self.target is None or self.target.reference_kind != "exact":
            return None
        return partial(self.eubo, seed=derive_seed(seed, 1), steps=steps, exchanged=exchanged)

    @torch.no_grad()
    def eubo(
        self, n: int = 2000, *, seed: int = 0, steps: int | None = None, exchanged: bool = False
    ) -> tuple[float, float]:
        """Returns the evidence upper bound and its standard error, from n exact draws and paths drawn backwards.

        The bound belongs to one simulation: `steps` must be the number of steps of the draws, and `exchanged` tells
        whether they were resampled along the path.

        In expectation the bound is at least log Z, and exceeds it by as much as the sampler's paths miss of the target:
        a mode that is never visited shows here and nowhere else. The bound needs a target with an exact sampler, and
        processes that can be run backwards.
        """
        target = self._required_target()
        if target.reference_kind != "exact":
            raise ValueError(f"an evidence upper bound needs exact draws of the target, and {target!r} has none")
        generator = Generator(self.device).manual_seed(derive_seed(seed, 1))
        state = target.exact_sample(n, seed=seed, device=self.device)
        x_1 = self.space.to_latent({k: x.to(self.dtype) if x.is_floating_point() else x for k, x in state.items()})
        log_ratio = self.reverse_log_ratio(x_1, generator=generator, steps=steps, exchanged=exchanged)
        log_w = log_ratio - target.latent_energy(x_1).double()
        return float(log_w.mean()), float(log_w.std()) / math.sqrt(n)

    def _required_target(self) -> Target:
        if self.target is None:
            raise ValueError(NO_TARGET)
        return self.target

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Puts the network into evaluation mode in this context."""
        training = self.network.training
        self.network.eval()
        try:
            yield
        finally:
            self.network.train(training)

    def save(self, folder: str | Path) -> None:
        """Writes `config.yaml` and `model.safetensors`, from which `egm.load` restores this sampler."""
        RunDirectory(folder).save_sampler(self.config, self.modules())
