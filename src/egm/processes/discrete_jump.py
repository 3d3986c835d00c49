"""Discrete jump: a continuous-time Markov chain on symbols, site by site, following a masked or uniform path.

The step from t to r is the path's bridge averaged over the denoiser D, independently at every site:

    K(x_r | x_t) = Π_i Σ_z D_i(z | x_t) p_{r|1,t}(x_r^i | z, x_t^i).
"""

from __future__ import annotations

import torch
from torch import Tensor

from egm.paths.base import Time
from egm.paths.discrete import DiscretePath
from egm.processes.base import Process, generalised_kl, sample_table


class DiscreteJump(Process[Tensor]):
    """Jumps along a discrete path; its prediction is the denoiser's table p(x_1 | x_t), [..., *shape, n].

    Generators are rates towards each data symbol, [..., *shape, n], zero at the current symbol.
    """

    def __init__(self, path: DiscretePath) -> None:
        if not isinstance(path, DiscretePath):
            raise TypeError(f"DiscreteJump follows a discrete path (Masked, Uniform), got {path!r}")
        self.path = path

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (*self.path.variable.shape, self.path.variable.size)

    def link(self, output: Tensor) -> Tensor:
        return torch.softmax(output.masked_fill(~self.path.variable.legal(output), -torch.inf), -1)

    def conditional(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        return self.path.rates(x_t, self.path.one_hot(x_r, self.path.over_batch(t, x_t).dtype), t, r)

    def marginal(self, x_t: Tensor, prediction: Tensor, t: Time) -> Tensor:
        return self.path.rates(x_t, prediction, t)

    def average(self, x_t: Tensor, x_r: Tensor, weights: Tensor, t: Time) -> Tensor:
        return self.path.average(x_r, weights)

    def prediction(self, x_t: Tensor, average: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        return self.path.denoised(x_t, average, t, r)

    def step(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        return sample_table(self.path.bridge(x_t, prediction, t, r), generator=generator)

    def log_step(self, x_r: Tensor, x_t: Tensor, prediction: Tensor, t: Time, r: Time) -> Tensor:
        """log K(x_r | x_t) of `step`, shape [...]; the batches of x_r and x_t broadcast."""
        table = self.path.bridge(x_t, prediction, t, r)
        shape = torch.broadcast_shapes(table.shape[:-1], x_r.shape)
        chosen = table.expand(*shape, -1).gather(-1, x_r.expand(shape)[..., None])[..., 0]
        return self.path.sum_sites(torch.log(chosen))

    def divergence(self, estimate: Tensor, prediction: Tensor) -> Tensor:
        return generalised_kl(estimate, prediction, len(self.path.variable.shape) + 1)
