"""The numerical map of a flow over one step, x_t ↦ x_r, and the determinant of its Jacobian.

A deterministic step has no density; a path weight has log |det ∂x_r/∂x_t| instead, the determinant of the map that is
actually computed (network included, other variables held fixed), not of the flow that the map approximates. This is
correct if the map is invertible. A map is invertible if the symmetric part of its Jacobian is positive definite
everywhere (for example an Euler step of length h along a velocity with h · Lipschitz constant < 1); this is tested only
at the draws.

The Jacobian takes one backward pass for each of the d flowing coordinates, hence `LARGEST`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from egm.processes.base import Process
from egm.spaces import State

LARGEST = 64  # coordinates


def flow_step(
    predict: Callable[[State, Tensor], State], flows: Mapping[str, Process[Any]], x: State, t: Tensor, r: Tensor
) -> tuple[State, State, Tensor, Tensor]:
    """Steps all flowing variables from t [n] to r.

    Returns the predictions of every variable, the new states of the flowing variables, log |det|, float64 [n], and
    whether the map passed the test of invertibility at each draw, bool [n].
    """
    n = len(t)
    with torch.enable_grad():
        leaves = {name: x[name].detach().requires_grad_() for name in flows}
        prediction = predict({**x, **leaves}, t)
        moved = {name: flow.step(leaves[name], prediction[name], t, r) for name, flow in flows.items()}
        outputs = torch.cat([y.reshape(n, -1) for y in moved.values()], 1)
        rows = []
        for i in range(outputs.shape[1]):
            last = i == outputs.shape[1] - 1
            gradients = torch.autograd.grad(outputs[:, i].sum(), list(leaves.values()), retain_graph=not last)
            rows.append(torch.cat([g.reshape(n, -1) for g in gradients], 1))
    jacobian = torch.stack(rows, 1).double()
    # Outside a centred subspace, the map is completed by the identity.
    parts = [_projector(flow, jacobian) for flow in flows.values()]
    inside = torch.block_diag(*parts)
    jacobian = inside @ jacobian @ inside + torch.eye(len(inside), dtype=inside.dtype, device=inside.device) - inside
    symmetric = 0.5 * (jacobian + jacobian.mT)
    _, failed = torch.linalg.cholesky_ex(symmetric)
    log_det = torch.linalg.slogdet(jacobian).logabsdet
    return (
        {name: value.detach() for name, value in prediction.items()},
        {name: value.detach() for name, value in moved.items()},
        log_det,
        failed == 0,
    )


def _projector(flow: Process[Any], like: Tensor) -> Tensor:
    """Returns the matrix of `Real.project` on flattened values."""
    variable = flow.path.variable
    size = max(1, torch.Size(variable.latent_shape).numel())
    eye = torch.eye(size, dtype=like.dtype, device=like.device)
    return variable.project(eye.reshape(size, *variable.latent_shape)).reshape(size, size)
