"""Regression losses: D(estimate, prediction) at x_t, one Bregman divergence for each kind of prediction.

    reals     ‖F̂ − F_θ‖²/d, F the drift ("generator") or the rescaled denoiser ("denoiser"),
              F = (x̂_1 − α_t x_t/v_t) √v_t/σ_t with v_t = α_t² + σ_t²: of unit size at every t under the reference law
    symbols   −Σ_y D̂(y) log D_θ(y) ("cross-entropy") or Σ_y (D̂(y) − D_θ(y))² ("squared"), averaged over the sites that
              the path may still change
    jumps     Σ a log(a/b) − a + b over bins, in units of the path's own rate ½|d/dt log σ_t²|

All are minimised by the mean of the estimate. A bootstrapped table D̂ need not sum to one: the cross-entropy is then
weighted by its sum, which leaves the minimiser where it is and costs no variance where the sum is all that fluctuates.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from egm.paths.gaussian import GaussianPath
from egm.processes.base import DenoisingProcess, Process, generalised_kl
from egm.processes.discrete_jump import DiscreteJump
from egm.processes.jump import Jump
from egm.spaces.variables import Real

RealLoss = Literal["denoiser", "generator"]
SymbolLoss = Literal["cross-entropy", "squared"]


def real_loss(
    process: DenoisingProcess,
    x_t: Tensor,
    t: Tensor,
    estimate: Tensor,
    prediction: Tensor,
    *,
    kind: RealLoss = "denoiser",
    clip: float | None = None,
) -> Tensor:
    """Squared error per degree of freedom, [...]; the norm of the estimate's F is cut at `clip`."""
    variable = process.path.variable
    if kind == "generator":
        expected, found = (process.marginal(x_t, x_1, t).drift for x_1 in (estimate, prediction))
    else:
        middle, size = rescaling(process.path, x_t, t)
        expected, found = ((x_1 - middle) / size for x_1 in (estimate, variable.project(prediction)))
    if clip is not None:
        expected = cut(expected, clip, variable)
    error = (expected - found).square()
    return (error.sum(variable.axes) if variable.axes else error) / variable.dimension


def rescaling(path: GaussianPath, x_t: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """m = α_t x_t/v_t and s = σ_t/√v_t of the rescaled denoiser F = (x̂_1 − m)/s."""
    time = path.over_sites(t, x_t)
    alpha, variance = path.alpha(time), path.variance(time)
    total = alpha.square() + variance
    return alpha / total * x_t, (variance / total).sqrt()


def cut(x: Tensor, limit: float, variable: Real) -> Tensor:
    """Values x of a variable, shortened along their direction where their norm is above the limit."""
    norm = x.square().sum(variable.axes, keepdim=True).sqrt() if variable.axes else x.abs()
    return x * (limit / norm.clamp(min=limit))


def symbol_loss(
    process: DiscreteJump,
    x_t: Tensor,
    estimate: Tensor,
    logits: Tensor,
    *,
    kind: SymbolLoss = "cross-entropy",
    sites: Tensor | None = None,
) -> Tensor:
    """Loss of tables [..., *shape, n] from a network's logits, [...]; `sites` [..., *shape] weighs them, by default
    the sites that the path may still change, each 1/(number of sites).
    """
    path = process.path
    legal = path.variable.legal(logits)
    if kind == "squared":
        error = (estimate - process.link(logits)).square().sum(-1)
    else:
        log_table = torch.log_softmax(logits.masked_fill(~legal, -torch.inf), -1)
        error = -(estimate * log_table.masked_fill(~legal, 0.0)).sum(-1)
    weights = path.active(x_t) if sites is None else sites
    return path.sum_sites(error * weights) / path.variable.sites


def jump_loss(process: Jump, x_t: Tensor, t: Tensor, estimate: Tensor, prediction: Tensor) -> Tensor:
    """Divergence of kernels [..., *shape, bins] per coordinate, [...]."""
    axes = len(process.path.variable.latent_shape) + 1
    rate = 0.5 * process.path.log_variance_dot(process.path.over_batch(t, x_t)).abs()
    return generalised_kl(estimate, prediction, axes) / (rate * process.path.variable.dimension)


def variable_loss(
    process: Process[Any],
    x_t: Tensor,
    t: Tensor,
    estimate: Tensor,
    output: Tensor,
    *,
    real: RealLoss = "denoiser",
    symbols: SymbolLoss = "cross-entropy",
    clip: float | None = None,
    sites: Tensor | None = None,
) -> Tensor:
    """The loss of one variable from its network's output, [...]."""
    if isinstance(process, DiscreteJump):
        return symbol_loss(process, x_t, estimate, output, kind=symbols, sites=sites)
    if isinstance(process, Jump):
        return jump_loss(process, x_t, t, estimate, process.link(output))
    if isinstance(process, DenoisingProcess):
        return real_loss(process, x_t, t, estimate, output, kind=real, clip=clip)
    raise TypeError(f"no loss is known for the process {type(process).__name__}")
