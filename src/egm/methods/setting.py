"""What defines a trained run besides its parts, and the sampler of a denoiser that follows from both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from egm.config.parts import DTYPES, Parts
from egm.methods.registry import options_from
from egm.network_sampler import NetworkSampler
from egm.networks.locally_equivariant import is_locally_equivariant
from egm.processes.base import Process
from egm.sampler import Sampler
from egm.simulation.denoiser_error import DenoiserError
from egm.train.options import TrainingOptions


@dataclass(frozen=True)
class Setting:
    """What else defines a run besides its parts.

    Attributes:
        method, seed, device, dtype: as in `egm.fit`.
        loop: options of the training loop.
        options: of the method.
        config: the run's configuration.
    """

    method: str
    seed: int
    device: torch.device
    dtype: torch.dtype
    loop: TrainingOptions
    options: Any
    config: dict[str, Any]

    @classmethod
    def of(cls, config: dict[str, Any], device: torch.device | str) -> Setting:
        """From a configuration."""
        loop, options = options_from(config["method"], config)
        dtype = DTYPES[config["dtype"]]
        return cls(config["method"], config["seed"], torch.device(device), dtype, loop, options, config)


def path_sampler(parts: Parts, setting: Setting, *, t_min: float) -> NetworkSampler:
    """The sampler of a denoiser, untrained."""
    if is_locally_equivariant(parts.network.module):
        raise ValueError(f"a network of rates serves leaps and leaps-mcmc alone, not {setting.method}")
    shared = network_parts(parts, setting)
    return Sampler(**shared, processes=parts.processes, solver=setting.loop.solver, t_min=t_min)


def network_parts(parts: Parts, setting: Setting) -> dict[str, Any]:
    """What every `NetworkSampler` is made of."""
    return {
        "space": parts.space,
        "path": parts.path,
        "network": parts.network.module.to(device=setting.device, dtype=setting.dtype),
        "error": DenoiserError(parts.path).to(device=setting.device),
        "target": parts.target,
        "steps": setting.loop.sample_steps,
        "dtype": setting.dtype,
        "config": dict(setting.config),
    }


def processes_outputs(processes: Mapping[str, Process[Any]]) -> dict[str, tuple[int, ...]]:
    """What the network of a sampler gives for each variable."""
    return {name: process.output_shape for name, process in processes.items()}
