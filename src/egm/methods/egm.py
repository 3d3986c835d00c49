"""EGM and EGM-BS: the losses of one inner step of the paper's algorithm 1.

The denoiser is regressed on the estimates of `egm.methods.regression`, and E^φ (EGM-BS) on Ê_t, in the same step:

    loss = λ_disc Σ_symbols D(estimate, prediction) + λ_cont Σ_reals D(estimate, prediction) + (E^φ_t − Ê_t)²/unit².
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from egm.estimation.energy_model import EnergyModel
from egm.methods.egm_options import (
    BootstrapOptions,
    EGMBSOptions,
    EGMOptions,
    EnergyOptions,
    EstimateOptions,
    RegressionOptions,
)
from egm.methods.learned_energy import LearnedEnergy
from egm.methods.registry import add_method, add_options
from egm.methods.regression import Regression, RegressionMethod
from egm.methods.trained import Trained
from egm.paths.product import ProductPath
from egm.processes.base import Loss, Process
from egm.simulation.denoiser_error import DenoiserError
from egm.spaces import Real, State
from egm.targets.guard import EnergyGuard


class EGM(RegressionMethod):
    """Losses of EGM and, with an energy model, of EGM-BS.

    Args:
        energy, path, processes, network, error: see `Method`.
        energy_model: E^φ, or None for EGM.
        options: `EGMBSOptions` with an energy model, otherwise `EGMOptions`.
    """

    def __init__(
        self,
        energy: EnergyGuard,
        path: ProductPath,
        processes: Mapping[str, Process[Any]],
        network: nn.Module,
        *,
        energy_model: EnergyModel | None = None,
        options: EGMOptions | EGMBSOptions,
        error: DenoiserError | None = None,
    ) -> None:
        super().__init__(energy, path, processes, network, error)
        self.options, learned, sites = options, None, 0
        if energy_model is not None:
            if not isinstance(options, EGMBSOptions):
                raise TypeError(f"an energy model needs EGMBSOptions, got {type(options).__name__}")
            learned = LearnedEnergy(energy_model, options)
            sites = options.sites if options.bootstrap == "single-site" else 0
        check_processes(path, processes, estimator=options.estimator, bootstrapped=learned is not None)
        if sites and not path.revealing:
            raise ValueError(
                "bootstrap='single-site' reveals masked sites and no variable follows a Masked path;"
                " use bootstrap='proposals'"
            )
        self.regression = Regression(self, options=options, learned=learned, estimator=options.estimator, sites=sites)

    def losses(self, x_1: State, *, first: bool, generator: torch.Generator) -> dict[str, Tensor]:
        """See `Method.losses`."""
        if first and self.options.estimator == "scores":
            self._warn_of_walls(x_1)
        x_t, t, got, sites, target = self.regression(x_1, first=first, generator=generator)
        output = self.network(x_t, t)
        self.measure_error(x_1, output, t)
        o, total = self.options, torch.zeros((), device=t.device)
        by = Loss(real=o.real_loss, symbols=o.symbol_loss, clip=o.clip_estimate)
        # States whose proposals all have zero density say nothing about the generator.
        weight = (got.ess > 0).to(t.dtype) * (t if o.time_weight == "t" else 1.0)
        for name, process in self.processes.items():
            expected, symbols = got.prediction[name], name in self.path.space.categorical
            loss = process.loss(x_t[name], t, expected, output[name], by=by, sites=sites.get(name))
            total = total + (o.lambda_disc if symbols else o.lambda_cont) * (weight * loss).mean()
        shown = {"sampler_loss": total.detach()}
        if not self.regression.without_proposals:
            shown["ess"] = got.ess.mean()
        if self.learned is not None:
            matching = self.learned.loss(x_t, t, target)
            shown["energy_loss"] = matching.detach()
            total = total + matching
        return {"loss": total, **shown}

    @torch.no_grad()
    def _warn_of_walls(self, x_1: State) -> None:
        """Warns of hard walls, at which the boundary term of the identity behind scores does not vanish."""
        if bool((self.energy(x_1) == torch.inf).any()):
            warnings.warn(
                f"some first draws have energy +inf under {self.energy.target!r}: scores are right only if the density"
                " falls to zero continuously there; behind a hard wall they are wrong, use estimator='end-points'"
                " (method 'egm' or 'iefm')",
                RuntimeWarning,
                stacklevel=2,
            )

    def modules(self) -> dict[str, nn.Module]:
        return {**super().modules(), **({} if self.learned is None else self.learned.modules())}

    def averaged_energy_model(self) -> EnergyModel | None:
        return None if self.learned is None else self.learned.averaged()

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        groups = super().parameter_groups(learning_rate)
        if self.learned is not None and isinstance(self.options, EGMBSOptions):
            parameters = list(self.learned.model.parameters())
            groups.append({"params": parameters, "lr": self.options.energy_learning_rate})
        return groups


def check_processes(
    path: ProductPath, processes: Mapping[str, Process[Any]], *, estimator: str, bootstrapped: bool
) -> None:
    """Raises if a process cannot be bootstrapped, or if an estimator has nothing to average."""
    fixed = {name: type(process).__name__ for name, process in processes.items() if not process.bootstraps}
    for name, kind in fixed.items() if bootstrapped else ():
        raise ValueError(
            f"egm-bs cannot train the {kind} of '{name}': it has no conditional generator for r < 1 that is"
            " consistent with the one for r = 1, so bootstrapping has nothing to average; use method='egm', or a"
            " Flow or Diffusion"
        )
    if estimator == "end-points":
        return
    bootstrapped = bootstrapped and estimator == "scores"
    reals = {name: process for name, process in processes.items() if isinstance(process.path.variable, Real)}
    jumps = [name for name, process in reals.items() if not process.predicts_mean]
    if bootstrapped or jumps or not reals:
        scores = "averages the gradient of the target's energy for the flows and diffusions of method='egm'"
        what = scores if estimator == "scores" else "centres the estimates of flows and diffusions"
        why = "E^φ is bootstrapped" if bootstrapped else f"'{jumps[0]}' jumps" if jumps else "there are none"
        raise ValueError(f"estimator='{estimator}' {what}; here {why}: use estimator='end-points'")


add_options("estimates (EGM, EGM-BS, iEFM, iDEM, BNEM)", EstimateOptions)
add_options("loss of the denoiser (EGM, EGM-BS, iEFM, iDEM)", RegressionOptions)
add_options("intermediate energy (EGM-BS, BNEM)", EnergyOptions)
add_options("bootstrapping (EGM-BS)", BootstrapOptions)
add_method(
    "egm", Trained("importance sampling of the generator by proposals of the end point", method=EGM, options=EGMOptions)
)
add_method(
    "egm-bs",
    Trained(
        "the same by proposals a short time ahead, weighted by a learned intermediate energy",
        method=EGM,
        options=EGMBSOptions,
        learns_energy=True,
    ),
)
