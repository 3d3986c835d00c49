"""PIS, the path integral sampler: a Brownian motion from the origin is steered so that it ends in the target.

The sampler's own simulation is differentiated. On the path of a Brownian motion (`egm.paths.Foellmer`), with the steps
widened by the error that the reference law has, the kernels of `egm.simulate` are Euler–Maruyama steps of

    dX = u_θ(X, t) dt + dW,      u_θ = (x̂_1 − X)/(1 − t),

and the loss −E[log w], w the exact path weights, is the divergence of the steered from the target's paths, log Z apart.
It is minimised by gradients through all steps and through the energy at the end, so no buffer is needed; every state
costs one energy and one gradient of it. Modes that the sampler does not visit do not enter the loss: it may lose them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from egm.clock import time_grid
from egm.denoiser_error import DenoiserError
from egm.diagnostics import weight_ess
from egm.methods.base import Method
from egm.methods.egm import default_t_min
from egm.networks import predict
from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.processes.diffusion import Diffusion
from egm.simulate import simulate
from egm.spaces import State
from egm.train.buffer import ReplayBuffer
from egm.train.guard import EnergyGuard


@dataclass(frozen=True)
class PISOptions:
    """Options of PIS.

    Attributes:
        simulation_steps: steps of the simulations that are differentiated; memory grows with them.
    """

    simulation_steps: int = 50

    def __post_init__(self) -> None:
        if self.simulation_steps < 1:
            raise ValueError(f"simulation_steps must be at least 1, got {self.simulation_steps}")


class PIS(Method):
    """The loss of PIS; for the arguments see `Method`."""

    needs_draws = False

    def __init__(
        self,
        energy: EnergyGuard,
        path: ProductPath,
        processes: Mapping[str, Process[Any]],
        network: nn.Module,
        *,
        error: DenoiserError,
        options: PISOptions,
    ) -> None:
        for name, process in processes.items():
            if not isinstance(process, Diffusion):
                raise ValueError(
                    f"pis differentiates the steps of diffusions, and '{name}' follows a {type(process).__name__};"
                    " use method='egm-sp'"
                )
        super().__init__(energy, path, processes, network, error)
        self.grid = time_grid(options.simulation_steps, start=default_t_min(path))
        self.parameter = next(network.parameters())

    def end_points(self, buffer: ReplayBuffer, n: int, generator: torch.Generator) -> State:
        """Where n simulations begin."""
        like = {"dtype": self.parameter.dtype, "device": self.parameter.device}
        return self.path.prior_sample((n,), float(self.grid[0]), generator=generator, **like)

    def losses(self, x_1: State, *, first: bool, generator: torch.Generator) -> dict[str, Tensor]:
        """See `Method.losses`; here x_1 is where simulations begin."""
        n = len(next(iter(x_1.values())))
        drawn = simulate(
            lambda x, t: predict(self.network, self.processes, x, t), self.path, self.processes, n, grid=self.grid,
            error=self.error, weigh=True, gradients=True, start=x_1, generator=generator,
            dtype=self.parameter.dtype, device=self.parameter.device,
        )  # fmt: skip
        fixed = {name: x.detach() for name, x in drawn.state.items()}
        energy, gradient = self.energy.with_gradient(fixed)
        inside = torch.isfinite(energy)
        for name, x in drawn.state.items():  # adds zero, with the gradient of the energy
            slope = torch.where(torch.isfinite(gradient[name]), gradient[name], 0.0)
            energy = energy + ((x - fixed[name]) * slope).flatten(1).sum(1)
        log_w = drawn.log_ratio - torch.where(inside, energy, 0.0)  # type: ignore[operator]
        mean = torch.where(inside, log_w, 0.0).sum() / inside.sum().clamp(min=1)
        ess = weight_ess(torch.where(inside, log_w, -torch.inf).detach())
        return {"loss": -mean, "elbo": mean.detach(), "ess": ess}
