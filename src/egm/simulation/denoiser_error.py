"""The error variance of a denoiser, err_t = E |x_1 − x̂_1(x_t)|² per coordinate, which widens steps of a diffusion.

It is measured during training, on the pairs (x_1, x_t) that the network is trained on, in units of its value under the
reference law, σ_t²/v_t with v = α² + σ². For every path, the ratio depends smoothly on the log signal-to-noise ratio
λ_t = log(α_t²/σ_t²). Bins of λ_t hold it as exponentially decaying sums (`DECAY` per step), with linear interpolation
between bins. The first bin lies at λ_0 if λ_0 is finite (VE): lower bins would never be visited, and their initial
values would enter at t = 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from egm.paths.product import ProductPath
from egm.spaces import State

BINS, LOWEST, HIGHEST = 64, -10.0, 14.0  # of λ; CondOT passes λ = −10 at t = .0067 and 14 at t = .9991
DECAY = 0.99
SMALLEST = 1e-6  # a ratio of zero would leave a step without a density


class DenoiserError(nn.Module):
    """err_t of every real variable; before any measurement, its value under the reference law.

    Coordinates are measured separately, except in centred variables, whose steps must not leave the subspace.
    """

    def __init__(self, path: ProductPath) -> None:
        super().__init__()
        self._path = path
        start = torch.zeros((), dtype=torch.float64, device="cpu")
        self._lowest = {name: max(LOWEST, float(self._log_snr(name, start))) for name in path.space.real}
        for name, variable in path.space.real.items():
            shape = (1,) * len(variable.latent_shape) if variable.centered else variable.latent_shape
            self.register_buffer(f"squares_{name}", torch.ones(BINS, *shape))
            self.register_buffer(f"counts_{name}", torch.ones(BINS))

    def forward(self, name: str, t: Tensor) -> Tensor:
        """Returns err_t of a variable, [..., *sites]; `sites` are the variable's axes (of length 1 if centred)."""
        squares, counts = self.get_buffer(f"squares_{name}"), self.get_buffer(f"counts_{name}")
        ratio = squares / counts.reshape((-1, *(1,) * (squares.ndim - 1)))
        position = self._position(name, t)
        below = position.floor().clamp(0, BINS - 2).long()
        share = (position - below).reshape((*position.shape, *(1,) * (squares.ndim - 1)))
        between = torch.lerp(ratio[below], ratio[below + 1], share.to(ratio.dtype)).clamp(min=SMALLEST)
        return between.to(t.dtype) * self._unit(name, t).reshape((*t.shape, *(1,) * (squares.ndim - 1)))

    @torch.no_grad()
    def update(self, x_1: State, denoised: State, t: Tensor) -> None:
        """Adds the errors of a batch: end points and denoised means [n, ...] of real variables at times [n]."""
        for name, variable in self._path.space.real.items():
            if name not in denoised:
                continue
            squares, counts = self.get_buffer(f"squares_{name}"), self.get_buffer(f"counts_{name}")
            error = (x_1[name] - variable.project(denoised[name])).square().reshape(len(t), -1)
            if variable.centered:
                error = error.sum(1, keepdim=True) / variable.dimension
            error = (error / self._unit(name, t)[:, None]).to(squares.dtype)
            inside = one_hot(self._position(name, t).round().long(), BINS).to(squares.dtype)  # [n, bins]
            count = inside.sum(0)
            keep = torch.where(count > 0, DECAY, 1.0)
            counts.mul_(keep).add_(count)
            squares.mul_(keep.reshape((-1, *(1,) * (squares.ndim - 1))))
            squares.add_((inside.T @ error).reshape(squares.shape))

    def _position(self, name: str, t: Tensor) -> Tensor:
        """Returns λ_t in units of bins, from 0 to BINS − 1."""
        lowest = self._lowest[name]
        return ((self._log_snr(name, t) - lowest) / (HIGHEST - lowest)).clamp(0, 1) * (BINS - 1)

    def _log_snr(self, name: str, t: Tensor) -> Tensor:
        """Returns λ_t."""
        path = self._path.gaussian[name]
        return 2 * torch.log(path.alpha(t)) - torch.log(path.variance(t))

    def _unit(self, name: str, t: Tensor) -> Tensor:
        """Returns the error under the reference law, σ_t²/v_t."""
        path = self._path.gaussian[name]
        variance = path.variance(t)
        return variance / (path.alpha(t).square() + variance)
