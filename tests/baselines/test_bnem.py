"""BNEM: the denoiser computed from an energy's gradient, and a sampler whose only network is an energy."""

import copy
from typing import Any, cast

import pytest
import torch

import egm
from egm.baselines.bnem import EnergyScore
from egm.estimation.energy_model import EnergyModel
from egm.paths import VE, VP, CondOT, ProductPath
from egm.paths.gaussian import GaussianPath
from egm.spaces import Real, Space
from egm.targets import DW4, JointMoG, Target
from support.marginals import LabelledGaussians
from support.training import as_sampler

SMALL: dict[str, Any] = {
    "batch_size": 64,
    "proposals": 32,
    "inner_steps": 20,
    "refresh": 64,
    "buffer": 512,
    "sample_steps": 20,
}


@pytest.mark.parametrize("make", [CondOT, VP, lambda v: VE(v, sigma_min=0.1)], ids=["condot", "vp", "ve"])
def test_the_exact_energy_gives_the_exact_denoiser(make):
    oracle = LabelledGaussians(make, masses=(1.0,), means=(0.6,))  # type: ignore[arg-type]

    class Exact(torch.nn.Module):
        def forward(self, state, t):
            return oracle.energy(state, t)

    x = torch.linspace(-2, 2, 9, dtype=torch.float64)
    network = EnergyScore(Exact(), oracle.path)  # type: ignore[arg-type]
    for t in (0.1, 0.5, 0.9):
        time = torch.tensor(t, dtype=torch.float64)
        found = network({"x": x}, time)["x"]
        torch.testing.assert_close(found, oracle.prediction({"x": x}, time.expand(9))["x"])


def test_a_steep_energy_is_cut():
    oracle = LabelledGaussians(VP, masses=(1.0,), means=(0.6,))  # type: ignore[arg-type]
    steepness = 1.0

    class Steep(torch.nn.Module):
        def forward(self, state, t):
            return oracle.energy(state, t) + steepness * state["x"].square()

    def rescaled(x, clip, t):
        time = torch.tensor(t, dtype=torch.float64)
        network = EnergyScore(Steep(), oracle.path, clip)  # type: ignore[arg-type]
        path = cast(GaussianPath, oracle.path["x"])
        alpha, variance = path.alpha(time), path.variance(time)
        total = alpha.square() + variance
        return (network({"x": x}, time)["x"] - alpha / total * x) * (total / variance).sqrt()

    x = torch.linspace(-2, 2, 9, dtype=torch.float64)
    for t in (0.1, 0.5, 0.9):
        torch.testing.assert_close(rescaled(x, 1e9, t), rescaled(x, None, t))
        steepness = 1e4
        free, cut = rescaled(x, None, t), rescaled(x, 20.0, t)
        assert float(free.abs().max()) > 100
        torch.testing.assert_close(cut, free.clamp(-20, 20))
        steepness = 1.0


@pytest.mark.parametrize("network", ["EGNN(width=8, depth=1)", "MLP(width=8)"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_centred_particles_stay_centred(network, clip):
    target = DW4()
    given = {"network": network, "clip_estimate": clip, **SMALL}
    sampler = egm.fit(target, "bnem", steps=2, device="cpu", progress=False, **given)
    (x,) = sampler.sample(10, seed=0).state.values()
    assert float(x.mean(1).abs().max()) < 1e-5
    assert list(as_sampler(sampler).modules()) == ["network", "error"]


def test_a_copy_shares_the_target():
    space = Space(x=Real(1))
    target = Target(space, lambda x: x[..., 0].square())
    model = EnergyModel(torch.nn.Linear(1, 1), ProductPath(space), target)
    other = copy.deepcopy(model)
    assert other._target is target
    assert other.network is not model.network


def test_what_is_saved(tmp_path):
    def energy(x):
        return 4.0 * (x[..., 0].square() - 1).square()

    target = Target(Space(x=Real(1)), energy)
    run = {"network": "MLP(width=8)", "device": "cpu", "progress": False, **SMALL}
    sampler = egm.fit(target, "bnem", steps=20, out=tmp_path, **run)
    again = egm.load(tmp_path, target)
    assert torch.equal(again.sample(50, seed=1)["x"], sampler.sample(50, seed=1)["x"])
    assert sampler.config["paths"] == {"x": "VE(sigma_min=0.01, sigma_max=2.0)"}
    assert sampler.config["energy_network"] is None
    assert egm.load(tmp_path).sample(50, seed=1).log_weights is None  # the energy network needs no target


def test_refusals():
    with pytest.raises(ValueError, match="'b' with a DiscreteJump does not have; use method='egm-bs'"):
        egm.fit(JointMoG(dim=2), "bnem", steps=1, device="cpu", progress=False)
