"""Runs chains until a limit of steps, seconds or energy calls, and logs their progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from egm.baselines.chain_options import ChainOptions
from egm.baselines.kept_states import KeptStates
from egm.mcmc import Kernel
from egm.runs.directory import RunDirectory
from egm.targets.base import Target
from egm.train.progress import Progress

LOG_EVERY = 100  # steps


class ChainRun:
    """Chains of a kernel, warm-up first.

    Args:
        target: the distribution.
        kernel: a kernel for the target.
        options: the options, with `warmup` set.
        steps, time_limit: steps of each chain after warm-up, and seconds including warm-up; None for no limit.
        seed: seed of every random number.
        device, dtype: device and dtype of the states.
        progress: display of the progress.
        directory: folder of the log, if it is written.
    """

    def __init__(
        self,
        target: Target,
        kernel: Kernel,
        options: ChainOptions,
        *,
        steps: int | None,
        time_limit: float | None,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        progress: Progress,
        directory: RunDirectory | None,
    ) -> None:
        self.target, self.kernel, self.options = target, kernel, options
        self.steps, self.time_limit, self.progress, self.directory = steps, time_limit, progress, directory
        self.kept = KeptStates(target, chains=options.chains, thin=options.thin, most=options.keep)
        self.warmed, self.step, self._logged = 0, 0, (0, 0)
        self._counted_before = target.energy_calls, target.score_calls
        self._cost = 0  # energy calls of a kernel's step
        self._acceptance = torch.zeros((), dtype=torch.float64, device=device)
        self._began = time.monotonic()
        target.check(device, seed=seed, dtype=dtype)
        self._generator = torch.Generator(device).manual_seed(seed)
        start = target.chain_start(options.chains, generator=self._generator, device=device, dtype=dtype)
        kernel.reset()
        self._latent = kernel.expand(target.space.to_latent(start))

    @torch.no_grad()
    def until_finished(self, between: Callable[[], None]) -> None:
        """Steps until a limit is reached; `between` is called before every step, and may raise."""
        while not self.finished():
            between()
            self._advance()
            self._refuse_excess()
            if (self.warmed + self.step) % LOG_EVERY == 0:
                self.log()

    @property
    def warming(self) -> bool:
        """Whether the next step belongs to the warm-up."""
        return self.warmed < (self.options.warmup or 0)

    def _advance(self) -> None:
        space, counted = self.target.space, self.target.energy_calls
        self._latent, acceptance = self.kernel.step(self._latent, generator=self._generator)
        self._cost = self.target.energy_calls - counted
        if self.warming:
            self.kernel.adapt(acceptance)
            self.warmed += 1
        else:
            self.step += 1
            self._acceptance += self.kernel.cold(acceptance).double().mean()
            if self.kept.due(self.step):
                cold = {name: self.kernel.cold(z) for name, z in self._latent.items()}
                self.kept.add(self.step, space.from_latent(cold))

    def _refuse_excess(self) -> None:
        """Raises if the first step exceeds `energy_calls`; it tells the cost of a step, so later steps cannot."""
        budget, spent = self.options.energy_calls, self._spent()
        if budget is not None and spent > budget:
            raise ValueError(
                f"energy_calls={budget} does not suffice for one step of {self.options.chains} chains, which takes"
                f" {self._cost}; raise it to {spent} or more, or lower chains"
            )

    def finished(self) -> bool:
        """Returns whether a limit is reached, or one more step would exceed the energy calls."""
        if self.steps is not None and self.step >= self.steps:
            return True
        if self.time_limit is not None and time.monotonic() - self._began >= self.time_limit:
            return True
        budget = self.options.energy_calls
        if budget is None:
            return False
        recorded = self.options.chains if not self.warming and self.kept.due(self.step + 1) else 0
        return self._spent() + self._cost + recorded > budget

    def share(self) -> float:
        """Returns the used share of the nearest limit, 0 to 1."""
        shares = [0.0]
        if self.steps is not None:
            warmup = self.options.warmup or 0
            shares.append((self.warmed + self.step) / (warmup + self.steps))
        if self.time_limit is not None:
            shares.append((time.monotonic() - self._began) / self.time_limit)
        if self.options.energy_calls is not None:
            shares.append(self._spent() / self.options.energy_calls)
        return min(1.0, max(shares))

    def calls(self) -> dict[str, int]:
        """Returns the numbers of energies and gradients that this run has evaluated, the first check included."""
        energies, scores = self._counted_before
        return {
            "energy_calls": self.target.energy_calls - energies,
            "score_calls": self.target.score_calls - scores,
        }

    def _spent(self) -> int:
        return self.calls()["energy_calls"] + self.kept.energies_to_come

    def log(self) -> None:
        """Logs the run's cost and the mean energy of new states, unless this step was logged already."""
        if self._logged == (self.warmed, self.step):
            return
        self._logged = self.warmed, self.step
        energy = self.kept.mean_energy()
        row: dict[str, Any] = {"step": self.step, "seconds": self._seconds(), **self.calls()}
        if energy is not None:
            row["mean_energy"] = energy
            if self.directory is not None:
                self.directory.append_metrics(row)
        self.progress.update(self.share(), row)

    def outcome(self) -> dict[str, Any]:
        """Returns the run's cost, its kernel's adapted values and diagnostics of the kept states, as plain values."""
        return {
            "step": self.step,
            "warmup": self.warmed,
            "kept": len(self.kept),
            "thin": self.kept.thin,
            "seconds": self._seconds(),
            **self.calls(),
            "kernel": repr(self.kernel),
            "acceptance": float(self._acceptance) / max(1, self.step),
            "adapted": self.kernel.report(),
            "diagnostics": self.kept.diagnostics(),
        }

    def _seconds(self) -> float:
        return round(time.monotonic() - self._began, 2)
