"""Compares the speed of two versions of the package on a CPU: both run the same cases, alternately.

    git worktree add runs/before <commit>
    python benchmarks/compare_cpu.py runs/before/src --results results/compare_cpu.json

The load of a machine varies, so versions take turns, and ratios are ratios of medians. The older version runs twice in
each round: the ratio of these two shows the variation of the machine alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from egm.runs.environment import hardware
from egm.util.files import write_json

HERE = Path(__file__).parent
NOW = HERE.parent / "src"
#: recipe, method and options; draws for the buffer are timed as well
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "egm ising 5": ("paper/ising5-b04", "egm", {"proposals": 200}),
    "egm-bs ising 5": ("paper/ising5-b04", "egm-bs", {"proposals": 50}),
    "egm-sp ising 5": ("fast/ising5-b04", "egm-sp", {"batch_size": 128, "refresh": 128}),
    "egm gbrbm": ("paper/gbrbm", "egm", {"proposals": 200}),
    "egm-bs gbrbm": ("paper/gbrbm", "egm-bs", {"proposals": 50}),
    "egm-sp gbrbm": ("fast/gbrbm", "egm-sp", {"refresh": 256}),
    "egm-sp jointmog": ("fast/jointmog", "egm-sp", {"batch_size": 128, "refresh": 64, "refresh_steps": 16}),
}
SHORT = {"buffer": 2048, "refresh": 100, "sample_steps": 50}
ONE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from timing import median_seconds, train_steps, trainer_of
recipe, method, changes = json.loads(sys.argv[2])
trainer = trainer_of(recipe, method, "cpu", **changes)
draw = lambda: trainer.method.refresh(trainer.buffer, trainer.draw())
def seconds(run):  # the median of two seconds' worth, after a warm-up
    repeats = max(3, min(50, int(2.0 / median_seconds(run, "cpu", repeats=3)[0])))
    return median_seconds(run, "cpu", repeats=repeats)[0]
draw()
print(json.dumps({"step": seconds(lambda: train_steps(trainer, 3)) / 3, "draws": seconds(draw)}))
"""


def once(source: Path, case: str, threads: int) -> dict[str, float]:
    """Return the seconds of a step and of the draws of a refresh with one version of the package."""
    recipe, method, changes = CASES[case]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": str(threads)}
    command = [
        sys.executable,
        "-c",
        ONE,
        str(source.parent / "benchmarks"),
        json.dumps([recipe, method, {**SHORT, **changes}]),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _commit(source: Path) -> str:
    command = ["git", "-C", str(source), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Run every case and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the src folder of the other version")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    values = parser.parse_args()
    machine = {"hardware": hardware(torch.device("cpu")), "threads": values.threads, "torch": torch.__version__}
    commits = {"before": _commit(values.before), "now": _commit(NOW)}
    records, versions = [], {**machine, **commits, "rounds": values.rounds}
    for case in values.only:
        sources = {"before": values.before, "now": NOW, "again": values.before}
        rounds = [
            {version: once(source, case, values.threads) for version, source in sources.items()}
            for _ in range(values.rounds)
        ]
        for what in ("step", "draws"):
            before, now, again = (statistics.median(found[version][what] for found in rounds) for version in sources)
            seconds = {"before_ms": before, "now_ms": now, "again_ms": again}
            seconds = {name: round(1e3 * value, 2) for name, value in seconds.items()}
            records.append({"case": case, "what": what, **seconds, **versions})
            print(
                f"{case:<18}{what:<7}{1e3 * before:>9.1f} ms {1e3 * now:>9.1f} ms   now / before {now / before:.2f}"
                f"   before / before {again / before:.2f}",
                flush=True,
            )
    if values.results is not None:
        write_json(values.results, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
