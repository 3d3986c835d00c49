"""`egm sample` and `egm evaluate`: draw from a trained run, and compare it with reference draws."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from egm.api import load
from egm.cli.own_target import import_target
from egm.cli.parsing import Count, Parser, Seed
from egm.cli.tables import show_metrics
from egm.draws import Draws
from egm.draws.export import writer_of
from egm.evaluation import evaluate as compare
from egm.evaluation.records import published, write_results
from egm.targets.base import Target
from egm.util.seeds import derive_seed

TOGETHER = 10_000  # draws whose energies are computed at once
READERS = {".nc": "arviz.from_netcdf", ".npz": "numpy.load", ".csv": "pandas.read_csv"}


def sample(argv: list[str]) -> int:
    """Run `egm sample` with these arguments."""
    values, _ = sample_parser().read(argv)
    file = Path(values.out) if values.out else Path(values.run) / "draws.npz"
    writer_of(file)  # raises for an unknown suffix before anything is drawn
    target = None if values.target is None else import_target(values.target)
    sampler = load(values.run, target, device=values.device)
    draws = sampler.sample(values.n, seed=values.seed, batch_size=values.batch_size, steps=values.steps)
    written = draws
    if values.resample is not None:
        written = Draws(draws.space, draws.resample(values.resample, seed=derive_seed(values.seed, 1)))
    if written.energies is None and sampler.target is not None:
        written.energies = energies_of(sampler.target, written)
    written.write(file)
    print(draws.summary())
    print(f"written to {file}; read with {READERS[file.suffix]}({str(file)!r})")
    return 0


def sample_parser() -> Parser:
    """Return the parser of `egm sample`."""
    parser = Parser(
        "sample",
        "Draw from a trained sampler into a file, with log-weights and energies. The suffix of the file sets\n"
        "its format.\n\n"
        "  egm sample runs/a -n 1000 --seed 1 --out draws.npz      for NumPy: an array for each variable\n"
        "  egm sample runs/a -n 1000 --seed 1 --out draws.nc       for ArviZ: posterior and sample_stats\n"
        "  egm sample runs/a -n 1000 --seed 1 --out draws.csv      a line for each draw\n"
        "  egm sample runs/a -n 9999 --resample 2000 --out draws.nc    2000 draws of equal weight\n",
        usage="RUN [options]",
    )
    parser.add_argument("run", type=str, help="folder of a run")
    parser.add_argument("-n", "--n", type=Count, default=1000, help="how many draws")
    parser.add_argument("--resample", type=Count | None, help="write this many instead, resampled by weight")
    parser.add_argument("--seed", type=Seed, default=0, help="seed of the draws")
    parser.add_argument(
        "--out", type=str | None, help="file to write (.nc, .npz, .csv), by default draws.npz in the run"
    )
    parser.add_argument(
        "--steps",
        type=Count | None,
        help="of the simulation, by default as in the run (one for each site if every variable is masked)",
    )
    parser.add_argument("--batch_size", type=Count | None, help="draws simulated together, by default up to 10 000")
    parser.add_argument("--target", type=str | None, help="module:function, to weight draws on your own energy")
    parser.add_argument("--device", type=str, default="cpu", help="where to draw, cpu or cuda")
    return parser


def energies_of(target: Target, draws: Draws) -> Tensor:
    """Return the energies of draws that have none."""
    parts = (
        {name: x[start : start + TOGETHER] for name, x in draws.state.items()}
        for start in range(0, len(draws), TOGETHER)
    )
    return torch.cat([target.energy(**part).detach().double() for part in parts])


def evaluate(argv: list[str]) -> int:
    """Run `egm evaluate` with these arguments."""
    values, _ = evaluate_parser().read(argv)
    target = None if values.target is None else import_target(values.target)
    sampler = load(values.run, target, device=values.device)
    if sampler.target is None:
        raise ValueError(
            f"the run's target ({sampler.config['target']}) is not a built-in one; add --target module:function"
        )
    if sampler.target.reference_kind is None:
        raise ValueError(f"{sampler.target!r} has no reference draws to compare with; see the draws of `egm sample`")
    found = compare(sampler, n=values.n, repeats=values.repeats, floor_pairs=values.floor_pairs, seed=values.seed)
    record = write_results(Path(values.run), sampler, found)
    show_metrics(record, published(sampler.config))
    print(f"written to {Path(values.run) / 'results.json'}")
    return 0


def evaluate_parser() -> Parser:
    """Return the parser of `egm evaluate`."""
    parser = Parser(
        "evaluate",
        "Compare a trained sampler with reference draws: the mean and spread of each metric, and its floor\n"
        "(the value of exact draws). The command writes results.json into the run.\n\n"
        "  egm evaluate runs/a --n 2000 --repeats 20 --seed 0\n"
        "  egm evaluate runs/b --target my_module:make_target\n",
        usage="RUN [options]",
    )
    parser.add_argument("run", type=str, help="folder of a run")
    parser.add_argument("--n", type=Count, default=2000, help="draws on either side")
    parser.add_argument("--repeats", type=Count, default=20, help="independent comparisons")
    parser.add_argument("--floor_pairs", type=Count, default=200, help="pairs of reference sets for each floor")
    parser.add_argument("--seed", type=Seed, default=0, help="seed of draws and reference draws")
    parser.add_argument("--target", type=str | None, help="module:function, for a run on your own energy")
    parser.add_argument("--device", type=str, default="cpu", help="where to draw, cpu or cuda")
    return parser
