"""What other processes see of a run: a status that is always true, and curves that a resumed run continues."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest
import torch

import egm
from egm.cli import main
from egm.runs.directory import RunDirectory
from egm.train import watching
from egm.train.progress import Silent
from egm.train.watching import EVENTS, QUIET, Several, Status, read_status
from support.training import SMALL, SPACES

FAST = {**SMALL, "log_every": 2}


def stored(folder):
    return json.loads((folder / "status.json").read_text(encoding="utf-8"))


# ---------------------------------------------------------------------- status


def test_a_finished_run_says_so(tmp_path):
    egm.fit(SPACES["mixed"](), "egm", steps=4, out=tmp_path, **FAST)
    status = read_status(tmp_path)
    assert (status["state"], status["done"], status["why"]) == ("finished", 1.0, None)
    assert (status["pid"], status["host"]) == (os.getpid(), socket.gethostname())


def test_a_run_says_that_it_goes_on_and_how_far_it_is(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Status(tmp_path) as status:
        assert (stored(tmp_path)["state"], stored(tmp_path)["done"]) == ("running", 0.0)
        status.update(0.25, {"step": 1})
        assert stored(tmp_path)["done"] == 0.0  # a second has not passed
        now[0] += watching.WRITE_EVERY
        status.update(0.5, {"step": 2})
        assert read_status(tmp_path)["done"] == 0.5
    assert read_status(tmp_path)["state"] == "finished"
    with Status(tmp_path):  # continued
        assert read_status(tmp_path)["done"] == 0.5


def test_a_run_that_is_stopped_or_fails_says_so(tmp_path):
    def ends_by(error):
        with Status(tmp_path):
            raise error

    with pytest.raises(KeyboardInterrupt):
        ends_by(KeyboardInterrupt())
    assert read_status(tmp_path)["state"] == "stopped"
    calls = []

    def energy(x):
        calls.append(1)
        return x.square().sum(-1) * (1.0 if len(calls) < 20 else float("nan"))

    with pytest.raises(egm.EnergyError):
        egm.fit(egm.Target(egm.Space(x=egm.Real(2)), energy), "egm", steps=400, out=tmp_path / "a", **FAST)
    status = read_status(tmp_path / "a")
    assert status["state"] == "failed"
    assert status["why"].startswith("EnergyError: the energy is nan at the state x=")


def test_a_run_whose_process_is_gone_is_lost(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    with Status(tmp_path):
        running = stored(tmp_path)
    for change, state in (
        ({}, "running"),
        ({"pid": ended.pid}, "lost"),
        ({"pid": ended.pid, "host": "elsewhere"}, "running"),
        ({"host": "elsewhere", "time": time.time() - QUIET - 1}, "lost"),
        ({"pid": ended.pid, "state": "stopped"}, "stopped"),
    ):
        (tmp_path / "status.json").write_text(json.dumps(running | change), encoding="utf-8")
        assert read_status(tmp_path)["state"] == state, change
    assert read_status(tmp_path / "nothing")["state"] == "unknown"


def test_chains_have_a_status_too(tmp_path):
    egm.fit(egm.targets.Ising(size=3, beta=0.4), "gibbs", steps=5, out=tmp_path, device="cpu", progress=False)
    assert read_status(tmp_path)["state"] == "finished"


def test_several_are_told_in_turn_and_left_in_reverse():
    told = []

    class Teller(Silent):
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            told.append(f"{self.name} in")
            return self

        def __exit__(self, *error):
            told.append(f"{self.name} out {type(error[1]).__name__}")

        def update(self, done, row):
            told.append(f"{self.name} {done} {row['step']}")

        def say(self, text):
            told.append(f"{self.name} {text}")

    def run():
        with Several([Teller("a"), Teller("b")]) as both:
            both.update(0.5, {"step": 3})
            both.say("hm")
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        run()
    assert told == ["a in", "b in", "a 0.5 3", "b 0.5 3", "a hm", "b hm", "b out ValueError", "a out ValueError"]


# ---------------------------------------------------------------------- TensorBoard


def curves(folder):
    """What TensorBoard shows: tag -> [(step, value)]."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="needs egm[log]")

    read = module.EventAccumulator(str(folder / EVENTS)).Reload()
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def logged(folder):
    """The same from metrics.csv."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in RunDirectory(folder).read_metrics():
        for name, text in row.items():
            if name != "step" and text:
                found.setdefault(name, []).append((int(row["step"]), float(text)))
    return found


def same(one, other):
    assert one.keys() == other.keys()
    for name, points in one.items():
        assert [step for step, _ in points] == [step for step, _ in other[name]], name
        values = [torch.tensor([value for _, value in series]) for series in (points, other[name])]
        torch.testing.assert_close(*values)  # events hold float32


def test_event_files_hold_the_log(tmp_path):
    pytest.importorskip("tensorboard", reason="needs egm[log]")
    egm.fit(SPACES["mixed"](), "egm", steps=6, out=tmp_path, tensorboard=True, evaluate_every=3, **FAST)
    found = curves(tmp_path)
    assert [step for step, _ in found["sampler_loss"]] == [2, 4, 6]
    assert [step for step, _ in found["e_w1"]] == [3, 6]
    same(found, logged(tmp_path))


@pytest.mark.parametrize("at_first", [True, False])
def test_a_resumed_run_continues_its_curves(tmp_path, monkeypatch, at_first):
    """What was written after the last checkpoint is hidden, and a run without event files gets all of them."""
    pytest.importorskip("tensorboard", reason="needs egm[log]")
    written = []

    def killed(self, row, append=RunDirectory.append_metrics):
        append(self, row)
        written.append(row["step"])
        if written[-1] == 8:
            raise OSError("killed")

    options = {"checkpoint_every": 5, "steps": 12, "out": tmp_path, **FAST}
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "append_metrics", killed)
        with pytest.raises(OSError, match="killed"):
            egm.fit(SPACES["mixed"](), "egm", tensorboard=at_first, **options)
    if at_first:
        assert curves(tmp_path)["sampler_loss"][-1][0] == 6
    egm.resume(tmp_path, progress=False, tensorboard=not at_first)
    assert [step for step, _ in curves(tmp_path)["sampler_loss"]] == [2, 4, 6, 8, 10, 12]
    same(curves(tmp_path), logged(tmp_path))
    before = sorted((tmp_path / EVENTS).iterdir())
    egm.resume(tmp_path, steps=14, progress=False)  # on its own accord
    assert len(list((tmp_path / EVENTS).iterdir())) == len(before) + 1
    same(curves(tmp_path), logged(tmp_path))


def test_event_files_on_the_command_line(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="needs egm[log]")
    monkeypatch.chdir(tmp_path)
    small = ["--steps", "4", "--log_every", "2", "--batch_size", "8", "--refresh", "16", "--network", "MLP(width=8)"]
    command = ["train", "ising", "--target.size", "2", "--target.beta", "0.3", *small, "--device", "cpu"]
    assert main([*command, "--progress", "false", "--evaluate", "false", "--tensorboard", "--out", "a"]) == 0
    same(curves(tmp_path / "a"), logged(tmp_path / "a"))
    assert main(["train", "--resume", "a", "--steps", "6", "--progress", "false", "--evaluate", "false"]) == 0
    same(curves(tmp_path / "a"), logged(tmp_path / "a"))


def test_event_files_need_a_folder_and_a_package(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="give that folder, out="):
        egm.fit(SPACES["mixed"](), "egm", steps=1, tensorboard=True, **SMALL)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r"needs tensorboard: pip install 'egm\[log\]'"):
        egm.fit(SPACES["mixed"](), "egm", steps=1, tensorboard=True, out=tmp_path / "a", **SMALL)
    assert not (tmp_path / "a").exists()
    egm.fit(SPACES["mixed"](), "egm", steps=1, out=tmp_path / "a", **SMALL)
    assert not (tmp_path / "a" / EVENTS).exists()
