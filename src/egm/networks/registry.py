"""The bodies by name, and the default body of a space."""

from __future__ import annotations

import math

from egm.networks.base import Body, is_particles
from egm.networks.egnn import EGNN
from egm.networks.lattice import LatticeConv
from egm.networks.locally_equivariant import LocallyEquivariantConv
from egm.networks.mlp import MLP, ResidualMLP
from egm.networks.site_mlp import SiteMLP
from egm.spaces import Space

NETWORKS: dict[str, type[Body]] = {body.__name__: body for body in (MLP, ResidualMLP, SiteMLP, LatticeConv, EGNN)}
#: networks of jump rates (LEAPS), which take no masks and return no scalars
RATE_NETWORKS: dict[str, type[Body]] = {LocallyEquivariantConv.__name__: LocallyEquivariantConv}
SMALLEST_GRID = 4  # on smaller grids, a 3 × 3 neighbourhood is the whole lattice
MANY_SITES = 12  # coordinates and symbols, from which on a network of single sites pays


def default_body(space: Space) -> type[Body]:
    """Returns EGNN for particles, LatticeConv for symbols on a 2-D grid, MLP for other symbols; with real variables,
    SiteMLP for many sites and ResidualMLP for few.

    >>> from egm.spaces import Categorical
    >>> default_body(Space(s=Categorical(2, shape=(5, 5)))).__name__
    'LatticeConv'
    """
    if is_particles(space):
        return EGNN
    if space.real:
        sites = sum(math.prod(variable.latent_shape) for variable in space.variables.values())
        return SiteMLP if sites >= MANY_SITES else ResidualMLP
    grids = {variable.shape for variable in space.categorical.values()}
    grid = next(iter(grids))
    return LatticeConv if len(grids) == 1 and len(grid) == 2 and min(grid) >= SMALLEST_GRID else MLP
