"""Kernels leave their target invariant, at every temperature; they move; broken ones are caught.

`assert_invariant` starts many independent chains from exact draws and takes a few steps. The change of every feature
must average to zero (chain by chain, so that correlation with the start sharpens the test), and its distribution must
be that of fresh exact draws.
"""

import itertools
import math
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from egm import Categorical, Real, Space, Target
from egm.mcmc import HMC, MALA, Alternate, Gibbs, Kernel, ParallelTempering, SwendsenWang, run
from stats import assert_counts, assert_mean, assert_same_distribution

CHAINS = 20_000


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors here are small: threads that wait for each other cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


ISING = {"no field": Lattice(3, 0.6, (0.0, 0.0)), "field": Lattice(3, 0.6, (0.15, -0.05))}
POTTS = Lattice(2, 0.5, (0.0, 0.3, -0.2))


def take(kernel: Kernel, latent: dict[str, Tensor], steps: int, *, b: float = 1.0, seed: int = 3) -> dict[str, Tensor]:
    source = generator(seed)
    for _ in range(steps):
        latent, _ = kernel.step(latent, generator=source, inverse_temperature=b)
    return latent


# ---------------------------------------------------------------------- Gibbs


@pytest.mark.parametrize("b", [1.0, 0.5])
def test_gibbs_is_invariant(b):
    model = Table()
    kernel = Gibbs(model.target)
    assert_invariant(kernel, lambda n, s: model.exact(n, s, b), model.features, inverse_temperature=b)
    counts = torch.bincount(model.index(take(kernel, model.exact(CHAINS, 5, b), 2, b=b)), minlength=48)
    assert_counts(counts, model.probabilities(b))


def test_gibbs_moves_to_the_target_from_one_state():
    model = Table()
    start = {"a": torch.zeros(CHAINS, 3, dtype=torch.int64), "b": torch.zeros(CHAINS, dtype=torch.int64)}
    counts = torch.bincount(model.index(take(Gibbs(model.target), start, 60)), minlength=48)
    assert_counts(counts, model.probabilities())


def test_gibbs_redraws_only_the_named_variables_and_counts_its_calls():
    model = Table()
    start = model.exact(50, 1)
    after = take(Gibbs(model.target, names=["b"]), start, 1)
    assert torch.equal(after["a"], start["a"])
    assert model.target.energy_calls == 50 * 2
    take(Gibbs(model.target), start, 1)
    assert model.target.energy_calls == 50 * 2 + 50 * (2 + 3 + 4 + 2)


def test_gibbs_redraws_among_the_legal_symbols():
    table = torch.tensor([0.0, math.inf, 0.5])
    target = Target(Space(s=Categorical(3, shape=1)), lambda s: table[s].sum(-1))
    after = take(Gibbs(target), {"s": torch.zeros(CHAINS, 1, dtype=torch.int64)}, 1)
    assert_counts(torch.bincount(after["s"][:, 0], minlength=3), torch.softmax(-table, 0).double())


def test_gibbs_leaves_a_state_without_legal_neighbours_where_it_is():
    target = Target(Space(s=Categorical(2, shape=2)), lambda s: torch.full(s.shape[:-1], math.inf))
    start = {"s": torch.tensor([[0, 1], [1, 0]])}
    assert torch.equal(take(Gibbs(target), start, 2)["s"], start["s"])


class GibbsWithOtherConditional(Gibbs):
    """Draws from the conditional at another temperature: everything right but a factor."""

    def step(self, latent, *, generator, inverse_temperature=1.0):
        return super().step(latent, generator=generator, inverse_temperature=1.1 * inverse_temperature)


def test_a_wrong_conditional_is_caught():
    model = Table()
    with pytest.raises(AssertionError):
        assert_invariant(GibbsWithOtherConditional(model.target), model.exact, model.features)


# ---------------------------------------------------------------------- MALA and HMC


class LangevinWithoutRejection(MALA):
    """Unadjusted Langevin: every proposal is taken."""

    def step(self, latent, *, generator, inverse_temperature=1.0):
        energy, gradient = self.target.latent_energy_and_gradient(latent)
        epsilon, new = self.initial_step_size, dict(latent)
        for name, variable in self.target.space.real.items():
            noise = variable.noise(energy.shape, generator=generator)
            new[name] = latent[name] - 0.5 * epsilon**2 * inverse_temperature * gradient[name] + epsilon * noise
        return new, torch.ones_like(energy)


@pytest.mark.parametrize("b", [1.0, 0.5])
@pytest.mark.parametrize(
    "make",
    [
        lambda target: MALA(target, step_size=0.45),
        lambda target: HMC(target, step_size=0.35, leapfrog_steps=4),
        lambda target: HMC(target, step_size=0.35, leapfrog_steps=3, jitter=0.0),
    ],
    ids=["mala", "hmc", "hmc without jitter"],
)
def test_hmc_is_invariant_on_a_double_well(make, b):
    model = Banana()
    kernel = make(model.target)
    _, acceptance = kernel.step(model.exact(CHAINS, 9, b), generator=generator(4), inverse_temperature=b)
    assert 0.3 < float(acceptance.mean()) < 0.95  # a correction that never acts would prove nothing
    assert_invariant(kernel, lambda n, s: model.exact(n, s, b), model.features, inverse_temperature=b)


@pytest.mark.parametrize(("epsilon", "steps"), [(0.2, 10), (0.3, 3), (0.45, 3)])
def test_langevin_without_rejection_is_caught(epsilon, steps):
    model = Banana()
    kernel = LangevinWithoutRejection(model.target, step_size=epsilon)
    with pytest.raises(AssertionError):
        assert_invariant(kernel, model.exact, model.features, steps=steps)


class HMCWithoutKineticEnergy(HMC):
    """Accepts on the change of the potential energy alone."""

    def step(self, latent, *, generator, inverse_temperature=1.0):
        energy, _ = self.target.latent_energy_and_gradient(latent)
        forced = HMC(self.target, step_size=self.initial_step_size, leapfrog_steps=self.leapfrog_steps)
        moved, _ = forced.step(latent, generator=generator, inverse_temperature=inverse_temperature)
        ratio = (energy - self.target.latent_energy(moved)).clamp(max=0).exp()
        keep = torch.rand(ratio.shape, generator=generator) < ratio
        return {n: torch.where(keep[:, None], moved[n], latent[n]) for n in latent}, ratio


def test_a_wrong_acceptance_is_caught():
    model = Banana()
    kernel = HMCWithoutKineticEnergy(model.target, step_size=0.3, leapfrog_steps=3)
    with pytest.raises(AssertionError):
        assert_invariant(kernel, model.exact, model.features)


def gamma(n: int, seed: int, shape: float, rate: float) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).gamma(shape, 1 / rate, n)).float()[:, None]


@pytest.mark.parametrize("b", [1.0, 0.5])
@pytest.mark.parametrize("kind", [MALA, HMC])
def test_positive_variable_is_tempered_with_its_jacobian(kind, b):
    """Gamma(3, 1) is exp(3y − e^y) in y = log x; tempered it is exp(3by − b e^y): Gamma(3b, b)."""
    space = Space(x=Real(1, constraint="positive", loc=0.4, scale=0.8))
    target = Target(space, lambda x: (x - 2 * x.log()).sum(-1))

    def exact(n, seed):
        return space.to_latent({"x": gamma(n, seed, 3 * b, b)})

    assert_invariant(kind(target, step_size=0.9), exact, lambda z: z["x"], inverse_temperature=b)


def test_tempering_without_the_jacobian_is_another_law():
    space = Space(x=Real(1, constraint="positive"))
    target = Target(space, lambda x: (x - 2 * x.log()).sum(-1))

    def only_the_energy_tempered(n, seed):  # p(x)^b = Gamma(2b + 1, b)
        return space.to_latent({"x": gamma(n, seed, 2.0, 0.5)})

    with pytest.raises(AssertionError):
        assert_invariant(
            MALA(target, step_size=0.9), only_the_energy_tempered, lambda z: z["x"], inverse_temperature=0.5
        )


@pytest.mark.parametrize("kind", [MALA, HMC])
def test_simplex_variable(kind):
    alpha = torch.tensor([2.0, 3.0, 4.0])
    space = Space(x=Real(3, constraint="simplex"))
    target = Target(space, lambda x: -((alpha - 1) * x.log()).sum(-1))

    def exact(n, seed):
        drawn = np.random.default_rng(seed).dirichlet(alpha.numpy(), n)
        return space.to_latent({"x": torch.from_numpy(drawn).float()})

    assert_invariant(kind(target, step_size=0.6), exact, lambda z: z["x"])


@pytest.mark.parametrize("kind", [MALA, HMC])
def test_centred_particles(kind):
    """½ Σ_{i<j} ‖x_i − x_j‖² = (n/2) Σ ‖x_i‖² for centred particles: variance 1/n in (n−1)·dim directions."""
    variable = Real((3, 2), centered=True, scale=0.5)
    space = Space(x=variable)

    def energy(x):
        return 0.25 * (x[..., :, None, :] - x[..., None, :, :]).square().sum((-1, -2, -3))

    def exact(n, seed):
        return space.to_latent({"x": variable.noise((n,), generator=generator(seed)) / math.sqrt(3)})

    def features(latent):
        x = space.from_latent(latent)["x"]
        return torch.cat([x.flatten(1), energy(x)[:, None]], 1)

    kernel = kind(Target(space, energy), step_size=0.9)
    assert_invariant(kernel, exact, features)
    moved = take(kernel, exact(5000, 7), 40)["x"]
    assert float(moved.mean(1).abs().max()) < 1e-6
    assert_mean(energy(variable.from_latent(moved)), 2.0, "half a unit of energy for each of 4 degrees of freedom")


@pytest.mark.parametrize("kind", [MALA, HMC])
def test_infinite_energies_are_rejected(kind):
    """An exponential law behind a hard wall at zero, without a bijection: the wall's gradient is of no use."""
    target = Target(Space(x=Real(1)), lambda x: torch.where(x < 0, math.inf, x).sum(-1))

    def exact(n, seed):
        return {"x": gamma(n, seed, 1.0, 1.0)}

    assert_invariant(kind(target, step_size=0.5), exact, lambda z: z["x"])


@pytest.mark.parametrize("kind", [MALA, HMC])
def test_nan_energies_are_rejected(kind):
    target = Target(Space(x=Real(1)), lambda x: (x - 2 * x.log()).sum(-1))  # log of a negative number
    assert_invariant(kind(target, step_size=0.5), lambda n, s: {"x": gamma(n, s, 3.0, 1.0)}, lambda z: z["x"])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "wanted"), [(MALA, 0.574), (HMC, 0.8)])
@pytest.mark.parametrize("step_size", [1e-3, 50.0])
def test_warm_up_finds_the_step_size_and_the_mean(kind, wanted, step_size):
    """From one far point and a useless step size to the right acceptance, moments and law."""
    space = Space(x=Real(5, loc=1.0, scale=3.0))
    sd = torch.tensor([0.5, 1.0, 2.0, 4.0, 6.0])
    target = Target(space, lambda x: 0.5 * ((x - 2) / sd).square().sum(-1))
    init = {"x": torch.full((1000, 5), 20.0)}
    kernel = kind(target, step_size=step_size)
    chains = run(target, kernel, chains=1000, warmup=500, steps=1, init=init)
    again = run(target, kernel, chains=1000, warmup=500, steps=1, init=init)
    assert torch.equal(chains.state["x"], again.state["x"])  # nothing adapted leaks into the next run
    assert abs(chains.acceptance - wanted) < 0.05
    x = chains.state["x"][-1]
    assert_mean(x, 2.0)
    assert_mean((x - 2).square(), sd.square().numpy())


def test_frozen_kernel_keeps_its_step_size_and_rows_have_their_own():
    model = Banana()
    kernel = MALA(model.target, step_size=0.3)
    latent = {"x": model.exact(4, 0)["x"].expand(3, 4, 2)}
    b = torch.tensor([[1.0], [0.5], [0.1]])
    _, acceptance = kernel.step(latent, generator=generator(0), inverse_temperature=b)
    assert kernel.step_size is not None
    assert kernel.step_size.shape == (3, 1)
    assert kernel.step_size.flatten().tolist() == pytest.approx([0.3] * 3)
    kernel.adapt(torch.tensor([[0.0] * 4, [0.574] * 4, [1.0] * 4]))
    assert acceptance.shape == (3, 4)
    assert kernel.step_size.flatten().tolist() == pytest.approx([0.3 * math.exp(-0.574), 0.3, 0.3 * math.exp(0.426)])
    with pytest.raises(ValueError, match=r"kernel\.reset"):
        kernel.step({"x": torch.zeros(5, 4, 2)}, generator=generator(0))


def test_hmc_counts_gradients():
    model = Banana()
    take(HMC(model.target, leapfrog_steps=4), model.exact(10, 0), 2)
    assert model.target.score_calls == 10 * 2 * (4 + 1)


# ---------------------------------------------------------------------- mixed


@pytest.mark.parametrize("kind", [MALA, HMC])
def test_alternation_is_invariant_and_moves(kind):
    model = Mixture()
    kernel = Alternate([Gibbs(model.target), kind(model.target, step_size=0.5)])
    assert_invariant(kernel, model.exact, model.features)
    init = {"x": torch.full((4000, 1), -1.0), "s": torch.zeros(4000, 1, dtype=torch.int64)}
    chains = run(model.target, kernel, chains=4000, warmup=300, steps=1, init=init)
    assert_mean(chains.state["s"][-1], 0.7)
    assert_mean(chains.state["x"][-1], 0.3 * -1 + 0.7 * 2)
    size = chains.report[f"{kind.__name__} step size"]  # tuned by its own acceptance, not by the mean with Gibbs' one
    own = kind(model.target, step_size=size)
    _, acceptance = own.step(model.exact(CHAINS, 3), generator=generator(0))
    assert abs(float(acceptance.mean()) - own.target_acceptance) < 0.05


# ---------------------------------------------------------------------- Swendsen–Wang


@pytest.mark.parametrize("b", [1.0, 0.5])
@pytest.mark.parametrize("lattice", [*ISING.values(), POTTS], ids=["ising", "ising with field", "potts 2x2"])
def test_swendsen_wang_is_invariant(lattice, b):
    kernel = SwendsenWang(lattice)
    assert_invariant(kernel, lambda n, s: lattice.exact(n, s, b), lattice.features, steps=1, inverse_temperature=b)
    counts = lattice.counts(take(kernel, lattice.exact(4 * CHAINS, 6, b), 1, b=b))
    assert_counts(counts, lattice.probabilities(b))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SwendsenWang, Gibbs])
def test_lattice_kernels_move_to_the_target_from_one_state(kind):
    lattice = ISING["field"]
    start = {"s": torch.zeros(CHAINS, 3, 3, dtype=torch.int64)}
    assert_counts(lattice.counts(take(kind(lattice), start, 30)), lattice.probabilities())


def test_swendsen_wang_takes_a_temperature_for_each_chain():
    lattice, kernel = ISING["field"], SwendsenWang(ISING["field"])
    both = {"s": torch.stack([lattice.exact(CHAINS, 1, b)["s"] for b in (1.0, 0.5)])}
    moved, _ = kernel.step(both, generator=generator(0), inverse_temperature=torch.tensor([[1.0], [0.5]]))
    for row, b in enumerate((1.0, 0.5)):
        assert_counts(lattice.counts({"s": moved["s"][row]}), lattice.probabilities(b))


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_wrong_bond_probability_is_caught(factor):
    lattice, kernel = ISING["no field"], SwendsenWang(ISING["no field"])
    kernel.coupling *= factor
    with pytest.raises(AssertionError):
        assert_invariant(kernel, lattice.exact, lattice.features)


def test_a_wrong_cluster_field_is_caught():
    lattice, kernel = ISING["field"], SwendsenWang(ISING["field"])
    kernel.site_energies = (0.0, 0.0)
    with pytest.raises(AssertionError):
        assert_invariant(kernel, lattice.exact, lattice.features)


# ---------------------------------------------------------------------- parallel tempering

LADDER = (1.0, 0.6, 0.3)


def replicas(exact):
    """Exact draws [R, n] of every temperature at once, independent of each other."""

    def draw(n, seed):
        rows = [exact(n, 10 * seed + r, b) for r, b in enumerate(LADDER)]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    return draw


def over_replicas(features):
    """Features of the cold and of every hot replica side by side, [n, R·k]."""
    return lambda latent: torch.cat(
        [features({name: value[r] for name, value in latent.items()}) for r in range(len(LADDER))], 1
    )


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_tempering_is_invariant_at_every_temperature(steps):
    banana, table = Banana(), Table()
    kernel = ParallelTempering(MALA(banana.target, step_size=0.4), inverse_temperatures=LADDER)
    assert_invariant(kernel, replicas(banana.exact), over_replicas(banana.features), steps=steps)
    kernel = ParallelTempering(Gibbs(table.target), inverse_temperatures=LADDER)
    assert_invariant(kernel, replicas(table.exact), over_replicas(table.features), steps=steps)
    assert all(0.1 < rate < 1 for rate in kernel.swap_rates[: min(steps, 2)])


def test_swaps_use_the_jacobian_too():
    """The replicas of Gamma(3, 1) are Gamma(3b, b), as in `test_positive_variable_is_tempered_with_its_jacobian`."""
    space = Space(x=Real(1, constraint="positive"))
    target = Target(space, lambda x: (x - 2 * x.log()).sum(-1))

    def exact(n, seed, b):
        return space.to_latent({"x": gamma(n, seed, 3 * b, b)})

    kernel = ParallelTempering(MALA(target, step_size=0.9), inverse_temperatures=LADDER)
    assert_invariant(kernel, replicas(exact), over_replicas(lambda z: z["x"]))


def test_swap_rates_are_the_exact_ones_and_start_after_warm_up():
    table = Table()
    kernel = ParallelTempering(Gibbs(table.target), inverse_temperatures=LADDER)
    latent, source = replicas(table.exact)(CHAINS, 1), generator(0)
    latent, _ = kernel.step(latent, generator=source)
    latent, acceptance = kernel.step(latent, generator=source)
    energy = table.table.flatten()
    for r, rate in enumerate(kernel.swap_rates):
        cold, hot = LADDER[r : r + 2]
        legal = energy < math.inf
        p, q = table.probabilities(cold)[legal], table.probabilities(hot)[legal]
        gap = energy[legal][:, None] - energy[legal]
        accepted = ((cold - hot) * gap).clamp(max=0).exp()
        assert rate == pytest.approx(float(p @ accepted @ q), abs=4 * 0.5 / math.sqrt(CHAINS))
    kernel.adapt(acceptance)
    assert kernel.swap_rates == (0.0, 0.0)


class SwapsByHalf(ParallelTempering):
    """Exchanges accepted as if temperatures were half as far apart."""

    def _swap(self, latent, b, generator):
        return super()._swap(latent, b / 2, generator)


def test_a_wrong_swap_is_caught():
    banana = Banana()
    kernel = SwapsByHalf(MALA(banana.target, step_size=0.4), inverse_temperatures=LADDER)
    with pytest.raises(AssertionError):
        assert_invariant(kernel, replicas(banana.exact), over_replicas(banana.features))


@pytest.mark.slow
def test_tempering_crosses_a_barrier_that_stops_its_kernel():
    """Two wells 16 kT apart: MALA stays where it starts, tempering finds the masses of both."""
    target = Target(Space(x=Real(1)), lambda x: (16 * (x.square() - 1).square() + 0.5 * x).sum(-1))
    init = {"x": torch.ones(2000, 1)}
    mala = MALA(target)
    stuck = run(target, mala, chains=2000, warmup=200, steps=1, thin=800, init=init).state["x"][-1]
    assert float((stuck < 0).float().mean()) < 0.01
    kernel = ParallelTempering(mala, inverse_temperatures=[1.0, 0.6, 0.35, 0.2, 0.1])
    chains = run(target, kernel, chains=2000, warmup=200, steps=1, thin=800, init=init)
    assert chains.state["x"].shape == (1, 2000, 1)
    grid = torch.linspace(-3, 3, 60_001, dtype=torch.float64)
    weight = torch.softmax(-16 * (grid**2 - 1) ** 2 - 0.5 * grid, 0)
    assert_mean((chains.state["x"][-1] < 0).float(), float(weight[grid < 0].sum()))
    assert_mean(chains.state["x"][-1], float((weight * grid).sum()))
    assert {f"swap rate {r}-{r + 1}" for r in range(4)} <= chains.report.keys()
    sizes = [chains.report[f"MALA step size [{r}]"] for r in range(5)]
    assert sizes == sorted(sizes)  # the hotter, the longer the steps


# ---------------------------------------------------------------------- run


def test_run_returns_draws_in_x_with_their_energies_and_counts():
    model = Mixture()
    kernel = Alternate([Gibbs(model.target), MALA(model.target)])
    chains = run(model.target, kernel, chains=6, warmup=5, steps=4, thin=3, seed=1)
    assert chains.state["x"].shape == (4, 6, 1)
    assert chains.state["s"].dtype == torch.int64
    assert torch.equal(chains.energy, model.energy(**chains.state))
    transitions = 5 + 4 * 3
    assert chains.score_calls == 6 * transitions * 2
    assert chains.energy_calls == 6 * (transitions * (2 + 2) + 4)
    again = run(model.target, kernel, chains=6, warmup=5, steps=4, thin=3, seed=1)
    assert torch.equal(chains.state["x"], again.state["x"])
    other = run(model.target, kernel, chains=6, warmup=5, steps=4, thin=3, seed=2)
    assert not torch.equal(chains.state["x"], other.state["x"])


def test_thinning_keeps_every_third_draw():
    model = Mixture()
    kernel = Alternate([Gibbs(model.target), MALA(model.target)])
    every = run(model.target, kernel, chains=6, warmup=5, steps=12, seed=1)
    third = run(model.target, kernel, chains=6, warmup=5, steps=4, thin=3, seed=1)
    assert torch.equal(every.state["x"][2::3], third.state["x"])


def test_progress_lines(capsys, monkeypatch):
    monkeypatch.setattr(sys.modules[run.__module__], "PROGRESS_SECONDS", 0.0)
    model = Mixture()
    run(model.target, Gibbs(model.target), chains=2, warmup=1, steps=2, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("mcmc warm-up: step 1 of 3, acceptance 1.00")
    assert lines[-1].startswith("mcmc sampling: step 3 of 3")


# ---------------------------------------------------------------------- bad input


def test_bad_input_says_what_to_do():
    mixture, banana, table = Mixture().target, Banana().target, Table().target
    with pytest.raises(ValueError, match="use HMC"):
        Gibbs(banana)
    with pytest.raises(ValueError, match=r"names holds \['x'\], but the categorical variables are \['s'\]"):
        Gibbs(mixture, names=["x"])
    with pytest.raises(ValueError, match="use Gibbs"):
        MALA(table)
    for option, value in (("leapfrog_steps", 0), ("step_size", 0.0), ("target_acceptance", 1.0), ("jitter", 1.0)):
        with pytest.raises(ValueError, match=option):
            HMC(banana, **{option: value})  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="coupling and site_energies, which"):
        SwendsenWang(table)
    with pytest.raises(ValueError, match="ferromagnetic coupling"):
        SwendsenWang(Lattice(2, -1.0, (0.0, 0.0)))
    for ladder in ([1.0], [0.9, 0.5], [1.0, 1.0], [1.0, 0.0]):
        with pytest.raises(ValueError, match="must start at 1 and decrease"):
            ParallelTempering(Gibbs(table), inverse_temperatures=ladder)
    with pytest.raises(ValueError, match=r"batch shape \[2, chains\]"):
        ParallelTempering(MALA(banana), inverse_temperatures=[1.0, 0.5]).step(
            {"x": torch.zeros(3, 4, 2)}, generator=generator(0)
        )
    with pytest.raises(ValueError, match="at least one kernel"):
        Alternate([])
    with pytest.raises(ValueError, match="different targets"):
        Alternate([Gibbs(mixture), MALA(banana)])
    with pytest.raises(ValueError, match="build it from this target"):
        run(mixture, MALA(banana), chains=1, warmup=0, steps=1)
    numbers = {"chains": 1, "warmup": 0, "steps": 1}
    for option, value in (("chains", 0), ("warmup", -1), ("steps", 0), ("thin", 0)):
        with pytest.raises(ValueError, match=f"{option} must be at least"):
            run(banana, MALA(banana), **{**numbers, option: value})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="init must hold 3 states"):
        run(banana, MALA(banana), chains=3, warmup=0, steps=1, init={"x": torch.zeros(2, 2)})


def test_chains_that_never_reach_the_support_are_an_error():
    target = Target(Space(x=Real(1)), lambda x: torch.where(x < 100, math.inf, x).sum(-1))
    with pytest.raises(ValueError, match=r"no finite energy after warm-up.*pass init"):
        run(target, MALA(target), chains=3, warmup=2, steps=1)
