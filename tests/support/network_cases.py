"""Every body on spaces it serves, with states that hold masks: a new body is covered by adding a line here."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from egm.networks import EGNN, MLP, Body, LatticeConv, ResidualMLP, SiteMLP
from egm.paths import ProductPath
from egm.spaces import Categorical, Real, Space, State
from egm.util.cached_tensors import cached_tensor

MIXED = Space(v=Real(2), h=Categorical(2, shape=3))
ODD = Space(values=Real(()), type=Categorical([2, 3]), w=Real((2, 3), constraint="simplex"), c=Categorical(4, shape=()))
SYMBOLS = Space(s=Categorical(3, shape=(2, 3)))
GRID = Space(s=Categorical(2, shape=(4, 5)))
GRIDS = Space(s=Categorical(3, shape=(2, 2)), y=Real((2, 2)))
PARTICLES = Space(x=Real((4, 2), centered=True))
TYPED = Space(x=Real((3, 3), centered=True), types=Categorical(2, shape=3), spin=Categorical(3, shape=3))

#: body, space, small options
BODIES: dict[str, tuple[type[Body], Space, dict[str, int]]] = {
    "mlp": (MLP, SYMBOLS, {"width": 16, "depth": 2}),
    "mlp-mixed": (MLP, MIXED, {"width": 16, "depth": 3}),
    "mlp-one-layer": (MLP, ODD, {"width": 16, "depth": 1}),
    "residual": (ResidualMLP, MIXED, {"width": 16, "depth": 2}),
    "residual-odd": (ResidualMLP, ODD, {"width": 16, "depth": 2, "frequencies": 3}),
    "residual-symbols": (ResidualMLP, SYMBOLS, {"width": 16, "depth": 1}),
    "sites": (SiteMLP, MIXED, {"width": 16, "depth": 1, "site_width": 8, "site_depth": 2, "frequencies": 0}),
    "sites-odd": (SiteMLP, ODD, {"width": 8, "depth": 1, "site_width": 8, "site_depth": 1, "frequencies": 2}),
    "sites-shared": (SiteMLP, GRIDS, {"width": 8, "depth": 1, "site_width": 8, "site_depth": 1, "frequencies": 1}),
    "sites-symbols": (SiteMLP, SYMBOLS, {"width": 8, "depth": 1, "site_width": 8}),
    "lattice": (LatticeConv, GRID, {"width": 8, "depth": 2}),
    "lattice-wide": (LatticeConv, GRID, {"width": 8, "depth": 1, "kernel": 5}),
    "lattice-tiny": (LatticeConv, GRIDS, {"width": 8, "depth": 2}),
    "egnn": (EGNN, PARTICLES, {"width": 16, "depth": 2}),
    "egnn-typed": (EGNN, TYPED, {"width": 16, "depth": 2}),
}
BINS = 7
M = TypeVar("M", bound=nn.Module)


def denoiser_outputs(space: Space) -> dict[str, tuple[int, ...]]:
    """Means and logits of every variable."""
    return {
        name: (*v.shape, v.size) if isinstance(v, Categorical) else v.latent_shape
        for name, v in space.variables.items()
    }


def build(case: str, outputs: Mapping[str, tuple[int, ...]] | None = None) -> Body:
    """A body in float64 with every parameter random, by default with a denoiser's outputs and an energy."""
    body, space, options = BODIES[case]
    torch.manual_seed(0)
    outputs = {**denoiser_outputs(space), "energy": ()} if outputs is None else outputs
    return randomise(body(space, outputs, **options).double())


def randomise(module: M, seed: int = 0) -> M:
    """Every parameter random, also those of zero-initialised heads, at a scale that keeps signals of size one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            scale = 1 / math.sqrt(p[0].numel()) if p.ndim > 1 else 0.5
            p.copy_(scale * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return module


def draw(space: Space, batch: tuple[int, ...], seed: int = 1) -> State:
    """Latent states half-way along the path, so that symbols are partly masked."""
    generator = torch.Generator().manual_seed(seed)
    return ProductPath(space).prior_sample(batch, 0.5, generator=generator, dtype=torch.float64)


@contextmanager
def fake_tensors() -> Iterator[FakeTensorMode]:
    """Tensors without values, so that looking at one raises; constants cached meanwhile are forgotten."""
    cached_tensor.cache_clear()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            yield mode
    finally:
        cached_tensor.cache_clear()
