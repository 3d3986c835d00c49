"""`egm sample` and `egm evaluate`: what to do with a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from egm.api import load
from egm.cli.own_target import import_target
from egm.cli.parsing import Count, Parser, Seed
from egm.cli.report import published, write_results
from egm.cli.tables import show_metrics
from egm.draws import Draws
from egm.evaluation import evaluate as compare
from egm.files import replacing


def sample(argv: list[str]) -> int:
    """Run `egm sample` with these arguments."""
    parser = Parser(
        "sample",
        "Draw from a trained sampler into a NumPy file: one array for each variable, and the log-weights.\n\n"
        "  egm sample runs/a -n 1000 --seed 1 --out draws.npz\n",
        usage="RUN [options]",
    )
    parser.add_argument("run", type=str, help="folder of a run")
    parser.add_argument("-n", "--n", type=Count, default=1000, help="how many draws")
    parser.add_argument("--seed", type=Seed, default=0, help="of the draws")
    parser.add_argument("--out", type=str | None, help="file to write, by default draws.npz in the run")
    parser.add_argument(
        "--steps",
        type=Count | None,
        help="of the simulation; by default those of the run, and one for each site where all variables are masked",
    )
    parser.add_argument("--batch_size", type=Count | None, help="draws simulated together, by default up to 10 000")
    parser.add_argument("--target", type=str | None, help="module:function, to weigh draws for an energy of your own")
    parser.add_argument("--device", type=str, default="cpu", help="where to draw, cpu or cuda")
    values, _ = parser.read(argv)
    target = None if values.target is None else import_target(values.target)
    sampler = load(values.run, target, device=values.device)
    draws = sampler.sample(values.n, seed=values.seed, batch_size=values.batch_size, steps=values.steps)
    file = Path(values.out) if values.out else Path(values.run) / "draws.npz"
    write_draws(file, draws)
    print(draws.summary())
    print(f"written to {file}; read with numpy.load({str(file)!r})")
    return 0


def write_draws(file: Path, draws: Draws) -> None:
    """Write an .npz file, one array for each variable and `.log_weights`; it is there as a whole or not at all."""
    arrays: dict[str, Any] = {name: x.cpu().numpy() for name, x in draws.state.items()}
    if draws.log_weights is not None:
        arrays[".log_weights"] = draws.log_weights.cpu().numpy()  # a name that no variable can have
    with replacing(file) as stream:
        np.savez(stream, **arrays)


def evaluate(argv: list[str]) -> int:
    """Run `egm evaluate` with these arguments."""
    parser = Parser(
        "evaluate",
        "Compare a trained sampler with reference draws: mean and spread of each metric beside its floor, the value\n"
        "that exact draws have. Writes results.json in the run.\n\n"
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
    values, _ = parser.read(argv)
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
