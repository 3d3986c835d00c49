"""Finds where the modes are, by short descents of U from draws of the reference law, and how wide their valleys are.

Each state moves by s·u, u = −∇U/|∇U| (a random direction where there is no gradient), whenever that lowers U; s grows
after a success and shrinks after a failure, so no step size is needed. In between, sites are redrawn one by one. The
width of a valley along a coordinate is the distance at which U is higher by ½ on both sides, one standard deviation of
a Gaussian; unlike a curvature it also works at kinks and walls. Modes many reference widths away, and valleys much
narrower than the reference law, need another loc and scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from egm.checking.findings import Finding
from egm.checking.probe import EnergyRaised, Probe, entry, flat, listed, rounded
from egm.spaces import Real, State
from egm.targets.base import EnergyError

FAR = 10.0  # reference widths
NARROW = 0.01
ENTRIES = 32  # largest number of entries of a variable that are tried
RADII = [10.0 ** (2 - k / 2) for k in range(15)]  # reference widths, from a hundred to 1e-5


def valleys(probe: Probe) -> tuple[State, float]:
    """Returns the ends of descents from the reference law (those with finite U), and the lowest U."""
    ends = descend(probe, probe.latent(probe.count(64, least=8)), steps=probe.count(100, least=30))
    energy = probe.potential(ends)
    finite = energy.isfinite()
    lowest = float(energy[finite].min()) if bool(finite.any()) else torch.inf
    return {name: z[finite] for name, z in ends.items()}, lowest


def check_landscape(probe: Probe, ends: State) -> list[Finding]:
    """Finds modes far from the reference law, and modes far narrower than the law, by the ends of descents."""
    if not len(next(iter(ends.values()))):
        return []
    findings: list[Finding] = []
    for name, variable in probe.space.real.items():
        z = flat(ends[name])
        away = z.abs() > FAR
        share = float(away.any(1).double().mean())
        widths = _widths(probe, ends, name)
        if share > 0.2:
            places = [
                entry(name, variable.latent_shape, int(i)) for i in (away.double().mean(0) > 0.1).nonzero().flatten()
            ]
            text = (
                f"{100 * share:.0f} % of the descents from the reference law end more than {FAR:g} reference widths"
                f" away in {listed(places)}; {_suggested(variable, ends[name], widths)}"
            )
            findings.append(Finding("problem" if share > 0.5 else "warning", "location", text))
        elif bool((widths < NARROW).any()):
            places = [entry(name, variable.latent_shape, int(i)) for i in (widths < NARROW).nonzero().flatten()]
            text = (
                f"the modes are {1 / float(widths.min()):.2g} times narrower than the reference law in"
                f" {listed(places)}. If the energy has units, divide it by kT; otherwise"
                f" {_suggested(variable, ends[name], widths)}"
            )
            findings.append(Finding("problem", "scale", text))
    return findings


def descend(probe: Probe, latent: State, *, steps: int) -> State:
    """Returns latent states after some steps downhill."""
    real, n = probe.space.real, len(next(iter(latent.values())))
    energy, gradient = _with_gradient(probe, latent)
    size = torch.full((n,), 0.5, dtype=energy.dtype, device=energy.device)
    for step in range(steps):
        symbols_turn = bool(probe.space.categorical) and step % 2 == 1
        trial = _redrawn(probe, latent) if symbols_turn else _moved(probe, latent, gradient, size)
        lower, slope = _with_gradient(probe, trial)
        better = lower < energy
        energy = torch.where(better, lower, energy)
        pick = {name: better.reshape(n, *(1,) * (z.ndim - 1)) for name, z in latent.items()}
        latent = {name: torch.where(pick[name], trial[name], z) for name, z in latent.items()}
        gradient = {name: torch.where(pick[name], slope[name], gradient[name]) for name in real}
        if not symbols_turn:
            size = torch.where(better, 1.5 * size, 0.4 * size).clamp(1e-9, 1e3)
    return latent


def _with_gradient(probe: Probe, latent: State) -> tuple[Tensor, State]:
    """Returns U and ∇U, or random directions where there is no gradient."""
    try:
        energy, gradient = probe.potential_and_gradient(latent)
        gradient = {name: g.nan_to_num(0.0, 0.0, 0.0) for name, g in gradient.items()}
    except (EnergyError, EnergyRaised):
        energy, gradient = probe.potential(latent), {name: torch.zeros_like(latent[name]) for name in probe.space.real}
    n = len(energy)
    none = sum(g.abs().reshape(n, -1).sum(1) for g in gradient.values()) == 0
    for name, variable in probe.space.real.items():
        random = variable.noise((n,), generator=probe.generator, dtype=probe.dtype, device=probe.device)
        gradient[name] = torch.where(
            torch.as_tensor(none).reshape(n, *(1,) * (random.ndim - 1)), random, gradient[name]
        )
    return torch.where(energy.isnan(), torch.inf, energy.double()), gradient


def _moved(probe: Probe, latent: State, gradient: State, size: Tensor) -> State:
    n = len(size)
    square = sum(g.double().square().reshape(n, -1).sum(1) for g in gradient.values())
    length = torch.as_tensor(square).sqrt().clamp(min=1e-300)
    moved = {}
    for name in probe.space.real:
        z = latent[name]
        shrink = (size / length).reshape(n, *(1,) * (z.ndim - 1))
        moved[name] = (z - shrink * gradient[name]).to(z.dtype)
    return {**latent, **moved}


def _redrawn(probe: Probe, latent: State) -> State:
    """Redraws one site of each categorical variable."""
    changed = dict(latent)
    for name, variable in probe.space.categorical.items():
        symbols = latent[name].reshape(len(latent[name]), -1).clone()
        n, sites = symbols.shape
        site = torch.randint(sites, (n, 1), generator=probe.generator, device=probe.device)
        fresh = variable.uniform((n,), generator=probe.generator, device=probe.device).reshape(n, -1)
        changed[name] = symbols.scatter(1, site, fresh.gather(1, site)).reshape(latent[name].shape)
    return changed


def _widths(probe: Probe, ends: State, name: str) -> Tensor:
    """Returns median widths of the valleys along the first entries of a variable, [entries]; inf if U does not rise."""
    few = {key: z[: probe.count(16, least=4)] for key, z in ends.items()}
    z, size = few[name], flat(few[name]).shape[1]
    chosen = min(ENTRIES, size)
    unit = torch.eye(size, dtype=z.dtype, device=z.device)[:chosen].reshape(chosen, 1, *z.shape[1:])
    unit = probe.space.real[name].project(unit)
    rest = {key: x.expand(chosen, *x.shape) for key, x in few.items() if key != name}

    def level(step: float) -> Tensor:
        moved = z + step * unit
        return probe.potential({key: moved if key == name else rest[key] for key in probe.space})

    bottom = probe.potential(few)
    widths = torch.full((chosen, len(z)), torch.inf, dtype=bottom.dtype, device=bottom.device)
    for radius in RADII:
        rise = torch.minimum(level(radius), level(-radius)).nan_to_num(torch.inf, torch.inf, -torch.inf) - bottom
        widths = torch.where(rise > 0.5, radius * (0.5 / rise).sqrt().clamp(min=10**-0.5), widths)
    return widths.median(1).values


def _suggested(variable: Real, z: Tensor, widths: Tensor) -> str:
    """Suggests loc and scale by the ends of descents: their medians, and their spread or the widths of the valleys.

    For any law, the median lies between the order statistics n/2 ± 3√n/2 of n draws (three standard deviations of their
    ranks); if zero lies there too, loc is zero.
    """
    loc = torch.as_tensor(variable.loc, dtype=z.dtype, device=z.device)
    scale = torch.as_tensor(variable.scale, dtype=z.dtype, device=z.device)
    y = flat(loc + scale * z)
    y = y[(flat(z).abs() < 1e4).all(1)] if bool((flat(z).abs() < 1e4).all(1).any()) else y
    deviation = y.std(0) if len(y) > 1 else torch.zeros_like(y[0])
    width = (scale.expand(z.shape[1:]).flatten()[: len(widths)] * widths)[widths.isfinite()]
    spread = max(float(deviation.max()), float(width.max()) if len(width) else 0.0) or 1.0
    if variable.centered:
        return f"try scale={rounded(spread)}"
    ordered, n, reach = y.sort(0).values, len(y), round(1.5 * len(y) ** 0.5)
    low, high = ordered[max(0, n // 2 - reach)], ordered[min(n - 1, n // 2 + reach)]
    centre = y.median(0).values.where((low > 0) | (high < 0), 0.0)
    told = " (before the constraint's bijection)" if variable.constraint is not None else ""
    size = f"scale={rounded(spread)}{told}"
    if not variable.latent_shape or float(centre.max() - centre.min()) <= spread:
        return f"try loc={rounded(float(centre.mean()), beside=spread)}, {size}"
    places = [rounded(float(c), beside=spread) for c in centre]
    if len(places) <= 4:
        return f"try loc={places}, {size}"
    entries = f"with entries from {min(places)} to {max(places)}"
    return f"try an array of shape {variable.latent_shape} as loc, {entries}, and {size}"
