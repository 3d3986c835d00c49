"""Checks that gradients of reals exist, are finite, and equal finite differences (U(z+hu) − U(z−hu))/2h = u·∇U."""

from __future__ import annotations

import torch

from egm.checking.findings import Finding
from egm.checking.probe import EnergyRaised, Probe, flat
from egm.targets.base import EnergyError

WITHOUT = "egm-sp, egm, egm-bs and gibbs on symbols need none; mala, tempering of reals, idem, bnem and pis do"


def check_gradients(probe: Probe) -> list[Finding]:
    """Finds missing, non-finite and wrong gradients."""
    if not probe.space.real:
        return []
    latent = probe.latent(probe.count(64, least=8))
    try:
        energy, gradient = probe.potential_and_gradient(latent)
    except EnergyError:
        text = f"the energy has no gradient (.detach(), .item(), NumPy, or no torch operations); {WITHOUT}"
        return [Finding("warning", "gradient", text)]
    except EnergyRaised as error:  # by a backward function: the energy itself did not raise before
        text = f"the gradient of the energy cannot be computed ({error.__cause__}); {WITHOUT}"
        return [Finding("problem", "gradient", text)]
    findings = []
    for name, slope in gradient.items():
        holes = ~flat(slope).isfinite().all(1) & energy.isfinite()
        if bool(holes.any()):
            text = (
                f"the gradient with respect to {name} is NaN or infinite on {100 * float(holes.double().mean()):.2g} %"
                " of the reference draws where the energy is finite; roots of zero do that (distances of a particle to"
                " itself), and torch.where over a branch that is NaN: make both branches finite"
            )
            findings.append(Finding("problem", "gradient", text))
        else:
            findings += _compared(probe, latent, name, slope, energy)
    return findings


def _compared(probe: Probe, latent: dict[str, torch.Tensor], name: str, slope: torch.Tensor, energy: torch.Tensor):
    z, variable = latent[name], probe.space.real[name]
    step = probe.eps ** (1 / 3)
    unit = variable.noise((len(z),), generator=probe.generator, dtype=z.dtype, device=z.device)
    unit = unit / flat(unit).norm(dim=1).reshape(-1, *(1,) * (z.ndim - 1)).clamp(min=1e-30)

    def difference(h: float) -> torch.Tensor:
        up, down = (probe.potential({**latent, name: z + sign * h * unit}) for sign in (1, -1))
        return (up - down) / (2 * h)

    found, coarse = difference(step), difference(2 * step)
    told = flat(slope * unit).double().sum(1)
    # The tolerance grows where differences have not converged (kinks, walls, rounding).
    rounding = probe.eps * energy.abs() / step
    allowed = 1e-3 * (1 + found.abs()) + 10 * (found - coarse).abs() + 10 * rounding
    wrong = (told - found).abs() > allowed
    judged = found.isfinite() & coarse.isfinite()
    share = float((wrong & judged).double().sum() / judged.double().sum().clamp(min=1))
    if share < 0.1:
        return []
    worst = int(((told - found).abs() * judged).nan_to_num(0.0).argmax())
    text = (
        f"the gradient with respect to {name} disagrees with finite differences on {100 * share:.0f} % of the reference"
        f" draws (for example {float(told[worst]):.4g} against {float(found[worst]):.4g}): some part of the energy is"
        f" detached, rounded, or computed outside torch, or a custom backward is wrong. {WITHOUT.capitalize()}"
    )
    return [Finding("problem", "gradient", text)]
