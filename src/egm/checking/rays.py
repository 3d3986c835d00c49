"""Checks that exp(−U) decays, by U along lines z + r·u from draws of the reference law, at r = 0, near and far.

A density that can be normalised has ∫ exp(−U(z + r u)) dr finite along almost every line, so U must gain more than
log(far/near) from near to far. If U falls instead, the sign is most likely wrong; if U stays, the density is improper
along u; if U has barely changed at near, a hundred reference widths out, the scale is too small.

Lines move one real variable at a time: single entries, all entries together (a translation), and random directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from egm.checking.findings import Finding
from egm.checking.probe import Probe, entry, listed
from egm.spaces import Real

ENTRIES = 32  # largest number of entries of a variable that are tried; the others are assumed to be alike
STARTS = 8


@dataclass
class Lines:
    """U along lines, medians over starts, [lines]."""

    labels: list[str]
    start: float  # U at the starts
    rise: Tensor  # gain of U from the starts to near
    height: Tensor  # U at near, above the lowest U that was found
    gained: Tensor  # gain of U from near to far
    needed: float  # half of log(far/near)


def check_rays(probe: Probe, lowest: float) -> list[Finding]:
    """Finds improper directions, energies that fall without bound, and reference laws that are far too narrow.

    Args:
        probe: the target.
        lowest: the least U that descents have found.
    """
    findings: list[Finding] = []
    for name, variable in probe.space.real.items():
        lines = _along_lines(probe, name, variable, lowest)
        if lines is None:
            continue
        same = (lines.rise.abs() + lines.gained.abs() <= 1e-9 * (1 + abs(lines.start))) & (variable.constraint is None)
        falls, stays = lines.gained < -lines.needed, lines.gained.abs() <= lines.needed
        slow = (lines.height < 0.5) & ~falls & ~stays
        findings += _unbounded(lines, falls)
        together = bool(same[-1]) and lines.labels[-1].startswith("all entries") and not bool(same.all())
        findings += _improper(name, variable, lines, stays & same, stays & ~same, together=together)
        if variable.constraint is None and bool(slow.any()):
            text = (
                f"the energy barely changes over a hundred reference widths along {_named(lines, slow)}: the reference"
                f" law is too narrow; raise scale (now {variable.scale if isinstance(variable.scale, float) else '…'})"
                " to the spread that you expect"
            )
            findings.append(Finding("warning", "scale", text))
    return findings


def _unbounded(lines: Lines, falls: Tensor) -> list[Finding]:
    if not bool(falls.any()):
        return []
    text = (
        f"the energy falls without bound along {_named(lines, falls)}, so exp(−energy) cannot be normalised. Is the"
        " sign wrong? The energy is minus the log-density; for a log-density use egm.Target.from_log_prob"
    )
    return [Finding("problem", "sign", text)]


def _improper(
    name: str, variable: Real, lines: Lines, ignored: Tensor, flat: Tensor, *, together: bool
) -> list[Finding]:
    if together:
        particles = variable.shape if len(variable.shape) > 1 else "(particles, dimension)"
        text = (
            f"moving all of {name} together does not change the energy, so its density cannot be normalised; for"
            f" particles use Real({particles}, centered=True), otherwise add a term that holds the mean"
        )
        return [Finding("problem", "improper", text)]
    findings = []
    if bool(ignored.any()):
        text = (
            f"the energy does not depend on {_named(lines, ignored)}, so the density is constant along it and cannot be"
            " normalised; use that variable, leave it out of the space, or confine it (a prior, or a constraint)"
        )
        findings.append(Finding("problem", "ignored variable", text))
    if bool(flat.any()):
        text = (
            f"the energy stops growing far out along {_named(lines, flat)}, so exp(−energy) cannot be normalised; add a"
            " term that confines it (a prior, a harmonic trap), or a constraint (lo, hi)"
            + (
                ", or raise scale if it is confined a million reference widths out"
                if variable.constraint is None
                else ""
            )
        )
        findings.append(Finding("problem", "improper", text))
    return findings


def _along_lines(probe: Probe, name: str, variable: Real, lowest: float) -> Lines | None:
    directions, labels = _directions(probe, name, variable)
    starts = probe.latent(probe.count(STARTS, least=3))
    begin = probe.potential(starts)
    starts = {key: z[begin.isfinite()] for key, z in starts.items()}
    begin = begin[begin.isfinite()]
    if not len(begin):
        return None  # +inf everywhere, which another check reports
    # A bijection reaches the edge of its support (to double precision) some thirty units out.
    unit = 1.0 if variable.constraint is None else 1 / float(torch.as_tensor(variable.scale).max())
    radii = (1e2, 1e6) if variable.constraint is None else (15 * unit, 30 * unit)
    shape = (len(directions), len(begin))
    levels = []
    for radius in radii:
        moved = starts[name] + radius * directions[:, None]
        rest = {key: z.expand(*shape, *z.shape[1:]) for key, z in starts.items() if key != name}
        levels.append(probe.potential({key: moved if key == name else rest[key] for key in probe.space}))
    near, far = levels
    gained = (far - near).nan_to_num(torch.inf, torch.inf, -torch.inf)  # inf − inf: behind a wall
    gained = torch.where(near == -torch.inf, -torch.inf, gained)
    rise = (near - begin).nan_to_num(torch.inf, torch.inf, -torch.inf)
    needed = 0.5 * math.log(radii[1] / radii[0])
    rise, height, gained = (x.median(1).values for x in (rise, near - lowest, gained))
    return Lines(labels, float(begin.median()), rise, height, gained, needed)


def _directions(probe: Probe, name: str, variable: Real) -> tuple[Tensor, list[str]]:
    """Returns unit steps of single entries (both ways), two random directions and all entries, [lines, *shape]."""
    size = math.prod(variable.latent_shape)
    chosen = torch.randperm(size, generator=probe.generator, device=probe.device)[:ENTRIES].sort().values
    single = torch.zeros(len(chosen), size, dtype=probe.dtype, device=probe.device)
    single[torch.arange(len(chosen), device=probe.device), chosen] = 1
    random = probe.noise(2, size)
    random = random / random.norm(dim=-1, keepdim=True)
    labels = [entry(name, variable.latent_shape, int(flat)) for flat in chosen]
    parts, names = [single, -single, random], [*labels, *labels, *(f"random directions of {name}",) * 2]
    if size > 1 and variable.constraint is None and not variable.centered:
        parts.append(torch.ones(1, size, dtype=probe.dtype, device=probe.device))
        names.append(f"all entries of {name} together")
    steps = torch.cat(parts).reshape(-1, *variable.latent_shape)
    return variable.project(steps), names


def _named(lines: Lines, which: Tensor) -> str:
    """Returns the names of the chosen lines, each once; only single entries, if there are any."""
    names = dict.fromkeys(label for label, chosen in zip(lines.labels, which.tolist(), strict=True) if chosen)
    single = [label for label in names if " " not in label]
    return listed(single or list(names))
