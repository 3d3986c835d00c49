"""A run on disk: the contents of its files, and that a reader always finds each of them complete."""

import json
import os
import platform
import re
import subprocess
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml

import egm
from egm.runs import environment as module
from egm.runs.directory import RunDirectory
from egm.runs.environment import commit, environment, hardware
from support.training import SMALL, SMALL_BS, SPACES, as_sampler, begin

FILES = ["checkpoint.pt", "config.yaml", "environment.json", "metrics.csv", "model.safetensors", "status.json"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that tests only read."""
    folder = tmp_path_factory.mktemp("run")
    notes = {"recipe": None, "numbers": [1, 2.5], "words": "β = 0.4"}
    begin(SPACES["mixed"](), "egm-bs", steps=3, seed=4, out=folder, notes=notes, **SMALL_BS)
    return folder


# ---------------------------------------------------------------------- contents


def test_the_files_of_a_run(finished):
    assert sorted(file.name for file in finished.iterdir()) == FILES


def test_the_configuration_is_safe_yaml_and_complete(finished):
    text = (finished / "config.yaml").read_text(encoding="utf-8")
    assert "!!" not in text
    config = yaml.safe_load(text)
    assert RunDirectory(finished).read_config() == config
    assert config["egm"] == egm.__version__
    assert config["target"] == "JointMoG(dim=2)"
    assert config["space"] == repr(SPACES["mixed"]().space)
    assert (config["method"], config["steps"], config["time_limit"], config["seed"]) == ("egm-bs", 3, None, 4)
    assert (config["device"], config["dtype"]) == ("cpu", "float32")
    assert config["paths"] == {"x": "CondOT()", "b": "Masked(schedule=Polynomial(power=1.0))"}
    assert config["processes"] == {"x": "Diffusion()", "b": "DiscreteJump()"}
    assert config["network"] == config["energy_network"] == "MLP(width=8, depth=3)"
    assert config["notes"] == {"recipe": None, "numbers": [1, 2.5], "words": "β = 0.4"}
    assert config["batch_size"] == SMALL["batch_size"]
    assert config["learning_rate"] == 1e-3  # a default is written too


def test_the_environment_of_each_start(finished, tmp_path):
    (start,) = json.loads((finished / "environment.json").read_text(encoding="utf-8"))
    assert set(start) == {
        *("python", "torch", "numpy", "scipy", "platform", "hardware", "threads", "commit", "command")
    }
    assert start["python"] == platform.python_version()
    assert start["torch"] == torch.__version__
    assert start["threads"] == torch.get_num_threads()
    assert RunDirectory(finished).last_start() == start

    egm.fit(SPACES["mixed"](), "egm", steps=1, out=tmp_path, **SMALL)
    egm.resume(tmp_path, steps=2, progress=False)
    assert len(json.loads((tmp_path / "environment.json").read_text(encoding="utf-8"))) == 2
    assert RunDirectory(tmp_path / "nowhere").last_start() == {}


def test_the_commit_is_asked_of_git_or_stated(monkeypatch, tmp_path):
    monkeypatch.delenv("EGM_COMMIT", raising=False)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "environment.py"))  # no checkout there
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() is None
    monkeypatch.setenv("EGM_COMMIT", "0123abc")
    assert commit() == environment()["commit"] == "0123abc"
    author = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    for words in (["init", "--quiet"], [*author, "commit", "--quiet", "--allow-empty", "--message", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert re.fullmatch("[0-9a-f]{40}", commit() or "")  # the checkout counts, not EGM_COMMIT
    monkeypatch.setenv("PATH", "")  # no git at all
    assert commit() == "0123abc"


def test_hardware_names_the_device():
    assert re.fullmatch(rf"CPU \S+, {torch.get_num_threads()} threads", hardware("cpu"))


def test_the_network_is_saved_without_pickle(finished):
    tensors = safetensors.torch.load_file(finished / "model.safetensors")
    modules = as_sampler(egm.load(finished)).modules()
    saved = {f"{part}.{name}": x for part, module in modules.items() for name, x in module.state_dict().items()}
    assert set(tensors) == set(saved)
    for name, value in saved.items():
        assert torch.equal(value, tensors[name])
    assert any(bool((x != 0).any()) for name, x in tensors.items() if "heads" in name)  # it was trained


def test_checkpoints_load_with_weights_only(finished):
    state = torch.load(finished / "checkpoint.pt", weights_only=True)
    assert state["step"] == 3
    assert RunDirectory(finished).read_state("cpu").keys() == state.keys()  # type: ignore[union-attr]
    assert RunDirectory(finished / "nowhere").read_state("cpu") is None


def test_a_checkpoint_with_code_in_it_is_refused(tmp_path):
    torch.save({"step": Path}, tmp_path / "checkpoint.pt")
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        RunDirectory(tmp_path).read_state("cpu")


def test_a_saved_sampler_is_loaded_again(tmp_path):
    sampler = egm.fit(SPACES["mixed"](), "egm", steps=2, **SMALL)
    sampler.save(tmp_path / "a" / "b")
    assert sorted(file.name for file in (tmp_path / "a" / "b").iterdir()) == ["config.yaml", "model.safetensors"]
    again = egm.load(tmp_path / "a" / "b")
    for name, x in sampler.sample(20, seed=3).state.items():
        assert torch.equal(x, again.sample(20, seed=3)[name])


def test_what_is_missing_is_named(tmp_path):
    run = RunDirectory(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"not a run: it has no config\.yaml"):
        run.read_config()
    with pytest.raises(FileNotFoundError, match="no trained network"):
        run.read_sampler()
    (tmp_path / "config.yaml").write_text("- 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="expected a mapping"):
        run.read_config()
    assert run.read_metrics() == []


def test_results_are_written(tmp_path):
    RunDirectory(tmp_path).write_results({"n": 3, "ess": None})
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8")) == {"n": 3, "ess": None}


def test_the_peak_of_memory_belongs_to_the_last_start(tmp_path):
    run = RunDirectory(tmp_path)
    run.record_start()
    run.record_start()
    run.record_peak(1.5)
    starts = json.loads((tmp_path / "environment.json").read_text(encoding="utf-8"))
    assert [start.get("peak_memory_gib") for start in starts] == [None, 1.5]
    assert run.last_start()["peak_memory_gib"] == 1.5


# ---------------------------------------------------------------------- metrics.csv


def test_lines_are_on_disk_at_once(tmp_path):
    run = RunDirectory(tmp_path)
    for step in (1, 2):
        run.append_metrics({"step": step, "loss": step / 2})
        assert run.read_metrics()[-1] == {"step": str(step), "loss": str(step / 2)}
    assert (tmp_path / "metrics.csv").read_bytes() == b"step,loss\r\n1,0.5\r\n2,1.0\r\n"


def test_a_new_column_is_added_to_the_lines_before(tmp_path):
    run = RunDirectory(tmp_path)
    run.append_metrics({"step": 1, "loss": 0.5})
    run.append_metrics({"step": 1, "e_w1": 3.0})
    run.append_metrics({"loss": 0.25, "step": 2})  # in another order
    assert run.read_metrics() == [
        {"step": "1", "loss": "0.5", "e_w1": ""},
        {"step": "1", "loss": "", "e_w1": "3.0"},
        {"step": "2", "loss": "0.25", "e_w1": ""},
    ]


@pytest.mark.parametrize(
    ("step", "kept"),
    [(5, [(1, ""), (3, ""), (3, "2.0"), (4, "")]), (4, [(1, ""), (3, ""), (3, "2.0"), (4, "")]),
     (3, [(1, ""), (3, "")]), (2, [(1, "")]), (-1, [])],
)  # fmt: skip
def test_lines_after_a_checkpoint_are_forgotten(tmp_path, step, kept):
    """Also the evaluation at the checkpoint's step, which is repeated."""
    run = RunDirectory(tmp_path)
    for row in ({"step": 1, "loss": 1.0}, {"step": 3, "loss": 1.0}, {"step": 3, "e_w1": 2.0}, {"step": 4, "loss": 1.0}):
        run.append_metrics(row)
    run.forget_metrics_after(step)
    assert [(int(row["step"]), row["e_w1"]) for row in run.read_metrics()] == kept
    run.append_metrics({"step": 9, "loss": 1.0})
    assert run.read_metrics()[-1]["step"] == "9"


@pytest.mark.parametrize("torn", ["1", "12,0.2", "12,0.25,"])
def test_a_line_that_a_crash_cut_short_is_forgotten(tmp_path, torn):
    """Line 120 would read as line 12 otherwise, and the next one would be written behind it."""
    run = RunDirectory(tmp_path)
    for step in (1, 2):
        run.append_metrics({"step": step, "loss": 0.5, "ess": 0.5})
    with (tmp_path / "metrics.csv").open("a", encoding="utf-8") as stream:
        stream.write(torn)
    assert [row["step"] for row in run.read_metrics()] == ["1", "2"]
    run.forget_metrics_after(100)
    run.append_metrics({"step": 3, "loss": 0.5, "ess": 0.5})
    assert [row["step"] for row in run.read_metrics()] == ["1", "2", "3"]
    assert torn + "3" not in (tmp_path / "metrics.csv").read_text(encoding="utf-8")


# ---------------------------------------------------------------------- crashes


@pytest.mark.parametrize("moment", ["write", "sync", "move"])
def test_a_crash_while_writing_leaves_the_old_files_whole(tmp_path, monkeypatch, moment):
    egm.fit(SPACES["mixed"](), "egm", steps=2, out=tmp_path, **SMALL)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    plain = Path.open

    def full(self, mode="r", *arguments, **keywords):
        stream = plain(self, mode, *arguments, **keywords)
        if mode == "xb":
            stream.write(b"half of it")
            stream.flush()
            stream.close()
            raise OSError(28, "No space left on device")
        return stream

    def fails(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as crash:
        if moment == "write":
            crash.setattr(Path, "open", full)
        else:
            crash.setattr(os, "fsync" if moment == "sync" else "replace", fails)
        run = RunDirectory(tmp_path)
        network = as_sampler(egm.load(tmp_path)).network
        for write in (
            lambda: run.save({"step": 9}, {"new": 1}, {"network": network}),
            lambda: run.save_sampler({"new": 1}, {"network": network}),
            lambda: run.write_config({"new": 1}),
            lambda: run.append_metrics({"step": 3, "new_column": 1.0}),
            lambda: run.forget_metrics_after(-1),
            run.record_start,
            lambda: egm.resume(tmp_path, steps=4, progress=False),
        ):
            with pytest.raises(OSError, match="No space left"):
                write()
    after = {name: (tmp_path / name).read_bytes() for name in before}
    assert after == before
    egm.resume(tmp_path, steps=4, progress=False)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == 4


def test_a_file_is_never_half_there(tmp_path, monkeypatch):
    """When the file is moved, the new content is complete and on disk, in the same folder."""
    synced, plain_sync, plain_move = [], os.fsync, os.replace

    def sync(descriptor):
        synced.append(descriptor)
        plain_sync(descriptor)

    def move(source, destination):
        assert Path(source).parent == Path(destination).parent  # one file system: the move is atomic
        assert Path(source).read_bytes() == b"egm: '2'\n"
        assert Path(destination).read_bytes() == b"egm: '1'\n"
        assert len(synced) == 1
        plain_move(source, destination)

    run = RunDirectory(tmp_path)
    run.write_config({"egm": "1"})
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", move)
    run.write_config({"egm": "2"})
    assert run.read_config() == {"egm": "2"}
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("logged", ["sampler_loss", "elbo"])
def test_the_cost_is_that_of_the_last_line_about_training(tmp_path, logged):
    """For any logged column; the seconds of an evaluation do not count as training."""
    run = RunDirectory(tmp_path)
    spent = {"score_calls": 0, "learning_rate": 1e-3}
    run.append_metrics({"step": 5, "seconds": 1.0, "energy_calls": 10, **spent, logged: 0.5})
    run.append_metrics({"step": 9, "seconds": 2.0, "energy_calls": 18, **spent, logged: 0.0})
    run.append_metrics({"step": 9, "seconds": 7.0, "energy_calls": 18, **spent, "e_w1": 0.3, "e_w1_floor": 0.1})
    assert run.cost({}) == {"seconds": 2.0, "step": 9, "energy_calls": 18, "score_calls": 0}
