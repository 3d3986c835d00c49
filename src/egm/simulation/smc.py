"""Sequential Monte Carlo along the path: draws of low weight are replaced on the way instead of at the end.

With an intermediate energy E_t ≈ −log p_t (E^φ if it was trained, otherwise from the partial energy), a trajectory that
has reached x_t has the weight

    log G_t = log_ratio_t − E_t(x_t),      log_ratio_t = −log p_0(x_0) + Σ_{steps so far} [log p_{t|r} − log K].

Where the effective sample size of a group's G falls below a threshold, the group is resampled in proportion to G, and
every survivor continues with the group's mean weight: log_ratio ← log mean G + E_t(x_t). So the mean of
exp(log_ratio − E(x_1)) stays Z exactly, for every E_t. Groups are independent, and standard errors come from their
spread; draws within a group share ancestors. At t = 1, steps of a kernel that leaves the target invariant may follow;
they do not change the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from egm.draws.diagnostics import weight_ess
from egm.mcmc import MALA, Alternate, Gibbs, Kernel
from egm.spaces import State
from egm.targets.base import Target


@dataclass(frozen=True)
class SMC:
    """Resampling along the path (`Sampler.sample(smc=SMC())`).

    Attributes:
        threshold: a group is resampled when its effective sample size (a fraction) falls below this.
        groups: independent groups that the draws are divided into.
        moves: steps of a Markov kernel on the final draws.
        kernel: the kernel; by default Gibbs for symbols, MALA for reals, alternating if there are both.
    """

    threshold: float = 0.5
    groups: int = 16
    moves: int = 0
    kernel: Kernel | None = None

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold must be a fraction of the draws in (0, 1], got {self.threshold}")
        if self.groups < 2 or self.moves < 0:  # one group has no error bar
            raise ValueError(f"groups must be at least 2 and moves at least 0, got {self.groups} and {self.moves}")

    def move(self, target: Target, latent: State, generator: torch.Generator) -> State:
        """Returns the final draws after `moves` steps of the kernel."""
        kernel = self.kernel or default_kernel(target)
        for _ in range(self.moves):
            latent, _ = kernel.step(latent, generator=generator)
        return latent


def default_kernel(target: Target) -> Kernel:
    """Returns Gibbs for symbols, MALA for reals, alternating if there are both."""
    parts: list[Kernel] = [Gibbs(target)] if target.space.categorical else []
    parts += [MALA(target)] if target.space.real else []
    return parts[0] if len(parts) == 1 else Alternate(parts)


def resample_groups(
    x: State,
    log_ratio: Tensor,
    energy: Callable[[State], Tensor],
    *,
    groups: int,
    threshold: float,
    generator: torch.Generator,
) -> tuple[State, Tensor]:
    """Resamples each of `groups` equal blocks of draws [n] whose effective sample size is below the threshold.

    `energy` is E_t at the current time. The host never waits for the device. Returns the states and their log_ratio.
    """
    n = len(log_ratio)
    size = n // groups
    before = energy(x).double()
    log_g = (log_ratio - before).reshape(groups, size)
    weights = torch.softmax(log_g, 1)
    uneven = weight_ess(log_g)[:, None] < threshold  # [groups, 1]; False for NaN, where every weight is zero
    u = torch.rand(groups, 1, generator=generator, device=log_ratio.device, dtype=torch.float64)
    positions = (torch.arange(size, device=log_ratio.device) + u) / size
    cumulative = weights.cumsum(1)
    chosen = torch.searchsorted(cumulative, positions * cumulative[:, -1:]).clamp(max=size - 1)
    own = torch.arange(size, device=log_ratio.device).expand(groups, size)
    start = size * torch.arange(groups, device=log_ratio.device)[:, None]
    index = (torch.where(uneven, chosen, own) + start).reshape(n)
    mean = torch.logsumexp(log_g, 1, keepdim=True) - math.log(size)
    after = (mean + before[index].reshape(groups, size)).reshape(n)
    resampled = uneven.expand(groups, size).reshape(n)
    return {name: value[index] for name, value in x.items()}, torch.where(resampled, after, log_ratio)
