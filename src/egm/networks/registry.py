"""The bodies by name, and the one a space gets by default."""

from __future__ import annotations

from egm.networks.base import Body
from egm.networks.egnn import EGNN, is_particles
from egm.networks.lattice import LatticeConv
from egm.networks.mlp import MLP, ResidualMLP
from egm.spaces import Space

NETWORKS: dict[str, type[Body]] = {body.__name__: body for body in (MLP, ResidualMLP, LatticeConv, EGNN)}
SMALLEST_GRID = 4  # below, a 3 × 3 neighbourhood is the whole lattice


def default_body(space: Space) -> type[Body]:
    """EGNN for particles, LatticeConv for symbols on a 2-D grid, MLP for other symbols, ResidualMLP for the rest.

    >>> from egm.spaces import Categorical
    >>> default_body(Space(s=Categorical(2, shape=(5, 5)))).__name__
    'LatticeConv'
    """
    if is_particles(space):
        return EGNN
    if space.real:
        return ResidualMLP
    grids = {variable.shape for variable in space.categorical.values()}
    grid = next(iter(grids))
    return LatticeConv if len(grids) == 1 and len(grid) == 2 and min(grid) >= SMALLEST_GRID else MLP
