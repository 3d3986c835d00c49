"""Paths from prior to target: backward kernels, proposals and their normalisers."""

from egm.paths.base import Path, Time
from egm.paths.discrete import DiscretePath, Masked, Uniform
from egm.paths.gaussian import VE, VP, CondOT, Foellmer, GaussianPath
from egm.paths.product import ProductPath
from egm.paths.schedules import Cosine, Polynomial, Schedule

__all__ = [
    "VE",
    "VP",
    "CondOT",
    "Cosine",
    "DiscretePath",
    "Foellmer",
    "GaussianPath",
    "Masked",
    "Path",
    "Polynomial",
    "ProductPath",
    "Schedule",
    "Time",
    "Uniform",
]
