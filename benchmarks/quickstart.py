"""Measures the parts of the time of `make quickstart`, in an empty clone of this repository.

    python benchmarks/quickstart.py --results results/quickstart.json

Set-up installs the virtual environment (packages may come from pip's cache); training has its own time limit; the rest
is the start of Python, reference draws, evaluation and the summary.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from egm.runs.environment import commit, hardware
from egm.util.files import write_json

ROOT = Path(__file__).parent.parent


def seconds(*command: str, folder: Path) -> float:
    """Return the seconds that a command takes; raises if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=sys.stderr)
    return time.perf_counter() - began


def main() -> int:
    """Clone, set up and run; the seconds of training come from the record of the run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="file to write")
    values = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "egm"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        setup = seconds("make", ".venv/.installed", folder=clone)
        run = seconds("make", "quickstart", folder=clone)
        (file,) = clone.glob("runs/*/results.json")
        result = json.loads(file.read_text(encoding="utf-8"))
    training = result["train_seconds"]
    record = {
        "setup_seconds": round(setup, 1), "training_seconds": round(training, 1),
        "other_seconds": round(run - training, 1), "total_seconds": round(setup + run, 1),
        "steps": result["steps"], "ess": result["ess"], "log_z": result["log_z"],
        "hardware": hardware("cpu"), "cores": os.cpu_count(), "commit": commit(),
    }  # fmt: skip
    print(json.dumps(record, indent=1))
    if values.results is not None:
        write_json(values.results, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
