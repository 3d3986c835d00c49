"""Single-site Gibbs sampling of categorical variables.

Sites are visited in a fixed order, and each is redrawn from its exact conditional

    p_b(x^i = k | rest) ∝ exp(−b·E(x with x^i = k)),    k = 0 .. n_i − 1.

The energies of all n_i symbols come from one call, which evaluates only local terms if the target defines them. Sites
that are independent given all others according to the target (one colour of a lattice) are redrawn together, which is
equivalent to redrawing them one after the other. A step may redraw a few random sites instead of a scan. The Jacobian
of real variables does not depend on symbols and cancels, so E replaces the latent energy U.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from egm.mcmc.base import Kernel, SupportsEnergy, draw_symbols
from egm.spaces import State
from egm.util.cached_tensors import cached_tensor


class Gibbs(Kernel):
    """Gibbs sampling: one systematic scan over every site, with Σ_i n_i energy calls per chain.

    Args:
        target: the distribution.
        names: categorical variables to update, by default all.
        sites: number of random sites to redraw (the same ones in all chains) instead of a scan over all sites.
    """

    def __init__(self, target: SupportsEnergy, *, names: Sequence[str] | None = None, sites: int | None = None) -> None:
        categorical = target.space.categorical
        self.names = tuple(categorical if names is None else names)
        if not categorical or not self.names:
            raise ValueError(f"Gibbs needs a categorical variable, and finds none among {list(target.space)}; use HMC")
        if unknown := set(self.names) - set(categorical):
            raise ValueError(f"names holds {sorted(unknown)}, but the categorical variables are {list(categorical)}")
        if sites is not None and sites < 1:
            raise ValueError(f"sites must be at least 1, got {sites}")
        self.target, self.sites = target, sites
        self._every = [(name, (site,)) for name in self.names for site in range(categorical[name].sites)]
        self.reset()

    def __repr__(self) -> str:
        few = "" if self.sites is None else f", sites={self.sites}"
        return f"Gibbs(names={list(self.names)}{few})"

    def reset(self) -> None:
        self._order: random.Random | None = None

    def _groups(self, generator: torch.Generator) -> list[tuple[str, tuple[int, ...]]]:
        """Returns the groups of sites that are redrawn together, in order."""
        if self.sites is None:
            return [(name, sites) for name in self.names for sites in self.target.independent_sites(name)]
        if self._order is None:  # random sites are chosen on the host, so that steps do not wait for the device
            self._order = random.Random(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
        return self._order.choices(self._every, k=self.sites)

    def step(
        self, latent: State, *, generator: torch.Generator, inverse_temperature: Tensor | float = 1.0
    ) -> tuple[State, Tensor]:
        space = self.target.space
        batch, device = space.batch_shape(latent, latent=True), next(iter(latent.values())).device
        b = inverse_temperature[..., None] if isinstance(inverse_temperature, Tensor) else inverse_temperature
        state = space.from_latent(latent)
        symbols: dict[str, Tensor] = {}
        for name in self.names:
            state[name] = latent[name].clone(memory_format=torch.contiguous_format)
            symbols[name] = state[name].view(*batch, -1)  # the same memory, site by site
        for name, sites in self._groups(generator):
            energies = self.target.conditional_energies(state, name, sites)
            energies = torch.where(torch.isnan(energies), math.inf, energies)
            drawn = draw_symbols(energies * b, generator=generator)
            # A site at which every symbol has zero density keeps its symbol until another site frees it.
            stuck = (energies == math.inf).all(0)
            at = slice(sites[0], sites[0] + 1) if len(sites) == 1 else cached_tensor(sites, torch.int64, device)
            symbols[name][..., at] = torch.where(stuck, symbols[name][..., at], drawn)
        acceptance = torch.ones(batch, device=device)
        return {**latent, **{name: state[name] for name in self.names}}, acceptance
