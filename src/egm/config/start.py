"""Starts a run with the network and the denoiser's error that another run on the same space has learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from egm.config.parts import AnyProcess
from egm.config.targets import own_name
from egm.network_sampler import NetworkSampler
from egm.paths.product import AnyPath
from egm.runs.directory import RunDirectory
from egm.sampler import AnySampler
from egm.targets.base import Target


@dataclass(frozen=True)
class Start:
    """The configuration and the modules' tensors of the run or sampler that another run starts from."""

    config: dict[str, Any]
    learned: Mapping[str, Mapping[str, torch.Tensor]]

    @classmethod
    def of(cls, start: AnySampler | str | Path) -> Start:
        """Reads a sampler or the folder of a run."""
        if isinstance(start, NetworkSampler):
            return cls(start.config, {name: module.state_dict() for name, module in start.modules().items()})
        if not isinstance(start, str | Path):
            raise TypeError(f"start needs a sampler with a network, or the folder of a run; got {type(start).__name__}")
        run = RunDirectory(start)
        return cls(run.read_config(), run.read_sampler())

    def parts(
        self,
        target: Target,
        network: nn.Module | str | None,
        paths: Mapping[str, str | AnyPath] | None,
        processes: Mapping[str, AnyProcess] | None,
    ) -> tuple[nn.Module | str, Mapping[str, str | AnyPath], Mapping[str, AnyProcess]]:
        """Returns network, paths and processes of the new run: given ones, otherwise the start's."""
        config = self.config
        if "network" not in config:
            raise TypeError(f"start needs a run with a network, and {config['method']} has none")
        if list(config["paths"]) != list(target.space):
            raise ValueError(
                f"start has the variables {list(config['paths'])}, not {list(target.space)} of {target!r}; start from a"
                " run on the same space"
            )
        if network is None and (name := own_name(config["network"])) is not None:
            raise ValueError(f"start has a user-defined network ({name}); pass it as network= instead")
        return (
            network or config["network"],
            {**config["paths"], **(paths or {})},
            {**config["processes"], **(processes or {})},
        )

    def hand_over(self, sampler: NetworkSampler, *, given: list[str]) -> None:
        """Copies the learned tensors; `given` names arguments of the new run that may have changed its network."""
        for name, module in (("network", sampler.network), ("error", sampler.error)):
            learned = self.learned.get(name, {})  # some modules have nothing to save
            if {key: x.shape for key, x in learned.items()} != {key: x.shape for key, x in module.state_dict().items()}:
                fix = " and ".join(given)
                raise ValueError(
                    f"start has another {name}: {self._network(self.config)}, not {self._network(sampler.config)}; "
                    + (f"leave {fix} out" if given else "start from a run on the same space")
                )
            module.load_state_dict(learned)

    @staticmethod
    def _network(config: Mapping[str, Any]) -> str:
        return f"{config['network']} with symmetries={config['symmetries']} for {config['space']}"
