"""Laws with exact draws for the tests of Markov kernels, and the check that a kernel leaves its law invariant.

`assert_invariant` starts many independent chains from exact draws and takes a few steps. The change of every feature
must average to zero (chain by chain, so that correlation with the start sharpens the test), and its distribution must
be that of fresh exact draws.
"""

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from egm import Categorical, Real, Space, Target
from egm.mcmc import Kernel
from support.stats import assert_mean, assert_same_distribution

CHAINS = 20_000


def assert_invariant(
    kernel: Kernel, exact, features, *, steps: int = 3, inverse_temperature: Tensor | float = 1.0, seed: int = 0
) -> None:
    """`exact(n, seed)` draws latents, `features(latent)` gives [n, k]: both for one law that `kernel` must preserve."""
    start = exact(CHAINS, 1)
    before = {name: value.clone() for name, value in start.items()}
    latent, generator = start, torch.Generator().manual_seed(seed)
    for _ in range(steps):
        latent, acceptance = kernel.step(latent, generator=generator, inverse_temperature=inverse_temperature)
        assert (acceptance >= 0).all()
        assert (acceptance <= 1).all()
    assert all(torch.equal(start[name], before[name]) for name in start), "step changed its argument"
    f0, f1, fresh = (features(state).double() for state in (start, latent, exact(CHAINS, 2)))
    assert ((f1 - f0).abs().amax(0) > 0).all(), "the kernel does not move"
    assert_mean(f1 - f0, 0.0, "change of the mean")
    assert_mean(f1**2 - f0**2, 0.0, "change of the second moment")
    for column in range(f1.shape[1]):
        assert_same_distribution(f1[:, column], fresh[:, column])


def take(kernel: Kernel, latent: dict[str, Tensor], steps: int, *, b: float = 1.0, seed: int = 3) -> dict[str, Tensor]:
    source = generator(seed)
    for _ in range(steps):
        latent, _ = kernel.step(latent, generator=source, inverse_temperature=b)
    return latent


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------------- exact laws


class Table:
    """A categorical model with unequal symbol counts, one forbidden state and a second variable, by enumeration."""

    counts = (2, 3, 4)

    def __init__(self) -> None:
        self.table = 1.5 * torch.randn(2, 3, 4, 2, generator=generator(0), dtype=torch.float64)
        self.table[1, 2, 3, 0] = math.inf
        self.table[0, 1, :, :] = math.inf
        self.target = Target(Space(a=Categorical(self.counts), b=Categorical(2, shape=())), self.energy)
        self.states = torch.tensor(list(itertools.product(*map(range, (2, 3, 4, 2)))))

    def energy(self, a: Tensor, b: Tensor) -> Tensor:
        return self.table[a[..., 0], a[..., 1], a[..., 2], b].float()

    def probabilities(self, inverse_temperature: float = 1.0) -> Tensor:
        return torch.softmax(-inverse_temperature * self.table.flatten(), 0)

    def exact(self, n: int, seed: int, inverse_temperature: float = 1.0) -> dict[str, Tensor]:
        drawn = self.states[
            torch.multinomial(self.probabilities(inverse_temperature), n, True, generator=generator(seed))
        ]
        return {"a": drawn[:, :3], "b": drawn[:, 3]}

    def index(self, latent: dict[str, Tensor]) -> Tensor:
        a, b = latent["a"], latent["b"]
        return ((a[..., 0] * 3 + a[..., 1]) * 4 + a[..., 2]) * 2 + b

    def features(self, latent: dict[str, Tensor]) -> Tensor:
        return torch.cat([latent["a"], latent["b"][:, None]], 1)


class Banana:
    """X₀ in an asymmetric double well, x₁ | x₀ ~ N(x₀², ¼), with a location and scales; inversion by quadrature."""

    loc, scale = (0.5, 0.0), (0.7, 2.0)

    def __init__(self) -> None:
        self.target = Target(Space(x=Real(2, loc=self.loc, scale=self.scale)), self.energy)

    @staticmethod
    def well(x0: Tensor) -> Tensor:
        return 2 * (x0.square() - 1).square() + 0.5 * x0

    def energy(self, x: Tensor) -> Tensor:
        return self.well(x[..., 0]) + 2 * (x[..., 1] - x[..., 0].square()).square()

    def exact(self, n: int, seed: int, inverse_temperature: float = 1.0) -> dict[str, Tensor]:
        source = generator(seed)
        grid = torch.linspace(-4, 4, 40_001, dtype=torch.float64)
        cdf = torch.cumsum(torch.exp(-inverse_temperature * self.well(grid)), 0)
        u = torch.rand(n, generator=source, dtype=torch.float64)
        x0 = torch.from_numpy(np.interp(u.numpy(), (cdf / cdf[-1]).numpy(), grid.numpy()))
        x1 = x0**2 + torch.randn(n, generator=source, dtype=torch.float64) / math.sqrt(4 * inverse_temperature)
        return self.target.space.to_latent({"x": torch.stack([x0, x1], 1).float()})

    @staticmethod
    def features(latent: dict[str, Tensor]) -> Tensor:
        z = latent["x"]
        return torch.stack([z[:, 0], z[:, 1], z[:, 0] * z[:, 1]], 1)


class Mixture:
    """X | s ~ N(μ_s, σ_s²) with weight w_s, one real variable and one symbol."""

    mean, sd, log_weight = torch.tensor([-1.0, 2.0]), torch.tensor([0.5, 1.0]), torch.tensor([0.3, 0.7]).log()

    def __init__(self) -> None:
        self.target = Target(Space(x=Real(1, loc=0.5, scale=2.0), s=Categorical(2, shape=1)), self.energy)

    def energy(self, x: Tensor, s: Tensor) -> Tensor:
        square = ((x - self.mean[s]) / self.sd[s]).square()
        return (0.5 * square + self.sd[s].log() - self.log_weight[s]).sum(-1)

    def exact(self, n: int, seed: int) -> dict[str, Tensor]:
        source = generator(seed)
        s = torch.multinomial(self.log_weight.exp(), n, True, generator=source)[:, None]
        x = self.mean[s] + self.sd[s] * torch.randn(n, 1, generator=source)
        return self.target.space.to_latent({"x": x, "s": s})

    @staticmethod
    def features(latent: dict[str, Tensor]) -> Tensor:
        x, s = latent["x"], latent["s"]
        return torch.cat([x, s, x * s], 1)


class Lattice(Target):
    """Potts model −K Σ δ(s, s′) + Σ e(s) on the torus, 2·L² bonds, by enumeration of all q^(L²) states."""

    def __init__(self, size: int, coupling: float, site_energies: tuple[float, ...]) -> None:
        self.coupling, self.site_energies = coupling, site_energies
        super().__init__(Space(s=Categorical(len(site_energies), shape=(size, size))), self.lattice_energy)
        states = itertools.product(range(len(site_energies)), repeat=size * size)
        self.states = torch.tensor(list(states)).reshape(-1, size, size)

    def lattice_energy(self, s: Tensor) -> Tensor:
        equal = (s == s.roll(-1, -1)).sum((-1, -2)) + (s == s.roll(-1, -2)).sum((-1, -2))
        return -self.coupling * equal + torch.tensor(self.site_energies)[s].sum((-1, -2))

    def probabilities(self, inverse_temperature: float = 1.0) -> Tensor:
        return torch.softmax(-inverse_temperature * self.lattice_energy(self.states).double(), 0)

    def exact(self, n: int, seed: int, inverse_temperature: float = 1.0) -> dict[str, Tensor]:
        index = torch.multinomial(self.probabilities(inverse_temperature), n, True, generator=generator(seed))
        return {"s": self.states[index]}

    def features(self, latent: dict[str, Tensor]) -> Tensor:
        s = latent["s"]
        fractions = [(s == k).double().mean((-1, -2)) for k in range(len(self.site_energies))]
        return torch.stack([self.lattice_energy(s).double(), *fractions, s[..., 0, 0]], -1)

    def counts(self, latent: dict[str, Tensor]) -> Tensor:
        q = len(self.site_energies)
        digits = latent["s"].flatten(-2)
        index = (digits * q ** torch.arange(digits.shape[-1] - 1, -1, -1)).sum(-1)
        return torch.bincount(index, minlength=len(self.states))


def gamma(n: int, seed: int, shape: float, rate: float) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).gamma(shape, 1 / rate, n)).float()[:, None]
