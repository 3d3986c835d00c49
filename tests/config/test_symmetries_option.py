"""The option `symmetries`: when relabellings of symbols are built into the network, and that results say so."""

import pytest
import torch

import egm
from egm.cli import main
from egm.networks import MLP, LatticeConv, Symmetrised
from egm.targets import Ising, JointMoG, Potts
from support.cli_cases import ISING, TINY, TINY_SP, config_of, results_of
from support.training import as_sampler, small


def fit(method="egm-sp", target=None, **options):
    return egm.fit(target or Ising(3, 0.4), method, **{**small(method), "steps": 8, "learning_rate": 0.02, **options})


def flip_error(network):
    """Returns the largest difference between the logits of a state and the flipped logits of its mirror image."""
    s = torch.randint(3, (50, 3, 3), generator=torch.Generator().manual_seed(0))  # 2 is the mask
    flipped = torch.where(s == 2, s, 1 - s)
    t = torch.full((50,), 0.4)
    with torch.no_grad():
        logits, mirrored = network({"s": s}, t)["s"], network({"s": flipped}, t)["s"]
    assert float((logits[..., 0] - logits[..., 1]).abs().max()) > 0.01  # it has learned something
    return float((torch.log_softmax(logits, -1) - torch.log_softmax(mirrored.flip(-1), -1)).abs().max())


def energy_error(model):
    """How far the learned energies of states and of their mirror images differ."""
    s = torch.randint(3, (50, 3, 3), generator=torch.Generator().manual_seed(0))
    t = torch.full((50,), 0.4)
    with torch.no_grad():
        return float((model({"s": s}, t) - model({"s": torch.where(s == 2, s, 1 - s)}, t)).abs().max())


@pytest.mark.parametrize(
    ("method", "given", "built"),
    [
        ("egm-sp", {}, True),
        ("egm-sp", {"symmetries": False}, False),
        ("egm", {}, False),
        ("egm-bs", {}, False),
        ("egm", {"symmetries": True}, True),
        ("egm-bs", {"symmetries": True}, True),
    ],
)
def test_each_method_has_its_default_and_both_can_be_asked_for(tmp_path, method, given, built):
    trained = fit(method, out=tmp_path, **given)
    assert trained.config["symmetries"] is built
    assert trained.config["target_symmetries"] == ["spin-flip", "translation"]
    for sampler in (trained, egm.load(tmp_path)):
        body = as_sampler(sampler).network.body
        assert type(body) is (Symmetrised if built else MLP)
        error = flip_error(as_sampler(sampler).network)
        assert error < 1e-5 if built else error > 0.01
    if as_sampler(trained).energy_model is not None:
        error = energy_error(as_sampler(trained).energy_model)
        assert error < 1e-5 if built else error > 1e-4
    record = egm.evaluate(egm.load(tmp_path), n=20, repeats=2, floor_pairs=2, metrics=["e_w1"])
    assert record["symmetries"] == (["spin-flip"] if built else [])


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        (Ising(3, 0.4, field=0.3), {}, []),
        (Potts(3, 3, 0.4), {}, ["symbol-shift"]),
        (JointMoG(dim=2), {}, []),
        (Ising(4, 0.4), {"network": "LatticeConv(width=4, depth=1)"}, ["translation", "spin-flip"]),
        (Ising(4, 0.4), {"network": "LatticeConv(width=4, depth=1)", "symmetries": False}, ["translation"]),
    ],
    ids=["a field breaks the flip", "three symbols", "none declared", "with those of the body", "the body's alone"],
)
def test_what_is_recorded_is_what_the_network_has(target, options, expected):
    sampler = fit(target=target, **{"steps": 1, **options})
    record = egm.evaluate(sampler, n=10, repeats=2, floor_pairs=2, metrics=["e_w1"])
    assert record["symmetries"] == expected
    body = as_sampler(sampler).network.body
    inner = body.network if isinstance(body, Symmetrised) else body
    assert isinstance(inner, LatticeConv) == ("translation" in expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (TINY_SP, ["spin-flip"]),
        ([*TINY_SP, "--symmetries", "false"], []),
        ([*TINY, "--method", "egm"], []),
        ([*TINY, "--method", "egm", "--symmetries", "true"], ["spin-flip"]),
    ],
    ids=["egm-sp", "egm-sp without", "egm", "egm with"],
)
def test_results_on_disk_say_so(tmp_path, monkeypatch, options, expected):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *ISING, *options, "--steps", "2", "--out", "a"]) == 0
    assert results_of("a")["symmetries"] == expected
    assert config_of("a")["symmetries"] is bool(expected)
    switched = "--symmetries" in options
    assert ("symmetries" in results_of("a")["overrides"]) == switched
