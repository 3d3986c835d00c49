"""Runs of commit c263602 load and resume, and its small fits give the same draws (`support/kept_runs.py`)."""

import json
import shutil

import pytest

from support import kept_runs

EXPECTED = json.loads((kept_runs.DATA / "kept_runs.json").read_text())
SAME_MACHINE = kept_runs.machine() == EXPECTED["machine"]


def require_equal(found, expected, *, near: float = 0.5):
    """Bit by bit on the same kind of machine; elsewhere rounding differs, and means are near the recorded ones."""
    if SAME_MACHINE:
        assert found == expected
    else:
        require_near(found, expected, near)


def require_near(found, expected, near: float):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert abs(found[name]["mean"] - values["mean"]) < near * (1 + abs(values["mean"])), name


def test_other_draws_are_not_near():
    """The control: draws of another run have other means."""
    with pytest.raises(AssertionError):
        require_near(EXPECTED["fits"]["reals"], EXPECTED["fits"]["flow"], 0.5)


@pytest.mark.parametrize("name", kept_runs.RUNS)
def test_runs_of_an_earlier_version_load(name):
    require_equal(kept_runs.loaded(kept_runs.DATA / "kept_runs" / name), EXPECTED["runs"][name]["loaded"])


@pytest.mark.parametrize("name", kept_runs.RUNS)
def test_runs_of_an_earlier_version_resume(name, tmp_path):
    folder = shutil.copytree(kept_runs.DATA / "kept_runs" / name, tmp_path / name)
    found = kept_runs.resumed(folder, kept_runs.RUNS[name][2])
    require_equal(found, EXPECTED["runs"][name]["resumed"])
    assert found != EXPECTED["runs"][name]["loaded"]


@pytest.mark.parametrize("name", kept_runs.FITS)
def test_fits_give_the_draws_of_an_earlier_version(name):
    require_equal(kept_runs.fitted(name), EXPECTED["fits"][name])
