"""EGM and EGM-BS: times, energy calls, what is refused or left out, units and running averages."""

import math

import pytest
import torch
from scipy import stats as scipy_stats
from torch import nn

from egm.estimation.energy_model import EnergyModel
from egm.methods.egm import EGM
from egm.methods.egm_options import EGMBSOptions, EGMOptions
from egm.methods.regression import STAGES, default_t_min
from egm.paths import VE, VP, CondOT, Masked, ProductPath, Uniform
from egm.processes import Diffusion, DiscreteJump, Flow, Jump
from egm.spaces import Categorical, Real, Space
from egm.targets import Ising, Target
from egm.targets.guard import EnergyGuard
from egm.train.buffer import ReplayBuffer
from egm.train.method import T_MAX
from support.egm_cases import ORACLES, Constant, Exact, Outputs, end_points, method_of, seeded
from support.marginals import LabelledGaussians, TinyIsing
from support.stats import FAILURE_RATE

# ---------------------------------------------------------------------- times

STEPS = [(n, e, t) for n in (1, 2, 3, 7, 64, 1000) for e in (0.002, 0.05, 0.3, 0.9) for t in (None, 0.0, 0.01, 0.37)]


@pytest.mark.parametrize(("n", "epsilon", "t_min"), STEPS)
def test_times_are_stratified_and_those_bootstrapped_end_before_one(n, epsilon, t_min):
    oracle = TinyIsing()
    method = method_of(oracle, n, model=Exact(oracle), epsilon=epsilon, t_min=t_min)
    low = t_min or 0.0
    for seed in range(20):
        t, far = method.regression.times(n, seeded(seed))
        assert t.shape == (n,)
        edges = torch.linspace(low, T_MAX, n + 1, dtype=torch.float64)
        assert bool((t >= edges[:-1] - 1e-6).all())  # one time in every interval, so ascending
        assert bool((t <= edges[1:] + 1e-6).all())
        assert 0 <= far < n
        assert bool((t[:far] + epsilon <= 1 + 1e-6).all())
        # every time that can be bootstrapped is, except in the interval that 1 − ε falls into
        assert bool((t[far + 1 :] + epsilon >= 1 - 1e-6).all())


def test_times_without_an_energy_model_all_end_at_one():
    method = method_of(TinyIsing(), 50)
    assert method.regression.times(50, seeded())[1] == 0


@pytest.mark.parametrize(
    ("progress", "opened"), [(None, 1 / STAGES), (0.2, 0.52), (0.392, 1.0), (0.4, 1.0), (1.0, 1.0)]
)
def test_times_open_from_late_to_early(progress, opened):
    """In 50 parts over 0.4 of training; by 0.2 half are done and one is under way."""
    oracle = TinyIsing()
    method = method_of(oracle, 1000, model=Exact(oracle), epsilon=0.1, t_min=0.05, opening=0.4)
    if progress is not None:
        method.after_step(progress)
    t, far = method.regression.times(1000, seeded())
    start = T_MAX - opened * (T_MAX - 0.05)
    assert float(t[0]) == pytest.approx(start, abs=2e-3)
    edges = torch.linspace(start, T_MAX, 1001, dtype=torch.float64)
    assert bool(((t >= edges[:-1] - 1e-6) & (t <= edges[1:] + 1e-6)).all())
    assert abs(int((t + 0.1 < 1).sum()) - far) <= 1


def test_without_opening_all_times_are_there_from_the_first():
    oracle = TinyIsing()
    method = method_of(oracle, 1000, model=Exact(oracle))
    phase = method.phase
    assert float(method.regression.times(1000, seeded())[0][0]) < 1e-3
    method.after_step(0.0)
    assert method.phase == (True, phase[1])


def test_times_do_not_close_again():
    oracle = TinyIsing()
    method = method_of(oracle, 8, model=Exact(oracle), opening=0.5)
    method.after_step(0.25)
    half, kept = method.phase, method.state_dict()
    method.after_step(0.1)  # of a run that was extended
    assert method.phase == half
    other = method_of(oracle, 8, model=Exact(oracle), opening=0.5)
    assert other.regression.times(8, seeded())[0][0] > method.regression.times(8, seeded())[0][0]
    other.load_state_dict(kept, ReplayBuffer(8))
    assert torch.equal(other.regression.times(8, seeded())[0], method.regression.times(8, seeded())[0])


def test_times_are_uniform():
    method = method_of(TinyIsing(), 7, t_min=0.2)
    t = torch.cat([method.regression.times(7, seeded(seed))[0] for seed in range(400)]).double()
    assert scipy_stats.kstest(t.numpy(), "uniform", (0.2, T_MAX - 0.2)).pvalue >= FAILURE_RATE
    inside = torch.stack([method.regression.times(7, seeded(seed))[0] for seed in range(400)]).double()
    where = (inside - 0.2) / (T_MAX - 0.2) * 7 - torch.arange(7)  # within each interval as well
    assert scipy_stats.kstest(where.flatten().numpy(), "uniform").pvalue >= FAILURE_RATE


def test_the_smallest_time_avoids_singular_proposals():
    real, spin = Real(2), Categorical(2, shape=3)
    space = Space(x=real, s=spin)

    def least(x, s):
        return default_t_min(ProductPath(space, {"x": x(real), "s": s(spin)}))

    assert least(VE, Masked) == 0
    assert [least(CondOT, Masked), least(VP, Masked), least(VE, Uniform)] == [0.01] * 3
    oracle = LabelledGaussians()
    assert method_of(oracle, 3).regression.t_min == 0.01
    assert method_of(oracle, 3, t_min=0.0).regression.t_min == 0


# ---------------------------------------------------------------------- energy calls


def ising_method(n, *, size=3, model=True, forward_looking=None, **options):
    target = Ising(size, 0.4)
    path = ProductPath(target.space)
    processes = {"s": DiscreteJump(path["s"])}  # type: ignore[arg-type]
    energy_model = EnergyModel(Scaled(), path, target, forward_looking=forward_looking) if model else None
    return EGM(
        EnergyGuard(target), path, processes, Outputs(processes, n), energy_model=energy_model,
        options=EGMBSOptions(**options) if model else EGMOptions(**options),
    )  # fmt: skip


class Scaled(nn.Module):
    """A trained multiple of the number of masked spins."""

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.3))

    def forward(self, x_t, t):
        return self.slope * (x_t["s"] == 2).sum((-2, -1))


K, N = 7, 20
#: options, calls without and with the forward-looking part, in terms of far
COSTS = {
    "egm": ({"model": False}, lambda far: N * K, lambda far: N * K),
    "direct": ({"energy_target": "direct"}, lambda far: N * K, lambda far: N * K + far * K + N),
    "bootstrap": (
        {"energy_target": "bootstrap"},
        lambda far: (N - far) * K,
        lambda far: (N - far) * K + far * K + N,
    ),
    "single-site": (
        {"bootstrap": "single-site", "sites": 4, "energy_target": "direct"},
        lambda far: N * K,
        lambda far: N * K + 2 * 4 * N + N,
    ),
    "single-site-more-than-there-are": (
        {"bootstrap": "single-site", "sites": 50, "energy_target": "direct"},
        lambda far: N * K,
        lambda far: N * K + 2 * 9 * N + N,
    ),
    "single-site-bootstrap": (
        {"bootstrap": "single-site", "sites": 4, "energy_target": "bootstrap"},
        lambda far: (N - far) * K + 2 * 4 * N,  # late estimates, and neighbours that may be complete
        lambda far: 2 * 4 * N + N,  # a model that looks forward is the energy where nothing is masked
    ),
}


@pytest.mark.parametrize("forward_looking", [False, True])
@pytest.mark.parametrize("epsilon", [0.05, 0.3])
@pytest.mark.parametrize(("options", "blind", "looking"), COSTS.values(), ids=COSTS)
def test_energy_calls_of_a_step(options, blind, looking, epsilon, forward_looking):
    """K of the true energy for each state that needs it; partial energies for every state that E^φ sees."""
    step = {"epsilon": epsilon} if options.get("model", True) else {}
    method = ising_method(N, proposals=K, forward_looking=forward_looking, **step, **options)
    x_1 = {"s": method.path.space["s"].uniform((N,), generator=seeded())}  # type: ignore[union-attr]
    _, far = method.regression.times(N, seeded())
    assert far == (0 if "model" in options else {0.05: 19, 0.3: 14}[epsilon])
    expected = (looking if forward_looking and method.learned is not None else blind)(far)
    for first in (True, False, False):
        method.energy.target.energy_calls = 0
        method.losses(x_1, first=first, generator=seeded())
        calibration = N * K + N * forward_looking if first and method.learned is not None else 0
        assert method.energy.target.energy_calls == expected + calibration


def test_energy_calls_on_a_mixed_space():
    """The single-site limit serves the label; the real variable keeps its proposals."""
    oracle, n = ORACLES["mixed"], 30
    for options, direct in (({"energy_target": "direct"}, True), ({}, False)):
        for bootstrap in ("proposals", "single-site"):
            method = method_of(oracle, n, model=Exact(oracle), proposals=9, epsilon=0.2, bootstrap=bootstrap, **options)  # type: ignore[arg-type]
            _, far = method.regression.times(n, seeded())
            oracle.target.energy_calls = 0
            method.losses(end_points(oracle, n), first=False, generator=seeded())
            assert oracle.target.energy_calls == 9 * (n if direct else n - far)


# ---------------------------------------------------------------------- what cannot be trained, and walls


def test_bootstrapping_a_continuous_jump_is_refused():
    oracle = LabelledGaussians()
    processes = {**oracle.processes, "x": Jump(oracle.path["x"])}  # type: ignore[arg-type]
    arguments = (EnergyGuard(oracle.target), oracle.path, processes, Outputs(processes, 3))
    with pytest.raises(ValueError, match=r"egm-bs cannot train the Jump of 'x': .* use method='egm'"):
        EGM(*arguments, energy_model=Exact(oracle), options=EGMBSOptions())  # type: ignore[arg-type]
    EGM(*arguments, energy_model=None, options=EGMOptions())


def test_the_single_site_bootstrap_needs_a_masked_variable():
    oracle = TinyIsing(Uniform)
    with pytest.raises(ValueError, match=r"no variable follows a Masked path; use bootstrap='proposals'"):
        method_of(oracle, 4, model=Exact(oracle), bootstrap="single-site")


WALLED = {"flow": Flow, "diffusion": Diffusion, "jump": lambda path: Jump(path, bins=6)}


@pytest.mark.parametrize("proposal", ["flat", "reference"])
@pytest.mark.parametrize(
    ("make", "bootstrapped"), [*((m, False) for m in WALLED.values()), (Flow, True), (Diffusion, True)]
)
def test_states_without_a_legal_proposal_do_not_count(make, proposal, bootstrapped):
    """The law lives on x > 0 and on one of two labels; at late times every proposal from elsewhere has zero density."""
    space = Space(x=Real(1), b=Categorical(2))

    def energy(x, b):
        return torch.where((x[..., 0] > 0) & (b == 0), x[..., 0], math.inf)

    target, path, n = Target(space, energy), ProductPath(space), 64
    processes = {"x": make(path["x"]), "b": DiscreteJump(path["b"])}  # type: ignore[arg-type]
    network = Outputs(processes, n)
    if not isinstance(processes["x"], Jump):
        nn.init.constant_(network.values["x"], 0.3)
    model = EnergyModel(Constant(), path, target) if bootstrapped else None
    method = EGM(
        EnergyGuard(target), path, processes, network, energy_model=model,
        options=EGMBSOptions(proposals=64, t_min=0.9, proposal=proposal, epsilon=0.03),  # type: ignore[arg-type]
    )  # fmt: skip
    good = torch.arange(n) % 2 == 0
    x_1 = {"x": torch.where(good, 3.0, -3.0)[:, None], "b": torch.zeros(n, dtype=torch.int64)}
    losses = method.losses(x_1, first=True, generator=seeded())
    losses["loss"].backward()
    assert all(bool(torch.isfinite(value.detach())) for value in losses.values())
    gradient = network.values["x"].grad
    assert gradient is not None
    _, far = method.regression.times(n, seeded())
    zero_density = ~good & (torch.arange(n) >= far)  # before, E^φ stands in for the energy, and is finite
    assert float(gradient[zero_density].abs().max()) == 0
    assert float(gradient[good].abs().amax(tuple(range(1, gradient.ndim))).min()) > 0
    assert all(bool(torch.isfinite(p.grad).all()) for p in network.parameters() if p.grad is not None)
    if model is not None:
        assert bool(torch.isfinite(model.network.value.grad))  # type: ignore[union-attr, arg-type]
        assert math.isfinite(float(model.offset))
    method.energy.check()  # +inf is legal


def test_an_energy_that_goes_wrong_is_noticed_and_never_reaches_the_networks():
    target = Target(Space(x=Real(1)), lambda x: torch.where(x[..., 0] > 1, math.nan, x[..., 0].square()))
    path = ProductPath(target.space)
    processes = {"x": Flow(path["x"])}  # type: ignore[arg-type]
    method = EGM(
        EnergyGuard(target),
        path,
        processes,
        Outputs(processes, 32),
        energy_model=None,
        options=EGMOptions(proposals=64),
    )
    loss = method.losses({"x": torch.randn(32, 1, generator=seeded())}, first=True, generator=seeded())["loss"]
    assert bool(torch.isfinite(loss.detach()))
    with pytest.raises(ValueError, match=r"the energy is nan at the state x=\[1\."):
        method.energy.check()


# ---------------------------------------------------------------------- the energy model inside


def test_the_first_step_sets_the_units_and_no_other_does():
    oracle, n = ORACLES["masked"], 30
    model = Exact(oracle)
    method = method_of(oracle, n, model=model, proposals=4)
    for step in range(3):
        method.losses(end_points(oracle, n), first=step == 0, generator=seeded(step))
    assert model.calibrations == 1

    real = ising_method(N, proposals=500, epsilon=0.05, forward_looking=False)
    x_1 = {"s": real.path.space["s"].uniform((N,), generator=seeded())}  # type: ignore[union-attr]
    assert real.learned is not None
    real.losses(x_1, first=False, generator=seeded())
    assert (float(real.learned.model.offset), float(real.learned.model.scale)) == (0.0, 1.0)
    real.losses(x_1, first=True, generator=seeded())
    # revealed spins bring their known part of E, 9 masked ones −log Z + 9 log 2: the units are those of such residuals
    assert -4 < float(real.learned.model.offset) < -1


def constant_method(**options):
    oracle = ORACLES["mixed"]
    model = EnergyModel(Constant(1.0), oracle.path, oracle.target)
    return method_of(oracle, 8, model=model, proposals=4, **options), model, oracle.start()


def learned(method, model, start):
    """Returns what E^φ adds to its known part where it is used for weights."""
    t = torch.tensor(0.5)
    return float((method.learned(start, t) - model.known(start, t)).detach())


def test_estimates_use_the_running_average_once_it_has_begun():
    method, model, start = constant_method(energy_ema=0.9, energy_ema_start=0.5)
    with torch.no_grad():
        assert learned(method, model, start) == pytest.approx(1.0)
        model.network.value.fill_(2.0)  # type: ignore[union-attr, operator]
        method.after_step(0.49)  # too early
        assert not method.averaging
        assert learned(method, model, start) == pytest.approx(2.0)  # the network itself
        method.after_step(0.5)  # begins there
        assert method.averaging
        model.network.value.fill_(12.0)  # type: ignore[union-attr, operator]
        assert learned(method, model, start) == pytest.approx(2.0)
        method.after_step(0.6)
        assert learned(method, model, start) == pytest.approx(0.9 * 2 + 0.1 * 12)
    t = torch.full((8,), 0.5)
    states = {name: x.expand(8, *x.shape) for name, x in start.items()}
    plain = float((model(states, t) - model.known(states, t)).mean().detach())
    assert plain == pytest.approx(12.0)  # matching trains the network, not its average


def test_averaging_begins_at_once_by_default():
    method, model, start = constant_method()
    method.after_step(0.0)
    with torch.no_grad():
        model.network.value.fill_(50.0)  # type: ignore[union-attr, operator]
        assert learned(method, model, start) == pytest.approx(1.0)


def test_gradients_reach_the_networks_and_not_the_average():
    method, model, _ = constant_method()
    method.after_step(1.0)
    oracle = ORACLES["mixed"]
    losses = method.losses(end_points(oracle, 8), first=True, generator=seeded())
    losses["loss"].backward()
    torch.testing.assert_close(losses["loss"].detach(), losses["sampler_loss"] + losses["energy_loss"])
    assert method.learned is not None
    assert all(not p.requires_grad and p.grad is None for p in method.learned.average.parameters())
    assert model.network.value.grad is not None  # type: ignore[union-attr]
    assert all(p.grad is not None for p in method.network.parameters())


def test_clip_energy_reaches_the_matching_loss():
    def matching(clip):
        method, _, _ = constant_method(clip_energy=clip)
        return float(method.losses(end_points(ORACLES["mixed"], 8), first=False, generator=seeded())["energy_loss"])

    assert matching(-20.0) != pytest.approx(matching(None))
    assert matching(1e6) == pytest.approx(matching(None))


def test_modules_and_learning_rates():
    method, model, _ = constant_method(energy_learning_rate=0.02)
    assert list(method.modules()) == ["network", "energy_model", "energy_average"]
    denoiser, energies = method.parameter_groups(0.1)
    assert (denoiser["lr"], energies["lr"]) == (0.1, 0.02)
    assert {id(p) for p in denoiser["params"]} == {id(p) for p in method.network.parameters()}
    assert {id(p) for p in energies["params"]} == {id(p) for p in model.parameters()}
    plain = method_of(ORACLES["mixed"], 8)
    assert list(plain.modules()) == ["network"]
    assert [group["lr"] for group in plain.parameter_groups(0.1)] == [0.1]
    assert not plain.averaging


def test_options_out_of_range_are_named():
    for epsilon in (0.0, 1.0, -0.1, 0.0005):
        with pytest.raises(ValueError, match=f"epsilon is a step in time .* got {epsilon}"):
            EGMBSOptions(epsilon=epsilon)
    with pytest.raises(ValueError, match="proposals must be at least 1, got 0"):
        EGMOptions(proposals=0)
    with pytest.raises(ValueError, match="sites must be at least 1, got 0"):
        EGMBSOptions(sites=0)
    for t_min in (-0.1, T_MAX, 1.0):
        with pytest.raises(ValueError, match=rf"t_min must lie in \[0, {T_MAX}\), got {t_min}"):
            EGMOptions(t_min=t_min)
