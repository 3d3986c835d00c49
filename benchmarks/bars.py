"""Checks records of EGM-SP against required bars: a line for each run, and exit status 1 if a bar is missed.

    python benchmarks/bars.py results/self_proposal.json
    python benchmarks/bars.py results/table1.json results/table2.json results/manywell.json results/leaps.json \\
        results/beyond.json
    python benchmarks/bars.py results/self_proposal_cpu.json

Runs of other methods in these files are left out.
*At the floor* is defined by `egm.metrics.floors`: 20 evaluations or more, with a mean of at most 1.25 × the floor.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egm.metrics.floors import LEAST_EVALUATIONS, LEAST_PAIRS, score_at_floor

MOST_CALLS = 5_000_000
MOST_SECONDS = 300
MOST_CPU_SECONDS = 61  # a minute, and the end of the current round
SEEDS = 3


@dataclass(frozen=True)
class Bar:
    """The requirements on every run of a recipe.

    Attributes:
        ess: smallest effective sample size.
        log_z: largest absolute error of log Z.
        raw: metrics that are at the floor before weighting.
        resampled: metrics that are at the floor after resampling.
        e_w1: largest E-W1 before weighting.
        modes: smallest number of modes in 2000 draws.
        observable: name, exact mean and tolerance of each of its entries.
    """

    ess: float
    log_z: float | None = None
    raw: tuple[str, ...] = ()
    resampled: tuple[str, ...] = ()
    e_w1: float | None = None
    modes: int | None = None
    observable: tuple[str, float, float] | None = None


LATTICE = ("e_w1", "m_w1")
GPU = {
    "fast/ising5-b02": Bar(0.97, 0.01, LATTICE),
    "fast/ising5-b04": Bar(0.97, 0.01, LATTICE),
    "fast/ising10-b02": Bar(0.97, 0.01, LATTICE),
    "fast/ising10-b04": Bar(0.97, 0.01, LATTICE),
    "fast/ising15-b028": Bar(0.95, 0.01, ("e_w1",)),
    "fast/gbrbm": Bar(0.90, 0.01, ("e_w1", "x_w2")),
    "fast/jointmog": Bar(0.80, 0.01, ("e_w1",)),
    "fast/jointdw4": Bar(0.60, resampled=("e_w1",), e_w1=0.30),
    "fast/manywell": Bar(0.30, 0.05, resampled=("e_w1",), observable=("left", 0.1557, 0.01)),
    "fast/gmm40": Bar(0.80, 0.02, ("x_w2",), modes=40),
}
PEERS = {  # the best published results of others; a miss is printed and does not change the exit status
    "fast/ising10-critical": Bar(0.97),
    "fast/ising15-critical": Bar(0.66),
    "fast/ising16-critical": Bar(0.93),
    "fast/potts16-critical": Bar(0.87),
}
CPU = {"fast/gbrbm": Bar(0.70), "fast/ising5-b04": Bar(0.90)}


def missed(record: dict[str, Any], bar: Bar, *, most_seconds: float = MOST_SECONDS) -> Iterator[str]:
    """Yield the requirements that a run misses, in words."""
    if record["energy_calls"] > MOST_CALLS:
        yield f"{record['energy_calls']} energy calls"
    if record["train_seconds"] > most_seconds:
        yield f"{record['train_seconds']} seconds"
    if not record["ess"] or record["ess"] < bar.ess:
        yield f"ESS below {bar.ess}"
    if bar.log_z is not None and (record["log_z"] is None or abs(record["log_z"] - record["log_z_exact"]) > bar.log_z):
        yield f"log Z off by more than {bar.log_z}"
    for names, scores, what in ((bar.raw, record["metrics"], ""), (bar.resampled, record["resampled"], "resampled ")):
        for name in names:
            reached = None if scores is None else score_at_floor(scores[name], evaluations=record["repeats"])
            if reached is None:
                yield f"{what}{name} not evaluated {LEAST_EVALUATIONS} times, or its floor not from {LEAST_PAIRS} pairs"
            elif not reached:
                yield f"{what}{name} above the floor"
    if bar.e_w1 is not None and record["metrics"]["e_w1"]["mean"] > bar.e_w1:
        yield f"e_w1 above {bar.e_w1}"
    if bar.modes is not None and (record["modes"] or 0) < bar.modes:
        yield f"{record['modes']} of {bar.modes} modes"
    if bar.observable is not None:
        name, exact, tolerance = bar.observable
        furthest = max(abs(mean - exact) for mean in record["observables"][name]["mean"])
        if furthest > tolerance:
            yield f"{name} off by {furthest:.3f}"


def line(record: dict[str, Any], problems: list[str]) -> str:
    """Return a run in a line, with distances as multiples of their floor."""
    ratios = [f"{name} {score['mean'] / score['floor']:.2f}" for name, score in record["metrics"].items()]
    ratios += [f"({name} {score['mean'] / score['floor']:.2f})" for name, score in (record["resampled"] or {}).items()]
    exact, found = record["log_z_exact"], record["log_z"]
    error = "" if exact is None or found is None else f"{found - exact:+.4f}"
    return (
        f"{record['recipe']:<24}{record['role']:<10}{record['seed']:<3}{record['ess'] or 0:<7.3f}{error:<9}"
        f"{record['train_seconds']:<7.0f}{record['concurrent']:<4}{record['energy_calls']:<10}{' '.join(ratios):<52}"
        f"{'; '.join(problems) or 'reached'}"
    )


def main() -> int:
    """Read files of records and print a line for each run."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    files = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    records = [record for file in files for record in file if record["method"] == "egm-sp"]
    cpu = all(record["hardware"].startswith("CPU") for record in records)
    wanted, complete = CPU if cpu else GPU, True
    bars = wanted if cpu else wanted | PEERS
    print("recipe                  role      #  ESS    log Z    s      of  calls     distances / floor (resampled)")
    seeds: dict[str, set[int]] = {recipe: set() for recipe in wanted}
    for record in records:
        bar = bars.get(record["recipe"]) if record["role"] == "main" else None
        limit = MOST_CPU_SECONDS if cpu else MOST_SECONDS
        problems = ["not judged"] if bar is None else list(missed(record, bar, most_seconds=limit))
        print(line(record, problems))
        if bar is not None and record["recipe"] in wanted:
            seeds[record["recipe"]].add(record["seed"])
            complete = complete and not problems
    for recipe, found in seeds.items():
        if len(found) < SEEDS:
            print(f"{recipe}: {len(found)} of {SEEDS} seeds")
            complete = False
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
