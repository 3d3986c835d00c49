"""Measures the time of a gradient step and of a set of draws, next to the authors' code and the bound of the machine.

    python benchmarks/speed.py --results results/speed.json                  every case, on a GPU
    python benchmarks/speed.py --only egm-10 --profile                       where the time of one case goes
    python benchmarks/speed.py --device cpu --only egm-5 --proposals 64      a small one on a CPU

The settings are the paper's (`recipes/paper`): batches of 300, 2000 proposals for each state. Steps are steps
of the training loop, replayed as CUDA graphs; memory is the largest allocation of torch, including the recording of the
graph. Draws are made by first hitting, with a call of the network for each site, and are replayed as well; the authors'
draws take 1000 Euler steps. Every case is also checked: on fresh random states, the estimates of training are compared
with plain estimates (no Triton kernels, no bfloat16) from the same proposals, and this difference with the error from
the random proposals. The law of the proposals has its own tests.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import egm.util.triton
from egm.estimation.estimators import Estimate, estimate
from egm.methods.egm import EGM
from egm.networks.base import Head
from egm.networks.fused import KERNELS as NETWORK_KERNELS
from egm.paths.discrete import COUNTING_KERNELS
from egm.runs.environment import commit, hardware
from egm.targets.lattice import KERNELS as ENERGY_KERNELS
from egm.train.trainer import Trainer
from egm.util.files import write_json
from roofline import floor_of
from timing import timed, trainer_of

DRAWS = 2000


@dataclass(frozen=True)
class Case:
    """A recipe and method to time, what the authors' code takes (milliseconds, GiB), and the goal."""

    name: str
    recipe: str
    method: str
    authors_ms: float
    authors_gib: float | None
    goal_ms: float
    goal_gib: float | None
    draws: bool = False


CASES = [
    Case("egm-bs-10", "paper/ising10-b04", "egm-bs", 591, 54.2, 45, 4),
    Case("egm-bs-15", "paper/ising15-b028", "egm-bs", 183, 19.5, 12, 3),
    Case("egm-bs-5", "paper/ising5-b04", "egm-bs", 33.9, 7.1, 3, None),
    Case("egm-10", "paper/ising10-b04", "egm", 7.5, 3.9, 1, 1),
    Case("egm-5", "paper/ising5-b04", "egm", 4.2, 1.0, 4.2, None),
    Case("draws-10", "paper/ising10-b04", "egm-bs", 3180, None, 100, None, draws=True),
]


def measure(case: Case, device: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Measure time, memory, floor and correctness of one case."""
    trainer = trainer_of(case.recipe, case.method, device, **changes)
    found = timed(trainer, device, draws=DRAWS if case.draws else None)
    least = floor_of(trainer, draws=DRAWS if case.draws else None)
    return {
        **asdict(case),
        **found,
        "floor_ms": round(least.milliseconds, 3),
        "bound_by": least.bound_by,
        "check": None if case.draws else check(trainer),
        "changes": changes,
        "hardware": hardware(torch.device(device)),
        "torch": torch.__version__,
        "commit": commit(),
    }


@torch.no_grad()
def check(trainer: Trainer) -> dict[str, float]:
    """Return root mean squares over a batch: of the change by kernels and bfloat16, and of the proposals' error."""
    method = trainer.method
    if not isinstance(method, EGM):
        raise TypeError("only EGM and EGM-BS make estimates")
    if method.averaging:
        raise ValueError("the check compares the network itself, before its running average has begun")
    device = trainer.sampler.device
    generator = torch.Generator(device).manual_seed(123)
    if method.learned is not None:  # after a few steps, its output is still almost constant
        for head in (module for module in method.learned.model.modules() if isinstance(module, Head)):
            torch.nn.init.normal_(head.linear.weight, std=head.linear.in_features**-0.5, generator=generator)
    epsilon = 0.0 if method.learned is None else method.learned.options.epsilon
    x_1 = method.path.prior_sample((64,), 1.0, generator=generator, device=device)
    t = torch.rand(64, generator=generator, device=device) * (1 - epsilon) * 0.98 + 0.01
    x_t = method.path.sample(x_1, t, generator=generator)

    law = method.options.proposal
    if law == "sampler":
        raise ValueError("the check needs proposals that no network makes: use proposal='reference' or 'flat'")

    def found(seed: int, *, plain: bool = False) -> Estimate:
        energy: Any = method.energy
        if method.learned is not None:
            energy = method.learned.model if plain else method.learned
        missing = {NETWORK_KERNELS, COUNTING_KERNELS, ENERGY_KERNELS} if plain else set()
        before, egm.util.triton._MISSING = egm.util.triton._MISSING, missing
        try:
            return estimate(
                energy, method.path, method.processes, x_t, t,
                r=1.0 if method.learned is None else t + method.learned.options.epsilon, count=method.options.proposals,
                proposal=law, memory=method.options.memory,
                state_bytes=method.regression._learned_bytes, generator=torch.Generator(device).manual_seed(seed),
            )  # fmt: skip
        finally:
            egm.util.triton._MISSING = before

    fast, plain, other = found(1), found(1, plain=True), found(2)

    def rms(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a - b).double().square().mean().sqrt())

    (name,) = method.processes
    return {
        "prediction_changed": rms(fast.prediction[name], plain.prediction[name]),
        "prediction_error": rms(fast.prediction[name], other.prediction[name]) / 2**0.5,
        "energy_changed": rms(fast.energy, plain.energy),
        "energy_error": rms(fast.energy, other.energy) / 2**0.5,
    }


def profile(case: Case, device: str, changes: dict[str, Any]) -> None:
    """Print where a plain step spends its time (a recorded step is a single launch)."""
    trainer = trainer_of(case.recipe, case.method, device, **changes)
    step = (lambda: trainer.sampler.sample(DRAWS, seed=1)) if case.draws else trainer.gradient_step
    step()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.startswith("cuda"):
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        step()
    by = "self_cuda_time_total" if device.startswith("cuda") else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=by, row_limit=20, max_name_column_width=60))


def line(record: dict[str, Any]) -> str:
    """Return a case in a line."""
    gib = "" if record["gib"] is None else f"{record['gib']:.2f}"
    ratio, share = record["authors_ms"] / record["ms"], record["floor_ms"] / record["ms"]
    checked = record["check"]
    shown = (
        f"{checked['prediction_changed']:.1e} / {checked['prediction_error']:.1e}   "
        f"{checked['energy_changed']:.1e} / {checked['energy_error']:.1e}"
        if checked
        else ""
    )
    return (
        f"{record['name']:<12}{record['ms']:>9.2f} ms{record['goal_ms']:>8.1f}{record['authors_ms']:>8.1f}"
        f"{ratio:>7.1f}×{gib:>8} GiB  {record['floor_ms']:>8.2f} ms ({share:>4.0%}, {record['bound_by']})   {shown}"
    )


def main() -> int:
    """Run the cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", default=[], help="cases, such as egm-10; all if left out")
    parser.add_argument("--proposals", type=int, help="instead of the paper's 2000")
    parser.add_argument("--memory", type=int, default=2**30, help="bytes that proposals may take at once")
    parser.add_argument("--results", type=Path, help="file to write")
    parser.add_argument("--profile", action="store_true", help="print a profile instead")
    values = parser.parse_args()
    changes: dict[str, Any] = {"memory": values.memory}
    if values.proposals is not None:
        changes["proposals"] = values.proposals
    records = []
    for case in CASES:
        if values.only and case.name not in values.only:
            continue
        if values.profile:
            profile(case, values.device, changes)
            continue
        records.append(measure(case, values.device, changes))
        print(line(records[-1]), flush=True)
    if records:
        print(
            "case, time, goal, authors, ratio, memory, floor (share of it, bound by), changed / error of tables, of Ê"
        )
    if values.results is not None and records:
        write_json(values.results, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
