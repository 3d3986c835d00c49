"""`Sampler`: a trained network with the path and processes it was trained for, ready to draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Literal

import torch
from torch import nn

from egm.draws import Draws
from egm.networks import predict
from egm.paths.discrete import Masked
from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.processes.diffusion import Diffusion
from egm.simulate import Solver, first_hitting, simulate, time_grid
from egm.spaces import Space, State
from egm.targets.base import Target
from egm.train.options import SolverChoice
from egm.train.run_directory import RunDirectory

BATCH = 10_000


@dataclass
class Sampler:
    """Draws states by simulating the learned process from t_min to 1.

    Attributes:
        space, path, processes, network: what is simulated.
        target: what it was trained for; None where it is not at hand (`egm.load` without it).
        steps, solver, t_min: the simulation, see `TrainingOptions`.
        dtype: of the real variables.
        config: everything that defines the run (`config.yaml`).
    """

    space: Space
    path: ProductPath
    processes: Mapping[str, Process[Any]]
    network: nn.Module
    target: Target | None = None
    steps: int = 100
    solver: SolverChoice = "auto"
    t_min: float = 0.0
    dtype: torch.dtype = torch.float32
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    def sample(
        self,
        n: int,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        batch_size: int = BATCH,
        steps: int | None = None,
    ) -> Draws:
        """n independent draws.

        Args:
            n: how many.
            seed: makes them reproducible, 0 unless a generator is given.
            generator: on the sampler's device, in the place of a seed.
            batch_size: draws simulated together.
            steps: steps of the simulation, in the place of those it was trained with.
        """
        if n < 1 or batch_size < 1:
            raise ValueError(f"n and batch_size must be at least 1, got {n} and {batch_size}")
        if seed is not None and generator is not None:
            raise ValueError("give a seed or a generator, not both")
        generator = generator or torch.Generator(self.device).manual_seed(seed or 0)
        parts = [
            self.latent(min(batch_size, n - start), generator=generator, steps=steps)
            for start in range(0, n, batch_size)
        ]
        latent = {name: torch.cat([part[name] for part in parts]) for name in self.space}
        return Draws(self.space, self.space.from_latent(latent))

    def latent(self, n: int, *, generator: torch.Generator, steps: int | None = None) -> State:
        """n draws in latent coordinates."""

        def predictor(x_t: State, t: torch.Tensor) -> State:
            return predict(self.network, self.processes, x_t, t)

        masked_only = all(isinstance(path, Masked) for path in self.path.paths.values())
        solver = self._choose_solver(masked_only and steps is None) if self.solver == "auto" else self.solver
        where: dict[str, Any] = {"generator": generator, "dtype": self.dtype, "device": self.device}
        grid = time_grid(self.steps if steps is None else steps, start=0.0 if masked_only else self.t_min)
        training = self.network.training
        self.network.eval()
        try:
            if solver == "first-hitting":
                return first_hitting(predictor, self.path, self.processes, n, grid=grid, **where)
            return simulate(predictor, self.path, self.processes, n, grid=grid, solver=solver, **where)
        finally:
            self.network.train(training)

    def _choose_solver(self, reveal: bool) -> Solver | Literal["first-hitting"]:
        """First hitting where it can be; Euler for diffusions, whose bridge narrows the law by what the denoiser does
        not know (`Diffusion.step` without its error); otherwise bridges.
        """
        if reveal:
            return "first-hitting"
        diffuses = any(isinstance(process, Diffusion) for process in self.processes.values())
        start = torch.tensor(self.t_min, dtype=torch.float64)
        return "euler" if diffuses and all(p.finite_at(start) for p in self.processes.values()) else "bridge"

    def save(self, folder: str | FilePath) -> None:
        """Write `config.yaml` and `model.safetensors`, from which `egm.load` makes this sampler again."""
        RunDirectory(folder).save_sampler(self.config, self.network)
