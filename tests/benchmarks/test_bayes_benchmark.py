"""The arithmetic of benchmarks/bayes.py: exact draws sit at the floor, wrong ones far above, weights correct them."""

import json
import math
import sys

import numpy as np
import pytest
import torch

import bayes
import egm
from bayes_marginals import PROBLEMS, Estimate, Problem, errors, floors, of_chains, of_draws, summarised
from egm.mcmc import Chains
from egm.targets import GaussianMixturePosterior, SpikeSlab
from support.pages import DOCS, ROOT
from support.stats import assert_mean, z_limit

N, REPEATS = 2000, 200
BOTH = pytest.mark.parametrize("name", list(PROBLEMS))


@pytest.fixture(scope="module")
def problems() -> dict[str, Problem]:
    return {name: make() for name, make in PROBLEMS.items()}


@pytest.fixture(scope="module")
def exact_errors(problems) -> dict[str, list[dict[str, float]]]:
    """Errors of many sets of exact draws, independent of the sets behind the floors."""
    found = {}
    for name, problem in problems.items():
        sets = [problem.target.exact_sample(N, seed=50_000 + i) for i in range(REPEATS)]
        found[name] = [errors(problem, estimate(problem, state)) for state in sets]
    return found


def estimate(problem: Problem, state, log_weights=None) -> Estimate:
    return of_draws(problem, egm.Draws(problem.target.space, state, log_weights=log_weights))


def as_chains(state, steps: int, chains: int) -> Chains:
    state = {name: x.reshape(steps, chains, *x.shape[1:]) for name, x in state.items()}
    return Chains(state, torch.zeros(steps, chains), 1.0, 0, 0, 0.0, {})


# ---------------------------------------------------------------------- floors


@BOTH
def test_exact_draws_sit_at_the_floor(problems, exact_errors, name):
    floor = floors(problems[name], N, repeats=REPEATS, seed=1)
    for metric, value in floor.items():
        own = np.array([found[metric] for found in exact_errors[name]])
        stderr = own.std(ddof=1) * math.sqrt(2 / REPEATS)  # of the difference of two means over as many sets
        assert abs(own.mean() - value) < z_limit(len(floor)) * stderr, metric


@pytest.mark.parametrize(("name", "kind"), [("spike-slab", "inclusion"), ("mixture", "together")])
def test_the_floor_of_probabilities_is_that_of_binomial_counts(problems, exact_errors, name, kind):
    """E|m − p| = √(2p(1−p)/πn) by the central limit theorem, for each marginal whose count is not a rare one."""
    problem = problems[name]
    p = problem.exact[kind]
    assert float(p.max() - p.min()) > 0.5
    expected = float((2 * p * (1 - p) / (math.pi * N)).sqrt().mean())
    found = [each[f"{kind}_mean"] for each in exact_errors[name]]
    assert np.mean(found) == pytest.approx(expected, rel=0.05)


@BOTH
def test_wrong_draws_are_far_above_the_floor(problems, exact_errors, name):
    problem = problems[name]
    generator = torch.Generator().manual_seed(0)
    prior = problem.target.space.reference_sample(N, generator=generator)
    exact = problem.target.exact_sample(N, seed=3)
    if name == "spike-slab":
        shifted = {**exact, "gamma": exact["gamma"].roll(1, -1)}  # every probability is that of another predictor
    else:
        shifted = {**exact, "z": exact["z"].roll(1, -1)}
    for metric in exact_errors[name][0]:
        floor = np.mean([found[metric] for found in exact_errors[name]])
        if not metric.startswith("labelled"):  # labels are as balanced under the prior as under the posterior
            assert errors(problem, estimate(problem, prior))[metric] > 5 * floor, metric
            assert errors(problem, estimate(problem, shifted))[metric] > 5 * floor, metric


def test_unbalanced_labels_show_in_labelled_means_alone(problems, exact_errors):
    problem = problems["mixture"]
    exact = problem.target.exact_sample(N, seed=4)
    order = exact["mu"].argsort(-1)
    rank = order.argsort(-1)
    sorted_labels = {"mu": exact["mu"].gather(-1, order), "z": rank.gather(-1, exact["z"])}
    before, after = (errors(problem, estimate(problem, state)) for state in (exact, sorted_labels))
    for metric in before:
        floor = np.mean([found[metric] for found in exact_errors["mixture"]])
        assert (after[metric] > 10 * floor) if metric.startswith("labelled") else (after[metric] == before[metric])


# ---------------------------------------------------------------------- estimates


@BOTH
def test_weights_take_draws_of_another_posterior_back(problems, exact_errors, name):
    """Exact draws of a posterior with more noise, weighted by the ratio of the densities."""
    problem, target = problems[name], problems[name].target
    if isinstance(target, SpikeSlab):
        other: egm.Target = SpikeSlab(target._X, target._y, noise=1.2, slab=1.0, inclusion=0.25)
    else:
        assert isinstance(target, GaussianMixturePosterior)
        other = GaussianMixturePosterior(target._y, 3, noise=1.2, prior_scale=3.0)
    state = other.exact_sample(20 * N, seed=5)
    log_weights = (other.energy(**state) - target.energy(**state)).double()
    raw, weighted = estimate(problem, state), estimate(problem, state, log_weights)
    worst = 0.0
    for kind, exact in problem.exact.items():
        off = ((weighted.mean[kind] - exact) / weighted.stderr[kind].clamp(min=1e-6)).abs()
        assert float(off.max()) < z_limit(exact.numel()), kind
        worst = max(worst, float(((raw.mean[kind] - exact) / raw.stderr[kind].clamp(min=1e-6)).abs().max()))
    assert worst > 2 * z_limit(100)


@BOTH
def test_chains_of_independent_states_are_as_good_as_draws(problems, name):
    problem = problems[name]
    state = problem.target.exact_sample(4000, seed=6)
    draws, chains = estimate(problem, state), of_chains(problem, as_chains(state, 500, 8))
    for kind in problem.exact:
        torch.testing.assert_close(chains.mean[kind], draws.mean[kind], rtol=0, atol=1e-9)
        torch.testing.assert_close(chains.stderr[kind], draws.stderr[kind], rtol=0.3, atol=1e-4)
    assert chains.r_hat is not None
    assert chains.r_hat < 1.02
    assert chains.ess is not None
    assert chains.ess > 2000


def test_chains_that_repeat_themselves_have_larger_errors(problems):
    problem = problems["spike-slab"]
    state = problem.target.exact_sample(400, seed=7)
    stuck = {name: x.reshape(50, 8, -1).repeat_interleave(10, 0).reshape(4000, -1) for name, x in state.items()}
    chains = of_chains(problem, as_chains(stuck, 500, 8))
    once = estimate(problem, state)
    ratio = chains.stderr["inclusion"] / once.stderr["inclusion"]
    assert 0.6 < float(ratio.median()) < 1.6
    assert chains.ess is not None
    assert chains.ess < 800


def test_errors_and_summaries_by_hand(problems):
    problem = Problem("p", problems["mixture"].target, lambda state: state, {"a": torch.tensor([1.0, 2.0, 4.0])})
    found = errors(problem, Estimate({"a": torch.tensor([1.5, 2.0, 3.0])}, {}))
    assert found == {"a_max": 1.0, "a_mean": 0.5}
    both = summarised([found, {"a_max": 3.0, "a_mean": 0.5}])
    assert both == {"a_max": {"mean": 2.0, "std": pytest.approx(math.sqrt(2))}, "a_mean": {"mean": 0.5, "std": 0.0}}
    assert summarised([found])["a_max"] == {"mean": 1.0, "std": None}


@BOTH
def test_exact_values_are_means_of_the_features(problems, name):
    problem = problems[name]
    found = problem.features(problem.target.exact_sample(20_000, seed=8))
    assert found.keys() == problem.exact.keys()
    for kind, values in found.items():
        usual = values.var(0) > 1e-3  # a normal approximation does not hold for rare events
        assert usual.sum() >= 3
        assert_mean(values[:, usual], problem.exact[kind][usual], kind)


# ---------------------------------------------------------------------- equal calls


def test_chains_make_the_calls_they_are_given(problems):
    problem = problems["spike-slab"]
    gibbs, leapfrogs = 2 * 12, 5
    each = gibbs + 2 * (leapfrogs + 1) + 1
    assert bayes.calls_of_a_step(problem.target, bayes.KERNELS["gibbs-hmc"](problem.target)) == each
    record = bayes.run_chains(problem, "gibbs-hmc", 0, 20_000)
    assert record["calls"] == record["energy_calls"] + record["score_calls"]
    assert 0.97 * 20_000 < record["calls"] <= 20_000
    assert record["n"] == record["chains"] * record["steps"]
    assert record["score_calls"] == record["chains"] * (record["steps"] + record["warmup"]) * (leapfrogs + 1)


def test_records(tmp_path, monkeypatch, capsys):
    """EGM-SP and chains by the command line, small; what the file holds already is left alone."""
    for name, value in {"DRAWS": 300, "REPEATS": 2, "FLOOR_REPEATS": 5, "STEPS": 20}.items():
        monkeypatch.setattr(bayes, name, value)
    small = {"network": "MLP(width=16)", "batch_size": 32, "refresh": 2000, "sample_steps": 4, "refresh_steps": 4}
    monkeypatch.setitem(bayes.OPTIONS, "mixture", small)
    file = tmp_path / "bayes.json"
    command = ["benchmarks/bayes.py", "--results", str(file), "--only", "mixture", "--seeds", "0", "--steps", "20"]
    monkeypatch.setattr(sys, "argv", [*command, "--methods", "gibbs-mala"])
    with pytest.raises(SystemExit):
        bayes.main()
    assert "as many calls as egm-sp" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*command, "--methods", "gibbs-mala", "egm-sp"])
    assert bayes.main() == 0
    first = file.read_text(encoding="utf-8")
    assert bayes.main() == 0
    assert file.read_text(encoding="utf-8") == first
    sampler, chains = json.loads(first)
    assert (sampler["method"], chains["method"]) == ("egm-sp", "gibbs-mala")
    assert sampler["calls"] == sampler["energy_calls"] + 300
    assert 0.9 * sampler["calls"] < chains["calls"] <= sampler["calls"]
    assert sampler["log_z_exact"] == pytest.approx(PROBLEMS["mixture"]().target.log_z)
    for record in (sampler, chains):
        assert set(record["metrics"]) == {
            f"{k}_{m}" for k in ("together", "fitted", "labelled") for m in ("max", "mean")
        }
        assert all(score["floor"] > 0 for score in record["metrics"].values())
        assert len(record["marginals"]["together"]["exact"]) == 45
    assert sampler["metrics"]["together_max"]["std"] > 0
    assert chains["metrics"]["together_max"]["std"] is None


def test_the_page_says_how_many_calls_a_second_numpyro_made():
    records = json.loads((ROOT / "results" / "bayes.json").read_text(encoding="utf-8"))
    rates = [r["calls"] / r["train_seconds"] for r in records if r["method"] in bayes.NUMPYRO]
    assert {r["chains"] for r in records if r["method"] in bayes.NUMPYRO} == {4}
    text = " ".join((DOCS / "bayes.md").read_text(encoding="utf-8").split())
    least, most = (float(f"{rate:.2g}") for rate in (min(rates), max(rates)))
    assert len(rates) == 12
    assert "The twelve NumPyro runs of `results/bayes.json` (four chains, one thread of a CPU) made " in text
    assert f" of a CPU) made {least:g} to {most:g} calls a second" in text
