"""PIS: steps of a steered Brownian motion, gradients through them, and a sampler that they train."""

import math
from typing import Any

import pytest
import torch

import egm
from egm.baselines.pis import PIS, PISOptions
from egm.draws.diagnostics import weight_ess
from egm.networks import MLP, Preconditioned, predict
from egm.paths import Foellmer, ProductPath
from egm.processes import Diffusion, Flow
from egm.simulation.course import Course
from egm.simulation.denoiser_error import DenoiserError
from egm.simulation.simulate import simulate
from egm.spaces import Real, Space
from egm.targets import Funnel, JointMoG, Target
from egm.targets.guard import EnergyGuard
from egm.train.buffer import ReplayBuffer
from support.stats import assert_mean

SPACE = Space(x=Real(2))


def gaussian(mean=0.0, width=1.0):
    return Target(SPACE, lambda x: 0.5 * ((x - mean) / width).square().sum(-1), name="gaussian")


def make(target, *, steps=8, seed=0, process: Any = Diffusion):
    torch.manual_seed(seed)
    space = target.space
    path = ProductPath(space, {"x": Foellmer(space.real["x"])})
    network = Preconditioned(MLP(space, {"x": space.real["x"].latent_shape}, width=8, depth=2), path).double()
    error = DenoiserError(path)
    options = PISOptions(simulation_steps=steps)
    return PIS(EnergyGuard(target), path, {"x": process(path["x"])}, network, error=error, options=options)  # type: ignore[arg-type]


@torch.no_grad()
def perturb(method):
    """Perturbs all parameters: with the last layer at zero nothing is steered, and earlier layers have no gradient."""
    for p in method.network.parameters():
        p.add_(0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=p.dtype))


def loss(method, n=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    starts = method.end_points(ReplayBuffer(1), n, generator)
    return method.losses(starts, first=False, generator=generator)


def simulated_log_weights(method, n=64, seed=0):
    """Returns log-weights of the paths that the sampler draws with the random numbers of `loss`."""
    drawn = simulate(
        lambda x, t: predict(method.network, method.processes, x, t), method.path, method.processes, n,
        Course(method.grid, error=method.error), weigh=True, generator=torch.Generator().manual_seed(seed),
        dtype=torch.float64,
    )  # fmt: skip
    return drawn.log_ratio - method.energy(drawn.state)


@pytest.mark.parametrize("steps", [1, 7])
def test_an_unsteered_motion_ends_in_the_reference_law(steps):
    """The network begins at zero: x_1 ~ N(0, I) on every grid, and for that target every path has the same weight."""
    found = loss(make(gaussian(), steps=steps))
    assert float(found["elbo"]) == pytest.approx(math.log(2 * math.pi), abs=1e-9)
    assert float(found["ess"]) == pytest.approx(1, abs=1e-9)
    other = loss(make(gaussian(mean=1.0), steps=steps))
    assert float(other["ess"]) < 0.9


def test_weights_are_those_of_the_sampler():
    """The same random numbers give the same paths as `simulate`, and the same weights."""
    method = make(gaussian(mean=0.7, width=0.5), steps=6)
    perturb(method)
    log_w = simulated_log_weights(method)
    found = loss(method)
    assert float(found["elbo"]) == pytest.approx(float(log_w.mean()), abs=1e-5)  # errors are kept in float32
    assert float(found["ess"]) == pytest.approx(float(weight_ess(log_w)), abs=1e-5)
    assert 0.05 < float(found["ess"]) < 0.95


def test_centred_particles_have_the_same_weights():
    """Predictions may leave the subspace, noise and densities may not."""
    particles = Space(x=Real((3, 2), centered=True))
    target = Target(particles, lambda x: 2.0 * x.square().sum((-1, -2)), name="trap")
    method = make(target, steps=4)
    perturb(method)
    log_w = simulated_log_weights(method)
    assert float(loss(method)["elbo"]) == pytest.approx(float(log_w.mean()), abs=1e-4)


def test_the_part_that_is_left_out_of_the_loss_has_no_mean():
    method = make(gaussian(mean=0.7, width=0.5))
    perturb(method)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        chance = method._steered(method.end_points(ReplayBuffer(1), 4000, generator), generator)[2]
    assert_mean(chance, 0.0)
    assert float(chance.std()) > 0.1


def test_steps_are_those_of_euler_and_maruyama():
    """With the error of the reference law the step over h = r − t is N(x + h u, h I), u = (x̂_1 − x)/(1 − t)."""
    path = ProductPath(SPACE, {"x": Foellmer(SPACE.real["x"])})
    process, error = Diffusion(path["x"]), DenoiserError(path)  # type: ignore[arg-type]
    x, end = torch.tensor([0.3, -1.2], dtype=torch.float64), torch.tensor([2.0, 0.4], dtype=torch.float64)
    for t, r in ((0.01, 0.2), (0.5, 0.9), (0.7, 1.0)):
        start, stop = torch.tensor(t, dtype=torch.float64), torch.tensor(r, dtype=torch.float64)
        moved = torch.tensor([0.5, -1.0], dtype=torch.float64)
        found = process.log_step(moved, x, end, start, stop, error=error("x", start))
        mean = x + (r - t) * (end - x) / (1 - t)
        normal = torch.distributions.Normal(mean, math.sqrt(r - t))
        torch.testing.assert_close(found, normal.log_prob(moved).sum(), rtol=1e-6, atol=1e-6)


def test_gradients_go_through_every_step_and_the_energy():
    """Against differences of the loss with the same random numbers."""
    method = make(gaussian(mean=0.7, width=0.5))
    perturb(method)
    parameters = list(method.network.parameters())
    found = torch.autograd.grad(loss(method)["loss"], parameters, allow_unused=True, materialize_grads=True)
    for p, gradient in zip(parameters, found, strict=True):
        at = int(gradient.abs().argmax())
        flat, step = p.data.view(-1), 1e-5
        values = []
        for sign in (1, -1):
            flat[at] += sign * step
            values.append(float(loss(method)["loss"].detach()))
            flat[at] -= sign * step
        assert float(gradient.flatten()[at]) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-4, abs=1e-7)
    assert max(float(gradient.abs().max()) for gradient in found) > 0.1


def test_a_shifted_gaussian_is_learned_and_every_state_costs_an_energy_and_a_gradient():
    target = gaussian(mean=1.0, width=0.6)
    options = {
        "simulation_steps": 12,
        "sample_steps": 12,
        "network": "MLP(width=32)",
        "learning_rate": 5e-3,
        "ema": 0.9,
    }
    sampler = egm.fit(target, "pis", steps=150, batch_size=64, device="cpu", progress=False, **options)
    spent = target.energy_calls, target.score_calls
    assert spent[1] == 150 * 64
    assert spent[0] - spent[1] < 200  # of the check before
    draws = sampler.sample(4000, seed=1)
    untrained = egm.fit(target, "pis", steps=1, batch_size=4, device="cpu", progress=False, **options).sample(4000)
    assert draws.ess > 0.75 > 1.2 * untrained.ess  # 0.87 to 0.88 with three seeds
    assert draws.log_z == pytest.approx(math.log(2 * math.pi * 0.36), abs=4 * draws.log_z_stderr)
    assert_mean(draws.resample(1000, seed=0)["x"], 1.0)
    assert sampler.config["paths"] == {"x": "Foellmer()"}


def test_states_of_zero_density_are_left_out():
    wall = Target(SPACE, lambda x: torch.where(x[..., 0] > 0, 0.5 * x.square().sum(-1), math.inf), name="wall")
    method = make(wall)
    found = loss(method)
    gradients = torch.autograd.grad(found["loss"], list(method.network.parameters()), materialize_grads=True)
    assert math.isfinite(float(found["loss"].detach()))
    assert 0.2 < float(found["ess"]) < 0.8
    assert float(found["elbo"]) == -math.inf  # no bound but this one
    assert all(bool(g.isfinite().all()) for g in gradients)


def test_refusals():
    with pytest.raises(ValueError, match=r"pis steers a Brownian motion.*'x' follows Flow along Foellmer"):
        make(gaussian(), process=Flow)
    with pytest.raises(ValueError, match="'x' follows Diffusion along VE; use method='egm-sp'"):
        egm.fit(gaussian(), "pis", steps=1, paths={"x": "VE"}, device="cpu", progress=False)
    with pytest.raises(ValueError, match="'b' follows DiscreteJump along Masked"):
        egm.fit(JointMoG(dim=2), "pis", steps=1, device="cpu", progress=False)
    with pytest.raises(ValueError, match="simulation_steps must be at least 1, got 0"):
        PISOptions(simulation_steps=0)
    with pytest.raises(ValueError, match="proposals is an option of egm, egm-bs, iefm, idem, bnem, not of pis"):
        egm.fit(Funnel(dim=2), "pis", steps=1, proposals=3, device="cpu", progress=False)
    no_gradient = Target(SPACE, lambda x: x.detach().square().sum(-1))
    with pytest.raises(egm.EnergyError, match="without a gradient"):
        egm.fit(no_gradient, "pis", steps=1, device="cpu", progress=False)
