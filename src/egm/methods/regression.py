"""Regression targets of EGM and EGM-BS at noised states.

Given end points x_1, draws times t and states x_t ~ p_{t|1}(· | x_1), and estimates the targets at x_t
(`egm.estimation.estimators`):

    EGM       r = 1 with the target's energy: the prediction (denoiser or jump kernel)
    EGM-BS    r = min(t + ε, 1) with the running average of E^φ (the target's energy at r = 1): the prediction;
              r = 1 with the target's energy: Ê_t, on which E^φ is regressed (noised energy matching)

Times are stratified and ascending, so the states with t + ε ≥ 1 are known without waiting for the device. With
`opening` all times are late at first, and their interval opens towards t_min in STAGES equal parts: E^φ at t is
bootstrapped from later times, so it is learned after them. If all times were learned at once, E^φ at early times would
follow values at later times that are not learned yet, and so would the sampler, on whose draws everything is trained.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from egm.estimation.energy_model import unfinished
from egm.estimation.estimators import Estimate, estimate, wide_bytes
from egm.estimation.proposals import OwnSteps
from egm.estimation.single_site import single_site
from egm.methods.egm_options import EstimateOptions
from egm.methods.learned_energy import LearnedEnergy
from egm.networks.base import activation_bytes, predict
from egm.paths.product import ProductPath
from egm.spaces import State
from egm.train.buffer import ReplayBuffer
from egm.train.method import T_MAX, Method, stratified_times

STAGES = 50  # equal parts in which the interval of times opens


class Regression:
    """Regression targets of denoisers and intermediate energies.

    Args:
        method: the method whose energy, path, processes, network and error are used.
        options: options of the estimates.
        learned: E^φ; without it end points are always at r = 1.
        estimator: what is averaged for real variables, see `RegressionOptions`.
        sites: masked sites that the single-site bootstrap compares in each state; 0 for proposals.
    """

    def __init__(
        self,
        method: Method,
        *,
        options: EstimateOptions,
        learned: LearnedEnergy | None = None,
        estimator: str = "end-points",
        sites: int = 0,
    ) -> None:
        if options.proposal == "sampler" and (learned is None or method.error is None):
            raise ValueError(
                "proposal='sampler' proposes the short steps of egm-bs, whose errors are measured while it trains; with"
                " end points at r = 1 alone use proposal='reference'"
            )
        self.energy, self.path, self.processes = method.energy, method.path, method.processes
        self.network, self.error = method.network, method.error
        self.options, self.learned, self.estimator, self.sites = options, learned, estimator, sites
        self.t_min = default_t_min(self.path) if options.t_min is None else options.t_min
        self.stage = 0 if learned is not None and learned.options.opening else STAGES - 1

    @torch.no_grad()
    def __call__(
        self, x_1: State, *, first: bool, generator: torch.Generator
    ) -> tuple[State, Tensor, Estimate, dict[str, Tensor], Tensor]:
        """Returns noised states x_t, times t, and the regression targets at x_t (`_estimates`).

        The first step sets the energy model's units.
        """
        t, far = self.times(len(next(iter(x_1.values()))), generator)
        x_t = self.path.sample(x_1, t, generator=generator)
        if first and self.learned is not None:  # the target's units, also if E^φ is regressed on itself
            end = self._estimate(self.energy, x_t, t, slice(None), generator=generator)
            self.learned.model.calibrate(x_t, t, end.energy)
        return x_t, t, *self._estimates(x_t, t, far, generator)

    def open_times(self, progress: float) -> None:
        """Opens the next times when they are due; extending a run does not close them again."""
        if self.learned is not None and (opening := self.learned.options.opening):
            self.stage = max(self.stage, min(STAGES - 1, int(STAGES * progress / opening)))

    def times(self, n: int, generator: torch.Generator) -> tuple[Tensor, int]:
        """Returns n stratified times in ascending order, and how many of them are bootstrapped (t + ε < 1)."""
        span = (T_MAX - self.t_min) * (self.stage + 1) / STAGES
        start = T_MAX - span if self.stage + 1 < STAGES else self.t_min
        t = stratified_times(n, generator, start=start)
        far = 0 if self.learned is None else int(n * (1 - self._epsilon - start) / span)
        return t, max(0, min(n, far))

    def _estimates(
        self, x_t: State, t: Tensor, far: int, generator: torch.Generator
    ) -> tuple[Estimate, dict[str, Tensor], Tensor]:
        """Returns predictions at x_t, the sites of a variable that they cover (all if missing), and Ê_t for E^φ."""
        if self.sites and self.learned is not None:
            return self._single_site_estimates(x_t, t, far, generator)
        got, target = self._proposal_estimates(x_t, t, far, generator)
        return got, {}, target

    def _proposal_estimates(
        self, x_t: State, t: Tensor, far: int, generator: torch.Generator
    ) -> tuple[Estimate, Tensor]:
        """Estimates from end points at r: the first `far` states by E^φ, the others by the target's energy."""
        start = 0 if self._direct else far  # Ê_t of earlier states is bootstrapped as well
        end = None
        if start < len(t):
            end = self._estimate(self.energy, x_t, t, slice(start, None), generator=generator, short=not self._direct)
        if end is not None and (self.learned is None or not far):
            return end, end.energy
        booted = self._estimate(
            self.required_energy(), x_t, t, slice(far), generator=generator, step=self._epsilon, short=True
        )
        got = booted if end is None or far == len(t) else _joined(booted, _tail(end, far - start))
        return got, end.energy if end is not None and start == 0 else got.energy

    def _single_site_estimates(
        self, x_t: State, t: Tensor, far: int, generator: torch.Generator
    ) -> tuple[Estimate, dict[str, Tensor], Tensor]:
        """Returns tables of masked variables in the limit r → t; the other variables use proposals."""
        known = {
            name: single_site(self._site_energy, self.path, name, x_t, t, count=self.sites, generator=generator)
            for name in self.path.revealing
        }
        tables, sites = {n: k.table for n, k in known.items()}, {n: k.sites for n, k in known.items()}
        if self.without_proposals:
            # A variable without masked sites has no estimate (NaN); the others may have one.
            target = functools.reduce(lambda a, b: torch.where(a.isnan(), b, a), (k.energy for k in known.values()))
            if self.learned is not None and not self.learned.model.forward_looking:
                # Complete neighbours tie E^φ to the target (`_site_energy`), and so does the target's energy at late
                # times.
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
        """Returns the estimate for a part of the batch, from end points at r = 1 or t + step; `short` if r − t ≤ ε."""
        x_t, t = {name: x[part] for name, x in x_t.items()}, t[part]
        r = 1.0 if step is None else t + step
        law = self.options.proposal
        if law == "sampler":
            law = self._own_steps(x_t, t) if short else "reference"
        scores = self.energy.with_gradient if self.estimator == "scores" else None
        return estimate(
            energy, self.path, self.processes, x_t, t, r=r, count=self.options.proposals,
            proposal=law, scores=scores, centred=self.estimator == "centred",
            generator=generator, memory=self.options.memory,
            state_bytes=self._energy_bytes if step is None else self._learned_bytes,
        )  # fmt: skip

    def _own_steps(self, x_t: State, t: Tensor) -> OwnSteps:
        if self.error is None:
            raise ValueError("proposal='sampler' takes steps of the sampler, and their errors are not measured")
        errors = {name: self.error(name, t) for name in self.path.space.real}
        return OwnSteps(predict(self.network, self.processes, x_t, t), errors)

    def _site_energy(self, x_t: State, t: Tensor) -> Tensor:
        """Returns E^φ for the single-site bootstrap; complete states have the target's energy if nothing else ties E^φ.

        Neighbours are compared at equal t: only complete states, with E_t = E − log p_{t|1}(x_t | x_t), tie early times
        to the target.
        """
        learned = self.required_energy()(x_t, t)
        masked = {name: part.active(x_t[name]) for name, part in self.path.revealing.items()}
        looking = self.learned is not None and self.learned.model.forward_looking
        if not self.path.reveals or looking or self._direct:
            return learned
        complete = {name: x_t[name].masked_fill(sites, 0) for name, sites in masked.items()}
        return torch.where(unfinished(self.path, x_t), learned, self.energy(complete) - self.path.log_prob(x_t, x_t, t))

    @property
    def without_proposals(self) -> bool:
        """Whether all predictions and Ê_t come from single sites, so that there are no weights."""
        return bool(self.sites) and self.learned is not None and self.path.reveals and not self._direct

    @property
    def _direct(self) -> bool:
        """Whether E^φ is regressed on estimates from the target's energy."""
        return self.learned is None or self.learned.options.energy_target == "direct"

    def required_energy(self) -> LearnedEnergy:
        """Returns E^φ; raises where end points are always at r = 1."""
        if self.learned is None:
            raise ValueError("without an energy model every end point is at r = 1")
        return self.learned

    @property
    def _epsilon(self) -> float:
        return 0.0 if self.learned is None else self.learned.options.epsilon

    @functools.cached_property
    def _learned_bytes(self) -> int:
        """Bytes that E^φ needs for one state."""
        return 0 if self.learned is None else activation_bytes(self.learned.model.network, self.path)

    @property
    def _energy_bytes(self) -> int:
        """Bytes that the target's energy needs for one state in addition to the proposals."""
        return 0 if self.energy.target.narrow_symbols else wide_bytes(self.path.space)


class RegressionMethod(Method):
    """A method whose losses are regressions, with the state that steps change in addition to parameters.

    Attributes:
        regression: the regression targets.
    """

    regression: Regression

    @property
    def learned(self) -> LearnedEnergy | None:
        """E^φ, or None where the method learns no energy."""
        return self.regression.learned

    def after_step(self, progress: float) -> None:
        """Opens the next times when they are due, and updates the running average of E^φ."""
        self.regression.open_times(progress)
        if self.learned is not None:
            self.learned.after_step(progress)

    @property
    def averaging(self) -> bool:
        """Whether the running average of E^φ has begun."""
        return self.learned is not None and self.learned.averaging

    @property
    def phase(self) -> tuple[bool, int]:
        """Whether averaging has begun, and which times are open."""
        return self.averaging, self.regression.stage

    def state_dict(self) -> dict[str, Any]:
        return {"stage": self.regression.stage}

    def load_state_dict(self, state: dict[str, Any], buffer: ReplayBuffer) -> None:
        self.regression.stage = state.get("stage", self.regression.stage)


def default_t_min(path: ProductPath) -> float:
    """Returns 0.01 where proposals are singular at t = 0, otherwise 0."""
    return 0.01 if any(part.singular_at_start for part in path.paths.values()) else 0.0


def _tail(estimate: Estimate, start: int) -> Estimate:
    prediction = {name: x[start:] for name, x in estimate.prediction.items()}
    return Estimate(prediction, estimate.energy[start:], estimate.ess[start:])


def _joined(a: Estimate, b: Estimate) -> Estimate:
    prediction = {name: torch.cat([x, b.prediction[name]]) for name, x in a.prediction.items()}
    return Estimate(prediction, torch.cat([a.energy, b.energy]), torch.cat([a.ess, b.ess]))
