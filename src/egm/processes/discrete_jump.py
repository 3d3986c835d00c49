"""Discrete jump: a continuous-time Markov chain on symbols, site by site, following a masked or uniform path.

The step from t to r is the path's bridge averaged over the denoiser D, independently at every site:

    K(x_r | x_t) = Π_i Σ_z D_i(z | x_t) p_{r|1,t}(x_r^i | z, x_t^i).

Alternatively the rates are frozen at t: with h = r − t and λ = Σ_y rate(y) a site jumps, to y ∝ rate(y), with
probability min(hλ, 1) (Euler) or 1 − e^{−hλ} (tau-leaping). Both agree with the bridge to first order in h.

The loss of tables is −Σ_y D̂(y) log D_θ(y) ("cross-entropy") or Σ_y (D̂(y) − D_θ(y))² ("squared"), averaged over the
sites that the path may still change. A bootstrapped table D̂ need not sum to one: the cross-entropy is then weighted by
its sum, which keeps the minimiser and adds no variance if only the sum fluctuates.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from egm.paths.base import Time
from egm.paths.discrete import DiscretePath, Masked
from egm.processes.base import PLAIN, Loss, Process, sample_table


class DiscreteJump(Process[Tensor]):
    """Jumps along a discrete path; its prediction is the denoiser's table p(x_1 | x_t), [..., *shape, n].

    A table sums to one at every site. Generators are rates towards each data symbol, [..., *shape, n], zero at the
    current symbol.
    """

    has_density = True

    def __init__(self, path: DiscretePath) -> None:
        if not isinstance(path, DiscretePath):
            raise TypeError(f"DiscreteJump follows a discrete path (Masked, Uniform), got {path!r}")
        self.path = path

    @property
    def reveals(self) -> bool:
        return self.path.reveals

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (*self.path.variable.shape, self.path.variable.size)

    def link(self, output: Tensor) -> Tensor:
        if not isinstance(self.path.variable.n, int):  # for an int n, every symbol is legal at every site
            output = output.masked_fill(~self.path.variable.legal(output), -torch.inf)
        return torch.softmax(output, -1)

    def conditional(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        return self.path.rates(x_t, self.path.one_hot(x_r, self.path.over_batch(t, x_t).dtype), t, r)

    def marginal(self, x_t: Tensor, prediction: Tensor, t: Time) -> Tensor:
        return self.path.rates(x_t, prediction, t)

    def average(self, x_t: Tensor, x_r: Tensor, weights: Tensor, t: Time) -> Tensor:
        return self.path.average(x_r, weights)

    def prediction(self, x_t: Tensor, average: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        return self.path.denoised(x_t, average, t, r)

    def step(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        return self._draw(x_t, prediction, t, r, law=self.path.bridge, chance=Masked.chance, generator=generator)

    def euler(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        return self._draw(x_t, prediction, t, r, law=self.euler_table, chance=_hazard, generator=generator)

    def tau_leap(
        self, x_t: Tensor, prediction: Tensor, t: Time, r: Time, *, generator: torch.Generator | None = None
    ) -> Tensor:
        return self._draw(x_t, prediction, t, r, law=self.tau_leap_table, chance=_tau_leap_chance, generator=generator)

    def _draw(
        self,
        x_t: Tensor,
        prediction: Tensor,
        t: Time,
        r: Time,
        *,
        law: Callable[[Tensor, Tensor, Time, Time], Tensor],
        chance: Callable[[Masked, Tensor, Time, Time], Tensor],
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draws symbols from the table of a step; on a GPU, masked paths need only the chance of being revealed.

        Subclasses of `DiscreteJump` and `Masked` may have steps of another law, so they always use the table.
        """
        if x_t.is_cuda and type(self) is DiscreteJump and type(self.path) is Masked:
            found = self.path.revealed(x_t, prediction, chance(self.path, x_t, t, r), generator)
            if found is not None:
                return found
        return sample_table(law(x_t, prediction, t, r), generator=generator)

    def euler_table(self, x_t: Tensor, prediction: Tensor, t: Time, r: Time) -> Tensor:
        """Returns the law of `euler` at every site, [..., *shape, alphabet]; where hλ > 1 the site always jumps."""
        rates, hazard = self._frozen(x_t, prediction, t, r)
        return self._jump_table(x_t, rates, hazard.clamp(max=1))

    def tau_leap_table(self, x_t: Tensor, prediction: Tensor, t: Time, r: Time) -> Tensor:
        """Returns the law of `tau_leap` at every site, [..., *shape, alphabet]."""
        rates, hazard = self._frozen(x_t, prediction, t, r)
        return self._jump_table(x_t, rates, -torch.expm1(-hazard))

    def _frozen(self, x_t: Tensor, prediction: Tensor, t: Time, r: Time) -> tuple[Tensor, Tensor]:
        """Returns the rates at t, [..., *shape, n], and hλ, [..., *shape, 1]."""
        start, end = self.path.times(t, r, x_t)
        rates = self.path.rates(x_t, prediction, t)
        return rates, (end - start)[..., None] * rates.sum(-1, keepdim=True)

    def _jump_table(self, x_t: Tensor, rates: Tensor, jump: Tensor) -> Tensor:
        total = rates.sum(-1, keepdim=True)
        moves = jump * torch.where(total > 0, rates / total, 0.0)
        stays = (1 - jump) * self.path.one_hot(x_t, rates.dtype)
        return stays + pad(moves, (0, stays.shape[-1] - moves.shape[-1]))

    def finite_at(self, t: Tensor) -> bool:
        shape, size = self.path.variable.shape, self.path.variable.size
        x_t = torch.full(shape, self.path.alphabet - 1)
        return bool(torch.isfinite(self.path.rates(x_t, torch.full((*shape, size), 1 / size), t)).all())

    def log_step(self, x_r: Tensor, x_t: Tensor, prediction: Tensor, t: Time, r: Time) -> Tensor:
        """Returns log K(x_r | x_t) of `step`, shape [...]; the batches of x_r and x_t broadcast."""
        table = self.path.bridge(x_t, prediction, t, r)
        shape = torch.broadcast_shapes(table.shape[:-1], x_r.shape)
        chosen = table.expand(*shape, -1).gather(-1, x_r.expand(shape)[..., None])[..., 0]
        return self.path.sum_sites(torch.log(chosen))

    def loss(
        self, x_t: Tensor, t: Tensor, estimate: Tensor, output: Tensor, *, by: Loss = PLAIN, sites: Tensor | None = None
    ) -> Tensor:
        """Returns the loss of a network's logits against tables [..., *shape, n], [...].

        `sites` [..., *shape] are the weights of the sites; by default, sites that the path may still change have weight
        one. The weighted sum is divided by the number of sites.
        """
        path = self.path
        legal = path.variable.legal(output)
        if by.symbols == "squared":
            error = (estimate - self.link(output)).square().sum(-1)
        else:
            log_table = torch.log_softmax(output.masked_fill(~legal, -torch.inf), -1)
            error = -(estimate * log_table.masked_fill(~legal, 0.0)).sum(-1)
        weights = path.active(x_t) if sites is None else sites
        return path.sum_sites(error * weights) / path.variable.sites


def _hazard(path: Masked, x_t: Tensor, t: Time, r: Time) -> Tensor:
    """Returns hλ of a masked site."""
    start, end = path.times(t, r, x_t)
    return (end - start) * path.speed(x_t, t)


def _tau_leap_chance(path: Masked, x_t: Tensor, t: Time, r: Time) -> Tensor:
    return -torch.expm1(-_hazard(path, x_t, t, r))
