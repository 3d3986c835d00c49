"""The jump process of LEAPS (Holderrieth, Albergo and Jaakkola, 2025), and exact weights of its discrete-time chain.

*Continuous time.* Along U_t = t E, p_t ∝ exp(−U_t), symbols jump at one site i at a time, from x to y = x[i=τ], at the
rate Q_t(y, x) = [F_t(τ, i | x)]₊. F is locally equivariant (`egm.networks.locally_equivariant`), so the jump back from
y has the rate [−F_t(τ, i | x)]₊, without an evaluation at y. The chain follows p_t exactly if and only if

    ∂_t log p_t(x) = −∂_t U_t(x) − d/dt log Z_t = K_t F(x)   for all x and t,
    K_t F(x) = Σ_y Q_t(x, y) p_t(y)/p_t(x) − Q_t(y, x)
             = Σ_{i,τ} [−F_t(τ, i | x)]₊ exp(U_t(x) − U_t(y)) − [F_t(τ, i | x)]₊,

and for every F the weights log w = ∫ (−∂_t U_t − K_t F)(x_t) dt give E[w] = Z_1/Z_0, Z_0 = n^sites.

*Discrete time.* With Euler steps these weights have a bias of the order of the step. So the weights here are for the
chain that is simulated. In a step of length h it stays or makes *one* jump,

    K(x | x) = exp(−hλ − ½h²λμ),   K(y | x) = (1 − K(x | x)) q(y)/λ,   q(y) = [F_m(τ, i | x)]₊,   λ(x) = Σ_y q(y),
    L(x | x) = exp(−hμ − ½h²λμ),   L(y | x) = (1 − L(x | x)) r(y)/μ,   μ(x) = Σ_y r(y),
                                                   r(y) = [−F_m(τ, i | x)]₊ exp(U_s(x) − U_s(y)),

with s the middle of the step. L is a step of the process that runs backwards in time, and the weights

    log w = −E(x_1) + sites·log n + Σ_steps [ log L(x_k | x_{k+1}) − log K(x_{k+1} | x_k) ]

have E[w] = Z *exactly*, for every number of steps and every F that is locally equivariant (q(y) at x is then positive
where r(x) at y is). Along a path they agree with the weights of continuous time to second order in h. These are
−h K_s F(x) for a stay, and for a jump half of that in either state and the change of U_s. With (1 − L(x | x))/(hμ) =
1 + ½h(λ − μ) + O(h²), and the same for K with λ and μ exchanged, the weights of the chain have the same terms:

    log L(x | x) − log K(x | x) = −h(μ − λ)(x),
    log L(x | y) − log K(y | x) = U_s(y) − U_s(x) − ½h(μ − λ)(x) − ½h(μ − λ)(y) + O(h²).

This requires F at the same time m in both rates of a jump. So steps form blocks of four with m the middle of the block;
the network is called once per step and once more per block, as the rates after a step are the rates before the next.
(Euler steps usually let sites jump independently. Exact weights exist for these, too, but two jumps in one step are
undone at other rates than they were made at: such weights spread by √h.) Draws without weights need no energies: λ
replaces μ.

*MCMC.* Between blocks sites may be redrawn from their conditionals of exp(−U_t) (Gibbs, one colour of sites after
another). Such a move leaves p_t invariant and does not change weights: it adds U_t(x'') − U_t(x') to
log_ratio = log w + E(x_1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from egm.mcmc.base import draw_symbols
from egm.processes.base import sample_table
from egm.spaces import Categorical
from egm.targets.base import Target
from egm.util.cached_tensors import cached_tensor

BLOCK = 4  # steps that share a time


@dataclass(frozen=True)
class Rates:
    """Rates and energy differences of all jumps from a state, [b, sites · n] each.

    Attributes:
        F: F at the middle of the block.
        differences: E(y) − E(x); None for draws without energies.
    """

    F: Tensor
    differences: Tensor | None

    def step(self, s: Tensor | float, h: Tensor | float, *, backwards: bool) -> tuple[Tensor, Tensor]:
        """Returns rates of K (or L) in a step of length h with the middle s, and the log-probability to stay, [b]."""
        q = self.F.relu()
        u = h * q.sum(1)
        if self.differences is None:  # λ replaces μ
            return q, -u - 0.5 * u.square()
        r = reversed_rates(self.F, self.differences, s)
        v = h * r.sum(1)
        return (r, -v - 0.5 * u * v) if backwards else (q, -u - 0.5 * u * v)


class Chain:
    """The chain of a network on one categorical variable.

    Args:
        rates: F(τ, i | x) [b, *shape, n] at symbols x [b, *shape] and times t [b].
        target: target of the energies; may be None without weights and sweeps.
        name: name of the variable.
        variable: the variable, with the same number n of symbols at every site.
        sweeps: number of Gibbs scans after each block.
    """

    def __init__(
        self,
        rates: Callable[[Tensor, Tensor], Tensor],
        target: Target | None,
        name: str,
        variable: Categorical,
        *,
        sweeps: int = 0,
    ) -> None:
        self.rates, self.name, self.variable, self.n, self.sweeps = rates, name, variable, variable.size, sweeps
        self._known = target

    @torch.no_grad()
    def run(
        self,
        x: Tensor,
        *,
        steps: int,
        generator: torch.Generator,
        end: Tensor | float = 1.0,
        weigh: bool = True,
        backwards: bool = False,
        visit: Callable[[Tensor, int], None] | None = None,
        between: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Simulates from uniform symbols x [b, *shape] at t = 0 to `end`, or backwards from x at `end` to 0.

        Returns the last symbols and log_ratio = sites·log n + Σ_steps log L − log K (and the terms of sweeps), float64
        [b]; without `weigh`, log_ratio has no meaning.

        Args:
            x: the first symbols.
            steps: number of steps, of equal length.
            generator: source of every random number.
            end: a number, or a tensor [] that a replayed CUDA graph reads again.
            weigh: compute log_ratio, which needs sites · n energies for each call of the network.
            backwards: draw by L instead of K; log_ratio is the same function of the path.
            visit: called with the states at the beginning of each step, and the step's number.
            between: called with states, log_ratio and the share of `end` after each block except the last; returns new
                states and log_ratio.
        """
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        log_ratio = x.new_full((len(x),), self.variable.log_volume, dtype=torch.float64)
        sign, h = (-1.0 if backwards else 1.0), end / steps
        for first, last in blocks(steps, backwards=backwards):
            t, until = 0.5 * (first + last) * h, last * h
            if backwards:
                x, log_ratio = self._swept(x, until, log_ratio, sign, generator)
            here = self._rates(x, t, weigh=weigh)
            for k in range(first, last)[:: -1 if backwards else 1]:
                if visit is not None:
                    visit(x, k)
                x, here, change = self._step(
                    x, here, t=t, s=(k + 0.5) * h, h=h, backwards=backwards, generator=generator
                )
                log_ratio = log_ratio + sign * change
            if not backwards:
                x, log_ratio = self._swept(x, until, log_ratio, sign, generator)
            if between is not None and last < steps:
                x, log_ratio = between(x, log_ratio, last / steps)
        return x, log_ratio

    def _rates(self, x: Tensor, t: Tensor | float, *, weigh: bool) -> Rates:
        F = self.rates(x, torch.ones(len(x), device=x.device) * t)
        return Rates(F.flatten(1), self.differences(x).flatten(1) if weigh else None)

    def _step(
        self,
        x: Tensor,
        here: Rates,
        *,
        t: Tensor | float,
        s: Tensor | float,
        h: Tensor | float,
        backwards: bool,
        generator: torch.Generator,
    ) -> tuple[Tensor, Rates, Tensor]:
        """Makes one step; returns new symbols, their rates, and the log of backward over forward probability, [b]."""
        weigh = here.differences is not None
        drawn, log_stay = here.step(s, h, backwards=backwards)
        jump = sample_table(drawn, generator=generator)[:, None]
        u = torch.rand(len(x), generator=generator, device=x.device)
        # Rounding may rarely pick a jump of rate zero, which is not made.
        jumps = (u > log_stay.exp()) & (drawn.gather(1, jump)[:, 0] > 0)
        site, flat = jump // self.n, x.flatten(1)
        old = flat.gather(1, site)
        moved = flat.scatter(1, site, torch.where(jumps[:, None], jump % self.n, old)).reshape(x.shape)
        there = self._rates(moved, t, weigh=weigh)
        if not weigh:
            return moved, there, torch.zeros((), device=x.device)
        forth = log_step_prob(drawn, log_stay, jump, jumps)
        back = log_step_prob(*there.step(s, h, backwards=not backwards), site * self.n + old, jumps)
        return moved, there, (back - forth).double()

    def _swept(
        self, x: Tensor, t: Tensor | float, log_ratio: Tensor, sign: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Returns symbols after sweeps at time t, and log_ratio; backwards, groups of sites are in reverse order."""
        if not self.sweeps:
            return x, log_ratio
        groups = self.target.independent_sites(self.name)
        x = x.clone(memory_format=torch.contiguous_format)
        symbols = x.view(len(x), -1)  # the same memory, site by site
        for sites in [*(reversed(groups) if sign < 0 else groups)] * self.sweeps:
            energies = self.target.conditional_energies({self.name: x}, self.name, sites)
            at = cached_tensor(sites, torch.int64, x.device)
            old, new = symbols[:, at], draw_symbols(t * energies, generator=generator)
            gained = energies.gather(0, new[None]) - energies.gather(0, old[None])
            log_ratio = log_ratio + sign * t * gained[0].double().sum(1)
            symbols[:, at] = new
        return x, log_ratio

    def energies(self, x: Tensor) -> Tensor:
        """Returns E(x[i=τ]) of all sites and symbols, up to a constant per site, [b, *shape, n]; sites · n calls."""
        sites = tuple(range(self.variable.sites))
        return (
            self.target.conditional_energies({self.name: x}, self.name, sites).movedim(0, -1).reshape(*x.shape, self.n)
        )

    def differences(self, x: Tensor) -> Tensor:
        """Returns E(x[i=τ]) − E(x), [b, *shape, n]."""
        energies = self.energies(x)
        return energies - energies.gather(-1, x[..., None])

    @property
    def target(self) -> Target:
        """The target of the energies."""
        if self._known is None:
            raise ValueError("the sampler was loaded without its target; pass target= to egm.load")
        return self._known


def blocks(steps: int, *, backwards: bool = False) -> Iterator[tuple[int, int]]:
    """Returns the first step of each block, and the first step after it.

    >>> list(blocks(10)), list(blocks(10, backwards=True))
    ([(0, 4), (4, 8), (8, 10)], [(8, 10), (4, 8), (0, 4)])
    """
    starts = range(0, steps, BLOCK)
    return ((first, min(first + BLOCK, steps)) for first in (reversed(starts) if backwards else starts))


def reversed_rates(F: Tensor, differences: Tensor, t: Tensor | float) -> Tensor:
    """Returns r(y) = [−F_t(τ, i | x)]₊ exp(U_t(x) − U_t(y)), shaped like F, from E(y) − E(x) and t that broadcasts."""
    return (-F).relu() * torch.exp(-t * differences)


def generator_term(F: Tensor, differences: Tensor, t: Tensor) -> Tensor:
    """Returns K_t F(x), [b], from F and E(y) − E(x), [b, ...], and times [b]."""
    t = t.reshape(-1, *(1,) * (F.ndim - 1))
    return (reversed_rates(F, differences, t) - F.relu()).flatten(1).sum(1)


def log_step_prob(rates: Tensor, log_stay: Tensor, jump: Tensor, jumps: Tensor) -> Tensor:
    """Returns the log-probability [b] of the jump (index [b, 1] into rates [b, m]) if it was made, or of staying."""
    made = torch.log(-torch.expm1(log_stay)) + torch.log(rates.gather(1, jump)[:, 0]) - torch.log(rates.sum(1))
    return torch.where(jumps, made, log_stay)
