"""Simulation: from the prior at t_0 to the target at t = 1, all variables on one clock.

In each step from t to r a prediction is made at x_t and every variable moves with it:

    bridge         the process's own step K(x_r | x_t): the bridge of a diffusion or of symbols averaged over the
                   denoiser, the flow towards the denoised point, Euler for the continuous jump
    first-hitting  masked sites are revealed one at a time, each at its own random time; other variables follow bridges
    euler          the generator frozen at t: x + h u, Euler–Maruyama, and jumps with probability min(hλ, 1)
    tau-leaping    the same, but symbols jump with probability 1 − e^{−hλ}
    heun           for flows x + ½h (u(x_t, t) + u(x̃, r)), x̃ = x + h u(x_t, t), of second order in h

Rates κ̇/(1−κ) and velocities diverge at t = 1, so for every solver the last step is a bridge step: no mask is left.
First hitting is exact for masked variables: drawing a site's value from the denoiser at (x_τ, τ), τ = κ^{-1}(U), one
site after the other, simulates the continuous-time chain with rates κ̇/(1−κ) D(y | x, t).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from egm.paths.product import ProductPath
from egm.processes.base import Process, sample_table
from egm.simulation.clock import Clock, Solver, Tick
from egm.simulation.course import Course, prepare
from egm.simulation.flow_map import flow_step
from egm.simulation.path_weights import Predictor, errors_at, put, start_log_prob, step_log_ratio
from egm.spaces import State


@dataclass(frozen=True)
class Simulation:
    """The result of a simulation.

    Attributes:
        state: latent states x_1, [n, ...].
        log_ratio: log_ratio of the path weights (`egm.simulation.path_weights`), float64 [n]; None without weights.
        invertible: whether the maps of flows passed the test of invertibility, bool [n]; None without flows or weights.
        times: times of the states, [n], if a method trains on intermediate states; None if all states are at t = 1.
    """

    state: State
    log_ratio: Tensor | None = None
    invertible: Tensor | None = None
    times: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Returns all tensors by name, as a CUDA graph (`egm.simulation.capture`) keeps them."""
        extra = {".log_ratio": self.log_ratio, ".invertible": self.invertible, ".times": self.times}
        return {**self.state, **{name: x for name, x in extra.items() if x is not None}}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Simulation:
        """Rebuilds a simulation from its `tensors`."""
        state = {name: x for name, x in tensors.items() if not name.startswith(".")}
        return cls(state, *(tensors.get(name) for name in (".log_ratio", ".invertible", ".times")))


@torch.no_grad()
def simulate(
    predict: Predictor,
    path: ProductPath,
    processes: Mapping[str, Process[Any]],
    n: int,
    course: Course,
    *,
    weigh: bool = False,
    between: Callable[[State, Tensor, Tensor], tuple[State, Tensor]] | None = None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Simulation:
    """Draws n latent states x_1, starting from the path's prior at the first time of the grid.

    Args:
        predict: called with latent states [n, *shape] and times [n]; returns the prediction of every variable.
        path: the path of every variable.
        processes: the process of every variable.
        n: number of draws.
        course: the grid, the solver, and the error variances that widen steps.
        weigh: compute `log_ratio`; only bridges and reveals have one.
        between: replaces states and log_ratio after each step of a grid but the last (`egm.simulation.smc`).
        generator: source of every random number, on `device`.
        dtype: dtype of times and reals; by default torch's default dtype.
        device: where to simulate.
    """
    _check(processes, course.solver, weigh=weigh, exchange=between is not None)
    processes, clock = prepare(path, processes, n, course, weigh=weigh, generator=generator, dtype=dtype, device=device)
    _require_finite(processes, clock, course.solver)
    flows = {name: process for name, process in processes.items() if process.deterministic}
    kernels = {name: process for name, process in processes.items() if name not in flows}

    x = path.prior_sample((n,), clock.start, generator=generator, dtype=dtype, device=device)
    for name in clock.first_event:  # no site is revealed yet
        x[name] = torch.full_like(x[name], processes[name].path.variable.mask)
    log_ratio = -start_log_prob(path, x, clock)
    invertible = torch.ones(n, dtype=torch.bool, device=log_ratio.device)
    for i, tick in enumerate(clock):
        t, r, solver = tick.t, tick.r, course.solver if i < len(clock) - 1 else _last(course.solver)
        moved, errors = {}, errors_at(processes, course.error, tick)
        if weigh and flows:
            prediction, moved, log_det, regular = flow_step(predict, flows, x, t.expand(n), r)
            log_ratio, invertible = log_ratio + log_det, invertible & regular
        else:
            prediction = predict(x, t.expand(n))
        for name, process in processes.items():
            if name in tick.sites:
                moved[name] = reveal(x[name], prediction[name], tick.sites[name], generator)
            elif name not in moved:
                step = _step_of(process, solver, errors.get(name))
                moved[name] = step(x[name], prediction[name], t, r, generator=generator)
        if solver == "heun":
            moved |= _corrected(flows, x, moved, (prediction, predict(moved, r.expand(n))), tick)
        if weigh:
            log_ratio = log_ratio + step_log_ratio(kernels, x, moved, prediction, tick=tick, errors=errors)
        x = moved
        if between is not None and i < len(clock) - 1:
            x, log_ratio = between(x, log_ratio, r)
    return Simulation(x, log_ratio, invertible if flows else None) if weigh else Simulation(x)


def reveal(x: Tensor, table: Tensor, sites: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws the values of some masked sites of each state from their tables; sites out of range are skipped.

    Shapes: x [n, *shape], table [n, *shape, symbols], sites [n, g] as indices of the flattened shape.
    """
    table = table.reshape(len(x), -1, table.shape[-1])
    at = sites.clamp(0, table.shape[1] - 1)[..., None].expand(-1, -1, table.shape[-1])
    return put(x, sites, sample_table(table.gather(1, at), generator=generator))


def _step_of(process: Process[Any], solver: Solver, error: Tensor | None) -> Callable[..., Tensor]:
    """Returns the function that steps a variable; under Heun, flows first take the Euler step to x̃."""
    if solver == "euler" or (solver == "heun" and process.deterministic):
        return process.euler
    if solver == "tau-leaping":
        return process.tau_leap
    return process.step if error is None else functools.partial(process.step, **{"error": error})


def _corrected(
    flows: Mapping[str, Process[Any]], x: State, x_r: State, predictions: tuple[State, State], tick: Tick
) -> State:
    """Returns Heun's steps of flows, by the mean of the velocities at both ends."""
    moved: State = {}
    for name, flow in flows.items():
        u_t = flow.marginal(x[name], predictions[0][name], tick.t).drift
        u_r = flow.marginal(x_r[name], predictions[1][name], tick.r).drift
        moved[name] = x[name] + 0.5 * (tick.r - tick.t) * (u_t + u_r)
    return moved


def _last(solver: Solver) -> Solver:
    return solver if solver == "first-hitting" else "bridge"


def _check(processes: Mapping[str, Process[Any]], solver: Solver, *, weigh: bool, exchange: bool) -> None:
    if solver == "heun" and not any(process.deterministic for process in processes.values()):
        raise ValueError("solver 'heun' corrects the steps of Flow variables, but there is none; use solver='bridge'")
    if exchange and (solver != "bridge" or not weigh):
        raise ValueError("resampling between steps needs a common grid and weights; use solver='bridge' and weigh=True")


def _require_finite(processes: Mapping[str, Process[Any]], clock: Clock, solver: Solver) -> None:
    if solver not in ("euler", "tau-leaping") or len(clock) == 1:  # a single step is a bridge step
        return
    for name, process in processes.items():
        if not process.finite_at(torch.tensor(clock.start, dtype=torch.float64)):
            raise ValueError(
                f"the generator of '{name}' is infinite at t = {clock.start}, where an Euler step cannot begin;"
                " start the grid later, time_grid(steps, start=0.01), or use solver='bridge'"
            )
