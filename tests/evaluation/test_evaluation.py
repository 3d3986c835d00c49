"""Evaluation: exact draws score at the floor and untrained ones do not; draws are fresh; nothing is left behind."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import egm
from egm import targets
from egm.config.targets import make_target
from egm.draws import Draws
from egm.evaluation.scores import metrics_of, quick_scores
from egm.metrics import floor, floors
from egm.metrics.floors import floor_key, known_floor
from egm.runs.environment import commit
from egm.targets.base import Target
from egm.util.seeds import derive_seed
from support.reference_cases import ByMCMC
from support.stats import z_limit
from support.training import SMALL, fit, make_trainer, own_target

RECORD = {
    *("target", "method", "seed", "n", "repeats", "metrics", "resampled", "ess", "log_z", "log_z_stderr", "elbo"),
    *(
        "eubo",
        "log_z_exact",
        "observables",
        "modes",
        "eval_energy_calls",
        "symmetries",
        "dtype",
        "hardware",
        "torch",
        "commit",
    ),
}


class FakeSampler:
    """Draws by a function of (n, seed), and keeps the seeds."""

    def __init__(self, target, draw=None):
        self.target, self.space, self.draw, self.seeds = target, target.space, draw or target.exact_sample, []
        self.config = {"method": "fake", "seed": 17, "dtype": "float32"}
        self.device, self.network = torch.device("cpu"), SimpleNamespace(symmetries=("mirror",))
        self.independent = True

    def why_unweighted(self) -> str | None:
        return "it is not real"

    def sample(self, n, *, seed, weigh=True):
        self.seeds.append(seed)
        return Draws(self.space, self.draw(n, seed=seed))


def fake(target: Target, draw: Any = None) -> Any:
    """Stands in for a `Sampler`."""
    return FakeSampler(target, draw)


def reference_law(target):
    """What an untrained sampler draws."""
    return lambda n, seed: target.space.reference_sample(n, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------------- exact draws and others


@pytest.mark.parametrize("target", [targets.Ising(3, 0.4), targets.GBRBM()], ids=repr)
def test_exact_draws_score_at_the_floor_and_untrained_ones_do_not(target):
    n, repeats = 150, 60
    record = egm.evaluate(fake(target), n=n, repeats=repeats, floor_pairs=200, seed=1)
    worse = egm.evaluate(fake(target, reference_law(target)), n=n, repeats=repeats, floor_pairs=200, seed=1)
    assert list(record["metrics"]) == metrics_of(target)
    for name, score in record["metrics"].items():
        assert 0.8 * score["floor"] < score["mean"] <= 1.25 * score["floor"], name
        assert worse["metrics"][name]["mean"] > 2 * score["floor"], name
        assert worse["metrics"][name]["floor"] == score["floor"]


def test_an_untrained_network_draws_the_reference_law():
    """So `reference_law` above draws as an untrained network does, up to the steps of the simulation."""
    target = targets.Ising(3, 0.4)
    untrained = make_trainer(target, steps=1).sampler
    record = egm.evaluate(untrained, n=500, repeats=3, floor_pairs=5, metrics=["e_w1"])
    expected = egm.evaluate(fake(target, reference_law(target)), n=500, repeats=3, floor_pairs=5)
    scores = [r["metrics"]["e_w1"] for r in (record, expected)]
    assert scores[0]["mean"] == pytest.approx(scores[1]["mean"], rel=0.1)
    assert record["method"] == "egm"
    assert untrained.network.training  # as it was


# ---------------------------------------------------------------------- the record


def test_the_record_is_what_results_are_made_of():
    target = targets.GBRBM()
    record = egm.evaluate(fake(target), n=40, repeats=3, floor_pairs=4)
    assert set(record) == RECORD
    assert (record["target"], record["method"], record["seed"]) == ("GBRBM()", "fake", 17)
    assert (record["n"], record["repeats"]) == (40, 3)
    assert record["log_z_exact"] == target.log_z
    assert record["symmetries"] == ["mirror"]
    assert (record["dtype"], record["torch"], record["commit"]) == ("float32", torch.__version__, commit())
    for score in record["metrics"].values():
        assert list(score) == ["mean", "std", "floor", "floor_pairs"]
        assert score["floor_pairs"] == 4


def test_mean_and_spread_are_over_the_repeats():
    """With draws and references known, so are their distances."""
    target = targets.GBRBM()
    sampler = fake(target)
    record = egm.evaluate(sampler, n=30, repeats=4, floor_pairs=2, seed=9, metrics=["e_w1"])
    references = _reference_seeds(target, n=30, repeats=4, seed=9)
    values = []
    for draw, reference in zip(sampler.seeds, references, strict=True):
        pair = [target.energy(**target.exact_sample(30, seed=seed)).sort().values for seed in (draw, reference)]
        values.append(float((pair[0] - pair[1]).abs().double().mean()))
    score = record["metrics"]["e_w1"]
    assert score["mean"] == pytest.approx(np.mean(values), rel=1e-4)
    assert score["std"] == pytest.approx(np.std(values, ddof=1), rel=1e-4)
    assert score["floor"] == floor("e_w1", target, 30, pairs=2, seed=derive_seed(9, 12)).mean
    assert derive_seed(9, 12) not in [*sampler.seeds, *references]
    single = egm.evaluate(sampler, n=30, repeats=1, floor_pairs=2, metrics=["e_w1"])["metrics"]["e_w1"]
    assert single["std"] is None


def test_observables_are_means_with_weights():
    """Draws of a wider law, with their weights and without; `modes` is the least number over the repeats."""
    target = targets.GMM40()
    wide = 30.0

    def draw(n, seed):
        x = wide * torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
        return {"x": x.clamp(-60, 60)}

    class Weighted(FakeSampler):
        def why_unweighted(self):
            return None

        def sample(self, n, *, seed, weigh=True):
            x = wide * torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
            log_q = -(x / wide).square().sum(-1).double() / 2
            return Draws(self.space, {"x": x}, log_weights=-target.energy(x=x).double() - log_q)

    options: dict[str, Any] = {"n": 4000, "repeats": 6, "floor_pairs": 2, "metrics": ["e_w1"]}
    plain = egm.evaluate(fake(target, draw), **options)
    weighted = egm.evaluate(Weighted(target), **options)  # type: ignore[arg-type]
    for found, close in ((weighted, True), (plain, False)):
        x = {key: np.array(values) for key, values in found["observables"]["x"].items()}
        errors = np.hypot(x["stderr"], x["reference_stderr"])
        assert (np.abs(x["mean"] - x["reference"]) < z_limit(2) * errors).all() == close
        assert ((x["stderr"] > 0) & (x["stderr"] < 0.5)).all()
    assert "mode" not in plain["observables"]
    exact = egm.evaluate(fake(target), **options)
    assert exact["modes"] == 40
    assert plain["modes"] < 40


@pytest.mark.parametrize("repeats", [1, 3])
def test_errors_of_observables_come_from_all_draws(repeats):
    """Of a share p of n draws a repeat it is √(p(1 − p)/(n·repeats)); the spread of a few means would be anything."""
    n = 500
    record = egm.evaluate(fake(targets.GBRBM()), n=n, repeats=repeats, floor_pairs=2, metrics=["e_w1"])
    h = {key: np.array(values) for key, values in record["observables"]["h"].items()}
    for mean, stderr in (("mean", "stderr"), ("reference", "reference_stderr")):
        share = h[mean]
        assert h[stderr] == pytest.approx(np.sqrt(share * (1 - share) / (n * repeats)), rel=0.02)
    assert (np.abs(h["mean"] - h["reference"]) < z_limit(3) * np.hypot(h["stderr"], h["reference_stderr"])).all()


def test_states_of_chains_have_no_such_errors():
    chains = egm.fit(targets.Ising(3, 0.3), "gibbs", steps=100, chains=4, seed=0, progress=False)
    found = egm.evaluate(chains, n=50, repeats=2, floor_pairs=2, metrics=["e_w1"])["observables"]["magnetization"]
    assert found["stderr"] is None
    assert found["reference_stderr"][0] > 0


def test_means_of_a_reference_by_mcmc_are_those_of_its_pool(monkeypatch, tmp_path):
    """With errors that allow for dependence: of a scalar, and of the entries of a vector."""
    monkeypatch.setenv("EGM_CACHE_DIR", str(tmp_path))
    target = ByMCMC()
    record = egm.evaluate(fake(target), n=50, repeats=2, floor_pairs=2, metrics=["e_w1"])["observables"]
    known = target.reference.diagnostics["observables"]
    for name, entries in (("radius", ["radius"]), ("x", ["x[0]", "x[1]"])):
        for key, part in (("reference", "mean"), ("reference_stderr", "stderr")):
            assert record[name][key] == pytest.approx([known[entry][part] for entry in entries], abs=1e-6)
        assert min(record[name]["stderr"]) > 0


def test_observables_that_a_pool_does_not_know_have_means_without_errors(monkeypatch, tmp_path):
    """One that was added after the pool was made, and one that has become another."""
    monkeypatch.setenv("EGM_CACHE_DIR", str(tmp_path))
    before = ByMCMC().reference.state["x"]
    target = ByMCMC()
    monkeypatch.setattr(target, "observables", lambda x: {"radius": x.norm(dim=-1) ** 4, "first": x[:, 0]})
    record = egm.evaluate(fake(target), n=50, repeats=2, floor_pairs=2, metrics=["e_w1"])["observables"]
    for name, values in target.observables(x=before).items():
        assert record[name]["reference"] == pytest.approx([float(values.mean())], abs=1e-5)
        assert record[name]["reference_stderr"] is None


def test_a_target_with_mcmc_draws_of_its_own_needs_no_pool(monkeypatch):
    target = targets.Ising(3, 0.3)
    monkeypatch.setattr(target, "reference_kind", "mcmc")
    monkeypatch.setattr(target, "_reference_plan", lambda: Target._reference_plan(target))
    record = egm.evaluate(fake(target), n=50, repeats=2, floor_pairs=2, metrics=["e_w1"])["observables"]
    assert record["magnetization"]["reference_stderr"] is None
    assert len(record["magnetization"]["reference"]) == 1


def test_draws_that_turn_out_to_have_no_weights():
    """As with a flow whose map folds: the draws are scored without weights."""

    class Folding(FakeSampler):
        def why_unweighted(self):
            return None

    record = egm.evaluate(Folding(targets.GBRBM()), n=30, repeats=2, floor_pairs=2, metrics=["e_w1"])  # type: ignore[arg-type]
    assert record["resampled"] is None
    assert record["ess"] is None
    assert record["metrics"]["e_w1"]["mean"] > 0


def test_floors_that_ship_are_used(monkeypatch):
    target = targets.GBRBM()
    shipped = floor("e_w1", target, 30, pairs=3, seed=5)
    stored = {floor_key("e_w1", target, 30): dataclasses.asdict(shipped)}
    monkeypatch.setattr(floors, "_shipped", lambda: stored)
    score = egm.evaluate(fake(target), n=30, repeats=2, floor_pairs=4, metrics=["e_w1"])["metrics"]["e_w1"]
    assert (score["floor"], score["floor_pairs"]) == (shipped.mean, 3)
    assert known_floor("e_w1", target, 31) is None
    mine = egm.Target(target.space, lambda v, h: v.sum(-1), name=repr(target))
    assert repr(mine) == repr(target)
    assert known_floor("e_w1", mine, 30) is None


@pytest.mark.parametrize("key", floors._shipped())
def test_shipped_floors_are_right(key):
    """From 200 pairs each, and in agreement with a few fresh ones."""
    found = floors.Floor(**floors._shipped()[key])
    assert (found.n, found.pairs) == (2000, 200)
    target = make_target(key.partition(" of ")[2].rpartition(", n = ")[0])
    assert known_floor(found.metric, target, 2000) == found
    if target.reference_kind == "exact" and found.metric != "x_w2":
        fresh = floor(found.metric, target, 2000, pairs=20, seed=77)
        assert abs(fresh.mean - found.mean) < 5 * (fresh.stderr + found.stderr)


def _reference_seeds(target, *, n, repeats, seed):
    """The seeds of the reference draws of an evaluation."""
    seen, plain = [], target.exact_sample

    def exact_sample(count, seed=0):
        if count == n:  # floors draw pairs together, 2n at a time
            seen.append(seed)
        return plain(count, seed=seed)

    target.exact_sample = exact_sample
    try:
        egm.evaluate(fake(target, plain), n=n, repeats=repeats, floor_pairs=2, seed=seed, metrics=["e_w1"])
    finally:
        del target.exact_sample
    return seen


def test_draws_and_references_are_fresh_in_every_repeat():
    target = targets.GBRBM()
    samplers = fake(target), fake(target), fake(target)
    for sampler, seed in zip(samplers, (0, 0, 1), strict=True):
        egm.evaluate(sampler, n=10, repeats=5, floor_pairs=2, seed=seed, metrics=["e_w1"])
    references = _reference_seeds(target, n=10, repeats=5, seed=0)
    assert len({*samplers[0].seeds, *references}) == 10  # never the same on both sides
    assert samplers[1].seeds == samplers[0].seeds
    assert not {*samplers[2].seeds} & {*samplers[0].seeds}


class WeightedSampler(FakeSampler):
    """Draws that have weights."""

    def why_unweighted(self):
        return None

    def sample(self, n, *, seed, weigh=True):
        self.seeds.append(seed)
        state = self.draw(n, seed=seed)
        return Draws(self.space, state, log_weights=torch.linspace(0.0, 1.0, n))


class OtherWeights(WeightedSampler):
    """Log-weights of a normal law that changes from call to call."""

    weights: list[torch.Tensor]

    def sample(self, n, *, seed, weigh=True):
        drawn = super().sample(n, seed=seed)
        self.weights.append(len(self.seeds) + torch.randn(n, generator=torch.Generator().manual_seed(seed)).double())
        return Draws(self.space, drawn.state, log_weights=self.weights[-1])


def test_the_certificate_is_of_all_draws():
    target = targets.GBRBM()
    sampler: Any = OtherWeights(target, target.exact_sample)
    sampler.weights = []
    record = egm.evaluate(sampler, n=50, repeats=4, floor_pairs=2, metrics=["e_w1"], resample_from=3)
    log_w = torch.cat(sampler.weights)
    pooled = Draws(target.space, target.exact_sample(len(log_w)), log_weights=log_w)
    assert len(log_w) == 4 * 3 * 50
    for name in ("ess", "log_z", "elbo"):
        assert record[name] == pytest.approx(getattr(pooled, name))
    assert record["log_z_stderr"] == pytest.approx(pooled.log_z_stderr, rel=0.01)
    assert record["resampled"] is not None


def test_resampled_scores_can_be_left_out():
    target = targets.GBRBM()
    sampler: Any = OtherWeights(target, target.exact_sample)
    sampler.weights = []
    record = egm.evaluate(sampler, n=1, repeats=1, floor_pairs=2, metrics=["e_w1"], resample_from=1)
    assert [len(w) for w in sampler.weights] == [1]
    assert record["resampled"] is None
    assert (record["ess"], record["log_z_stderr"]) == (1.0, math.inf)
    with pytest.raises(ValueError, match="repeats and resample_from must be at least 1, got 3 and 0"):
        egm.evaluate(sampler, repeats=3, resample_from=0)


@pytest.mark.parametrize("repeats", [1, 5])
@pytest.mark.parametrize("seed", [0, 3])
def test_draws_references_and_resampling_have_seeds_of_their_own(monkeypatch, repeats, seed):
    """Resampling with the random numbers that made the draws would depend on the draws."""
    target = targets.GBRBM()
    plain, resample, references, resampled = target.exact_sample, Draws.resample, [], []

    def exact_sample(count, seed=0):
        if count == 10:  # floors draw pairs together
            references.append(seed)
        return plain(count, seed=seed)

    def recorded(self, n, seed=0):
        resampled.append(seed)
        return resample(self, n, seed=seed)

    sampler: Any = WeightedSampler(target, plain)
    monkeypatch.setattr(target, "exact_sample", exact_sample)
    monkeypatch.setattr(Draws, "resample", recorded)
    egm.evaluate(sampler, n=10, repeats=repeats, floor_pairs=2, seed=seed, metrics=["e_w1"])
    assert [len(seeds) for seeds in (sampler.seeds, references, resampled)] == [repeats] * 3
    assert len({*sampler.seeds, *references, *resampled}) == 3 * repeats


def test_at_most_twenty_pairs_of_point_clouds():
    target = targets.GBRBM()
    record = egm.evaluate(fake(target), n=10, repeats=2, floor_pairs=30)
    assert {name: score["floor_pairs"] for name, score in record["metrics"].items()} == {"e_w1": 30, "x_w2": 20}


def test_the_cost_is_counted_apart_and_put_back():
    target = targets.GBRBM()
    target.energy_calls, target.score_calls = 5, 6
    record = egm.evaluate(fake(target), n=10, repeats=3, floor_pairs=4, metrics=["e_w1"])
    assert record["eval_energy_calls"] == 3 * 2 * 10 + 4 * 2 * 10
    assert (target.energy_calls, target.score_calls) == (5, 6)
    with pytest.raises(ValueError, match="unknown metric 'e_w9'"):
        egm.evaluate(fake(target), n=10, repeats=3, metrics=["e_w1", "e_w9"])
    assert (target.energy_calls, target.score_calls) == (5, 6)


# ---------------------------------------------------------------------- which metrics


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (targets.Ising(3, 0.4), ["e_w1", "m_w1"]),
        (targets.SpinGlass(3, 0, 0.4), ["e_w1", "m_w1"]),
        (targets.Funnel(dim=2), ["e_w1", "x_w2"]),
        (targets.GBRBM(), ["e_w1", "x_w2"]),
        (targets.LJ13(), ["e_w1", "x_w2"]),
        (egm.Target(egm.Space(s=egm.Categorical(3, 2)), lambda s: s.sum(-1).float()), ["e_w1"]),
        (own_target(), ["e_w1", "x_w2"]),
    ],
    ids=repr,
)
def test_the_metrics_of_each_kind_of_target(target, expected):
    assert metrics_of(target) == expected
    assert target.energy_calls == 0


def test_targets_without_a_reference_or_without_a_target():
    sampler = fit(own_target(), "egm", steps=1, **SMALL)
    with pytest.raises(NotImplementedError, match="no exact sampler"):
        egm.evaluate(sampler, n=10, repeats=2)
    sampler.target = None
    with pytest.raises(ValueError, match="loaded without its target; pass target="):
        egm.evaluate(sampler)
    other = fake(targets.GBRBM())
    other.target = None
    record = egm.evaluate(other, targets.GBRBM(), n=10, repeats=2, floor_pairs=2, metrics=["e_w1"])
    assert record["target"] == "GBRBM()"


# ---------------------------------------------------------------------- while training


def test_quick_scores_are_distances_beside_their_floors():
    target = targets.GBRBM()
    target.energy_calls = 3
    score = quick_scores(target, 200)
    sampler = fake(target)
    first, second = score(sampler, 1), score(sampler, 2)
    assert list(first) == ["e_w1", "e_w1_floor"]  # W2 of points takes too long
    assert first["e_w1_floor"] == second["e_w1_floor"] == floor("e_w1", target, 200, pairs=20).mean
    assert first["e_w1"] != second["e_w1"]
    assert score(sampler, 1) == first
    assert sampler.seeds == [1, 2, 1]
    means = np.mean([score(sampler, seed)["e_w1"] for seed in range(3, 23)])
    assert 0.7 < means / first["e_w1_floor"] < 1.4
    assert score(fake(target, reference_law(target)), 1)["e_w1"] > 3 * first["e_w1_floor"]
    lattice = targets.Ising(3, 0.4)
    assert list(quick_scores(lattice, 20)(fake(lattice), 0)) == ["e_w1", "m_w1", "e_w1_floor", "m_w1_floor"]


def test_quick_scores_put_the_counts_back():
    target = targets.GBRBM()
    target.energy_calls, target.score_calls = 3, 4
    score = quick_scores(target, 10)
    score(fake(target), 1)
    assert (target.energy_calls, target.score_calls) == (3, 4)

    def interrupted(n, seed):
        target.energy(**target.exact_sample(n))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(fake(target, interrupted), 1)
    assert (target.energy_calls, target.score_calls) == (3, 4)
