"""The sampler: laws, seeds, steps, and the way to disk and back without importing anything."""

import math
import sys

import pytest
import torch
import yaml
from torch import nn

import egm
from egm import targets
from egm.networks import MLP, Preconditioned
from egm.paths import VE, VP, CondOT, ProductPath, Uniform
from egm.processes import Diffusion, DiscreteJump, Flow, Jump
from egm.sampler import Sampler
from egm.simulation.clock import time_grid
from egm.simulation.course import Course
from egm.simulation.denoiser_error import DenoiserError
from egm.simulation.simulate import simulate
from egm.spaces import Categorical, Real, Space
from support.marginals import LabelledGaussians, TinyIsing
from support.simulations import assert_ising
from support.stats import assert_mean, assert_same_distribution, assert_variance
from support.training import as_sampler, begin

TINY = {
    **{"batch_size": 8, "proposals": 4, "refresh": 16, "sample_steps": 4, "steps": 2, "device": "cpu"},
    **{"network": "MLP(width=8)", "progress": False},
}


class Oracle(nn.Module):
    """The exact denoiser as a network, which counts its calls; in the precision of its states."""

    def __init__(self, oracle):
        super().__init__()
        self.oracle, self.calls, self.modes = oracle, 0, []
        self.nothing = nn.Parameter(torch.zeros(()))

    def forward(self, state, t):
        self.calls += 1
        self.modes.append(self.training)
        doubled = {name: x.double() if x.is_floating_point() else x for name, x in state.items()}
        exact = self.oracle.prediction(doubled, t.double())
        found = {name: p.log() if name in self.oracle.path.space.categorical else p for name, p in exact.items()}
        dtype = next((x.dtype for x in state.values() if x.is_floating_point()), torch.float32)
        return {name: value.to(dtype) for name, value in found.items()}


def sampler_of(oracle, **options):
    error = DenoiserError(oracle.path)
    return Sampler(
        space=oracle.path.space, path=oracle.path, processes=oracle.processes, network=Oracle(oracle), error=error,
        **options,
    )  # fmt: skip


# ---------------------------------------------------------------------- laws


@pytest.mark.parametrize("batch_size", [10_000, 700, 1999])
def test_exact_denoisers_give_the_target_whatever_the_batches(batch_size):
    oracle = TinyIsing(beta=0.5)
    draws = sampler_of(oracle).sample(2000, seed=1, batch_size=batch_size)
    assert len(draws) == 2000
    assert_ising(draws.state, oracle)


def test_batches_do_not_change_the_law_of_mixed_draws():
    oracle = LabelledGaussians()
    sampler = sampler_of(oracle, t_min=0.01, steps=40)
    whole, parts = sampler.sample(2000, seed=1), sampler.sample(2000, seed=2, batch_size=300)
    assert_same_distribution(whole["x"], parts["x"])
    assert_mean((parts["b"] == 1).double(), 0.7)


SCALED = Space(x=Real(2, loc=[5.0, -100.0], scale=[3.0, 0.1]), y=Real(1, constraint="positive"), s=Categorical([2, 5]))


def untrained(space, *, paths=None, processes=None, dtype=torch.float32, **options):
    """A zero network: the reference law."""
    path = ProductPath(space, paths)
    chosen = {
        name: (Flow if isinstance(v, Real) else DiscreteJump)(path[name])  # type: ignore[arg-type]
        for name, v in space.variables.items()
    } | {name: make(path[name]) for name, make in (processes or {}).items()}
    network = Preconditioned(MLP(space, {n: p.output_shape for n, p in chosen.items()}, width=4), path).to(dtype)
    return Sampler(
        space=space, path=path, processes=chosen, network=network, error=DenoiserError(path), dtype=dtype, **options
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_are_in_the_users_coordinates(dtype):
    """An untrained flow carries the reference law to itself: N(loc, scale²), log-normal, uniform symbols."""
    draws = untrained(SCALED, dtype=dtype, steps=60).sample(3000, seed=0)
    SCALED.check(draws.state)
    assert {name: tuple(x.shape) for name, x in draws.state.items()} == {"x": (3000, 2), "y": (3000, 1), "s": (3000, 2)}
    assert {x.dtype for x in draws.state.values()} == {dtype, torch.int64}
    assert_mean(draws["x"].double(), [5.0, -100.0])
    assert_variance(draws["x"].double(), [9.0, 0.01])
    assert_mean(draws["y"].double().log(), [0.0])
    assert_mean((draws["s"] == 1).double(), [1 / 2, 1 / 5])
    assert draws.log_weights is None
    assert draws.space == SCALED


# ---------------------------------------------------------------------- seeds


def test_seeds_make_draws_repeatable():
    sampler = untrained(SCALED, steps=3)
    before = torch.get_rng_state()
    a, b, c = (sampler.sample(50, seed=seed) for seed in (4, 4, 5))
    assert all(torch.equal(a[name], b[name]) for name in SCALED)
    assert all(not torch.equal(a[name], c[name]) for name in SCALED)
    default, zero = sampler.sample(50), sampler.sample(50, seed=0)
    assert all(torch.equal(default[name], zero[name]) for name in SCALED)
    assert torch.equal(torch.get_rng_state(), before)  # nothing but the seed's own numbers


def test_a_generator_goes_on():
    sampler = untrained(SCALED, steps=3)
    generator = torch.Generator().manual_seed(4)
    first, second = sampler.sample(50, generator=generator), sampler.sample(50, generator=generator)
    assert torch.equal(first["x"], sampler.sample(50, seed=4)["x"])
    assert not torch.equal(first["x"], second["x"])
    parts = sampler.sample(100, seed=4, batch_size=50)
    assert torch.equal(parts["x"], torch.cat([first["x"], second["x"]]))


# ---------------------------------------------------------------------- steps and solvers


def test_sites_are_revealed_one_by_one_unless_steps_are_given():
    sampler = sampler_of(TinyIsing(), steps=30)
    network = sampler.network
    assert isinstance(network, Oracle)
    sampler.sample(10)
    assert network.calls == 4  # one for each site
    for steps, calls in ((1, 1), (3, 3), (7, 4)):
        network.calls = 0
        assert sampler.sample(10, steps=steps)["s"].max() < 2
        assert network.calls == calls
    network.calls = 0
    sampler.sample(25, batch_size=10)
    assert network.calls == 12


def test_steps_take_the_place_of_the_trained_ones():
    sampler = sampler_of(LabelledGaussians(), steps=30, t_min=0.01)
    network = sampler.network
    assert isinstance(network, Oracle)
    for steps, expected in ((None, 30), (1, 1), (12, 12)):
        network.calls = 0
        sampler.sample(10, steps=steps)
        assert network.calls == expected + 1  # the label is revealed between two of them


@pytest.mark.parametrize(
    ("make", "path", "t_min"),
    [(Flow, CondOT, 0.0), (Diffusion, CondOT, 0.01), (Diffusion, CondOT, 0.0), (Diffusion, VE, 0.0), (Jump, VP, 0.01)],
)
def test_real_variables_follow_bridges(make, path, t_min):
    """The solver "auto" draws the same as bridges on the grid from t_min."""
    space = Space(x=Real(2))
    given = path(space.real["x"])
    auto = untrained(space, paths={"x": given}, processes={"x": make}, steps=9, t_min=t_min)
    named = untrained(space, paths={"x": given}, processes={"x": make}, steps=9, t_min=t_min, solver="bridge")
    found = auto.sample(20, seed=1)["x"]
    assert torch.equal(found, named.sample(20, seed=1)["x"])
    assert bool(torch.isfinite(found).all())
    if make is Diffusion and t_min:
        different = untrained(space, paths={"x": given}, processes={"x": make}, steps=9, t_min=t_min, solver="euler")
        assert not torch.equal(found, different.sample(20, seed=1)["x"])


def test_simulation_begins_where_training_did():
    oracle = LabelledGaussians()
    sampler = sampler_of(oracle, steps=5, t_min=0.2, solver="bridge")
    generator = torch.Generator().manual_seed(3)

    def exact(x, t):
        return {name: sampler.processes[name].link(output) for name, output in sampler.network(x, t).items()}

    expected = simulate(
        exact, oracle.path, oracle.processes, 40, Course(time_grid(5, start=0.2)), generator=generator,
        dtype=torch.float32,
    ).state  # fmt: skip
    found = sampler.sample(40, seed=3)
    assert torch.equal(found["x"], expected["x"])
    assert torch.equal(found["b"], expected["b"])


def test_the_network_draws_in_evaluation_mode_and_is_left_as_it_was():
    sampler = sampler_of(TinyIsing())
    network = sampler.network
    assert isinstance(network, Oracle)
    for training in (True, False):
        network.train(training)
        sampler.sample(5)
        assert network.training is training
    assert set(network.modes) == {False}
    assert not any(x.requires_grad for x in sampler.sample(5).state.values())


def test_a_failing_network_is_left_as_it_was():
    sampler = untrained(Space(x=Real(2)))
    sampler.network.train()
    sampler.network.body.forward = lambda state, t: {}  # type: ignore[union-attr, method-assign]
    with pytest.raises(ValueError, match="the network returned no output for the variable 'x'"):
        sampler.sample(3)
    assert sampler.network.training


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"n": 0}, "n and a given batch_size must be at least 1, got 0 and None"),
        ({"n": -3}, "n and a given batch_size must be at least 1, got -3"),
        ({"n": 5, "batch_size": 0}, "n and a given batch_size must be at least 1, got 5 and 0"),
        ({"n": 5, "steps": 0}, "steps must be at least 1, got 0"),
        ({"n": 5, "steps": -1}, "steps must be at least 1, got -1"),
        ({"n": 5, "seed": 1, "generator": torch.Generator()}, "a seed or a generator, not both"),
    ],
)
def test_errors_are_named(given, expected):
    for sampler in (untrained(Space(x=Real(2))), untrained(Space(s=Categorical(2)))):
        with pytest.raises(ValueError, match=expected):
            sampler.sample(**given)


# ---------------------------------------------------------------------- to disk and back

RUNS = {
    "discrete": (lambda: targets.Ising(3, 0.4), {}),
    "uniform": (lambda: targets.Ising(3, 0.4), {"paths": {"s": "Uniform(schedule=Cosine())"}}),
    "mixed": (targets.GBRBM, {"paths": {"v": "VE(sigma_max=3.0)"}, "processes": {"v": "flow"}}),
    "jump": (
        lambda: targets.Funnel(dim=2),
        {"processes": {"x": "jump(bins=9)"}, "method": "egm", "t_min": 0.05, "dtype": "float64"},
    ),
    "average": (lambda: targets.JointMoG(dim=2), {"ema_start": 0.0, "solver": "heun", "processes": {"x": "flow"}}),
}


@pytest.mark.parametrize(("make", "options"), RUNS.values(), ids=RUNS)
def test_a_saved_sampler_draws_the_same(make, options, tmp_path):
    target = make()
    options = {"method": "egm-bs", **TINY, **options}
    if options["method"] == "egm-bs":
        options["energy_network"] = "MLP(width=8)"
    sampler = egm.fit(target, out=tmp_path / "run", **options)
    with torch.no_grad():  # far from its zero start, so that what is saved matters
        for p in as_sampler(sampler).network.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0), dtype=p.dtype))
    sampler.save(tmp_path / "saved")
    again = egm.load(tmp_path / "saved")
    assert repr(again.target) == repr(target)
    assert again.config == sampler.config
    assert (as_sampler(again).steps, as_sampler(again).solver, as_sampler(again).t_min, as_sampler(again).dtype) == (
        *(as_sampler(sampler).steps, as_sampler(sampler).solver, as_sampler(sampler).t_min, as_sampler(sampler).dtype),
    )
    for steps in (None, 6):
        a, b = (one.sample(30, seed=2, steps=steps) for one in (sampler, again))
        assert all(torch.equal(a[name], b[name]) for name in target.space)
        assert all(a[name].dtype == b[name].dtype for name in target.space)
    trained = egm.load(tmp_path / "run").sample(30, seed=2)  # what fit wrote is the sampler before the change
    assert any(not torch.equal(trained[name], a[name]) for name in target.space)


class OwnNetwork(nn.Module):
    """A user's module for Space(x=Real(2), s=Categorical(3, shape=2))."""

    def __init__(self, width=5):
        super().__init__()
        self.body = nn.Linear(4 + 2, width)
        self.x, self.s = nn.Linear(width, 2), nn.Linear(width, 6)

    def forward(self, state, t):
        t = t.expand(state["x"].shape[:-1]).to(state["x"].dtype)
        features = torch.cat([state["x"], state["s"].to(t.dtype), t[..., None], t[..., None].square()], -1)
        h = torch.tanh(self.body(features))
        return {"x": self.x(h), "s": self.s(h).unflatten(-1, (2, 3))}


def own_energy(x, s):
    return 0.5 * x.square().sum(-1) + 0.3 * s.sum(-1)


def own_target():
    return egm.Target(Space(x=Real(2), s=Categorical(3, shape=2)), own_energy)


def test_networks_of_ones_own_are_passed_again(tmp_path):
    network, target = OwnNetwork(), own_target()
    sampler = egm.fit(target, "egm", **{**TINY, "network": network})
    sampler.save(tmp_path)
    expected = sampler.sample(40, seed=1)
    target.space.check(expected.state)
    with pytest.raises(ValueError, match=r"the run has a user-defined network \(OwnNetwork\); pass it as network="):
        egm.load(tmp_path)
    again = egm.load(tmp_path, network=OwnNetwork())
    assert again.target is None
    found = again.sample(40, seed=1)
    assert all(torch.equal(found[name], expected[name]) for name in target.space)
    with pytest.raises(RuntimeError, match="size mismatch"):
        egm.load(tmp_path, network=OwnNetwork(width=7))
    assert egm.load(tmp_path, target, network=OwnNetwork()).target is target
    other = egm.Target(target.space, own_energy, name="another")
    with pytest.raises(ValueError, match=r"the run was made for Target\(own_energy\), not for another"):
        egm.load(tmp_path, other, network=OwnNetwork())
    shaped = egm.Target(Space(x=Real(2)), lambda x: x.sum(-1), name="Target(own_energy)")
    with pytest.raises(ValueError, match=r"the run was made for Space\(x=Real"):
        egm.load(tmp_path, shaped, network=OwnNetwork())


def test_built_in_targets_are_made_again_and_no_other_is_taken(tmp_path):
    egm.fit(targets.Ising(3, 0.4), "egm", **TINY).save(tmp_path)
    assert repr(egm.load(tmp_path).target) == "Ising(size=3, beta=0.4)"
    mine = targets.Ising(3, 0.4)
    assert egm.load(tmp_path, mine).target is mine
    with pytest.raises(
        ValueError, match=r"the run was made for Ising\(size=3, beta=0.4\), not for Ising\(size=3, beta"
    ):
        egm.load(tmp_path, targets.Ising(3, 0.5))


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """An importable module that creates a file when it is imported."""
    (tmp_path / "trap_module.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('sprung').touch()\nprint('imported')\n", encoding="utf-8"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path / "sprung"
    sys.modules.pop("trap_module", None)


def test_loading_imports_nothing_that_files_name(trap, tmp_path):
    """A run of a module's target draws without the module."""
    sampler = begin(own_target(), "egm", source="trap_module:make_target", **TINY)
    assert sampler.config["target"] == "trap_module:make_target"
    sampler.save(tmp_path / "run")
    modules = set(sys.modules)
    again = egm.load(tmp_path / "run")
    assert again.target is None
    assert torch.equal(again.sample(20, seed=3)["x"], sampler.sample(20, seed=3)["x"])
    assert not trap.exists()
    assert set(sys.modules) == modules
    mine = own_target()
    assert egm.load(tmp_path / "run", mine).target is mine


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("network", "__import__('trap_module')"),
        ("network", "MLP(width=__import__('trap_module'))"),
        ("space", "Space(x=Real(2), s=__import__('trap_module'))"),
        ("target", "__import__('trap_module')"),
        ("target", "Ising(size=__import__('trap_module').size, beta=0.4)"),
        ("paths", {"x": "trap_module.CondOT()", "s": "Masked()"}),
        ("processes", {"x": "(lambda: __import__('trap_module'))()", "s": "DiscreteJump()"}),
    ],
)
def test_files_that_were_tampered_with_are_refused(key, value, trap, tmp_path):
    sampler = egm.fit(own_target(), "egm", **TINY)
    sampler.save(tmp_path / "run")
    file = tmp_path / "run" / "config.yaml"
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert key in config
    file.write_text(yaml.safe_dump({**config, key: value}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"__import__|does not describe|must be literals"):
        egm.load(tmp_path / "run")
    assert not trap.exists()


def test_yaml_objects_are_refused(trap, tmp_path):
    sampler = egm.fit(own_target(), "egm", **TINY)
    sampler.save(tmp_path / "run")
    file = tmp_path / "run" / "config.yaml"
    file.write_text(file.read_text(encoding="utf-8") + "\nx: !!python/module:trap_module\n", encoding="utf-8")
    with pytest.raises(yaml.constructor.ConstructorError):
        egm.load(tmp_path / "run")
    assert not trap.exists()


def test_saved_samplers_hold_every_option(tmp_path):
    sampler = egm.fit(own_target(), "egm", **{**TINY, "t_min": 0.125, "solver": "bridge", "sample_steps": 3})
    sampler.save(tmp_path)
    again = egm.load(tmp_path)
    assert (as_sampler(again).t_min, as_sampler(again).solver, as_sampler(again).steps) == (0.125, "bridge", 3)
    assert math.isclose(again.config["learning_rate"], 1e-3)
    assert isinstance(as_sampler(again).path["s"], type(as_sampler(sampler).path["s"]))
    assert not isinstance(as_sampler(again).path["s"], Uniform)
