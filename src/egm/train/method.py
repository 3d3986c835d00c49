"""Interface of a method to the training loop: how end points enter and leave the buffer, and the loss at states noised
from them. Times are stratified and ascending, t_i = t_min + (T_MAX − t_min)(i + u_i)/n.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from egm.estimation.energy_model import EnergyModel
from egm.network_sampler import NetworkSampler
from egm.paths.product import ProductPath
from egm.processes.base import Process
from egm.simulation.denoiser_error import DenoiserError
from egm.simulation.simulate import Simulation
from egm.spaces import State
from egm.targets.guard import EnergyGuard
from egm.train.buffer import ReplayBuffer

T_MAX = 1 - 1e-3  # the last time in training: at t = 1 the state is its own end point


class Method(ABC):
    """Base class of methods that train a sampler's network.

    Args:
        energy: the target's latent energy, guarded.
        path, processes: the path and the process of every variable.
        network: the denoiser.
        error: running estimate of the denoiser's errors, by which steps are widened in path weights.

    Attributes:
        needs_draws: whether the sampler's draws go into the buffer, by `refresh`.
        weighted: whether `refresh` needs path weights.
        weight_decay: weight decay of AdamW.
    """

    needs_draws: bool = True
    weight_decay: float = 0.01
    weighted: bool = False

    def __init__(
        self,
        energy: EnergyGuard,
        path: ProductPath,
        processes: Mapping[str, Process[Any]],
        network: nn.Module,
        error: DenoiserError | None,
    ) -> None:
        self.energy, self.path, self.processes, self.network, self.error = energy, path, processes, network, error

    @abstractmethod
    def losses(self, x_1: State, *, first: bool, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns the loss to minimise and further values to log, 0-dimensional tensors.

        `first` marks the first step of training.
        """

    def draw(self, sampler: NetworkSampler, n: int, *, steps: int | None, generator: torch.Generator) -> Simulation:
        """Draws what a round adds to the buffer: n states of the sampler, in latent coordinates."""
        return sampler.latent(n, generator=generator, steps=steps, weigh=self.weighted)

    def refresh(self, buffer: ReplayBuffer, drawn: Simulation) -> None:
        """Puts new end points into the buffer."""
        buffer.add(drawn.state)

    def end_points(self, buffer: ReplayBuffer, n: int, generator: torch.Generator) -> State:
        """Draws n end points from the buffer."""
        return buffer.sample(n, generator)

    def finished(self) -> bool:
        """Returns whether more training would not help; called before each refresh."""
        return False

    @property
    def averaging(self) -> bool:
        """Whether a running average that the losses use has begun."""
        return False

    @property
    def phase(self) -> Hashable:
        """The state, apart from the buffer's size, whose change needs a new CUDA graph of the step."""
        return self.averaging

    def after_step(self, progress: float) -> None:
        """Runs after each step; `progress` is the share of training that is done."""
        return None

    def modules(self) -> dict[str, nn.Module]:
        """Returns the modules that a checkpoint saves: networks and running averages."""
        return {"network": self.network}

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Returns parameters with their learning rates."""
        return [{"params": list(self.network.parameters()), "lr": learning_rate}]

    def state_dict(self) -> dict[str, Any]:
        """Returns what the next step depends on, in addition to modules and buffer."""
        return {}

    def load_state_dict(self, state: dict[str, Any], buffer: ReplayBuffer) -> None:
        """Restores the output of `state_dict`."""
        return None

    def averaged_energy_model(self) -> EnergyModel | None:
        """Returns E^φ by its running average, which training keeps updating; None if the method trains no E^φ."""
        return None

    def extend(self) -> None:
        """Resets the criterion of `finished`; called when a run gets more steps or time."""
        return None

    def measure_error(self, x_1: State, output: State, t: Tensor) -> None:
        """Updates the denoiser's errors by the network's means and the end points."""
        if self.error is not None:
            denoised = [name for name, process in self.processes.items() if process.predicts_mean]
            self.error.update(x_1, {name: output[name].detach() for name in denoised}, t)


def stratified_times(n: int, generator: torch.Generator, *, start: float = 0.0) -> Tensor:
    """Draws n times between `start` and T_MAX, one in each of n equal intervals, ascending."""
    u = torch.rand(n, generator=generator, device=generator.device)
    return start + (T_MAX - start) * (torch.arange(n, device=u.device) + u) / n
