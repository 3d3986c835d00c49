"""`egm.fit` from the outside: user-defined networks, dtypes, devices, paths and processes in every form, options."""

import dataclasses
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from torch import nn

import egm
from egm import processes
from egm.methods.egm_options import EGMBSOptions
from egm.methods.registry import split_options
from egm.paths import VE, CondOT, Cosine, Masked, Uniform
from egm.processes import Diffusion, DiscreteJump, Flow, Jump, Superposition
from egm.targets import Ising, JointMoG
from egm.train.options import TrainingOptions
from egm.train.trainer import Trainer
from support.training import (
    SMALL_BS,
    as_sampler,
    assert_same,
    assert_same_runs,
    begin,
    interrupt_during,
    own_target,
    small,
    state_of,
)

PLAIN: dict[str, Any] = {key: value for key, value in SMALL_BS.items() if "network" not in key}
HINTS = {name: hint for group in (TrainingOptions, EGMBSOptions) for name, hint in get_type_hints(group).items()}


def fit(method="egm", *, target=None, steps=2, **options):
    return egm.fit(target or JointMoG(dim=2), method, steps=steps, **{**small(method), **options})


@pytest.fixture
def untrained(monkeypatch):
    """Skips the training."""
    monkeypatch.setattr(Trainer, "train", lambda self: None)


# ---------------------------------------------------------------------- user-defined networks


class OwnNetwork(nn.Module):
    """Means and logits from plain layers, in the form that the documentation asks for."""

    def __init__(self, width=8):
        super().__init__()
        self.table, self.first = nn.Embedding(3, 2), nn.Linear(2 + 2 * 2 + 1, width)
        self.mean, self.logits = nn.Linear(width, 2), nn.Linear(width, 4)
        self.calls = 0

    def forward(self, state, t):
        self.calls += 1
        batch = state["x"].shape[:-1]
        time = t.to(state["x"].dtype).expand(batch)[..., None]
        h = torch.cat([state["x"], self.table(state["b"]).flatten(-2), time], -1)
        h = torch.relu(self.first(h))
        return {"x": self.mean(h), "b": self.logits(h).unflatten(-1, (2, 2))}


class OwnEnergy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, state, t):
        time = t.to(state["x"].dtype).expand(state["x"].shape[:-1])[..., None]
        return self.layer(torch.cat([state["x"], state["b"].to(state["x"].dtype), time], -1))[..., 0]


def test_own_modules_train_save_and_resume(tmp_path):
    torch.manual_seed(0)
    network, energy_network = OwnNetwork(), OwnEnergy()
    before = {name: x.clone() for name, x in network.state_dict().items()}
    energy_before = energy_network.layer.weight.clone()
    options = {**PLAIN, "network": network, "energy_network": energy_network, "ema": 0.0}
    sampler = egm.fit(JointMoG(dim=2), "egm-bs", steps=12, out=tmp_path, **options)
    assert as_sampler(sampler).network is network
    assert network.calls > 12
    assert all(not torch.equal(x, before[name]) for name, x in network.state_dict().items())
    assert not torch.equal(energy_network.layer.weight, energy_before)
    assert sampler.sample(7, seed=0)["b"].shape == (7, 2)
    assert sampler.config["network"] == "user: OwnNetwork"
    assert sampler.config["energy_network"] == "user: OwnEnergy"

    again = egm.load(tmp_path, network=OwnNetwork())
    assert_same(as_sampler(again).network.state_dict(), network.state_dict())
    with pytest.raises(ValueError, match=r"user-defined network \(OwnNetwork\); pass it as network="):
        egm.load(tmp_path)
    with pytest.raises(ValueError, match=r"user-defined network \(OwnNetwork\); pass it as network="):
        egm.resume(tmp_path, steps=20, energy_network=OwnEnergy())
    with pytest.raises(ValueError, match=r"user-defined energy network \(OwnEnergy\); pass it as energy_network="):
        egm.resume(tmp_path, steps=20, network=OwnNetwork())
    egm.resume(tmp_path, steps=20, network=OwnNetwork(), energy_network=OwnEnergy(), progress=False)
    assert state_of(tmp_path)["step"] == 20


def test_own_modules_resume_bit_by_bit(tmp_path, monkeypatch):
    def modules():
        torch.manual_seed(3)
        return {"network": OwnNetwork(), "energy_network": OwnEnergy()}

    whole, run = tmp_path / "whole", tmp_path / "run"
    egm.fit(JointMoG(dim=2), "egm-bs", steps=20, out=whole, **PLAIN, **modules())
    interrupt_during(monkeypatch, 12)
    egm.fit(JointMoG(dim=2), "egm-bs", steps=20, out=run, **PLAIN, **modules())
    assert state_of(run)["step"] == 12
    egm.resume(run, network=OwnNetwork(), energy_network=OwnEnergy(), progress=False)
    assert_same_runs(run, whole)


def test_a_run_of_ones_own_energy_says_how_to_go_on_in_python(tmp_path, monkeypatch, capsys):
    interrupt_during(monkeypatch, 1)
    fit(target=own_target(), out=tmp_path)
    assert f"egm.resume('{tmp_path}', target=...)" in capsys.readouterr().out


def test_a_run_of_ones_own_network_says_how_to_go_on_in_python(tmp_path, monkeypatch, capsys):
    interrupt_during(monkeypatch, 1)
    egm.fit(JointMoG(dim=2), "egm", steps=5, out=tmp_path, **{**small("egm"), "network": OwnNetwork()})
    assert f"egm.resume('{tmp_path}', network=...)" in capsys.readouterr().out


def test_a_target_that_was_imported_is_not_exchanged(tmp_path):
    """`source` tells the command line where the target is; in Python the same target must still be passed."""
    begin(own_target(), "egm", steps=2, source="module:make", out=tmp_path, **small("egm"))
    another = egm.Target(own_target().space, own_target()._energy, name="another")
    with pytest.raises(ValueError, match=r"the run was made for .*, not for another"):
        egm.resume(tmp_path, target=another, progress=False)


class Wrong(OwnNetwork):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, state, t):
        return self.change(super().forward(state, t))


@pytest.mark.parametrize(
    ("change", "error", "expected"),
    [
        (lambda out: (out["x"], out["b"]), TypeError, "must return a dict"),
        (lambda out: {"x": out["x"]}, ValueError, "no output for the variable 'b'"),
        (lambda out: {**out, "x": out["x"][..., :1]}, ValueError, r"output for 'x' has shape .*Diffusion needs"),
        (lambda out: {**out, "b": out["b"].long()}, TypeError, "output for 'b' must be a floating-point tensor"),
    ],
)
def test_a_network_that_returns_something_else_is_told(change, error, expected):
    with pytest.raises(error, match=expected):
        fit(network=Wrong(change))


def test_a_network_needs_parameters():
    with pytest.raises(ValueError, match="the network Identity has no parameters"):
        fit(network=torch.nn.Identity())


def test_networks_are_expressions_too(untrained):
    sampler = fit("egm-bs", network="ResidualMLP(width=16, depth=2)", energy_network="MLP")
    assert sampler.config["network"] == "ResidualMLP(width=16, depth=2, frequencies=0)"
    assert sampler.config["energy_network"] == "MLP(width=256, depth=3)"
    assert fit("egm").config["energy_network"] is None
    with pytest.raises(ValueError, match="did you mean 'width'"):
        fit(network="MLP(widht=16)")
    with pytest.raises(ValueError, match="did you mean 'MLP'"):
        fit(network="MPL")


# ---------------------------------------------------------------------- dtypes and devices


@pytest.mark.parametrize("method", ["egm", "egm-bs"])
@pytest.mark.parametrize("dtype", [torch.float64, "float64"])
def test_double_precision_all_the_way(tmp_path, method, dtype):
    seen = set()

    def energy(x, s):
        seen.add(x.dtype)
        return x.square().sum(-1) + s.sum(-1)

    target = egm.Target(egm.Space(x=egm.Real(2), s=egm.Categorical(2, 2)), energy)
    sampler = fit(method, target=target, dtype=dtype, out=tmp_path, steps=8)
    assert seen == {torch.float64}
    assert {p.dtype for p in as_sampler(sampler).network.parameters()} == {torch.float64}
    assert sampler.sample(3)["x"].dtype == torch.float64
    assert sampler.config["dtype"] == "float64"
    state = state_of(tmp_path)
    assert state["buffer"]["states"]["x"].dtype == torch.float64
    assert state["buffer"]["states"]["s"].dtype == torch.int64
    again = egm.load(tmp_path, target=target)
    assert torch.equal(again.sample(3, seed=1)["x"], sampler.sample(3, seed=1)["x"])


def test_single_precision_is_the_default():
    sampler = fit()
    assert {p.dtype for p in as_sampler(sampler).network.parameters()} == {torch.float32}
    assert sampler.sample(3)["x"].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, "int64", torch.int64, "double"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match=r"dtype must be one of \['float32', 'float64'\]"):
        fit(dtype=dtype)


@pytest.mark.parametrize("device", ["nowhere", "cuda:99", "cpu:3x"])
def test_devices_that_are_not_there_are_refused(device):
    with pytest.raises(ValueError, match=f"the device '{device}' cannot be used here.*use 'cpu'"):
        fit(device=device)


def test_the_device_of_a_run(untrained):
    assert fit(device=torch.device("cpu")).config["device"] == "cpu"
    default = fit(device=None).config["device"]
    assert default == ("cuda" if torch.cuda.is_available() else "cpu")


# ---------------------------------------------------------------------- paths and processes


def test_paths_as_expressions_and_objects(untrained):
    space = JointMoG(dim=2).space
    given = [
        {"x": "VE(sigma_max=2.0)", "b": "masked(schedule=Cosine())"},
        {"x": VE(space.real["x"], sigma_max=2.0), "b": Masked(space.categorical["b"], schedule=Cosine())},
    ]
    for paths in given:
        sampler = fit(paths=paths)
        assert sampler.config["paths"] == {
            "x": "VE(sigma_min=0.01, sigma_max=2.0)",
            "b": "Masked(schedule=Cosine())",
        }
        path = as_sampler(sampler).path["x"]
        assert isinstance(path, VE)
        assert path.sigma_max == 2.0
    assert isinstance(as_sampler(fit(paths={"b": "uniform"})).path["b"], Uniform)
    assert fit().config["paths"] == {"x": "CondOT()", "b": "Masked(schedule=Polynomial(power=1.0))"}


def test_processes_as_names_classes_and_objects():
    space = JointMoG(dim=2).space
    path = CondOT(space.real["x"])
    for choice in ("flow", "Flow()", Flow, Flow(path)):
        paths = {"x": path} if isinstance(choice, Flow) else {}
        sampler = fit(paths=paths, processes={"x": choice})
        assert type(as_sampler(sampler).processes["x"]) is Flow
        assert type(as_sampler(sampler).processes["b"]) is DiscreteJump
        assert sampler.config["processes"] == {"x": "Flow()", "b": "DiscreteJump()"}
    assert type(as_sampler(fit()).processes["x"]) is Diffusion
    jump = as_sampler(fit(processes={"x": "jump(bins=16)"})).processes["x"]
    assert isinstance(jump, Jump)
    assert jump.bins == 16


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"paths": {"y": "VE"}}, "'y' is not a variable of the space"),
        ({"paths": {"x": "VEE"}}, "did you mean 'VE'"),
        ({"paths": {"x": "Masked"}}, "Masked"),
        ({"paths": {"x": CondOT(egm.Real(3))}}, "the path of 'x' was made for Real"),
        ({"processes": {"y": "flow"}}, "'y' is not a variable of the space"),
        ({"processes": {"x": "flwo"}}, "did you mean 'Flow'"),
        ({"processes": {"x": "discrete-jump"}}, "DiscreteJump"),
        ({"processes": {"x": Flow(CondOT(JointMoG(dim=2).space.real["x"]))}}, "'x' follows another path"),
        ({"processes": {"x": 3}}, r"the process of 'x' must be one of \['Flow', 'Diffusion', 'Jump'"),
        ({"processes": {"x": Superposition}}, r"the process of 'x' must be one of .*Superposition"),
        ({"processes": {"x": dict}}, "the process of 'x' must be one of .*dict"),
    ],
)
def test_paths_and_processes_that_do_not_fit_are_refused(given, expected):
    with pytest.raises((ValueError, TypeError), match=expected):
        fit(**given)


def test_a_superposition_is_refused_by_name():
    path = CondOT(JointMoG(dim=2).space.real["x"])
    mixed = Superposition([(0.5, Flow(path)), (0.5, Diffusion(path))])
    with pytest.raises(TypeError, match=r"the process of 'x' must be one of .*Superposition"):
        fit(paths={"x": path}, processes={"x": mixed})


def test_bootstrapping_a_continuous_jump_is_refused():
    with pytest.raises(ValueError, match=r"egm-bs cannot train the Jump of 'x'.*use method='egm'"):
        fit("egm-bs", processes={"x": processes.Jump})


# ---------------------------------------------------------------------- limits, seeds, methods


def test_sixty_seconds_unless_told(untrained):
    sampler = egm.fit(JointMoG(dim=2), "egm", **small("egm"))
    assert (sampler.config["steps"], sampler.config["time_limit"]) == (None, 60.0)
    assert (
        egm.fit(JointMoG(dim=2), network="MLP(width=8)", device="cpu", progress=False, steps=3).config["method"]
        == "egm-sp"
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"steps": 3, "time_limit": 1.0}, "steps or time_limit"),
        ({"steps": 0}, "steps must be positive, got 0"),
        ({"steps": None, "time_limit": -1.0}, "time_limit must be positive"),
        ({"steps": None, "time_limit": float("nan")}, "time_limit must be positive"),
        ({"steps": 2.5}, "steps must be a whole number or None, got 2.5"),
        ({"steps": "many"}, "steps must be a whole number"),
        ({"steps": True}, "steps must be a whole number"),
        ({"steps": None, "time_limit": "1 h"}, "time_limit must be a number"),
        ({"seed": 0.5}, "seed must be a whole number, got 0.5"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"method": "egm-bss"}, "did you mean 'egm-bs'"),
    ],
)
def test_limits_and_seeds_are_checked(limits, expected):
    with pytest.raises((ValueError, TypeError), match=expected):
        fit(**limits)


def test_numbers_of_numpy_are_numbers(tmp_path):
    """Sweeps count with NumPy; a configuration holds plain numbers."""
    numbers: dict[str, Any] = {"steps": np.int64(2), "seed": np.int32(3), "batch_size": np.int64(8)}
    fit(**numbers, learning_rate=np.float32(0.5), out=tmp_path)
    config = egm.load(tmp_path).config
    assert (config["steps"], config["seed"], config["batch_size"], config["learning_rate"]) == (2, 3, 8, 0.5)


def test_two_runs_of_one_target_count_their_own_energies(tmp_path):
    target = own_target()
    for name in ("a", "b"):
        fit(target=target, out=tmp_path / name)
    assert state_of(tmp_path / "a")["energy_calls"] == state_of(tmp_path / "b")["energy_calls"] > 0


def test_fit_leaves_torchs_own_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit("egm-bs").sample(3)
    assert torch.equal(torch.rand(3), expected)


# ---------------------------------------------------------------------- options

#: a value outside of each number's range, where it has one
OUTSIDE = {
    **dict.fromkeys(("batch_size", "inner_steps", "refresh", "buffer", "sample_steps", "refresh_steps"), 0),
    **dict.fromkeys(("log_every", "proposals", "sites", "memory"), 0),
    **dict.fromkeys(("checkpoint_every", "evaluate_every"), -1),
    **dict.fromkeys(("learning_rate", "energy_learning_rate", "clip_gradient", "clip_estimate"), 0.0),
    **dict.fromkeys(("final_learning_rate", "lambda_disc", "lambda_cont"), -0.1),
    **dict.fromkeys(("ema", "energy_ema"), 1.0),
    **dict.fromkeys(("ema_start", "energy_ema_start", "opening", "t_min"), 1.1),
    **{"epsilon": 1.0, "clip_energy": float("nan")},
}


def kinds(name: str) -> tuple:
    hint = HINTS[name]
    return get_args(hint) if NoneType in get_args(hint) else (hint,)


def test_the_lists_below_cover_every_option():
    for name in HINTS:
        assert (get_origin(kinds(name)[0]) is Literal) or kinds(name)[0] in (int, float, bool)
    assert set(OUTSIDE) == {name for name in HINTS if kinds(name)[0] in (int, float)}


@pytest.mark.parametrize("name", OUTSIDE)
def test_numbers_are_checked(name):
    with pytest.raises(ValueError, match=rf"\b{name}\b.*got.*{OUTSIDE[name]}"):
        split_options("egm-bs", {name: OUTSIDE[name]})
    if kinds(name)[0] is float:
        with pytest.raises(ValueError, match=name):
            split_options("egm-bs", {name: float("nan")})
    for wrong in ("3", True, [1], 0.5 if kinds(name)[0] is int else "much"):
        with pytest.raises(TypeError, match=f"{name} must be a .*number"):
            split_options("egm-bs", {name: wrong})
    if NoneType not in kinds(name):
        with pytest.raises(TypeError, match=f"{name} must be a .*number"):
            split_options("egm-bs", {name: None})


@pytest.mark.parametrize("name", [name for name in HINTS if get_origin(kinds(name)[0]) is Literal])
def test_words_are_checked(name):
    for choice in get_args(kinds(name)[0]):
        options = split_options("egm-bs", {name: choice.upper()})
        assert choice in [getattr(group, name, None) for group in options]
        with pytest.raises(ValueError, match=f"is not a value of {name}; did you mean '{choice}'"):
            split_options("egm-bs", {name: f"{choice}x"})


def test_yes_or_no_is_checked():
    assert split_options("egm-bs", {"forward_looking": False})[1] == EGMBSOptions(forward_looking=False)
    assert split_options("egm-bs", {"forward_looking": None})[1] == EGMBSOptions()
    with pytest.raises(TypeError, match="forward_looking must be True or False or None, got 1"):
        split_options("egm-bs", {"forward_looking": 1})


def test_unknown_options_suggest_the_nearest():
    for wrong, meant in (("stesp", "steps"), ("metod", "method"), ("Time_Limit", "time_limit"), ("sweps", "sweeps")):
        for method in ("egm-sp", "gibbs"):
            given: dict[str, Any] = {wrong: 5}
            with pytest.raises(ValueError, match=f"'{wrong}' is not an option; did you mean '{meant}'"):
                egm.fit(Ising(size=3, beta=0.4), method, **given)
    with pytest.raises(ValueError, match="'batchsiez' is not an option; did you mean 'batch_size'"):
        fit(batchsiez=3)
    with pytest.raises(ValueError, match="'propsals' is not an option; did you mean 'proposals'"):
        fit(propsals=3)


def test_defaults_pass_their_own_checks():
    defaults = {f.name: f.default for group in (TrainingOptions, EGMBSOptions) for f in dataclasses.fields(group)}
    assert split_options("egm-bs", defaults) == (TrainingOptions(), EGMBSOptions())


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("egm", {"epsilon": 0.1}, "epsilon is an option of egm-bs, bnem, not of egm"),
        ("idem", {"energy_ema": 0.5}, "energy_ema is an option of egm-bs, bnem, not of idem"),
        ("bnem", {"real_loss": "generator"}, "real_loss is an option of egm, egm-bs, iefm, idem, not of bnem"),
        ("egm", {"energy_network": "MLP(width=8)"}, "energy_network is a part of egm-bs, not of egm: leave it out"),
        ("bnem", {"energy_network": "MLP(width=8)"}, "not of bnem: its network is the energy, pass it as network="),
    ],
)
def test_what_a_method_would_not_look_at_is_refused(method, options, message):
    with pytest.raises(ValueError, match=message):
        egm.fit(own_target(), method, steps=1, device="cpu", progress=False, **options)


def test_iefm_is_about_reals():
    with pytest.raises(ValueError, match=r"iefm needs real variables, .* use method='egm'"):
        egm.fit(Ising(3, 0.4), "iefm", steps=1, device="cpu", progress=False)


def test_an_energy_alone_is_no_target():
    with pytest.raises(
        TypeError, match=r"fit needs an egm\.Target, for example egm\.Target\(space, energy\); got function"
    ):
        egm.fit(lambda x: x.square().sum(-1), steps=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["egm", "egm-sp", "egm-bs"])
def test_a_variable_may_be_called_energy(method):
    """The outputs of its denoiser look like those of an energy network."""
    target = egm.Target(egm.Space(energy=egm.Real(())), lambda energy: 0.5 * energy.square())
    draws = egm.fit(target, method, steps=2, **small(method)).sample(8)
    assert draws["energy"].shape == (8,)
