"""Preconditioning by the path: bodies see numbers of size one, and start from the reference law.

For x_1 standard Gaussian, x_t = α_t x_1 + σ_t ε has the variance v_t = α_t² + σ_t², and x_1 given x_t has the mean
α_t x_t/v_t and the variance σ_t²/v_t. So a body sees x_t/√v_t, and its output o for the mean becomes

    E[x_1 | x_t] = α_t/v_t · x_t + σ_t/√v_t · o,

the exact denoiser of the reference law where o = 0. Log-rates of a jump kernel get the offset log(λ_t/bins), with the
rate λ_t = ½ |d/dt log σ_t²| at which the path narrows: that is how often an untrained coordinate jumps, into any bin.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from egm.paths.gaussian import GaussianPath
from egm.paths.product import ProductPath
from egm.spaces import State

EDGE = 1e-4  # rates of jumping vanish or diverge at the ends of a path; their offset stays at its value here


class Preconditioned(nn.Module):
    """A body on the scale of its path; logits and scalars pass through, so it serves energy networks as well.

    Args:
        body: a network for latent states (`egm.networks.Body`, or any module with its `forward`).
        path: the path whose states it sees.
    """

    def __init__(self, body: nn.Module, path: ProductPath) -> None:
        super().__init__()
        if not isinstance(path, ProductPath):
            raise TypeError(f"path must be a ProductPath, got {type(path).__name__}; wrap it as ProductPath(space)")
        if getattr(body, "space", path.space) != path.space:
            raise ValueError(
                f"the network was built for {getattr(body, 'space', None)!r}, but the path is one of {path.space!r}"
            )
        self.body = body
        self.path = path

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """Trailing shapes of the outputs, which are the body's."""
        return cast(dict[str, tuple[int, ...]], self.body.outputs)

    def forward(self, state: State, t: Tensor) -> State:
        """Denoised means [..., *latent_shape] and log-rates of Real variables; everything else as the body gives it."""
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
    """log(½ |d/dt log σ_t²|) − log bins."""
    rate = 0.5 * path.log_variance_dot(t.clamp(EDGE, 1 - EDGE)).abs()
    return torch.log(rate) - math.log(bins)
