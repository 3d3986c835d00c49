"""`egm sample` and `egm evaluate`: what to do with a finished run."""

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

TOGETHER = 10_000  # energies of draws that are computed at once
READERS = {".nc": "arviz.from_netcdf", ".npz": "numpy.load", ".csv": "pandas.read_csv"}


def sample(argv: list[str]) -> int:
    """Run `egm sample` with these arguments."""
    values, _ = sample_parser().read(argv)
    file = Path(values.out) if values.out else Path(values.run) / "draws.npz"
    writer_of(file)  # before anything is drawn in vain
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
    """The options of `egm sample`."""
    parser = Parser(
        "sample",
        "Draw from a trained sampler into a file, with log-weights and energies; its suffix says how.\n\n"
        "  egm sample runs/a -n 1000 --seed 1 --out draws.npz      for NumPy: an array for each variable\n"
        "  egm sample runs/a -n 1000 --seed 1 --out draws.nc       for ArviZ: posterior and sample_stats\n"
        "  egm sample runs/a -n 1000 --seed 1 --out draws.csv      a line for each draw\n"
        "  egm sample runs/a -n 9999 --resample 2000 --out draws.nc    2000 of equal weight\n",
        usage="RUN [options]",
    )
    parser.add_argument("run", type=str, help="folder of a run")
    parser.add_argument("-n", "--n", type=Count, default=1000, help="how many draws")
    parser.add_argument("--resample", type=Count | None, help="write this many instead, picked by weight")
    parser.add_argument("--seed", type=Seed, default=0, help="of the draws")
    parser.add_argument(
        "--out", type=str | None, help="file to write (.nc, .npz, .csv), by default draws.npz in the run"
    )
    parser.add_argument(
        "--steps",
        type=Count | None,
        help="of the simulation, by default those of the run (one for each site where all are masked)",
    )
    parser.add_argument("--batch_size", type=Count | None, help="draws simulated together, by default up to 10 000")
    parser.add_argument("--target", type=str | None, help="module:function, to weigh draws for an energy of your own")
    parser.add_argument("--device", type=str, default="cpu", help="where to draw, cpu or cuda")
    return parser


def energies_of(target: Target, draws: Draws) -> Tensor:
    """Energies of draws that were made without asking for them."""
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
        raise ValueError(f"{sampler.target!r} has no exact draws to compare with; look at the draws of `egm sample`")
    found = compare(sampler, n=values.n, repeats=values.repeats, floor_pairs=values.floor_pairs, seed=values.seed)
    record = write_results(Path(values.run), sampler, found)
    show_metrics(record, published(sampler.config))
    print(f"written to {Path(values.run) / 'results.json'}")
    return 0


def evaluate_parser() -> Parser:
    """The options of `egm evaluate`."""
    parser = Parser(
        "evaluate",
        "Compare a trained sampler with reference draws: mean and spread of each metric beside its floor,\n"
        "the value that exact draws have. Writes results.json in the run.\n\n"
        "  egm evaluate runs/a --n 2000 --repeats 20 --seed 0\n"
        "  egm evaluate runs/b --target my_module:make_target\n",
        usage="RUN [options]",
    )
    parser.add_argument("run", type=str, help="folder of a run")
    parser.add_argument("--n", type=Count, default=2000, help="draws on either side")
    parser.add_argument("--repeats", type=Count, default=20, help="independent comparisons")
    parser.add_argument("--floor_pairs", type=Count, default=200, help="pairs of exact sets behind a floor")
    parser.add_argument("--seed", type=Seed, default=0, help="of draws and references")
    parser.add_argument("--target", type=str | None, help="module:function, for a run on an energy of your own")
    parser.add_argument("--device", type=str, default="cpu", help="where to draw, cpu or cuda")
    return parser
