"""The same answers on every device that is present, in single and double precision."""

import pytest
import torch

from egm import ChainSampler, fit, targets
from egm.mcmc import HMC, Alternate, Gibbs, ParallelTempering, SwendsenWang, run
from egm.paths import VE, VP, CondOT, Masked, ProductPath, Uniform
from egm.processes import Diffusion, DiscreteJump, Flow, Jump
from egm.spaces import Categorical, Real

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA"))]
TARGETS = [
    targets.Ising(4, 0.4, field=0.1),
    targets.Potts(3, 3, 0.9),
    targets.SpinGlass(4, 0, 0.7),
    targets.GBRBM(),
    targets.JointMoG(),
    targets.ManyWell(),
    targets.GMM40(),
    targets.Funnel(),
    targets.DW4(),
    targets.JointDW4(),
    targets.LJ13(),
    targets.LJ55(),
    targets.SpikeSlab([[1.0, 0.5], [0.2, 1.0], [0.1, 0.3]], [1.0, 2.0, 0.5]),
    targets.GaussianMixturePosterior([0.1, 2.0, -1.0], 2),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("target", TARGETS, ids=repr)
def test_targets_agree_across_devices_and_precisions(target, device):
    target.check(device)
    generator = torch.Generator().manual_seed(0)
    state = target.space.reference_sample(50, generator=generator, dtype=torch.float64)
    exact = target.energy(**state)
    single = {n: (x.float() if x.is_floating_point() else x).to(device) for n, x in state.items()}
    energy = target.energy(**single)
    assert energy.device.type == device
    if target.space.real:
        assert (exact.dtype, energy.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(energy.cpu().double(), exact.double(), rtol=2e-3, atol=2e-3)
    for value in target.observables(**single).values():
        assert value.device.type == device
        assert value.shape[0] == 50


@pytest.mark.parametrize("device", DEVICES)
def test_paths_and_processes_stay_on_their_device(device):
    generator = torch.Generator(device).manual_seed(0)
    real, symbols = Real((3, 2), scale=2.0), Categorical([2, 3, 4])
    t = torch.rand(8, generator=generator, device=device) * 0.5 + 0.1
    for make in (CondOT, VE, VP):
        path = make(real)
        x_1 = real.noise((8,), generator=generator, device=device)
        x_t = path.sample(x_1, t, generator=generator)
        proposals = path.proposer(x_t, t, t + 0.2)(5, generator)
        assert (proposals.device.type, proposals.dtype) == (device, torch.float32)
        assert path.log_prob(x_t, proposals, t, t + 0.2).shape == (5, 8)
        kernel = Jump(path, bins=8).kernel(x_t, x_1, t)
        steps = [process(path).step(x_t, x_1, t, t + 0.2, generator=generator) for process in (Flow, Diffusion)]
        for x_r in [*steps, Jump(path, bins=8).step(x_t, kernel, t, t + 0.2, generator=generator)]:
            assert (x_r.device.type, x_r.dtype, x_r.shape) == (device, torch.float32, x_t.shape)
    for make in (Masked, Uniform):
        path = make(symbols)
        x_1 = symbols.uniform((8,), generator=generator, device=device)
        x_t = path.sample(x_1, t, generator=generator)
        table = path.one_hot(x_1)[..., :4]
        x_r = DiscreteJump(path).step(x_t, table, t, t + 0.2, generator=generator)
        symbols.check(x_r, "h", masked=make is Masked)
        assert path.proposer(x_t, t, t + 0.2)(5, generator).device.type == device
        assert DiscreteJump(path).log_step(x_r, x_t, table, t, t + 0.2).device.type == device


@pytest.mark.parametrize("device", DEVICES)
def test_product_path_on_a_device(device):
    target = targets.GBRBM()
    path = ProductPath(target.space)
    generator = torch.Generator(device).manual_seed(0)
    latent = path.prior_sample((4,), generator=generator, device=device)
    assert path.prior_log_prob(latent).device.type == device
    proposals = path.proposer(latent, 0.2)(3, generator)
    assert target.latent_energy(proposals).shape == (3, 4)


@pytest.mark.parametrize("device", DEVICES)
def test_chains_run_on_a_device(device):
    mixed, ising = targets.GBRBM(), targets.Ising(4, 0.4)
    kernels = [
        (mixed, Alternate([Gibbs(mixed), HMC(mixed, leapfrog_steps=2)])),
        (ising, SwendsenWang(ising)),
        (ising, ParallelTempering(Gibbs(ising), inverse_temperatures=[1.0, 0.5])),
    ]
    for target, kernel in kernels:
        chains = run(target, kernel, chains=4, warmup=2, steps=3, device=device)
        assert chains.energy.device.type == device
        assert chains.energy.shape == (3, 4)


@pytest.mark.parametrize("device", DEVICES)
def test_chains_as_methods_on_a_device(device):
    """States stay on their device, and the same states are drawn after they are moved to another."""
    cases = [("gibbs", targets.GBRBM()), ("tempering", targets.Ising(5, 0.4)), ("swendsen-wang", targets.Ising(4, 0.4))]
    for method, target in cases:
        sampler = fit(target, method, steps=12, warmup=2, device=device, progress=False)
        assert isinstance(sampler, ChainSampler)
        assert sampler.device.type == device
        draws = sampler.sample(7, seed=1)
        moved = ChainSampler(sampler.space, {name: x.cpu() for name, x in sampler.visited.items()})
        for name, x in draws.state.items():
            assert x.device.type == device
            assert torch.equal(x.cpu(), moved.sample(7, seed=1)[name])
