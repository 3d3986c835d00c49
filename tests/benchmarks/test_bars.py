"""The bars of the benchmark: each can be missed, and is then named."""

import copy
from pathlib import Path

import pytest

import egm.recipes
from bars import CPU, GPU, PEERS, Bar, line, missed

FLOOR = {"floor": 1.0, "floor_pairs": 200}
SCORE = {"e_w1": {"mean": 1.2, **FLOOR}, "x_w2": {"mean": 0.9, **FLOOR}}
GOOD = {
    "recipe": "fast/a", "role": "main", "seed": 0, "repeats": 20, "energy_calls": 4_000_000, "train_seconds": 80.0,
    "concurrent": 1, "ess": 0.9, "log_z": 1.005, "log_z_exact": 1.0, "metrics": SCORE, "resampled": SCORE, "modes": 40,
    "observables": {"left": {"mean": [0.15, 0.16]}},
}  # fmt: skip
BAR = Bar(0.8, 0.01, ("e_w1", "x_w2"), ("e_w1",), e_w1=1.3, modes=40, observable=("left", 0.1557, 0.01))


def test_a_run_that_reaches_everything():
    assert list(missed(GOOD, BAR)) == []
    assert line(GOOD, []).endswith("reached")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"energy_calls": 5_000_001}, "5000001 energy calls"),
        ({"train_seconds": 301.0}, "301.0 seconds"),
        ({"ess": 0.79}, "ESS below 0.8"),
        ({"ess": None}, "ESS below 0.8"),
        ({"log_z": None}, "log Z off by more than 0.01"),
        ({"modes": None}, "None of 40 modes"),
        ({"log_z": 0.98}, "log Z off by more than 0.01"),
        ({"metrics": {**SCORE, "x_w2": {"mean": 1.26, **FLOOR}}}, "x_w2 above the floor"),
        ({"resampled": {"e_w1": {"mean": 1.26, **FLOOR}}}, "resampled e_w1 above the floor"),
        (
            {"resampled": {"e_w1": {"mean": 0.9, "floor": 1.0, "floor_pairs": 199}}},
            "resampled e_w1 not evaluated 20 times, or its floor not from 200 pairs",
        ),
        ({"resampled": None}, "resampled e_w1 not evaluated 20 times, or its floor not from 200 pairs"),
        ({"modes": 39}, "39 of 40 modes"),
        ({"observables": {"left": {"mean": [0.15, 0.167]}}}, "left off by 0.011"),
    ],
)
def test_what_a_run_misses(change, said):
    assert list(missed({**copy.deepcopy(GOOD), **change}, BAR)) == [said]


def test_too_few_evaluations_are_not_at_the_floor():
    assert len(list(missed({**GOOD, "repeats": 19}, BAR))) == 3


def test_a_limit_of_its_own():
    assert list(missed(GOOD, Bar(0.8, e_w1=1.1))) == ["e_w1 above 1.1"]


def test_bars_are_of_recipes():
    known = {f"fast/{path.stem}" for path in (Path(egm.recipes.__file__).parent / "fast").glob("*.yaml")}
    assert {*CPU, *GPU, *PEERS} <= known
