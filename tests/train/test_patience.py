"""Runs of EGM-SP that come to an end by themselves: they say so, end well, and train on when they are given more."""

import math
from typing import Any

import pytest
import torch

import egm
from egm.cli import main
from egm.methods.self_proposal import SelfProposal
from egm.train.trainer import LAST_PART, Trainer
from support.training import SMALL_SP, Recorder, metrics_of, state_of

ROUNDS, INNER = 2, 6  # patience, and gradient steps a round
OPTIONS: dict[str, Any] = {
    **SMALL_SP,
    **{"refresh": 200, "buffer": 400, "learning_rate": 1e-5, "patience": ROUNDS, "inner_steps": INNER},
}
MESSAGE = "the effective sample size no longer improves at step {}: the last part begins"
SEEN = 2 * ROUNDS * INNER  # steps after which a judgement is possible


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
    """A run that had 300 steps, and ended before."""
    egm.fit(target(), steps=300, out=tmp_path / "run", **OPTIONS)
    step = state_of(tmp_path / "run")["step"]
    assert SEEN <= step < 300
    return tmp_path / "run", step


def test_the_end_is_announced(tmp_path, monkeypatch):
    for patience, steps in ((ROUNDS, 300), (0, 60)):
        progress, run = Listener(), tmp_path / str(patience)
        monkeypatch.setattr("egm.methods.trained.make_progress", lambda wanted, progress=progress: progress)
        egm.fit(target(), steps=steps, out=run, **{**OPTIONS, "patience": patience})
        step = state_of(run)["step"]
        assert (step < steps) == bool(patience)
        assert progress.rows[-1]["step"] == step  # the log is complete
        assert [text.partition(" at step ")[0] for text in progress.said] == [MESSAGE.partition(" at step ")[0]][
            : bool(patience)
        ]
        if patience:
            said = int(progress.said[0].split("at step ")[1].partition(":")[0])
            assert said >= SEEN
            assert step == math.ceil(said / LAST_PART - 1e-9)


def test_the_last_part_has_small_rates_and_an_average(tmp_path):
    """As at the end of any run, however early it comes."""
    egm.fit(target(), steps=100_000, out=tmp_path, **{**OPTIONS, "learning_rate": 1e-3, "log_every": 1})
    state, rates = state_of(tmp_path), [float(row["learning_rate"]) for row in metrics_of(tmp_path)]
    last = math.floor(state["step"] * LAST_PART)
    assert state["step"] < 1000
    assert min(rates[: last - 1]) > 0.99e-3
    assert max(rates[last + 1 :]) < 0.12e-3
    assert rates[-1] < 2e-5
    assert int(state["average"]["n_averaged"]) == pytest.approx(state["step"] - last, abs=1)


def test_fit_shows_it_and_is_silent_when_asked(capsys):
    egm.fit(target(), steps=300, **{**OPTIONS, "progress": True})
    said = capsys.readouterr()
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
    """For as many rounds as a judgement needs, and a last part; then it ends again."""
    run, before = stopped
    taken = steps_of(monkeypatch)
    egm.resume(run, target=target(), **more)
    after = state_of(run)["step"]
    assert taken == list(range(before, after))
    assert before + SEEN <= after < 600
    assert "no longer improves" in capsys.readouterr().err
    assert [int(row["step"]) for row in metrics_of(run)][-1] == after
    assert state_of(run)["method"]["b"] == 1


def test_a_run_that_is_given_nothing_stays_finished(stopped, monkeypatch):
    run, before = stopped
    taken = steps_of(monkeypatch)
    egm.resume(run, target=target())
    assert taken == []
    assert state_of(run)["step"] == before


def test_an_extended_run_remembers_everything_but_its_history(stopped, monkeypatch):
    """b, the buffer and the generator go on; the effective sample sizes of the past are not counted again."""
    run, _ = stopped
    saved, found = state_of(run), {}

    def keep(self):
        found.update(self.state_dict())

    monkeypatch.setattr(Trainer, "train", keep)
    egm.resume(run, target=target(), steps=600, progress=False)
    assert saved["share"] < 1 == found["share"]
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
    assert state_of("a")["step"] == 7  # a quarter more
    assert main(["train", "--resume", "a", "--evaluate", "false"]) == 0
    assert state_of("a")["step"] == 7
    assert main(["train", "--resume", "a", "--evaluate", "false", "--steps", "60"]) == 0
    assert state_of("a")["step"] > 10
