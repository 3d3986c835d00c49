"""`LeapsSampler`: draws by the jump process of LEAPS (`egm.baselines.leaps_chain`), with the weights of its chain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from egm.baselines.leaps_chain import Chain
from egm.network_sampler import NO_TARGET, Exchange, NetworkSampler
from egm.networks.base import is_built_in, rounding
from egm.simulation.simulate import Simulation
from egm.spaces import Categorical, Space, State
from egm.targets.guard import EnergyGuard


@dataclass(kw_only=True)
class LeapsSampler(NetworkSampler):
    """Sampler that simulates the jump process of a locally equivariant network; only the network uses the path.

    Attributes:
        sweeps: number of Gibbs sweeps after every four steps.
    """

    sweeps: int = 0

    def __post_init__(self) -> None:
        self._name, self._variable = only_variable(self.space)

    def why_unweighted(self, steps: int | None = None) -> str | None:
        return NO_TARGET if self.target is None else None

    def intermediate_energy(self) -> Callable[[State, Tensor], Tensor]:
        """Returns U_t = t E, which is exact."""
        energy = EnergyGuard(self._chain().target)
        return lambda x, t: t * energy(x)

    def latent(
        self, n: int, *, generator: Generator, steps: int | None = None, weigh: bool = False, between: Exchange = None
    ) -> Simulation:
        def exchange(x: Tensor, log_ratio: Tensor, t: float) -> tuple[Tensor, Tensor]:
            state, log_ratio = between({self._name: x}, log_ratio, torch.full((), t, device=x.device))  # type: ignore[misc]
            return state[self._name], log_ratio

        with self.evaluating():
            x, log_ratio = self._chain().run(
                self._start(n, generator), steps=self.steps if steps is None else steps, weigh=weigh,
                between=None if between is None else exchange, generator=generator,
            )  # fmt: skip
        return Simulation({self._name: x}, log_ratio if weigh else None)

    def visited(
        self, n: int, *, end: Tensor | float = 1.0, steps: int | None = None, generator: Generator
    ) -> Simulation:
        """Returns states of n chains from 0 to `end` in random order, each with a time in the step that it begins."""
        steps = self.steps if steps is None else steps
        seen: list[Tensor] = []
        with self.evaluating():
            self._chain().run(
                self._start(n, generator), steps=steps, end=end, weigh=False, generator=generator,
                visit=lambda x, k: seen.append(x.to(self._variable.narrow)),
            )  # fmt: skip
        u = torch.rand(steps, n, generator=generator, device=self.device)
        times = ((torch.arange(steps, device=self.device)[:, None] + u) / steps * end).flatten()
        order = torch.rand(len(times), generator=generator, device=self.device).argsort()
        return Simulation({self._name: torch.cat(seen)[order]}, times=times[order].to(self.dtype))

    def reverse_log_ratio(
        self, x_1: State, *, generator: Generator, steps: int | None = None, exchanged: bool = False
    ) -> Tensor:
        """Returns the log_ratio of the chain that runs backwards from x_1; an exchange of states has no effect."""
        del exchanged
        with self.evaluating():
            _, log_ratio = self._chain().run(
                x_1[self._name], steps=self.steps if steps is None else steps, backwards=True, generator=generator
            )
        return log_ratio

    @property
    def reversible(self) -> bool:
        """Whether paths can be drawn backwards: always."""
        return True

    def modules(self) -> dict[str, nn.Module]:
        return {"network": self.network, "error": self.error}

    def _generator(self, seed: int) -> Generator:
        return Generator(self.device).manual_seed(seed)

    def _repeated(self, n: int, *, generator: Generator, steps: int | None, weigh: bool) -> Simulation:
        """Runs `latent` without a CUDA graph: a replay would not count the energies of the simulation."""
        return self.latent(n, generator=generator, steps=steps, weigh=weigh)

    def _start(self, n: int, generator: Generator) -> Tensor:
        return self._variable.uniform((n,), generator=generator, device=self.device)

    def _chain(self) -> Chain:
        return Chain(self._rates, self.target, self._name, self._variable, sweeps=self.sweeps)

    def _rates(self, x: Tensor, t: Tensor) -> Tensor:
        """Returns rates, rounded on a GPU as for all networks of symbols; weights use the same rates as the draws."""
        with rounding(x.device, enabled=is_built_in(self.network)):
            return self.network({self._name: x}, t)[self._name].to(self.dtype)


def only_variable(space: Space) -> tuple[str, Categorical]:
    """Returns the variable of a space; raises unless it is the only one, with equal numbers of symbols at all sites."""
    names = list(space.categorical)
    if len(names) != 1 or len(space.variables) != 1 or not isinstance(space.categorical[names[0]].n, int):
        raise ValueError(
            "LEAPS works on a single Categorical variable with the same number of symbols at every site, got"
            f" {space!r}; use method='egm-sp'"
        )
    return names[0], space.categorical[names[0]]
