"""Markov chain Monte Carlo: kernels, runs of many chains, diagnostics, and cached reference draws."""

from egm.mcmc.base import Alternate, Kernel, SupportsEnergy
from egm.mcmc.diagnostics import diagnose, effective_sample_size, r_hat
from egm.mcmc.gibbs import Gibbs
from egm.mcmc.hmc import HMC, MALA
from egm.mcmc.reference import (
    ConvergenceError,
    Reference,
    ReferencePlan,
    load_or_make,
    make_reference,
    summary,
)
from egm.mcmc.run import Chains, run
from egm.mcmc.swendsen_wang import SwendsenWang
from egm.mcmc.tempering import ParallelTempering

__all__ = [
    "HMC",
    "MALA",
    "Alternate",
    "Chains",
    "ConvergenceError",
    "Gibbs",
    "Kernel",
    "ParallelTempering",
    "Reference",
    "ReferencePlan",
    "SupportsEnergy",
    "SwendsenWang",
    "diagnose",
    "effective_sample_size",
    "load_or_make",
    "make_reference",
    "r_hat",
    "run",
    "summary",
]
