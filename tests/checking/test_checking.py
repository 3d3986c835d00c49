"""`egm.check` finds each of many planted faults, explains it, and is silent about good energies."""

import dataclasses
import re
import sys

import pytest
import torch

import egm
from egm.cli import main
from egm.config.registry import TARGETS
from egm.util.expressions import evaluate
from support.planted_faults import CLEAN, FAULTS

BUILT_IN = [
    *("Ising(size=4, beta=0.4)", "Potts(size=3, states=3, beta=0.5)", "SpinGlass(size=4, seed=0, beta=1.0)", "GBRBM"),
    *("JointMoG", "JointDW4", "ManyWell", "GMM40", "Funnel", "DW4", "LJ13"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_and_explained(fault):
    found = egm.check(fault.target())
    explained = [finding for finding in found.findings if finding.name == fault.finding]
    assert explained, str(found)
    assert explained[0].level == fault.level
    assert re.search(fault.message, explained[0].text), explained[0].text
    # one fault, one finding (notes apart)
    assert {f.name for f in found.findings if f.level != "note"} <= {fault.finding}
    assert found.ok == (fault.level != "problem")


@pytest.mark.parametrize("target", CLEAN.values(), ids=CLEAN.keys())
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nothing_is_found_where_nothing_is_wrong(target, seed):
    assert egm.check(target, seed=seed).findings == ()


@pytest.mark.parametrize("text", BUILT_IN)
def test_built_in_targets_have_no_problem(text):
    found = egm.check(evaluate(text, TARGETS, kind="a target"))
    assert found.ok
    assert not found.at("warning"), str(found)


def test_posteriors_have_no_problem():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(30, 4, generator=generator)
    y = X @ torch.tensor([2.0, 0.0, -1.0, 0.0]) + torch.randn(30, generator=generator)
    for target in (egm.targets.SpikeSlab(X, y), egm.targets.GaussianMixturePosterior(y[:8], 2)):
        found = egm.check(target)
        assert found.ok, str(found)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("energy", "message"),
    [
        (lambda x: 1e6 * x.square().sum(-1), r"try loc=0\.0, scale=0\.0007"),
        (
            lambda x: 1e6 * (x - torch.tensor([0.0, 0.5]).to(x)).square().sum(-1),
            r"try loc=\[0\.0, 0\.5\], scale=0\.0007",
        ),
        (lambda x: 20 * (x.square() / 400 - 1).square().sum(-1), r"try loc=0\.0, scale=2[01]\.0"),  # two wells, at ±20
        (lambda x: 5e3 * (x - 53.1234).square().sum(-1), r"try loc=53\.123, scale=0\.01"),  # not 53: thirty widths away
    ],
)
def test_a_suggested_location_has_the_digits_that_matter(energy, message, seed):
    found = egm.check(egm.Target(egm.Space(x=egm.Real(2)), energy), seed=seed)
    assert re.search(message, str(found)), str(found)


def test_many_coordinates_at_different_places_need_an_array():
    places = 7 * torch.arange(10.0)
    target = egm.Target(egm.Space(x=egm.Real(10)), lambda x: 5e3 * (x - places.to(x)).square().sum(-1))
    assert "try an array of shape (10,) as loc, with entries from 0.0 to 63.0" in str(egm.check(target))


def test_calls_are_counted_and_the_state_of_the_world_is_left_alone():
    target = CLEAN["mixed"]
    before, random = target.energy_calls, torch.get_rng_state()
    found = egm.check(target, seed=3)
    assert target.energy_calls - before == found.energy_calls > 1000
    assert torch.equal(torch.get_rng_state(), random)
    again = egm.check(target, seed=3)
    assert (again.findings, again.complete) == (found.findings, True)


def test_doubles_and_bad_arguments():
    assert egm.check(CLEAN["real"], dtype=torch.float64).findings == ()
    with pytest.raises(TypeError, match=r"check needs an egm\.Target"):
        egm.check(torch.square)  # type: ignore[arg-type]


def test_slow_energies_are_asked_less():
    import time

    def slow(x):
        time.sleep(2e-3 * x.reshape(-1, 2).shape[0])
        return 0.5 * x.square().sum(-1)

    found = egm.check(egm.Target(egm.Space(x=egm.Real(2)), slow))
    assert {f.name for f in found.findings} == {"batching", "slow"}
    assert "a million energies" in str(found)
    assert found.energy_calls < 4000  # more than ten thousand where an energy takes microseconds


def test_the_verdict_counts():
    found = egm.check(FAULTS[0].target())
    assert found.verdict.startswith("1 problem to fix before training; run the check again after that")
    whole = dataclasses.replace(found, complete=True, findings=found.findings * 2)
    assert whole.verdict.startswith("2 problems to fix before training (")
    assert egm.check(CLEAN["real"]).verdict.startswith("no problem found (")


# ---------------------------------------------------------------------- the command

OWN = """
import math
from math import sqrt

import egm
from egm import Space

good = egm.Target(egm.Space(x=egm.Real(2)), lambda x: 0.5 * x.square().sum(-1))


def needs(beta):
    return good


def fails():
    raise TypeError("this is not about arguments")


class Holder(dict):  # has no signature
    pass


def wrong_sign():
    return egm.Target(good.space, lambda x: -0.5 * x.square().sum(-1))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_checked.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_checked", raising=False)


def test_the_command_ends_with_a_verdict_and_a_code(own, capsys):
    assert main(["check", "own_checked:good"]) == 0
    assert "Target(<lambda>): no problem found" in capsys.readouterr().out
    assert main(["check", "own_checked:wrong_sign", "--dtype", "float64", "--seed", "1"]) == 1
    out = capsys.readouterr().out
    assert "from_log_prob" in out
    assert "1 problem to fix before training" in out
    assert main(["check", "Ising(size=3, beta=0.4)"]) == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nonsense"], "'nonsense' is not a target"),
        (["nonsense"], "write your own as module:function"),
        (["ising"], "'size' and 'beta'; write \"Name(argument=value)\""),
        (["nowhere:target"], "there is no module 'nowhere'"),
        (["own_checked.py:good"], "leave out .py: own_checked:good"),
        (["own_checked:needs"], "own_checked:needs is called without arguments, but it needs some"),
        (["own_checked:fails"], "this is not about arguments"),
        (["own_checked:Holder"], "must be an egm.Target or a function that returns one, got Holder"),
        (["own_checked:god"], "did you mean 'good'"),
        (
            ["own_checked:mat"],
            "returns one (known: Holder, fails, good, wrong_sign)\n",
        ),  # nothing imported, nothing with arguments
        (["gbrbm", "--sed", "1"], "did you mean '--seed'"),
        ([], "target"),
    ],
)
def test_the_command_refuses(own, argv, message, capsys):
    assert main(["check", *argv]) == 2
    assert message in capsys.readouterr().err


def test_the_command_explains_itself(capsys):
    assert main(["check", "--help"]) == 0
    out = capsys.readouterr().out
    assert "egm check my_module:make_target" in out
    assert len(out.splitlines()) <= 24
