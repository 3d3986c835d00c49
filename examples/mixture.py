"""Nine measurements from three groups: which of them belong together, and what are the means of the groups?

    y_i | μ, z ~ N(μ_{z_i}, 1),    μ_j ~ N(0, 3²),    z_i uniform on three labels.

All 3⁹ assignments z can be enumerated, so every estimate has an exact value. The labels have no order: every
posterior mode comes 3! = 6 times, once for each relabelling, and each order of μ_1, μ_2, μ_3 has the probability 1/6.

    python examples/mixture.py                      a few minutes of one CPU core
    python examples/mixture.py --quick --out DIR    a few seconds: five of the data, two components
"""

import argparse
import math
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import one_hot

import egm
from egm.report.plotting import new_figure, plain_style

Y = (-3.9, -3.2, -1.9, -0.6, 0.2, 0.9, 1.8, 3.3, 4.1)
Row = tuple[str, float, float, float]  # name, estimate, standard error, exact value
Options = dict[str, Any]

COMMON: Options = {"network": "ResidualMLP(width=64, depth=3)", "batch_size": 256, "refresh": 512, "buffer": 4096}
FULL: Options = {"steps": 4000, "learning_rate": 3e-3, "inner_steps": 20, "refresh_steps": 16, "sample_steps": 64}
QUICK: Options = {"steps": 300, "learning_rate": 5e-3, "inner_steps": 30, "refresh_steps": 8, "sample_steps": 16}


def marginals(target: egm.targets.GaussianMixturePosterior, draws: egm.Draws) -> list[Row]:
    """Return p(neighbours share a component), means of the data's components, p(order of labels) and log Z."""

    def rows(names: list[str], estimate: tuple[torch.Tensor, torch.Tensor], exact: torch.Tensor) -> list[Row]:
        return list(zip(names, estimate[0].tolist(), estimate[1].tolist(), exact.tolist(), strict=True))

    n, orders = len(target.fitted_means), list(permutations(range(target.k)))
    together = draws.expect(lambda mu, z: z[:, 1:] == z[:, :-1])
    fitted = draws.expect(lambda mu, z: mu.gather(-1, z))
    ordered = draws.expect(lambda mu, z: (mu.argsort(-1)[:, None] == torch.tensor(orders)).all(-1))
    return [
        *rows([f"p(z_{i} = z_{i + 1})" for i in range(1, n)], together, target.together_probabilities.diagonal(1)),
        *rows([f"E μ of datum {i}" for i in range(1, n + 1)], fitted, target.fitted_means),
        *rows(
            ["p(" + " < ".join(f"μ_{j + 1}" for j in order) + ")" for order in orders],
            ordered,
            torch.full((len(orders),), 1 / len(orders)),
        ),
        ("log Z", draws.log_z, draws.log_z_stderr, target.log_z or math.nan),
    ]


@plain_style()
def draw(target: egm.targets.GaussianMixturePosterior, draws: egm.Draws, file: Path) -> None:
    """Plot which data belong together, estimated against exact, and the means by label and in ascending order."""
    figure = new_figure(figsize=(10, 3.2))
    pairs, labels, ordered = figure.subplots(1, 3)
    n = len(target.fitted_means)
    i, j = torch.triu_indices(n, n, 1)
    together, errors = draws.expect(lambda mu, z: z[:, i] == z[:, j])
    pairs.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    pairs.errorbar(target.together_probabilities[i, j], together, 2 * errors, fmt="o", markersize=3, capsize=2)
    pairs.set(xlabel="exact", ylabel="estimate ± 2 s.e.", title="p(z_i = z_j) of all pairs")

    edges, exact = torch.linspace(-7, 7, 29), target.exact_sample(100_000, seed=2)["mu"]
    centres, width = (edges[1:] + edges[:-1]) / 2, float(edges[1] - edges[0])
    for axis, of_label, name, title in (
        (labels, lambda mu: mu, "μ_", "means by label, all alike"),
        (ordered, lambda mu: mu.sort(-1).values, "number ", "means in ascending order"),
    ):
        density, error = draws.expect(lambda mu, z, f=of_label: one_hot(torch.bucketize(f(mu), edges), 30) / width)
        for j, style in enumerate(("-o", "--s", ":^")[: target.k]):
            known = of_label(exact)[:, j].numpy()
            axis.hist(known, edges.numpy(), density=True, color="0.85", label=None if j else "exact draws")
            found, bar = density[j, 1:-1], 2 * error[j, 1:-1]
            axis.errorbar(centres, found, bar, fmt=style, markersize=3, linewidth=1, label=f"{name}{j + 1}")
        axis.set(xlabel="mean of a component", ylabel="posterior density ± 2 s.e.", title=title)
        axis.set_ylim(0, 1.5 * float(density.max()))  # with room for the legend
        axis.legend(frameon=False)
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Train, draw, print the table, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run")
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder for mixture.svg")
    options = parser.parse_args()
    y, k = (Y[::2], 2) if options.quick else (Y, 3)
    target = egm.targets.GaussianMixturePosterior(y, k, noise=1.0, prior_scale=3.0)
    began = time.process_time()
    sampler = egm.fit(target, **COMMON | (QUICK if options.quick else FULL), seed=0, device="cpu")
    seconds, calls = time.process_time() - began, target.energy_calls
    draws = sampler.sample(2000 if options.quick else 10_000, seed=1)

    print(f"{'':20}{'estimate':>10}{'':>10}{'exact':>10}")
    for name, mean, stderr, exact in marginals(target, draws):
        print(f"{name:20}{mean:10.4f} ± {stderr:.4f}{exact:11.4f}")
    print(f"trained with {calls} energy calls in {seconds:.0f} CPU seconds (seed 0)")
    print(f"{len(draws)} draws (seed 1), ESS {draws.ess:.3f}, {'; '.join(draws.problems()) or 'no problem detected'}")
    options.out.mkdir(parents=True, exist_ok=True)
    draw(target, draws, options.out / "mixture.svg")
    print(f"picture in {options.out / 'mixture.svg'}")


if __name__ == "__main__":
    main()
