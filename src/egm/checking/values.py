"""Checks energies of draws of the reference law: NaN and −inf, +inf on almost all draws, and ignored variables."""

from __future__ import annotations

import torch

from egm.checking.findings import Finding
from egm.checking.probe import EnergyRaised, Probe, shown

WIDTHS = (1.0, 3.0, 10.0)  # proposals of a sampler in training go beyond the reference law
ALMOST = 0.95  # share of the draws of the reference law
LARGE = 1e4  # spread that needs a long temperature ladder


def check_values(probe: Probe) -> list[Finding]:
    """Finds faults in the energies of draws, at the reference law's width and beyond it, and in symbols."""
    findings: list[Finding] = []
    for width in WIDTHS if probe.space.real else WIDTHS[:1]:
        state = probe.states(probe.count(1000, least=64), width=width)
        energy = probe.energy(state)
        where = "draws of the reference law" if width == 1 else f"draws {width:g} times as wide as the reference law"
        findings += _illegal(energy, state, where)
        if findings:
            return findings
        if width == 1:
            findings += _infinite(energy, state)
            findings += _large(energy)
    return findings + _missing_symbols(probe) + _ignored_symbols(probe)


def _illegal(energy: torch.Tensor, state: dict[str, torch.Tensor], where: str) -> list[Finding]:
    found = []
    for name, bad, cause in (
        ("NaN", energy.isnan(), "a logarithm or root of a negative number, 0/0, or inf − inf"),
        ("−inf", energy == -torch.inf, "the logarithm of zero with the wrong sign, or a division by zero"),
    ):
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            found.append(
                Finding(
                    "problem",
                    name,
                    f"the energy is {name} on {_share(bad)} of {where}, for example at {shown(state, first)}: {cause}."
                    " Return +inf where the density is zero, or keep the variable inside by a constraint"
                    " (Real(..., constraint='positive'), (lo, hi), 'simplex')",
                )
            )
    return found


def _infinite(energy: torch.Tensor, state: dict[str, torch.Tensor]) -> list[Finding]:
    walls = energy == torch.inf
    if float(walls.double().mean()) < ALMOST:
        return []
    example = shown(state, int(walls.nonzero()[0]))
    return [
        Finding(
            "problem",
            "+inf",
            f"the energy is +inf (zero density) on {_share(walls)} of the draws of the reference law, for example at"
            f" {example}; training starts from those draws: set loc and scale of the Real variables so that"
            " they cover the support, or use a constraint instead of a wall",
        )
    ]


def _large(energy: torch.Tensor) -> list[Finding]:
    finite = energy[energy.isfinite()]
    if not len(finite):
        return []
    low, high = (float(x) for x in finite.quantile(torch.tensor([0.05, 0.95], device=finite.device).double()))
    if high - low < LARGE:
        return []
    return [
        Finding(
            "note",
            "large energies",
            f"the energies of reference draws spread from {low:.3g} to {high:.3g}; that is normal where particles"
            " overlap, and otherwise a sign of wrong units (divide by kT) or of a wrong loc or scale",
        )
    ]


def _missing_symbols(probe: Probe) -> list[Finding]:
    """Tries every symbol in all sites that have it, because rare symbols may not be among the draws."""
    findings = []
    for name, variable in probe.space.categorical.items():
        for symbol in range(min(variable.size, 256)):
            state = probe.states(4)
            legal = variable.legal(state[name])[..., symbol]
            state[name] = torch.where(legal, symbol, state[name])
            try:
                energy = probe.energy(state)
            except EnergyRaised as error:
                seen = f"fails ({type(error.__cause__).__name__}: {error.__cause__})"
            else:
                seen = "is NaN or −inf" if bool((energy.isnan() | (energy == -torch.inf)).any()) else ""
            if seen:
                text = f"the energy {seen} for {name} = {symbol}; it must work for every symbol from 0 to n−1"
                findings.append(Finding("problem", "symbols", text))
                break
    return findings


def _ignored_symbols(probe: Probe) -> list[Finding]:
    state, other = (probe.states(64) for _ in range(2))
    energy = probe.energy(state)
    ignored = [
        name
        for name, variable in probe.space.categorical.items()
        if variable.size > 1 and torch.equal(probe.energy({**state, name: other[name]}), energy)
    ]
    text = (
        "the energy does not depend on {}, whose symbols are then uniform; leave it out of the space if that is meant"
    )
    return [Finding("note", "ignored variable", text.format(name)) for name in ignored]


def _share(where: torch.Tensor) -> str:
    share = float(where.double().mean())
    return "all" if share == 1 else f"{100 * share:.2g} %"
