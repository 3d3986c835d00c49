"""A run that is stopped and resumed repeats an uninterrupted one, bit by bit."""

from typing import Any

import pytest
import torch

import egm
from egm import targets
from egm.runs.directory import RunDirectory
from egm.train.trainer import Trainer
from support.training import (
    SMALL,
    SMALL_BS,
    SPACES,
    Recorder,
    as_sampler,
    assert_same,
    assert_same_runs,
    interrupt_during,
    make_trainer,
    metrics_of,
    own_target,
    small,
    state_of,
)

STEPS = 40
LENGTH: dict[str, Any] = {"steps": STEPS, "evaluate_every": 16}
RUN: dict[str, Any] = {**SMALL_BS, **LENGTH}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Uninterrupted runs, made when first asked for."""
    folder, made = tmp_path_factory.mktemp("whole"), {}

    def run(space: str, method: str):
        if (space, method) not in made:
            made[space, method] = folder / f"{space}-{method}"
            egm.fit(SPACES[space](), method, out=made[space, method], **small(method), **LENGTH)
        return made[space, method]

    return run


@pytest.mark.parametrize("method", ["egm", "egm-bs"])
@pytest.mark.parametrize("space", SPACES)
# Before the first checkpoint (10) and line (7); before a refresh (12) and at no boundary (25); where an evaluation is
# due (16); at a checkpoint just before averages begin (20), and before a refresh by the average (36).
@pytest.mark.parametrize("stops", [(1,), (12, 25), (16,), (20, 36)])
def test_interrupted_runs_resume_bit_by_bit(tmp_path, monkeypatch, capsys, whole, space, method, stops):
    reference = whole(space, method)
    interrupt_during(monkeypatch, *stops)
    sampler = egm.fit(SPACES[space](), method, out=tmp_path, **small(method), **LENGTH)
    for stop in stops:
        assert state_of(tmp_path)["step"] == stop
        assert f"egm train --resume {tmp_path}" in capsys.readouterr().out
        assert_same(as_sampler(sampler).network.state_dict(), as_sampler(egm.load(tmp_path)).network.state_dict())
        sampler = egm.resume(tmp_path, progress=False)
    state = state_of(tmp_path)
    assert state["step"] == STEPS
    assert_same_runs(tmp_path, reference)
    # The runs are as eventful as they should be: lines at 7, 14, …, 35, 40, evaluations at 16, 32, 40, a full buffer,
    # averages of the network over half of the run and of E^φ over 70 %.
    assert len(metrics_of(tmp_path)) == 6 + 3
    assert all(len(x) == SMALL["buffer"] for x in state["buffer"]["states"].values())
    assert int(state["average"]["n_averaged"]) == 0.5 * STEPS
    if method == "egm-bs":
        assert int(state["modules"]["energy_average"]["n_averaged"]) == 0.7 * STEPS


def test_a_run_that_proposes_by_its_own_steps_resumes_bit_by_bit(tmp_path, monkeypatch):
    """Its proposals depend on the sampler and on the errors that it has measured."""
    options: dict[str, Any] = {**RUN, "energy_target": "bootstrap", "proposal": "sampler"}
    egm.fit(SPACES["mixed"](), "egm-bs", out=tmp_path / "whole", **options)
    interrupt_during(monkeypatch, 12, 25)
    egm.fit(SPACES["mixed"](), "egm-bs", out=tmp_path / "stopped", **options)
    for _ in range(2):
        egm.resume(tmp_path / "stopped", progress=False)
    assert_same_runs(tmp_path / "stopped", tmp_path / "whole")


def test_a_run_without_a_checkpoint_begins_again(tmp_path, whole):
    egm.fit(SPACES["mixed"](), "egm-bs", out=tmp_path, **RUN)
    for name in ("checkpoint.pt", "model.safetensors"):  # what a kill early on leaves: a configuration and some lines
        (tmp_path / name).unlink()
    egm.resume(tmp_path, progress=False)
    assert_same_runs(tmp_path, whole("mixed", "egm-bs"))


def test_a_run_from_before_an_option_goes_on_with_its_default(tmp_path):
    egm.fit(SPACES["mixed"](), "egm-bs", out=tmp_path, **{**RUN, "opening": 0.0})
    config, state = tmp_path / "config.yaml", torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    lines = config.read_text(encoding="utf-8").splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("opening:")), encoding="utf-8")
    assert len(config.read_text(encoding="utf-8").splitlines()) == len(lines) - 1
    torch.save({**state, "method": {}}, tmp_path / "checkpoint.pt")
    egm.resume(tmp_path, steps=STEPS + 3, progress=False)
    assert state_of(tmp_path)["step"] == STEPS + 3


def test_a_checkpoint_of_another_kind_of_device_goes_on(tmp_path):
    """Its random state is ignored, and the optimiser keeps its settings for this device."""
    egm.fit(SPACES["mixed"](), "egm-bs", out=tmp_path, **RUN)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    groups = [{**group, "fused": True, "capturable": True} for group in state["optimizer"]["param_groups"]]
    state |= {"device": "cuda", "generator": torch.zeros(16, dtype=torch.uint8)}
    state["optimizer"] = {**state["optimizer"], "param_groups": groups}
    torch.save(state, tmp_path / "checkpoint.pt")
    trainer = make_trainer(SPACES["mixed"](), "egm-bs", steps=STEPS + 3)
    trainer.load_state_dict(state)
    assert not any(group["fused"] or group["capturable"] for group in trainer.optimizer.param_groups)
    trainer.train()
    assert trainer.step == STEPS + 3
    egm.resume(tmp_path, steps=STEPS + 3, progress=False)
    assert state_of(tmp_path)["step"] == STEPS + 3


# ---------------------------------------------------------------------- interrupts at awkward moments


def test_an_interrupt_in_the_last_step_is_not_lost(tmp_path, monkeypatch):
    """Everything is saved, and the interrupt is still raised: a command would evaluate for minutes otherwise."""
    interrupt_during(monkeypatch, 5)
    scored = []
    trainer = make_trainer(
        SPACES["mixed"](), steps=5, run=RunDirectory(tmp_path), evaluate_every=5,
        evaluate=lambda sampler, seed: scored.append(seed) or {"e_w1": 1.0},
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert state_of(tmp_path)["step"] == 5
    assert [row["step"] for row in metrics_of(tmp_path)] == ["5"]
    assert scored == []


def test_a_second_interrupt_leaves_no_torn_step_behind(tmp_path, monkeypatch, whole):
    """It goes through at once, here between the optimiser and the averages: that state must not be saved."""
    plain, armed = Trainer.update_averages, [True]

    def update_averages(self):
        if self.step == 24 and armed:
            armed.clear()
            raise KeyboardInterrupt
        plain(self)

    monkeypatch.setattr(Trainer, "update_averages", update_averages)
    egm.fit(SPACES["mixed"](), "egm-bs", out=tmp_path, **RUN)
    assert not armed
    assert state_of(tmp_path)["step"] == 20
    egm.resume(tmp_path, progress=False)
    assert_same_runs(tmp_path, whole("mixed", "egm-bs"))


def test_an_interrupt_inside_an_evaluation(tmp_path, monkeypatch, whole):
    """Its energy calls do not count as those of training, and the evaluation is repeated."""
    plain, asked = targets.JointMoG._exact_sample, []

    def exact_sample(self, n, seed):
        asked.append(n)
        if len(asked) == 5:  # in the middle of the floor
            raise KeyboardInterrupt
        return plain(self, n, seed)

    monkeypatch.setattr(targets.JointMoG, "_exact_sample", exact_sample)
    egm.fit(SPACES["mixed"](), "egm-bs", out=tmp_path, **RUN)
    assert state_of(tmp_path)["step"] == 16
    egm.resume(tmp_path, progress=False)
    assert_same_runs(tmp_path, whole("mixed", "egm-bs"))


def test_an_interrupt_inside_the_progress(tmp_path):
    """The line that was being shown is in the log, once."""

    def stop(row):
        if row["step"] == 14:
            raise KeyboardInterrupt

    whole, run = tmp_path / "whole", tmp_path / "run"
    make_trainer(SPACES["mixed"](), steps=25, run=RunDirectory(whole)).train()
    interrupted = make_trainer(SPACES["mixed"](), steps=25, run=RunDirectory(run), progress=Recorder(stop))
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()
    resumed = make_trainer(SPACES["mixed"](), steps=25, run=RunDirectory(run))
    resumed.load_state_dict(RunDirectory(run).read_state("cpu") or {})
    resumed.train()
    assert_same_runs(run, whole)


# ---------------------------------------------------------------------- extending a run


def test_a_finished_run_can_be_extended(tmp_path):
    egm.fit(SPACES["mixed"](), "egm-bs", out=tmp_path, **RUN)
    before, lines, calls = state_of(tmp_path), metrics_of(tmp_path), int(state_of(tmp_path)["energy_calls"])
    egm.resume(tmp_path, steps=100, progress=False)
    after = state_of(tmp_path)
    assert after["step"] == 100
    assert RunDirectory(tmp_path).read_config()["steps"] == 100
    assert metrics_of(tmp_path)[: len(lines) - 1] == lines[:-1]  # all but the evaluation at the end
    assert [int(row["step"]) for row in metrics_of(tmp_path) if row["sampler_loss"]][6:] == [*range(42, 99, 7), 100]
    assert after["energy_calls"] - calls == 60 * SMALL["batch_size"] * SMALL["proposals"]
    # Averaging, once begun, goes on, although the longer run is now less than half (and 30 %…) through.
    assert int(after["average"]["n_averaged"]) - int(before["average"]["n_averaged"]) == 60
    average = [int(state["modules"]["energy_average"]["n_averaged"]) for state in (before, after)]
    assert average[1] - average[0] == 60


def test_a_finished_run_is_resumed_as_it_is(tmp_path):
    egm.fit(SPACES["mixed"](), "egm", out=tmp_path, **SMALL, **LENGTH)
    lines, state = metrics_of(tmp_path), state_of(tmp_path)
    egm.resume(tmp_path, progress=False)
    assert metrics_of(tmp_path) == lines
    assert_same(state_of(tmp_path), state)


def test_a_time_limit_counts_the_seconds_before(tmp_path):
    """Also where the checkpoint has an evaluation due."""
    options: dict[str, Any] = {
        "time_limit": 100.0,
        "run": RunDirectory(tmp_path),
        "evaluate_every": 2,
        "evaluate": lambda *_: {},
    }
    trainer = make_trainer(SPACES["mixed"](), **options)
    state = {**trainer.state_dict(), "step": 2, "seconds": 60.0}
    trainer.load_state_dict(state)
    assert trainer.score_is_due
    assert 60 <= trainer.seconds < 70
    assert 0.6 <= trainer.progress_made() < 0.7
    trainer.load_state_dict({**state, "seconds": 101.0})
    assert trainer.finished()
    assert not trainer.score_is_due


# ---------------------------------------------------------------------- what is refused


def test_resuming_with_another_target_or_space_is_refused(tmp_path):
    built_in, own = tmp_path / "built-in", tmp_path / "own"
    egm.fit(targets.Ising(3, 0.4), "egm", steps=1, out=built_in, **SMALL)
    with pytest.raises(ValueError, match=r"made for Ising\(size=3, beta=0.4\), not for Ising\(size=3, beta=0.5\)"):
        egm.resume(built_in, target=targets.Ising(3, 0.5), steps=2)
    with pytest.raises(ValueError, match=r"made for Ising\(size=3, beta=0.4\), not for"):
        egm.load(built_in, target=targets.Ising(4, 0.4))
    egm.fit(own_target(), "egm", steps=1, out=own, **SMALL)
    with pytest.raises(ValueError, match="pass it as target="):
        egm.resume(own, steps=2)
    with pytest.raises(ValueError, match="made for own, not for other"):
        egm.resume(own, target=egm.Target(egm.Space(x=egm.Real(1)), lambda x: x.sum(-1), name="other"), steps=2)
    wider = egm.Target(egm.Space(x=egm.Real(2)), lambda x: x.sum(-1), name="own")
    with pytest.raises(ValueError, match=r"made for Space\(x=Real\(shape=\(1,\).*own has Space\(x=Real\(shape=\(2,"):
        egm.resume(own, target=wider, steps=2)
    for folder in (built_in, own):
        assert state_of(folder)["step"] == 1
        assert len(metrics_of(folder)) == 1
    egm.resume(own, target=own_target(), steps=2, progress=False)
    assert state_of(own)["step"] == 2


def test_both_limits_and_none_that_is_positive_are_refused(tmp_path):
    egm.fit(SPACES["mixed"](), "egm", steps=1, out=tmp_path, **SMALL)
    limits: dict[str, Any]
    for limits in ({"steps": 2, "time_limit": 1.0}, {"steps": -1}, {"time_limit": 0}):
        with pytest.raises(ValueError, match=r"one of them|must be positive"):
            egm.resume(tmp_path, progress=False, **limits)


def test_a_folder_that_holds_a_run_is_left_alone(tmp_path):
    egm.fit(SPACES["mixed"](), "egm", steps=1, out=tmp_path, **SMALL)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(FileExistsError, match=f"--resume {tmp_path}.*another folder"):
        egm.fit(SPACES["mixed"](), "egm", steps=2, out=tmp_path, **SMALL)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    with pytest.raises(FileNotFoundError, match="not a run"):
        egm.resume(tmp_path / "nowhere")


def test_checkpoints_hold_tensors_and_numbers_alone(tmp_path):
    egm.fit(SPACES["mixed"](), "egm-bs", out=tmp_path, **RUN)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert set(state) == {
        *("step", "seconds", "energy_calls", "score_calls", "modules", "average", "optimizer", "buffer", "generator"),
        *("device", "method", "error", "pending", "pending_steps", "share"),
    }
    assert set(state["modules"]) == {"network", "energy_model", "energy_average"}
