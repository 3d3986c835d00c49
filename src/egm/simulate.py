"""Simulation: from the prior at t_0 to the target at t = 1, all variables on one clock.

On a grid t_0 < … < t_T = 1 a prediction is made at each t_i and every variable moves from t_i to t_{i+1} with it:

    bridge        the process's own step K(x_{i+1} | x_i): the bridge of a diffusion or of symbols averaged over the
                  denoiser, the flow towards the denoised point, Euler for the continuous jump
    euler         the generator frozen at t_i: x + h u, Euler–Maruyama, and jumps with probability min(hλ, 1)
    tau-leaping   the same, but symbols jump with probability 1 − e^{−hλ}
    heun          for flows x + ½h (u(x_i, t_i) + u(x̃, t_{i+1})), x̃ = x + h u(x_i, t_i), of second order in h

Rates κ̇/(1−κ) and velocities diverge at t = 1, so the last step is the bridge's for every solver: no mask is left.

First hitting needs no grid for masked variables. A site is revealed at rate κ̇/(1−κ), whatever its value and the rest
of the state, so its time has P(τ ≤ t) = κ_t and can be drawn beforehand, τ = κ^{-1}(U). Drawing its value from the
denoiser at (x_τ, τ), one site after the other, gives exactly the chain with rates κ̇/(1−κ) D(y | x, t).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from egm.paths.discrete import Masked
from egm.paths.product import ProductPath
from egm.processes.base import Process, sample_table
from egm.processes.discrete_jump import DiscreteJump
from egm.processes.flow import Flow
from egm.spaces import State
from egm.variables import Categorical

#: predictions (denoiser means, tables, jump kernels) of every variable at latent states [n, ...] and times [n]
Predictor: TypeAlias = Callable[[State, Tensor], State]
Solver: TypeAlias = Literal["bridge", "euler", "tau-leaping", "heun"]
Spacing: TypeAlias = Literal["uniform", "late"]


def time_grid(steps: int, *, start: float = 0.0, spacing: Spacing = "uniform") -> Tensor:
    """Times from `start` to exactly 1, float64 [steps + 1], on the host.

    Args:
        steps: number of steps.
        start: the first time; positive where a process cannot begin at 0 (Euler on a diffusion).
        spacing: "uniform", best for symbols, or "late", with steps in proportion to √(1 − t): a real variable's fine
            structure is decided where σ_t has come down to its width, late if the target is narrow.

    >>> time_grid(4).tolist(), time_grid(4, spacing="late").tolist()
    ([0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 0.4375, 0.75, 0.9375, 1.0])
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if not 0 <= start < 1:
        raise ValueError(f"start must fulfil 0 <= start < 1, got {start}")
    if spacing not in get_args(Spacing):
        raise ValueError(f"spacing must be one of {', '.join(get_args(Spacing))}, got {spacing!r}")
    share = torch.linspace(0, 1, steps + 1, dtype=torch.float64, device="cpu")
    if spacing == "late":
        share = 1 - (1 - share).square()
    return torch.lerp(share.new_tensor(start), share.new_tensor(1.0), share)  # exact at both ends


@torch.no_grad()
def simulate(
    predict: Predictor,
    path: ProductPath,
    processes: Mapping[str, Process[Any]],
    n: int,
    *,
    grid: Tensor,
    solver: Solver = "bridge",
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> State:
    """Draw n latent states x_1, starting from the path's prior at grid[0].

    Args:
        predict: called with latent states [n, *shape] and times [n]; returns the prediction of every variable.
        path: the path of every variable.
        processes: the process of every variable.
        n: number of draws.
        grid: increasing times that end at 1, on the host (`time_grid`). Times that are equal in `dtype` are merged.
        solver: see the top of this file. The last step is the bridge's whatever the solver.
        generator: source of every random number, on `device`.
        dtype: of times and reals; by default torch's.
        device: where to simulate.
    """
    if solver not in get_args(Solver):
        raise ValueError(f"solver must be one of {', '.join(get_args(Solver))}, got {solver!r}")
    processes = _of_space(path, processes)
    flows = {name: process for name, process in processes.items() if isinstance(process, Flow)}
    if solver == "heun" and not flows:
        raise ValueError("solver 'heun' corrects the steps of Flow variables and there is none; use solver='bridge'")
    times = _host_times(grid, dtype)
    if solver in ("euler", "tau-leaping"):
        _require_finite(processes, times)
    times = times.to(device or torch.get_default_device())

    x = path.prior_sample((n,), times[0], generator=generator, dtype=dtype, device=device)
    for i, (t, r) in enumerate(pairwise(times.unbind())):
        method = solver if i < len(times) - 2 else "bridge"
        prediction = predict(x, t.expand(n))
        x_r = {
            name: _step_of(process, method)(x[name], prediction[name], t, r, generator=generator)
            for name, process in processes.items()
        }
        if method == "heun":
            ahead = predict(x_r, r.expand(n))
            for name, flow in flows.items():
                u_t = flow.marginal(x[name], prediction[name], t).drift
                u_r = flow.marginal(x_r[name], ahead[name], r).drift
                x_r[name] = x[name] + 0.5 * (r - t) * (u_t + u_r)
        x = x_r
    return x


@torch.no_grad()
def first_hitting(
    predict: Predictor,
    path: ProductPath,
    processes: Mapping[str, Process[Any]],
    n: int,
    *,
    grid: Tensor | None = None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> State:
    """Draw n latent states x_1, revealing the sites of masked variables one at a time, each at its own random time.

    If every variable is masked, this calls `predict` once for each site, and its law is that of the chain in continuous
    time, whatever `predict` says. Other variables step from event to event, the events being reveals and grid times.

    Args:
        predict: called with latent states [n, *shape] and their own times [n]; returns every variable's prediction.
        path: the path of every variable.
        processes: the process of every variable.
        n: number of draws.
        grid: times at which the variables that are not masked step as well; not used if there are none.
        generator: source of every random number, on `device`.
        dtype: of times and reals; by default torch's.
        device: where to simulate.
    """
    processes = _of_space(path, processes)
    masked = {
        name: process.path
        for name, process in processes.items()
        if isinstance(process, DiscreteJump) and isinstance(process.path, Masked)
    }
    if not masked:
        raise ValueError(f"first hitting reveals masked variables, and none of {list(processes)} is; use simulate")
    if len(masked) < len(processes) and grid is None:
        others = [name for name in processes if name not in masked]
        raise ValueError(f"the variables {others} are not masked and need a grid, for example grid=time_grid(100)")
    dtype, device = dtype or torch.get_default_dtype(), device or torch.get_default_device()
    if grid is None or len(masked) == len(processes):
        start, stops = 0.0, torch.ones(1, dtype=dtype)
    else:
        stops = _host_times(grid, dtype)
        start = float(stops[0])

    x = path.prior_sample((n,), start, generator=generator, dtype=dtype, device=device)
    clocks = [stops.to(device).expand(n, -1)]
    first_event: dict[str, int] = {}  # an event is a time of the grid, or the reveal of one site
    for name, path_ in masked.items():
        first_event[name] = sum(clock.shape[1] for clock in clocks)
        clocks.append(_reveal_times(path_, n, start, generator=generator, dtype=dtype, device=device))
    clock, order = torch.cat(clocks, 1).sort(dim=1, stable=True)
    for t, r, event in zip(clock[:, :-1].unbind(1), clock[:, 1:].unbind(1), order[:, :-1].unbind(1), strict=True):
        prediction = predict(x, t)
        x = {
            name: _reveal(masked[name].variable, x[name], prediction[name], event - first_event[name], generator)
            if name in masked
            else process.step(x[name], prediction[name], t, r, generator=generator)
            for name, process in processes.items()
        }
    return x


def _step_of(process: Process[Any], solver: Solver) -> Callable[..., Tensor]:
    """The step that moves a variable; under Heun flows first take the Euler step to x̃."""
    if solver == "euler" or (solver == "heun" and isinstance(process, Flow)):
        return process.euler
    return process.tau_leap if solver == "tau-leaping" else process.step


def _reveal_times(
    path: Masked,
    n: int,
    start: float,
    *,
    generator: torch.Generator | None,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Tensor:
    """τ = κ^{-1}(U) given τ > start, for every site, [n, sites]; never equal to start or 1 in `dtype`."""
    u = torch.rand((n, path.variable.sites), generator=generator, dtype=torch.float64, device=device)
    kappa = float(path.kappa(torch.tensor(start, dtype=torch.float64)))
    tau = path.schedule.inverse(kappa + (1 - kappa) * u)
    # steps from t = 0 to 0 and from 1 to 1 are 0/0
    eps = torch.finfo(dtype).eps
    return tau.clamp(start + eps, 1 - eps).to(dtype)


def _reveal(variable: Categorical, x: Tensor, table: Tensor, site: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw the value of one masked site of each state from its table; revealed and foreign sites stay as they are.

    Shapes: x [n, *shape], table [n, *shape, symbols], site [n] counted in the flattened shape.
    """
    flat, table = x.reshape(len(x), -1), table.reshape(len(x), -1, table.shape[-1])
    at = site.clamp(0, variable.sites - 1)[:, None]
    old = flat.gather(1, at)
    value = sample_table(table.gather(1, at[..., None].expand(-1, -1, table.shape[-1])), generator=generator)
    hidden = (at == site[:, None]) & (old == variable.mask)
    return flat.scatter(1, at, torch.where(hidden, value, old)).reshape(x.shape)


def _of_space(path: ProductPath, processes: Mapping[str, Process[Any]]) -> dict[str, Process[Any]]:
    """The processes in the space's order, so that draws do not depend on how they were listed."""
    if processes.keys() != path.paths.keys():
        raise ValueError(f"processes must name the variables {list(path.paths)}, got {list(processes)}")
    return {name: processes[name] for name in path.paths}


def _host_times(grid: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The grid in `dtype`, checked, still on the host; times that `dtype` cannot tell apart are merged."""
    if grid.device.type != "cpu" or not grid.is_floating_point() or grid.ndim != 1 or len(grid) < 2:
        raise ValueError(
            f"grid must be a vector of at least two floats on the host, got {grid.dtype} of shape {tuple(grid.shape)}"
            f" on {grid.device}; make one with time_grid(steps)"
        )
    if not (bool((grid.diff() > 0).all()) and grid[0] >= 0 and grid[-1] == 1):
        raise ValueError(f"grid must increase from grid[0] >= 0 to exactly 1, got {grid.tolist()}")
    times = torch.unique_consecutive(grid.to(dtype or torch.get_default_dtype()))
    if len(times) < 2:
        raise ValueError(f"grid starts at {float(grid[0])}, which is 1 in {times.dtype}; start earlier or use float64")
    return times


def _require_finite(processes: Mapping[str, Process[Any]], times: Tensor) -> None:
    for name, process in processes.items():
        if len(times) > 2 and not process.finite_at(times[0]):  # a single step is the bridge's
            raise ValueError(
                f"the generator of '{name}' is infinite at t = {float(times[0])}, where an Euler step cannot begin;"
                " start the grid later, time_grid(steps, start=0.01), or use solver='bridge'"
            )
