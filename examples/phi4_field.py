"""A φ⁴ lattice field, a user-defined energy, from one well to two: log Z and the two-point function.

    E(φ) = Σ_x [ ½ Σ_μ (φ_{x+μ} − φ_x)² + ½ m² φ_x² + λ φ_x⁴ ]  on 4 × 4 sites of a torus,   G(d) = <φ_x φ_{x+d}>

The exact result uses p Gauss points for φ at each site. With T the transfer matrix between rows, p⁴ × p⁴ numbers,

    Z = Tr T⁴ = Σ_j ‖T² e_j‖²,

and the probability of row j is its share of the sum. T is applied one site after the other.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import egm
from egm.mcmc import HMC, r_hat, run

COUPLING = 0.5  # λ


def make_target(mass: float) -> egm.Target:
    """Return the field with m² = mass."""

    def energy(phi: Tensor) -> Tensor:
        gradients = sum((phi.roll(-1, axis) - phi).square() for axis in (-1, -2))
        return (0.5 * gradients + 0.5 * mass * phi.square() + COUPLING * phi**4).sum((-2, -1))

    return egm.Target(egm.Space(phi=egm.Real((4, 4))), energy)


def two_point(phi: Tensor) -> Tensor:
    """Return G(0), G(1), G(2) of each state, [..., 3]: averaged over sites and both directions."""
    shifted = [[(phi * phi.roll(d, axis)).mean((-2, -1)) for axis in (-1, -2)] for d in range(3)]
    return torch.stack([(a + b) / 2 for a, b in shifted], -1)


def exact(mass: float, points: int, coupling: float = COUPLING) -> tuple[float, Tensor]:
    """Return log Z and G(0), G(1), G(2); squares of four bonds are 2φ² per site, and a bond keeps −φφ'."""
    x, weight = gauss(lambda x: (2 + 0.5 * mass) * x**2 + coupling * x**4, points)
    index = torch.cartesian_prod(*[torch.arange(points)] * 4)
    row = x[index]
    half = weight[index].prod(-1).sqrt() * torch.exp(0.5 * (row * row.roll(1, -1)).sum(-1))  # T = half · bonds · half
    bond, norms = torch.exp(x[:, None] * x), []
    for j in torch.arange(len(row)).split(256):
        u = torch.einsum("na,nb,nc,nd->nabcd", *bond[index[j]].unbind(1)).reshape(len(j), -1) * half.square()
        for _ in range(4):  # each turn takes the first axis to the end
            u = torch.einsum("nak,ab->nkb", u.reshape(len(j), points, -1), bond)
        norms.append((half[j, None] * half * u.reshape(len(j), -1)).square().sum(-1))
    norm = torch.cat(norms)
    pairs = torch.stack([row * row.roll(d, -1) for d in range(3)], -1).mean(1)
    return float(norm.sum().log()), norm @ pairs / norm.sum()


def gauss(potential: Callable[[Tensor], Tensor], points: int) -> tuple[Tensor, Tensor]:
    """Return points and weights: Σ w f(x) = ∫ f(x) exp(−potential(x)) dx for polynomials f of degree < 2·points."""
    x = torch.linspace(-6, 6, 3001, dtype=torch.float64)
    root = torch.exp(-0.5 * potential(x)) * math.sqrt(12 / 3000)
    q, _ = torch.linalg.qr(root[:, None] * torch.linalg.vander(x / 2, N=points))  # orthogonal polynomials
    nodes, vectors = torch.linalg.eigh(q.T @ (x[:, None] * q))
    return nodes, (root @ q @ vectors).square()


def train(masses: list[float], network: str, *, n: int, points: int, **options: Any) -> list[dict]:
    """Return one row for each mass; every sampler starts with the network of the previous one."""
    rows, sampler = [], None
    for mass in masses:
        target, started = make_target(mass), time.process_time()
        begin: dict[str, Any] = {"start": sampler} if sampler else {"network": network}
        sampler = egm.fit(target, **begin, learning_rate=3e-3, device="cpu", progress=False, **options)
        draws = sampler.sample(n, seed=len(rows))
        calls, seconds = target.energy_calls, time.process_time() - started
        log_z, green = exact(mass, points)
        row = {"mass": mass, "log_z": (draws.log_z, draws.log_z_stderr), "exact_log_z": log_z, "exact": green}
        row |= {"green": draws.expect(two_point), **chains(target, calls)}
        learned, hmc = (f"{row[name][0][2]:8.4f} ± {row[name][1][2]:.4f}" for name in ("green", "hmc"))
        print(f"{mass:5.1f}{draws.ess:7.3f}{draws.log_z:9.4f} ± {draws.log_z_stderr:.4f}{log_z:9.4f}", end="")
        print(
            f"{learned}{green[2]:9.4f}{hmc}{row['r_hat']:7.2f}{calls:8d}{seconds:6.0f}{row['seconds']:6.1f}", flush=True
        )
        rows.append(row)
    return rows


def chains(target: egm.Target, calls: int) -> dict:
    """Estimate G by Hamiltonian Monte Carlo with `calls` energy calls, and R-hat of the mean field (its wells)."""
    steps = calls // (16 * 11)  # 16 chains, 10 leapfrog steps each, and the energy of every state that is kept
    started = time.process_time()
    found = run(target, HMC(target, leapfrog_steps=10), chains=16, warmup=steps // 5, steps=steps - steps // 5)
    phi, seconds = found.state["phi"], time.process_time() - started
    draws = egm.Draws(target.space, {"phi": phi.transpose(0, 1).flatten(0, 1)}, groups=16)  # chains are independent
    return {"hmc": draws.expect(two_point), "r_hat": r_hat(phi.mean((-2, -1))), "seconds": seconds}


def draw(rows: list[dict], file: Path) -> None:
    """Plot G(d) for every mass, and log Z minus its exact value."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    distances = torch.arange(3).numpy()
    for row, style in zip(rows, ("-", "--", "-.", ":"), strict=False):
        left.plot(distances, row["exact"].numpy(), style, color="black", label=f"m² = {row['mass']:g}, exact")
        for name, marker, colour, shift in (("green", "o", "tab:blue", -0.02), ("hmc", "x", "tab:orange", 0.02)):
            bars = {"fmt": marker, "color": colour, "markersize": 4, "capsize": 2}
            left.errorbar(distances + shift, *(x.numpy() for x in row[name]), **bars)
    left.plot([], [], "o", color="tab:blue", label="learned")
    left.plot([], [], "x", color="tab:orange", label="HMC, equal calls")
    left.set(xlabel="distance d", ylabel="G(d)", xticks=distances)
    left.legend(fontsize=8)
    off, stderr = [row["log_z"][0] - row["exact_log_z"] for row in rows], [row["log_z"][1] for row in rows]
    right.errorbar([row["mass"] for row in rows], off, stderr, fmt="o", color="tab:blue", markersize=4, capsize=2)
    right.axhline(0, color="grey", linewidth=0.8)
    right.set(xlabel="m²", ylabel="log Z − exact")
    figure.savefig(file, metadata={"Date": None})


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one mass, seconds instead of minutes")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the picture")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    print("   m²    ESS  log Z learned      exact    G(2) learned    exact       G(2) HMC  R-hat   calls CPU s   HMC")
    if options.quick:
        loop = {"steps": 200, "batch_size": 128, "refresh": 512, "inner_steps": 20, "sample_steps": 20, "ema": 0.97}
        rows = train([1.0], "LatticeConv(width=16, depth=2)", n=2000, points=7, **loop)
    else:
        loop = {"steps": 600, "batch_size": 256, "refresh": 512, "inner_steps": 20, "sample_steps": 30, "ema": 0.98}
        rows = train([1.0, -1.0, -2.0, -3.0], "LatticeConv(width=32, depth=2)", n=4000, points=9, **loop)
    draw(rows, options.out / "phi4_field.svg")
    return rows


if __name__ == "__main__":
    main()
