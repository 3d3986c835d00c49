"""The committed summaries of long references: complete, converged, and right where the exact answer is known."""

import json
import math
import re
from importlib import resources

import pytest
import torch

from egm import targets
from egm.mcmc.reference import slug
from egm.targets.ising import kaufman_log_z

FILES = sorted((resources.files("egm.targets") / "summaries").iterdir(), key=lambda file: file.name)
EXACT = {"DW4()": (-22.541508, 1.905073), "JointDW4()": (-7.8170, 1.6242)}


def rebuild(name: str) -> targets.Target:
    """Returns the target of a summary, from its printed name."""
    found = re.fullmatch(r"(\w+)\((.*)\)", name)
    assert found is not None
    pairs = [pair.split("=") for pair in found[2].split(", ") if pair]
    values = {key: float(value) if "." in value else int(value) for key, value in pairs}
    return getattr(targets, found[1])(**values)


def ising_moments(size: int, beta: float) -> tuple[float, float]:
    """Mean and sd of E = βH from Kaufman's log Z(b·β): −d/db and d²/db² at b = 1."""
    h = 1e-3
    low, middle, high = (kaufman_log_z(size, beta * b) for b in (1 - h, 1.0, 1 + h))
    return -(high - low) / (2 * h), math.sqrt((high - 2 * middle + low) / h**2)


def test_every_long_reference_has_a_summary():
    names = {json.loads(file.read_text())["target"] for file in FILES}
    assert names >= {"DW4()", "JointDW4()", "LJ13()", "LJ55()", "Ising(size=16, beta=0.4407)"}
    assert "Potts(size=16, states=3, beta=1.005)" in names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_summaries_are_converged_and_right(file):
    record = json.loads(file.read_text())
    target = rebuild(record["target"])
    assert repr(target) == record["target"]
    assert file.name == f"{slug(record['target'])}.json"
    assert target.reference_summary == record
    for key in (
        "method",
        "seed",
        "chains",
        "warmup",
        "steps",
        "energy_calls",
        "seconds",
        "hardware",
        "torch",
        "commit",
    ):
        assert record[key] is not None, key
    for told in record["observables"].values():
        assert told["r_hat"] < 1.01
        assert told["ess"] > 5000
        assert len(told["quantiles"]) == 501
        assert sorted(told["quantiles"]) == told["quantiles"]
    energy = record["observables"]["energy"]
    assert energy["quantiles"][0] < energy["mean"] < energy["quantiles"][-1]
    if isinstance(target, targets.Ising):
        mean, sd = ising_moments(target.size, target.beta)
    elif record["target"] in EXACT:
        mean, sd = EXACT[record["target"]]
    else:
        return
    assert abs(energy["mean"] - mean) < 4 * energy["stderr"]
    assert energy["sd"] == pytest.approx(sd, rel=0.03)


def test_targets_without_a_long_reference_have_no_summary():
    assert targets.GBRBM().reference_summary is None


def test_lj55_is_not_sampled_without_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("EGM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="takes hours without a GPU"):
        targets.LJ55().exact_sample(10)
