"""EGM-SP: weights between the reference law and the target, resampling, a loss that exact denoisers minimise, runs."""

import itertools
import math
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from torch import nn

import egm
import egm.methods.self_proposal as module
from egm import targets
from egm.draws.diagnostics import weight_ess
from egm.methods.self_proposal import SelfProposal, SPOptions, log_weights
from egm.paths import ProductPath
from egm.processes import Diffusion, Jump
from egm.simulation.denoiser_error import DenoiserError
from egm.simulation.simulate import Simulation
from egm.spaces import Real, Space
from egm.targets import Target
from egm.targets.guard import EnergyGuard
from egm.train import method as base
from egm.train.buffer import ReplayBuffer
from egm.train.method import T_MAX
from egm.train.progress import Silent
from egm.train.trainer import LAST_PART
from support.egm_cases import ORACLES, Constant, seeded
from support.marginals import LabelledGaussians, TinyIsing
from support.stats import assert_counts, assert_mean
from support.training import (
    SMALL_SP,
    SPACES,
    as_sampler,
    assert_same,
    assert_same_runs,
    interrupt_during,
    metrics_of,
    state_of,
)

DOUBLE = torch.float64
INF = math.inf


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=DOUBLE)


def ess_of(terms, b):
    w = torch.softmax(log_weights(terms, number(b)), 0)
    return float(1 / (len(w) * w.square().sum()))


# ---------------------------------------------------------------------- weights and tempering


@pytest.mark.parametrize(
    ("b", "expected"),
    [(0.0, [0.5 - 2.0, -1.0, -INF]), (0.3, [0.5 - 1.4 - 0.9, -0.7 + 0.6, -INF]), (1.0, [-2.5, 2.0, -INF])],
)
def test_weights_by_hand(b, expected):
    """log_ratio + (1−b) log p_ref − b E, and nothing where E is infinite, also at b = 0."""
    terms = torch.tensor([[0.5, -2.0, 3.0], [0.0, -1.0, -2.0], [1.0, 4.0, INF]], dtype=DOUBLE)
    assert log_weights(terms, number(b)).tolist() == pytest.approx(expected)


def make_method(energy, network=None, **options):
    """On a plane, with x ~ N(0, I) as the reference law."""
    target = Target(Space(x=Real(2)), energy)
    path = ProductPath(target.space)
    return SelfProposal(
        EnergyGuard(target), path, {"x": Diffusion(path["x"])}, network or Constant(), error=DenoiserError(path),  # type: ignore[arg-type]
        options=SPOptions(**options),
    )  # fmt: skip


def reference_draws(n, seed, spread=1.0):
    """Draws of N(0, spread²), with their log-ratio, minus the log of that density."""
    x = spread * torch.randn(n, 2, generator=seeded(seed), dtype=DOUBLE)
    return x, (x / spread).square().sum(-1) / 2 + math.log(2 * math.pi * spread**2)


def refresh(method, buffer, x, log_ratio):
    method.refresh(buffer, Simulation({"x": x}, log_ratio))


def test_b_is_the_largest_that_keeps_the_effective_sample_size():
    n, energy = 2000, lambda x: 8 * (x - 0.8).square().sum(-1)
    method, buffer = make_method(energy, ess_target=0.4), ReplayBuffer(4 * n)
    found = []
    for seed, spread in enumerate([1.0, 0.8, 0.7, 3.0, 0.7]):
        x, log_ratio = reference_draws(n, seed, spread)
        before = float(method.b)
        refresh(method, buffer, x, log_ratio)
        b, log_ref = float(method.b), -x.square().sum(-1) / 2 - math.log(2 * math.pi)
        terms = torch.stack([log_ratio, log_ref, energy(x)], 1)
        assert float(method.ess) == pytest.approx(ess_of(terms, b))
        if ess_of(terms, before) >= 0.4:
            assert ess_of(terms, b) >= 0.4 - 1e-6
            assert ess_of(terms, b + 1e-4) < 0.4
            assert b > before
        else:  # a bad round does not move it back
            assert b == before
        found.append(b)
    assert found == sorted(found)
    assert len(set(found)) < 5  # the wide round was a bad one
    assert 0.05 < found[0] < found[2] < 1


def test_b_is_one_as_soon_as_the_target_itself_will_do():
    method = make_method(lambda x: 0.7 * x.square().sum(-1), ess_target=0.6)
    x, log_ratio = reference_draws(500, 0)
    refresh(method, ReplayBuffer(500), x, log_ratio)
    assert float(method.b) == 1
    assert 0.6 < float(method.ess) < 0.99


def test_b_begins_where_the_sampler_already_is():
    """Draws of π_b for b = 0.7, as of a warm start: no weights at b = 0, and good ones from 0.7 on."""
    n, d, tight = 2000, 40, 10.0

    def energy(x):
        return 0.5 * tight * x.square().sum(-1)

    target = Target(Space(x=Real(d)), energy)
    path = ProductPath(target.space)
    processes = {"x": Diffusion(path["x"])}  # pyright: ignore[reportArgumentType]
    method = SelfProposal(
        EnergyGuard(target),
        path,
        processes,
        Constant(),
        error=DenoiserError(path),
        options=SPOptions(),  # type: ignore[arg-type]
    )
    precision = 0.3 + 0.7 * tight
    x = torch.randn(n, d, generator=seeded(0), dtype=DOUBLE) / precision**0.5
    log_ratio = 0.5 * precision * x.square().sum(-1) + 0.5 * d * math.log(2 * math.pi / precision)
    refresh(method, ReplayBuffer(n), x, log_ratio)
    assert 0.75 < float(method.b) < 1
    assert float(method.ess) == pytest.approx(0.4, abs=1e-3)
    at_zero = log_weights(
        torch.stack([log_ratio, -x.square().sum(-1) / 2, energy(x)], 1), torch.zeros((), dtype=DOUBLE)
    )
    assert float(weight_ess(at_zero)) < 0.05


def test_b_is_not_lost_where_the_density_is_zero():
    """Half of the draws are illegal: the rest is even, so the target (a half plane) is reached at once."""
    method = make_method(lambda x: torch.where(x[..., 0] > 0, x.square().sum(-1) / 2, INF), ess_target=0.4)
    x, log_ratio = reference_draws(1000, 0)
    buffer = ReplayBuffer(1000)
    refresh(method, buffer, x, log_ratio)
    assert float(method.b) == 1
    assert float(method.ess) == pytest.approx(float((x[:, 0] > 0).double().mean()))
    taken = method.end_points(buffer, 5000, seeded())["x"]
    assert bool((taken[:, 0] > 0).all())


def test_everything_in_the_buffer_is_weighed_at_the_new_b():
    n, energy = 300, lambda x: 6 * (x - 0.5).square().sum(-1)
    method, buffer = make_method(energy, ess_target=0.5), ReplayBuffer(2 * n)
    rounds = [reference_draws(n, seed, spread) for seed, spread in enumerate([1.0, 0.7])]
    for x, log_ratio in rounds:
        refresh(method, buffer, x, log_ratio)
    x, log_ratio = (torch.cat(parts) for parts in zip(*rounds, strict=True))
    terms = torch.stack([log_ratio, -x.square().sum(-1) / 2 - math.log(2 * math.pi), energy(x)], 1)
    expected = torch.softmax(log_weights(terms, method.b), 0)
    counts = torch.zeros(2 * n)
    for seed in range(200):
        taken = method.end_points(buffer, 500, seeded(seed))["x"]
        counts += (taken[:, None] == x).all(-1).sum(0)
    assert_counts(counts, expected, "end points of both rounds")
    assert 0.2 < float(expected[:n].sum()) < 0.8


# ---------------------------------------------------------------------- resampling


def held(weights):
    """A method at b = 1 whose buffer holds states (i, 0) with these weights."""
    method, n = make_method(lambda x: torch.zeros(x.shape[:-1])), len(weights)
    buffer = ReplayBuffer(n)
    x = torch.stack([torch.arange(n, dtype=DOUBLE), torch.zeros(n, dtype=DOUBLE)], 1)
    refresh(method, buffer, x, torch.tensor(weights, dtype=DOUBLE).log())
    method.b.fill_(1.0)
    method.weigh(buffer)
    return method, buffer


def shares(method):
    return torch.diff(method._cumulative, prepend=torch.zeros(1, dtype=DOUBLE))


def test_weights_of_few_draws_are_flattened():
    """To an ESS of half of `ess_target`; their order is kept, and zeros stay zero."""
    weights = [0.0, *(10.0 ** (k / 4) for k in range(40))]
    method, _ = held(weights)
    plain, found = torch.tensor(weights, dtype=DOUBLE) / sum(weights), shares(method)
    assert 1 / float(plain.square().sum()) / 41 < 0.1
    assert 1 / float(found.square().sum()) / 41 == pytest.approx(0.5 * method.options.ess_target, rel=1e-6)
    assert float(found[0]) == 0
    power = found[1:].log().diff() / plain[1:].log().diff()
    torch.testing.assert_close(power, power[:1].expand(39), rtol=1e-6, atol=0)
    assert 0 < float(power[0]) < 1


def test_weights_of_many_draws_are_left_alone():
    weights = [1.0, 2.0, 3.0, 4.0] * 10
    method, _ = held(weights)
    torch.testing.assert_close(shares(method), torch.tensor(weights, dtype=DOUBLE) / sum(weights))


def test_a_single_draw_is_not_learned_by_heart():
    """One weight above all others is cut to what `ess_target` allows, however large it is."""
    for size in (1e3, 1e9, 1e200):
        method, _ = held([1.0] * 99 + [size])
        assert float(shares(method).max()) < 1 / (0.5 * method.options.ess_target * 100) ** 0.5 + 1e-9


WEIGHTS = [0.0, 3.0, 0.5, 0.0, 1.0, 5.0, 0.25, 0.25, 0.0]


def test_end_points_have_their_weights():
    method, buffer = held(WEIGHTS)
    share = torch.tensor(WEIGHTS) / sum(WEIGHTS)
    total, n = torch.zeros(9), 128
    positions = []
    for seed in range(300):
        index = method.end_points(buffer, n, seeded(seed))["x"][:, 0].long()
        counts = torch.bincount(index, minlength=9)
        assert bool(((counts - n * share).abs() < 2).all())  # stratified: less spread than independent draws
        total += counts
        positions.append(float((index[: n // 2] >= 5).float().mean() - (index[n // 2 :] >= 5).float().mean()))
    assert_counts(total, share)
    assert_mean(positions, 0.0, "order")  # times are stratified too, and must not go with the states
    assert set(method.end_points(buffer, 4, seeded())) == {"x"}  # and not what the buffer keeps in addition


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-24])
def test_states_of_weight_zero_are_never_taken(monkeypatch, u):
    """Also at the ends of the unit interval, which uniform numbers in single precision do reach."""
    method, buffer = held(WEIGHTS)
    rand = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *size, **options: torch.full_like(rand(*size, **options), u))
    for n in (1, 7, 1024):
        index = method.end_points(buffer, n, seeded())["x"][:, 0].long()
        assert not bool(torch.isin(index, torch.tensor([0, 3, 8])).any())


# ---------------------------------------------------------------------- the loss


def exact_draws(oracle, n, generator):
    if isinstance(oracle, TinyIsing):
        law = torch.softmax(-oracle.target.energy(s=oracle.states).double(), 0)
        return {"s": oracle.states[torch.multinomial(law, n, replacement=True, generator=generator)]}
    b = torch.multinomial(torch.tensor(oracle.masses), n, replacement=True, generator=generator)
    noise = torch.randn(n, generator=generator, dtype=DOUBLE)
    return {"x": torch.tensor(oracle.means, dtype=DOUBLE)[b] + math.sqrt(oracle.s2) * noise, "b": b}


class Perturbed(nn.Module):
    """The exact denoiser, and `size` times something that depends on state, time, site and symbol."""

    def __init__(self, oracle):
        super().__init__()
        self.oracle, self.size = oracle, nn.Parameter(torch.zeros((), dtype=DOUBLE))

    def forward(self, state, t):
        found = {}
        for name, exact in self.oracle.prediction(state, t.double()).items():
            sums = sum(x.reshape(len(t), -1).double().sum(1) for x in state.values())
            phase = torch.arange(exact[0].numel()).reshape(exact.shape[1:])
            wave = torch.cos(2 * phase + (3 * t + sums).reshape(-1, *(1,) * phase.ndim))
            symbols = name in self.oracle.target.space.categorical
            base = exact.clamp(min=1e-30).log() if symbols else exact
            found[name] = base + self.size * wave * (1.0 if symbols else 0.3)
        return found


def method_of(oracle, network):
    return SelfProposal(
        EnergyGuard(oracle.target), oracle.path, oracle.processes, network, error=DenoiserError(oracle.path),
        options=SPOptions(),
    )  # fmt: skip


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
def test_the_exact_denoiser_minimises_the_loss(oracle):
    """Its gradient vanishes in the mean over exact draws; on either side losses and slopes grow."""
    network = Perturbed(oracle)
    method, slopes, values = method_of(oracle, network), {}, {}
    losses = {}
    for size in (-0.5, 0.0, 0.5):
        network.size.data.fill_(size)
        slopes[size], values[size] = [], []
        for seed in range(120):
            generator = seeded(seed)
            losses = method.losses(exact_draws(oracle, 200, generator), first=False, generator=generator)
            (slope,) = torch.autograd.grad(losses["loss"], network.size)
            slopes[size].append(float(slope))
            values[size].append(float(losses["loss"].detach()))
    assert_mean(slopes[0.0], 0.0, "slope at the exact denoiser")
    for size in (-0.5, 0.5):
        with pytest.raises(AssertionError):
            assert_mean(slopes[size], 0.0)
        assert math.copysign(1, size) * sum(slopes[size]) > 0
        grown = torch.tensor(values[size]) - torch.tensor(values[0.0])  # on the same draws and times
        assert float(grown.mean()) > 4 * float(grown.std()) / math.sqrt(len(grown))
    assert set(losses) == {"loss", "sampler_loss", "ess", "b", "power"}


def test_steps_measure_the_denoiser_s_error():
    oracle = LabelledGaussians(masses=(1.0,), means=(0.4,), s2=0.05)
    method = method_of(oracle, Perturbed(oracle))
    for seed in range(200):
        generator = seeded(seed)
        x_1 = {"x": 0.4 + math.sqrt(0.05) * torch.randn(500, generator=generator, dtype=DOUBLE)}
        method.losses(x_1, first=False, generator=generator)
    t = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=DOUBLE)
    posterior = 1 / (1 / 0.05 + (t / (1 - t)) ** 2)
    assert method.error is not None
    torch.testing.assert_close(method.error("x", t), posterior, rtol=0.1, atol=0)


class Tables(nn.Module):
    """Logits for each of the 3⁴ running states of four spins."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(1.5 * torch.randn(81, 2, 2, 2, generator=seeded(5), dtype=DOUBLE))

    def forward(self, state, t):
        return {"s": self.logits[(state["s"].reshape(-1, 4) * torch.tensor([27, 9, 3, 1])).sum(-1)]}


@torch.no_grad()
def surprises(oracle, network):
    """E of Σ_hidden −log D(x_1^i | revealed), for m = 1 … 4 hidden sites: the sum over all sets of m, [4]."""
    law = torch.softmax(-oracle.target.energy(s=oracle.states).double(), 0)
    found = torch.zeros(5, dtype=DOUBLE)
    for hidden in itertools.product([False, True], repeat=4):
        mask = torch.tensor(hidden).reshape(2, 2)
        logits = network({"s": torch.where(mask, 2, oracle.states)}, torch.zeros(16))["s"]
        each = -torch.log_softmax(logits, -1).gather(-1, oracle.states[..., None])[..., 0]
        found[sum(hidden)] += float((law * (each * mask).sum((1, 2))).sum())
    return found[1:].tolist()


@pytest.mark.parametrize("last", [0.75, T_MAX])
def test_the_cross_entropy_is_the_path_s_likelihood(monkeypatch, last):
    """Over t uniform on [0, T]: m sites hidden with weight 1/(1−t), cut where less than one is expected to be.

    Up to the cut (t = 1 − 1/sites) it is Σ_i −log D at the time of the reveal, in mean over orders; after it the last
    reveals count less, which leaves the minimiser where it is.
    """
    oracle, network = TinyIsing(beta=0.5), Tables()
    monkeypatch.setattr(base, "T_MAX", last)
    method, found = method_of(oracle, network), []
    for seed in range(400):
        generator = seeded(seed)
        losses = method.losses(exact_draws(oracle, 400, generator), first=False, generator=generator)
        found.append(4 * float(losses["sampler_loss"]))
    expected = sum(
        surprise * quad(lambda t, m=m: (1 - t) ** m * t ** (4 - m) / max(1 - t, 0.25), 0, last, points=[0.75])[0] / last
        for m, surprise in enumerate(surprises(oracle, network), 1)
    )
    assert_mean(found, expected, "loss times sites")
    assert float(torch.tensor(found).std()) / 20 < 0.01 * expected


@torch.no_grad()
def test_the_weights_of_a_likelihood():
    """∫ (1−t)^{m−1} t^{4−m} dt over all sets of m hidden sites is the mean over orders of the reveals, each once."""
    oracle, network = TinyIsing(beta=0.5), Tables()
    law = torch.softmax(-oracle.target.energy(s=oracle.states).double(), 0)
    by_order = []
    for order in itertools.permutations(range(4)):
        hidden, total = torch.ones(4, dtype=torch.bool), torch.zeros(16, dtype=DOUBLE)
        for site in order:
            logits = network({"s": torch.where(hidden.view(2, 2), 2, oracle.states)}, torch.zeros(16))["s"]
            each = -torch.log_softmax(logits, -1).gather(-1, oracle.states[..., None])[..., 0]
            total, hidden[site] = total + each.reshape(16, 4)[:, site], False
        by_order.append(float((law * total).sum()))
    weights = [quad(lambda t, m=m: (1 - t) ** (m - 1) * t ** (4 - m), 0, 1)[0] for m in range(1, 5)]
    likelihood = sum(w * s for w, s in zip(weights, surprises(oracle, network), strict=True))
    assert likelihood == pytest.approx(sum(by_order) / 24)


# ---------------------------------------------------------------------- when to stop


def even_to(ess, n=10_000):
    """Draws at one point of which a share carries all the weight, so that ESS is that share at every b."""
    log_ratio = torch.where(torch.arange(n) < round(ess * n), 0.0, -INF).double()
    return torch.zeros(n, 2, dtype=DOUBLE), log_ratio


def rounds_until_finished(series, **options):
    method, buffer = make_method(lambda x: torch.zeros(x.shape[:-1]), **options), ReplayBuffer(10_000)
    for k, ess in enumerate(series):
        if method.finished():
            return k
        refresh(method, buffer, *even_to(ess))
    return len(series) if method.finished() else None


def test_training_ends_when_the_effective_sample_size_stops_to_improve():
    rising = [0.5 + 0.02 * k for k in range(20)]
    assert rounds_until_finished(rising, patience=3) is None
    assert rounds_until_finished([0.8] * 20, patience=3) == 6
    assert rounds_until_finished([0.8] * 20, patience=0) is None
    # rising for ten rounds, then flat: means of three rounds last differ by more than 1e-3 at rounds 8 … 13
    assert rounds_until_finished([*rising[:10], *[0.68] * 20], patience=3) == 15
    # noise around a level is no improvement; a fall is none either
    assert rounds_until_finished([0.8, 0.7] * 10, patience=4) == 8
    assert rounds_until_finished([0.9, 0.8, 0.7, 0.6, 0.5], patience=2) == 4
    # not before the target is reached, whatever the weights: b stays at 0 here
    assert rounds_until_finished([0.3] * 20, patience=2) is None
    # and the rounds on the way (b < 1) do not count
    assert rounds_until_finished([*[0.3999] * 5, *[0.4002] * 10], patience=2) == 9


def test_bad_options_are_refused():
    for name, value in [("ess_target", 0.0), ("ess_target", 1.0), ("patience", -1)]:
        with pytest.raises(ValueError, match=f"{name} .*got {value}"):
            SPOptions(**{name: value})


# ---------------------------------------------------------------------- going on


def test_state_is_saved_and_loaded():
    energy = lambda x: 8 * (x - 0.8).square().sum(-1)  # noqa: E731
    method, buffer, n = make_method(energy, patience=3), ReplayBuffer(500), 200
    for seed in range(4):
        refresh(method, buffer, *reference_draws(n, seed, 0.8))
    again, copy = make_method(energy, patience=3), ReplayBuffer(500)
    copy.load_state_dict(buffer.state_dict())
    again.load_state_dict(method.state_dict(), copy)
    assert 0 < float(method.b) < 1
    for either, its in ((method, buffer), (again, copy)):
        refresh(either, its, *reference_draws(n, 7, 0.6))
    assert_same(again.state_dict(), method.state_dict())
    assert len(method.state_dict()["history"]) == 5
    assert_same(again.end_points(copy, 64, seeded(3)), method.end_points(buffer, 64, seeded(3)))
    empty = make_method(energy)
    empty.load_state_dict(make_method(energy).state_dict(), ReplayBuffer(5))  # a run that was stopped before its first
    assert float(empty.b) == 0


#: a run of milliseconds a step, without the options of EGM
TINY = SMALL_SP
RUN: dict[str, Any] = {**TINY, "steps": 40}


@pytest.mark.parametrize("space", SPACES)
def test_interrupted_runs_resume_bit_by_bit(tmp_path, monkeypatch, space):
    """Before the first checkpoint (1), at a checkpoint (20), before refreshes (12, 36), within a round (25)."""
    whole = tmp_path / "whole"
    egm.fit(SPACES[space](), "egm-sp", out=whole, **RUN)
    assert {float(row["b"]) for row in metrics_of(whole) if row["b"]} != {0.0}
    for stops in [(1, 20), (12, 25, 36)]:
        out = tmp_path / str(stops[0])
        with monkeypatch.context() as patch:
            interrupt_during(patch, *stops)
            egm.fit(SPACES[space](), "egm-sp", out=out, **RUN)
            for stop in stops:
                assert state_of(out)["step"] == stop
                egm.resume(out, progress=False)
        assert_same_runs(out, whole)
        assert_same(as_sampler(egm.load(out)).error.state_dict(), state_of(whole)["error"])
    assert len(state_of(whole)["method"]["history"]) == 7
    assert set(state_of(whole)["buffer"]["states"]) == {*SPACES[space]().space, ".terms"}


def test_a_run_that_is_finished_stops_by_itself(tmp_path):
    """The reference law as the target: nothing can improve. It is saved, and stays finished."""
    target = Target(Space(x=Real(2)), lambda x: x.square().sum(-1) / 2, name="own")
    options = {**TINY, "refresh": 200, "buffer": 400, "learning_rate": 1e-5, "patience": 2}
    egm.fit(target, "egm-sp", steps=300, out=tmp_path, **options)
    assert 24 <= LAST_PART * state_of(tmp_path)["step"] < 150  # a last part follows
    before = state_of(tmp_path)
    egm.resume(tmp_path, target=target, progress=False)
    assert_same(state_of(tmp_path), before)


# ---------------------------------------------------------------------- what it asks for


def test_a_jump_is_refused_with_the_reason():
    oracle = LabelledGaussians()
    processes = {**oracle.processes, "x": Jump(oracle.path["x"], bins=8)}  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"egm-sp trains on weighted draws.* Jump of 'x' has no step density; use a"):
        SelfProposal(
            EnergyGuard(oracle.target), oracle.path, processes, Constant(), error=DenoiserError(oracle.path),
            options=SPOptions(),
        )  # fmt: skip
    with pytest.raises(ValueError, match="Jump of 'x' has no step density"):
        egm.fit(targets.JointMoG(dim=2), "egm-sp", steps=1, processes={"x": "jump"}, **TINY)


@pytest.mark.parametrize("space", SPACES)
def test_energies_are_asked_for_once_a_draw(space, tmp_path):
    """`refresh` a round, and those of the check at the start; training steps need neither energies nor gradients."""
    checked, target = SPACES[space](), SPACES[space]()
    checked.check(torch.device("cpu"), seed=0, dtype=torch.float32)
    egm.fit(target, "egm-sp", steps=13, out=tmp_path, **TINY)  # rounds at 0, 6 and 12
    assert target.energy_calls - checked.energy_calls == 3 * TINY["refresh"]
    assert state_of(tmp_path)["energy_calls"] == target.energy_calls
    assert target.score_calls == 0


def test_training_does_not_look_at_the_answer(monkeypatch):
    """Exact draws and exact log Z are for evaluation alone."""

    def forbidden(*_, **__):
        raise AssertionError("training asked for the reference")

    for name in ("_exact_sample", "_log_z", "observables"):
        monkeypatch.setattr(targets.JointMoG, name, forbidden)
    sampler = egm.fit(targets.JointMoG(dim=2), "egm-sp", steps=20, **TINY)
    ended: list[str] = []
    monkeypatch.setattr(Silent, "say", lambda self, text: ended.append(text))
    options = {**TINY, "patience": 1, "ess_target": 0.001, "inner_steps": 2}
    egm.fit(targets.JointMoG(dim=2), "egm-sp", steps=60, start=sampler, **{**options, "network": None})
    assert len(ended) == 1  # the end of training was decided, without the answer


# ---------------------------------------------------------------------- end to end

CENTRES, MASSES, WIDTH = [[1.5, 1.0], [-1.2, 0.8], [0.2, -1.5]], [0.5, 0.3, 0.2], 0.4


class Mixture(Target):
    """Three Gaussians in the plane, Z = 2π·WIDTH²."""

    def __init__(self):
        super().__init__(Space(x=Real(2, scale=1.2)), self._mixture, name="Mixture()")

    def _mixture(self, x):
        square = (x[..., None, :] - x.new_tensor(CENTRES)).square().sum(-1)
        return -torch.logsumexp(x.new_tensor(MASSES).log() - square / (2 * WIDTH**2), -1)

    def _log_z(self):
        return math.log(2 * math.pi * WIDTH**2)


def spin_products(s):
    spins = 2.0 * s - 1
    return torch.stack([(spins * spins.roll(1, axis)).mean((1, 2)) for axis in (1, 2)], 1)


def near_centres(x):
    nearest = (x[:, None] - x.new_tensor(CENTRES)).square().sum(-1).argmin(1)
    return torch.nn.functional.one_hot(nearest, 3)


def same_side(x, b):
    return torch.cat([x * (2 * b - 1), (b[:, :1] == b[:, 1:]).float()], 1)


def bond():
    """⟨s s'⟩ of neighbours on the 3 × 3 torus, by enumeration."""
    s = torch.cartesian_prod(*[torch.arange(2)] * 9).reshape(-1, 3, 3)
    law = torch.softmax(-targets.Ising(3, 0.4).energy(s=s).double(), 0)
    return (law[:, None] * spin_products(s)).sum(0)


FAST: dict[str, Any] = {
    **{"batch_size": 256, "refresh": 512, "inner_steps": 10, "buffer": 2048, "learning_rate": 5e-3, "sample_steps": 16},
    **{"device": "cpu", "progress": False},
}
RESIDUAL = {"network": "ResidualMLP(width=48, depth=2)", "steps": 250, "ema": 0.95}
#: target, run, ESS that is reached (mean − 4 sd over five seeds), something to expect with its value
END_TO_END: dict[str, Any] = {
    "discrete": (lambda: targets.Ising(3, 0.4), {"network": "MLP(width=64)", "steps": 120, "ema": 0.97}, 0.69,
                 spin_products, bond),
    "continuous": (Mixture, {**RESIDUAL, "steps": 200}, 0.51, near_centres, lambda: torch.tensor(MASSES, dtype=DOUBLE)),
    "mixed": (lambda: targets.JointMoG(dim=2), RESIDUAL, 0.30, same_side,
              lambda: torch.tensor([1.0, 1.0, 0.5], dtype=DOUBLE)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", END_TO_END)
def test_it_learns_and_its_weights_are_right(monkeypatch, kind):
    """ESS over seeds 0 … 4: Ising .825 .801 .798 .755 .800, mixture .574 .565 .577 .611 .583, JointMoG .486 .452 .565
    .574 .579. Untrained .011, .143, .053; with uniform weights .010, .184, .057.
    """
    make, run, threshold, function, exact = END_TO_END[kind]
    target = make()
    sampler = egm.fit(target, "egm-sp", seed=0, **{**FAST, **run})
    draws = sampler.sample(5000, seed=1)
    assert draws.ess > threshold
    assert abs(draws.log_z - target.log_z) < 4 * draws.log_z_stderr < 0.1
    mean, stderr = draws.expect(function)
    off = (mean - exact()).abs() / stderr
    assert float(off.max()) < 4
    untrained = egm.fit(make(), "egm-sp", seed=0, **{**FAST, **run, "steps": 1})
    monkeypatch.setattr(module, "log_weights", lambda terms, b: torch.zeros_like(terms[:, 0]))
    uniform = egm.fit(make(), "egm-sp", seed=0, **{**FAST, **run})
    for failed in (untrained, uniform):
        assert failed.sample(2000, seed=1).ess < 0.5 * threshold
