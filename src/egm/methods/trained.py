"""Methods that train a network: how their parts are built, and how a run of them begins, goes on and is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from egm.config.parts import (
    DTYPES,
    ENERGY,
    AnyProcess,
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
from egm.evaluation.scores import quick_scores
from egm.methods.interrupted import train
from egm.methods.kind import Continuation, MethodKind
from egm.methods.registry import options_from, split_options
from egm.methods.regression import default_t_min
from egm.methods.setting import Setting, path_sampler, processes_outputs
from egm.network_sampler import NetworkSampler
from egm.paths.product import AnyPath
from egm.processes.base import Process
from egm.runs.directory import RunDirectory
from egm.sampler import Sampler
from egm.spaces import Space
from egm.targets.base import Target
from egm.targets.guard import EnergyGuard
from egm.train.method import Method
from egm.train.options import TrainingOptions
from egm.train.progress import make_progress
from egm.train.trainer import Trainer
from egm.train.watching import has_events, watched

DEFAULT_SECONDS = 60.0


@dataclass(frozen=True)
class Trained(MethodKind):
    """A method that trains a network by a loss.

    Attributes:
        about: what it does, in a line.
        method: makes the loss: `method(energy, path, processes, network, error=, options=)`, and `energy_model=` where
            the method learns an energy.
        options: the class of its own options.
        defaults: options of the loop or its own whose defaults differ.
        path, process: of real variables, unless others are given.
        symbol_path: of symbols, unless others are given.
        network: gives the network of a target as an expression.
        outputs: what the network has to give, from the processes.
        wrapped: makes the sampler's network of the one that was built.
        sampler: makes the sampler.
        learns_energy: whether E^φ is trained besides the sampler's network.
        t_min: the time at which simulations begin, where that is not an option.
        needs_reals: whether the method is of no use without real variables.
    """

    about: str
    method: Callable[..., Method]
    options: type
    defaults: Mapping[str, Any] = field(default_factory=dict)
    path: str = "CondOT"
    process: str = "Diffusion"
    symbol_path: str = "Masked"
    network: Callable[[Target], str] = default_network
    outputs: Callable[[Mapping[str, Process[Any]]], dict[str, tuple[int, ...]]] = processes_outputs
    wrapped: Callable[[Parts, Any], nn.Module] | None = None
    sampler: Callable[..., NetworkSampler] = path_sampler
    learns_energy: bool = False
    t_min: float | None = None
    needs_reals: bool = False
    trains: bool = field(default=True, init=False)

    @property
    def option_classes(self) -> tuple[type, ...]:
        """Those of the loop and its own."""
        return TrainingOptions, self.options

    # ------------------------------------------------------------------ parts

    def parts(
        self,
        space: Space,
        target: Target | None,
        *,
        paths: Mapping[str, str | AnyPath],
        processes: Mapping[str, AnyProcess],
        network: nn.Module | str,
        energy_network: nn.Module | str | None,
        options: Any,
        symmetries: list[str],
        seed: int,
    ) -> Parts:
        """Every part, built once, from objects or expressions."""
        path = make_path(space, paths, reals=self.path, symbols=self.symbol_path)
        chosen = make_processes(path, processes, default=self.process)
        made = make_network(network, path, self.outputs(chosen), symmetries=symmetries, seed=seed)
        energy = None
        if self.learns_energy and energy_network is not None:
            energy = make_network(energy_network, path, ENERGY, symmetries=symmetries, seed=seed + 1)
        parts = Parts(space, target, path, chosen, made, energy)
        if self.wrapped is None:
            return parts
        return dataclasses.replace(parts, network=Network(self.wrapped(parts, options), made.text))

    def parts_of(
        self, config: dict[str, Any], space: Space, target: Target | None, *, network: nn.Module | None,
        energy_network: nn.Module | str | None,
    ) -> Parts:  # fmt: skip
        """The parts of a configuration; own networks are given again."""
        _, options = options_from(config["method"], config)
        return self.parts(
            space, target, paths=config["paths"], processes=config["processes"],
            network=require_network(config["network"], network, argument="network", what="a network"),
            energy_network=energy_network, options=options, seed=config["seed"],
            symmetries=config["target_symmetries"] if config["symmetries"] else [],
        )  # fmt: skip

    def untrained(self, parts: Parts, setting: Setting) -> NetworkSampler:
        """The sampler before training."""
        t_min = getattr(setting.options, "t_min", self.t_min)
        t_min = default_t_min(parts.path) if t_min is None else t_min
        t_min = max(t_min, *(part.earliest for part in parts.path.paths.values()))
        return self.sampler(parts, setting, t_min=t_min)

    def energy_model(self, parts: Parts, setting: Setting) -> EnergyModel:
        """E^φ before training."""
        if parts.energy_network is None:
            raise ValueError("there is no network of the intermediate energy")
        model = EnergyModel(
            parts.energy_network.module, parts.path, parts.target, forward_looking=setting.options.forward_looking
        )
        return model.to(device=setting.device, dtype=setting.dtype)

    def trainer(
        self,
        parts: Parts,
        setting: Setting,
        *,
        run: RunDirectory | None,
        progress: bool,
        tensorboard: bool,
        prepared: Callable[[NetworkSampler], None] = lambda sampler: None,
    ) -> Trainer:
        """The loop, with the sampler and the loss that it trains; `prepared` may change the sampler first."""
        for limit in ("steps", "time_limit"):
            value = setting.config[limit]
            if value is not None and not value > 0:
                raise ValueError(f"{limit} must be positive, got {value}")
        if parts.target is None:
            raise ValueError("training needs the target")
        sampler, target = self.untrained(parts, setting), parts.target
        prepared(sampler)
        given: dict[str, Any] = {"error": sampler.error, "options": setting.options}
        if self.learns_energy:
            given["energy_model"] = self.energy_model(parts, setting)
        with seeded(setting.seed + 1):  # some have small networks of their own
            method = self.method(EnergyGuard(target), parts.path, parts.processes, sampler.network, **given)
        if isinstance(sampler, Sampler):
            sampler.energy_model = method.averaged_energy_model()
        scored = target.reference_kind is not None and setting.loop.evaluate_every > 0
        return Trainer(
            method,
            sampler,
            setting.loop,
            steps=setting.config["steps"],
            time_limit=setting.config["time_limit"],
            seed=setting.seed,
            progress=watched(make_progress(progress), run, tensorboard=tensorboard),
            run=run,
            evaluate=quick_scores(target) if scored else None,
            weight_decay=setting.config.get("weight_decay"),  # of runs before it was fixed by the method
        )

    # ------------------------------------------------------------------ runs

    def fit(self, request: Request) -> NetworkSampler:
        trainer = self.begin(request)
        request.target.check(request.device, seed=request.seed, dtype=trainer.sampler.dtype)
        if request.run is not None:
            request.run.create(trainer.sampler.config)
        return train(trainer)

    def begin(self, request: Request) -> Trainer:
        """The loop of a new run, before its first step."""
        self._check(request)
        begun = None if request.start is None else Start.of(request.start)
        network, paths, processes, given = request.network, request.paths, request.processes, dict(request.options)
        own = [name for name, x in (("network", network), ("symmetries", given.get("symmetries"))) if x is not None]
        if begun is not None:
            network, paths, processes = begun.parts(request.target, network, paths, processes)
            given.setdefault("symmetries", begun.config["symmetries"])
        loop, options = split_options(request.method, given)
        parts = self.parts(
            request.target.space, request.target, paths=paths, processes=processes,
            network=network or self.network(request.target),
            energy_network=request.energy_network or default_energy_network(request.target), options=options,
            symmetries=list(request.target.symmetries) if loop.symmetries else [], seed=request.seed,
        )  # fmt: skip
        config = request.described() | parts.described() | dataclasses.asdict(loop) | dataclasses.asdict(options)
        if config["steps"] is None and config["time_limit"] is None:
            config["time_limit"] = DEFAULT_SECONDS
        setting = Setting(request.method, request.seed, request.device, DTYPES[request.dtype], loop, options, config)
        surroundings: dict[str, Any] = {
            "run": request.run, "progress": request.progress, "tensorboard": request.tensorboard,
        }  # fmt: skip
        if begun is not None:
            surroundings["prepared"] = partial(begun.hand_over, given=own)
        return self.trainer(parts, setting, **surroundings)

    def _check(self, request: Request) -> None:
        """Raise for what the method would not look at."""
        method, target = request.method, request.target
        if request.energy_network is not None and not self.learns_energy:
            is_energy = self.outputs is not processes_outputs and self.wrapped is not None
            fix = "its network is the energy, pass it as network=" if is_energy else "leave it out"
            raise ValueError(f"energy_network is a part of egm-bs, not of {method}: {fix}")
        if self.needs_reals and not target.space.real:
            raise ValueError(f"{method} is about real variables and {target!r} has none; use method='egm'")

    def resume(self, again: Continuation) -> NetworkSampler:
        config = again.config
        energy: nn.Module | str | None = None
        if self.learns_energy:
            energy = require_network(
                config["energy_network"], again.energy_network, argument="energy_network", what="an energy network"
            )
        parts = self.parts_of(config, again.target.space, again.target, network=again.network, energy_network=energy)
        setting = Setting.of(config, again.device)
        tensorboard = again.tensorboard or has_events(again.run)
        trainer = self.trainer(parts, setting, run=again.run, progress=again.progress, tensorboard=tensorboard)
        state = again.run.read_state(again.device)
        if state is not None:
            trainer.load_state_dict(state)
            if again.extended:
                trainer.extend()
            again.run.forget_metrics_after(trainer.step)
        else:  # from the beginning, with the energy calls of the check that `fit` makes
            again.run.forget_metrics_after(-1)
            again.target.check(again.device, seed=setting.seed, dtype=setting.dtype)
        again.run.record_start()
        return train(trainer)

    def load(
        self, run: RunDirectory, config: dict[str, Any], space: Space, target: Target | None, *,
        network: nn.Module | None, device: torch.device | str,
    ) -> NetworkSampler:  # fmt: skip
        saved = run.read_sampler()
        text = config["energy_network"]
        known = "energy_model" in saved and target is not None and text is not None and own_name(text) is None
        parts = self.parts_of(config, space, target, network=network, energy_network=text if known else None)
        setting = Setting.of(config, device)
        sampler = self.untrained(parts, setting)
        if known and isinstance(sampler, Sampler):
            sampler.energy_model = self.energy_model(parts, setting)
        for name, module in sampler.modules().items():
            module.load_state_dict(saved.get(name, {}))  # some have nothing to save
        return sampler
