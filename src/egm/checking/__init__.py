"""`egm.check`: look at a target before training, in seconds, and say in plain words what is wrong and how to mend it.

The checks ask for energies alone (and gradients, where there are any); nothing is trained. What they cannot see: a
wrong energy that is a proper density, modes that no descent from the reference law reaches, and the sign on purely
discrete spaces, where every energy can be normalised.
"""

from __future__ import annotations

import time

import torch

from egm.checking.calls import check_calls
from egm.checking.findings import Finding, Inspection
from egm.checking.gradients import check_gradients
from egm.checking.landscape import check_landscape, valleys
from egm.checking.probe import Probe
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
    """Inspect a target.

    Args:
        target: the target.
        device: where its energies are asked for.
        dtype: of the real variables, as they will be in training; where it matters doubles are used as well.
        seed: of the states that are tried.

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
        findings = _look_closer(probe)
    order = ("problem", "warning", "note")
    return Inspection(
        target=repr(target),
        findings=tuple(sorted(findings, key=lambda finding: order.index(finding.level))),
        complete=complete,
        energy_calls=target.energy_calls - calls,
        seconds=time.perf_counter() - begun,
    )


def _look_closer(probe: Probe) -> list[Finding]:
    """All checks that need an energy which can be called."""
    probe.measure()
    findings = check_values(probe) + check_speed(probe) + _centred(probe)
    if any(finding.level == "problem" for finding in findings):
        return findings  # what follows would see the same again
    if not probe.space.real:
        return findings
    precise = _in_doubles(probe, findings)
    findings += check_gradients(precise)
    ends, lowest = valleys(precise)
    improper = check_rays(precise, lowest)
    return findings + improper + ([] if improper else check_landscape(precise, ends))


def _in_doubles(probe: Probe, findings: list[Finding]) -> Probe:
    """The same probe with doubles, if the energy takes them."""
    precise = Probe(probe.target, device=probe.device, dtype=torch.float64, seed=probe.generator.initial_seed())
    try:
        precise.measure()
    except Exception as error:  # of the user's code, whatever it is
        text = (
            f"the energy fails for float64 states ({type(error).__name__}: {error}), so dtype='float64' cannot be used;"
            " give constants the dtype of the states, for example W.to(x)"
        )
        findings.append(Finding("warning", "dtype", text))
        return probe
    return precise


def _centred(probe: Probe) -> list[Finding]:
    """Energies of centred variables that change under a common shift."""
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
                " have their centre of mass at zero, and log Z is that of the energy restricted to such states"
            )
            findings.append(Finding("note", "centred", text))
    return findings
