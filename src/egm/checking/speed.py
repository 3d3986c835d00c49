"""Measures what an energy costs for one state and for many together.

A loop over states shows in the number of torch operations, which then grows with the batch and does not depend on the
load of the machine; loops outside torch show only in the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

from egm.checking.findings import Finding
from egm.checking.probe import Probe

TRAINING = 1_000_000  # energies, the order of a short training run
MINUTES = 10.0
NOTICEABLE = 1e-4  # seconds per state


def check_speed(probe: Probe) -> list[Finding]:
    """Finds energies that gain nothing by batching, or that would make training long."""
    n = probe.count(1000, least=24)
    alone, together = (_seconds(probe, size) for size in (1, n))
    each = together / n
    few, many = (_operations(probe, size) for size in (1, 16))
    findings = []
    advice = "replace loops over states by tensor operations over the leading axes"
    if many >= 4 * max(few, 4):
        text = (
            f"the energy takes {few} torch operations for one state and {many} for 16, so it loops over the batch and"
        )
        findings.append(Finding("warning", "batching", f"{text} does not profit from it; {advice}"))
    elif each > max(0.8 * alone, NOTICEABLE):
        text = (
            f"{n} states take {together / alone:.0f} times as long as one, so the energy does not profit from batches"
        )
        findings.append(Finding("warning", "batching", f"{text}; {advice}"))
    minutes = each * TRAINING / 60
    if minutes > MINUTES:
        text = (
            f"a state takes {1e3 * each:.3g} ms, so a million energies, the order of a training run, take"
            f" {minutes:.0f} minutes; make it faster (batches, a GPU), or train with few energies (method egm-sp)"
        )
        findings.append(Finding("warning", "slow", text))
    return findings


def _seconds(probe: Probe, states: int) -> float:
    """Returns the least of three times."""
    state, taken = probe.states(states), []
    for _ in range(3):
        begin = time.perf_counter()
        probe.energy(state).cpu()  # waits for the device
        taken.append(time.perf_counter() - begin)
    return min(taken)


def _operations(probe: Probe, states: int) -> int:
    """Returns the number of torch functions that an energy calls."""
    with _Counter() as counter:
        probe.energy(probe.states(states))
    return counter.calls


class _Counter(TorchFunctionMode):
    """Counter of calls of torch functions."""

    calls = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))
