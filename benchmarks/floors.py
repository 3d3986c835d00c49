"""Computes floors of every recipe's target from 200 pairs of 2000 exact draws: the file that ships with the package.

    python benchmarks/floors.py --jobs 2        some minutes for each target with real variables (x_w2)

Existing floors are kept; write {} into `src/egm/metrics/floors.json` to start again.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from egm import recipes
from egm.config.targets import make_target
from egm.evaluation.scores import metrics_of
from egm.metrics.floors import floor, floor_key
from egm.util.files import write_json

FILE = Path("src/egm/metrics/floors.json")
N, PAIRS = 2000, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    jobs = parser.parse_args().jobs
    texts = sorted({repr(make_target(recipes.read(name)["target"])) for name in recipes.names()})
    known: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    wanted = [(text, metric) for text in texts for metric in metrics_of(make_target(text))]
    missing = [pair for pair in wanted if floor_key(pair[1], make_target(pair[0]), N) not in known]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_floor, *pair) for pair in missing]):
            key, found = done.result()
            known[key] = found
            write_json(FILE, dict(sorted(known.items())))
            print(f"{key}: {found['mean']:.4f} ± {found['std'] / PAIRS**0.5:.4f}", flush=True)


def _floor(text: str, metric: str) -> tuple[str, dict[str, Any]]:
    torch.set_num_threads(1)
    target = make_target(text)
    return floor_key(metric, target, N), asdict(floor(metric, target, N, pairs=PAIRS))


if __name__ == "__main__":
    main()
