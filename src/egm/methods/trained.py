"""Methods that train a network: builds their parts, and begins, resumes and loads their runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from egm.config.parts import (
    DTYPES,
    ENERGY,
    Network,
    Parts,
    default_energy_network,
    default_network,
    make_network,
    make_path,
    make_processes,
    require_network,
    seeded,
)
from egm.config.request import Request
from egm.config.start import Start
from egm.config.targets import own_name
from egm.estimation.energy_model import EnergyModel
from egm.evaluation.scores import QUICK_DRAWS, quick_scores
from egm.methods.kind import MethodKind
from egm.methods.registry import options_from, split_options
from egm.methods.regression import default_t_min
from egm.network_sampler import NetworkSampler
from egm.networks.base import is_locally_equivariant
from egm.processes.base import Process
from egm.sampler import Sampler
from egm.simulation.denoiser_error import DenoiserError
from egm.targets.base import Target
from egm.targets.guard import EnergyGuard
from egm.train.method import Method
from egm.train.options import TrainingOptions
from egm.train.progress import make_progress
from egm.train.signals import Stopped
from egm.train.trainer import Trainer
from egm.train.watching import has_events, watched

DEFAULT_SECONDS = 60.0


def shared_parts(parts: Parts) -> dict[str, Any]:
    """Returns the arguments of every `NetworkSampler`."""
    return {
        "space": parts.space,
        "path": parts.path,
        "network": parts.network.module.to(device=parts.device, dtype=parts.dtype),
        "error": DenoiserError(parts.path).to(device=parts.device),
        "target": parts.target,
        "steps": parts.loop.sample_steps,
        "dtype": parts.dtype,
        "config": dict(parts.config),
    }


def path_sampler(parts: Parts, *, t_min: float) -> NetworkSampler:
    """Returns the untrained sampler of a denoiser."""
    if is_locally_equivariant(parts.network.module):
        raise ValueError(f"a network of rates is for leaps and leaps-mcmc only, not for {parts.config['method']}")
    return Sampler(**shared_parts(parts), processes=parts.processes, solver=parts.loop.solver, t_min=t_min)


@dataclass(frozen=True)
class Trained(MethodKind):
    """A method that trains a network by a loss.

    Attributes:
        about: one line on what the method does.
        method: builds the `Method`: `method(energy, path, processes, network, error=, options=)`, and `energy_model=`
            if the method learns an energy.
        options: the dataclass of the method's options.
        defaults: values of options of the loop or the method whose defaults differ.
        path, process: path and process of real variables, unless others are given.
        symbol_path: path of symbols, unless others are given.
        network: returns the default network of a target as an expression.
        network_is_energy: whether the network is E^φ itself, with one scalar output.
        wrapped: builds the sampler's network from the run's parts, if that is not the network itself.
        sampler: builds the sampler from the parts and the smallest time `t_min`.
        learns_energy: whether E^φ is trained in addition to the sampler's network.
        t_min: the time at which simulations begin, if that is not an option.
        needs_reals: whether the method needs real variables.
    """

    about: str
    method: Callable[..., Method]
    options: type
    defaults: Mapping[str, Any] = field(default_factory=dict)
    path: str = "CondOT"
    process: str = "Diffusion"
    symbol_path: str = "Masked"
    network: Callable[[Target], str] = default_network
    network_is_energy: bool = False
    wrapped: Callable[[Parts], nn.Module] | None = None
    sampler: Callable[..., NetworkSampler] = path_sampler
    learns_energy: bool = False
    t_min: float | None = None
    needs_reals: bool = False
    trains: bool = field(default=True, init=False)

    @property
    def option_classes(self) -> tuple[type, ...]:
        """The options classes of the loop and of the method."""
        return TrainingOptions, self.options

    def outputs(self, processes: Mapping[str, Process[Any]]) -> dict[str, tuple[int, ...]]:
        """Returns the outputs of the network: a prediction for each variable, or an energy."""
        return ENERGY if self.network_is_energy else {name: p.output_shape for name, p in processes.items()}

    # ------------------------------------------------------------------ parts

    def parts(self, request: Request) -> Parts:
        """Builds every part once, from objects or expressions, and the configuration of a new run."""
        old, space, target = request.config, request.space, request.target
        split = split_options if old is None else options_from
        loop, options = split(request.method, request.options)
        declared = old["target_symmetries"] if old is not None else request.required_target.symmetries
        symmetries = list(declared) if loop.symmetries else []
        path = make_path(space, request.paths, reals=self.path, symbols=self.symbol_path)
        processes = make_processes(path, request.processes, default=self.process)
        choice = request.network or self.network(request.required_target)
        outputs, is_energy = self.outputs(processes), self.network_is_energy
        network = make_network(choice, path, outputs, symmetries=symmetries, scalar=is_energy, seed=request.seed)
        energy, choice = None, request.energy_network
        if self.learns_energy and old is None:
            choice = choice or default_energy_network(request.required_target)
        if self.learns_energy and choice is not None:
            energy = make_network(choice, path, ENERGY, symmetries=symmetries, scalar=True, seed=request.seed + 1)
        parts = Parts(
            space, target, path, processes, network, energy, loop, options, request.device, DTYPES[request.dtype],
            config={} if old is None else old,
        )  # fmt: skip
        if self.wrapped is not None:
            parts = dataclasses.replace(parts, network=Network(self.wrapped(parts), network.text))
        if old is None:
            config = request.described() | parts.described() | dataclasses.asdict(loop) | dataclasses.asdict(options)
            if config["steps"] is None and config["time_limit"] is None:
                config["time_limit"] = DEFAULT_SECONDS
            parts = dataclasses.replace(parts, config=config)
        return parts

    def untrained(self, parts: Parts) -> NetworkSampler:
        """Returns the sampler before training."""
        t_min = getattr(parts.options, "t_min", self.t_min)
        t_min = default_t_min(parts.path) if t_min is None else t_min
        return self.sampler(parts, t_min=max(t_min, *(part.earliest for part in parts.path.paths.values())))

    def energy_model(self, parts: Parts) -> EnergyModel:
        """Returns E^φ before training."""
        if parts.energy_network is None:
            raise ValueError("there is no network of the intermediate energy")
        looking = parts.options.forward_looking
        model = EnergyModel(parts.energy_network.module, parts.path, parts.target, forward_looking=looking)
        return model.to(device=parts.device, dtype=parts.dtype)

    # ------------------------------------------------------------------ training

    def begin(self, request: Request) -> Trainer:
        """Builds the training loop of a run."""
        target, prepared = request.required_target, None
        if request.start is not None:
            request, prepared = self._started(request, Start.of(request.start))
        parts = self.parts(request)
        for limit in ("steps", "time_limit"):
            value = parts.config[limit]
            if value is not None and not value > 0:
                raise ValueError(f"{limit} must be positive, got {value}")
        sampler = self.untrained(parts)
        if prepared is not None:
            prepared(sampler)
        given: dict[str, Any] = {"error": sampler.error, "options": parts.options}
        if self.learns_energy:
            given["energy_model"] = self.energy_model(parts)
        with seeded(request.seed + 1):  # some methods have further small networks
            method = self.method(EnergyGuard(target), parts.path, parts.processes, sampler.network, **given)
        if isinstance(sampler, Sampler):
            sampler.energy_model = method.averaged_energy_model()
        progress = make_progress(request.progress)
        if request.run is not None or request.tensorboard:
            progress = watched(progress, request.run, tensorboard=request.tensorboard)
        scored = target.reference_kind is not None and parts.loop.evaluate_every > 0
        return Trainer(
            method,
            sampler,
            parts.loop,
            steps=parts.config["steps"],
            time_limit=parts.config["time_limit"],
            seed=request.seed,
            progress=progress,
            run=request.run,
            evaluate=quick_scores(target, parts.config.get("evaluation_size", QUICK_DRAWS)) if scored else None,
            weight_decay=parts.config.get("weight_decay"),  # of earlier versions, before methods fixed it
        )

    def _started(self, request: Request, start: Start) -> tuple[Request, Callable[[NetworkSampler], None]]:
        """Returns the request with the parts of `start`, and a function that copies what `start` has learned."""
        chosen = {"network": request.network, "symmetries": request.options.get("symmetries")}
        network, paths, processes = start.parts(
            request.required_target, request.network, request.paths, request.processes
        )
        options = {"symmetries": start.config["symmetries"], **request.options}
        request = dataclasses.replace(request, network=network, paths=paths, processes=processes, options=options)
        return request, partial(start.hand_over, given=[name for name, x in chosen.items() if x is not None])

    def fit(self, request: Request) -> NetworkSampler:
        if request.energy_network is not None and not self.learns_energy:
            fix = "its network is the energy, pass it as network=" if self.network_is_energy else "leave it out"
            raise ValueError(f"energy_network is a part of egm-bs, not of {request.method}: {fix}")
        target = request.required_target
        if self.needs_reals and not target.space.real:
            raise ValueError(f"{request.method} needs real variables, and {target!r} has none; use method='egm'")
        trainer = self.begin(request)
        target.check(request.device, seed=request.seed, dtype=trainer.sampler.dtype)
        if request.run is not None:
            request.run.create(trainer.sampler.config)
        return trained_by(trainer)

    def resume(self, request: Request, *, extended: bool) -> NetworkSampler:
        run, config = request.run, request.config
        if run is None or config is None:
            raise ValueError("only a run on disk can be resumed")
        network = require_network(config["network"], request.network, argument="network")
        energy, tensorboard = None, request.tensorboard or has_events(run)
        if self.learns_energy:
            energy = require_network(
                config["energy_network"],
                request.energy_network,
                argument="energy_network",
                what="a user-defined energy network",
            )
        trainer = self.begin(
            dataclasses.replace(request, network=network, energy_network=energy, tensorboard=tensorboard)
        )
        state = run.read_state(request.device)
        if state is not None:
            trainer.load_state_dict(state)
            if extended:
                trainer.extend()
            run.forget_metrics_after(trainer.step)
        else:  # from the beginning, with the energy calls of the check that `fit` makes
            run.forget_metrics_after(-1)
            request.required_target.check(request.device, seed=request.seed, dtype=trainer.sampler.dtype)
        run.record_start()
        return trained_by(trainer)

    def load(self, request: Request) -> NetworkSampler:
        run, config = request.run, request.config
        if run is None or config is None:
            raise ValueError("only a run on disk can be loaded")
        saved, text = run.read_sampler(), config["energy_network"]
        known = "energy_model" in saved and request.target is not None and own_name(text) is None
        network = require_network(config["network"], request.network, argument="network")
        parts = self.parts(dataclasses.replace(request, network=network, energy_network=text if known else None))
        sampler = self.untrained(parts)
        if parts.energy_network is not None and isinstance(sampler, Sampler):
            sampler.energy_model = self.energy_model(parts)
        for name, module in sampler.modules().items():
            module.load_state_dict(saved.get(name, {}))  # some modules have nothing to save
        return sampler


def trained_by(trainer: Trainer) -> NetworkSampler:
    """Trains and returns the sampler; on Ctrl-C returns the sampler so far and prints how to continue."""
    try:
        trainer.train()
    except Stopped:  # raised by the command line
        raise
    except KeyboardInterrupt:
        if trainer.run_directory is not None:
            folder, config = trainer.run_directory.folder, trainer.sampler.config
            own = [name for name in ("target", "network", "energy_network") if own_name(config[name]) is not None]
            given = "".join(f", {name}=..." for name in own)
            command = f"egm.resume({str(folder)!r}{given})" if own else f"egm train --resume {folder}"
            what = "stopped and saved" if trainer.between_steps else "stopped in a step; the last checkpoint is kept"
            print(f"\n{what}; continue with: {command}")
    trainer.sampler.network.eval()
    return trainer.sampler
