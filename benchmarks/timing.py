"""What the benchmarks of speed share: trainers made from recipes, medians of repeated runs, and peaks of memory."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from egm import recipes
from egm.config.build import make_config, make_method, make_path, make_processes, make_sampler, make_target
from egm.config.options import split_options
from egm.simulation.capture import WARM_UP
from egm.train.progress import Silent
from egm.train.trainer import Trainer

STEPS = 5  # gradient steps timed together
NOT_OPTIONS = ("target", "method", "paths", "processes", "network", "energy_network", "steps", "time_limit")


def trainer_of(recipe: str, method: str, device: str, **changes: Any) -> Trainer:
    """The trainer of a recipe; `changes` replace its options (or its target).

    The replay buffer of EGM and EGM-BS is full of reference draws; that of EGM-SP is empty, its draws need weights.
    """
    given: Mapping[str, Any] = {**recipes.load(recipe, method), **changes}
    target = make_target(given["target"])
    path = make_path(target.space, given.get("paths", {}))
    chosen = make_processes(path, given.get("processes", {}))
    options = split_options(method, {name: value for name, value in given.items() if name not in NOT_OPTIONS})
    config = make_config(
        target, method=method, source=None, path=path, chosen=chosen, network=given["network"],
        energy_network=given.get("energy_network"), options=options, steps=10**6, time_limit=None, seed=0,
        device=device, dtype="float32", notes={},
    )  # fmt: skip
    sampler = make_sampler(config, target, network=None, device=torch.device(device))
    made = make_method(config, sampler)
    trainer = Trainer(made, sampler, options[0], steps=10**6, time_limit=None, seed=0, progress=Silent())
    if method != "egm-sp":
        generator = torch.Generator(device).manual_seed(0)
        x = path.space.reference_sample(options[0].buffer, generator=generator, device=device)
        trainer.buffer.add(path.space.to_latent(x))
    return trainer


def train_steps(trainer: Trainer, count: int) -> None:
    """Gradient steps as `Trainer.train` makes them, without refreshes and reports."""
    for _ in range(count):
        trainer.set_learning_rates()
        trainer.captured((trainer.buffer.filled, trainer.method.averaging))
        trainer.update_averages()
        trainer.step += 1


def wait(device: str) -> None:
    """Until everything that was launched is done."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def median_seconds(run: Callable[[], object], device: str, *, repeats: int = 7) -> tuple[float, float]:
    """Median and spread (largest − smallest) of the seconds that `run` takes."""
    seconds = []
    for _ in range(repeats):
        wait(device)
        began = time.perf_counter()
        run()
        wait(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), max(seconds) - min(seconds)


def timed(trainer: Trainer, device: str, *, draws: int | None = None, repeats: int = 7) -> dict[str, Any]:
    """Milliseconds, their spread and GiB of a gradient step, or of so many draws by first hitting; both as replays.

    Memory is what torch has allocated at most from before the recording on (a replay allocates nothing); None on a CPU.
    """
    if draws is not None:
        trainer.sampler.solver = "auto"  # first hitting: a call of the network for each site

    def run() -> None:
        if draws is None:
            train_steps(trainer, STEPS)
        else:
            trainer.sampler.sample(draws, seed=1)

    on_gpu = device.startswith("cuda")
    if on_gpu:
        gc.collect()  # what was timed before this holds its memory until then
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM_UP + 2):  # until it is recorded, and once as a replay
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
