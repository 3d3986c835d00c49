"""PIS, the path integral sampler: steers a Brownian motion from the origin so that it ends in the target.

    dX = u_θ(X, t) dt + dW,      u_θ = (x̂_1 − X)/(1 − t),      x_{k+1} = x_k + h u_k + √h ε_k.

Without u it ends in N(0, I), so the path weights of these steps are

    log w = −E(x_1) − log N(x_1; 0, I) − Σ_k [ ½h |u_k|² + √h u_k·ε_k ].

The steps of the trained sampler have the same weights: on the path of a Brownian motion (`egm.paths.Foellmer`), widened
by the error of the reference law, a bridge is this Euler–Maruyama step. The loss −E[log w] is, up to log Z, the
divergence of the steered paths from the target's paths; its last term has mean zero and is left out. The loss is
minimised by gradients through all steps and through the energy at the end, so no buffer is needed; every state costs
one energy and one gradient of the energy. States of zero density have no gradient and are left out, so nothing is
learned about hard walls (the logged bound is then −inf). Modes that the sampler does not visit do not enter the loss,
so the sampler may lose them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from egm.draws.diagnostics import weight_ess
from egm.methods.registry import add_method, add_options
from egm.methods.regression import default_t_min
from egm.methods.trained import Trained
from egm.networks import predict
from egm.paths.gaussian import Foellmer
from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.processes.diffusion import Diffusion
from egm.simulation.clock import time_grid
from egm.simulation.denoiser_error import DenoiserError
from egm.spaces import State
from egm.targets.guard import EnergyGuard
from egm.train.buffer import ReplayBuffer
from egm.train.method import Method


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
    """Loss of PIS; for the arguments see `Method`."""

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
            if not (isinstance(process, Diffusion) and isinstance(process.path, Foellmer)):
                raise ValueError(
                    f"pis steers a Brownian motion, the diffusion along Foellmer(), and '{name}' follows"
                    f" {type(process).__name__} along {type(process.path).__name__}; use method='egm-sp'"
                )
        super().__init__(energy, path, processes, network, error)
        self.grid = time_grid(options.simulation_steps, start=default_t_min(path))
        self.parameter = next(network.parameters())

    def end_points(self, buffer: ReplayBuffer, n: int, generator: torch.Generator) -> State:
        """Draws the initial states of n simulations."""
        like = {"dtype": self.parameter.dtype, "device": self.parameter.device}
        return self.path.prior_sample((n,), float(self.grid[0]), generator=generator, **like)

    def losses(self, x_1: State, *, first: bool, generator: torch.Generator) -> dict[str, Tensor]:
        """See `Method.losses`; here x_1 are the initial states of simulations."""
        x, cost, chance = self._steered(x_1, generator)
        fixed = {name: y.detach() for name, y in x.items()}
        energy, gradient = self.energy.with_gradient(fixed)
        inside = torch.isfinite(energy)
        for name, y in x.items():  # adds zero, with the gradient of the energy
            slope = torch.where(torch.isfinite(gradient[name]), gradient[name], 0.0)
            energy = energy + _sum((y - fixed[name]) * slope)
        cost = cost + torch.where(inside, energy, 0.0)
        log_w = (-cost - chance).detach()
        loss = torch.where(inside, cost, 0.0).sum() / inside.sum().clamp(min=1)
        log_w = torch.where(inside, log_w, -torch.inf)
        return {"loss": loss, "elbo": log_w.mean(), "ess": weight_ess(log_w)}

    def _steered(self, x: State, generator: torch.Generator) -> tuple[State, Tensor, Tensor]:
        """Returns x_1, Σ ½h |u|² + log N(x_1; 0, I), and Σ √h u·ε without its gradient, [n] each."""
        n, variables = len(next(iter(x.values()))), self.path.space.real
        cost, chance = self.parameter.new_zeros((2, n))
        for t, r in pairwise(self.grid.tolist()):
            prediction = predict(self.network, self.processes, x, self.parameter.new_full((n,), t))
            moved: State = {}
            for name, y in x.items():
                u = (variables[name].project(prediction[name]) - y) / (1 - t)
                noise = variables[name].noise((n,), generator=generator, dtype=y.dtype, device=y.device)
                noise = math.sqrt(r - t) * noise
                moved[name] = y + (r - t) * u + noise
                cost = cost + 0.5 * (r - t) * _sum(u.square())
                chance = chance + _sum(u.detach() * noise)
            x = moved
        for name, y in x.items():
            cost = cost + variables[name].gaussian_log_prob(y, cost.new_ones(()))
        return x, cost, chance


def _sum(x: Tensor) -> Tensor:
    """Sums over all axes but the first."""
    return x.reshape(len(x), -1).sum(1)


add_options("PIS", PISOptions)
add_method(
    "pis",
    Trained(
        "baseline PIS: gradients of the evidence lower bound through the simulation of a controlled Brownian motion",
        method=PIS,
        options=PISOptions,
        path="Foellmer",
    ),
)
