"""Networks behind one protocol: the paper's perceptrons, a lattice network, an equivariant network for particles."""

from egm.networks.base import Body, Denoiser, Scalar, predict
from egm.networks.egnn import EGNN
from egm.networks.lattice import LatticeConv
from egm.networks.locally_equivariant import LocallyEquivariantConv
from egm.networks.mlp import MLP, ResidualMLP
from egm.networks.precondition import Preconditioned
from egm.networks.registry import NETWORKS, RATE_NETWORKS, default_body
from egm.networks.site_mlp import SiteMLP
from egm.networks.symmetric import Symmetrised, symmetrise

__all__ = [
    "EGNN",
    "MLP",
    "NETWORKS",
    "RATE_NETWORKS",
    "Body",
    "Denoiser",
    "LatticeConv",
    "LocallyEquivariantConv",
    "Preconditioned",
    "ResidualMLP",
    "Scalar",
    "SiteMLP",
    "Symmetrised",
    "default_body",
    "predict",
    "symmetrise",
]
