"""Path weights: importance weights that make the draws of any simulation exact.

On a clock that does not depend on the states, with p_0 the density of x_0 and K the density of a step,

    log_ratio = −log p_0(x_0) + Σ_steps [ log p_{t|r}(x_t | x_r) − log K(x_r | x_t) ],

and w = exp(log_ratio − E(x_1)) has the mean Z for every prediction. The bridges of a diffusion are widened by the
denoiser's error (otherwise the last bridge has no density). Instead of the bracket, flows have log |det ∂x_r/∂x_t| of
their numerical map (`egm.simulation.flow_map`), and a reveal has −log D(value | x_τ, τ), because its time has the same
law backwards.

A trajectory drawn backwards from x_1 by the kernels p_{t|r} of the path has the same log_ratio. Averaged over x_1 from
the target, log_ratio − E(x_1) is an upper bound of log Z (EUBO), and detects modes that the sampler never visits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.simulation.clock import Clock, Tick
from egm.simulation.course import Course, ErrorOf, prepare
from egm.spaces import State
from egm.spaces.variables import Categorical

#: predictions (denoiser means, tables, jump kernels) of every variable at latent states [n, ...] and times [n]
Predictor: TypeAlias = Callable[[State, Tensor], State]


def start_log_prob(path: ProductPath, x: State, clock: Clock) -> Tensor:
    """Returns log p_0(x_0), float64 [n]; variables revealed site by site start fully masked and contribute zero."""
    n = len(next(iter(x.values())))
    total = torch.zeros(n, dtype=torch.float64, device=clock.times.device)
    for name, part in path.paths.items():
        if name not in clock.first_event:
            total = total + part.prior_log_prob(x[name], clock.start).double()
    return total


def errors_at(processes: Mapping[str, Process[Any]], error: ErrorOf | None, tick: Tick) -> State:
    """Returns the error variance by which each diffusion is widened in a step."""
    if error is None:
        return {}
    return {name: error(name, tick.t.reshape(-1)) for name, process in processes.items() if process.widened}


def step_log_ratio(
    processes: Mapping[str, Process[Any]],
    x_t: State,
    x_r: State,
    prediction: State,
    *,
    tick: Tick,
    errors: State,
) -> Tensor:
    """Returns Σ over variables of log p_{t|r}(x_t | x_r) − log K(x_r | x_t), float64 [n]; for a reveal −log D(value).

    `errors` must be the error variances with which the diffusions stepped (`errors_at`).
    """
    total = torch.zeros((), dtype=torch.float64, device=tick.t.device)
    for name, process in processes.items():
        if name in tick.sites:
            total = total - revealed_log_prob(x_t[name], x_r[name], prediction[name]).double()
            continue
        width = {"error": errors[name]} if process.widened else {}
        forward = process.log_step(x_r[name], x_t[name], prediction[name], tick.t, tick.r, **width)
        backward = process.path.log_prob(x_t[name], x_r[name], tick.t, tick.r)
        # Two events of a clock may have equal times in floating point; then nothing moves.
        total = total + torch.where(tick.r > tick.t, backward - forward, 0.0).double()
    return total


def revealed_log_prob(x_t: Tensor, x_r: Tensor, table: Tensor) -> Tensor:
    """Returns Σ log D(x_r^i) over the sites that differ between x_t and x_r, [n]."""
    chosen = table.gather(-1, x_r.clamp(max=table.shape[-1] - 1)[..., None])[..., 0]
    return torch.where(x_t != x_r, chosen, 1.0).log().reshape(len(x_t), -1).sum(1)


def reverse_log_ratio(
    predict: Predictor,
    path: ProductPath,
    processes: Mapping[str, Process[Any]],
    x_1: State,
    course: Course,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Returns the log_ratio of trajectories drawn backwards by p_{t|r} from latent states [n, ...], float64 [n].

    Gradients flow through the predictions along the trajectories. Flows cannot be run backwards.
    """
    if any(process.deterministic for process in processes.values()):
        raise ValueError("a flow is not run backwards, so it has no evidence upper bound; use a Diffusion")
    first = next(iter(x_1.values()))
    dtype = next((x.dtype for x in x_1.values() if x.is_floating_point()), None)
    processes, clock = prepare(
        path, processes, len(first), course, weigh=True, generator=generator, dtype=dtype, device=first.device
    )
    x, log_ratio = x_1, torch.zeros(len(first), dtype=torch.float64, device=first.device)
    for tick in reversed(clock):
        before = {
            name: hide(part.variable, x[name], tick.sites[name])
            if name in tick.sites and isinstance(part.variable, Categorical)
            else part.sample(x[name], tick.t, tick.r, generator=generator)
            for name, part in path.paths.items()
        }
        prediction = predict(before, tick.t.expand(len(first)))
        errors = errors_at(processes, course.error, tick)
        log_ratio = log_ratio + step_log_ratio(processes, before, x, prediction, tick=tick, errors=errors)
        x = before
    return log_ratio - start_log_prob(path, x, clock)


def hide(variable: Categorical, x: Tensor, sites: Tensor) -> Tensor:
    """Masks some sites [n, g] of each state; sites out of range are skipped."""
    return put(x, sites, torch.full_like(sites, variable.mask))


def put(x: Tensor, sites: Tensor, values: Tensor) -> Tensor:
    """Returns x [n, *shape] with values [n, g] at sites [n, g] of its flattened shape; skips sites out of range."""
    flat = x.reshape(len(x), -1)
    count = flat.shape[1]
    spare = torch.cat([flat, flat[:, :1]], 1)  # a column for skipped sites
    at = torch.where((sites >= 0) & (sites < count), sites, count)
    return spare.scatter(1, at, values)[:, :count].reshape(x.shape)
