"""Energy-based generator matching: samplers for p(x) ∝ exp(−E(x)) on continuous, discrete and mixed spaces."""

from egm import mcmc, metrics, paths, processes, targets
from egm.spaces import Categorical, Real, Space, State
from egm.targets import EnergyError, Target

__all__ = [
    "Categorical",
    "EnergyError",
    "Real",
    "Space",
    "State",
    "Target",
    "mcmc",
    "metrics",
    "paths",
    "processes",
    "targets",
]
__version__ = "0.1.0"
