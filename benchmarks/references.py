"""Make the long MCMC references and write the JSON summaries that the package ships (src/egm/targets/summaries).

    python benchmarks/references.py                        # everything that this machine can make
    python benchmarks/references.py --only LJ13 LJ55       # targets whose names start with these
    python benchmarks/references.py --out DIR              # write elsewhere

Every file records the run: method, seed, chains, steps, energy calls, seconds, hardware, commit, R-hat and ESS.
"""

import argparse
import platform
import subprocess
import sys
from pathlib import Path

import torch

from egm import targets
from egm.mcmc import make_reference, summary
from egm.mcmc.reference import slug
from egm.util.files import write_json

TARGETS = [
    targets.DW4(),
    targets.JointDW4(),
    targets.LJ13(),
    targets.LJ55(),
    targets.Ising(15, 0.28),
    targets.Ising(15, 0.4407),
    targets.Ising(16, 0.28),
    targets.Ising(16, 0.4407),
    targets.Ising(16, 0.6),
    targets.Ising(24, 0.4407),
    targets.Potts(16, 3, 0.5),
    targets.Potts(16, 3, 1.005),
    targets.Potts(16, 3, 1.2),
]
SUMMARIES = Path(__file__).parents[1] / "src" / "egm" / "targets" / "summaries"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", default=[""], help="targets whose printed name starts with one of these")
    parser.add_argument("--out", type=Path, default=SUMMARIES, help="directory of the JSON files")
    parser.add_argument("--commit", default=None, help="commit to record where git is not available")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    at = options.commit or commit()  # before the first file is written
    for target in TARGETS:
        if not repr(target).startswith(tuple(options.only)):
            continue
        plan, device = target._reference_plan(), "cuda" if torch.cuda.is_available() else "cpu"
        if plan.gpu_only and device == "cpu":
            print(f"{target!r}: skipped, it needs a GPU", file=sys.stderr)
            continue
        record = {
            "target": repr(target),
            **summary(make_reference(target, plan, device=device, progress=True)),
            "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU {platform.machine()}",
            "commit": at,
            "command": "python benchmarks/references.py",
        }
        path = options.out / f"{slug(repr(target))}.json"
        write_json(path, record, indent=None)
        energy, worst = record["observables"]["energy"], max(x["r_hat"] for x in record["observables"].values())
        print(
            f"{target!r}: mean E {energy['mean']:.4f} ± {energy['stderr']:.4f}, sd {energy['sd']:.4f}, ESS"
            f" {energy['ess']:.0f}, worst R-hat {worst:.4f}, {record['seconds']:.0f} s",
            flush=True,
        )


def commit() -> str:
    """Return the commit of the code, marked if the tree has changes."""
    describe = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, check=True
    )
    return describe.stdout.strip()


if __name__ == "__main__":
    main()
