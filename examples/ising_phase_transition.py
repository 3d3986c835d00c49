"""The Ising model through its phase transition, one sampler for each size and temperature, and exact results.

    E(s) = −β Σ_<ij> s_i s_j on L × L sites,   m = mean spin,   U = 1 − <m⁴> / (3 <m²>²)   (Binder's cumulant)

Exact log Z comes from Kaufman's formula and the energy from its derivative; |m| and U come from exact draws. Lattices
with β above the critical 0.4407 are magnetised, lattices with smaller β are not, and the curves of U for two sizes
cross near it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import egm

NAMES = {"energy": "energy per site", "magnetisation": "|m|", "binder": "Binder's U", "log_z": "log Z"}


def train(sizes: list[int], betas: list[float], n: int, network: str, **options: Any) -> list[dict]:
    """Return one row for each size and β; every sampler starts with the network of the previous one."""
    rows, sampler = [], None
    for beta in betas:
        for size in sizes:
            target = egm.targets.Ising(size=size, beta=beta)
            started = time.process_time()
            begin: dict[str, Any] = {"start": sampler} if sampler else {"network": network}
            sampler = egm.fit(target, **begin, learning_rate=3e-3, device="cpu", progress=False, **options)
            cost = {"seconds": time.process_time() - started, "calls": target.energy_calls}
            rows.append(
                {
                    "size": size,
                    "beta": beta,
                    **measure(sampler.sample(n, seed=len(rows))),
                    **cost,
                    "exact": exact(target),
                }
            )
            numbers = [f"{rows[-1][k][0]:9.4f} ± {rows[-1][k][1]:.4f} ({rows[-1]['exact'][k][0]:8.4f})" for k in NAMES]
            print(
                f"{size} {beta:.2f}  {rows[-1]['ess']:.3f}",
                *numbers,
                f"{cost['calls']:6d}{cost['seconds']:7.0f}",
                flush=True,
            )
    return rows


def measure(draws: egm.Draws) -> dict:
    """Estimate the quantities from draws, with their standard errors."""

    def observe(s: torch.Tensor) -> torch.Tensor:
        spins = 2.0 * s - 1
        m, bonds = spins.mean((-2, -1)), spins * (spins.roll(1, -1) + spins.roll(1, -2))
        return torch.stack([-bonds.mean((-2, -1)), m.abs(), m**2, m**4], -1)

    (energy, m1, m2, m4), stderr = (x.tolist() for x in draws.expect(observe))
    # U is a function of two means; to first order, its error is the error of the mean of slope · values
    slope = torch.tensor([0.0, 0.0, 2 * m4 / (3 * m2**3), -1 / (3 * m2**2)])
    binder = 1 - m4 / (3 * m2**2), float(draws.expect(lambda s: observe(s) @ slope)[1])
    values = {"energy": (energy, stderr[0]), "magnetisation": (m1, stderr[1]), "binder": binder}
    if draws.log_weights is not None:
        values |= {"ess": draws.ess, "log_z": (draws.log_z, draws.log_z_stderr)}
    return values


def exact(target: egm.targets.Ising, n: int = 20_000, step: float = 1e-4) -> dict:
    """Return the same quantities: log Z and energy without error, the others from n exact draws."""
    values = measure(egm.Draws(target.space, target.exact_sample(n, seed=2)))
    low, log_z, high = (egm.targets.Ising(target.size, target.beta + h).log_z or 0.0 for h in (-step, 0.0, step))
    return {**values, "log_z": (log_z, 0.0), "energy": ((low - high) / (2 * step * target.size**2), 0.0)}


def deviations(rows: list[dict]) -> list[float]:
    """Return how many standard errors every number is away from the exact one."""
    pairs = [(row[name], row["exact"][name]) for row in rows for name in NAMES]
    return [(x - y) / (dx**2 + dy**2) ** 0.5 for (x, dx), (y, dy) in pairs]


def draw(rows: list[dict], file: Path, curve_points: int) -> None:
    """Plot samplers as points and exact results as curves; for log Z, plot only the difference."""
    figure = Figure(figsize=(8.5, 6.2), layout="constrained")
    panels = dict(zip(NAMES, figure.subplots(2, 2).flat, strict=True))
    betas = torch.linspace(rows[0]["beta"] - 0.03, rows[-1]["beta"] + 0.03, curve_points).tolist()
    looks = (("black", "-", "s"), ("tab:orange", "--", "o"))
    for size, (colour, style, marker) in zip(sorted({row["size"] for row in rows}), looks, strict=True):
        own = [row for row in rows if row["size"] == size]
        curve = [exact(egm.targets.Ising(size, beta)) for beta in betas]
        for name, panel in panels.items():
            zero = [row["exact"][name][0] if name == "log_z" else 0.0 for row in own]
            heights = [row[name][0] - low for row, low in zip(own, zero, strict=True)]
            label, x = f"{size} × {size}", [row["beta"] for row in own]
            bars = {"yerr": [row[name][1] for row in own], "capsize": 2, "label": f"{label}, learned"}
            panel.errorbar(x, heights, fmt=marker, color=colour, markersize=4, **bars)
            if name != "log_z":
                panel.plot(betas, [point[name][0] for point in curve], style, color=colour, label=f"{label}, exact")
            panel.set(xlabel="β", ylabel=f"{NAMES[name]} − exact" if name == "log_z" else NAMES[name])
    for panel in panels.values():
        panel.axvline(0.4407, color="lightgrey", zorder=0)
    panels["log_z"].axhline(0, color="grey", linewidth=0.8)
    panels["energy"].legend(fontsize=8)
    figure.savefig(file, metadata={"Date": None})


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller lattices, seconds instead of minutes")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the picture")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    print("L β     ESS ", *(f"{name + ' (exact)':>28}" for name in NAMES.values()), "calls  CPU s")
    if options.quick:
        loop = {"steps": 60, "batch_size": 64, "refresh": 256, "inner_steps": 10, "ema": 0.9}
        rows = train([3, 4], [0.3, 0.45], 1000, "LatticeConv(width=8, depth=1)", **loop)
    else:
        loop = {"steps": 150, "batch_size": 256, "refresh": 512, "inner_steps": 15, "refresh_steps": 12, "ema": 0.95}
        rows = train([4, 6], [0.2, 0.3, 0.36, 0.4, 0.44, 0.5, 0.6], 3000, "LatticeConv(width=16, depth=2)", **loop)
    off = deviations(rows)
    print(f"largest of {len(off)} deviations from exact: {max(map(abs, off)):.1f} standard errors")
    draw(rows, options.out / "ising_phase_transition.svg", 5 if options.quick else 40)
    return rows


if __name__ == "__main__":
    main()
