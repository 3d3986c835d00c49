"""Clocks: the times from t_0 to 1 at which a simulation steps; they do not depend on the states.

On a grid all draws step together. Masked variables need no grid: a site is revealed at rate κ̇/(1−κ), independently
of its value and of the rest of the state, so its time has P(τ ≤ t) = κ_t and can be drawn beforehand, τ = κ^{-1}(U).
Each draw then has its own clock, in which the reveals of single sites are merged into the grid.

Where every variable is masked, S sites may also be revealed in K < S steps, several at a time and independently of each
other given the known sites. This loses the mutual information of the sites in a group. For a pair of sites it falls as
1/m with the number m of known sites, because known sites in between screen the two sites from each other. For given K,
the loss Σ_groups g²/2m is least if group sizes g are proportional to √m: after k steps (k/K)² S sites are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from egm.paths.discrete import DiscretePath
from egm.util.cached_tensors import cached_tensor

#: see `egm.simulation.simulate`
Solver: TypeAlias = Literal["bridge", "first-hitting", "euler", "tau-leaping", "heun"]
SolverChoice: TypeAlias = Literal["auto", Solver]
Spacing: TypeAlias = Literal["uniform", "late"]


def time_grid(steps: int, *, start: float = 0.0, spacing: Spacing = "uniform") -> Tensor:
    """Returns times from `start` to exactly 1, float64 [steps + 1], on the host.

    Args:
        steps: number of steps.
        start: the first time; positive where a process cannot begin at 0 (Euler on a diffusion).
        spacing: "uniform", best for symbols, or "late", with steps proportional to √(1 − t): the fine structure of a
            real variable is decided when σ_t has fallen to its width, which is late if the target is narrow. With 32 or
            more steps, the last "late" step begins after the last time that networks are trained on, which makes
            the weights much worse.

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


@dataclass(frozen=True)
class Tick:
    """One step of the clock, from t to r: scalars on the device, or [n] if each draw has its own clock.

    Attributes:
        sites: for each variable that is revealed site by site, the sites (indices of the flattened shape) to reveal in
            this step, int64 [n, g]; an index out of range means no site.
    """

    t: Tensor
    r: Tensor
    sites: Mapping[str, Tensor]


@dataclass(frozen=True)
class Clock:
    """The steps of a simulation.

    Attributes:
        start: time at which a simulation begins; nothing happens between it and the first step.
        times: [steps + 1], or [n, steps + 1].
        events: events at the time at which each step begins, int64 [n, g] for each step; None on a grid.
        first_event: site i of a variable is revealed by event first_event + i.
    """

    start: float
    times: Tensor
    events: Sequence[Tensor] | None
    first_event: Mapping[str, int]

    @classmethod
    def on_grid(
        cls, grid: Tensor, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Clock:
        """Returns a clock common to all draws, from an increasing grid of times on the host that ends at 1."""
        times = host_times(grid, dtype)
        return cls(float(times[0]), _copied_once(times, device), None, {})

    @classmethod
    def with_reveals(
        cls,
        masked: Mapping[str, DiscretePath],
        n: int,
        *,
        grid: Tensor | None,
        calls: int | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Clock:
        """Returns a clock that reveals every site of these variables at its own random time, and steps on a grid too.

        With `calls` and no grid, the sites of a group are revealed together, at the time of the first site.
        """
        dtype, device = dtype or torch.get_default_dtype(), device or torch.get_default_device()
        stops = torch.ones(1, dtype=dtype) if grid is None else host_times(grid, dtype)
        start = 0.0 if grid is None else float(stops[0])
        clocks, first = [_copied_once(stops, device).expand(n, -1)], {}
        for name, path in masked.items():
            first[name] = sum(clock.shape[1] for clock in clocks)
            clocks.append(_reveal_times(path, n, start, generator=generator, dtype=dtype, device=device))
        times, order = torch.cat(clocks, 1).sort(dim=1, stable=True)
        sites = times.shape[1] - 1
        if grid is not None or calls is None or calls >= sites:
            return cls(start, times, order[:, :-1].split(1, dim=1), first)
        ends = group_ends(sites, calls)
        begins = torch.stack([times[:, i] for i in [0, *ends]], 1)
        return cls(start, begins, [order[:, i:j] for i, j in pairwise([0, *ends])], first)

    def __iter__(self) -> Iterator[Tick]:
        return (self._tick(i) for i in range(self.times.shape[-1] - 1))

    def __reversed__(self) -> Iterator[Tick]:
        return (self._tick(i) for i in reversed(range(self.times.shape[-1] - 1)))

    def __len__(self) -> int:
        return self.times.shape[-1] - 1

    def _tick(self, i: int) -> Tick:
        sites = {} if self.events is None else {name: self.events[i] - e for name, e in self.first_event.items()}
        return Tick(self.times[..., i], self.times[..., i + 1], sites)


def group_ends(sites: int, calls: int) -> list[int]:
    """Returns the number of sites known after each of `calls` steps, each of which reveals at least one.

    >>> group_ends(20, 6)
    [1, 3, 5, 9, 14, 20]
    """
    if not 1 <= calls <= sites:
        raise ValueError(f"calls must lie between 1 and the number of sites, {sites}, got {calls}")
    return [max(k, math.ceil(sites * (k / calls) ** 2)) for k in range(1, calls + 1)]


def host_times(grid: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Returns the validated grid in `dtype`, on the host; times that `dtype` cannot distinguish are merged."""
    if grid.device.type != "cpu" or not grid.is_floating_point() or grid.ndim != 1 or len(grid) < 2:
        raise ValueError(
            f"grid must be a vector of at least two floats on the host, got {grid.dtype} of shape {tuple(grid.shape)}"
            f" on {grid.device}; make one with time_grid(steps)"
        )
    if not (all(a < b for a, b in pairwise(grid.tolist())) and grid[0] >= 0 and grid[-1] == 1):
        raise ValueError(f"grid must increase from grid[0] >= 0 to exactly 1, got {grid.tolist()}")
    times = torch.unique_consecutive(grid.to(dtype or torch.get_default_dtype()))
    if len(times) < 2:
        raise ValueError(f"grid starts at {float(grid[0])}, which is 1 in {times.dtype}; start earlier or use float64")
    return times


def _copied_once(times: Tensor, device: torch.device | str | None) -> Tensor:
    """Returns cached times on the device; a CUDA graph (egm.simulation.capture) cannot copy them from the host."""
    where = torch.device(device or torch.get_default_device())
    return cached_tensor(tuple(times.tolist()), times.dtype, where)


def _reveal_times(
    path: DiscretePath,
    n: int,
    start: float,
    *,
    generator: torch.Generator | None,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Tensor:
    """Draws τ = κ^{-1}(U) given τ > start, for every site, [n, sites]; never equal to start or 1 in `dtype`."""
    u = torch.rand((n, path.variable.sites), generator=generator, dtype=torch.float64, device=device)
    kappa = float(path.kappa(torch.tensor(start, dtype=torch.float64)))
    tau = path.schedule.inverse(kappa + (1 - kappa) * u)
    # steps from t = 0 to 0 and from 1 to 1 are 0/0
    eps = torch.finfo(dtype).eps
    return tau.clamp(start + eps, 1 - eps).to(dtype)
