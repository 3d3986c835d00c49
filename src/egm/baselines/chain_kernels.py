"""Kernels of the methods that run Markov chains. One step of a chain is

    gibbs           a scan that redraws every site i from p(x^i | rest), then a MALA step of the reals, if there are any
    mala            a MALA step of the reals
    swendsen-wang   a cluster update of a ferromagnetic Ising or Potts lattice
    tempering       the step of `gibbs` (or `mala` where there are no symbols) at each inverse temperature
                    b_r = hottest^(r/(R−1)), r = 0 … R−1, then exchanges between neighbours; only replica 0 is kept

A system of d degrees of freedom has energies around d/(2b) ± √(d/2)/b: the exchange rate of neighbours depends only on
√d·log(b_r/b_{r+1}), so the ratios are equal and the number R of temperatures grows like √d.

The paper runs Gibbs as 4 chains of 6000 steps without burn-in, and judges 2000 of the 24 000 states, picked uniformly;
these are the defaults. The paper does not define a step, or how reals move. We take a scan as a step, as is usual, and
move reals by MALA, whose step size adapts to an acceptance of .574 in a warm-up of 500 steps: its states are discarded,
its calls are counted. An untuned step size would make the baseline unfairly weak.
"""

from __future__ import annotations

import math

from egm.baselines.chain_options import ChainOptions, GibbsOptions, TemperingOptions
from egm.mcmc import MALA, Alternate, Gibbs, Kernel, ParallelTempering, SwendsenWang
from egm.spaces import Space
from egm.targets.base import Target


def gibbs(target: Target, options: GibbsOptions) -> Kernel:
    """Returns the kernel of `gibbs`; raises if there are no symbols."""
    if not target.space.categorical:
        reals = list(target.space.real)
        raise ValueError(f"gibbs redraws symbols, and {target!r} has only the reals {reals}; use mala")
    return single_sites(target, options)


def mala(target: Target, options: ChainOptions) -> Kernel:
    """Returns the kernel of `mala`; raises if there are symbols."""
    del options
    if symbols := list(target.space.categorical):
        raise ValueError(f"mala moves reals alone, and {target!r} has the symbols {symbols}; use gibbs for both")
    return MALA(target)


def swendsen_wang(target: Target, options: ChainOptions) -> Kernel:
    """Returns the kernel of `swendsen-wang`; raises if there is no ferromagnetic lattice."""
    del options
    return SwendsenWang(target)


def tempering(target: Target, options: TemperingOptions) -> Kernel:
    """Returns the kernel of `tempering`."""
    replicas = options.replicas or default_replicas(target.space)
    betas = ladder(replicas, options.hottest)
    return ParallelTempering(single_sites(target, options), inverse_temperatures=betas)


def single_sites(target: Target, options: GibbsOptions) -> Kernel:
    """Returns Gibbs for symbols, MALA for reals, or both in turns."""
    symbols, reals = list(target.space.categorical), list(target.space.real)
    if options.redraw is not None and not symbols:
        raise ValueError(f"redraw counts sites of symbols, and {target!r} has only the reals {reals}; leave it out")
    kernels = [*([Gibbs(target, sites=options.redraw)] if symbols else []), *([MALA(target)] if reals else [])]
    return kernels[0] if len(kernels) == 1 else Alternate(kernels)


def ladder(replicas: int, hottest: float) -> list[float]:
    """Returns inverse temperatures from 1 to `hottest` in equal ratios.

    >>> ladder(3, 0.25)
    [1.0, 0.5, 0.25]
    """
    return [hottest ** (r / (replicas - 1)) for r in range(replicas)]


def default_replicas(space: Space) -> int:
    """Returns R = 2 + √d, rounded up."""
    sites, reals = (variable.sites for variable in space.categorical.values()), space.real.values()
    return 2 + math.ceil(math.sqrt(sum(sites) + sum(variable.dimension for variable in reals)))
