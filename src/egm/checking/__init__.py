"""`egm.check`: inspects a target before training, in seconds, and reports what is wrong and how to fix it.

The checks evaluate only energies (and gradients, if there are any); nothing is trained. They cannot detect a wrong
energy that is a proper density, modes that no descent from the reference law reaches, or the wrong sign on purely
discrete spaces, where every energy can be normalised.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from egm.checking.calls import check_calls
from egm.checking.findings import Finding, Inspection
from egm.checking.gradients import check_gradients
from egm.checking.landscape import check_landscape, valleys
from egm.checking.probe import EnergyRaised, Probe
from egm.checking.rays import check_rays
from egm.checking.speed import check_speed
from egm.checking.values import check_values
from egm.targets.base import Target

__all__ = ["Finding", "Inspection", "check"]


def check(
    target: Target,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Inspection:
    """Inspects a target.

    Args:
        target: the target.
        device: device of the states.
        dtype: dtype of the real variables, as in training; some checks use float64 instead.
        seed: seed of the states.

    >>> import egm
    >>> target = egm.Target(egm.Space(x=egm.Real(2)), lambda x: -0.5 * x.square().sum(-1))  # the sign is wrong
    >>> found = egm.check(target)
    >>> found.ok, found.findings[0].name
    (False, 'sign')
    """
    if not isinstance(target, Target):
        raise TypeError(
            f"check needs an egm.Target, for example egm.Target(space, energy); got {type(target).__name__}"
        )
    begun, calls = time.perf_counter(), target.energy_calls
    probe = Probe(target, device=device, dtype=dtype, seed=seed)
    findings = check_calls(probe)
    complete = not findings
    if complete:
        try:
            for finding in _look_closer(probe):
                findings.append(finding)
        except EnergyRaised as error:
            complete = False
            text = (
                f"the energy raised {type(error.__cause__).__name__}: {error.__cause__}, for legal states far from the"
                " middle of the reference law; return +inf where the density is zero, and finite numbers elsewhere"
            )
            findings.append(Finding("problem", "exception", text))
    order = ("problem", "warning", "note")
    return Inspection(
        target=repr(target),
        findings=tuple(sorted(findings, key=lambda finding: order.index(finding.level))),
        complete=complete,
        energy_calls=target.energy_calls - calls,
        seconds=time.perf_counter() - begun,
    )


def _look_closer(probe: Probe) -> Iterator[Finding]:
    """Yields the findings of the checks that need an energy without faults of calling."""
    probe.measure()
    first = check_values(probe)
    yield from first
    yield from check_speed(probe)
    yield from _centred(probe)
    if not probe.space.real or any(finding.level == "problem" for finding in first):
        return  # the other checks would report the same again
    precise = Probe(probe.target, device=probe.device, dtype=torch.float64, seed=probe.generator.initial_seed())
    try:
        precise.measure()
    except EnergyRaised as error:
        yield Finding(
            "warning",
            "dtype",
            f"the energy fails for float64 states ({type(error.__cause__).__name__}: {error.__cause__}), so"
            " dtype='float64' cannot be used; give constants the dtype of the states, for example W.to(x)",
        )
        precise = probe
    yield from check_gradients(precise)
    ends, lowest = valleys(precise)
    improper = check_rays(precise, lowest)
    yield from improper
    if not any(finding.name in ("sign", "improper") for finding in improper):  # otherwise descents have no end
        yield from check_landscape(precise, ends)


def _centred(probe: Probe) -> list[Finding]:
    """Finds centred variables whose common shift changes the energy."""
    findings = []
    for name, variable in probe.space.real.items():
        if not variable.centered:
            continue
        state = probe.states(64)
        shift = float(torch.as_tensor(variable.scale))
        moved, still = probe.energy({**state, name: state[name] + shift}), probe.energy(state)
        if not torch.allclose(moved, still, rtol=1e-3, atol=1e-3):
            text = (
                f"{name} is centered, but the energy changes when all particles move together. That is harmless: draws"
                " have their centre of mass at zero, and log Z belongs to the energy restricted to such states"
            )
            findings.append(Finding("note", "centred", text))
    return findings
