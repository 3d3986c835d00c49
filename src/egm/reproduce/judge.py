"""Evaluates one run in a separate process: `python -m egm.reproduce.judge RUN --n 2000 --repeats 20`.

It compares n fresh draws with n fresh reference draws, several times. The record goes into the run's `results.json`,
and the draws of figures into its `figures.npz`. The trained network does not change.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from egm.api import load
from egm.evaluation import evaluate
from egm.evaluation.records import write_results
from egm.evaluation.scores import metrics_of
from egm.reproduce.figure_data import save_draws
from egm.reproduce.runs import Run

SEED = 10_000  # of evaluations; seeds of training are small
OF_EVERY_TARGET = ("e_w1", "e_w2")  # other metrics are evaluated on the targets that have them


def judged(run: Run, *, n: int, repeats: int, metrics: Sequence[str], resample_from: int) -> dict[str, Any] | None:
    """Return the record of a finished run, or None if it must be evaluated (again) for these options."""
    notes, file = run.notes(), run.folder / "results.json"
    done = notes.get("evaluated")
    if done is None or not file.is_file():
        return None
    enough = done["n"] == n and done["repeats"] >= repeats and done["resample_from"] >= resample_from
    if not enough or not set(_distances(metrics)) <= set(done["metrics"]):
        return None
    record = json.loads(file.read_text(encoding="utf-8"))
    return {**record, "concurrent": max(record["concurrent"], notes["concurrent"])}


def _distances(metrics: Sequence[str]) -> list[str]:
    return [name for name in metrics if name in OF_EVERY_TARGET]


def command(run: Run, *, n: int, repeats: int, metrics: Sequence[str], resample_from: int, device: str) -> list[str]:
    """Return the command that evaluates a run."""
    return [
        *(sys.executable, "-m", "egm.reproduce.judge", str(run.folder), "--n", str(n), "--repeats", str(repeats)),
        *("--resample_from", str(resample_from), "--device", device, "--metrics", *_distances(metrics)),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--resample_from", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--metrics", nargs="*", default=[])
    values = parser.parse_args(argv)
    sampler = load(values.run, device=values.device)
    target = sampler.target
    if target is None or target.reference_kind is None:
        raise ValueError(f"{sampler.config['target']} has no reference draws to compare with")
    names = list(dict.fromkeys([*metrics_of(target), *values.metrics]))
    n = (
        values.n if sampler.most_draws is None else min(values.n, sampler.most_draws)
    )  # chains may have visited fewer states
    options = {"n": n, "repeats": values.repeats, "resample_from": values.resample_from, "metrics": names}
    found = evaluate(sampler, seed=SEED, **options)
    save_draws(values.run, sampler, target, n)
    write_results(values.run, sampler, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
