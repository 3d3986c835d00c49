"""Single-site Gibbs sampling of categorical variables.

Sites are visited in order, and each is redrawn from its exact conditional

    p_b(x^i = k | rest) ∝ exp(−b·E(x with x^i = k)),    k = 0 .. n_i − 1,

with the energies of all n_i symbols from one call, which looks at local terms alone where the target knows them. The
Jacobian of real variables does not depend on symbols and cancels, so E may stand for the latent energy U.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

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
        batch = space.batch_shape(latent, latent=True)
        state = space.from_latent(latent)
        for name in self.names:
            state[name] = latent[name].clone(memory_format=torch.contiguous_format)
            symbols = state[name].view(*batch, -1)  # the same memory, site by site
            for site in range(symbols.shape[-1]):
                energies = self.target.conditional_energies(state, name, site)
                energies = torch.where(torch.isnan(energies), math.inf, energies)
                drawn = draw_symbols(energies * inverse_temperature, generator=generator)
                # A chain that starts where every symbol has zero density stays until another site frees it.
                stuck = (energies == math.inf).all(0)
                symbols[..., site] = torch.where(stuck, symbols[..., site], drawn)
        acceptance = torch.ones(batch, device=next(iter(latent.values())).device)
        return {**latent, **{name: state[name] for name in self.names}}, acceptance
