"""LEAPS (Holderrieth, Albergo and Jaakkola, 2025) for symbols on a lattice: method and sampler.

The jump process of `egm.baselines.leaps_chain` is trained until it follows the annealed path p_t ∝ exp(−t E) from
uniform symbols to the target, by the published objective,

    loss = E[ ( −∂_t U_t(x) − K_t F_θ(x) − a_φ(t) )² ] / sites,        ∂_t U_t = E,

with a_φ(t) a learned free-energy derivative: at the minimum, zero, the chain is exact and a_φ = d/dt log Z_t. The mean
may be over any states. Here it is over those that simulated chains have come through, with their times, which a replay
buffer keeps: each refresh adds all states of its chains. While training is young, chains end at a time t_end < 1, which
grows: later states would be those of a bad sampler. `leaps-mcmc` is the same chain with Gibbs sweeps between its jumps,
in training and in sampling.

Draws come with the weights of the chain that was simulated, whose mean is Z exactly. The published weights are those of
continuous time, biased by the step; both agree to second order in it, so effective sample sizes can be compared.

Energies are those of all states that differ from one at a single site, sites · n for each: once for every state in a
gradient step, and where draws are weighed or swept, once for each step of a chain. They must be finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from egm.baselines.leaps_chain import Chain, generator_term
from egm.methods.base import Method
from egm.networks.base import is_built_in, rounding
from egm.networks.embeddings import TIME_FEATURES, TimeEmbedding
from egm.networks.locally_equivariant import is_locally_equivariant
from egm.paths.discrete import Uniform
from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.sampler import Sampler
from egm.simulation.denoiser_error import DenoiserError
from egm.simulation.simulate import Simulation
from egm.spaces import Categorical, Space, State
from egm.targets.base import EnergyError, Target
from egm.targets.guard import EnergyGuard
from egm.train.buffer import ReplayBuffer
from egm.util.numbers import check_numbers
from egm.util.seeds import derive_seed

#: where the defaults of the loop differ; the buffer counts states, of which a draw adds one for each step
TRAINING: dict[str, Any] = {
    **{"batch_size": 256, "inner_steps": 50, "refresh": 128, "buffer": 25_600},
    **{"learning_rate": 5e-3, "weight_decay": 0.0, "ema": 0.99},
}
FIRST_END = 0.1  # t_end of the first chains
TIMES = ".t"  # where the buffer keeps times


@dataclass(frozen=True)
class LeapsOptions:
    """Options of LEAPS.

    Attributes:
        anneal: share of training over which the end of the chains grows to 1.
        sweeps: Gibbs sweeps after every four steps (leaps-mcmc alone).
    """

    anneal: float = 0.2
    sweeps: int = 1

    def __post_init__(self) -> None:
        check_numbers(self, shares=("anneal",))
        if self.sweeps < 1:
            raise ValueError(f"sweeps must be at least 1, got {self.sweeps}; method='leaps' has none")


class FreeEnergyRate(nn.Module):
    """a_φ(t), [b]: sites times a perceptron of the time."""

    def __init__(self, sites: int, *, width: int = 64) -> None:
        super().__init__()
        self.sites, self.time = sites, TimeEmbedding()
        self.layers = nn.Sequential(nn.Linear(TIME_FEATURES, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, t: Tensor) -> Tensor:
        return self.sites * self.layers(self.time(t)).squeeze(-1)


class Leaps(Method):
    """The loss of LEAPS, and what its buffer holds; for the arguments see `Method`.

    `modules()` has a_φ beside the network; draws do not need it.
    """

    def __init__(
        self,
        energy: EnergyGuard,
        path: ProductPath,
        processes: Mapping[str, Process[Any]],
        network: nn.Module,
        *,
        options: LeapsOptions,
        error: DenoiserError | None = None,
    ) -> None:
        super().__init__(energy, path, processes, network, error)
        self.options = options
        self.name, self.variable = only_variable(path.space)
        like = next(network.parameters())
        self.free_energy = FreeEnergyRate(self.variable.sites).to(device=like.device, dtype=like.dtype)
        self.end = torch.full((), FIRST_END if options.anneal else 1.0, device=like.device)
        self._chain = Chain(self._rates, energy.target, self.name, self.variable)

    def draw(self, sampler: Sampler, n: int, *, steps: int | None, generator: torch.Generator) -> Simulation:
        """The states that n chains come through on their way to t_end, in random order."""
        if not isinstance(sampler, LeapsSampler):
            raise TypeError(f"LEAPS trains a LeapsSampler, got {type(sampler).__name__}")
        return sampler.visited(n, end=self.end, steps=steps, generator=generator)

    def refresh(self, buffer: ReplayBuffer, drawn: Simulation) -> None:
        """Put them into the buffer with their times."""
        if drawn.times is None:
            raise ValueError("LEAPS trains on states with times")
        buffer.add({self.name: drawn.state[self.name], TIMES: drawn.times})

    def losses(self, x_1: State, *, first: bool, generator: torch.Generator) -> dict[str, Tensor]:
        """See `Method.losses`; `x_1` are states of the buffer, at their times."""
        x, t = x_1[self.name].long(), x_1[TIMES]
        wanted, differences = -self.energy({self.name: x}) - self.free_energy(t), self._chain.differences(x)
        if first and not bool(torch.isfinite(differences).all()):
            raise EnergyError(
                f"LEAPS compares the energies of states that differ at one site, and some of {self.energy.target!r} are"
                " +inf (zero density); use method='egm-sp'"
            )
        residual = wanted - generator_term(self._rates(x, t), differences, t)
        loss = residual.square().mean() / self.variable.sites
        return {"loss": loss, "sampler_loss": loss.detach(), "t_end": self.end.clone()}

    def _rates(self, x: Tensor, t: Tensor) -> Tensor:
        return self.network({self.name: x}, t)[self.name]

    def after_step(self, progress: float) -> None:
        """Let t_end grow."""
        share = min(1.0, progress / self.options.anneal) if self.options.anneal else 1.0
        self.end.fill_(FIRST_END + (1 - FIRST_END) * share)

    def modules(self) -> dict[str, nn.Module]:
        return {"network": self.network, "free_energy": self.free_energy}

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        return [{"params": list(module.parameters()), "lr": learning_rate} for module in self.modules().values()]

    def state_dict(self) -> dict[str, Any]:
        return {"end": self.end}

    def load_state_dict(self, state: dict[str, Any], buffer: ReplayBuffer) -> None:
        self.end.copy_(state["end"])


@dataclass
class LeapsSampler(Sampler):
    """Draws states by the jump process of a locally equivariant network; path and processes have no part in it.

    Attributes:
        sweeps: Gibbs sweeps after every four steps.
    """

    sweeps: int = 0

    def __post_init__(self) -> None:
        self._name, self._variable = only_variable(self.space)

    @classmethod
    def of(cls, sampler: Sampler) -> LeapsSampler:
        """A sampler of LEAPS from one with its parts and its configuration."""
        only_variable(sampler.space)
        if not is_locally_equivariant(sampler.network):
            body = getattr(sampler.network, "body", sampler.network)
            raise ValueError(
                f"LEAPS needs a locally equivariant network, and {type(body).__name__} is not: leave network out, use"
                " LocallyEquivariantConv, or declare locally_equivariant = True in a module that is"
            )
        if sampler.solver != "auto" or not all(isinstance(path, Uniform) for path in sampler.path.paths.values()):
            raise ValueError("LEAPS has a path and a simulation of its own; leave paths and solver out")
        config = sampler.config
        if config["method"] == "leaps" and config["sweeps"] != LeapsOptions.sweeps:
            raise ValueError("sweeps is an option of leaps-mcmc, not of leaps, which has none")
        return cls(
            sampler.space, sampler.path, sampler.processes, sampler.network, sampler.error, sampler.target,
            steps=sampler.steps, dtype=sampler.dtype, config=config,
            sweeps=config["sweeps"] if config["method"] == "leaps-mcmc" else 0,
        )  # fmt: skip

    def why_unweighted(self, steps: int | None = None) -> str | None:
        if self.target is None:
            return "the sampler was loaded without its target; pass target= to egm.load, or --target to `egm sample`"
        return None

    def intermediate_energy(self) -> Callable[[State, Tensor], Tensor]:
        """U_t = t E, which is known."""
        energy = EnergyGuard(self._chain().target)
        return lambda x, t: t * energy(x)

    def latent(
        self,
        n: int,
        *,
        generator: torch.Generator,
        steps: int | None = None,
        weigh: bool = False,
        between: Callable[[State, Tensor, Tensor], tuple[State, Tensor]] | None = None,
    ) -> Simulation:
        def exchange(x: Tensor, log_ratio: Tensor, t: float) -> tuple[Tensor, Tensor]:
            state, log_ratio = between({self._name: x}, log_ratio, torch.full((), t, device=x.device))  # type: ignore[misc]
            return state[self._name], log_ratio

        with self._evaluating():
            x, log_ratio = self._chain().run(
                self._start(n, generator), steps=self.steps if steps is None else steps, weigh=weigh,
                between=None if between is None else exchange, generator=generator,
            )  # fmt: skip
        return Simulation({self._name: x}, log_ratio if weigh else None)

    def visited(
        self, n: int, *, end: Tensor | float = 1.0, steps: int | None = None, generator: torch.Generator
    ) -> Simulation:
        """The states of n chains from 0 to `end`, each with a time of the step that it begins, in random order."""
        steps = self.steps if steps is None else steps
        seen: list[Tensor] = []
        with self._evaluating():
            self._chain().run(
                self._start(n, generator), steps=steps, end=end, weigh=False, generator=generator,
                visit=lambda x, k: seen.append(x.to(self._variable.narrow)),
            )  # fmt: skip
        u = torch.rand(steps, n, generator=generator, device=self.device)
        times = ((torch.arange(steps, device=self.device)[:, None] + u) / steps * end).flatten()
        order = torch.rand(len(times), generator=generator, device=self.device).argsort()
        return Simulation({self._name: torch.cat(seen)[order]}, times=times[order].to(self.dtype))

    def eubo(
        self, n: int = 2000, *, seed: int = 0, steps: int | None = None, exchanged: bool = False
    ) -> tuple[float, float]:
        """See `Sampler.eubo`; the chain runs backwards from exact draws."""
        target = self._chain().target
        if target.reference_kind != "exact":
            raise ValueError(f"an evidence upper bound needs exact draws of the target, and {target!r} has none")
        generator = torch.Generator(self.device).manual_seed(derive_seed(seed, 1))
        state = target.exact_sample(n, seed=seed, device=self.device)
        with self._evaluating():
            _, log_ratio = self._chain().run(
                state[self._name], steps=self.steps if steps is None else steps, backwards=True, generator=generator
            )
        log_w = log_ratio - target.energy(**state).double()
        return float(log_w.mean()), float(log_w.std()) / n**0.5

    def _replayed(self, n: int, *, generator: torch.Generator, steps: int | None, weigh: bool) -> Simulation:
        """Not recorded: a replay would not count the energies of the simulation."""
        return self.latent(n, generator=generator, steps=steps, weigh=weigh)

    def _start(self, n: int, generator: torch.Generator) -> Tensor:
        return self._variable.uniform((n,), generator=generator, device=self.device)

    def _chain(self) -> Chain:
        return Chain(self._rates, self.target, self._name, self._variable, sweeps=self.sweeps)

    def _rates(self, x: Tensor, t: Tensor) -> Tensor:
        """Rounded on a GPU, as all networks of symbols are; weights are those of the rates that were drawn from."""
        with rounding(x.device, enabled=is_built_in(self.network)):
            return self.network({self._name: x}, t)[self._name].to(self.dtype)


def only_variable(space: Space) -> tuple[str, Categorical]:
    """The variable of a space; raises unless there is a single one, with the same number of symbols at every site."""
    names = list(space.categorical)
    if len(names) != 1 or len(space.variables) != 1 or not isinstance(space.categorical[names[0]].n, int):
        raise ValueError(
            "LEAPS works on a single Categorical variable with the same number of symbols at every site, got"
            f" {space!r}; use method='egm-sp'"
        )
    return names[0], space.categorical[names[0]]


def default_network(target: Target) -> str:
    """The network that a target gets by default."""
    return "LocallyEquivariantConv" + ("" if "translation" in target.symmetries else "(positions=True)")
