"""Interface of a method to `egm.fit`: its options, and how it fits, resumes and loads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from egm.config.request import Request
from egm.processes.base import Process
from egm.runs.directory import RunDirectory
from egm.sampler import AnySampler


class MethodKind(ABC):
    """Base class of the methods of `egm.fit`.

    Attributes:
        about: one line on what the method does.
        options: the dataclass of the method's options.
        defaults: values of options whose defaults differ.
        trains: whether the method trains a network.
    """

    about: str
    options: type
    defaults: Mapping[str, Any]
    trains: bool

    @property
    @abstractmethod
    def option_classes(self) -> tuple[type, ...]:
        """The dataclasses of all options of the method."""

    @property
    def option_names(self) -> list[str]:
        """The names of all options of the method."""
        return [option.name for cls in self.option_classes for option in fields(cls)]

    def outputs(self, processes: Mapping[str, Process[Any]]) -> dict[str, tuple[int, ...]]:
        """Returns the outputs of the method's network; none where there is no network."""
        return {}

    @abstractmethod
    def fit(self, request: Request) -> AnySampler:
        """Implements `egm.fit`."""

    def why_not_resumed(self, run: RunDirectory, config: Mapping[str, Any]) -> str | None:
        """Returns why a run cannot be continued, or None if it can."""
        return None

    @abstractmethod
    def resume(self, request: Request, *, extended: bool) -> AnySampler:
        """Implements `egm.resume`; `extended` tells whether a new limit was given."""

    @abstractmethod
    def load(self, request: Request) -> AnySampler:
        """Implements `egm.load`."""
