"""Markov chains as methods: `gibbs`, `mala`, `swendsen-wang`, `tempering` (`egm.baselines.chain_kernels`).

Chains start from the reference law, or from the states that a target defines (`Target.chain_start`). Draws are n of the
visited states, without replacement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from egm.baselines.chain_kernels import default_replicas, gibbs, mala, swendsen_wang, tempering
from egm.baselines.chain_options import ChainOptions, GibbsOptions, TemperingOptions
from egm.baselines.chain_run import ChainRun
from egm.baselines.chain_sampler import ChainSampler
from egm.config.parts import DTYPES
from egm.config.request import Request
from egm.mcmc import Kernel
from egm.methods.kind import MethodKind
from egm.methods.registry import add_method, add_options, split_options
from egm.runs.directory import RunDirectory
from egm.spaces import Space
from egm.targets.base import Target
from egm.train.progress import make_progress
from egm.train.signals import Stopped, held_back
from egm.train.watching import watched

STEPS = 6000  # the paper's
WARMUP = 500  # where a step size must be tuned


@dataclass(frozen=True)
class Chains(MethodKind):
    """A method that runs Markov chains.

    Attributes:
        about: one line on what the method does.
        kernel: builds the kernel of a target; raises, naming another method, if the kernel does not suit the space.
        options: the dataclass of the method's options.
        asks_for_energies: whether a step evaluates energies, so that `energy_calls` limits the steps.
    """

    about: str
    kernel: Callable[[Target, Any], Kernel]
    options: type[ChainOptions] = ChainOptions
    asks_for_energies: bool = True
    defaults: Mapping[str, Any] = field(default_factory=dict, init=False)
    trains: bool = field(default=False, init=False)

    @property
    def option_classes(self) -> tuple[type, ...]:
        """The options class of the method; chains have no training loop."""
        return (self.options,)

    def chosen(self, method: str, space: Space, given: Mapping[str, Any]) -> ChainOptions:
        """Returns the options, with the defaults that depend on the space filled in."""
        (options,) = split_options(method, given)
        if options.warmup is None:
            options = dataclasses.replace(options, warmup=WARMUP if space.real else 0)
        if isinstance(options, TemperingOptions) and options.replicas is None:
            options = dataclasses.replace(options, replicas=default_replicas(space))
        return options

    def fit(self, request: Request) -> ChainSampler:
        method, target, run = request.method, request.required_target, request.run
        parts = ("network", "energy_network", "paths", "processes", "start")
        if unused := [name for name in parts if getattr(request, name)]:
            raise ValueError(f"{method} trains nothing and has no use for {' and '.join(unused)}; leave that out")
        options = self.chosen(method, target.space, request.options)
        steps, time_limit = request.steps, request.time_limit
        self._check_limits(method, steps, time_limit, options.energy_calls)
        if steps is None and time_limit is None and options.energy_calls is None:
            steps = STEPS
        config = request.described() | {"steps": steps} | dataclasses.asdict(options)
        kernel = self.kernel(target, options)
        bar = watched(make_progress(request.progress), run, tensorboard=request.tensorboard)
        chains = ChainRun(
            target, kernel, options, steps=steps, time_limit=time_limit, seed=request.seed, device=request.device,
            dtype=DTYPES[request.dtype], progress=bar, directory=run,
        )  # fmt: skip
        if run is not None:
            run.create(config)
        return finished(chains, config)

    def _check_limits(self, method: str, steps: int | None, time_limit: float | None, energy_calls: int | None) -> None:
        if steps is not None and time_limit is not None:
            raise ValueError("give steps or time_limit (seconds), one of them; energy_calls may go with either")
        for name, limit in (("steps", steps), ("time_limit", time_limit)):
            if limit is not None and not limit > 0:
                raise ValueError(f"{name} must be positive, got {limit}")
        if not self.asks_for_energies and energy_calls is not None and steps is None and time_limit is None:
            raise ValueError(f"{method} evaluates no energies except for kept states; give steps or time_limit too")

    def why_not_resumed(self, run: RunDirectory, config: Mapping[str, Any]) -> str:
        """Returns why a run of chains cannot be continued."""
        return (
            f"{run.folder} is a run of chains ({config['method']}), which are not continued; start another one with"
            " more steps (or time_limit, or energy_calls) and out= another folder"
        )

    def resume(self, request: Request, *, extended: bool) -> ChainSampler:
        raise NotImplementedError(f"chains are not continued: {request.run!r}")

    def load(self, request: Request) -> ChainSampler:
        run = request.run
        if run is None or not (run.folder / "model.safetensors").is_file():
            raise FileNotFoundError(
                f"{run and run.folder} holds no states (model.safetensors): its chains were killed before their end;"
                " run them again in another folder"
            )
        visited = {name: x.to(request.device) for name, x in run.read_sampler()["visited"].items()}
        states = {name: visited[name] for name in request.space}
        return ChainSampler(request.space, states, request.target, dict(request.config or {}))


def finished(run: ChainRun, config: dict[str, Any]) -> ChainSampler:
    """Runs chains to their limit or an interrupt; saves and returns the sampler of the visited states."""
    sampler = interrupt = None
    try:
        with run.progress, held_back() as deliver_interrupt:
            try:
                run.until_finished(deliver_interrupt)
            except KeyboardInterrupt as raised:
                interrupt = raised
            sampler = _sampler(run, config, interrupt)
            if run.directory is not None:
                sampler.save(run.directory.folder)
    except KeyboardInterrupt as raised:  # before the first state, or while saving
        if sampler is None:
            raise
        interrupt = raised
    if isinstance(interrupt, Stopped):  # raised by the command line
        interrupt.saved = run.directory is not None
        raise interrupt
    if interrupt is not None:
        where = "" if run.directory is None else f" and saved in {run.directory.folder}"
        print(f"\nstopped after {run.step} steps of each chain; {sampler.kept} states are kept{where}")
    return sampler


def _sampler(run: ChainRun, config: dict[str, Any], interrupt: KeyboardInterrupt | None) -> ChainSampler:
    """Returns the sampler of the visited states; if there are none, raises the interrupt or an error."""
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


add_options("chains (gibbs, mala, swendsen-wang, tempering)", ChainOptions)
add_options("gibbs and tempering", GibbsOptions)
add_options("tempering", TemperingOptions)
add_method(
    "gibbs",
    Chains(
        "chains: a scan over all sites and a MALA step of the reals, 4 × 6000 steps as in the paper",
        gibbs,
        GibbsOptions,
    ),
)
add_method("mala", Chains("chains: Metropolis-adjusted Langevin steps, for real variables alone", mala))
add_method(
    "swendsen-wang",
    Chains("chains: cluster updates of ferromagnetic Ising and Potts lattices", swendsen_wang, asks_for_energies=False),
)
add_method(
    "tempering",
    Chains("chains: gibbs or mala at several temperatures that exchange their states", tempering, TemperingOptions),
)
