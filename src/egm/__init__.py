"""Energy-based generator matching: samplers for p(x) ∝ exp(−E(x)) on continuous, discrete and mixed spaces."""

from egm import adapters, mcmc, metrics, networks, paths, processes, recipes, targets
from egm.api import fit, load, resume
from egm.baselines.chain_sampler import ChainSampler
from egm.checking import check
from egm.draws import Draws
from egm.evaluation import evaluate
from egm.sampler import AnySampler, Sampler
from egm.simulation.smc import SMC
from egm.spaces import Categorical, Real, Space, State
from egm.targets import EnergyError, Target
from egm.util.version import VERSION

__all__ = [
    "SMC",
    "AnySampler",
    "Categorical",
    "ChainSampler",
    "Draws",
    "EnergyError",
    "Real",
    "Sampler",
    "Space",
    "State",
    "Target",
    "adapters",
    "check",
    "evaluate",
    "fit",
    "load",
    "mcmc",
    "metrics",
    "networks",
    "paths",
    "processes",
    "recipes",
    "resume",
    "targets",
]
__version__ = VERSION
