"""The intermediate energy E^φ in training, and its running average, which estimates use."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from egm.estimation.energy_model import EnergyModel
from egm.methods.egm_options import EnergyOptions
from egm.networks.base import is_built_in, rounding
from egm.spaces import State


class LearnedEnergy:
    """E^φ of EGM-BS and BNEM.

    Args:
        model: E^φ.
        options: decay and beginning of the running average, among others.
    """

    def __init__(self, model: EnergyModel, options: EnergyOptions) -> None:
        self.model, self.options = model, options
        self.average = AveragedModel(model.network, multi_avg_fn=get_ema_multi_avg_fn(options.energy_ema))
        self.average.requires_grad_(False)

    def __call__(self, x_r: State, r: Any) -> Tensor:
        """Returns E^φ, by its running average once this has begun; on a GPU built-in bodies compute in bfloat16."""
        network, device = self.average if self.averaging else None, next(iter(x_r.values())).device
        with rounding(device, enabled=is_built_in(self.model.network)):
            return self.model(x_r, r, network=network)

    def loss(self, x_t: State, t: Tensor, target: Tensor) -> Tensor:
        """Returns the squared error of E^φ from Ê_t, where Ê_t is cut at `clip_energy`."""
        return self.model.loss(x_t, t, target, clip=self.options.clip_energy)

    def averaged(self) -> EnergyModel:
        """Returns E^φ by its running average, which training keeps updating."""
        return self.model.with_network(self.average.module)

    def after_step(self, progress: float) -> None:
        """Updates the running average."""
        if self.averaging or progress >= self.options.energy_ema_start:
            self.average.update_parameters(self.model.network)

    @property
    def averaging(self) -> bool:
        """Whether the running average has begun; torch keeps its count on the host."""
        return bool(self.average.n_averaged > 0)

    def modules(self) -> dict[str, nn.Module]:
        """Returns the model and its average."""
        return {"energy_model": self.model, "energy_average": self.average}
