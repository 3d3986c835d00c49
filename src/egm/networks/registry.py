"""The bodies by name, and the one a space gets by default."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping

from egm.networks.base import Body
from egm.networks.egnn import EGNN, is_particles
from egm.networks.lattice import LatticeConv
from egm.networks.mlp import MLP, ResidualMLP
from egm.spaces import Space

NETWORKS: dict[str, type[Body]] = {
    "mlp": MLP,
    "residual-mlp": ResidualMLP,
    "lattice-conv": LatticeConv,
    "egnn": EGNN,
}
SMALLEST_GRID = 4  # below, a 3 × 3 neighbourhood is the whole lattice


def find_network(name: str) -> type[Body]:
    """The body of that name.

    >>> find_network("egnn")
    <class 'egm.networks.egnn.EGNN'>
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown network '{name}'{_nearest(name, NETWORKS)}; there are {', '.join(NETWORKS)}")
    return NETWORKS[name]


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


def default_network(space: Space, outputs: Mapping[str, tuple[int, ...]], **options: int) -> Body:
    """The default body for a space, with the options of that body."""
    body = default_body(space)
    known = [p.name for p in inspect.signature(body).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise ValueError(
                f"{body.__name__} has no option '{name}'{_nearest(name, known)}; it has {', '.join(known)}"
            )
    return body(space, outputs, **options)


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean '{close[0]}'?" if close else ""
