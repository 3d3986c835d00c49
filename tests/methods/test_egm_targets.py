"""What EGM and EGM-BS regress on: with exact intermediate energies the exact denoiser and the exact E_t."""

import math

import pytest
import torch
from torch import nn

from egm.estimation.energy_model import EnergyModel
from egm.methods.egm import EGM
from egm.methods.egm_options import EGMBSOptions
from egm.paths import ProductPath
from egm.processes import DenoisingProcess, DiscreteJump, Jump, Loss
from egm.spaces import Categorical, Space
from egm.targets import Target
from egm.targets.guard import EnergyGuard
from support.egm_cases import ORACLES, Constant, Exact, Outputs, end_points, method_of, seeded
from support.marginals import TinyIsing
from support.stats import assert_mean


@pytest.fixture
def reached(monkeypatch):
    """Records the arguments of `Process.loss`, by process."""
    calls = {}

    def watch(kind):
        plain = kind.loss

        def record(process, x_t, t, estimate, output, **options):
            calls[id(process)] = {"x_t": x_t, "t": t, "estimate": estimate, **options}
            return plain(process, x_t, t, estimate, output, **options)

        monkeypatch.setattr(kind, "loss", record)

    for kind in (DenoisingProcess, Jump, DiscreteJump):
        watch(kind)
    return calls


@pytest.mark.parametrize("energy_target", ["direct", "bootstrap"])
@pytest.mark.parametrize("proposal", ["flat", "reference"])
@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
def test_with_exact_energies_the_targets_are_the_exact_denoiser(oracle, proposal, energy_target, reached):
    n, model = 400, Exact(oracle)
    method = method_of(
        oracle, n, model=model, proposals=1024, epsilon=0.25, t_min=0.1, proposal=proposal, memory=2**25,
        energy_target=energy_target,
    )  # fmt: skip
    method.losses(end_points(oracle, n), first=False, generator=seeded(3))
    _, far = method.regression.times(n, seeded(3))
    assert 200 < far < n - 80
    r = model.times[0]
    torch.testing.assert_close(r, reached[id(next(iter(oracle.processes.values())))]["t"][:far] + 0.25)

    x_t = {name: reached[id(p)]["x_t"] for name, p in oracle.processes.items()}
    times = reached[id(next(iter(oracle.processes.values())))]["t"].double()
    exact = oracle.prediction(x_t, times)
    for name, process in oracle.processes.items():
        off = reached[id(process)]["estimate"] - exact[name]
        for part in (slice(far), slice(far, None)):  # bootstrapped, and with the target's own energy
            assert_mean(off[part], 0.0, f"{name}, states {part}")
            assert float(off[part].square().mean().sqrt()) < 0.2
        assert float(exact[name].std()) > 0.2  # so that states or times in another order would show

    (_, _, energy), exact_energy = model.targets[0], model.energy(x_t, times)
    if energy_target == "bootstrap" and not oracle.target.space.real:
        assert_mean(torch.exp(exact_energy - energy)[:far], 1.0, "Ê_t, bootstrapped")
    assert float((energy - exact_energy).abs().median()) < 0.1
    assert float(exact_energy.std()) > 0.5


@pytest.mark.parametrize("energy_target", ["direct", "bootstrap"])
@pytest.mark.parametrize("oracle", [ORACLES["masked"], ORACLES["mixed"]], ids=["masked", "mixed"])
def test_single_site_tables_are_exact(oracle, energy_target, reached):
    n, model, name = 300, Exact(oracle), next(iter(oracle.target.space.categorical))
    method = method_of(
        oracle, n, model=model, proposals=256, epsilon=0.2, t_min=0.05, bootstrap="single-site", sites=2,
        energy_target=energy_target,
    )  # fmt: skip
    method.losses(end_points(oracle, n), first=False, generator=seeded(3))
    call, process = reached[id(oracle.processes[name])], oracle.processes[name]
    times, looked = call["t"].double(), call["sites"] > 0
    x_t = {k: reached[id(p)]["x_t"] for k, p in oracle.processes.items()}
    masked = x_t[name] == process.path.variable.mask
    assert bool((looked <= masked).all())
    torch.testing.assert_close(process.path.sum_sites(call["sites"]), process.path.sum_sites(masked.double()))
    torch.testing.assert_close(
        call["estimate"][looked], oracle.prediction(x_t, times)[name][looked], rtol=1e-5, atol=1e-5
    )
    (_, _, energy), exact_energy = model.targets[0], model.energy(x_t, times)
    _, far = method.regression.times(n, seeded(3))
    if oracle.target.space.real:
        assert_mean(reached[id(oracle.processes["x"])]["estimate"] - oracle.prediction(x_t, times)["x"], 0.0)
        assert reached[id(oracle.processes["x"])]["sites"] is None
    elif energy_target == "bootstrap":  # from neighbours, exactly
        some = masked[:far].any(-1).any(-1)
        torch.testing.assert_close(energy[:far][some], exact_energy[:far][some], rtol=1e-5, atol=1e-5)
        assert bool(energy[:far][~some].isnan().all())
    usable = torch.isfinite(energy)
    assert float((energy - exact_energy)[usable].abs().median()) < 0.15
    assert bool(usable[far:].all())


def test_single_site_energies_come_from_any_variable_that_has_masked_sites():
    """Two independent labels: E_t is known from the second where the first is revealed, and from neither at the end."""
    space, n = Space(a=Categorical(2), b=Categorical(3, shape=2)), 400
    path = ProductPath(space)

    def free(x):
        shown = torch.where(x["a"] < 2, x["a"].double(), -math.log(1 + math.exp(-1)))
        each = torch.where(x["b"] < 3, 0.5 * x["b"].double(), -math.log(sum(math.exp(-0.5 * y) for y in range(3))))
        return shown + each.sum(-1)

    class Sum(nn.Module):
        forward_looking = False

        def __init__(self):
            super().__init__()
            self.network, self.target = Constant(), None

        def forward(self, x, t, *, network=None):
            masked = (x["a"] == 2).double() + (x["b"] == 3).sum(-1)
            return free(x) - masked * torch.log1p(-t.double()) - (3 - masked) * torch.log(t.double())

        def loss(self, x_t, t, target, *, clip=None):
            self.target = (x_t, t, target)
            return self.network.value.square()

    model, processes = Sum(), {name: DiscreteJump(path[name]) for name in space}  # type: ignore[arg-type]
    method = EGM(
        EnergyGuard(Target(space, lambda a, b: free({"a": a, "b": b}))), path, processes, Outputs(processes, n),
        energy_model=model,  # type: ignore[arg-type]
        options=EGMBSOptions(proposals=200, epsilon=0.3, bootstrap="single-site", energy_target="bootstrap"),
    )  # fmt: skip
    x_1 = {name: v.uniform((n,), generator=seeded()) for name, v in space.categorical.items()}
    shown = method.losses(x_1, first=False, generator=seeded())
    assert set(shown) == {"loss", "sampler_loss", "energy_loss"}  # nothing is proposed, so there is no ESS
    assert model.target is not None
    (x_t, t, target), (_, far) = model.target, method.regression.times(n, seeded())
    masked = (x_t["a"] == 2) | (x_t["b"] == 3).any(-1)
    early, exact = torch.arange(n) < far, model(x_t, t)
    torch.testing.assert_close(target[early & masked], exact[early & masked], rtol=1e-5, atol=1e-5)
    assert int((early & masked & (x_t["a"] < 2)).sum()) > 30
    assert bool(target[early & ~masked].isnan().all())
    torch.testing.assert_close(target[~early], exact[~early], rtol=0, atol=0.5)  # these by sampling


class Wild(nn.Module):
    """An energy network with wrong values."""

    def __init__(self, axes):
        super().__init__()
        self.axes, self.slope = axes, nn.Parameter(torch.tensor(3.0))

    def forward(self, x_t, t):
        s = x_t["s"].flatten(-self.axes)
        return self.slope * torch.sin(s * torch.arange(1.0, s.shape[-1] + 1)).sum(-1)


UNEQUAL = torch.rand(2, 3, 4, generator=seeded(5)) * 3
TIED = {
    "looking-forward": TinyIsing(beta=0.8).target,
    "not-looking-forward": Target(Space(s=Categorical([2, 3, 4])), lambda s: UNEQUAL[s[..., 0], s[..., 1], s[..., 2]]),
}


@pytest.mark.parametrize("target", TIED.values(), ids=TIED)
def test_the_last_masked_site_follows_the_targets_energy_whatever_the_network_says(target, reached):
    """Its neighbours are complete states, and of those the energy is known at every time: nothing is learned there.

    The second target is a table, so it would also notice symbols that a site cannot hold.
    """
    n, variable = 600, target.space.categorical["s"]
    path = ProductPath(target.space)
    processes = {"s": DiscreteJump(path["s"])}  # type: ignore[arg-type]
    method = EGM(
        EnergyGuard(target), path, processes, Outputs(processes, n),
        energy_model=EnergyModel(Wild(len(variable.shape)), path, target),
        options=EGMBSOptions(proposals=4, epsilon=0.1, bootstrap="single-site", energy_target="bootstrap"),
    )  # fmt: skip
    method.losses({"s": variable.uniform((n,), generator=seeded())}, first=False, generator=seeded(1))
    call = reached[id(processes["s"])]
    x_t, table, looked = (call[k].reshape(n, variable.sites, -1) for k in ("x_t", "estimate", "sites"))
    found = 0
    for state, tables, sites in zip(x_t[..., 0], table, looked[..., 0], strict=True):
        masked = state == variable.mask
        if int(masked.sum()) != 1:
            continue
        site, found = int(masked.nonzero()), found + 1
        counts = torch.as_tensor(variable.n).expand(variable.shape).flatten()
        values = torch.arange(int(counts[site]))
        neighbours = state.repeat(len(values), 1)
        neighbours[:, site] = values
        exact = torch.softmax(-target.energy(s=neighbours.reshape(-1, *variable.shape)), 0)
        torch.testing.assert_close(tables[site, : len(values)], exact, rtol=1e-4, atol=1e-5)
        assert float(sites[site]) == 1
    assert found > 60


def test_egm_estimates_from_the_targets_energy_alone(reached):
    oracle = ORACLES["mixed"]
    n = 300
    method = method_of(oracle, n, proposals=1024, t_min=0.1, memory=2**24)
    shown = method.losses(end_points(oracle, n), first=True, generator=seeded(1))
    assert set(shown) == {"loss", "sampler_loss", "ess"}
    torch.testing.assert_close(shown["loss"].detach(), shown["sampler_loss"])
    assert 0 < float(shown["ess"]) < 1
    x_t = {k: reached[id(p)]["x_t"] for k, p in oracle.processes.items()}
    for name, process in oracle.processes.items():
        call = reached[id(process)]
        assert_mean(call["estimate"] - oracle.prediction(x_t, call["t"].double())[name], 0.0, name)
        assert call["sites"] is None


def test_states_are_noised_end_points(reached):
    """x_t ~ p_{t|1}(· | x_1), state by state: revealed symbols are those of x_1, masked as often as κ_t says."""
    oracle, n = TinyIsing(), 4000
    x_1 = end_points(oracle, n)
    method_of(oracle, n, proposals=2).losses(x_1, first=False, generator=seeded())
    call = reached[id(oracle.processes["s"])]
    revealed = call["x_t"] != 2
    assert bool((call["x_t"] == x_1["s"])[revealed].all())
    assert_mean(revealed.double().mean((1, 2)) - call["t"].double(), 0.0)


def test_options_reach_the_losses(reached):
    oracle, n = ORACLES["mixed"], 50
    x_1 = end_points(oracle, n)
    chosen = {"real_loss": "generator", "symbol_loss": "squared", "clip_estimate": 0.3}

    def total(**options):
        return method_of(oracle, n, proposals=8, **chosen, **options).losses(x_1, first=False, generator=seeded(2))

    plain = float(total()["loss"].detach())
    calls = {name: reached[id(process)] for name, process in oracle.processes.items()}
    for call in calls.values():
        assert call["by"] == Loss(real="generator", symbols="squared", clip=0.3)
    losses = {
        name: process.loss(
            calls[name]["x_t"], calls[name]["t"], calls[name]["estimate"], torch.zeros(n, *process.output_shape),
            by=Loss(real="generator", symbols="squared", clip=0.3),
        )
        for name, process in oracle.processes.items()
    }  # fmt: skip
    t = calls["x"]["t"]
    assert plain == pytest.approx(float((losses["x"] + losses["b"]).mean()), rel=1e-5)
    weighted = float(total(lambda_cont=3.0, lambda_disc=0.5)["loss"].detach())
    assert weighted == pytest.approx(float((3 * losses["x"] + 0.5 * losses["b"]).mean()), rel=1e-5)
    timed = float(total(time_weight="t")["loss"].detach())
    assert timed == pytest.approx(float((t * (losses["x"] + losses["b"])).mean()), rel=1e-5)


@pytest.mark.parametrize("energy_target", ["direct", "bootstrap"])
@pytest.mark.parametrize("name", ["masked", "mixed"])
def test_losses_are_reproducible_and_do_not_depend_on_memory(name, energy_target):
    oracle, n = ORACLES[name], 40

    def values(seed, memory):
        method = method_of(
            oracle, n, model=Exact(oracle), proposals=300, memory=memory, energy_target=energy_target, epsilon=0.2
        )
        found = method.losses(end_points(oracle, n), first=False, generator=seeded(seed))
        return torch.stack([found[k].detach().double() for k in ("loss", "sampler_loss", "energy_loss", "ess")])

    one = values(0, 2**30)
    torch.testing.assert_close(values(0, 2**30), one, rtol=0, atol=0)
    torch.testing.assert_close(values(0, 2**20), one)
    assert not torch.allclose(values(1, 2**30), one)
