"""`Sampler`: a trained network with the path and processes it was trained for, ready to draw."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor, nn

from egm.draws import Draws
from egm.estimation.energy_model import EnergyModel
from egm.networks import predict
from egm.networks.base import activation_bytes, is_built_in, rounding
from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.runs.directory import RunDirectory
from egm.simulation.clock import Solver, SolverChoice, time_grid
from egm.simulation.course import Course
from egm.simulation.denoiser_error import DenoiserError
from egm.simulation.path_weights import reverse_log_ratio
from egm.simulation.recorded_draws import RecordedDraws
from egm.simulation.simulate import Simulation, simulate
from egm.simulation.smc import SMC, resample_groups
from egm.spaces import Space, State
from egm.targets.base import Target
from egm.targets.guard import EnergyGuard
from egm.util.seeds import derive_seed

LEAST_TOGETHER, MOST_TOGETHER = 1000, 10_000  # draws simulated together, in between as many as
MOST_BYTES = 2**31  # allow; fixed, and not what happens to be free: random numbers depend on the batches


@dataclass
class Sampler:
    """Draws states by simulating the learned process from t_min to 1.

    Attributes:
        space, path, processes, network: what is simulated.
        target: what it was trained for; None where it is not at hand (`egm.load` without it).
        energy_model: E^φ, where it was trained.
        error: the denoiser's error, by which diffusions are widened.
        steps, solver, t_min: the simulation, see `TrainingOptions`.
        dtype: of the real variables.
        config: everything that defines the run (`config.yaml`).
    """

    space: Space
    path: ProductPath
    processes: Mapping[str, Process[Any]]
    network: nn.Module
    error: DenoiserError
    target: Target | None = None
    energy_model: EnergyModel | None = None
    steps: int = 100
    solver: SolverChoice = "auto"
    t_min: float = 0.0
    dtype: torch.dtype = torch.float32
    config: dict[str, Any] = field(default_factory=dict)
    _recorded: RecordedDraws = field(default_factory=RecordedDraws, init=False, repr=False, compare=False)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    def modules(self) -> dict[str, nn.Module]:
        """What a saved sampler consists of."""
        modules = {"network": self.network, "error": self.error, "energy_model": self.energy_model}
        return {name: module for name, module in modules.items() if module is not None}

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
        """n independent draws, with importance weights where the simulation has them.

        Args:
            n: how many.
            seed: makes them reproducible, 0 unless a generator is given.
            generator: on the sampler's device, in the place of a seed.
            batch_size: draws simulated together; by default 10 000, or down to 1000 where the network would take more
                than 2 GiB for them. Which draws a seed gives depends on it.
            steps: steps of the simulation, in the place of those it was trained with. Where every variable is masked,
                sites are revealed one at a time, and in this number of steps only if it is given.
            weigh: False saves the energies, and the Jacobians of flows.
            smc: resample along the path; needs an intermediate energy, learned (egm-bs) or partial.
        """
        if n < 1 or (batch_size is not None and batch_size < 1):
            raise ValueError(f"n and a given batch_size must be at least 1, got {n} and {batch_size}")
        if seed is not None and generator is not None:
            raise ValueError("give a seed or a generator, not both")
        own = generator is None
        generator = generator or self._recorded.generator(self.device, seed or 0)
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
            draw = self._replayed if own else self.latent
            parts = [draw(size, **options) for size in sizes]
        latent = {name: torch.cat([part.state[name] for part in parts]) for name in self.space}
        folded = sum(int((~part.invertible).sum()) for part in parts if part.invertible is not None)
        if folded:
            reason = f"the flow's map was not seen to be invertible at {folded} of {n} draws; take more steps"
        if self.target is None or reason is not None:
            return Draws(self.space, self.space.from_latent(latent), why_unweighted=reason)
        energy = EnergyGuard(self.target)
        log_ratio = torch.cat([part.log_ratio for part in parts if part.log_ratio is not None])
        energies = torch.cat([energy(part.state).double() for part in parts])  # in latent coordinates
        log_weights = log_ratio - energies
        energy.check()
        energies = energies + self.space.log_det(latent)
        if smc is not None:
            latent = smc.move(self.target, latent, generator)
        moved = smc is not None and smc.moves > 0  # what was asked for is the energy of the states before
        return Draws(
            self.space, self.space.from_latent(latent), log_weights=log_weights, energies=None if moved else energies,
            groups=1 if smc is None else smc.groups, energy_calls=self.target.energy_calls - called,
            eubo=self._eubo(generator.initial_seed(), steps, exchanged=smc is not None),
        )  # fmt: skip

    def _groups(
        self, n: int, smc: SMC, generator: torch.Generator, *, batch_size: int, steps: int | None
    ) -> list[Simulation]:
        """n draws in independent groups that were resampled along the path."""
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

    def intermediate_energy(self) -> Callable[[State, Tensor], Tensor]:
        """E_t(x_t) ≈ −log p_t on latent states: E^φ where it was trained, else what the partial energy knows."""
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
        """Why draws have no importance weights, or None if they have."""
        if self.target is None:
            return "the sampler was loaded without its target; pass target= to egm.load, or --target to `egm sample`"
        return self._course(steps).why_unweighted(self.processes)

    def latent(
        self,
        n: int,
        *,
        generator: torch.Generator,
        steps: int | None = None,
        weigh: bool = False,
        between: Callable[[State, Tensor, Tensor], tuple[State, Tensor]] | None = None,
    ) -> Simulation:
        """n draws in latent coordinates, with the log-ratios of their path weights if asked for; see `simulate`."""
        course = self._course(steps, exchanged=between is not None)
        with self._evaluating():
            return simulate(
                self._predict, self.path, self.processes, n, course, weigh=weigh, between=between,
                generator=generator, dtype=self.dtype, device=self.device,
            )  # fmt: skip

    def _replayed(self, n: int, *, generator: torch.Generator, steps: int | None, weigh: bool) -> Simulation:
        """`latent`, from some time on by replaying a recording; flows are not recorded, their determinants wait."""
        options: dict[str, Any] = {"generator": generator, "steps": steps, "weigh": weigh}
        flows = weigh and any(process.deterministic for process in self.processes.values())
        if flows or self.device.type != "cuda":
            return self.latent(n, **options)
        weak = weakref.ref(self)  # a recording must not keep its sampler, and its own memory, alive

        def draw() -> Simulation:
            sampler = weak()
            if sampler is None:
                raise ReferenceError("the sampler is gone")
            return sampler.latent(n, **options)

        tensors = (x for module in (self.network, self.error) for x in (*module.parameters(), *module.buffers()))
        where = tuple(x.data_ptr() for x in tensors)  # parameters may be replaced, and a recording would not notice
        return self._recorded(
            (n, steps, weigh, self.steps, self.solver, self.t_min, self.dtype, where), draw, generator
        )

    def _together(self, n: int) -> int:
        """How many of n draws are simulated together by default."""
        if n <= LEAST_TOGETHER:
            return n
        with self._evaluating():
            each = activation_bytes(self.network, self.path)
        return max(LEAST_TOGETHER, min(MOST_TOGETHER, MOST_BYTES // max(1, each)))

    def _eubo(self, seed: int, steps: int | None, *, exchanged: bool) -> Callable[[], tuple[float, float]] | None:
        """How to find the evidence upper bound where there is one; with exact draws of its own."""
        flows = any(process.deterministic for process in self.processes.values())
        if flows or self.target is None or self.target.reference_kind != "exact":
            return None
        return partial(self.eubo, seed=derive_seed(seed, 1), steps=steps, exchanged=exchanged)

    @torch.no_grad()
    def eubo(
        self, n: int = 2000, *, seed: int = 0, steps: int | None = None, exchanged: bool = False
    ) -> tuple[float, float]:
        """Evidence upper bound and its standard error, from n exact draws of the target and paths drawn backwards.

        `steps` are those of the draws that it belongs to, `exchanged` says whether these were resampled along the path:
        another simulation has another bound.

        At least log Z in expectation, by how much the sampler's paths miss of the target: a mode that is never visited
        shows here and nowhere else. Needs a target with an exact sampler, and processes that can be run backwards.
        """
        target = self.target
        if target is None or target.reference_kind != "exact":
            raise ValueError(f"an evidence upper bound needs exact draws of the target, and {target!r} has none")
        generator = torch.Generator(self.device).manual_seed(derive_seed(seed, 1))
        state = target.exact_sample(n, seed=seed, device=self.device)
        x_1 = self.space.to_latent({k: x.to(self.dtype) if x.is_floating_point() else x for k, x in state.items()})
        with self._evaluating():
            log_ratio = reverse_log_ratio(
                self._predict, self.path, self.processes, x_1, self._course(steps, exchanged=exchanged),
                generator=generator,
            )  # fmt: skip
        log_w = log_ratio - target.latent_energy(x_1).double()
        return float(log_w.mean()), float(log_w.std()) / math.sqrt(n)

    def _predict(self, x_t: State, t: torch.Tensor) -> State:
        """Built-in networks compute tables of symbols in bfloat16 on a GPU, which is faster; weights are those of the
        tables that were drawn from. Means, from which densities and Jacobians are made, are not rounded.
        """
        with rounding(t.device, enabled=not self.space.real and is_built_in(self.network)):
            return predict(self.network, self.processes, x_t, t)

    def _course(self, steps: int | None, *, exchanged: bool = False) -> Course:
        """How a simulation of so many steps goes; states can be exchanged on a common grid alone."""
        reveals = any(process.reveals for process in self.processes.values())
        solver: Solver = self.solver if self.solver != "auto" else "first-hitting" if reveals else "bridge"
        if exchanged:
            solver = "bridge"
        grid = time_grid(self.steps if steps is None else steps, start=0.0 if self.path.reveals else self.t_min)
        return Course(grid, solver, steps, self.error)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        training = self.network.training
        self.network.eval()
        try:
            yield
        finally:
            self.network.train(training)

    def save(self, folder: str | FilePath) -> None:
        """Write `config.yaml` and `model.safetensors`, from which `egm.load` makes this sampler again."""
        RunDirectory(folder).save_sampler(self.config, self.modules())
