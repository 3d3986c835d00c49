"""Runs of EGM-SP that stop by themselves: they say so, and train on when they are given more."""

from typing import Any

import pytest
import torch

import egm
from egm.cli import main
from egm.methods.self_proposal import SelfProposal
from egm.train.trainer import Trainer
from training import SMALL_SP, Recorder, metrics_of, state_of

ROUNDS, INNER = 2, 6  # patience, and gradient steps a round
OPTIONS: dict[str, Any] = {
    **SMALL_SP,
    **{"refresh": 200, "buffer": 400, "learning_rate": 1e-5, "patience": ROUNDS, "inner_steps": INNER},
}
MESSAGE = "stopped at step {}: the effective sample size no longer improves"


def bell(x):
    return 0.5 * x.square().sum(-1)


def target():
    """The reference law: nothing can improve."""
    return egm.Target(egm.Space(x=egm.Real(2)), bell, name="own")


class Listener(Recorder):
    """Keeps every remark as well."""

    def __init__(self):
        super().__init__()
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def stopped(tmp_path):
    """A run that had 300 steps, and stopped."""
    egm.fit(target(), steps=300, out=tmp_path / "run", **OPTIONS)
    step = state_of(tmp_path / "run")["step"]
    assert 2 * ROUNDS * INNER <= step < 300
    return tmp_path / "run", step


def test_the_end_is_announced(tmp_path, monkeypatch):
    for patience, steps in ((ROUNDS, 300), (0, 60)):
        progress, run = Listener(), tmp_path / str(patience)
        monkeypatch.setattr("egm.api.make_progress", lambda wanted, progress=progress: progress)
        egm.fit(target(), steps=steps, out=run, **{**OPTIONS, "patience": patience})
        step = state_of(run)["step"]
        assert (step < steps) == bool(patience)
        assert progress.said == ([MESSAGE.format(step)] if patience else [])
        assert progress.rows[-1]["step"] == step  # the log is complete


def test_fit_shows_it_and_is_silent_when_asked(capsys):
    egm.fit(target(), steps=300, **{**OPTIONS, "progress": True})
    said = capsys.readouterr()
    assert "stopped at step" in said.err
    assert "no longer improves" in said.err
    assert said.out == ""
    egm.fit(target(), steps=300, **OPTIONS)
    assert capsys.readouterr().err == ""


def steps_of(monkeypatch):
    """The steps that are taken from now on."""
    plain, seen = Trainer.gradient_step, []

    def gradient_step(self):
        seen.append(self.step)
        return plain(self)

    monkeypatch.setattr(Trainer, "gradient_step", gradient_step)
    return seen


@pytest.mark.parametrize("more", [{"steps": 600}, {"time_limit": 1000.0}], ids=["steps", "seconds"])
def test_a_run_that_is_given_more_trains_on(stopped, monkeypatch, capsys, more):
    """For as many rounds as a judgement needs; then it stops again."""
    run, before = stopped
    taken = steps_of(monkeypatch)
    egm.resume(run, target=target(), **more)
    after = state_of(run)["step"]
    assert taken == list(range(before, after))
    assert before + 2 * ROUNDS * INNER <= after < 600
    assert MESSAGE.format(after) in capsys.readouterr().err
    assert [int(row["step"]) for row in metrics_of(run)][-1] == after
    assert state_of(run)["method"]["b"] == 1


def test_a_run_that_is_given_nothing_stays_finished_and_says_so(stopped, monkeypatch, capsys):
    run, before = stopped
    taken = steps_of(monkeypatch)
    egm.resume(run, target=target())
    assert taken == []
    assert MESSAGE.format(before) in capsys.readouterr().err


def test_an_extended_run_remembers_everything_but_its_history(stopped, monkeypatch):
    """b, the buffer and the generator go on; the effective sample sizes of the past are not counted again."""
    run, _ = stopped
    saved, found = state_of(run), {}

    def keep(self):
        found.update(self.state_dict())

    monkeypatch.setattr(Trainer, "train", keep)
    egm.resume(run, target=target(), steps=600, progress=False)
    assert len(saved["method"]["history"]) == 2 * ROUNDS
    assert found["method"]["history"] == []
    assert torch.equal(found["method"]["b"], saved["method"]["b"])
    assert torch.equal(found["generator"], saved["generator"])
    assert torch.equal(found["buffer"]["states"]["x"], saved["buffer"]["states"]["x"])
    assert found["step"] == saved["step"]


def test_the_command_line_trains_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # one round is enough here, whatever its weights
    monkeypatch.setattr(SelfProposal, "finished", lambda self: bool(self._history))
    small = ["--batch_size", "8", "--refresh", "16", "--network", "MLP(width=8)", "--evaluate", "false"]
    command = ["train", "ising", "--target.size", "3", "--target.beta", "0.4", *small, "--inner_steps", "5"]
    assert main([*command, "--steps", "50", "--device", "cpu", "--out", "a"]) == 0
    assert MESSAGE.format(5) in capsys.readouterr().err
    assert main(["train", "--resume", "a", "--evaluate", "false"]) == 0
    assert state_of("a")["step"] == 5
    assert main(["train", "--resume", "a", "--evaluate", "false", "--steps", "60"]) == 0
    assert state_of("a")["step"] == 10
