"""EGM and EGM-BS: the losses of one inner step of the paper's algorithm 1.

Given end points x_1 of the replay buffer: times t, states x_t ~ p_{t|1}(· | x_1), and regression targets at x_t from
the one estimator (`egm.estimation.estimators`):

    EGM       r = 1 with the target's energy: the prediction (denoiser or jump kernel)
    EGM-BS    r = min(t + ε, 1) with the running average of E^φ (the target's energy at r = 1): the prediction;
              r = 1 with the target's energy: Ê_t, on which E^φ is regressed (noised energy matching)

Times are stratified and ascending, so which states have t + ε ≥ 1 is known without looking at the device. With
`opening` all are late at first, and their interval opens towards t_min in STAGES equal parts: E^φ at t is bootstrapped
from later times, so it is learned once they are. Learned all at once, early times follow what later ones do not know
yet, and the sampler, on whose draws all is trained, follows them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from egm.estimation.energy_model import EnergyModel, unfinished
from egm.estimation.estimators import Estimate, estimate, wide_bytes
from egm.estimation.proposals import OwnSteps
from egm.estimation.single_site import single_site
from egm.methods.base import T_MAX, Method, stratified_times
from egm.methods.egm_options import EGMOptions
from egm.networks.base import activation_bytes, is_built_in, predict, rounding
from egm.paths.product import ProductPath
from egm.processes.base import LossOptions, Process
from egm.simulation.denoiser_error import DenoiserError
from egm.spaces import Real, State
from egm.targets.guard import EnergyGuard
from egm.train.buffer import ReplayBuffer

STAGES = 50  # in which times open


class EGM(Method):
    """Both methods; with an energy model it is EGM-BS.

    Args:
        energy, path, processes, network, error: see `Method`.
        energy_model: E^φ, or None for EGM.
    """

    def __init__(
        self,
        energy: EnergyGuard,
        path: ProductPath,
        processes: Mapping[str, Process[Any]],
        network: nn.Module,
        *,
        energy_model: EnergyModel | None = None,
        options: EGMOptions,
        error: DenoiserError | None = None,
    ) -> None:
        jumps = {name: type(process).__name__ for name, process in processes.items() if not process.bootstraps}
        for name, kind in jumps.items() if energy_model is not None else ():
            raise ValueError(
                f"egm-bs cannot train the {kind} of '{name}': it has no conditional generator for r < 1 that is"
                " consistent with the one for r = 1, so bootstrapping has nothing to average; use method='egm', or a"
                " Flow or Diffusion"
            )
        if options.proposal == "sampler" and (energy_model is None or error is None):
            raise ValueError(
                "proposal='sampler' proposes the short steps of egm-bs, whose errors are measured while it trains; with"
                " end points at r = 1 alone use proposal='reference'"
            )
        if energy_model is not None and options.bootstrap == "single-site" and not path.revealing:
            raise ValueError(
                "bootstrap='single-site' reveals masked sites and no variable follows a Masked path;"
                " use bootstrap='proposals'"
            )
        self._check_estimator(processes, options, bootstrapped=energy_model is not None)
        super().__init__(energy, path, processes, network, error)
        self.energy_model, self.options = energy_model, options
        self.t_min = default_t_min(path) if options.t_min is None else options.t_min
        self.stage = 0 if options.opening and energy_model is not None else STAGES - 1
        self.average: AveragedModel | None = None
        if energy_model is not None:
            self.average = AveragedModel(energy_model.network, multi_avg_fn=get_ema_multi_avg_fn(options.energy_ema))
            self.average.requires_grad_(False)

    @staticmethod
    def _check_estimator(processes: Mapping[str, Process[Any]], options: EGMOptions, *, bootstrapped: bool) -> None:
        if options.estimator == "end-points":
            return
        bootstrapped = bootstrapped and options.estimator == "scores"
        reals = {name: process for name, process in processes.items() if isinstance(process.path.variable, Real)}
        jumps = [name for name, process in reals.items() if not process.predicts_mean]
        if bootstrapped or jumps or not reals:
            scores = "averages the gradient of the target's energy for the flows and diffusions of method='egm'"
            what = scores if options.estimator == "scores" else "centres the estimates of flows and diffusions"
            why = "E^φ is bootstrapped" if bootstrapped else f"'{jumps[0]}' jumps" if jumps else "there are none"
            raise ValueError(f"estimator='{options.estimator}' {what}; here {why}: use estimator='end-points'")

    @torch.no_grad()
    def _warn_of_walls(self, x_1: State) -> None:
        """The identity behind scores has a term at the boundary, which hard walls do not let vanish."""
        if bool((self.energy(x_1) == torch.inf).any()):
            warnings.warn(
                f"some first draws have energy +inf under {self.energy.target!r}: scores are right only if the density"
                " falls to zero continuously there; behind a hard wall they are wrong, use estimator='end-points'"
                " (method 'egm' or 'iefm')",
                RuntimeWarning,
                stacklevel=2,
            )

    def modules(self) -> dict[str, nn.Module]:
        extra = {"energy_model": self.energy_model, "energy_average": self.average}
        return super().modules() | {name: module for name, module in extra.items() if module is not None}

    def averaged_energy_model(self) -> EnergyModel | None:
        """E^φ by its running average, which goes on with training."""
        if self.energy_model is None or self.average is None:
            return None
        return self.energy_model.with_network(self.average.module)

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        groups = super().parameter_groups(learning_rate)
        if self.energy_model is not None:
            parameters = list(self.energy_model.parameters())
            groups.append({"params": parameters, "lr": self.options.energy_learning_rate})
        return groups

    def losses(self, x_1: State, *, first: bool, generator: torch.Generator) -> dict[str, Tensor]:
        """See `Method.losses`."""
        if first and self.options.estimator == "scores":
            self._warn_of_walls(x_1)
        x_t, t, got, sites, target = self.regression(x_1, first=first, generator=generator)
        output = self.network(x_t, t)
        self.measure_error(x_1, output, t)
        o, total = self.options, torch.zeros((), device=t.device)
        how = LossOptions(real=o.real_loss, symbols=o.symbol_loss, clip=o.clip_estimate)
        # States whose proposals all have zero density say nothing about the generator.
        weight = (got.ess > 0).to(t.dtype) * (t if o.time_weight == "t" else 1.0)
        for name, process in self.processes.items():
            expected, symbols = got.prediction[name], name in self.path.space.categorical
            loss = process.loss(x_t[name], t, expected, output[name], how=how, sites=sites.get(name))
            total = total + (o.lambda_disc if symbols else o.lambda_cont) * (weight * loss).mean()
        shown = {"sampler_loss": total.detach()} | ({} if self._without_proposals else {"ess": got.ess.mean()})
        if self.energy_model is not None:
            matching = self.energy_model.loss(x_t, t, target, clip=self.options.clip_energy)
            shown["energy_loss"] = matching.detach()
            total = total + matching
        return {"loss": total, **shown}

    @torch.no_grad()
    def regression(
        self, x_1: State, *, first: bool, generator: torch.Generator
    ) -> tuple[State, Tensor, Estimate, dict[str, Tensor], Tensor]:
        """Noised states x_t, times t, and what to regress on there (`_estimates`).

        The first step sets the energy model's units.
        """
        t, far = self.times(len(next(iter(x_1.values()))), generator)
        x_t = self.path.sample(x_1, t, generator=generator)
        if first and self.energy_model is not None:  # the target's units, also if E^φ is regressed on itself
            end = self._estimate(self.energy, x_t, t, slice(None), generator=generator)
            self.energy_model.calibrate(x_t, t, end.energy)
        return x_t, t, *self._estimates(x_t, t, far, generator)

    def after_step(self, progress: float) -> None:
        """Update the running average of E^φ, and open the next times where they are due."""
        if self.options.opening:  # a run that is extended does not close them again
            self.stage = max(self.stage, min(STAGES - 1, int(STAGES * progress / self.options.opening)))
        begun = self.averaging or progress >= self.options.energy_ema_start
        if self.energy_model is not None and self.average is not None and begun:
            self.average.update_parameters(self.energy_model.network)

    @property
    def phase(self) -> tuple[bool, int]:
        """Whether averaging has begun, and which times are open."""
        return self.averaging, self.stage

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "stage": self.stage}

    def load_state_dict(self, state: dict[str, Any], buffer: ReplayBuffer) -> None:
        super().load_state_dict(state, buffer)
        self.stage = state.get("stage", self.stage)

    def times(self, n: int, generator: torch.Generator) -> tuple[Tensor, int]:
        """n stratified times in ascending order, and how many of them are bootstrapped (t + ε < 1)."""
        span = (T_MAX - self.t_min) * (self.stage + 1) / STAGES
        start = T_MAX - span if self.stage + 1 < STAGES else self.t_min
        t = stratified_times(n, generator, start=start)
        far = int(n * (1 - self.options.epsilon - start) / span) if self.energy_model is not None else 0
        return t, max(0, min(n, far))

    def _estimates(
        self, x_t: State, t: Tensor, far: int, generator: torch.Generator
    ) -> tuple[Estimate, dict[str, Tensor], Tensor]:
        """Predictions at x_t, the sites of a variable that they cover (all if missing), and Ê_t to regress E^φ on."""
        if self.options.bootstrap == "single-site" and self.energy_model is not None:
            return self._single_site_estimates(x_t, t, far, generator)
        got, target = self._proposal_estimates(x_t, t, far, generator)
        return got, {}, target

    def _proposal_estimates(
        self, x_t: State, t: Tensor, far: int, generator: torch.Generator
    ) -> tuple[Estimate, Tensor]:
        """From end points at r: the first `far` states by E^φ, the others by the target's energy."""
        direct = self.options.energy_target == "direct"
        start = 0 if direct else far  # Ê_t of earlier states is bootstrapped as well
        end = None
        if start < len(t):
            end = self._estimate(self.energy, x_t, t, slice(start, None), generator=generator, short=not direct)
        if not far and end is not None:
            return end, end.energy
        booted = self._estimate(
            self._learned_energy, x_t, t, slice(far), generator=generator, step=self.options.epsilon, short=True
        )
        got = booted if end is None or far == len(t) else _joined(booted, _tail(end, far - start))
        return got, end.energy if end is not None and start == 0 else got.energy

    def _single_site_estimates(
        self, x_t: State, t: Tensor, far: int, generator: torch.Generator
    ) -> tuple[Estimate, dict[str, Tensor], Tensor]:
        """Tables of masked variables in the limit r → t; proposals for what is left."""
        known = {
            name: single_site(self._site_energy, self.path, name, x_t, t, count=self.options.sites, generator=generator)
            for name in self.path.revealing
        }
        tables, sites = {n: k.table for n, k in known.items()}, {n: k.sites for n, k in known.items()}
        if self._without_proposals:
            # A variable without masked sites says nothing (NaN); the others may.
            target = functools.reduce(lambda a, b: torch.where(a.isnan(), b, a), (k.energy for k in known.values()))
            if self.energy_model is not None and not self.energy_model.forward_looking:
                # Complete neighbours tie E^φ to the target (`_site_energy`), and so does its energy at late times.
                end = self._estimate(self.energy, x_t, t, slice(far, None), generator=generator, short=True)
                target = torch.cat([target[:far], end.energy])
            return Estimate(tables, target, torch.ones_like(target)), sites, target
        if self.path.reveals:
            end = self._estimate(self.energy, x_t, t, slice(None), generator=generator)
            return Estimate(tables, end.energy, end.ess), sites, end.energy
        got, target = self._proposal_estimates(x_t, t, far, generator)
        return Estimate({**got.prediction, **tables}, got.energy, got.ess), sites, target

    def _estimate(
        self,
        energy: Callable[[State, Any], Tensor],
        x_t: State,
        t: Tensor,
        part: slice,
        *,
        generator: torch.Generator,
        step: float | None = None,
        short: bool = False,
    ) -> Estimate:
        """The estimate for a part of the batch, from end points at r = 1 or at t + step; `short` if r − t ≤ ε."""
        x_t, t = {name: x[part] for name, x in x_t.items()}, t[part]
        r = 1.0 if step is None else t + step
        law = self.options.proposal
        if law == "sampler":
            law = self._own_steps(x_t, t) if short else "reference"
        scores = self.energy.with_gradient if self.options.estimator == "scores" else None
        return estimate(
            energy, self.path, self.processes, x_t, t, r=r, count=self.options.proposals,
            proposal=law, scores=scores, centred=self.options.estimator == "centred",
            generator=generator, memory=self.options.memory,
            state_bytes=self._energy_bytes if step is None else self._activation_bytes,
        )  # fmt: skip

    def _own_steps(self, x_t: State, t: Tensor) -> OwnSteps:
        if self.error is None:
            raise ValueError("proposal='sampler' takes steps of the sampler, and their errors are not measured")
        errors = {name: self.error(name, t) for name in self.path.space.real}
        return OwnSteps(predict(self.network, self.processes, x_t, t), errors)

    def _learned_energy(self, x_r: State, r: Any) -> Tensor:
        """E^φ by its running average, once that has begun; on a GPU built-in ones in bfloat16 (but for their heads)."""
        if self.energy_model is None or self.average is None:
            raise ValueError("EGM has no energy model")
        network, device = self.average if self.averaging else None, next(iter(x_r.values())).device
        with rounding(device, enabled=is_built_in(self.energy_model.network)):
            return self.energy_model(x_r, r, network=network)

    def _site_energy(self, x_t: State, t: Tensor) -> Tensor:
        """E^φ of the single-site bootstrap; where that is all E^φ learns from, the target's energy of complete states.

        Neighbours are compared at equal t: only complete states, E_t = E − log p_{t|1}(x_t | x_t), tie early times to
        the target.
        """
        learned = self._learned_energy(x_t, t)
        masked = {name: part.active(x_t[name]) for name, part in self.path.revealing.items()}
        looking = self.energy_model is not None and self.energy_model.forward_looking
        if not self.path.reveals or looking or self.options.energy_target == "direct":
            return learned
        complete = {name: x_t[name].masked_fill(sites, 0) for name, sites in masked.items()}
        return torch.where(unfinished(self.path, x_t), learned, self.energy(complete) - self.path.log_prob(x_t, x_t, t))

    @property
    def _without_proposals(self) -> bool:
        """Whether single sites give all predictions and Ê_t, so that there are no weights."""
        o = self.options
        single = self.energy_model is not None and o.bootstrap == "single-site"
        return single and self.path.reveals and o.energy_target == "bootstrap"

    @property
    def averaging(self) -> bool:
        """Whether the running average of E^φ has begun; torch keeps its count on the host."""
        return self.average is not None and bool(self.average.n_averaged > 0)

    @property
    def _energy_bytes(self) -> int:
        """Bytes that the target's energy takes for one state beside proposals of the same kind."""
        return 0 if self.energy.target.narrow_symbols else wide_bytes(self.path.space)

    @functools.cached_property
    def _activation_bytes(self) -> int:
        """Bytes that E^φ takes for one state."""
        if self.energy_model is None:
            return 0
        return activation_bytes(self.energy_model.network, self.path)


def default_t_min(path: ProductPath) -> float:
    """0.01 where proposals are singular at t = 0, otherwise 0."""
    return 0.01 if any(part.singular_at_start for part in path.paths.values()) else 0.0


def _tail(estimate: Estimate, start: int) -> Estimate:
    prediction = {name: x[start:] for name, x in estimate.prediction.items()}
    return Estimate(prediction, estimate.energy[start:], estimate.ess[start:])


def _joined(a: Estimate, b: Estimate) -> Estimate:
    prediction = {name: torch.cat([x, b.prediction[name]]) for name, x in a.prediction.items()}
    return Estimate(prediction, torch.cat([a.energy, b.energy]), torch.cat([a.ess, b.ess]))
