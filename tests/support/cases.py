"""Every path and process the mathematical tests run over: a new one is covered by adding a line here."""

import itertools

import torch

from egm.paths import VE, VP, CondOT, Cosine, DiscretePath, Foellmer, GaussianPath, Masked, Polynomial, Uniform
from egm.processes import Diffusion, Flow, Superposition
from egm.spaces.variables import Categorical, Real

REALS = {
    "scalar": Real(()),
    "1d": Real(1),
    "2d": Real(2),
    "centred-line": Real((3, 1), centered=True),
    "centred-plane": Real((2, 2), centered=True),
}
GAUSSIAN = {
    "condot": CondOT,
    "ve": VE,
    "ve-wide": lambda v: VE(v, sigma_min=0.1, sigma_max=10.0),
    "vp": VP,
}
#: with the path of a Brownian motion, which begins in a point: no density at t = 0
GAUSSIAN_AND_POINT = {**GAUSSIAN, "foellmer": Foellmer}

SYMBOLS = {
    "one-site": Categorical(3, shape=()),
    "two-sites": Categorical(2, shape=2),
    "unequal": Categorical([2, 3]),
}
DISCRETE = {
    "masked": Masked,
    "masked-cosine": lambda v: Masked(v, schedule=Cosine()),
    "uniform": Uniform,
    "uniform-square": lambda v: Uniform(v, schedule=Polynomial(2.0)),
}

#: processes with drift and diffusion alone, which are defined for every t < r
SMOOTH_PROCESSES = {
    "flow": Flow,
    "diffusion": Diffusion,
    "superposition": lambda path: Superposition([(0.3, Flow(path)), (0.7, Diffusion(path))]),
}

#: those whose steps are Gaussian bridges towards the denoised point
BRIDGING_PROCESSES = {"diffusion": Diffusion}

TIMES = [(0.02, 0.9), (0.15, 1.0), (0.3, 0.55), (0.6, 0.61), (0.9, 1.0)]


def pairs(paths: dict, variables: dict) -> list:
    """pytest parameters: every path on every variable."""
    import pytest

    return [
        pytest.param(make(variable), id=f"{name}-{kind}")
        for (name, make), (kind, variable) in itertools.product(paths.items(), variables.items())
    ]


def basis(variable: Real) -> torch.Tensor:
    """Orthonormal basis of the variable's degrees of freedom, [size, dimension]."""
    size = torch.Size(variable.latent_shape).numel()
    projector = variable.project(torch.eye(size, dtype=torch.float64).reshape(size, *variable.latent_shape))
    vectors, values, _ = torch.linalg.svd(projector.reshape(size, size))
    kept = vectors[:, values > 0.5]
    assert kept.shape[1] == variable.dimension
    return kept


def embed(variable: Real, coordinates: torch.Tensor) -> torch.Tensor:
    """Coordinates [..., dimension] in that basis as values [..., *latent_shape]."""
    return (coordinates @ basis(variable).T).reshape((*coordinates.shape[:-1], *variable.latent_shape))


def gauss_hermite(variable: Real, order: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes [m, *latent_shape] and weights [m] with Σ w f(node) = E f(ε), ε standard on the degrees of freedom."""
    import numpy as np

    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    weights = weights / weights.sum()
    grid = torch.tensor(list(itertools.product(nodes, repeat=variable.dimension)), dtype=torch.float64)
    products = torch.tensor(list(itertools.product(weights, repeat=variable.dimension)), dtype=torch.float64).prod(-1)
    return embed(variable, grid), products


def random_value(path: GaussianPath, seed: int) -> torch.Tensor:
    """A fixed value of moderate size."""
    return path.variable.noise((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def states(path: DiscretePath, *, running: bool) -> torch.Tensor:
    """All values of a discrete variable, [m, *shape]; with `running`, those that a path may hold before t = 1."""
    counts = torch.as_tensor(path.variable.n).expand(path.variable.shape).flatten().tolist()
    extra = [path.variable.mask] if running and path.alphabet > path.variable.size else []
    rows = list(itertools.product(*[[*range(n), *extra] for n in counts]))
    return torch.tensor(rows).reshape(len(rows), *path.variable.shape)
