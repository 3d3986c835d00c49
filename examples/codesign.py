"""Which particles, and where? Types and positions of four particles, drawn together.

    E(x, s) = ½ Σ_{i<j} b (d_ij − 2)² + c (d_ij − 2)⁴,    x_i ∈ R², s_i ∈ {A, B},    b and c by the pair's types.

Each pair has two wells, in contact (d < 2) and apart. The joint law of sequence s and structure x answers questions of
design: how probable is each composition, and which types should a pair have that is wanted in contact, or apart? Chains
of Gibbs steps (types) and Hamiltonian steps (positions) are the reference; log Z is known by quadrature.

    python examples/codesign.py                      a few minutes of one CPU core
    python examples/codesign.py --quick --out DIR    a few seconds, and larger error bars
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import egm
from egm.mcmc import HMC, Alternate, Gibbs, run
from egm.report.plotting import new_figure, plain_style

COMPOSITIONS, KINDS = ("AAAA", "AAAB", "AABB", "ABBB", "BBBB"), ("AA", "AB", "BB")
Row = tuple[str, float, float, float, float]  # name, estimate, its standard error, reference, its standard error
Options = dict[str, Any]

COMMON: Options = {"batch_size": 256, "inner_steps": 20, "refresh": 512, "buffer": 8192, "refresh_steps": 32}
FULL: Options = {"network": "EGNN(width=32, depth=2)", "learning_rate": 3e-3, "steps": 2500, "sample_steps": 128}
QUICK: Options = {"network": "EGNN(width=32, depth=1)", "learning_rate": 5e-3, "steps": 150, "sample_steps": 32}
CHAINS = {"chains": 512, "warmup": 200, "steps": 400}


def composition(x: Tensor, types: Tensor) -> Tensor:
    """Return the composition of each draw, one-hot [n, 5] over `COMPOSITIONS`; it is given by the number of B."""
    return one_hot(types.sum(-1), 5).double()


def kinds(draws: egm.Draws, *, contact: bool) -> tuple[Tensor, Tensor]:
    """Estimate p(kind of a pair | it is in contact, or apart) as a ratio of expectations over pairs, with its error."""
    i, j = torch.triu_indices(4, 4, 1)
    wanted = (((draws["x"][:, i] - draws["x"][:, j]).norm(dim=-1) < 2) == contact).double()[..., None]
    kind = one_hot(draws["types"][:, i] + draws["types"][:, j], 3)
    share, _ = draws.expect(lambda x, types: wanted.sum(1))
    mean = draws.expect(lambda x, types: (wanted * kind).sum(1))[0] / share
    _, stderr = draws.expect(lambda x, types: (wanted * (kind - mean)).sum(1))
    return mean, stderr / share


def reference(target: egm.Target, *, chains: int, warmup: int, steps: int) -> egm.Draws:
    """Return long chains as draws in groups: only different chains are independent, and errors account for that."""
    kernel = Alternate([Gibbs(target), HMC(target, leapfrog_steps=8, jitter=0.8)])
    visited = run(target, kernel, chains=chains, warmup=warmup, steps=steps, seed=3).state
    return egm.Draws(target.space, {k: x.transpose(0, 1).flatten(0, 1) for k, x in visited.items()}, groups=chains)


def marginals(target: egm.Target, draws: egm.Draws, chains: egm.Draws) -> list[Row]:
    """Return probabilities of compositions, of kinds of pairs in contact and apart, and log Z."""
    both, rows = (draws, chains), []
    for names, text, found in (
        (COMPOSITIONS, "p({})", [each.expect(composition) for each in both]),
        (KINDS, "p({} | contact)", [kinds(each, contact=True) for each in both]),
        (KINDS, "p({} | apart)", [kinds(each, contact=False) for each in both]),
    ):
        columns = [column.tolist() for pair in found for column in pair]
        rows += zip(map(text.format, names), *columns, strict=True)
    return [*rows, ("log Z", draws.log_z, draws.log_z_stderr, target.log_z or math.nan, 0.0)]


@plain_style()
def draw(target: egm.Target, draws: egm.Draws, rows: list[Row], file: Path) -> None:
    """Plot probabilities, and below them the drawn structure of least energy for each composition."""
    figure = new_figure(figsize=(9, 4.6))
    top, bottom = figure.subfigures(2, 1, height_ratios=(3, 2))
    parts = ((0, COMPOSITIONS, "composition"), (5, KINDS, "pair in contact"), (8, KINDS, "pair apart"))
    for axis, (first, names, title) in zip(top.subplots(1, 3, width_ratios=(4, 3, 3)), parts, strict=True):
        _, mean, error, known, known_error = zip(*rows[first : first + len(names)], strict=True)
        axis.bar(names, known, yerr=[2 * e for e in known_error], color="0.85", ec="black", label="chains ± 2 s.e.")
        axis.errorbar(names, mean, [2 * e for e in error], fmt="o", capsize=4, label="estimate ± 2 s.e.")
        axis.set(title=title, ylabel="probability", ylim=(0, 0.75))
        axis.legend(frameon=False)
    energy, number = target.energy(**draws.state), draws["types"].sum(-1)
    for axis, name in zip(bottom.subplots(1, 5), COMPOSITIONS, strict=True):
        axis.set(title=name, xlabel="$x_1$", ylabel="$x_2$", aspect="equal", xlim=(-3.2, 3.2), ylim=(-3.2, 3.2))
        of_it = number == name.count("B")
        if of_it.any():  # a short run may miss the rarest one
            best = int(energy.where(of_it, math.inf).argmin())
            axis.set_title(f"{name}, E = {float(energy[best]):.1f}")
            for (x, y), is_b in zip(draws["x"][best].tolist(), draws["types"][best].tolist(), strict=True):
                axis.scatter(x, y, s=25 if is_b else 100, c="black" if is_b else "none", edgecolors="black")
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Train, draw, print the table, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run")
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder for codesign.svg")
    options = parser.parse_args()
    target = egm.targets.JointDW4()
    began = time.process_time()
    sampler = egm.fit(target, **COMMON | (QUICK if options.quick else FULL), seed=0, device="cpu")
    seconds, calls = time.process_time() - began, target.energy_calls
    draws = sampler.sample(2000 if options.quick else 10_000, seed=1)
    chains = reference(target, **({"chains": 128, "warmup": 40, "steps": 40} if options.quick else CHAINS))

    rows = marginals(target, draws, chains)
    print(f"{'':20}{'estimate':>10}{'':>10}{'reference':>12}")
    for name, mean, stderr, known, known_stderr in rows:
        print(f"{name:20}{mean:10.4f} ± {stderr:.4f}{known:13.4f} ± {known_stderr:.4f}")
    print(f"trained with {calls} energy calls in {seconds:.0f} CPU seconds (seed 0)")
    print(f"{len(draws)} draws (seed 1), ESS {draws.ess:.3f}, {'; '.join(draws.problems()) or 'no problem detected'}")
    options.out.mkdir(parents=True, exist_ok=True)
    draw(target, draws, rows, options.out / "codesign.svg")
    print(f"picture in {options.out / 'codesign.svg'}")


if __name__ == "__main__":
    main()
