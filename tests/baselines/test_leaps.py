"""LEAPS as a method: it learns, its runs are saved and resumed, energies are counted, and what it cannot do is said."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import egm
from egm import targets
from egm.baselines.leaps import FIRST_END, FreeEnergyRate, LeapsMCMCOptions, LeapsOptions, default_network
from egm.baselines.leaps_sampler import LeapsSampler
from egm.cli.main import main
from egm.simulation.smc import SMC
from support.stats import assert_mean
from support.training import assert_same, assert_same_runs, interrupt_during, metrics_of, state_of, trainer_of

TINY: dict[str, Any] = {
    **{"batch_size": 8, "inner_steps": 6, "refresh": 4, "buffer": 40, "sample_steps": 7, "log_every": 7},
    **{"checkpoint_every": 10, "network": "LocallyEquivariantConv(width=8, depth=1)", "device": "cpu"},
    "progress": False,
}
SITES, SYMBOLS = 9, 2  # of the lattice below
METHODS = pytest.mark.parametrize("method", ["leaps", "leaps-mcmc"])


def ising() -> targets.Ising:
    return targets.Ising(3, 0.4)


def log_z_of(target: egm.Target) -> float:
    assert target.log_z is not None
    return target.log_z


def over_z(draws: egm.Draws, log_z: float) -> torch.Tensor:
    """w/Z of every draw."""
    assert draws.log_weights is not None
    return (draws.log_weights - log_z).exp()


def test_training_raises_the_effective_sample_size():
    target = targets.Ising(4, 0.3)
    options: dict[str, Any] = {
        **{"network": "LocallyEquivariantConv(width=32, depth=1)", "batch_size": 128, "refresh": 64},
        **{"sample_steps": 24, "device": "cpu", "progress": False},
    }
    untrained = egm.fit(target, "leaps", steps=1, **options).sample(1000, seed=1)
    sampler = egm.fit(target, "leaps", steps=250, **options)
    draws = sampler.sample(2000, seed=1)
    assert untrained.ess < 0.2
    assert draws.ess > 0.8
    assert draws.problems() == []
    assert abs(draws.log_z - log_z_of(target)) < 4 * draws.log_z_stderr
    assert draws.eubo is not None
    assert draws.elbo < log_z_of(target) < draws.eubo
    energies = target.energy(**draws.resample(2000, seed=0))
    exact = target.energy(**target.exact_sample(20_000, seed=0))
    assert_mean(energies, float(exact.mean()))


def test_the_derivative_of_log_z_is_learned(tmp_path):
    target = targets.Ising(3, 0.3)
    options: dict[str, Any] = {"batch_size": 64, "sample_steps": 16, "refresh": 64, "buffer": 4000}
    egm.fit(target, "leaps", steps=400, out=tmp_path, **{**TINY, **options})
    rate = FreeEnergyRate(SITES)
    rate.load_state_dict(state_of(tmp_path)["modules"]["free_energy"])
    with torch.no_grad():
        integral = float(rate((torch.arange(64) + 0.5) / 64).mean())
    assert integral == pytest.approx(log_z_of(target) - SITES * math.log(2), abs=0.1)


@METHODS
def test_weights_of_a_fresh_sampler_have_the_mean_z(method):
    """Also with resampling half-way, by the energies known along the path."""
    target = targets.Ising(3, 0.2)
    sampler = egm.fit(target, method, steps=1, **TINY)
    draws = sampler.sample(10_000, seed=3)
    assert_mean(over_z(draws, log_z_of(target)), 1.0, "w/Z")
    resampled = sampler.sample(10_000, seed=3, smc=SMC(groups=200, threshold=0.9))
    assert_mean(over_z(resampled, log_z_of(target)).reshape(200, 50).mean(1), 1.0, "w/Z of groups")
    assert resampled.ess > draws.ess


@METHODS
def test_stopped_runs_resume_bit_by_bit(tmp_path, monkeypatch, method):
    whole, run = tmp_path / "whole", tmp_path / "run"
    options: dict[str, Any] = {**TINY, "steps": 40, "anneal": 0.8}
    egm.fit(ising(), method, out=whole, **options)
    interrupt_during(monkeypatch, 9, 25)
    sampler = egm.fit(ising(), method, out=run, **options)
    for stop in (9, 25):
        state = state_of(run)
        assert state["step"] == stop
        assert float(state["method"]["end"]) == pytest.approx(FIRST_END + (1 - FIRST_END) * (stop - 1) / 32)
        assert set(state["modules"]) == {"network", "free_energy"}
        loaded = egm.load(run)
        assert isinstance(sampler, LeapsSampler)
        assert isinstance(loaded, LeapsSampler)
        assert_same(sampler.network.state_dict(), loaded.network.state_dict())
        sampler = egm.resume(run, progress=False)
    assert_same_runs(run, whole)
    assert state_of(run)["buffer"]["states"]["s"].dtype == torch.uint8
    loaded = egm.load(run)
    assert isinstance(loaded, LeapsSampler)
    assert loaded.sweeps == (1 if method == "leaps-mcmc" else 0)
    assert torch.equal(loaded.sample(50, seed=1)["s"], sampler.sample(50, seed=1)["s"])


@METHODS
def test_energies_are_counted(tmp_path, method):
    """Energies of neighbours count like any other."""
    target, steps = ising(), 13
    sampler = egm.fit(target, method, steps=steps, out=tmp_path, **TINY)
    refreshes, blocks = 3, 2
    table = SITES * SYMBOLS
    swept = blocks * table if method == "leaps-mcmc" else 0
    trained = steps * TINY["batch_size"] * (1 + table) + refreshes * TINY["refresh"] * swept
    checked = 24 + 24 + 1 + 24 + 1
    assert int(metrics_of(tmp_path)[-1]["energy_calls"]) == trained + checked == target.energy_calls
    draws = sampler.sample(10, seed=0)
    assert draws.energy_calls == 10 * (1 + (TINY["sample_steps"] + blocks) * table + swept)
    assert sampler.sample(10, seed=0, weigh=False).energy_calls == 0


class Waits(TorchDispatchMode):
    """Raises where a tensor's value is read: a GPU would wait, and no CUDA graph could be recorded."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


@METHODS
def test_nothing_waits_for_the_device(method):
    target = ising()
    options = {name: value for name, value in TINY.items() if name not in ("network", "device", "progress")}
    trainer = trainer_of(target, method, steps=1, network=TINY["network"], options=options)
    sampler, trainer_method = trainer.sampler, trainer.method
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(AssertionError, match="waits"), Waits():
        float(torch.ones(()))
    assert target.space.categorical["s"].log_volume > 0  # computed on the host, once
    with Waits():
        drawn = trainer_method.draw(sampler, 4, steps=None, generator=generator)
        state = {**drawn.state, ".t": drawn.times}
        trainer_method.losses(state, first=False, generator=generator)["loss"].backward()  # type: ignore[arg-type]
        sampler.latent(4, generator=generator, weigh=True)


def test_chains_come_through_all_times_up_to_their_end():
    sampler = egm.fit(ising(), "leaps", steps=1, **TINY)
    assert isinstance(sampler, LeapsSampler)
    seen = sampler.visited(500, end=torch.tensor(0.6), generator=torch.Generator().manual_seed(0))
    assert seen.times is not None
    assert seen.state["s"].shape == (500 * TINY["sample_steps"], 3, 3)
    counts = torch.histc(seen.times, TINY["sample_steps"], 0.0, 0.6)
    assert counts.tolist() == [500.0] * TINY["sample_steps"]
    assert seen.times[:-1].gt(seen.times[1:]).any()  # in random order: a buffer that is too small keeps some of each


# ---------------------------------------------------------------------- other targets, other networks


@pytest.mark.parametrize("method", ["leaps", "leaps-mcmc"])
@pytest.mark.parametrize(
    "target",
    [
        targets.Potts(3, 3, 0.3),
        targets.SpinGlass(4, 0, 0.2),
        egm.Target(egm.Space(k=egm.Categorical(3, shape=(2, 2))), lambda k: 0.3 * k.float().square().sum((-2, -1))),
    ],
    ids=repr,
)
def test_other_targets(target, method):
    options = {name: value for name, value in TINY.items() if name != "network"}
    sampler = egm.fit(target, method, steps=2, **options)
    positions = not isinstance(target, targets.Potts)
    assert default_network(target) == "LocallyEquivariantConv" + ("(positions=True)" if positions else "")
    assert f"positions={positions}" in sampler.config["network"]
    log_z = target.log_z or 4 * float(torch.logsumexp(-0.3 * torch.arange(3.0).square(), 0))
    assert_mean(over_z(sampler.sample(2000, seed=0), log_z), 1.0, "w/Z")


class Own(nn.Module):
    """F(τ, i | x) = θ t (τ − x_i): locally equivariant, and blind to everything else."""

    locally_equivariant = True

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.ones(()))

    def forward(self, state, t):
        tau = torch.arange(2, device=t.device) - state["s"][..., None]
        return {"s": self.theta * t[:, None, None, None] * tau}


def test_a_network_of_ones_own():
    sampler = egm.fit(ising(), "leaps", steps=2, **{**TINY, "network": Own()})
    assert sampler.sample(10, seed=0).log_weights is not None


def test_what_is_refused():
    small = {name: value for name, value in TINY.items() if name != "network"}
    with pytest.raises(ValueError, match=r"single Categorical variable.*use method='egm-sp'"):
        egm.fit(targets.GBRBM(), "leaps", steps=1, **{**TINY, "network": Own()})
    with pytest.raises(ValueError, match="LEAPS needs a locally equivariant network, and MLP is not"):
        egm.fit(ising(), "leaps", steps=1, **small, network="MLP(width=8)")
    options: dict[str, Any]
    for options in ({"paths": {"s": "Masked"}}, {"solver": "euler"}):
        with pytest.raises(ValueError, match="a fixed path and a fixed simulation; leave paths and solver out"):
            egm.fit(ising(), "leaps", steps=1, **TINY, **options)
    with pytest.raises(ValueError, match="sweeps is an option of leaps-mcmc"):
        egm.fit(ising(), "leaps", steps=1, sweeps=2, **TINY)
    with pytest.raises(ValueError, match="sweeps must be at least 1, got 0"):
        LeapsMCMCOptions(sweeps=0)
    with pytest.raises(ValueError, match="anneal is a share of training"):
        LeapsOptions(anneal=1.5)


@METHODS
def test_energies_of_zero_density_are_refused(method):
    wall = egm.Target(ising().space, lambda s: torch.where(s[..., 0, 0] > 0, math.inf, 0.0), name="wall")
    with pytest.raises(egm.EnergyError, match=r"are \+inf \(zero density\); use method='egm-sp'"):
        egm.fit(wall, method, steps=3, **TINY)


def test_a_sampler_without_its_target(tmp_path):
    target = egm.Target(ising().space, lambda s: ising().energy(s=s), name="own")
    egm.fit(target, "leaps", steps=1, out=tmp_path, **TINY)
    sampler = egm.load(tmp_path)
    assert isinstance(sampler, LeapsSampler)
    draws = sampler.sample(5, seed=0)
    assert draws.log_weights is None
    assert "pass target=" in draws.problems()[0]
    with pytest.raises(ValueError, match="pass target="):
        sampler.eubo(10)


def test_the_command_line(tmp_path, capsys):
    out = str(tmp_path / "run")
    options = ["--batch_size", "8", "--refresh", "4", "--sample_steps", "5", "--device", "cpu", "--anneal", "0.5"]
    network = ["--network", "LocallyEquivariantConv(width=8, depth=1)"]
    start = ["train", "ising", "--target.size", "3", "--target.beta", "0.3", "--method", "leaps-mcmc", "--sweeps", "2"]
    assert main([*start, "--steps", "3", "--out", out, "--evaluate", "false", *network, *options]) == 0
    assert main(["train", "--resume", out, "--steps", "5", "--evaluate", "false"]) == 0
    assert state_of(out)["step"] == 5
    sampler = egm.load(out)
    assert isinstance(sampler, LeapsSampler)
    assert (sampler.sweeps, sampler.config["anneal"]) == (2, 0.5)
    capsys.readouterr()
    assert main(["list", "methods"]) == 0
    assert "leaps-mcmc" in capsys.readouterr().out
