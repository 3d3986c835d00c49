"""Energies in NumPy: called on host arrays, without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from egm.adapters.bridge import dtype_of, flattened, one_each
from egm.spaces import Space
from egm.targets.base import EnergyError, Target


def from_numpy(space: Space, energy: Callable[..., Any], *, batched: bool = True, name: str | None = None) -> Target:
    """Returns a target from an energy that computes with NumPy (or SciPy, or anything that takes arrays).

    Args:
        space: the variables.
        energy: called with one array for each variable, by name: reals in double precision, symbols as int64, all
            read-only. With `batched` they have exactly one leading axis, [n, *shape], and it returns n numbers;
            without, it gets one state, of the shapes in the space, and returns one number.
        batched: whether the energy takes many states at once; one by one is slow.
        name: how the target prints; by default after the energy.

    The target has no gradients: the methods egm-sp (the default), egm and egm-bs need none.

    >>> import egm
    >>> def energy(x, a):  # x: float64 [n, 2], a: int64 [n]
    ...     return 0.5 * ((x - a[:, None]) ** 2).sum(-1)
    >>> space = egm.Space(x=egm.Real(2), a=egm.Categorical(3, shape=()))
    >>> target = from_numpy(space, energy)
    >>> target.energy(x=torch.zeros(2, 2), a=torch.tensor([0, 2]))
    tensor([0., 4.])
    """

    def call(**state: Tensor) -> Tensor:
        states, batch = flattened(space, state)
        arrays = {key: _array(x) for key, x in states.items()}
        if batched:
            found = np.asarray(energy(**arrays))
        else:
            each = [energy(**{key: x[i] for key, x in arrays.items()}) for i in range(batch.numel())]
            found = np.asarray(each).reshape(len(each), *np.shape(each[0])) if each else np.zeros(0)
        if found.dtype.kind not in "fiu":
            raise EnergyError(f"the energy must return numbers, got {found.dtype}")
        like = next(iter(state.values()))
        values = torch.as_tensor(found.astype(np.float64)).to(device=like.device, dtype=dtype_of(space, state))
        return one_each(values, batch, by="from_numpy")

    return Target(space, call, name=name or f"Target({getattr(energy, '__name__', type(energy).__name__)})")


def _array(x: Tensor) -> NDArray[Any]:
    """Returns a read-only array, because its memory may belong to the sampler."""
    array = x.detach().cpu().numpy()
    array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64, copy=False).view()
    array.flags.writeable = False
    return array
