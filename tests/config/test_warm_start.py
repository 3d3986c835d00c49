"""Runs that begin with the network of another: what is taken over, what may differ, and what is refused."""

from typing import Any

import pytest
import torch

import egm
from egm.cli import main
from egm.networks import Symmetrised
from egm.targets import Ising, JointMoG
from egm.train.trainer import Trainer
from support.cli_cases import ISING, TINY_SP, config_of
from support.training import SMALL, SMALL_BS, SMALL_SP, SPACES, as_sampler, assert_same
from test_fit import OwnNetwork

PLAIN: dict[str, Any] = {name: value for name, value in SMALL_SP.items() if name != "network"}
PLAIN_BS: dict[str, Any] = {name: value for name, value in SMALL_BS.items() if name != "network"}
STILL = {"learning_rate": 1e-30}  # steps that go nowhere


@pytest.fixture
def untrained(monkeypatch):
    """Skips the training."""
    monkeypatch.setattr(Trainer, "train", lambda self: None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Trained samplers by name, each with its run folder."""
    folder, made = tmp_path_factory.mktemp("runs"), {}
    for name, make in SPACES.items():
        out = folder / name
        made[name] = egm.fit(make(), steps=20, out=out, learning_rate=0.02, **SMALL_SP), out
    return made


def learned(sampler):
    """Copies of everything that a warm start takes over."""
    parts = {"network": sampler.network, "error": sampler.error}
    return {name: {key: x.clone() for key, x in module.state_dict().items()} for name, module in parts.items()}


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, tensors in expected.items():
        for key, x in tensors.items():
            torch.testing.assert_close(found[name][key], x, rtol=0, atol=1e-12, msg=f"{name}.{key}")


# ---------------------------------------------------------------------- what is taken over


@pytest.mark.parametrize("kind", ["sampler", "folder", "text"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.usefixtures("untrained")
def test_a_run_begins_with_what_another_has_learned(runs, space, kind):
    begun, folder = runs[space]
    start = {"sampler": begun, "folder": folder, "text": str(folder)}[kind]
    found = egm.fit(SPACES[space](), steps=1, seed=5, start=start, **PLAIN)
    assert_same(learned(found), learned(begun))
    assert torch.equal(found.sample(50, seed=3).log_weights, begun.sample(50, seed=3).log_weights)  # type: ignore[arg-type]
    cold = egm.fit(SPACES[space](), steps=1, seed=5, **SMALL_SP)
    differ = [key for key, x in learned(begun)["network"].items() if not torch.equal(x, learned(cold)["network"][key])]
    assert len(differ) > 4
    for key, x in learned(cold)["error"].items():
        assert not torch.equal(x, learned(begun)["error"][key])


@pytest.mark.parametrize("space", SPACES)
def test_the_loop_and_its_averages_begin_there_too(runs, space):
    """Steps of size zero leave the parameters, through the running average of the second half as well."""
    begun, _ = runs[space]
    found = egm.fit(SPACES[space](), steps=13, seed=5, start=begun, **STILL, **PLAIN)
    assert_close({"network": learned(found)["network"]}, {"network": learned(begun)["network"]})


def test_the_first_round_is_drawn_by_the_start(runs):
    """So its effective sample size, and with it b, is not that of an untrained network."""
    begun, _ = runs["discrete"]
    seen: list[float] = []
    plain = Trainer.draw

    def draw(self):
        drawn = plain(self)
        own = begun.latent(self.options.refresh, generator=torch.Generator().manual_seed(5), weigh=True)
        seen.append(float((drawn.log_ratio - own.log_ratio).abs().max()))
        return drawn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "draw", draw)
        egm.fit(SPACES["discrete"](), steps=1, seed=5, start=begun, **PLAIN)
        egm.fit(SPACES["discrete"](), steps=1, seed=5, **SMALL_SP)
    assert seen[0] == 0
    assert seen[1] > 0.01


def test_the_start_is_left_as_it_was(runs):
    begun, folder = runs["mixed"]
    before, files = learned(begun), {file.name: file.read_bytes() for file in folder.iterdir()}
    for start in (begun, folder):
        found = egm.fit(SPACES["mixed"](), steps=13, start=start, learning_rate=0.02, **PLAIN)
        after = as_sampler(found).network.state_dict()
        assert any(not torch.equal(x, before["network"][key]) for key, x in after.items())
        assert_same(learned(begun), before)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == files


# ---------------------------------------------------------------------- what the new run is made of


@pytest.fixture(scope="module")
def special():
    """A sampler whose parts are none of the defaults."""
    options: dict[str, Any] = {"paths": {"x": "VE(sigma_max=3.0)", "b": "Uniform"}, "processes": {"x": "flow"}}
    return egm.fit(JointMoG(dim=2), steps=2, **PLAIN, network="ResidualMLP(width=8, depth=1)", **options)


@pytest.mark.usefixtures("untrained")
def test_parts_are_those_of_the_start_unless_given(special):
    own = {name: special.config[name] for name in ("network", "paths", "processes")}
    found = egm.fit(JointMoG(dim=2), steps=1, start=special, **PLAIN)
    assert {name: found.config[name] for name in own} == own
    assert own["network"].startswith("ResidualMLP(width=8, depth=1")
    assert (own["paths"]["x"][:2], own["processes"]["x"][:4]) == ("VE", "Flow")
    given: dict[str, Any] = {"paths": {"x": "VE(sigma_max=2.0)"}, "processes": {"x": "diffusion"}}
    other = egm.fit(JointMoG(dim=2), steps=1, start=special, network=own["network"], **PLAIN, **given)
    assert "sigma_max=2.0" in other.config["paths"]["x"]
    assert other.config["paths"]["b"] == own["paths"]["b"]
    assert other.config["processes"]["x"].startswith("Diffusion")
    assert_same(as_sampler(other).network.state_dict(), as_sampler(special).network.state_dict())


@pytest.mark.parametrize("symmetries", [False, True])
@pytest.mark.usefixtures("untrained")
def test_methods_follow_each_other(symmetries):
    """With the symmetries of the start, not those of the second method's default."""
    begun = egm.fit(Ising(3, 0.4), "egm", steps=1, symmetries=symmetries, **SMALL)
    second = egm.fit(Ising(3, 0.4), "egm-sp", steps=1, seed=1, start=begun, **PLAIN)
    third = egm.fit(Ising(3, 0.4), "egm-bs", steps=1, seed=2, start=second, **PLAIN_BS)
    for sampler in (begun, second, third):
        assert sampler.config["symmetries"] is symmetries
        assert isinstance(as_sampler(sampler).network.body, Symmetrised) is symmetries
        assert_same(as_sampler(sampler).network.state_dict(), as_sampler(begun).network.state_dict())
    assert third.config["method"] == "egm-bs"


@pytest.mark.parametrize("kind", ["sampler", "folder"])
@pytest.mark.usefixtures("untrained")
def test_another_energy_on_the_same_space(runs, kind):
    begun, folder = runs["discrete"]
    start = {"sampler": begun, "folder": folder}[kind]
    found = egm.fit(Ising(3, 0.9), steps=1, seed=5, start=start, **PLAIN)
    assert_same(learned(found), learned(begun))
    assert repr(found.target) == "Ising(size=3, beta=0.9)"


@pytest.mark.usefixtures("untrained")
def test_another_size_where_the_network_does_not_depend_on_it():
    begun = egm.fit(Ising(3, 0.4), steps=1, network="LatticeConv(width=4, depth=1)", **PLAIN)
    with torch.no_grad():
        for parameter in as_sampler(begun).network.parameters():
            parameter.add_(0.1)
    found = egm.fit(Ising(5, 0.4), steps=1, seed=5, start=begun, **PLAIN)
    assert_same(learned(found), learned(begun))
    assert found.sample(2, seed=0)["s"].shape == (2, 5, 5)


# ---------------------------------------------------------------------- user-defined networks


def own_sampler(**options):
    torch.manual_seed(0)
    network = OwnNetwork()
    return network, egm.fit(JointMoG(dim=2), steps=20, network=network, learning_rate=0.02, ema=0.0, **options, **PLAIN)


@pytest.mark.usefixtures("untrained")
def test_own_networks_begin_with_one_another():
    first, begun = own_sampler()
    with pytest.raises(ValueError, match=r"start has a user-defined network \(OwnNetwork\); pass it as network="):
        egm.fit(JointMoG(dim=2), steps=1, start=begun, **PLAIN)
    torch.manual_seed(1)
    second = OwnNetwork()
    assert not torch.equal(second.first.weight, first.first.weight)
    found = egm.fit(JointMoG(dim=2), steps=1, start=begun, network=second, **PLAIN)
    assert as_sampler(found).network is second
    assert_same(second.state_dict(), first.state_dict())
    with torch.no_grad():
        second.first.weight.add_(1.0)
    assert not torch.equal(second.first.weight, first.first.weight)  # a copy
    with pytest.raises(ValueError, match=r"start has another network: .*leave network out"):
        egm.fit(JointMoG(dim=2), steps=1, start=begun, network=OwnNetwork(width=9), **PLAIN)


def test_own_networks_begin_with_a_run_on_disk(tmp_path):
    first, _ = own_sampler(out=tmp_path)
    torch.manual_seed(1)
    second = OwnNetwork()
    egm.fit(JointMoG(dim=2), steps=2, start=tmp_path, network=second, **STILL, **PLAIN)
    torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- what does not fit


def test_another_network_is_refused_with_both_named(runs):
    begun, _ = runs["discrete"]
    expected = r"start has another network: .*MLP\(width=8.*not MLP\(width=9.*; leave network out"
    with pytest.raises(ValueError, match=expected):
        egm.fit(Ising(3, 0.4), steps=1, start=begun, network="MLP(width=9)", **PLAIN)


def test_another_space_is_refused_with_both_named(runs):
    begun, _ = runs["discrete"]
    with pytest.raises(ValueError, match=r"start has another network: .*shape=\(3, 3\).*not .*shape=\(4, 4\)"):
        egm.fit(Ising(4, 0.4), steps=1, start=begun, **PLAIN)
    with pytest.raises(ValueError, match=r"start has the variables \['s'\], not \['x', 'b'\]"):
        egm.fit(JointMoG(dim=2), steps=1, start=begun, **PLAIN)


@pytest.mark.parametrize(
    ("target", "options"),
    [(Ising(4, 0.4), {}), (JointMoG(dim=2), {}), (Ising(3, 0.4), {"symmetries": False})],
    ids=["another size", "other variables", "other symmetries"],
)
def test_the_fix_is_one_that_helps(runs, target, options):
    begun, _ = runs["discrete"]
    with pytest.raises(ValueError, match="start") as refused:
        egm.fit(target, steps=1, start=begun, **options, **PLAIN)
    assert "leave network out" not in str(refused.value)
    assert all(name in str(refused.value) for name in options)


def test_a_folder_without_a_trained_network(runs, tmp_path):
    with pytest.raises(FileNotFoundError, match="not a run"):
        egm.fit(Ising(3, 0.4), steps=1, start=tmp_path, **PLAIN)
    (tmp_path / "config.yaml").write_bytes((runs["discrete"][1] / "config.yaml").read_bytes())
    with pytest.raises(FileNotFoundError, match=r"holds no trained network"):
        egm.fit(Ising(3, 0.4), steps=1, start=tmp_path, **PLAIN)


# ---------------------------------------------------------------------- the command line


def test_start_on_the_command_line(runs, tmp_path, monkeypatch, capsys):
    begun, folder = runs["discrete"]
    monkeypatch.chdir(tmp_path)
    options = TINY_SP[: TINY_SP.index("--network")] + TINY_SP[TINY_SP.index("--network") + 2 :]
    command = ["train", *ISING, *options, "--evaluate", "false", "--learning_rate", "1e-30", "--steps", "2"]
    assert main([*command, "--seed", "5", "--start", str(folder), "--out", "a"]) == 0
    assert_close({"network": learned(egm.load("a"))["network"]}, {"network": learned(begun)["network"]})
    config = config_of("a")
    assert config["notes"]["start"] == str(folder)
    assert config["network"] == begun.config["network"]
    assert config["seed"] == 5

    capsys.readouterr()
    assert main([*command, "--start", str(folder), "--network", "MLP(width=9)", "--out", "b"]) == 2
    said = capsys.readouterr().err
    assert "start has another network" in said
    assert "leave network out" in said
    assert not (tmp_path / "b").exists()
    assert main([*command, "--start", "nowhere", "--out", "b"]) == 2
    assert "nowhere is not a run" in capsys.readouterr().err

    resumed = ["train", "--resume", "a", "--steps", "4", "--evaluate", "false", "--progress", "false"]
    assert main([*resumed, "--start", "b"]) == 2
    assert f"start = {folder}, but --start b" in capsys.readouterr().err
    assert main([*resumed, "--start", str(folder)]) == 0
    assert_close({"network": learned(egm.load("a"))["network"]}, {"network": learned(begun)["network"]})
