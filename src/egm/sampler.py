"""`Sampler`: a trained network with the path and processes it was trained for, ready to draw.

`AnySampler` is the protocol of all samplers: trained samplers, LEAPS, and Markov chains.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from egm.draws import Draws
from egm.estimation.energy_model import EnergyModel
from egm.network_sampler import NO_TARGET, Exchange, NetworkSampler
from egm.networks import predict
from egm.networks.base import is_built_in, rounding
from egm.processes.base import Process
from egm.simulation.clock import Solver, SolverChoice, time_grid
from egm.simulation.course import Course
from egm.simulation.path_weights import reverse_log_ratio
from egm.simulation.recorded_draws import RecordedDraws
from egm.simulation.simulate import Simulation, simulate
from egm.simulation.smc import SMC
from egm.spaces import Space, State
from egm.targets.base import Target


@runtime_checkable
class AnySampler(Protocol):
    """Protocol of all samplers.

    Attributes:
        space: the space of the states.
        target: the target of the sampler; None if unknown.
        config: everything that defines the run (`config.yaml`).
        device: device of the draws.
        most_draws: largest number of draws; None for no limit.
        independent: whether draws are independent of each other.
    """

    @property
    def space(self) -> Space: ...

    @property
    def target(self) -> Target | None: ...

    @property
    def config(self) -> dict[str, Any]: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def most_draws(self) -> int | None: ...

    @property
    def independent(self) -> bool: ...

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
        """Returns n draws; raises for an argument that the sampler cannot use."""
        ...

    def why_unweighted(self, steps: int | None = None) -> str | None:
        """Returns why draws have no importance weights, or None if they have weights."""
        ...

    def save(self, folder: str | FilePath) -> None:
        """Writes the files from which `egm.load` restores this sampler."""
        ...


@dataclass(kw_only=True)
class Sampler(NetworkSampler):
    """Sampler that simulates the learned process from t_min to 1.

    Attributes:
        processes: the process of every variable, on its path.
        energy_model: E^φ, if it was trained.
        solver, t_min: solver and first time of the simulation, see `TrainingOptions` and `EstimateOptions`.
    """

    processes: Mapping[str, Process[Any]]
    energy_model: EnergyModel | None = None
    solver: SolverChoice = "auto"
    t_min: float = 0.0
    _recordings: RecordedDraws | None = field(default=None, init=False, repr=False, compare=False)

    def modules(self) -> dict[str, nn.Module]:
        """Returns the modules of a saved sampler by name."""
        modules = {"network": self.network, "error": self.error, "energy_model": self.energy_model}
        return {name: module for name, module in modules.items() if module is not None}

    def intermediate_energy(self) -> Callable[[State, Tensor], Tensor]:
        """Returns E_t(x_t) ≈ −log p_t on latent states: E^φ if it was trained, otherwise from the partial energy."""
        if self.energy_model is not None:
            return self.energy_model
        if self.target is not None and self.target.has_partial_energy:
            known = EnergyModel(nn.Identity(), self.path, self.target)
            if known.forward_looking:
                return known.known
        raise ValueError(
            "smc compares draws half-way by an intermediate energy: train by method='egm-bs', or use masked paths and a"
            " target with a partial energy"
        )

    def why_unweighted(self, steps: int | None = None) -> str | None:
        """Returns why draws have no importance weights, or None if they have weights."""
        if self.target is None:
            return NO_TARGET
        return self._course(steps).why_unweighted(self.processes)

    def latent(
        self, n: int, *, generator: Generator, steps: int | None = None, weigh: bool = False, between: Exchange = None
    ) -> Simulation:
        course = self._course(steps, exchanged=between is not None)
        with self.evaluating():
            return simulate(
                self._predict, self.path, self.processes, n, course, weigh=weigh, between=between,
                generator=generator, dtype=self.dtype, device=self.device,
            )  # fmt: skip

    def _generator(self, seed: int) -> Generator:
        return self._recorded.generator(self.device, seed)

    @property
    def _recorded(self) -> RecordedDraws:
        self._recordings = self._recordings or RecordedDraws()
        return self._recordings

    def _repeated(self, n: int, *, generator: Generator, steps: int | None, weigh: bool) -> Simulation:
        """Runs `latent`; after a warm-up, replays its CUDA graph.

        Weighted flows are not recorded, because their determinants wait for the device.
        """
        options: dict[str, Any] = {"generator": generator, "steps": steps, "weigh": weigh}
        flows = weigh and any(process.deterministic for process in self.processes.values())
        if flows or self.device.type != "cuda":
            return self.latent(n, **options)
        weak = weakref.ref(self)  # a CUDA graph must not keep its sampler, and its own memory, alive

        def draw() -> Simulation:
            sampler = weak()
            if sampler is None:
                raise ReferenceError("the sampler is gone")
            return sampler.latent(n, **options)

        tensors = (x for module in (self.network, self.error) for x in (*module.parameters(), *module.buffers()))
        where = tuple(x.data_ptr() for x in tensors)  # a CUDA graph would not notice that parameters are replaced
        return self._recorded(
            (n, steps, weigh, self.steps, self.solver, self.t_min, self.dtype, where), draw, generator
        )

    def reverse_log_ratio(
        self, x_1: State, *, generator: Generator, steps: int | None = None, exchanged: bool = False
    ) -> Tensor:
        course = self._course(steps, exchanged=exchanged)
        with self.evaluating():
            return reverse_log_ratio(self._predict, self.path, self.processes, x_1, course, generator=generator)

    @property
    def reversible(self) -> bool:
        """Whether paths can be drawn backwards: flows cannot."""
        return not any(process.deterministic for process in self.processes.values())

    def _predict(self, x_t: State, t: torch.Tensor) -> State:
        """Returns the network's predictions.

        Built-in networks compute tables of symbols in bfloat16 on a GPU, which is faster; weights use the same tables
        as the draws. Means, from which densities and Jacobians are computed, are not rounded.
        """
        with rounding(t.device, enabled=not self.space.real and is_built_in(self.network)):
            return predict(self.network, self.processes, x_t, t)

    def _course(self, steps: int | None, *, exchanged: bool = False) -> Course:
        """Returns the course of a simulation with `steps` steps; an exchange of states needs a common time grid."""
        reveals = any(process.reveals for process in self.processes.values())
        solver: Solver = self.solver if self.solver != "auto" else "first-hitting" if reveals else "bridge"
        if exchanged:
            solver = "bridge"
        grid = time_grid(self.steps if steps is None else steps, start=0.0 if self.path.reveals else self.t_min)
        return Course(grid, solver, steps, self.error)
