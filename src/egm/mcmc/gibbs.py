"""Single-site Gibbs sampling of categorical variables.

Sites are visited in a fixed order, and each is redrawn from its exact conditional

    p_b(x^i = k | rest) ∝ exp(−b·E(x with x^i = k)),    k = 0 .. n_i − 1,

with the energies of all n_i symbols from one call, which looks at local terms alone where the target knows them. Sites
that the target knows to be independent given all others (the same colour of a lattice) are redrawn together, which is
the same as one after the other. The Jacobian of real variables does not depend on symbols and cancels, so E may stand
for the latent energy U.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from egm.declarations import cached_tensor
from egm.mcmc.base import Kernel, SupportsEnergy, draw_symbols
from egm.spaces import State


class Gibbs(Kernel):
    """One systematic scan over every site; Σ_i n_i energy calls a chain.

    Args:
        target: the distribution.
        names: categorical variables to update; all of them if left out.
    """

    def __init__(self, target: SupportsEnergy, *, names: Sequence[str] | None = None) -> None:
        categorical = target.space.categorical
        self.names = tuple(categorical if names is None else names)
        if not categorical or not self.names:
            raise ValueError(f"Gibbs needs a categorical variable, and finds none among {list(target.space)}; use HMC")
        if unknown := set(self.names) - set(categorical):
            raise ValueError(f"names holds {sorted(unknown)}, but the categorical variables are {list(categorical)}")
        self.target = target

    def __repr__(self) -> str:
        return f"Gibbs(names={list(self.names)})"

    def step(
        self, latent: State, *, generator: torch.Generator, inverse_temperature: Tensor | float = 1.0
    ) -> tuple[State, Tensor]:
        space = self.target.space
        batch, device = space.batch_shape(latent, latent=True), next(iter(latent.values())).device
        b = inverse_temperature[..., None] if isinstance(inverse_temperature, Tensor) else inverse_temperature
        state = space.from_latent(latent)
        for name in self.names:
            state[name] = latent[name].clone(memory_format=torch.contiguous_format)
            symbols = state[name].view(*batch, -1)  # the same memory, site by site
            for sites in self.target.independent_sites(name):
                energies = self.target.conditional_energies(state, name, sites)
                energies = torch.where(torch.isnan(energies), math.inf, energies)
                drawn = draw_symbols(energies * b, generator=generator)
                # A chain that starts where every symbol has zero density stays until another site frees it.
                stuck = (energies == math.inf).all(0)
                alone = len(sites) == 1
                at = slice(sites[0], sites[0] + 1) if alone else cached_tensor(sites, torch.int64, device)
                symbols[..., at] = torch.where(stuck, symbols[..., at], drawn)
        acceptance = torch.ones(batch, device=device)
        return {**latent, **{name: state[name] for name in self.names}}, acceptance
