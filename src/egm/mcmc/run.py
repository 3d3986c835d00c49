"""Many chains in parallel: warm-up with adaptation, then draws with the kernel frozen."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from egm.mcmc.base import Kernel, SupportsEnergy
from egm.spaces import State

PROGRESS_SECONDS = 2.0
"""Least number of seconds between two progress lines."""


@dataclass(frozen=True)
class Chains:
    """Draws of many chains, in the coordinates x of the energy.

    Attributes:
        state: [steps, chains, ...] for each variable.
        energy: E(x), [steps, chains].
        acceptance: mean acceptance after warm-up.
        energy_calls, score_calls: calls of the target's energy and gradient by the whole run, warm-up included, and
            one energy call for every draw kept.
        seconds: wall-clock time.
        report: adapted values and counts of the kernel (step sizes, swap rates).
    """

    state: State
    energy: Tensor
    acceptance: float
    energy_calls: int
    score_calls: int
    seconds: float
    report: dict[str, float]


@torch.no_grad()
def run(
    target: SupportsEnergy,
    kernel: Kernel,
    *,
    chains: int,
    warmup: int,
    steps: int,
    thin: int = 1,
    seed: int = 0,
    init: State | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> Chains:
    """Runs many chains: warm-up steps that adapt the kernel, then draws with the kernel frozen.

    Args:
        target: the distribution for which the kernel was built.
        kernel: the transition; it is reset first, so the result depends on these arguments alone.
        chains: number of chains, all advanced together.
        warmup: kernel steps that adapt the kernel and are discarded.
        steps: number of draws to keep of each chain.
        thin: kernel steps from one kept draw to the next.
        seed: seeds every random number.
        init: state [chains, ...] to start from, by default draws of the space's reference law.
        device: where the chains run.
        progress: write a line to stderr every few seconds.
    """
    for name, value, least in (("chains", chains, 1), ("warmup", warmup, 0), ("steps", steps, 1), ("thin", thin, 1)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if kernel.target is not target:
        raise ValueError(f"the kernel was built for {kernel.target!r}, not for {target!r}; build it from this target")
    started, calls, scores = time.perf_counter(), target.energy_calls, target.score_calls
    generator = torch.Generator(device).manual_seed(seed)
    state = target.space.reference_sample(chains, generator=generator, device=device) if init is None else init
    if target.space.check(state) != (chains,):
        raise ValueError(
            f"init must hold {chains} states, one per chain, got the batch shape {target.space.check(state)}"
        )
    state = {name: value.to(device) for name, value in state.items()}

    kernel.reset()
    latent = kernel.expand(target.space.to_latent(state))
    line = _Progress(total=warmup + steps * thin, enabled=progress)
    for _ in range(warmup):
        latent, acceptance = kernel.step(latent, generator=generator)
        kernel.adapt(acceptance)
        line.update("warm-up", acceptance)

    states: list[State] = []
    energies: list[Tensor] = []
    total = torch.zeros((), dtype=torch.float64, device=device)
    for _ in range(steps):
        for _ in range(thin):
            latent, acceptance = kernel.step(latent, generator=generator)
            total += kernel.cold(acceptance).double().mean()
            line.update("sampling", acceptance)
        states.append(target.space.from_latent({name: kernel.cold(z) for name, z in latent.items()}))
        energies.append(target.energy(**states[-1]))
        if len(states) == 1:
            _require_finite(energies[0], states[0])
    return Chains(
        state={name: torch.stack([state[name] for state in states]) for name in target.space},
        energy=torch.stack(energies),
        acceptance=float(total) / (steps * thin),
        energy_calls=target.energy_calls - calls,
        score_calls=target.score_calls - scores,
        seconds=time.perf_counter() - started,
        report=kernel.report(),
    )


def _require_finite(energy: Tensor, state: State) -> None:
    bad = ~torch.isfinite(energy)
    if bool(bad.any()):
        chain = int(bad.nonzero()[0])
        shown = ", ".join(f"{name}={value[chain].tolist()}" for name, value in state.items())
        raise ValueError(
            f"{int(bad.sum())} of {len(bad)} chains still have no finite energy after warm-up, for example"
            f" E = {float(energy[chain])} at {shown}; pass init=... with states of positive density"
        )


class _Progress:
    """Progress lines on stderr, at most one every `PROGRESS_SECONDS`."""

    def __init__(self, *, total: int, enabled: bool) -> None:
        self.total = total
        self.enabled = enabled
        self.done = 0
        self.started = self.shown = time.perf_counter()

    def update(self, phase: str, acceptance: Tensor) -> None:
        self.done += 1
        now = time.perf_counter()
        if not self.enabled or now - self.shown < PROGRESS_SECONDS:
            return
        self.shown = now
        elapsed = now - self.started
        left = elapsed / self.done * (self.total - self.done)
        message = f"mcmc {phase}: step {self.done} of {self.total}, acceptance {float(acceptance.mean()):.2f}"
        print(f"{message}, {elapsed:.0f} s, {left:.0f} s left", file=sys.stderr, flush=True)
