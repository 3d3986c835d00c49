"""Markov chains as methods: `gibbs`, `mala`, `swendsen-wang`, `tempering`.

Each is a kernel of `egm.mcmc` that leaves p(x) ∝ exp(−E(x)) invariant; one step of a chain is

    gibbs           a scan that redraws every site i from p(x^i | rest), then a MALA step of the reals, if there are any
    mala            a MALA step of the reals
    swendsen-wang   a cluster update of a ferromagnetic Ising or Potts lattice
    tempering       the step of `gibbs` (or `mala` where there are no symbols) at each inverse temperature
                    b_r = hottest^(r/(R−1)), r = 0 … R−1, then exchanges between neighbours; replica 0 counts

Chains start from the reference law, or where a target says (`Target.chain_start`). Draws are n of the states that they
have visited, without replacement. A system of d degrees of freedom has energies around d/(2b) ± √(d/2)/b: how often
neighbours exchange depends on √d·log(b_r/b_{r+1}) alone, hence equal ratios, and a number R of temperatures that grows
like √d.

The paper runs Gibbs as 4 chains of 6000 steps without burn-in, and judges 2000 of the 24 000 states, picked uniformly;
these are the defaults. It says neither what a step is nor how reals move. A scan is the usual meaning of the first. For
the second we take MALA and let its step size adapt to an acceptance of .574 in a warm-up of 500 steps, whose states do
not count and whose calls do: an untuned step would make a straw man.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from egm.baselines.chain_options import TEMPERING_ONLY, ChainOptions
from egm.baselines.chain_run import ChainRun
from egm.baselines.chain_sampler import ChainSampler
from egm.config.build import DTYPES, make_space, target_entries
from egm.config.options import options_by_group
from egm.mcmc import MALA, Alternate, Gibbs, Kernel, ParallelTempering, SwendsenWang
from egm.runs.directory import RunDirectory
from egm.spaces import Space
from egm.targets.base import Target
from egm.train.progress import make_progress
from egm.train.signals import Stopped, held_back
from egm.train.watching import watched

STEPS = 6000  # the paper's
WARMUP = 500  # where a step size has to be found


def make_kernel(method: str, target: Target, options: ChainOptions) -> Kernel:
    """The kernel of a method; raises, naming another method, where the space has no use for it."""
    symbols, reals = list(target.space.categorical), list(target.space.real)
    if method == "swendsen-wang":
        if options.redraw is not None:
            raise ValueError("redraw is an option of gibbs and tempering, not of swendsen-wang")
        return SwendsenWang(target)
    if method == "mala" and symbols:
        raise ValueError(f"mala moves reals alone, and {target!r} has the symbols {symbols}; use gibbs for both")
    if method == "gibbs" and not symbols:
        raise ValueError(f"gibbs redraws symbols, and {target!r} has only the reals {reals}; use mala")
    if options.redraw is not None and not symbols:
        raise ValueError(f"redraw counts sites of symbols, and {target!r} has only the reals {reals}; leave it out")
    kernels = [*([Gibbs(target, sites=options.redraw)] if symbols else []), *([MALA(target)] if reals else [])]
    kernel = kernels[0] if len(kernels) == 1 else Alternate(kernels)
    if method != "tempering":
        return kernel
    replicas = options.replicas or default_replicas(target.space)
    return ParallelTempering(kernel, inverse_temperatures=ladder(replicas, options.hottest))


def ladder(replicas: int, hottest: float) -> list[float]:
    """Inverse temperatures from 1 to `hottest` in equal ratios.

    >>> ladder(3, 0.25)
    [1.0, 0.5, 0.25]
    """
    return [hottest ** (r / (replicas - 1)) for r in range(replicas)]


def default_replicas(space: Space) -> int:
    """R = 2 + √d, rounded up."""
    sites, reals = (variable.sites for variable in space.categorical.values()), space.real.values()
    return 2 + math.ceil(math.sqrt(sum(sites) + sum(variable.dimension for variable in reals)))


def chain_options(method: str, space: Space, given: Mapping[str, Any]) -> ChainOptions:
    """The options of a method, with the defaults that depend on the space filled in."""
    chosen = options_by_group(method, (ChainOptions,), given)[ChainOptions]
    for name in TEMPERING_ONLY:
        if name in chosen and method != "tempering":
            raise ValueError(f"{name} is an option of tempering, not of {method}")
    options = ChainOptions(**chosen)
    if options.warmup is None:
        options = dataclasses.replace(options, warmup=WARMUP if space.real else 0)
    if options.replicas is None and method == "tempering":
        options = dataclasses.replace(options, replicas=default_replicas(space))
    return options


def fit_chains(
    target: Target,
    method: str,
    options: Mapping[str, Any],
    *,
    steps: int | None,
    time_limit: float | None,
    seed: int,
    device: torch.device,
    dtype: str,
    parts: Mapping[str, object],
    out: str | Path | None,
    progress: bool,
    tensorboard: bool = False,
    source: str | None,
    notes: Mapping[str, Any],
) -> ChainSampler:
    """`egm.fit` for chains: run them and keep what they have visited; see there for the arguments.

    `parts` are those of trained samplers (network, paths, …), which chains refuse.
    """
    if unused := [name for name, part in parts.items() if part]:
        raise ValueError(f"{method} trains nothing and has no use for {' and '.join(unused)}; leave that out")
    own = chain_options(method, target.space, options)
    _check_limits(method, steps, time_limit, own.energy_calls)
    if steps is None and time_limit is None and own.energy_calls is None:
        steps = STEPS
    config = {
        **target_entries(target, source),
        "method": method,
        "steps": steps,
        "time_limit": time_limit,
        "seed": seed,
        "device": str(device),
        "dtype": dtype,
        "notes": dict(notes),
        **dataclasses.asdict(own),
    }
    directory = None if out is None else RunDirectory(out)
    kernel, bar = make_kernel(method, target, own), watched(make_progress(progress), directory, tensorboard=tensorboard)
    run = ChainRun(
        target, kernel, own, steps=steps, time_limit=time_limit, seed=seed, device=device, dtype=DTYPES[dtype],
        progress=bar, directory=directory,
    )  # fmt: skip
    if directory is not None:
        directory.create(config)
    sampler = interrupt = None
    try:
        with bar, held_back() as deliver_interrupt:
            try:
                run.until_finished(deliver_interrupt)
            except KeyboardInterrupt as raised:
                interrupt = raised
            sampler = _sampler(run, config, interrupt)
            if directory is not None:
                sampler.save(directory.folder)
    except KeyboardInterrupt as raised:  # before the first state, or while saving
        if sampler is None:
            raise
        interrupt = raised
    if isinstance(interrupt, Stopped):  # the command line's own
        interrupt.saved = directory is not None
        raise interrupt
    if interrupt is not None:
        where = "" if directory is None else f" and saved in {directory.folder}"
        print(f"\nstopped after {run.step} steps of each chain; {sampler.kept} states are kept{where}")
    return sampler


def _check_limits(method: str, steps: int | None, time_limit: float | None, energy_calls: int | None) -> None:
    if steps is not None and time_limit is not None:
        raise ValueError("give steps or time_limit (seconds), one of them; energy_calls may go with either")
    for name, limit in (("steps", steps), ("time_limit", time_limit)):
        if limit is not None and not limit > 0:
            raise ValueError(f"{name} must be positive, got {limit}")
    if method == "swendsen-wang" and energy_calls is not None and steps is None and time_limit is None:
        raise ValueError("swendsen-wang asks for no energies but those of kept states; give steps or time_limit too")


def _sampler(run: ChainRun, config: dict[str, Any], interrupt: KeyboardInterrupt | None) -> ChainSampler:
    """What the chains have visited; an interrupt, or an error that says what to raise, if that is nothing."""
    own = run.options
    if not len(run.kept):
        if interrupt is not None:
            raise interrupt
        limits = {"steps": run.steps, "time_limit": run.time_limit, "energy_calls": own.energy_calls}
        given = " and ".join(f"{name}={limit}" for name, limit in limits.items() if limit is not None)
        raise ValueError(
            f"{given} did not suffice to keep a state: the run ended after {run.warmed} of {own.warmup} steps of"
            f" warm-up and {run.step} others, with thin={own.thin}, at {run.calls()['energy_calls']} energy calls;"
            " raise the limit, or lower warmup or thin"
        )
    run.log()
    return ChainSampler(run.target.space, run.kept.visited(), run.target, {**config, "outcome": run.outcome()})


def load_chains(
    folder: Path, config: dict[str, Any], target: Target | None, device: torch.device | str
) -> ChainSampler:
    """`egm.load` for a run of chains; the target, where it is at hand, is checked against the run's space."""
    space = make_space(config["space"])
    if target is not None and target.space != space:
        raise ValueError(f"the run was made for {space!r}, but {target!r} has {target.space!r}; pass the same target")
    if not (folder / "model.safetensors").is_file():
        raise FileNotFoundError(
            f"{folder} holds no states (model.safetensors): its chains were killed before their end; run them again in"
            " another folder"
        )
    visited = RunDirectory(folder).read_sampler()["visited"]
    return ChainSampler(space, {name: visited[name].to(device) for name in space}, target, config)


def refuse_to_resume(folder: str | Path, config: Mapping[str, Any]) -> None:
    """Raise: a run of chains is repeated rather than continued."""
    raise ValueError(
        f"{folder} is a run of chains ({config['method']}), which are not continued; start another one with more steps"
        " (or time_limit, or energy_calls) and out= another folder"
    )
