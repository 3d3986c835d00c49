"""A method as `egm.fit` knows it: which options it takes, and how it fits, resumes and loads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from egm.config.request import Request
from egm.processes.base import Process
from egm.runs.directory import RunDirectory
from egm.sampler import AnySampler
from egm.spaces import Space
from egm.targets.base import Target


@dataclass(frozen=True)
class Continuation:
    """The arguments of `egm.resume`; new limits are already in `config`.

    Attributes:
        run, config: the run and its configuration.
        target: built in, or given again.
        extended: whether limits are new.
        network, energy_network: the user's own, given again.
        device, progress, tensorboard: as in `egm.fit`.
    """

    run: RunDirectory
    config: dict[str, Any]
    target: Target
    extended: bool
    network: nn.Module | None
    energy_network: nn.Module | None
    device: torch.device
    progress: bool
    tensorboard: bool


class MethodKind(ABC):
    """What `egm.fit` has to know of a method.

    Attributes:
        about: what it does, in a line.
        options: the class of its own options.
        defaults: options whose defaults differ.
        outputs: what its network has to give, from the processes; nothing where it has no network.
        trains: whether it trains a network.
    """

    about: str
    options: type
    defaults: Mapping[str, Any]
    outputs: Callable[[Mapping[str, Process[Any]]], dict[str, tuple[int, ...]]]
    trains: bool

    @property
    @abstractmethod
    def option_classes(self) -> tuple[type, ...]:
        """The dataclasses of all options that it takes."""

    @property
    def option_names(self) -> list[str]:
        """Every option that it takes."""
        return [option.name for cls in self.option_classes for option in fields(cls)]

    @abstractmethod
    def fit(self, request: Request) -> AnySampler:
        """`egm.fit`."""

    def why_not_resumed(self, run: RunDirectory, config: Mapping[str, Any]) -> str | None:
        """Why a run cannot be continued, or None if it can."""
        return None

    @abstractmethod
    def resume(self, again: Continuation) -> AnySampler:
        """`egm.resume`."""

    @abstractmethod
    def load(
        self,
        run: RunDirectory,
        config: dict[str, Any],
        space: Space,
        target: Target | None,
        *,
        network: nn.Module | None,
        device: torch.device | str,
    ) -> AnySampler:
        """`egm.load`."""
