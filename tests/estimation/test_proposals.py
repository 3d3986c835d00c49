"""Proposals by the sampler's own steps: correct for any prediction, with even weights for good ones."""

import math

import pytest
import torch

import egm
from egm.estimation.estimators import estimate
from egm.estimation.proposals import OwnSteps, make_proposals
from egm.methods.egm import EGM
from egm.methods.egm_options import EGMBSOptions
from egm.paths import VE, VP, CondOT, Masked, ProductPath, Uniform
from egm.processes import Diffusion, DiscreteJump, Flow
from egm.runs.directory import RunDirectory
from egm.simulation.denoiser_error import DenoiserError
from egm.spaces import Categorical, Real, Space
from egm.targets.guard import EnergyGuard
from support.egm_cases import Exact, end_points, seeded
from support.marginals import LabelledGaussians, TinyIsing
from support.stats import assert_mean

ORACLES = {
    "ising-masked": TinyIsing(Masked),
    "ising-uniform": TinyIsing(Uniform),
    "gaussian-condot": LabelledGaussians(CondOT, masses=(1.0,), means=(0.6,)),
    "gaussian-ve": LabelledGaussians(lambda v: VE(v, sigma_min=0.2), masses=(1.0,), means=(0.6,)),  # type: ignore[arg-type]
    "mixed-masked": LabelledGaussians(VP, Masked),
    "mixed-uniform": LabelledGaussians(CondOT, Uniform),
}
T, R = (torch.tensor(t, dtype=torch.float64) for t in (0.5, 0.65))


def wrong_steps(oracle, n):
    """Steps of a sampler that is far off, for n times the oracle's state."""
    prediction = {}
    for name, process in oracle.processes.items():
        shape = (n, *process.output_shape)
        if name in oracle.path.space.real:
            prediction[name] = torch.full(shape, 0.3, dtype=torch.float64)
        else:
            prediction[name] = torch.softmax(torch.arange(shape[-1], dtype=torch.float64), 0).expand(shape)
    return OwnSteps(prediction, {name: torch.full((n,), 0.7, dtype=torch.float64) for name in oracle.path.space.real})


def repeat(oracle, n, count, own, **options):
    x_t = {name: x.expand(n, *x.shape) for name, x in oracle.start().items()}
    return estimate(
        oracle.energy, oracle.path, oracle.processes, x_t, T.expand(n), r=R, count=count, proposal=own,
        generator=torch.Generator().manual_seed(0), **options,
    )  # fmt: skip


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
def test_the_energy_is_unbiased_in_density_whatever_the_sampler_predicts(oracle):
    got = repeat(oracle, 4000, 64, wrong_steps(oracle, 4000))
    assert_mean(torch.exp(oracle.energy(oracle.start(), T) - got.energy), 1.0)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
def test_estimates_are_the_exact_generator_whatever_the_sampler_predicts(oracle, centred):
    got, exact = (
        repeat(oracle, 225, 2048, wrong_steps(oracle, 225), centred=centred),
        oracle.prediction(oracle.start(), T),
    )
    for name, value in exact.items():
        spread, bias = got.prediction[name].std(0) / 15, got.prediction[name].var(0)
        off = (got.prediction[name].mean(0) - value).abs()
        assert bool((off <= 5 * spread + 5 * bias + 1e-9).all()), (name, off, spread)
        assert bool((5 * spread + 5 * bias < 0.15).all())


@pytest.mark.parametrize("make", [CondOT, VP, lambda v: VE(v, sigma_min=0.3)], ids=["condot", "vp", "ve"])
def test_an_untrained_sampler_proposes_by_the_reference_law(make):
    variable = Real(3)
    path = ProductPath(Space(x=variable), {"x": make(variable)})
    processes = {"x": Diffusion(path["x"])}  # type: ignore[arg-type]
    t, r = torch.linspace(0.1, 0.8, 5, dtype=torch.float64), torch.linspace(0.15, 0.95, 5, dtype=torch.float64)
    x_t = {"x": torch.randn(5, 3, dtype=torch.float64, generator=seeded())}
    alpha, variance = path["x"].alpha(t), path["x"].variance(t)  # type: ignore[union-attr]
    denoised = (alpha / (alpha**2 + variance))[:, None] * x_t["x"]  # of the standard Gaussian
    own = OwnSteps({"x": denoised}, {"x": DenoiserError(path)("x", t)})
    drawn = [make_proposals(path, processes, x_t, t, r, law=law).draw(7, seeded(1))["x"] for law in ("reference", own)]
    torch.testing.assert_close(*drawn)


def pairs(dimension=16, width=0.2):
    """Coordinates that are ±1 with a spread: E_r, the denoiser at t and its variance are known."""
    variable = Real(dimension)
    path = ProductPath(Space(x=variable))

    def log_terms(x, t):
        t = torch.as_tensor(t, dtype=torch.float64)[..., None, None]
        centres, v = torch.tensor([-1.0, 1.0], dtype=torch.float64), t**2 * width**2 + (1 - t) ** 2
        return -((x[..., None] - t * centres) ** 2) / (2 * v) - 0.5 * torch.log(v / width**2), centres, v, t

    def energy(state, r):
        return -torch.logsumexp(log_terms(state["x"], r)[0], -1).sum(-1)

    def moments(x, t):
        terms, centres, v, t = log_terms(x, t)
        share = torch.softmax(terms, -1)
        means = centres + t * width**2 / v * (x[..., None] - t * centres)
        mean = (share * means).sum(-1)
        return mean, (share * (means.square() + width**2 * (1 - t) ** 2 / v)).sum(-1) - mean.square()

    return path, energy, moments


def test_weights_are_even_where_the_sampler_predicts_well():
    """Sixteen coordinates of two modes each: the reference's proposals nearly all miss, the sampler's own do not."""
    path, energy, moments = pairs()
    n = 100
    t = torch.full((n,), 0.8, dtype=torch.float64)
    x_1 = torch.randint(0, 2, (n, 16), generator=seeded()) * 2.0 - 1 + 0.2 * torch.randn(n, 16, generator=seeded(1))
    x_t = path.sample({"x": x_1.double()}, t, generator=seeded(2))
    mean, variance = moments(x_t["x"], t)
    for process in (Flow, Diffusion):
        processes = {"x": process(path["x"])}  # type: ignore[arg-type]
        own, reference = (
            estimate(energy, path, processes, x_t, t, r=t + 0.05, count=64, proposal=law, generator=seeded(3))
            for law in (OwnSteps({"x": mean}, {"x": variance}), "reference")
        )
        assert own.ess.mean() > 0.9
        assert reference.ess.mean() < 0.3
        off = [float((got.prediction["x"] - mean).square().mean()) for got in (own, reference)]
        assert off[0] < off[1] / 2
        late = [float((got.energy - energy(x_t, t)).square().mean()) for got in (own, reference)]
        assert late[0] < late[1] / 10


def test_steps_of_particles_stay_centred():
    variable = Real((4, 2), centered=True)
    path = ProductPath(Space(x=variable))
    t = torch.full((6,), 0.4, dtype=torch.float64)
    x_t = {"x": variable.noise((6,), generator=seeded(), dtype=torch.float64)}
    own = OwnSteps(
        {"x": torch.randn(6, 4, 2, dtype=torch.float64, generator=seeded(1))}, {"x": DenoiserError(path)("x", t)}
    )
    proposals = make_proposals(path, {"x": Diffusion(path["x"])}, x_t, t, t + 0.1, law=own)  # type: ignore[arg-type]
    x_r = proposals.draw(9, seeded(2))
    torch.testing.assert_close(x_r["x"].mean(-2), torch.zeros(9, 6, 2, dtype=torch.float64))
    assert proposals.log_factor is not None
    assert proposals.log_factor(x_r).shape == (9, 6)


def test_tables_of_symbols_are_within_the_memory():
    """Each proposal has its own law at every site: fewer at a time, and the same draws."""
    variable = Categorical(9, shape=50)
    path = ProductPath(Space(s=variable), {"s": Masked(variable)})
    processes = {"s": DiscreteJump(path["s"])}  # type: ignore[arg-type]
    x_t = {"s": torch.full((4, 50), variable.mask)}
    own = OwnSteps({"s": torch.full((4, 50, 9), 1 / 9)}, {})
    drawn, got = [], []

    def energy(x_r, r):
        drawn.append(len(x_r["s"]))
        return x_r["s"].sum(-1) / 20.0

    for memory in (2**23, 2**30):
        law = {"proposal": own, "generator": seeded(), "memory": memory, "count": 512}
        got.append(estimate(energy, path, processes, x_t, 0.5, r=0.6, **law))
    assert drawn == [128] * 4 + [512]
    torch.testing.assert_close(got[0].energy, got[1].energy)


# ---------------------------------------------------------------------- as an option of EGM-BS


class Ignorant(torch.nn.Module):
    """Outputs of zero for every state."""

    def __init__(self, oracle):
        super().__init__()
        self.oracle, self.unused = oracle, torch.nn.Parameter(torch.zeros(()))

    def forward(self, state, t):
        return {name: torch.zeros(*t.shape, *p.output_shape) for name, p in self.oracle.processes.items()}


class Rough(torch.nn.Module):
    """Knows the reference law alone: symbols are uniform, means those of a standard Gaussian and half an error off."""

    def __init__(self, oracle):
        super().__init__()
        self.oracle, self.off = oracle, torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, state, t):
        found = {name: self.off.expand(*t.shape, *p.output_shape) for name, p in self.oracle.processes.items()}
        for name in self.oracle.path.space.real:
            alpha, variance = self.oracle.path[name].alpha(t), self.oracle.path[name].variance(t)
            whole = alpha**2 + variance
            found[name] = alpha / whole * state[name] + self.off * (variance / whole).sqrt()
        return found


def method_with(oracle, model, *, network=Rough, **options):
    return EGM(
        EnergyGuard(oracle.target), oracle.path, oracle.processes, network(oracle), energy_model=model,
        options=EGMBSOptions(proposal="sampler", **options), error=DenoiserError(oracle.path),
    )  # fmt: skip


@pytest.mark.parametrize("network", [Rough, Ignorant])
@pytest.mark.parametrize("name", ["ising-masked", "ising-uniform", "gaussian-condot", "mixed-masked"])
def test_with_exact_energies_the_targets_are_the_exact_denoiser(name, network):
    """For early states with any prediction; for late ones, whose end points are at 1, with a rough prediction.

    Near t = 1 a real variable's step is as narrow as its error, so a prediction that is many errors off misses.
    """
    oracle, n = ORACLES[name], 400
    options = {"proposals": 1024, "epsilon": 0.25, "t_min": 0.1, "memory": 2**25}
    method = method_with(oracle, Exact(oracle), network=network, **options)
    x_t, t, got, _, energy = method.regression(end_points(oracle, n), first=False, generator=seeded(3))
    assert not any(x.requires_grad for x in (energy, *got.prediction.values()))  # targets, which train nothing
    far = method.regression.times(n, seeded(3))[1]
    assert 200 < far < n - 80
    for key, exact in oracle.prediction(x_t, t.double()).items():
        wrong = network is Ignorant and bool(oracle.path.space.real)
        for part in (slice(far),) if wrong else (slice(far), slice(far, None)):
            assert_mean((got.prediction[key] - exact)[part], 0.0, f"{key}, states {part}")
            assert float((got.prediction[key] - exact)[part].square().mean().sqrt()) < 0.2


def test_each_state_is_proposed_for_by_its_own_prediction(monkeypatch):
    """Means that differ between states, at their times: the end points asked for lie around the states' own bridges."""
    oracle, n, asked = ORACLES["gaussian-condot"], 60, []
    model = Exact(oracle)
    monkeypatch.setattr(model, "energy", lambda x_r, r: asked.append((x_r["x"], r)) or torch.zeros_like(x_r["x"]))
    method = method_with(oracle, model, proposals=4000, epsilon=0.1, t_min=0.1)
    own = torch.linspace(-20, 20, n)
    monkeypatch.setattr(
        "egm.methods.regression.predict", lambda network, processes, x_t, t: {"x": own[: len(t)].double()}
    )
    x_t, t, *_ = method.regression(end_points(oracle, n), first=False, generator=seeded())
    far = method.regression.times(n, seeded())[1]
    x_r, r = torch.cat([x.double() for x, _ in asked]), asked[0][1]
    mean, _, _ = oracle.path["x"].bridge(x_t["x"][:far], own[:far].double(), t[:far], r)  # type: ignore[union-attr]
    torch.testing.assert_close(x_r.mean(0), mean, rtol=0, atol=0.05)


@pytest.mark.parametrize(("target", "late"), [("bootstrap", OwnSteps), ("direct", str)])
def test_end_points_further_than_epsilon_are_by_the_reference_law(monkeypatch, target, late):
    """E^φ regressed on Ê_t by the target's energy has end points at 1 for all times."""
    oracle, laws = ORACLES["mixed-masked"], []

    def kept(*args, proposal, **options):
        laws.append((proposal, options["r"]))
        return estimate(*args, proposal=proposal, **options)

    monkeypatch.setattr("egm.methods.regression.estimate", kept)
    method = method_with(oracle, Exact(oracle), proposals=16, epsilon=0.25, t_min=0.1, energy_target=target)
    _, t, *_ = method.regression(end_points(oracle, 50), first=False, generator=seeded())
    (last, one), (first, r) = laws
    assert isinstance(last, late)
    assert late is OwnSteps or last == "reference"
    assert one == 1.0
    assert isinstance(first, OwnSteps)
    assert bool((r < 1).all())
    torch.testing.assert_close(first.errors["x"], DenoiserError(oracle.path)("x", t[: len(r)]))


def test_own_steps_are_for_egm_bs():
    space = egm.Space(x=egm.Real(1))
    target = egm.Target(space, lambda x: x.square().sum(-1))
    with pytest.raises(ValueError, match="proposal='sampler' proposes the short steps of egm-bs"):
        egm.fit(target, method="egm", steps=1, proposal="sampler", progress=False)


def test_a_mixed_space_is_trained_with_own_steps_at_the_same_calls(tmp_path):
    calls = {}
    for proposal in ("reference", "sampler"):
        target = egm.targets.GBRBM()
        egm.fit(
            target, method="egm-bs", steps=6, batch_size=16, proposals=8, refresh=16, proposal=proposal, progress=False,
            seed=0, device="cpu", sample_steps=4, out=tmp_path / proposal, log_every=1,
        )  # fmt: skip
        rows = [row for row in RunDirectory(tmp_path / proposal).read_metrics() if row["ess"]]
        assert len(rows) == 6
        assert all(math.isfinite(float(row["sampler_loss"])) and 0 < float(row["ess"]) <= 1 for row in rows)
        calls[proposal] = target.energy_calls
    assert calls["sampler"] == calls["reference"]
