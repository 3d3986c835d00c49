"""Particles that interact in pairs, with their centre of mass at the origin.

A state x is [..., n, dim] with Σ_i x_i = 0, and d_ij = ‖x_i − x_j‖:

    DW4:        E = Σ_{i<j} 0.9 (d − 4)⁴ − 4 (d − 4)²                                  4 particles in the plane
    JointDW4:   E = ½ Σ_{i<j} b (d − 2)² + c (d − 2)⁴,  b and c by the pair's types    4 particles in the plane
    LJ:         E = 2 Σ_{i<j} (d⁻¹² − 2d⁻⁶) + ½ Σ_i ‖x_i‖²                             13 or 55 particles in space

log Z refers to orthonormal coordinates of the (n−1)·dim dimensional subspace. In relative coordinates y_i = x_i − x_1
it is n^{−dim/2} ∫ exp(−E) dy, which for four particles in the plane reduces to one radial integral of two-dimensional
convolutions; the constants below were computed that way, and the tests repeat the computation.

The scale of x follows from the pair distances of low energy: Σ_i ‖x_i‖² = (1/n) Σ_{i<j} d², so if d² is D² on average,
every degree of freedom has the variance D²/(2·dim).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

import torch
from torch import Tensor

from egm.mcmc import HMC, Alternate, Gibbs, ParallelTempering
from egm.mcmc.reference import ReferencePlan
from egm.spaces import Categorical, Real, Space, State
from egm.targets.base import Target
from egm.targets.support import Constants

SYMMETRIES = ("rotation", "reflection", "permutation")


@final
class DW4(Target):
    """Variable x: Real((4, 2), centered=True); pairs sit at distances 4 ± √(4/1.8).

    >>> DW4().energy(x=torch.zeros(4, 2)).item()  # six pairs at distance zero
    998.4000...
    """

    reference_kind = "mcmc"
    symmetries = SYMMETRIES

    def __init__(self) -> None:
        scale = math.sqrt((4.0**2 + 4 / 1.8) / 4)
        super().__init__(Space(x=Real((4, 2), scale=scale, centered=True)), self._pair_energy, name="DW4()")

    def _pair_energy(self, x: Tensor) -> Tensor:
        square = (pair_distances(x) - 4).square()
        return (square * (0.9 * square - 4)).sum(-1)

    def _log_z(self) -> float:
        return 29.667232

    def _reference_plan(self) -> ReferencePlan:
        # The wide jitter frees chains that start where the potential is steep; the ladder crosses the barrier at d = 4.
        kernel = ParallelTempering(HMC(self, leapfrog_steps=8, jitter=0.8), inverse_temperatures=(1.0, 0.55, 0.3, 0.15))
        return ReferencePlan(kernel, chains=512, warmup=200, steps=300, thin=5)

    def chain_start(
        self, chains: int, *, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype
    ) -> State:
        """Returns squares with a little noise: the diagonals are near a well, the sides on the barrier, which is flat.

        Some draws of the reference law lie where the potential is so steep that a step size adapted to the other chains
        never moves them.
        """
        square = 2.0 * torch.tensor([[1, 1], [1, -1], [-1, -1], [-1, 1]], device=device, dtype=dtype)
        x = square + 0.1 * torch.randn(chains, 4, 2, generator=generator, device=device, dtype=dtype)
        return {"x": x - x.mean(-2, keepdim=True)}

    def observables(self, **state: Tensor) -> dict[str, Tensor]:
        """Returns ascending pair `distances` [..., 6] and `radius` of gyration [...]."""
        return _shape_observables(state["x"])


@final
class JointDW4(Target):
    """Variables x: Real((4, 2), centered=True) and types: Categorical(2, 4); symbols 0, 1 are the paper's types 1, 2.

    >>> JointDW4().energy(x=torch.zeros(4, 2), types=torch.zeros(4, dtype=torch.int64)).item()
    2.40000...
    """

    reference_kind = "mcmc"
    symmetries = SYMMETRIES

    def __init__(self) -> None:
        # Coefficients by the number of particles of the second type in the pair: 0, 1, 2.
        coefficients = torch.tensor([[-3.0, -2.5, -2.8], [0.8, 0.4, 0.6]], dtype=torch.float64)
        self._constants = Constants(b=coefficients[0], c=coefficients[1])
        # The wells are at (d − 2)² = −b/2c; the two types are equally likely a priori.
        well = (3.0 / 1.6 + 2 * (2.5 / 0.8) + 2.8 / 1.2) / 4
        scale = math.sqrt((2.0**2 + well) / 4)
        space = Space(x=Real((4, 2), scale=scale, centered=True), types=Categorical(2, 4))
        super().__init__(space, self._pair_energy, name="JointDW4()")

    def _pair_energy(self, x: Tensor, types: Tensor) -> Tensor:
        c = self._constants.like(x)
        first, second = _pairs(4, types.device)
        kind = types[..., first] + types[..., second]
        square = (pair_distances(x) - 2).square()
        return 0.5 * (square * (c.b[kind] + c.c[kind] * square)).sum(-1)

    def _log_z(self) -> float:
        return 18.821185

    def _reference_plan(self) -> ReferencePlan:
        kernel = Alternate([Gibbs(self), HMC(self, leapfrog_steps=8, jitter=0.8)])
        return ReferencePlan(kernel, chains=512, warmup=200, steps=300, thin=5)

    def observables(self, **state: Tensor) -> dict[str, Tensor]:
        """Returns ascending pair `distances` [..., 6], `radius` of gyration [...] and `type_counts` [..., 2]."""
        second = state["types"].sum(-1).to(torch.get_default_dtype())
        return {**_shape_observables(state["x"]), "type_counts": torch.stack([4 - second, second], -1)}


class _LennardJones(Target):
    """n Lennard-Jones particles of well depth 2 at distance 1, in a harmonic trap.

    The scale follows from a ball of close-packed spheres at distance 1, in which a particle takes the volume 1/√2: the
    ball has the radius R = (3n/(4π√2))^{1/3} and the variance R²/5 along each axis.
    """

    reference_kind = "mcmc"
    symmetries = SYMMETRIES

    def __init__(self, particles: int) -> None:
        radius = (3 * particles / (4 * math.pi * math.sqrt(2))) ** (1 / 3)
        space = Space(x=Real((particles, 3), scale=radius / math.sqrt(5), centered=True))
        super().__init__(space, self._pair_energy, name=f"{type(self).__name__}()")

    def _pair_energy(self, x: Tensor) -> Tensor:
        square = _square_distances(x)
        # At smaller distances the gradient, with intermediate terms d⁻¹⁴, would overflow: the density is zero there.
        core = torch.finfo(x.dtype).max ** (-1 / 8)
        inside = square <= core
        attraction = square.masked_fill(inside, 1.0) ** -3
        pairs = (2 * attraction * (attraction - 2)).masked_fill(inside, torch.inf)
        centred = x - x.mean(-2, keepdim=True)
        return pairs.sum(-1) + 0.5 * centred.square().sum((-1, -2))

    def lattice_start(self, chains: int, *, seed: int = 0) -> State:
        """Returns initial states of chains: the n sites of a cubic lattice nearest to its centre, with a little noise.

        Particles overlap in draws of the reference law, with forces so steep that no common step size moves every
        chain.
        """
        n, dim = self.space["x"].shape
        axis = torch.arange(-3.0, 4.0)
        sites = torch.cartesian_prod(*[axis] * dim)
        nearest = 1.1 * sites[sites.square().sum(-1).argsort(stable=True)[:n]]
        x = nearest + 0.05 * torch.randn(chains, n, dim, generator=torch.Generator().manual_seed(seed))
        return {"x": x - x.mean(-2, keepdim=True)}

    def chain_start(
        self, chains: int, *, generator: torch.Generator, device: torch.device | str, dtype: torch.dtype
    ) -> State:
        """Returns states of `lattice_start`."""
        seed = int(torch.randint(2**31, (), generator=generator, device=device))
        return {name: x.to(device, dtype) for name, x in self.lattice_start(chains, seed=seed).items()}

    def observables(self, **state: Tensor) -> dict[str, Tensor]:
        """Returns ascending pair `distances` [..., n(n−1)/2] and `radius` of gyration [...]."""
        return _shape_observables(state["x"])


@final
class LJ13(_LennardJones):
    """Variable x: Real((13, 3), centered=True); log Z is not known."""

    def __init__(self) -> None:
        super().__init__(13)

    def _reference_plan(self) -> ReferencePlan:
        # At this temperature the cluster is liquid, so no tempering is needed.
        kernel = HMC(self, leapfrog_steps=20)
        return ReferencePlan(kernel, chains=256, warmup=300, steps=400, thin=5, init=self.lattice_start(256))


@final
class LJ55(_LennardJones):
    """Variable x: Real((55, 3), centered=True); log Z is not known. Making its reference needs a GPU."""

    def __init__(self) -> None:
        super().__init__(55)

    def _reference_plan(self) -> ReferencePlan:
        kernel = HMC(self, leapfrog_steps=20)
        return ReferencePlan(
            kernel, chains=256, warmup=500, steps=200, thin=10, init=self.lattice_start(256), gpu_only=True
        )


def pair_distances(x: Tensor) -> Tensor:
    """d_ij for i < j, row by row: [..., n(n−1)/2] of x [..., n, dim]. The gradient at d = 0 is taken as zero.

    >>> pair_distances(torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])).tolist()
    [3.0, 4.0, 5.0]
    """
    square = _square_distances(x)
    zero = square == 0
    return square.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0)


def _square_distances(x: Tensor) -> Tensor:
    return _differences(x).square().sum(-2)


def _differences(x: Tensor) -> Tensor:
    """x_i − x_j for i < j, [..., dim, pairs]: axes swapped, which halves the time of the gradient on a CPU."""
    first, second = _pairs(x.shape[-2], x.device)
    columns = x.transpose(-1, -2)
    return columns.index_select(-1, first) - columns.index_select(-1, second)


@lru_cache(maxsize=32)
def _pairs(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    first, second = torch.triu_indices(n, n, 1, device=device)
    return first, second


def _shape_observables(x: Tensor) -> dict[str, Tensor]:
    radius = (x - x.mean(-2, keepdim=True)).square().sum(-1).mean(-1).sqrt()
    return {"distances": pair_distances(x).sort(-1).values, "radius": radius}
