"""`ChainSampler`: draws from the states that Markov chains have visited, like a trained sampler."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from egm.draws import Draws
from egm.runs.directory import RunDirectory
from egm.simulation.smc import SMC
from egm.spaces import Space, State
from egm.targets.base import Target

WHY_UNWEIGHTED = (
    "the states of Markov chains have none: they follow the target in the long run, and depend on each other (R-hat and"
    " the effective number of states are in config['outcome'])"
)


@dataclass(frozen=True)
class ChainSampler:
    """Sampler that draws at random from the states that chains have visited.

    Attributes:
        space: the space of the states.
        visited: the kept states, [steps, chains, ...] for each variable; symbols in a narrow dtype.
        target: the target of the chains; None if unknown (`egm.load` without it).
        config: everything that defines the run (`config.yaml`), and under "outcome" its cost and diagnostics.
    """

    space: Space
    visited: State = field(repr=False)
    target: Target | None = None
    config: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> torch.device:
        """Device of the states."""
        return next(iter(self.visited.values())).device

    @property
    def most_draws(self) -> int:
        """Largest number of draws."""
        return self.kept

    @property
    def independent(self) -> bool:
        """Whether draws are independent of each other: neighbours in a chain are not."""
        return False

    @property
    def kept(self) -> int:
        """Number of kept states."""
        steps, chains, *_ = next(iter(self.visited.values())).shape
        return steps * chains

    def sample(
        self,
        n: int,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        batch_size: int | None = None,
        steps: int | None = None,
        weigh: bool = True,
        smc: SMC | None = None,
    ) -> Draws:
        """Returns n different kept states, in random order, without weights.

        The states of a chain depend on each other: standard errors that assume independent draws are too small.

        Args:
            n: number of draws, at most `kept`.
            seed: seed of the random choice, 0 unless a generator is given.
            generator: a generator instead of a seed.
            batch_size: for samplers that simulate; must be None here.
            steps: for samplers that simulate; must be None here.
            smc: for samplers that simulate; must be None here.
            weigh: for samplers with weights; without effect here.
        """
        del weigh
        for name, value in (("batch_size", batch_size), ("steps", steps), ("smc", smc)):
            if value is not None:
                raise ValueError(f"{name} belongs to samplers that simulate, and chains have run already; leave it out")
        if seed is not None and generator is not None:
            raise ValueError("give a seed or a generator, not both")
        if not 1 <= n <= self.kept:
            raise ValueError(
                f"n must lie between 1 and the {self.kept} states that were kept of the chains, got {n}; for more, run"
                " longer chains (steps=) or more of them (chains=), and see that thin and keep leave enough"
            )
        generator = generator or torch.Generator().manual_seed(seed or 0)  # on the CPU: the same draws everywhere
        index = torch.randperm(self.kept, generator=generator, device=generator.device)[:n].to(self.device)
        state = self.space.widened({name: x.flatten(0, 1)[index] for name, x in self.visited.items()})
        return Draws(self.space, state, why_unweighted=WHY_UNWEIGHTED)

    def why_unweighted(self, steps: int | None = None) -> str:
        """Returns why draws have no importance weights."""
        del steps
        return WHY_UNWEIGHTED

    def save(self, folder: str | Path) -> None:
        """Writes `config.yaml` and `model.safetensors`, from which `egm.load` restores this sampler."""
        RunDirectory(folder).save_states(self.config, self.visited)
