"""Hamiltonian Monte Carlo on all real variables jointly, in latent coordinates; MALA is its one-step case.

With momentum p ~ N(0, I) (on the centred subspace where the variable is centred) and H(z, p) = b·U(z) + ½‖p‖², one
transition makes L leapfrog steps of size ε,

    p ← p − (ε/2) b∇U(z),    z ← z + ε p,    p ← p − (ε/2) b∇U(z),

and accepts the end point with probability min(1, exp(H_start − H_end)). The leapfrog map preserves volume and is
reversible, so this leaves exp(−b·U) invariant for every ε drawn independently of the state. If U at the end is +inf
or NaN, the move is rejected.

L = 1 is the Metropolis-adjusted Langevin algorithm: the proposal is z − (ε²/2) b∇U + ε p, and the change of H is the
log ratio of its Metropolis–Hastings acceptance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from egm.mcmc.base import Kernel, SupportsEnergy
from egm.spaces import State
from egm.util.broadcast import over


class HMC(Kernel):
    """Hamiltonian Monte Carlo with a step size for each row of chains.

    A step takes L gradients per chain, and one more if the states changed since the last step.

    During warm-up, log ε moves by (acceptance − target_acceptance)/√k at the k-th step, the acceptance averaged over
    the last batch axis. A batch [R, chains] therefore has R step sizes, one for each temperature.

    Args:
        target: the distribution.
        leapfrog_steps: number L of leapfrog steps.
        step_size: initial ε, in latent units (one is the variable's scale).
        target_acceptance: the mean acceptance that warm-up aims at.
        jitter: each chain multiplies ε by a uniform draw from [1 − jitter, 1 + jitter] at every step, so that no orbit
            of period Lε traps it.
    """

    def __init__(
        self,
        target: SupportsEnergy,
        *,
        leapfrog_steps: int = 10,
        step_size: float = 0.1,
        target_acceptance: float = 0.8,
        jitter: float = 0.2,
    ) -> None:
        if not target.space.real:
            raise ValueError(
                f"{type(self).__name__} needs a real variable, and finds none in {target.space}; use Gibbs"
            )
        if leapfrog_steps < 1:
            raise ValueError(f"leapfrog_steps must be at least 1, got {leapfrog_steps}")
        if not 0 < step_size < math.inf:
            raise ValueError(f"step_size must be positive and finite, got {step_size}")
        if not 0 < target_acceptance < 1:
            raise ValueError(f"target_acceptance must lie between 0 and 1, got {target_acceptance}")
        if not 0 <= jitter < 1:
            raise ValueError(f"jitter must lie in [0, 1), got {jitter}")
        self.target = target
        self.leapfrog_steps = leapfrog_steps
        self.initial_step_size = step_size
        self.target_acceptance = target_acceptance
        self.jitter = jitter
        self.reset()

    def __repr__(self) -> str:
        tuned = f"step_size={self.initial_step_size}, target_acceptance={self.target_acceptance}, jitter={self.jitter}"
        return f"HMC(leapfrog_steps={self.leapfrog_steps}, {tuned})"

    def reset(self) -> None:
        self.step_size: Tensor | None = None
        """ε for each row, shape batch[:-1] + (1,); created by the first step."""
        self._adaptations = 0
        self._last: tuple[State, Tensor, State] | None = None

    def step(
        self, latent: State, *, generator: torch.Generator, inverse_temperature: Tensor | float = 1.0
    ) -> tuple[State, Tensor]:
        variables = self.target.space.real
        before = energy, gradient = self._energy_and_gradient(latent)
        batch, like = energy.shape, latent[next(iter(variables))]
        step_size = self._row_step_size(batch, like)
        if self.jitter:
            u = torch.rand(batch, generator=generator, dtype=like.dtype, device=like.device)
            step_size = step_size * (1 + self.jitter * (2 * u - 1))
        b = torch.as_tensor(inverse_temperature, dtype=like.dtype, device=like.device).expand(batch)

        momentum = {
            name: variable.noise(batch, generator=generator, dtype=like.dtype, device=like.device)
            for name, variable in variables.items()
        }
        start = b * energy + _kinetic_energy(momentum, batch)
        size = {name: over(step_size.expand(batch), latent[name]) for name in variables}
        kick = {name: over(b * step_size / 2, latent[name]) for name in variables}
        position = dict(latent)
        for _ in range(self.leapfrog_steps):
            for name in variables:
                momentum[name] = momentum[name] - kick[name] * gradient[name]
                position[name] = position[name] + size[name] * momentum[name]
            energy, gradient = self.target.latent_energy_and_gradient(position)
            for name in variables:
                momentum[name] = momentum[name] - kick[name] * gradient[name]
        end = b * energy + _kinetic_energy(momentum, batch)

        log_ratio = start.double() - end.double()
        acceptance = torch.where(torch.isnan(log_ratio), 0.0, log_ratio.clamp(max=0).exp())
        u = torch.rand(batch, generator=generator, dtype=torch.float64, device=like.device)
        accepted = u < acceptance
        new = {
            # Projecting again keeps rounding errors of the centre of mass from adding up over a long run.
            name: variable.project(torch.where(over(accepted, latent[name]), position[name], latent[name]))
            for name, variable in variables.items()
        }
        moved = {**latent, **new}
        slopes = {name: torch.where(over(accepted, g), g, before[1][name]) for name, g in gradient.items()}
        self._last = moved, torch.where(accepted, energy, before[0]), slopes
        return moved, acceptance.to(like.dtype)

    def _energy_and_gradient(self, latent: State) -> tuple[Tensor, State]:
        """Returns U(z) and its gradient, without a new evaluation if the last step ended with these states."""
        if self._last is not None and all(latent[name] is x for name, x in self._last[0].items()):
            return self._last[1:]
        return self.target.latent_energy_and_gradient(latent)

    def adapt(self, acceptance: Tensor) -> None:
        if self.step_size is None:
            raise RuntimeError("adapt follows a step; call step first")
        self._adaptations += 1
        mean = acceptance.mean(-1, keepdim=True) if acceptance.ndim else acceptance
        self.step_size = self.step_size * torch.exp((mean - self.target_acceptance) / math.sqrt(self._adaptations))

    def report(self) -> dict[str, float]:
        if self.step_size is None:
            return {}
        rows = self.step_size.flatten().tolist()
        label = f"{type(self).__name__} step size"
        return {label: rows[0]} if len(rows) == 1 else {f"{label} [{row}]": size for row, size in enumerate(rows)}

    def _row_step_size(self, batch: torch.Size, like: Tensor) -> Tensor:
        shape = (*batch[:-1], 1) if batch else ()
        if self.step_size is None:
            self.step_size = torch.full(shape, self.initial_step_size, dtype=like.dtype, device=like.device)
        if tuple(self.step_size.shape) != shape:
            raise ValueError(
                f"this kernel has step sizes of shape {tuple(self.step_size.shape)}, but the chains' batch shape"
                f" {tuple(batch)} needs {shape}; call kernel.reset() before a run of another shape"
            )
        return self.step_size


class MALA(HMC):
    """The Metropolis-adjusted Langevin algorithm: one leapfrog step, at its optimal acceptance of 0.574."""

    def __init__(
        self,
        target: SupportsEnergy,
        *,
        step_size: float = 0.1,
        target_acceptance: float = 0.574,
        jitter: float = 0.0,
    ) -> None:
        super().__init__(
            target, leapfrog_steps=1, step_size=step_size, target_acceptance=target_acceptance, jitter=jitter
        )

    def __repr__(self) -> str:
        tuned = f"step_size={self.initial_step_size}, target_acceptance={self.target_acceptance}, jitter={self.jitter}"
        return f"MALA({tuned})"


def _kinetic_energy(momentum: State, batch: torch.Size) -> Tensor:
    """½‖p‖², shape [...]."""
    return torch.stack([0.5 * p.square().reshape(*batch, -1).sum(-1) for p in momentum.values()]).sum(0)
