"""Collects the contents of a report: the files of a run, fresh draws, and their energies and observables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from egm.api import load
from egm.config.targets import own_name
from egm.draws import Draws
from egm.runs.directory import RunDirectory
from egm.spaces import State
from egm.targets.base import Target
from egm.util.seeds import derive_seed


@dataclass(frozen=True)
class Contents:
    """The contents of a report about one run.

    Attributes:
        name: folder of the run, as it was given.
        config, starts, results, rows, cost: contents of the files (`egm.runs.directory`).
        target: target of the run; None if it is not available.
        draws: fresh draws; None if the run cannot draw.
        reference: as many reference draws; None if there are none.
        remarks: sentences on the parts that were left out, with reasons.
    """

    name: str
    config: dict[str, Any]
    starts: list[dict[str, Any]]
    results: dict[str, Any] | None
    rows: list[dict[str, str]]
    cost: dict[str, float | int | None]
    target: Target | None = None
    draws: Draws | None = None
    reference: State | None = None
    remarks: list[str] = field(default_factory=list)

    @property
    def target_name(self) -> str:
        """The printed form of the target."""
        return str(self.config.get("prints_as", self.config["target"]))

    @property
    def title(self) -> str:
        """Target and method."""
        return f"{self.target_name} by {self.config['method']}"

    @cached_property
    def problems(self) -> list[str] | None:
        """The problems of the draws; None without draws."""
        return None if self.draws is None else self.draws.problems()

    @cached_property
    def state(self) -> State:
        """The states of the draws, on the CPU like the reference draws; empty without draws."""
        return {} if self.draws is None else {name: x.detach().cpu() for name, x in self.draws.state.items()}

    @cached_property
    def log_weights(self) -> Tensor | None:
        """The log-weights of the draws, on the CPU; None if there are none, or if all weights are zero."""
        found = None if self.draws is None or self.draws.log_weights is None else self.draws.log_weights.cpu()
        return None if found is None or not bool(found.isfinite().any()) else found

    @cached_property
    def observed(self) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Energies and observables, each [n, k] for draws and for reference draws."""
        if self.draws is None:
            return {}
        ours, theirs = self._observe(self.state), None if self.reference is None else self._observe(self.reference)
        return {name: (x, None if theirs is None else theirs[name]) for name, x in ours.items()}

    def _observe(self, state: State) -> dict[str, Tensor]:
        if self.target is None and self.draws is not None:  # the variables themselves need no energy
            found = Target(self.draws.space, _unknown).observables(**state)
        elif self.target is not None:
            found = {"energy": self.target.energy(**state), **self.target.observables(**state)}
        else:
            found = {}
        return {name: x.detach().reshape(len(x), -1).double() for name, x in found.items()}


def read_contents(
    folder: str | Path,
    target: Target | None,
    *,
    n: int,
    seed: int,
    device: str,
    reference: bool,
    say: Callable[[str], None],
) -> Contents:
    """Read a run, draw from it, and make reference draws.

    Args:
        folder: folder of the run.
        target: the run's target, if it is not a built-in one.
        n: number of draws (at most the number of states that chains have kept).
        seed: seed of the draws.
        device: device of the draws.
        reference: whether to compare with reference draws.
        say: called with progress messages.
    """
    run = RunDirectory(folder)
    config = run.read_config()
    files: dict[str, Any] = {
        "name": str(folder), "config": config, "starts": run.starts(), "rows": run.read_metrics(),
        "cost": run.cost(config), "results": run.read_results(),
    }  # fmt: skip
    if why := _why_no_draws(run, config):
        return Contents(**files, remarks=[f"There are no draws: {why}. Parts that need draws are left out."])
    sampler = load(folder, target, device=device)
    target, remarks = sampler.target, []
    if target is None:
        remarks.append(
            f"The target ({config['target']}) is not a built-in one: weights, energies and comparisons are left out."
            " Add --target module:function to include them."
        )
    n = n if sampler.most_draws is None else min(n, sampler.most_draws)
    say(f"drawing {n} times from {folder}")
    draws = sampler.sample(n, seed=seed)
    exact = None
    if target is not None and target.reference_kind is None:
        remarks.append("The target has no reference draws to compare with.")
    elif target is not None and not reference:
        remarks.append("Comparisons with reference draws were not asked for.")
    elif target is not None:
        say(f"comparing {folder} with reference draws")
        exact = target.exact_sample(n, seed=derive_seed(seed, 1))
    if files["results"] is None and target is not None and target.reference_kind is not None:
        remarks.append(f"The run was not evaluated, so there are no metrics: `egm evaluate {folder}` computes them.")
    if (behind := _behind(files)) is not None:
        remarks.append(f"The evaluation is of step {behind}, and the run is longer now: `egm evaluate` renews it.")
    return Contents(**files, target=target, draws=draws, reference=exact, remarks=remarks)


def _why_no_draws(run: RunDirectory, config: dict[str, Any]) -> str | None:
    if (network := own_name(config.get("network"))) is not None:
        return f"the network ({network}) is user-defined, and a report cannot load it"
    if not (run.folder / "model.safetensors").is_file():
        return "the run holds no trained network yet"
    return None


def _behind(files: dict[str, Any]) -> int | None:
    """Return the step of the evaluation if the run has gone further, otherwise None."""
    evaluated, reached = (files["results"] or {}).get("steps"), files["cost"]["step"]
    return evaluated if evaluated is not None and reached is not None and evaluated < reached else None


def _unknown(**state: Tensor) -> Tensor:
    raise NotImplementedError(f"the energy of {list(state)} is not known")
