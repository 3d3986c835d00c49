"""Discrete paths with a schedule κ, site by site. With ρ = κ_t/κ_r and N symbols at a site:

    Masked    p_{t|r} = ρ δ_{x_r} + (1−ρ) δ_M
              rate κ̇_t/(κ_r−κ_t) (δ_{x_r}(y) − δ_{x_t}(y))
              proposal: a revealed site stays, Z = ρ; a masked site has weight 1−ρ for each symbol and 1 for M,
              Z = 1 + N(1−ρ); at r = 1, where no site is masked, uniform symbols, Z = N(1−κ_t)
    Uniform   p_{t|r} = ρ δ_{x_r} + (1−ρ)/N,   proposal: the same kernel, Z = 1
              rate by time reversal, y ≠ x:  κ̇_t/(N κ_t) · p_{t|r}(y | x_r) / p_{t|r}(x | x_r)

Rates and bridges are linear in the law of the end point, so both take a *table* of probabilities over symbols: one-hot
for a known end point, p(x_1 | x_t) (the denoiser) for the marginal.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from egm.paths.base import Draw, Path, Proposal, Time
from egm.paths.schedules import Polynomial, Schedule
from egm.spaces.variables import Categorical
from egm.util.triton import attempt

COUNTING_KERNELS = "egm.paths.counting_kernels"
PROPOSAL_KERNELS = "egm.paths.proposal_kernels"
REVEAL_KERNELS = "egm.paths.reveal_kernels"
MOST_SYMBOLS = 16  # largest number of symbols for the Triton kernels


class DiscretePath(Path[Categorical]):
    """A path of symbols with a schedule κ."""

    def __init__(self, variable: Categorical, *, schedule: Schedule | None = None) -> None:
        if not isinstance(variable, Categorical):
            raise TypeError(
                f"{type(self).__name__} acts on Categorical variables, got {variable!r}; use CondOT, VE or VP"
            )
        self.variable = variable
        self.schedule: Schedule = schedule or Polynomial()

    def kappa(self, t: Tensor) -> Tensor:
        """κ_t."""
        return self.schedule(t)

    @property
    @abstractmethod
    def alphabet(self) -> int:
        """Number of symbols that x_t may hold: n, plus one if the path has a mask."""

    @abstractmethod
    def active(self, x_t: Tensor) -> Tensor:
        """Returns which sites may still change before t = 1, bool of x_t's shape."""

    @abstractmethod
    def rates(self, x_t: Tensor, table: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        """Returns the rates of jumps from x_t to each data symbol y, [..., *shape, n], zero at y = x_t.

        `table` [..., *shape, ≥ n] holds the probabilities of x_r given x_t; entries past the data symbols are ignored.
        """

    @abstractmethod
    def bridge(self, x_t: Tensor, table: Tensor, t: Time, r: Time) -> Tensor:
        """Σ_z table(z) p_{r|1,t}(x_r | z, x_t) for every symbol x_r: [..., *shape, alphabet], summing to one."""

    def average(self, x_r: Tensor, weights: Tensor) -> Tensor:
        """Σ_k w_k δ(x_r^k = y), the table [..., *shape, alphabet] of end points [K, ..., *shape], weights [K, ...]."""
        fitting = not weights.requires_grad and weights.shape == self.batch_shape(x_r)
        if x_r.is_cuda and fitting and self.alphabet <= MOST_SYMBOLS:
            flat, own = x_r.reshape(len(x_r), -1, self.variable.sites), weights.reshape(len(x_r), -1)
            table = attempt(COUNTING_KERNELS, x_r, lambda kernels: kernels.count(flat, own, self.alphabet))
            if table is not None:
                return table.reshape(*x_r.shape[1:], self.alphabet)
        weights = weights.reshape((*weights.shape, *(1,) * len(self.variable.shape)))
        # One symbol at a time: a one-hot tensor of all end points would be `alphabet` times as large.
        return torch.stack([(weights * (x_r == y)).sum(0) for y in range(self.alphabet)], -1)

    def one_hot(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Returns the table of a known end point, [..., *shape, alphabet]."""
        # torch's one_hot checks the values, for which the host would wait on a GPU
        symbols = torch.arange(self.alphabet, device=x.device)
        return (x[..., None] == symbols).to(dtype or torch.get_default_dtype())

    def keep(self, t: Tensor, r: Tensor) -> Tensor:
        """ρ = κ_t/κ_r, the probability that a site keeps its symbol going back from r to t."""
        return self.kappa(t) / self.kappa(r)

    def lose(self, t: Tensor, r: Tensor) -> Tensor:
        """1 − ρ = (κ_r − κ_t)/κ_r, which does not cancel as t → r."""
        kappa_r = self.kappa(r)
        return (kappa_r - self.kappa(t)) / kappa_r

    def sum_sites(self, values: Tensor) -> Tensor:
        """Sums over the axes of one value, leaving [...]."""
        return values.flatten(values.ndim - len(self.variable.shape)).sum(-1) if self.variable.shape else values

    def occurrences(self, x: Tensor, symbol: int) -> Tensor:
        """Returns the number of sites at which x holds a symbol, [...]."""
        if x.is_cuda and x.dtype == torch.uint8:
            flat = x.reshape(-1, self.variable.sites)
            found = attempt(COUNTING_KERNELS, x, lambda kernels: kernels.occurrences(flat, symbol))
            if found is not None:
                return found.reshape(self.batch_shape(x))
        return self.sum_sites(x == symbol).long()

    def _renewed(
        self, x: Tensor, stay: Tensor | None, count: int, generator: torch.Generator | None, *, only: int | None = None
    ) -> Tensor:
        """Returns `count` copies of x with uniform symbols at all sites, or at sites that hold the symbol `only`.

        With the probability `stay`, which broadcasts against x, a site keeps its symbol.
        """
        batch = self.batch_shape(x)
        if x.is_cuda and x.dtype == torch.uint8 and isinstance(n := self.variable.n, int):
            flat = x.reshape(-1, self.variable.sites)
            each = None if stay is None else stay.reshape(self.batch_shape(stay)).expand(batch).reshape(-1)
            key = torch.randint(2**62, (1,), generator=generator, device=x.device)
            found = attempt(PROPOSAL_KERNELS, x, lambda kernels: kernels.renewed(flat, each, n, count, key, only))
            if found is not None:
                return found.reshape(count, *x.shape)
        symbols = self._uniform((count, *batch), x, generator)
        if stay is not None:
            u = torch.rand(symbols.shape, generator=generator, device=x.device, dtype=stay.dtype)
            symbols = torch.where(u < stay, x, symbols)
        return symbols if only is None else torch.where(x == only, symbols, x)

    def _uniform(self, batch: Sequence[int], x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draws uniform symbols in the dtype of x."""
        return self.variable.uniform(batch, generator=generator, device=x.device, dtype=x.dtype)


class Masked(DiscretePath):
    """Symbols hidden behind a mask symbol M, revealed once."""

    singular_at_start = False
    reveals = True

    @property
    def alphabet(self) -> int:
        return self.variable.size + 1

    def sample(self, x_r: Tensor, t: Time, r: Time = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
        rho = self.keep(*self.times(t, r, x_r))
        u = torch.rand(x_r.shape, generator=generator, device=x_r.device, dtype=rho.dtype)
        return torch.where(u < rho, x_r, self.variable.mask)

    def log_prob(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        times, mask = self.times(t, r, x_t), self.variable.mask
        same = torch.where(x_r == mask, 0.0, torch.log(self.keep(*times)))
        changed = torch.where(x_t == mask, torch.log(self.lose(*times)), -torch.inf)
        return self.sum_sites(torch.where(x_t == x_r, same, changed))

    def proposer(self, x_t: Tensor, t: Time, r: Time = 1.0, *, law: Proposal = "flat") -> Draw:
        """Masked sites become uniform or stay masked (reference law: with probability (1 − κ_r)/(1 − κ_t))."""
        if law == "flat":
            mask_weight, total = self._proposal_weights(x_t, t, r)
            hidden = mask_weight / total
        else:
            kappa_t, kappa_r = map(self.kappa, self.times(t, r, x_t))
            hidden = (1 - kappa_r) / (1 - kappa_t)
        stay = None if not isinstance(r, Tensor) and r == 1 else hidden  # at r = 1 no site stays masked
        return lambda count, generator: self._renewed(x_t, stay, count, generator, only=self.variable.mask)

    def log_normaliser(self, x_t: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        rho = self.keep(*self.times(t, r, x_t))
        _, total = self._proposal_weights(x_t, t, r)
        return self.sum_sites(torch.where(x_t == self.variable.mask, torch.log(total), torch.log(rho)))

    def _proposal_weights(self, x_t: Tensor, t: Time, r: Time) -> tuple[Tensor, Tensor]:
        """Returns the weight of M and the total weight at a masked site; at r = 1 the weight of M is zero."""
        t, r = self.times(t, r, x_t)
        mask_weight = (r < 1).to(r.dtype)
        return mask_weight, mask_weight + self.variable.counts(x_t) * self.lose(t, r)

    def active(self, x_t: Tensor) -> Tensor:
        return x_t == self.variable.mask

    def speed(self, x_t: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        """The rate κ̇_t/(κ_r − κ_t) at which a masked site is revealed; broadcasts against x_t."""
        ts, rs = self.times(t, r, x_t)
        return self.schedule.derivative(ts) / (self.kappa(rs) - self.kappa(ts))

    def chance(self, x_t: Tensor, t: Time, r: Time) -> Tensor:
        """The probability (κ_r − κ_t)/(1 − κ_t) that a masked site is revealed by time r; broadcasts against x_t."""
        kappa_t, kappa_r = map(self.kappa, self.times(t, r, x_t))
        return (kappa_r - kappa_t) / (1 - kappa_t)

    def rates(self, x_t: Tensor, table: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        speed = self.speed(x_t, t, r)
        return (speed * (x_t == self.variable.mask))[..., None] * table[..., : self.variable.size]

    def revealed(self, x_t: Tensor, table: Tensor, p: Tensor, generator: torch.Generator | None) -> Tensor | None:
        """Reveals masked sites with probability p, as symbols of their tables, by a Triton kernel; None without one.

        A table sums to one. p broadcasts against x_t and is the same at all sites of a state; p ≥ 1 reveals all sites.
        """
        n, p = self.variable.size, p.float()
        table = table[..., :n]
        fitting = x_t.shape == table.shape[:-1] and table.dtype == torch.float32
        if not fitting or n > MOST_SYMBOLS or x_t.numel() >= 2**31:
            return None
        if p.numel() > 1:
            p = p.reshape(self.batch_shape(p)).expand(self.batch_shape(x_t))
        flat, each = x_t.reshape(-1, self.variable.sites), p.reshape(-1)
        weights, key = table.reshape(*flat.shape, n), torch.randint(2**62, (1,), generator=generator, device=x_t.device)
        mask = self.variable.mask
        found = attempt(REVEAL_KERNELS, x_t, lambda kernels: kernels.revealed(flat, weights, each, mask, key))
        return None if found is None else found.reshape(x_t.shape)

    def bridge(self, x_t: Tensor, table: Tensor, t: Time, r: Time) -> Tensor:
        reveal = self.chance(x_t, t, r)[..., None]
        symbols = reveal * table[..., : self.variable.size]
        # 1 − reveal, not 1 − the sum of symbols: a table that sums to 1 − 1e-7 must not leave a mask at r = 1
        masked = torch.cat([symbols, (1 - reveal).expand(*symbols.shape[:-1], 1)], dim=-1)
        return torch.where((x_t == self.variable.mask)[..., None], masked, self.one_hot(x_t, table.dtype))

    def denoised(self, x_t: Tensor, average: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        """(1−κ_t)/(κ_r−κ_t) times the average; under self-normalised sampling it need not sum to one."""
        kappa_t, kappa_r = map(self.kappa, self.times(t, r, x_t))
        scaled = ((1 - kappa_t) / (kappa_r - kappa_t))[..., None] * average
        revealed = (x_t != self.variable.mask)[..., None]
        return torch.where(revealed, self.one_hot(x_t, average.dtype), scaled)[..., : self.variable.size]

    def prior_log_prob(self, x_t: Tensor, t: Time = 0.0) -> Tensor:
        kappa = self.kappa(self.over_batch(t, x_t))
        masked = self.occurrences(x_t, self.variable.mask).to(kappa.dtype)
        states = torch.special.xlog1py(masked, -kappa) + torch.xlogy(self.variable.sites - masked, kappa)
        if isinstance(counts := self.variable.counts(x_t), int):
            return states - (self.variable.sites - masked) * math.log(counts)
        hidden = x_t == self.variable.mask
        return states - self.sum_sites(torch.where(hidden, 0.0, torch.log(counts.to(kappa.dtype))))


class Uniform(DiscretePath):
    """Symbols replaced by uniform ones."""

    @property
    def alphabet(self) -> int:
        return self.variable.size

    def sample(self, x_r: Tensor, t: Time, r: Time = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
        return self._renewed(x_r, self.keep(*self.times(t, r, x_r)), 1, generator).squeeze(0)

    def log_prob(self, x_t: Tensor, x_r: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        times = self.times(t, r, x_t)
        elsewhere = self.lose(*times) / self.variable.counts(x_t)
        return self.sum_sites(torch.log(torch.where(x_t == x_r, self.keep(*times) + elsewhere, elsewhere)))

    def proposer(self, x_t: Tensor, t: Time, r: Time = 1.0, *, law: Proposal = "flat") -> Draw:
        """The kernel is symmetric and the reference law is uniform, so both proposals are the noising of x_t."""
        rho = self.keep(*self.times(t, r, x_t))
        return lambda count, generator: self._renewed(x_t, rho, count, generator)

    def log_normaliser(self, x_t: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        time = self.over_batch(t, x_t)
        return time.new_zeros(torch.broadcast_shapes(time.shape, self.batch_shape(x_t)))

    def _kernel(self, x_t: Tensor, rho: Tensor, dtype: torch.dtype) -> Tensor:
        """p_{t|r}(x_t | z) for every symbol z, [..., *shape, n] (also for symbols that are illegal at the site)."""
        elsewhere = ((1 - rho) / self.variable.counts(x_t))[..., None]
        return rho[..., None] * self.one_hot(x_t, dtype) + elsewhere

    def _mixture(self, v: Tensor, rho: Tensor) -> Tensor:
        """Σ_z v(z) (ρ δ_z(y) + (1−ρ)/N) for every symbol y that is legal at its site."""
        spread = ((1 - rho) / self.variable.counts(v))[..., None] * v.sum(-1, keepdim=True)
        return (rho[..., None] * v + spread) * self.variable.legal(v)

    def active(self, x_t: Tensor) -> Tensor:
        return torch.ones_like(x_t, dtype=torch.bool)

    def rates(self, x_t: Tensor, table: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        ts, rs = self.times(t, r, x_t)
        rho = self.keep(ts, rs)
        v = table / self._kernel(x_t, rho, table.dtype)
        speed = self.schedule.derivative(ts) / (self.variable.counts(x_t) * self.kappa(ts))
        return speed[..., None] * self._mixture(v, rho) * (1 - self.one_hot(x_t, table.dtype))

    def bridge(self, x_t: Tensor, table: Tensor, t: Time, r: Time) -> Tensor:
        ts, rs = self.times(t, r, x_t)
        w = table / self._kernel(x_t, self.kappa(ts), table.dtype)
        return self._kernel(x_t, self.keep(ts, rs), table.dtype) * self._mixture(w, self.kappa(rs))

    def denoised(self, x_t: Tensor, average: Tensor, t: Time, r: Time = 1.0) -> Tensor:
        """Undoes the mixing between r and 1; under self-normalised sampling entries may be negative."""
        ts, rs = self.times(t, r, x_t)
        kappa_r = self.kappa(rs)[..., None]
        v = average / self._kernel(x_t, self.keep(ts, rs), average.dtype)
        spread = (1 - kappa_r) / torch.as_tensor(self.variable.counts(x_t), device=x_t.device)[..., None]
        inverse = (v - spread * v.sum(-1, keepdim=True)) / kappa_r
        return self._kernel(x_t, self.kappa(ts), average.dtype) * inverse * self.variable.legal(x_t)

    def prior_log_prob(self, x_t: Tensor, t: Time = 0.0) -> Tensor:
        return self.over_batch(t, x_t).new_full(self.batch_shape(x_t), -self.variable.log_volume)
