"""Six modes of a Gaussian–Bernoulli restricted Boltzmann machine: how probable is each, and what is log Z?

    E(v, h) = ½‖v‖² − b·h − vᵀWh,    v ∈ R², h ∈ {0, 1}³,    b = −12, W = [[5, 0, −5], [0, 5, 0]].

Given h, v is Gaussian around Wh, so every h belongs to one of six modes. The estimates are compared with their exact
probabilities, sums over the eight h.

    python examples/gbrbm.py                      a minute or two of one CPU core
    python examples/gbrbm.py --quick --out DIR    a few seconds, and larger error bars
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import one_hot

import egm
from egm.report.plotting import new_figure, plain_style

W = torch.tensor([[5.0, 0.0, -5.0], [0.0, 5.0, 0.0]])
Row = tuple[str, float, float, float]  # name, estimate, standard error, exact value
Options = dict[str, Any]

COMMON: Options = {"network": "ResidualMLP(width=64, depth=3)", "learning_rate": 3e-3, "inner_steps": 20}
FULL: Options = {"steps": 2000, "batch_size": 512, "refresh": 1024, "refresh_steps": 32, "sample_steps": 128}
QUICK: Options = {"steps": 200, "batch_size": 256, "refresh": 512, "refresh_steps": 16, "sample_steps": 32}


def marginals(target: egm.targets.GBRBM, draws: egm.Draws) -> list[Row]:
    """Return the probability of each mode, and log Z."""
    modes = target.modes
    # the mode of a state is the one whose centre is Wh
    shares, errors = draws.expect(lambda v, h: one_hot(modes.assign(h.to(W) @ W.T), len(modes.masses)))
    names = [f"mode at ({x:g}, {y:g})" for x, y in modes.centers.tolist()]
    rows = list(zip(names, shares.tolist(), errors.tolist(), modes.masses.tolist(), strict=True))
    return [*rows, ("log Z", draws.log_z, draws.log_z_stderr, target.log_z or math.nan)]


@plain_style()
def draw(target: egm.targets.GBRBM, draws: egm.Draws, rows: list[Row], file: Path) -> None:
    """Plot draws of v on the contours of its exact density, and the probabilities of the modes."""
    figure = new_figure(figsize=(8, 3.2))
    plane, bars = figure.subplots(1, 2)
    x, y = torch.meshgrid(torch.linspace(-9, 9, 181), torch.linspace(-4, 9, 131), indexing="xy")
    square = (torch.stack([x, y], -1)[..., None, :] - target.modes.centers).square().sum(-1)
    density = (target.modes.masses * torch.exp(-0.5 * square)).sum(-1) / (2 * math.pi)
    v = draws.resample(1000, seed=2)["v"]
    plane.scatter(v[:, 0], v[:, 1], s=3, color="tab:orange", rasterized=True)
    plane.contour(x, y, density, levels=6, colors="black", linewidths=0.7)
    plane.set(xlabel="$v_1$", ylabel="$v_2$", title="1000 resampled draws, contours of the exact density")

    names, estimates, errors, exact = zip(*rows[:-1], strict=True)
    bars.bar(names, exact, color="0.85", edgecolor="black", label="exact")
    bars.errorbar(names, estimates, [2 * e for e in errors], fmt="o", capsize=4, label="estimate ± 2 standard errors")
    bars.set_xticks(range(len(names)), [name.removeprefix("mode at ") for name in names])
    bars.set(xlabel="centre of the mode", ylabel="probability", ylim=(0, 0.36), title="probability of each mode")
    bars.legend(frameon=False)
    figure.savefig(file, dpi=120, metadata={"Date": None})


def main() -> None:
    """Train, draw, print the table, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run")
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder for gbrbm.svg")
    options = parser.parse_args()
    target = egm.targets.GBRBM(W=W.tolist())
    began = time.process_time()
    sampler = egm.fit(target, **COMMON | (QUICK if options.quick else FULL), seed=0, device="cpu")
    seconds, calls = time.process_time() - began, target.energy_calls
    draws = sampler.sample(2000 if options.quick else 10_000, seed=1)

    rows = marginals(target, draws)
    print(f"{'':18}{'estimate':>10}{'':>10}{'exact':>10}")
    for name, mean, stderr, exact in rows:
        print(f"{name:18}{mean:10.4f} ± {stderr:.4f}{exact:11.4f}")
    print(f"trained with {calls} energy calls in {seconds:.0f} CPU seconds (seed 0)")
    print(f"{len(draws)} draws (seed 1), ESS {draws.ess:.3f}, {'; '.join(draws.problems()) or 'no problem detected'}")
    options.out.mkdir(parents=True, exist_ok=True)
    draw(target, draws, rows, options.out / "gbrbm.svg")
    print(f"picture in {options.out / 'gbrbm.svg'}")


if __name__ == "__main__":
    main()
