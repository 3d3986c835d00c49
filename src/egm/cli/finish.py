"""Ends `egm train`: compares with reference draws, and prints the commands that use the run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import torch

from egm.cli.tables import show_metrics
from egm.evaluation import evaluate as compare
from egm.evaluation.records import published, write_results
from egm.runs.directory import RunDirectory
from egm.sampler import AnySampler

N, REPEATS, FLOOR_PAIRS = 2000, 3, 5  # for a quick look; `egm evaluate` makes more comparisons


def finish(folder: Path, sampler: AnySampler, *, evaluate: bool) -> None:
    """Compare a trained sampler with reference draws, and print where the run is."""
    if sampler.device.type == "cuda":
        RunDirectory(folder).record_peak(torch.cuda.max_memory_allocated(sampler.device) / 2**30)
    target = sampler.target
    if evaluate and target is not None and target.reference_kind is None:
        print(f"{target!r} has no reference draws to compare with")
    elif evaluate:
        print("comparing with reference draws", file=sys.stderr)
        n = N if sampler.most_draws is None else min(N, sampler.most_draws)
        record = write_results(folder, sampler, compare(sampler, n=n, repeats=REPEATS, floor_pairs=FLOOR_PAIRS))
        show_metrics(record, published(sampler.config))
        print(f"a proper comparison:  egm evaluate {shlex.quote(str(folder))}")
    source = str(sampler.config["target"])  # weights need a user's target, which is imported only if it is named
    named, loaded = (f" --target {shlex.quote(source)}", ", target") if ":" in source else ("", "")
    print(f"the run is in:        {folder}")
    print(f"draw from it:         egm sample {shlex.quote(str(folder))} -n 1000 --seed 1{named} --out draws.npz")
    print(f"or in Python:         egm.load({str(folder)!r}{loaded}).sample(1000, seed=1)")
