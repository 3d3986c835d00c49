"""Chains as methods: their laws, costs, limits, kept states and refusals."""

import math
import signal

import pytest
import torch

import egm
from egm.baselines.chain_kernels import default_replicas
from egm.baselines.chain_run import ChainRun
from egm.baselines.chain_sampler import ChainSampler
from egm.baselines.chains import Chains
from egm.mcmc import r_hat
from egm.methods.registry import METHODS
from egm.runs.directory import RunDirectory
from support.mcmc_laws import Lattice, Mixture
from support.stats import assert_counts, assert_mean, z_limit

QUIET = {"device": "cpu", "progress": False}


def chains_of(target, method, **options) -> ChainSampler:
    sampler = egm.fit(target, method, **{**QUIET, **options})
    assert isinstance(sampler, ChainSampler)
    return sampler


def last_states(sampler: ChainSampler) -> dict[str, torch.Tensor]:
    """One state of each chain, independent of the others."""
    return sampler.space.widened({name: x[-1] for name, x in sampler.visited.items()})


def same(a: ChainSampler, b: ChainSampler) -> bool:
    return all(torch.equal(a.visited[name], b.visited[name]) for name in a.space)


def double_well(x):
    return (16 * (x.square() - 1).square() + 0.5 * x).sum(-1)


BIMODAL = egm.Space(x=egm.Real(1))


# ---------------------------------------------------------------------- laws


@pytest.mark.parametrize("method", ["gibbs", "swendsen-wang", "tempering"])
def test_a_lattice_has_its_exact_law(method):
    """Counts the last states of 2000 chains among all 512; the law of another temperature does not fit."""
    coupling, fields = 0.6, (0.0, 0.1)
    target = Lattice(3, coupling, fields)
    small = {"replicas": 3, "hottest": 0.5} if method == "tempering" else {}
    sampler = chains_of(target, method, chains=2000, steps=1, warmup=25, **small)
    counts = target.counts(last_states(sampler))
    assert_counts(counts, target.probabilities())
    with pytest.raises(AssertionError):
        assert_counts(counts, target.probabilities(0.8))


def test_four_long_chains_agree_with_enumeration_within_their_own_error():
    """As the paper runs them; the error is what the diagnostics say, from the chains alone."""
    target = egm.targets.Ising(3, 0.3)
    found = chains_of(target, "gibbs", steps=1500).config["outcome"]["diagnostics"]
    oracle = Lattice(3, 2 * target.beta, (0.0, 0.0))
    probabilities = oracle.probabilities()
    spins = 2 * oracle.states.double() - 1
    exact = {
        "energy": probabilities @ target.energy(s=oracle.states).double(),
        "magnetization": probabilities @ spins.mean((-1, -2)),
        "abs_magnetization": probabilities @ spins.mean((-1, -2)).abs(),
    }
    for name, value in exact.items():
        assert abs(found[name]["mean"] - float(value)) < z_limit(3) * found[name]["stderr"], name
        assert found[name]["r_hat"] < 1.05
        assert found[name]["ess"] < 1500 * 4
    colder = egm.targets.Ising(3, 0.35)
    other = float(Lattice(3, 0.7, (0.0, 0.0)).probabilities() @ colder.energy(s=oracle.states).double())
    assert abs(found["energy"]["mean"] - other) > z_limit(3) * found["energy"]["stderr"]


def test_symbols_and_reals_together():
    """A scan and a MALA step on a mixture whose components overlap."""
    mixture = Mixture()
    state = last_states(chains_of(mixture.target, "gibbs", chains=2000, steps=1, warmup=250))
    weights = mixture.log_weight.exp()
    assert_counts(torch.bincount(state["s"][:, 0], minlength=2), weights)
    assert_mean(state["x"][:, 0], float(weights @ mixture.mean))
    assert_mean(state["x"][:, 0].square(), float(weights @ (mixture.mean.square() + mixture.sd.square())))


def test_gbrbm_in_the_long_run():
    """Six modes 5 standard deviations apart: their masses and the energy; a few steps are not enough for either."""
    target = egm.targets.GBRBM()
    energy = float(target.energy(**target.exact_sample(100_000, seed=1)).double().mean())

    def compare(warmup):
        state = last_states(chains_of(target, "gibbs", chains=1000, steps=1, warmup=warmup))
        mode, masses = target.modes.assign(state["v"]), target.modes.masses
        yield lambda: assert_counts(torch.bincount(mode[mode >= 0], minlength=len(masses)), masses / masses.sum())
        yield lambda: assert_mean(target.energy(**state), energy)

    for assertion in compare(300):
        assertion()
    for assertion in compare(2):
        with pytest.raises(AssertionError):
            assertion()


def test_tempering_finds_the_masses_that_mala_does_not():
    """Two wells with 16 kT between them: MALA keeps the halves it starts with, tempering finds the shares .73, .27."""
    grid = torch.linspace(-3, 3, 60_001, dtype=torch.float64)
    weight = torch.softmax(-double_well(grid[:, None]), 0)
    left = float(weight[grid < 0].sum())
    target = egm.Target(BIMODAL, double_well)
    tempered, plain = (
        (last_states(chains_of(target, method, chains=2000, steps=1, warmup=400))["x"] < 0).double()
        for method in ("tempering", "mala")
    )
    assert_mean(tempered, left)
    with pytest.raises(AssertionError):
        assert_mean(plain, left)


def test_tempering_finds_the_masses_that_gibbs_does_not():
    """A cold lattice in a field that tells its two ordered states apart."""
    target = egm.targets.Ising(3, 0.9, field=0.05)
    oracle = Lattice(3, target.coupling, target.site_energies)
    down = float(oracle.probabilities()[oracle.states.double().mean((-1, -2)) < 0.5].sum())
    options = {"chains": 1000, "steps": 1, "warmup": 100}
    tempered, plain = (
        (last_states(chains_of(target, method, **options))["s"].double().mean((-1, -2)) < 0.5).double()
        for method in ("tempering", "gibbs")
    )
    assert_mean(tempered, down)
    with pytest.raises(AssertionError):
        assert_mean(plain, down)


# ---------------------------------------------------------------------- what a run costs


def cost_of(method: str, target: egm.Target) -> tuple[int, int, int]:
    """Returns the energies and gradients of a step of one chain, as the kernels define them, and those of its start."""
    sites = sum(variable.sites for variable in target.space.categorical.values())
    energies = 2 * sites + (2 if target.space.real else 0)
    scores = 2 if target.space.real else 0
    if method == "swendsen-wang":
        return 0, 0, 0
    if method == "mala":  # it knows its state from the step before
        return 1, 1, 1
    if method == "tempering":
        replicas = default_replicas(target.space)
        return replicas * (energies + 1), replicas * scores, 0
    return energies, scores, 0


CASES = [
    ("gibbs", lambda: egm.targets.Ising(3, 0.4)),
    ("gibbs", egm.targets.GBRBM),
    ("mala", lambda: egm.Target(BIMODAL, double_well)),
    ("swendsen-wang", lambda: egm.targets.Potts(3, 3, 0.8)),
    ("tempering", egm.targets.GBRBM),
    ("tempering", lambda: egm.targets.Ising(3, 0.4)),
]
every_method = pytest.mark.parametrize(("method", "make"), CASES)


def check_calls(make) -> int:
    target = make()
    target.check()
    return target.energy_calls


@every_method
def test_calls_are_counted_exactly(method, make):
    """The check of the energy, warm-up, every step, and an energy for each state that is kept."""
    target = make()
    sampler = chains_of(target, method, chains=3, warmup=5, steps=20, thin=4)
    energies, scores, start = cost_of(method, target)
    outcome = sampler.config["outcome"]
    assert outcome["energy_calls"] == check_calls(make) + 3 * (start + 25 * energies + 5)
    assert outcome["score_calls"] == 3 * (start + 25 * scores)
    assert (target.energy_calls, target.score_calls) == (outcome["energy_calls"], outcome["score_calls"])
    assert (outcome["step"], outcome["warmup"], outcome["thin"], outcome["kept"]) == (20, 5, 4, 15)


@every_method
def test_a_budget_of_energy_calls_is_used_up_and_not_exceeded(method, make):
    target = make()
    energies, _, start = cost_of(method, target)
    budget = check_calls(make) + 3 * (start + 5 * energies + 4 * (energies + 1)) + 1
    limits = {"energy_calls": budget, **({"steps": 1000} if method == "swendsen-wang" else {})}
    outcome = chains_of(target, method, chains=3, warmup=5, **limits).config["outcome"]
    assert outcome["energy_calls"] == target.energy_calls == budget - 1
    assert outcome["step"] == 4
    assert chains_of(make(), method, chains=3, warmup=5, energy_calls=budget, steps=2).config["outcome"]["step"] == 2


def test_thinning_makes_room_for_steps_within_a_budget():
    """Of 3 chains of 18 calls a step, only every fourth step costs 3 more."""
    base = check_calls(lambda: egm.targets.Ising(3, 0.4))
    outcome = chains_of(
        egm.targets.Ising(3, 0.4), "gibbs", chains=3, thin=4, energy_calls=base + 10 * 54 + 2 * 3 + 53
    ).config["outcome"]
    assert (outcome["step"], outcome["energy_calls"]) == (10, base + 10 * 54 + 2 * 3)


def test_too_small_a_budget_is_an_error_that_says_what_would_do():
    target = egm.targets.Ising(3, 0.4)
    with pytest.raises(ValueError, match=r"energy_calls=100 does not suffice.* raise it to 150 or more"):
        egm.fit(target, "gibbs", energy_calls=100, **QUIET)
    with pytest.raises(ValueError, match=r"energy_calls=200 did not suffice.* 1 of 5 steps of warm-up"):
        egm.fit(target, "gibbs", energy_calls=200, warmup=5, **QUIET)
    with pytest.raises(ValueError, match=r"steps=3 did not suffice to keep a state.* thin=4"):
        egm.fit(target, "gibbs", steps=3, thin=4, **QUIET)


def test_a_time_limit_ends_the_run():
    sampler = chains_of(egm.targets.Ising(3, 0.4), "gibbs", time_limit=0.3)
    outcome = sampler.config["outcome"]
    assert 0.3 <= outcome["seconds"] < 3
    assert outcome["step"] * 4 == sampler.kept > 0
    assert (sampler.config["steps"], sampler.config["time_limit"]) == (None, 0.3)


# ---------------------------------------------------------------------- defaults


def test_defaults_are_the_papers(monkeypatch):
    """4 chains, 6000 steps and no burn-in; the loop itself is not run."""
    steps = []

    def at_once(run, between):
        del between
        steps.append(run.steps)
        run.step = 1
        run.kept.add(1, run.target.space.reference_sample(run.options.chains))

    monkeypatch.setattr(ChainRun, "until_finished", at_once)
    config = chains_of(egm.targets.Ising(3, 0.4), "gibbs").config
    assert (steps, config["chains"], config["warmup"], config["thin"]) == ([6000], 4, 0, 1)
    assert chains_of(egm.targets.GBRBM(), "gibbs").config["warmup"] == 500  # a step size has to be found
    config = chains_of(egm.targets.Ising(5, 0.4), "tempering").config
    assert (config["replicas"], config["hottest"]) == (7, 0.1)
    chains_of(egm.targets.Ising(3, 0.4), "gibbs", energy_calls=10_000)
    assert steps[-1] is None  # the budget alone


def test_the_step_size_is_found_in_warm_up():
    """After warm-up the acceptance rate is the optimal one, also where the scale of the variable is wrong."""
    for scale in (0.05, 5.0):
        target = egm.Target(egm.Space(x=egm.Real(3, scale=scale)), lambda x: 0.5 * x.square().sum(-1))
        outcome = chains_of(target, "mala", chains=50, warmup=200, steps=100).config["outcome"]
        assert outcome["acceptance"] == pytest.approx(0.574, abs=0.05)
        assert outcome["adapted"]["MALA step size"] * scale == pytest.approx(1.4, rel=0.3)


# ---------------------------------------------------------------------- draws


@every_method
def test_draws_are_different_states_that_were_visited(method, make):
    sampler = chains_of(make(), method, chains=3, warmup=2, steps=7)
    assert sampler.kept == 21
    draws = sampler.sample(21, seed=3)
    assert sampler.space.check(draws.state) == (21,)
    rows = {name: x.flatten(0, 1) for name, x in sampler.space.widened(sampler.visited).items()}
    for name, x in rows.items():  # the same states in another order
        assert not torch.equal(x, draws[name])
        assert torch.equal(x.reshape(21, -1).double().sum(1).sort().values,
                           draws[name].reshape(21, -1).double().sum(1).sort().values)  # fmt: skip
    again, other = sampler.sample(5, seed=3), sampler.sample(5, seed=4)
    assert all(torch.equal(again[name], draws[name][:5]) for name in rows)
    assert any(not torch.equal(again[name], other[name]) for name in rows)
    by_generator = sampler.sample(5, generator=torch.Generator().manual_seed(3))
    assert all(torch.equal(by_generator[name], again[name]) for name in rows)


def test_draws_have_no_weights_and_say_why():
    sampler = chains_of(egm.targets.Ising(3, 0.4), "gibbs", steps=5)
    draws = sampler.sample(10)
    assert draws.log_weights is None
    assert "Markov chains" in draws.summary()
    assert sampler.why_unweighted() in draws.summary()
    with pytest.raises(ValueError, match="Markov chains"):
        _ = draws.ess
    assert draws["s"].dtype == torch.int64
    assert sampler.visited["s"].dtype == torch.uint8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 21}, r"between 1 and the 20 states .* got 21; .*steps=.*chains="),
        ({"n": 0}, "got 0"),
        ({"n": 3, "steps": 4}, "steps belongs to samplers that simulate"),
        ({"n": 3, "batch_size": 4}, "batch_size belongs to samplers that simulate"),
        ({"n": 3, "seed": 1, "generator": torch.Generator()}, "not both"),
    ],
)
def test_what_draws_cannot_be_is_refused(options, message):
    sampler = chains_of(egm.targets.Ising(3, 0.4), "gibbs", steps=5)
    with pytest.raises(ValueError, match=message):
        sampler.sample(**options)


@every_method
def test_the_same_seed_gives_the_same_chains(method, make):
    first, again, other = (chains_of(make(), method, steps=4, warmup=3, seed=seed) for seed in (1, 1, 2))
    assert same(first, again)
    assert not same(first, other)


def test_states_are_of_the_dtype_that_is_asked_for():
    sampler = chains_of(egm.targets.GBRBM(), "gibbs", steps=3, warmup=2, dtype="float64")
    assert sampler.sample(4)["v"].dtype == torch.float64


@pytest.mark.parametrize(("keep", "thin"), [(40, 16), (45, 16), (399, 2), (400, 1)])
def test_what_is_kept_is_bounded_as_by_a_larger_thin(keep, thin):
    """100 steps of 4 chains; dropped states are those that a run with the final `thin` would not have kept."""
    bounded = chains_of(egm.targets.Ising(3, 0.4), "gibbs", steps=100, keep=keep)
    thinned = chains_of(egm.targets.Ising(3, 0.4), "gibbs", steps=100, thin=thin)
    assert bounded.kept <= keep
    assert bounded.config["outcome"]["thin"] == thin
    assert same(bounded, thinned)
    assert bounded.config["outcome"]["diagnostics"] == thinned.config["outcome"]["diagnostics"]


def test_diagnostics_are_those_of_the_kept_states():
    target = egm.targets.Ising(3, 0.4)
    sampler = chains_of(target, "gibbs", steps=230, thin=2)  # more than two lines of the log
    found = sampler.config["outcome"]["diagnostics"]
    state = sampler.space.widened(sampler.visited)
    energy = target.energy(**state)
    assert energy.shape == (115, 4)
    assert found["energy"]["r_hat"] == pytest.approx(r_hat(energy))
    assert found["energy"]["mean"] == pytest.approx(float(energy.mean()), rel=1e-6)
    magnetization = target.observables(**state)["magnetization"]
    assert found["magnetization"]["r_hat"] == pytest.approx(r_hat(magnetization))
    assert chains_of(target, "gibbs", steps=3).config["outcome"]["diagnostics"] == {}


def test_chains_that_disagree_are_seen():
    """Four chains that stay in the well where they begin."""
    target = egm.Target(BIMODAL, lambda x: double_well(x) + 1.5 * x.sum(-1))
    sampler = chains_of(target, "mala", steps=400)
    assert {bool(side) for side in (sampler.visited["x"][-1] < 0).flatten()} == {True, False}
    assert sampler.config["outcome"]["diagnostics"]["energy"]["r_hat"] > 1.5


# ---------------------------------------------------------------------- runs on disk


def test_a_run_on_disk_gives_the_same_draws(tmp_path):
    target = egm.targets.GBRBM()
    sampler = chains_of(target, "gibbs", steps=250, warmup=20, out=tmp_path / "run", seed=3)
    loaded = egm.load(tmp_path / "run")
    assert isinstance(loaded, ChainSampler)
    assert same(sampler, loaded)
    assert loaded.config == sampler.config
    assert repr(loaded.target) == "GBRBM()"
    draws, again = sampler.sample(100, seed=7), loaded.sample(100, seed=7)
    assert all(torch.equal(draws[name], again[name]) for name in draws)
    loaded.save(tmp_path / "copy")
    assert (tmp_path / "copy/model.safetensors").read_bytes() == (tmp_path / "run/model.safetensors").read_bytes()

    run, outcome = RunDirectory(tmp_path / "run"), sampler.config["outcome"]
    rows = run.read_metrics()
    assert list(rows[0]) == ["step", "seconds", "energy_calls", "score_calls", "mean_energy"]
    assert [int(row["step"]) for row in rows] == [80, 180, 250]
    assert {name: int(rows[-1][name]) for name in ("energy_calls", "score_calls")} == {
        name: outcome[name] for name in ("energy_calls", "score_calls")
    }
    energy = target.energy(**sampler.space.widened(sampler.visited))
    means = [float(energy[a:b].double().mean()) for a, b in ((0, 80), (80, 180), (180, 250))]
    assert [float(row["mean_energy"]) for row in rows] == pytest.approx(means, rel=1e-5)
    assert run.last_start()["torch"] == torch.__version__
    with pytest.raises(FileExistsError, match="holds a run already"):
        egm.fit(egm.targets.GBRBM(), "gibbs", steps=2, out=tmp_path / "run", **QUIET)


def test_a_target_of_ones_own_is_not_needed_to_draw(tmp_path):
    target = egm.Target(BIMODAL, double_well)
    sampler = chains_of(target, "mala", steps=20, warmup=5, out=tmp_path / "run")
    loaded = egm.load(tmp_path / "run")
    assert loaded.target is None
    assert torch.equal(loaded.sample(9, seed=1)["x"], sampler.sample(9, seed=1)["x"])
    with pytest.raises(ValueError, match="pass target="):
        egm.evaluate(loaded)
    assert egm.load(tmp_path / "run", target).target is target
    another = egm.Target(egm.Space(x=egm.Real(2)), double_well)
    with pytest.raises(ValueError, match="but Target"):
        egm.load(tmp_path / "run", another)


def test_chains_are_not_continued(tmp_path):
    chains_of(egm.targets.Ising(3, 0.4), "gibbs", steps=2, out=tmp_path / "run")
    with pytest.raises(ValueError, match="which are not continued; start another one with more steps"):
        egm.resume(tmp_path / "run", steps=4)
    (tmp_path / "run/model.safetensors").unlink()  # as after SIGKILL
    with pytest.raises(FileNotFoundError, match="killed before their end; run them again"):
        egm.load(tmp_path / "run")


def interrupting(calls: int) -> egm.Target:
    """A target whose energy presses Ctrl-C at one of its calls."""
    counted = []

    def energy(x):
        counted.append(1)
        if len(counted) == calls:
            signal.raise_signal(signal.SIGINT)
        return double_well(x)

    return egm.Target(BIMODAL, energy)


def test_an_interrupt_returns_what_there_is(tmp_path, capsys):
    sampler = chains_of(interrupting(5 + 1 + 4 + 30), "mala", warmup=4, steps=10_000, out=tmp_path / "run")
    assert "stopped after 30 steps of each chain; 120 states are kept and saved in" in capsys.readouterr().out
    assert sampler.kept == 120
    assert same(sampler, chains_of(egm.Target(BIMODAL, double_well), "mala", warmup=4, steps=30))
    loaded = egm.load(tmp_path / "run")
    assert isinstance(loaded, ChainSampler)
    assert same(loaded, sampler)
    with pytest.raises(KeyboardInterrupt):
        egm.fit(interrupting(5 + 3), "mala", warmup=4, steps=10_000, **QUIET)  # nothing to return yet


# ---------------------------------------------------------------------- evaluation


def test_evaluation_is_that_of_every_sampler():
    """Chains from exact energies score at the floor, and what has no meaning for them is null."""
    target = egm.targets.Ising(3, 0.2)
    sampler = chains_of(target, "gibbs", chains=1000, steps=20, warmup=20)
    calls = target.energy_calls
    record = egm.evaluate(sampler, n=1000, repeats=10, floor_pairs=40, seed=1)
    assert target.energy_calls == calls
    assert (record["method"], record["seed"], record["dtype"]) == ("gibbs", 0, "float32")
    assert all(record[name] is None for name in ("ess", "log_z", "elbo", "eubo", "resampled"))
    assert record["symmetries"] == []
    hot = chains_of(egm.targets.Ising(3, 0.15), "gibbs", chains=1000, steps=20, warmup=20)
    wrong = egm.evaluate(hot, target, n=1000, repeats=10, floor_pairs=40, seed=1)
    for name, score in record["metrics"].items():
        allowed = score["floor"] + z_limit(2) * score["std"] * math.sqrt(1 / 10 + 1 / 40)
        assert score["mean"] < allowed
        assert wrong["metrics"][name]["mean"] > allowed or name == "m_w1"
    with pytest.raises(ValueError, match="between 1 and the 20000 states"):
        egm.evaluate(sampler, n=20_001, repeats=1)


# ---------------------------------------------------------------------- refusals

ISING, WELL = egm.targets.Ising(3, 0.4), egm.Target(BIMODAL, double_well)


@pytest.mark.parametrize(
    ("target", "method", "options", "message"),
    [
        (WELL, "gibbs", {}, "only the reals .* use mala"),
        (ISING, "mala", {}, "use gibbs for both"),
        (egm.targets.GBRBM(), "mala", {}, "use gibbs for both"),
        (egm.targets.Ising(3, 0.4, J=-1.0), "swendsen-wang", {}, "ferromagnetic coupling"),
        (ISING, "swendsen-wang", {"energy_calls": 1000}, "give steps or time_limit"),
        (ISING, "gibs", {}, "did you mean 'gibbs'"),
        (ISING, "gibbs", {"steps": 0}, "steps must be positive"),
        (ISING, "gibbs", {"time_limit": -1.0}, "time_limit must be positive"),
        (ISING, "gibbs", {"steps": 1, "time_limit": 1.0}, "one of them"),
        (ISING, "gibbs", {"chains": 0}, "chains must be at least 1"),
        (ISING, "gibbs", {"thin": 0}, "thin must be at least 1"),
        (ISING, "gibbs", {"warmup": -1}, "warmup must not be negative"),
        (ISING, "gibbs", {"energy_calls": 0}, "energy_calls must be positive"),
        (ISING, "gibbs", {"chains": 5, "keep": 4}, "raise keep or lower chains"),
        (ISING, "tempering", {"replicas": 1}, "use gibbs or mala"),
        (ISING, "tempering", {"hottest": 1.0}, "between 0 and 1"),
        (ISING, "gibbs", {"hottest": 0.5}, "hottest is an option of tempering, not of gibbs"),
        (
            ISING,
            "gibbs",
            {"batch_size": 5},
            "batch_size is an option of egm, egm-bs, egm-sp, ",
        ),
        (ISING, "gibbs", {"ess_target": 0.5}, "ess_target is an option of egm-sp, not of gibbs"),
        (ISING, "egm", {"chains": 5}, "chains is an option of gibbs, mala, swendsen-wang, tempering, not of"),
        (ISING, "gibbs", {"chians": 5}, "did you mean 'chains'"),
        (ISING, "gibbs", {"network": "MLP"}, "gibbs trains nothing and has no use for network"),
        (ISING, "gibbs", {"paths": {"s": "Masked"}}, "no use for paths"),
        (ISING, "gibbs", {"start": "runs/a"}, "no use for start"),
        (ISING, "gibbs", {"seed": -1}, "seed must be at least 0"),
    ],
)
def test_refusals_name_the_fix(target, method, options, message):
    with pytest.raises(ValueError, match=message):
        egm.fit(target, method, **{**QUIET, **options})


def test_targets_without_clusters_are_refused():
    with pytest.raises(TypeError, match="coupling and site_energies"):
        egm.fit(WELL, "swendsen-wang", **QUIET)


@pytest.mark.parametrize("method", [name for name, kind in METHODS.items() if isinstance(kind, Chains)])
def test_every_method_has_a_kernel(method):
    target = WELL if method == "mala" else ISING
    kind = METHODS[method]
    assert isinstance(kind, Chains)
    assert kind.kernel(target, kind.options()).target is target


def test_energies_that_are_none_stop_the_run():
    def late(x):
        return torch.where(x > 1.5, math.nan, 0.5 * x.square()).sum(-1)

    def nowhere(s):
        return torch.where(s.sum(-1) == 0, 0.0, math.inf)

    with pytest.raises(egm.EnergyError, match="nan at the state"):
        egm.fit(egm.Target(egm.Space(x=egm.Real(1)), late), "mala", chains=200, steps=300, **QUIET)
    one_state = egm.Target(egm.Space(s=egm.Categorical(2, shape=3)), nowhere)
    with pytest.raises(ValueError, match=r"density is zero .*raise warmup"):
        egm.fit(one_state, "gibbs", chains=50, steps=3, **QUIET)
