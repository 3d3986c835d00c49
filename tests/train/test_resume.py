"""A run that is stopped and resumed repeats an uninterrupted one, bit by bit."""

import math

import pytest
import torch

import egm
from egm.train.run_directory import RunDirectory
from egm.train.trainer import Trainer
from training import (
    SMALL,
    SPACES,
    Recorder,
    assert_same,
    assert_same_runs,
    interrupt_during,
    make_trainer,
    metrics_of,
    own_target,
    state_of,
)

STEPS = 40


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Uninterrupted runs, made when first asked for."""
    folder, made = tmp_path_factory.mktemp("whole"), {}

    def run(space: str, method: str):
        if (space, method) not in made:
            made[space, method] = folder / f"{space}-{method}"
            egm.fit(SPACES[space](), method, steps=STEPS, out=made[space, method], evaluate_every=16, **SMALL)
        return made[space, method]

    return run


@pytest.mark.parametrize("method", ["egm", "egm-bs"])
@pytest.mark.parametrize("space", SPACES)
# Before the first checkpoint (10) and line (7); at a refresh (12); with an evaluation due (16); at a checkpoint, where
# averages begin (20); at none of them; twice, while averages run and at the last step but one.
@pytest.mark.parametrize("stops", [(1,), (12,), (16,), (20,), (25,), (33, 39)])
def test_interrupted_runs_resume_bit_by_bit(tmp_path, monkeypatch, capsys, whole, space, method, stops):
    reference = whole(space, method)
    interrupt_during(monkeypatch, *stops)
    run = tmp_path / "run"
    sampler = egm.fit(SPACES[space](), method, steps=STEPS, out=run, evaluate_every=16, **SMALL)
    for stop in stops:
        assert state_of(run)["step"] == stop
        assert f"egm train --resume {run}" in capsys.readouterr().out
        assert_same(sampler.network.state_dict(), egm.load(run).network.state_dict())
        sampler = egm.resume(run, progress=False)
    assert state_of(run)["step"] == STEPS
    assert_same_runs(run, reference)
    assert len(RunDirectory(run).read_metrics()) == 6 + 3  # lines at 7, 14, …, 35, 40; evaluations at 16, 32, 40
    averaged = STEPS / 2 + 1  # from step 20 on
    assert int(state_of(run)["average"]["n_averaged"]) == averaged
    if method == "egm-bs":
        assert int(state_of(run)["modules"]["energy_average"]["n_averaged"]) == STEPS * 0.7 + 1
