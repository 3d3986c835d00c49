"""The course of a simulation: its times, its solver, and the variances by which steps are widened.

On a course that does not depend on the states, draws have path weights (`egm.simulation.path_weights`) if each step
has a density K(x_r | x_t), or is a map whose determinant |det ∂x_r/∂x_t| is computed. Bridges and reveals have
weights; steps with a frozen generator have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

import torch
from torch import Tensor

from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.simulation.clock import Clock, Solver
from egm.simulation.flow_map import LARGEST

#: error variance of a variable's denoiser at times t [n or 1], with the axes of the variable after the axis of t
ErrorOf: TypeAlias = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True)
class Course:
    """The options of a simulation, forwards or backwards.

    Attributes:
        grid: increasing times that end at 1, on the host (`egm.simulation.clock.time_grid`); times that are equal in
            the dtype of a simulation are merged. First hitting needs no grid if every variable is masked, and then
            calls the network once for each site.
        solver: see `egm.simulation.simulate`.
        calls: number of network calls, if every variable is masked and first hitting may reveal several sites at once
            (`egm.simulation.clock`).
        error: error variance by which the bridges of diffusions are widened; by default zero, which makes their law too
            narrow.
    """

    grid: Tensor | None = None
    solver: Solver = "bridge"
    calls: int | None = None
    error: ErrorOf | None = None

    def __post_init__(self) -> None:
        if self.solver not in get_args(Solver):
            raise ValueError(f"solver must be one of {', '.join(get_args(Solver))}, got {self.solver!r}")

    def why_unweighted(self, processes: Mapping[str, Process[Any]]) -> str | None:
        """Returns the reason why a simulation has no path weights, or None if it has weights."""
        if self.solver not in ("bridge", "first-hitting"):
            return f"solver '{self.solver}' takes steps whose density is not computed; use solver='bridge'"
        flowing = 0
        for name, process in processes.items():
            if process.deterministic:
                flowing += process.path.variable.dimension
            elif not process.has_density:
                return f"{type(process).__name__} of '{name}' has no step density; use a Diffusion or a Flow for it"
        if flowing > LARGEST:
            return (
                f"flows have {flowing} coordinates, and Jacobians are computed for at most {LARGEST}; use a Diffusion,"
                " processes={'…': 'diffusion'}"
            )
        return None


def prepare(
    path: ProductPath,
    processes: Mapping[str, Process[Any]],
    n: int,
    course: Course,
    *,
    weigh: bool,
    generator: torch.Generator | None,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> tuple[dict[str, Process[Any]], Clock]:
    """Returns the processes in the space's order, so that draws do not depend on how they were listed, and the clock.

    Raises if the course does not fit the processes, or has no path weights although `weigh` asks for them.
    """
    if processes.keys() != path.paths.keys():
        raise ValueError(f"processes must name the variables {list(path.paths)}, got {list(processes)}")
    processes = {name: processes[name] for name in path.paths}
    if weigh:
        _require_weights(processes, course)
    return processes, make_clock(processes, n, course, generator=generator, dtype=dtype, device=device)


def _require_weights(processes: Mapping[str, Process[Any]], course: Course) -> None:
    if (reason := course.why_unweighted(processes)) is not None:
        raise ValueError(f"there are no path weights: {reason}")
    if course.error is None and any(process.widened for process in processes.values()):
        raise ValueError("weights of a diffusion need its denoiser's error variance; pass error=DenoiserError(path)")


def make_clock(
    processes: Mapping[str, Process[Any]],
    n: int,
    course: Course,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Clock:
    """Returns the clock of n simulations: the grid, and for first hitting also the reveal of every site."""
    hitting, grid = course.solver == "first-hitting", course.grid
    masked = {name: process.path for name, process in processes.items() if hitting and process.reveals}
    others = [name for name in processes if name not in masked]
    if hitting and not masked:
        raise ValueError(f"first hitting reveals masked variables, and none of {others} is masked; use solver='bridge'")
    if others and grid is None:
        raise ValueError(f"the variables {others} need a grid, for example grid=time_grid(100)")
    if masked:
        return Clock.with_reveals(
            masked, n, grid=grid if others else None, calls=course.calls, generator=generator, dtype=dtype,
            device=device,
        )  # fmt: skip
    if grid is None:
        raise ValueError("there is no variable to simulate")
    return Clock.on_grid(grid, dtype=dtype, device=device)
