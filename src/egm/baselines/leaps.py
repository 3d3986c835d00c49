"""LEAPS (Holderrieth, Albergo and Jaakkola, 2025) for symbols on a lattice: method and sampler.

The jump process of `egm.baselines.leaps_chain` is trained until it follows the annealed path p_t ∝ exp(−t E) from
uniform symbols to the target, by the published objective,

    loss = E[ ( −∂_t U_t(x) − K_t F_θ(x) − a_φ(t) )² ] / sites,        ∂_t U_t = E,

with a_φ(t) a learned free-energy derivative: at the minimum, zero, the chain is exact and a_φ = d/dt log Z_t. The mean
may be over any states. Here it is over the states that simulated chains have visited, with their times, which a replay
buffer keeps: each refresh adds all states of its chains. Early in training, chains end at a time t_end < 1, which
grows, because later states would come from a bad sampler. `leaps-mcmc` is the same chain with Gibbs sweeps between its
jumps, in training and in sampling.

Draws have the weights of the simulated chain, whose mean is Z exactly. The published weights are for continuous time
and biased by the step; both agree to second order in the step, so effective sample sizes can be compared.

Each state needs the energies of all sites · n states that differ from it at a single site: once for every state in a
gradient step and, if draws have weights or sweeps, once for each step of a chain. These energies must be finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from egm.baselines.leaps_chain import Chain, generator_term
from egm.baselines.leaps_sampler import LeapsSampler, only_variable
from egm.config.options import check_numbers
from egm.config.parts import Parts
from egm.methods.registry import add_method, add_options
from egm.methods.trained import Trained, shared_parts
from egm.network_sampler import NetworkSampler
from egm.networks.base import is_locally_equivariant
from egm.networks.embeddings import TIME_FEATURES, TimeEmbedding
from egm.paths.discrete import Uniform
from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.simulation.denoiser_error import DenoiserError
from egm.simulation.simulate import Simulation
from egm.spaces import State
from egm.targets.base import EnergyError, Target
from egm.targets.guard import EnergyGuard
from egm.train.buffer import ReplayBuffer
from egm.train.method import Method

#: other defaults of the loop; the buffer counts states, and a draw adds one state for each step
TRAINING: dict[str, Any] = {
    **{"batch_size": 256, "inner_steps": 50, "refresh": 128, "buffer": 25_600},
    **{"learning_rate": 5e-3, "ema": 0.99},
}
FIRST_END = 0.1  # t_end of the first chains
TIMES = ".t"  # where the buffer keeps times


@dataclass(frozen=True)
class LeapsOptions:
    """Options of LEAPS.

    Attributes:
        anneal: share of training over which the end time of the chains grows to 1.
    """

    anneal: float = 0.2

    def __post_init__(self) -> None:
        check_numbers(self, shares=("anneal",))


@dataclass(frozen=True)
class LeapsMCMCOptions(LeapsOptions):
    """Options of LEAPS with MCMC.

    Attributes:
        sweeps: Gibbs sweeps after every four steps.
    """

    sweeps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
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
    """Loss and buffer of LEAPS; for the arguments see `Method`.

    `modules()` returns the network and a_φ, which draws do not need.
    """

    weight_decay = 0.0

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

    def draw(self, sampler: NetworkSampler, n: int, *, steps: int | None, generator: torch.Generator) -> Simulation:
        """Draws the states that n chains visit on their way to t_end, in random order."""
        if not isinstance(sampler, LeapsSampler):
            raise TypeError(f"LEAPS trains a LeapsSampler, got {type(sampler).__name__}")
        return sampler.visited(n, end=self.end, steps=steps, generator=generator)

    def refresh(self, buffer: ReplayBuffer, drawn: Simulation) -> None:
        """Puts the states into the buffer with their times."""
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
        """Increases t_end."""
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


def default_network(target: Target) -> str:
    """Returns the default network of a target."""
    return "LocallyEquivariantConv" + ("" if "translation" in target.symmetries else "(positions=True)")


def leaps_sampler(parts: Parts, *, t_min: float) -> LeapsSampler:
    """Returns the untrained sampler of a locally equivariant network; simulations begin at 0, t_min is ignored."""
    del t_min
    only_variable(parts.space)
    network = parts.network.module
    if not is_locally_equivariant(network):
        body = getattr(network, "body", network)
        raise ValueError(
            f"LEAPS needs a locally equivariant network, and {type(body).__name__} is not: leave network out, use"
            " LocallyEquivariantConv, or declare locally_equivariant = True in a module that is"
        )
    if parts.loop.solver != "auto" or not all(isinstance(path, Uniform) for path in parts.path.paths.values()):
        raise ValueError("LEAPS has a fixed path and a fixed simulation; leave paths and solver out")
    return LeapsSampler(**shared_parts(parts), sweeps=getattr(parts.options, "sweeps", 0))


LEAPS = Trained(
    "baseline LEAPS: jumps at single sites along an annealed path, by a locally equivariant network of rates",
    method=Leaps,
    options=LeapsOptions,
    defaults=TRAINING,
    symbol_path="Uniform",
    network=default_network,
    sampler=leaps_sampler,
)
add_options("LEAPS", LeapsOptions)
add_options("LEAPS with MCMC", LeapsMCMCOptions)
add_method("leaps", LEAPS)
add_method("leaps-mcmc", replace(LEAPS, about="the same with Gibbs sweeps between the jumps", options=LeapsMCMCOptions))
