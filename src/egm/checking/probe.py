"""The probe of all checks: a target, draws of its reference law at any width, and the number of states to evaluate.

Checks work in latent coordinates z, in which the reference law is a standard Gaussian (× uniform symbols) and the
density is exp(−U(z)), U(z) = E(x(z)) − log |∂x/∂z|.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from egm.spaces import State
from egm.targets.base import EnergyError, Target

SECONDS_A_STATE = 1e-4  # at which the checks take a few seconds; slower energies are evaluated on fewer states


class EnergyRaised(Exception):
    """Error that the energy raised an exception, which is the cause of this one."""


class Probe:
    """A target with a generator, a device and a dtype.

    Attributes:
        effort: share of the usual number of states, less than one for slow energies.
        eps: relative rounding error of the energy's dtype, which may differ from the states' dtype.
    """

    def __init__(self, target: Target, *, device: torch.device | str, dtype: torch.dtype, seed: int) -> None:
        self.target, self.space = target, target.space
        self.device, self.dtype = torch.device(device), dtype
        self.generator = torch.Generator(device).manual_seed(seed)
        self.effort, self.eps = 1.0, torch.finfo(dtype).eps

    def measure(self) -> None:
        """Sets effort and eps by a small batch, and by a larger one unless that would take long."""
        with torch.no_grad(), _own_exceptions():
            self.eps = torch.finfo(self.target.energy(**self.states(8)).dtype).eps
        for n in (8, 64):
            state = self.states(n)
            self.energy(state)  # the first call may compile something
            begin = time.perf_counter()
            self.energy(state).cpu()
            seconds = time.perf_counter() - begin
            # In powers of four, so that a busy machine does not change which states are tried.
            self.effort = 4.0 ** min(0, math.floor(math.log(SECONDS_A_STATE * n / seconds, 4)))
            if seconds > 0.02:
                break

    def count(self, usual: int, *, least: int) -> int:
        """Returns how many states to use if `usual` states are used for a fast energy."""
        return max(least, round(self.effort * usual))

    def latent(self, n: int, *, width: float = 1.0) -> State:
        """Draws n latent states, the reals `width` times as wide as the reference law."""
        reals = {
            name: width * v.noise((n,), generator=self.generator, dtype=self.dtype, device=self.device)
            for name, v in self.space.real.items()
        }
        symbols = {
            name: v.uniform((n,), generator=self.generator, device=self.device)
            for name, v in self.space.categorical.items()
        }
        return {name: reals[name] if name in reals else symbols[name] for name in self.space}

    def states(self, n: int, *, width: float = 1.0) -> State:
        """Draws states as `latent`, in the coordinates x."""
        return self.space.from_latent(self.latent(n, width=width))

    def energy(self, state: State) -> Tensor:
        """Returns E(x) in double precision, [...]."""
        with torch.no_grad(), _own_exceptions():
            return self.target.energy(**state).double()

    def potential(self, latent: State) -> Tensor:
        """Returns U(z) in double precision, [...]."""
        with torch.no_grad(), _own_exceptions():
            return self.target.latent_energy(latent).double()

    def potential_and_gradient(self, latent: State) -> tuple[Tensor, State]:
        """Returns U(z) and ∇U(z); raises `EnergyError` if there is no gradient."""
        with _own_exceptions():
            return self.target.latent_energy_and_gradient(latent)

    def noise(self, *shape: int) -> Tensor:
        """Draws standard Gaussian numbers."""
        return torch.randn(shape, generator=self.generator, dtype=self.dtype, device=self.device)


@contextmanager
def _own_exceptions() -> Iterator[None]:
    """Turns exceptions of the user's energy into `EnergyRaised`, except `EnergyError` (a missing gradient)."""
    try:
        yield
    except EnergyError:
        raise
    except Exception as error:
        raise EnergyRaised from error


def flat(x: Tensor) -> Tensor:
    """Returns a batch of arrays or numbers as rows, [n, entries]."""
    return x.reshape(len(x), -1)


def shown(state: State, index: int) -> str:
    """Returns one state of a batch as text, its arrays cut after six entries."""
    parts = []
    for name, x in state.items():
        entries = x[index].flatten().tolist()
        text = ", ".join(f"{entry:.4g}" for entry in entries[:6]) + (", …" if len(entries) > 6 else "")
        parts.append(f"{name}=[{text}]" if x[index].ndim else f"{name}={text}")
    return ", ".join(parts)


def entry(name: str, shape: tuple[int, ...], place: int) -> str:
    """Returns the name of one entry of an array: "x[0, 2]"."""
    if not shape:
        return name
    index = []
    for size in reversed(shape):
        place, here = divmod(place, size)
        index.append(here)
    return f"{name}[{', '.join(map(str, reversed(index)))}]"


def listed(names: list[str]) -> str:
    """Returns the first few names as text."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def rounded(x: float, *, beside: float | None = None) -> float:
    """Rounds a number for a suggestion: to two digits, or to a tenth of the width `beside`."""
    if x == 0 or not math.isfinite(x):
        return 0.0
    return float(f"{x:.2g}") if beside is None else round(x, 1 - math.floor(math.log10(beside))) + 0.0
