"""BNEM, bootstrapped noised energy matching: learns only the intermediate energy, whose gradient drives the sampler.

E^φ_t is regressed on Ê_t, estimated from proposals of the end point (NEM, `energy_target="direct"`) or from proposals
at t + ε that E^φ itself weighs (BNEM, the default), as in EGM-BS (`egm.methods.egm`). There is no second network: the
denoiser that a diffusion follows is

    x̂_1(x_t) = (x_t − σ_t² ∇E^φ_t(x_t))/α_t,

so every step of a simulation computes the gradient of E^φ. All variables must be real, because symbols have no
gradient. Where E^φ is wrong, its gradient may move draws far out, and E^φ is then trained there: `clip_estimate`
prevents this by cutting the norm of the rescaled denoiser (`egm.processes.denoising`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from egm.config.parts import Parts, default_energy_network
from egm.estimation.energy_model import EnergyModel
from egm.methods.egm_options import EnergyScoreOptions
from egm.methods.learned_energy import LearnedEnergy
from egm.methods.registry import add_method
from egm.methods.regression import Regression, RegressionMethod
from egm.methods.trained import Trained
from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.processes.denoising import cut, rescaling
from egm.simulation.denoiser_error import DenoiserError
from egm.spaces import State
from egm.targets.guard import EnergyGuard


class EnergyScore(nn.Module):
    """Denoiser computed from E^φ, for real variables; the norm of its rescaled form is cut at `clip`."""

    def __init__(self, energy: EnergyModel, path: ProductPath, clip: float | None = None) -> None:
        super().__init__()
        self.energy, self._path, self._clip = energy, path, clip

    def forward(self, state: State, t: Tensor) -> State:
        """Returns E[x_1 | x_t] of every variable, without gradients with respect to parameters."""
        with torch.enable_grad():
            leaves = {name: x.detach().requires_grad_() for name, x in state.items()}
            energy = self.energy(leaves, t)
            gradients = torch.autograd.grad(energy.sum(), list(leaves.values()))
        variables = self._path.space.real
        scores = {name: -variables[name].project(g) for name, g in zip(leaves, gradients, strict=True)}
        paths = self._path.gaussian
        found = {name: paths[name].denoised_by_score(x, scores[name], t, t) for name, x in state.items()}
        if self._clip is None:
            return found
        for name, x_1 in found.items():
            middle, size = rescaling(paths[name], state[name], t)
            found[name] = middle + size * cut((x_1 - middle) / size, self._clip, variables[name])
        return found


class BNEM(RegressionMethod):
    """The loss of E^φ in EGM-BS, without a loss of the denoiser; `clip_estimate` is for the sampler's denoiser."""

    def __init__(
        self,
        energy: EnergyGuard,
        path: ProductPath,
        processes: Mapping[str, Process[Any]],
        network: EnergyScore,
        *,
        options: EnergyScoreOptions,
        error: DenoiserError | None = None,
    ) -> None:
        for name, process in processes.items():
            if not process.predicts_mean:
                raise ValueError(
                    f"bnem follows the gradient of an energy, which '{name}' with a {type(process).__name__} does not"
                    " have; use method='egm-bs'"
                )
        super().__init__(energy, path, processes, network, error)
        self.regression = Regression(self, options=options, learned=LearnedEnergy(network.energy, options))

    def modules(self) -> dict[str, nn.Module]:
        return {"network": self.network, "energy_average": self.regression.required_energy().average}

    def losses(self, x_1: State, *, first: bool, generator: torch.Generator) -> dict[str, Tensor]:
        """See `Method.losses`."""
        x_t, t, got, _, target = self.regression(x_1, first=first, generator=generator)
        matching = self.regression.required_energy().loss(x_t, t, target)
        self.measure_error(x_1, self.network(x_t, t), t)
        return {"loss": matching, "energy_loss": matching.detach(), "ess": got.ess.mean()}


def score_network(parts: Parts) -> nn.Module:
    """Returns the denoiser of an E^φ that uses the network of a run."""
    energy = EnergyModel(parts.network.module, parts.path, parts.target)
    return EnergyScore(energy, parts.path, parts.options.clip_estimate)


add_method(
    "bnem",
    Trained(
        "baseline BNEM: a learned intermediate energy alone, whose gradient is the sampler's score",
        method=BNEM,
        options=EnergyScoreOptions,
        path="VE",
        network=default_energy_network,
        network_is_energy=True,
        wrapped=score_network,
    ),
)
