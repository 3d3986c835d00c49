"""A spin glass: how alike are two independent states? The law of their overlap, by draws, exact draws and Gibbs chains.

    E(s) = −β Σ_<ij> J_ij s_i s_j,  J_ij ~ N(0, 1) drawn once,      q = mean over sites of a_i b_i,  a and b independent

A single state of a glass looks like noise; P(q) shows its order. The weight of a pair of draws (a, b) is the product
of their weights, so P(q) has error bars. Gibbs chains make as many energy calls as the sampler and its draws.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch.nn.functional import one_hot

import egm
from egm.mcmc import Gibbs, run


def overlap_law(draws: egm.Draws) -> tuple[torch.Tensor, torch.Tensor]:
    """Return probabilities that |q| is 1/N, 3/N, …, 1 (an odd number N of sites), and their standard errors.

    The first half of the draws is paired with the second.
    """
    half, spins, weights = len(draws) // 2, draws.space["s"], draws.log_weights
    pairs = egm.Draws(
        egm.Space(a=spins, b=spins),
        {"a": draws["s"][:half], "b": draws["s"][half : 2 * half]},
        log_weights=None if weights is None else weights[:half] + weights[half : 2 * half],
    )

    def value(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        sites = a.shape[-2] * a.shape[-1]
        difference = 2 * (a == b).sum((-2, -1)) - sites  # N·q
        return one_hot(difference.abs() // 2, sites // 2 + 1)

    return pairs.expect(value)


def experiment(size: int, *, steps: int, width: int, n: int) -> dict:
    """Train, draw, and compare the laws of |q| with the law of many exact draws."""
    target = egm.targets.SpinGlass(size=size, seed=0, beta=1.0)
    started = time.process_time()
    # The default network of a lattice treats all sites alike; here every bond is different, so this is an MLP.
    loop = {"batch_size": 256, "refresh": 1024, "inner_steps": 20, "refresh_steps": 12, "ema": 0.98}
    network = f"MLP(width={width})"
    sampler = egm.fit(target, steps=steps, network=network, learning_rate=3e-3, device="cpu", progress=False, **loop)
    seconds = time.process_time() - started
    draws = sampler.sample(n, seed=1)
    calls = target.energy_calls
    scans = calls // (4 * (2 * size**2 + 1))  # a scan of 4 chains evaluates both symbols of every site
    started = time.process_time()
    chains = run(target, Gibbs(target), chains=4, warmup=scans // 10, steps=scans - scans // 10)
    own = time.process_time() - started
    walk = {"s": chains.state["s"].transpose(0, 1).flatten(0, 1)}  # pairs are then from different chains
    laws = {
        "exact": overlap_law(egm.Draws(target.space, target.exact_sample(200_000, seed=2))),
        "learned": overlap_law(draws),
        "Gibbs": overlap_law(egm.Draws(target.space, walk)),
        "n exact": overlap_law(egm.Draws(target.space, target.exact_sample(n, seed=3))),
    }
    print(f"{target!r}: {calls} energy calls, {seconds:.0f} CPU s of training, {n} draws")
    print(f"Gibbs: {chains.energy_calls} energy calls, {own:.0f} CPU s, {len(walk['s'])} states of 4 chains")
    print(f"ESS {draws.ess:.3f}, log Z {draws.log_z:.4f} ± {draws.log_z_stderr:.4f}, exact {target.log_z:.4f}")
    return {"target": target, "draws": draws, "laws": laws}


def table(laws: dict[str, tuple[torch.Tensor, torch.Tensor]], sites: int) -> None:
    """Print probabilities of |q|, with error bars where draws are independent, and distances ½ Σ |p − exact|."""
    print(f"{'|q|':>5}" + "".join(f"{name:>18}" for name in laws))
    for i in range(sites // 2 + 1):
        cells = [f"{p[i]:.4f}" + ("" if name == "Gibbs" else f" ± {se[i]:.4f}") for name, (p, se) in laws.items()]
        print(f"{(2 * i + 1) / sites:5.2f}" + "".join(f"{cell:>18}" for cell in cells))
    distances = [float((p - laws["exact"][0]).abs().sum() / 2) for p, _ in laws.values()]
    print("dist." + "".join(f"{distance:18.4f}" for distance in distances))


def draw(laws: dict[str, tuple[torch.Tensor, torch.Tensor]], sites: int, file: Path) -> None:
    """Plot P(|q|), and its difference to the exact law."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    q = ((2 * torch.arange(sites // 2 + 1) + 1) / sites).numpy()
    shown = ([x.numpy() for x in laws[name]] for name in ("exact", "learned", "Gibbs"))
    (exact, exact_stderr), (learned, stderr), (gibbs, _) = shown
    left.bar(q, exact, width=1.6 / sites, color="lightgrey", edgecolor="grey", label="exact")
    right.bar(q, 2 * exact_stderr, bottom=-exact_stderr, width=1.6 / sites, color="lightgrey", label="exact, ± 1 s.e.")
    for panel, zero in ((left, 0 * exact), (right, exact)):
        panel.errorbar(q, learned - zero, stderr, fmt="o", color="black", markersize=4, capsize=2, label="learned")
        panel.plot(q, gibbs - zero, "x", color="tab:orange", label="Gibbs, equal calls")
        panel.set(xlabel="overlap |q|", ylabel="probability" if panel is left else "probability − exact")
        panel.legend(fontsize=8)
    left.set_ylim(0, 1.4 * exact.max())
    figure.savefig(file, metadata={"Date": None})


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller lattice, seconds instead of minutes")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the picture")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    size = 3 if options.quick else 5
    if options.quick:
        found = experiment(size, steps=300, width=64, n=2000)
    else:
        found = experiment(size, steps=3000, width=256, n=10_000)
    table(found["laws"], size**2)
    draw(found["laws"], size**2, options.out / "spin_glass.svg")
    return found


if __name__ == "__main__":
    main()
