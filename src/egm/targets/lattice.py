"""Base class of the lattice models: L × L sites on a torus, symbols 0 .. q−1, variable s of shape [..., L, L].

    E(s) = Σ_rc [ pair(s_rc, s_r,c+1) + pair(s_rc, s_r+1,c) + e(s_rc) ]      (indices modulo L)

Every site owns the bond to its right and the bond below, 2L² bonds in all (at L = 2 two neighbours share two bonds).
The *partial* energy of a masked state keeps the terms whose sites are all revealed.

Exact answers come from the transfer matrix if a row has few enough states, and from a product over sites if all
couplings vanish; larger lattices are sampled by a Markov chain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from egm.mcmc.gibbs import Gibbs
from egm.mcmc.reference import ReferencePlan
from egm.mcmc.swendsen_wang import SwendsenWang
from egm.mcmc.tempering import ParallelTempering
from egm.spaces import Categorical, Space, State
from egm.targets.base import Target
from egm.targets.support import Constants, finite
from egm.targets.transfer_matrix import TransferMatrix, fits
from egm.util.triton import attempt

KERNELS = "egm.targets.bond_kernels"
LARGEST = 127  # largest size L for the Triton kernel


class LatticeTarget(Target):
    """Abstract base of the lattice models; their `__init__` computes its arguments.

    Args:
        size: number L of rows and columns.
        states: number q of symbols.
        site_energies: e, one number for each symbol.
        spread: largest range of the vertical energies of one row; zero means that no site is coupled to another.
        name: printed name of the target.
    """

    narrow_symbols = True

    def __init__(self, size: int, states: int, *, site_energies: Sequence[float], spread: float, name: str) -> None:
        super().__init__(Space(s=Categorical(states, shape=(size, size))), self._full_energy, name=name)
        self.size = size
        self.states = states
        self._site_energies = tuple(float(e) for e in site_energies)
        self._coupled = spread > 0
        self._known_terms: dict[tuple[int, ...], Constants] = {}
        self._fits = fits(states=states, size=size, spread=spread)
        self.reference_kind = "exact" if self._fits or not self._coupled else "mcmc"

    # ------------------------------------------------------------------ hooks

    def _full_energy(self, s: Tensor) -> Tensor:
        raise NotImplementedError

    def _pair_tables(self) -> tuple[Tensor, Tensor]:
        """Returns the energies of the bonds to the right and of the bonds below, float64 [L, L, q, q] each."""
        raise NotImplementedError

    # ------------------------------------------------------------------ single sites

    def independent_sites(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Returns the sites of each colour of the lattice."""
        del name  # there is only one variable
        return self._colours

    @cached_property
    def _colours(self) -> tuple[tuple[int, ...], ...]:
        """Sites by colour, such that neighbours differ: two colours if L is even, three if L is odd.

        The colour is f(r) + f(c) modulo the number of colours, with f = 0, 1, 0, 1, … along a line; on an odd ring the
        last f is 2, so that f differs between neighbours.
        """
        values = 2 + self.size % 2
        line = [2 if self.size % 2 and i == self.size - 1 else i % 2 for i in range(self.size)]
        colour = [(line[r] + line[c]) % values for r in range(self.size) for c in range(self.size)]
        return tuple(tuple(site for site, own in enumerate(colour) if own == value) for value in range(values))

    def _conditional_energies(self, state: State, name: str, sites: tuple[int, ...], n: int) -> Tensor:
        """Evaluates the four bonds and the site energy of each site, a small part of the lattice."""
        s = state[name]
        terms = self._terms_at(sites).like(s)
        symbols = s.flatten(-2)[..., terms.neighbours].long()  # [..., 4, k]
        energies = terms.bonds[terms.direction, terms.position, symbols].sum(-3) + terms.site  # [..., k, q]
        return energies.movedim(-1, 0)

    def _terms_at(self, sites: tuple[int, ...]) -> Constants:
        """Returns energies of the four bonds of k sites by the neighbour's and the site's symbol, [4, k, q, q]."""
        if sites not in self._known_terms:
            neighbours, bonds = self._bonds
            self._known_terms[sites] = Constants(
                neighbours=neighbours[:, list(sites)],
                bonds=bonds[:, list(sites)],
                site=self._site_energies,
                direction=torch.arange(4)[:, None],
                position=torch.arange(len(sites)),
            )
        return self._known_terms[sites]

    @cached_property
    def _bonds(self) -> tuple[Tensor, Tensor]:
        """Neighbours to the right, to the left, below and above each site [4, L²], and the energies of those bonds."""
        right, below = self._pair_tables()
        site = torch.arange(self.size**2).reshape(self.size, self.size)
        neighbours = torch.stack([site.roll(-1, 1), site.roll(1, 1), site.roll(-1, 0), site.roll(1, 0)])
        bonds = torch.stack([right.mT, right.roll(1, 1), below.mT, below.roll(1, 0)])
        return neighbours.flatten(1), bonds.flatten(1, 2)

    # ------------------------------------------------------------------ exact answers

    @cached_property
    def transfer_matrix(self) -> TransferMatrix:
        """Exact answers for a lattice whose rows have few states; raises `ValueError` if they have too many."""
        site = torch.tensor(self._site_energies, dtype=torch.float64).expand(self.size, self.size, self.states)
        return TransferMatrix(*self._pair_tables(), site)

    def _log_z(self) -> float | None:
        if not self._coupled:
            return self.size**2 * float(torch.logsumexp(-torch.tensor(self._site_energies, dtype=torch.float64), 0))
        return self.transfer_matrix.log_z if self._fits else None

    def _exact_sample(self, n: int, seed: int) -> State:
        generator = torch.Generator().manual_seed(seed)
        if not self._coupled:
            weights = torch.softmax(-torch.tensor(self._site_energies, dtype=torch.float64), 0)
            u = torch.rand(n, self.size, self.size, generator=generator, dtype=torch.float64)
            return {"s": torch.bucketize(u, weights.cumsum(0)[:-1], right=True)}
        if self._fits:
            return {"s": self.transfer_matrix.sample(n, generator=generator)}
        return super()._exact_sample(n, seed)

    # ------------------------------------------------------------------ Markov chains for larger lattices

    def _cluster_plan(self) -> ReferencePlan:
        """Returns a Swendsen–Wang plan; its autocorrelation time is about ten steps at criticality, less elsewhere."""
        return ReferencePlan(SwendsenWang(self), chains=100, warmup=300, steps=200, thin=10)

    def _tempering_plan(self, coupling: float) -> ReferencePlan:
        """Returns a plan of Gibbs scans at temperatures from the target's to one with weak couplings.

        The energy in units of the coupling has a standard deviation of about L near its most disordered point, so
        steps of 1/L in the coupling let neighbouring replicas exchange often enough at any size.
        """
        hottest = min(0.5, 0.2 / coupling)
        replicas = 2 + math.ceil(self.size * coupling * (1 - hottest))
        ladder = torch.linspace(1.0, hottest, replicas, dtype=torch.float64).tolist()
        kernel = ParallelTempering(Gibbs(self), inverse_temperatures=ladder)
        return ReferencePlan(kernel, chains=50, warmup=500, steps=400, thin=10)


def right(s: Tensor) -> Tensor:
    """Returns the neighbour to the right of every site, shape of s."""
    return s.roll(-1, -1)


def below(s: Tensor) -> Tensor:
    """Returns the neighbour below every site, shape of s."""
    return s.roll(-1, -2)


def counted_bonds(s: Tensor, mask: int | None) -> tuple[Tensor, Tensor | int] | None:
    """Returns how many bonds between revealed sites join equal symbols, and how many there are; None without a kernel.

    `mask` is the symbol of masked sites, None if all sites are revealed. The kernel is a Triton kernel.
    """
    if not s.is_cuda or s.dtype != torch.uint8 or s.shape[-1] > LARGEST:
        return None
    found = attempt(KERNELS, s, lambda kernels: kernels.bonds(s.reshape(-1, *s.shape[-2:]), mask))
    if found is None:
        return None
    equal, known = found
    return equal.reshape(s.shape[:-2]), known if mask is None else known.reshape(s.shape[:-2])


def to_spins(s: Tensor) -> Tensor:
    """Returns spins −1, +1 of the symbols 0, 1, in the default dtype."""
    return 2 * s.to(torch.get_default_dtype()) - 1


def revealed_spins(s: Tensor) -> Tensor:
    """Returns spins −1, +1 of the symbols 0, 1 as int8, and 0 for the mask symbol 2, so that its products vanish."""
    return (2 * s.to(torch.int8) - 1) * (s != 2)


def inverse_temperature(beta: float, *, hint: str) -> float:
    """Returns beta as a float; raises if it is negative (`hint` says what to do instead) or not finite."""
    if finite("beta", beta) < 0:
        raise ValueError(f"beta is an inverse temperature and must be >= 0, got {beta}; {hint}")
    return float(beta)
