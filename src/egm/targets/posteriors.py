"""Helpers of posteriors with discrete latent variables: data checks and plans of MCMC references."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from egm.mcmc import HMC, Alternate, Gibbs, Kernel
from egm.mcmc.reference import ReferencePlan
from egm.targets.base import Target

LOG_2PI = math.log(2 * math.pi)


def mixed_plan(target: Target, *more: Kernel) -> ReferencePlan:
    """Returns a plan of Gibbs for the symbols, HMC for the reals and the kernels `more`, in turn."""
    kernel = Alternate([Gibbs(target), HMC(target, leapfrog_steps=5), *more])
    return ReferencePlan(kernel, chains=256, warmup=500, steps=400, thin=10)


class Fingerprint:
    """The shape of an array and a digest of its content, so that targets on different data print differently."""

    def __init__(self, array: Tensor) -> None:
        digest = hashlib.sha256(array.contiguous().numpy().tobytes()).hexdigest()[:8]
        self._shown = f"<{'x'.join(map(str, array.shape))} {digest}>"

    def __repr__(self) -> str:
        return self._shown


def data_tensor(name: str, value: object, *, axes: int) -> Tensor:
    """Validates data and returns them in double precision."""
    array = torch.as_tensor(value, dtype=torch.float64).detach().cpu().clone()
    if array.ndim != axes or 0 in array.shape:
        expected = "a vector [n]" if axes == 1 else "a matrix [n, p]"
        raise ValueError(f"{name} must be {expected} with at least one entry, got shape {tuple(array.shape)}")
    if not bool(torch.isfinite(array).all()):
        raise ValueError(f"{name} holds NaN or infinite entries; drop those rows or fill them in")
    return array
