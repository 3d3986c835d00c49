"""Targets: energies, with exact answers where they are known."""

from egm.targets.base import EnergyError, Target
from egm.targets.funnel import Funnel
from egm.targets.gbrbm import GBRBM
from egm.targets.gmm import GMM40
from egm.targets.ising import Ising
from egm.targets.joint_mog import JointMoG
from egm.targets.many_well import ManyWell
from egm.targets.mixture_posterior import GaussianMixturePosterior
from egm.targets.particles import DW4, LJ13, LJ55, JointDW4
from egm.targets.potts import Potts
from egm.targets.spike_slab import SpikeSlab
from egm.targets.spin_glass import SpinGlass

__all__ = [
    "DW4",
    "GBRBM",
    "GMM40",
    "LJ13",
    "LJ55",
    "EnergyError",
    "Funnel",
    "GaussianMixturePosterior",
    "Ising",
    "JointDW4",
    "JointMoG",
    "ManyWell",
    "Potts",
    "SpikeSlab",
    "SpinGlass",
    "Target",
]
