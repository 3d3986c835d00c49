"""Preconditioning by the path: bodies have inputs of unit size, and predict the reference law before training.

For x_1 standard Gaussian, x_t = α_t x_1 + σ_t ε has the variance v_t = α_t² + σ_t², and x_1 given x_t has the mean
α_t x_t/v_t and the variance σ_t²/v_t. So a body sees x_t/√v_t, and its output o for the mean becomes

    E[x_1 | x_t] = α_t/v_t · x_t + σ_t/√v_t · o,

the exact denoiser of the reference law where o = 0. Log-rates of a jump kernel get the offset log(λ_t/bins), with the
rate λ_t = ½ |d/dt log σ_t²| at which the path narrows: before training, a coordinate jumps at this rate, into any bin.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from egm.paths.gaussian import GaussianPath
from egm.paths.product import ProductPath
from egm.spaces import State

EDGE = 1e-4  # jump rates vanish or diverge at the ends of a path; within this distance their offset is constant


class Preconditioned(nn.Module):
    """A body rescaled by its path; logits and scalars pass through, so it also serves energy networks.

    Args:
        body: a network for latent states (`egm.networks.Body`, or any module with its `forward`).
        path: the path of its input states.
    """

    def __init__(self, body: nn.Module, path: ProductPath) -> None:
        super().__init__()
        if not isinstance(path, ProductPath):
            raise TypeError(f"path must be a ProductPath, got {type(path).__name__}; wrap it as ProductPath(space)")
        if other := [name for name in path.space.real if name not in path.gaussian]:
            raise TypeError(f"the path of '{other[0]}' must be Gaussian (CondOT, VE, VP), got {path[other[0]]!r}")
        if getattr(body, "space", path.space) != path.space:
            raise ValueError(
                f"the network was built for {getattr(body, 'space', None)!r}, but the path is one of {path.space!r}"
            )
        self.body = body
        self.path = path

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """Trailing shapes of the outputs of the body."""
        return cast(dict[str, tuple[int, ...]], self.body.outputs)

    def forward(self, state: State, t: Tensor) -> State:
        """Returns denoised means [..., *latent_shape] and log-rates of Real variables; other outputs are unchanged."""
        paths = self.path.gaussian
        times = {name: path.over_sites(t, state[name]) for name, path in paths.items()}
        scales = {name: (p.alpha(times[name]).square() + p.variance(times[name])).rsqrt() for name, p in paths.items()}
        result = dict(self.body({**state, **{name: scales[name] * state[name] for name in paths}}, t))
        for name, path in paths.items():
            if name not in result:
                continue
            z, time, scale, output = state[name], times[name], scales[name], result[name]
            if output.ndim == z.ndim:
                narrow = path.variance(time).sqrt() * scale
                result[name] = path.alpha(time) * scale.square() * z + narrow * output
            else:
                result[name] = output + _log_rate(path, time, output.shape[-1])[..., None]
        return result


def _log_rate(path: GaussianPath, t: Tensor, bins: int) -> Tensor:
    """Returns log(½ |d/dt log σ_t²|) − log bins."""
    rate = 0.5 * path.log_variance_dot(t.clamp(EDGE, 1 - EDGE)).abs()
    return torch.log(rate) - math.log(bins)
