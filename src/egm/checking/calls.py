"""Checks that the energy can be called as the library calls it: keyword arguments, any leading shape, no side effects.

A fault here stops the inspection, because nothing that such an energy returns can be trusted.
"""

from __future__ import annotations

import torch

from egm.checking.findings import Finding
from egm.checking.probe import EnergyRaised, Probe
from egm.spaces import State
from egm.targets.base import EnergyError

LEADING = ((24,), (1,), (2, 3, 4), ())


def check_calls(probe: Probe) -> list[Finding]:
    """Finds mutated input, exceptions, and what `Target.check` refuses: shape, type, device, randomness, batching."""
    state = probe.states(24)
    given = {name: x.clone() for name, x in state.items()}
    error = None
    try:
        probe.target.check_calls(given)
    except Exception as raised:  # any exception of the user's code
        error = raised
    changed = [name for name in state if not torch.equal(given[name], state[name])]
    if changed:
        text = (
            f"the energy writes into {', '.join(changed)}, which changes the sampler's states; compute new"
            " tensors instead (x = x - 1, not x -= 1; no functions that end in _; or start with x.clone())"
        )
        return [Finding("problem", "changes its input", text)]
    if isinstance(error, EnergyError):
        return [Finding("problem", "calling", str(error))]
    if error is not None:
        return [_explained(probe, state, error)]
    energy = probe.target.energy(**state)
    if energy.dtype in (torch.float16, torch.bfloat16):
        return [
            Finding(
                "problem",
                "precision",
                f"the energy is returned as {energy.dtype}, whose two or three digits are too few for weights exp(−E);"
                " compute it in the dtype of the states (x.dtype), or in float32",
            )
        ]
    return []


def _explained(probe: Probe, state: State, error: Exception) -> Finding:
    """Explains an exception of the energy: for certain symbols, for certain leading shapes, or always."""
    raised = f"{type(error).__name__}: {error}"
    bad, fine = _symbols(probe)
    if bad and fine:
        return Finding(
            "problem",
            "symbols",
            f"the energy fails for {', '.join(bad)} ({raised}); it must work for every symbol from 0 to n−1: look for"
            " tables that are too short, or declare fewer symbols in Categorical(n)",
        )
    failed = [shape for shape in LEADING if _fails(probe, _with_leading(state, shape))]
    if failed and len(failed) < len(LEADING):
        return Finding(
            "problem",
            "batching",
            f"the energy fails for states with leading batch shape {failed[0]} ({raised}); it is called with any number"
            " of batch dimensions, also none: count axes from the end (x[..., 0], sum(-1), dim=-1)",
        )
    return Finding(
        "problem", "exception", f"the energy raised {raised}; call it yourself on {_example(state)} to see where"
    )


def _symbols(probe: Probe) -> tuple[list[str], list[str]]:
    """Returns the symbols for which the energy raises at every site, and the other symbols."""
    bad, fine = [], []
    for name, variable in probe.space.categorical.items():
        for symbol in range(min(variable.size, 64)):
            state = probe.states(1)
            for other, kind in probe.space.categorical.items():
                if other != name:
                    state[other] = torch.zeros_like(state[other])  # a symbol that every site has
                else:
                    state[other] = torch.where(kind.legal(state[other])[..., symbol], symbol, 0).expand_as(state[other])
            (bad if _fails(probe, state) else fine).append(f"{name} = {symbol}")
    return bad, fine


def _fails(probe: Probe, state: State) -> bool:
    try:
        probe.energy(state)
    except EnergyRaised:
        return True
    return False


def _with_leading(state: State, shape: tuple[int, ...]) -> State:
    states = 1 if shape in ((1,), ()) else 24
    return {name: x[:states].reshape((*shape, *x.shape[1:])) for name, x in state.items()}


def _example(state: State) -> str:
    return ", ".join(f"{name}: {x.dtype} {list(x.shape)}".replace("torch.", "") for name, x in state.items())
