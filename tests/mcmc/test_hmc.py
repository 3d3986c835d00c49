"""MALA and HMC leave their target invariant at every temperature, in bijections and at walls; broken ones do not."""

import math

import numpy as np
import pytest
import torch

from egm import Real, Space, Target
from egm.mcmc import HMC, MALA, run
from support.mcmc_laws import CHAINS, Banana, assert_invariant, gamma, generator, take
from support.stats import assert_mean


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
    kernel, start = HMC(model.target, leapfrog_steps=4), model.exact(10, 0)
    take(kernel, start, 2)
    assert model.target.score_calls == model.target.energy_calls == 10 * (1 + 2 * 4)  # the end of a step is known
    take(kernel, start, 1)  # other states
    assert model.target.score_calls == 10 * (1 + 2 * 4) + 10 * (1 + 4)


def test_what_is_remembered_is_what_would_be_asked_for():
    model = Banana()
    kernel, source = HMC(model.target, leapfrog_steps=3, step_size=0.4), generator(0)
    latent, acceptance = kernel.step(model.exact(50, 0), generator=source)
    assert 0.05 < float(acceptance.mean()) < 0.95
    energy, gradient = kernel._energy_and_gradient(latent)
    again, slopes = model.target.latent_energy_and_gradient(latent)
    torch.testing.assert_close(energy, again)
    torch.testing.assert_close(gradient, slopes)
