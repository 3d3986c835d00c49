"""A method as `egm.fit` knows it: which options it takes, and how it fits, resumes and loads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from egm.config.request import Request
from egm.processes.base import Process
from egm.runs.directory import RunDirectory
from egm.sampler import AnySampler


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
    def resume(self, request: Request, *, extended: bool) -> AnySampler:
        """`egm.resume`; `extended` says whether limits are new."""

    @abstractmethod
    def load(self, request: Request) -> AnySampler:
        """`egm.load`."""
