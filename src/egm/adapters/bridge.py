"""Helpers of the adapters: flatten the leading axes of a state, and reshape energies to the batch's shape."""

from __future__ import annotations

import torch
from torch import Tensor

from egm.spaces import Space, State
from egm.targets.base import EnergyError


def flattened(space: Space, state: State) -> tuple[State, torch.Size]:
    """Returns a state with one leading axis, and its batch shape."""
    batch = space.batch_shape(state)
    return {name: state[name].reshape(-1, *v.shape) for name, v in space.variables.items()}, batch


def dtype_of(space: Space, state: State) -> torch.dtype:
    """Returns the dtype of the reals, or torch's default dtype if there are only symbols."""
    return state[next(iter(space.real))].dtype if space.real else torch.get_default_dtype()


def one_each(energy: Tensor, batch: torch.Size, *, by: str) -> Tensor:
    """Returns energies [n] in the batch's shape; raises if there are not n energies."""
    if tuple(energy.shape) != (batch.numel(),):
        raise EnergyError(
            f"for {batch.numel()} states the energy returned an array of shape {tuple(energy.shape)}; it must return"
            f" one number for each. If it takes one state at a time, use {by}(..., batched=False)"
        )
    return energy.reshape(batch)
