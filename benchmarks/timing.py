"""Shared code of the speed benchmarks: trainers made from recipes, medians of repeated runs, and peaks of memory."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from egm import recipes
from egm.config.request import Request
from egm.config.targets import make_target
from egm.methods.registry import find_method
from egm.methods.trained import Trained
from egm.sampler import Sampler
from egm.simulation.capture import WARM_UP
from egm.train.trainer import Trainer

STEPS = 5  # gradient steps timed together
NOT_OPTIONS = ("target", "method", "paths", "processes", "network", "energy_network", "steps", "time_limit")


def trainer_of(recipe: str, method: str, device: str, **changes: Any) -> Trainer:
    """Return the trainer of a recipe; `changes` replace its options (or its target).

    The replay buffer of EGM and EGM-BS is full of draws of the reference law. The buffer of EGM-SP is empty, because
    its draws need weights.
    """
    given: Mapping[str, Any] = {**recipes.load(recipe, method), **changes}
    target, kind = make_target(given["target"]), find_method(method)
    if not isinstance(kind, Trained):
        raise ValueError(f"{method} trains nothing")
    options = {name: value for name, value in given.items() if name not in NOT_OPTIONS}
    trainer = kind.begin(
        Request(
            target, method, 10**6, None, 0, torch.device(device), "float32", options, network=given["network"],
            energy_network=given.get("energy_network") if kind.learns_energy else None, paths=given.get("paths", {}),
            processes=given.get("processes", {}), start=None, run=None, progress=False, tensorboard=False, source=None,
            notes={},
        )
    )  # fmt: skip
    if method != "egm-sp":
        generator = torch.Generator(device).manual_seed(0)
        x = target.space.reference_sample(trainer.options.buffer, generator=generator, device=device)
        trainer.buffer.add(target.space.to_latent(x))
    return trainer


def train_steps(trainer: Trainer, count: int) -> None:
    """Make gradient steps as `Trainer.train` does, without refreshes and reports."""
    for _ in range(count):
        trainer.set_learning_rates()
        trainer.captured((trainer.buffer.filled, trainer.method.averaging))
        trainer.update_averages()
        trainer.step += 1


def wait(device: str) -> None:
    """Wait until all launched work is done."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def median_seconds(run: Callable[[], object], device: str, *, repeats: int = 7) -> tuple[float, float]:
    """Return the median and spread (largest − smallest) of the seconds that `run` takes."""
    seconds = []
    for _ in range(repeats):
        wait(device)
        began = time.perf_counter()
        run()
        wait(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), max(seconds) - min(seconds)


def timed(trainer: Trainer, device: str, *, draws: int | None = None, repeats: int = 7) -> dict[str, Any]:
    """Return milliseconds, their spread and GiB of a gradient step, or of draws by first hitting; both are replayed.

    Memory is the largest allocation of torch since before the recording (a replay allocates nothing); None on a CPU.
    """
    if draws is not None and isinstance(trainer.sampler, Sampler):
        trainer.sampler.solver = "auto"  # first hitting: a call of the network for each site

    def run() -> None:
        if draws is None:
            train_steps(trainer, STEPS)
        else:
            trainer.sampler.sample(draws, seed=1)

    on_gpu = device.startswith("cuda")
    if on_gpu:
        gc.collect()  # frees the memory of earlier cases
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM_UP + 2):  # until the CUDA graph is recorded, and one replay
        run()
    wait(device)
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None
    seconds, spread = median_seconds(run, device, repeats=repeats)
    scale = 1e3 / (STEPS if draws is None else 1)
    return {
        "ms": round(scale * seconds, 3),
        "spread_ms": round(scale * spread, 3),
        "gib": None if peak is None else round(peak, 3),
    }
