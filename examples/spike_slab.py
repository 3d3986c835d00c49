"""Which of ten measurements predict the progression of diabetes? Spike-and-slab regression on scikit-learn's data.

    y | β, γ ~ N(X(γ∘β), s²),    β_j ~ N(0, 0.3²),    γ_j ~ Bernoulli(½),

with y and the columns of X standardised, and s the residual of least squares. γ_j says whether predictor j enters. Its
posterior probability is estimated from weighted draws of (β, γ), and known exactly by a sum over all 2¹⁰ models.

    pip install 'egm[examples]'                        scikit-learn and matplotlib
    python examples/spike_slab.py                      a few minutes of one CPU core
    python examples/spike_slab.py --quick --out DIR    a few seconds: 30 patients, four predictors
    python examples/spike_slab.py --patients 442       all patients: harder, see the page of this example
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

import egm
from egm.report.plotting import new_figure, plain_style
from egm.util.extras import needed

Row = tuple[str, float, float, float]  # name, estimate, standard error, exact value
Options = dict[str, Any]

COMMON: Options = {"network": "SiteMLP(width=64, depth=2, site_width=16, site_depth=1, frequencies=0)"}
COMMON |= {"learning_rate": 3e-3, "inner_steps": 20, "batch_size": 256, "refresh": 512, "buffer": 4096}
FULL: Options = {"steps": 5000, "refresh_steps": 24, "sample_steps": 64}
QUICK: Options = {"steps": 150, "refresh_steps": 8, "sample_steps": 16}


def diabetes(patients: int, predictors: int) -> tuple[egm.targets.SpikeSlab, list[str]]:
    """Return the posterior of the first patients and predictors of the data set, and the names of the predictors."""
    data = needed("sklearn.datasets", what="the diabetes data set", extra="examples").load_diabetes()
    if not predictors + 1 < patients <= len(data.target):
        raise SystemExit(f"--patients must be from {predictors + 2} to {len(data.target)}, got {patients}")
    X, y = data.data[:patients, :predictors], data.target[:patients]
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    residual = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
    noise = math.sqrt(residual @ residual / (patients - predictors - 1))
    return egm.targets.SpikeSlab(X, y, noise=noise, slab=0.3, inclusion=0.5), data.feature_names[:predictors]


def marginals(target: egm.targets.SpikeSlab, names: list[str], draws: egm.Draws) -> list[Row]:
    """Return the probability that each predictor enters, its expected coefficient, and log Z, the log evidence."""
    rows: list[Row] = []
    for text, (mean, stderr), exact in (
        ("p({} enters)", draws.expect(lambda beta, gamma: gamma), target.inclusion_probabilities),
        ("E γβ of {}", draws.expect(lambda beta, gamma: gamma * beta), target.coefficient_means),
    ):
        rows += zip(map(text.format, names), mean.tolist(), stderr.tolist(), exact.tolist(), strict=True)
    return [*rows, ("log Z", draws.log_z, draws.log_z_stderr, target.log_z or math.nan)]


@plain_style()
def draw(names: list[str], rows: list[Row], file: Path) -> None:
    """Plot inclusion probabilities and coefficients, estimated and exact."""
    figure = new_figure(figsize=(7, 4.6))
    top, bottom = figure.subplots(2, 1, sharex=True)
    p = len(names)
    for axis, part, label in ((top, rows[:p], "inclusion probability"), (bottom, rows[p:-1], "expected coefficient")):
        _, mean, stderr, exact = zip(*part, strict=True)
        axis.bar(names, exact, color="0.85", edgecolor="black", label=f"exact, sum over {2**p} models")
        axis.errorbar(names, mean, [2 * e for e in stderr], fmt="o", capsize=4, label="estimate ± 2 standard errors")
        axis.set(ylabel=label)
        axis.axhline(0, color="black", linewidth=0.8)
    top.set(ylim=(0, 1.3), yticks=(0, 0.5, 1))
    top.legend(frameon=False, ncols=2, loc="upper left")
    bottom.set(xlabel="predictor (s1 … s6: blood serum)")
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Train, draw, print the table, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run")
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder for spike_slab.svg")
    parser.add_argument("--patients", type=int, metavar="N", help="how many of the 442, 100 by default (30 if quick)")
    options = parser.parse_args()
    patients, predictors = (30, 4) if options.quick else (100, 10)
    target, names = diabetes(patients if options.patients is None else options.patients, predictors)
    began = time.process_time()
    sampler = egm.fit(target, **COMMON | (QUICK if options.quick else FULL), seed=0, device="cpu")
    seconds, calls = time.process_time() - began, target.energy_calls
    draws = sampler.sample(2000 if options.quick else 10_000, seed=1)

    rows = marginals(target, names, draws)
    print(f"{'':16}{'estimate':>10}{'':>10}{'exact':>10}")
    for name, mean, stderr, exact in rows:
        print(f"{name:16}{mean:10.4f} ± {stderr:.4f}{exact:11.4f}")
    print(f"trained with {calls} energy calls in {seconds:.0f} CPU seconds (seed 0)")
    print(f"{len(draws)} draws (seed 1), ESS {draws.ess:.3f}, {'; '.join(draws.problems()) or 'no problem detected'}")
    options.out.mkdir(parents=True, exist_ok=True)
    draw(names, rows, options.out / "spike_slab.svg")
    print(f"picture in {options.out / 'spike_slab.svg'}")


if __name__ == "__main__":
    main()
