"""`egm watch` reads the files of a run: its frames fit the terminal, it names problems, and it ends with the run."""

import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from egm.cli import main
from egm.cli.watch import BLOCKS, curve, frame
from egm.runs.directory import RunDirectory
from egm.train.watching import Status
from support.cli_cases import ISING, TINY_SP

ROW = {"step": 0, "seconds": 0.0, "energy_calls": 0, "score_calls": 0, "learning_rate": 1e-3}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def a_run(rows=20, *, status=None, **last):
    """Writes the files of a run that never ran, with a loss that falls and an ESS that rises."""
    run = RunDirectory(Path("a"))
    run.write_config({"target": "Ising(size=3, beta=0.4)", "method": "egm-sp", "steps": 1000, "time_limit": None})
    for i in range(rows):
        values = {"sampler_loss": 2.0 - i / rows, "ess": 0.3 + 0.5 * i / rows, "b": min(1.0, 2 * i / rows)}
        row = {**ROW, "step": 10 * (i + 1), "seconds": 5.0 * (i + 1), "energy_calls": 1000 * (i + 1), **values}
        run.append_metrics(row | (last if i == rows - 1 else {}))
    if status is not None:
        with Status(run.folder) as written:
            written._done = status.get("done", 0.0)
            written._write("running")
            stored = json.loads(written.file.read_text(encoding="utf-8"))
        written.file.write_text(json.dumps(stored | status), encoding="utf-8")
    return run


# ---------------------------------------------------------------------- frames


def test_a_frame_shows_how_the_run_is_going():
    lines = frame(a_run(status={"done": 0.25}), 80).splitlines()
    assert lines[0] == "running: Ising(size=3, beta=0.4) by egm-sp in a"
    assert re.fullmatch(r"█+░+ 25%  step 200 of 1000, 0:01:40, 0:05:00 left", lines[1])
    shown = {re.split(r"  +", line)[0]: re.split(r"  +", line)[1:] for line in lines[2:]}
    assert list(shown) == ["loss", "b", "ESS", "learning rate", "energy calls"]
    loss, curve_of_loss = shown["loss"]
    assert float(loss) == 1.05
    assert (curve_of_loss[0], curve_of_loss[-1], len(curve_of_loss)) == ("█", "▁", 20)
    assert shown["ESS"][1][0] == "▁"
    assert shown["energy calls"] == ["20,000"]


@pytest.mark.parametrize("width", [12, 24, 40, 80, 200])
def test_frames_fit_any_width(width):
    run = a_run(
        rows=300, status={"done": 0.5, "state": "failed", "why": "EnergyError: the energy is nan at x=[1.0, 2.0]"}
    )
    lines = frame(run, width).splitlines()
    assert max(map(len, lines)) <= max(width, 20)
    assert "".join(lines).replace(" ", "").endswith("problem:EnergyError:theenergyisnanatx=[1.0,2.0]")


def test_a_run_without_lines_and_one_without_a_status():
    assert frame(a_run(rows=5), 80).startswith("unknown status: Ising")
    Path("a/metrics.csv").unlink()
    assert "no line in the log yet" in frame(a_run(rows=0, status={}), 80)


def test_curves():
    assert curve([1.0] * 5, 40) == "▁" * 5
    assert curve([0.0, math.nan, 1.0], 40) == "▁ █"
    assert curve([math.inf], 40) == curve([math.nan] * 3, 40) == curve([], 40) == curve([1.0, 2.0], 1) == ""
    long = curve([math.sin(i / 100) for i in range(1000)], 50)
    assert len(long) == 50
    assert set(long) == set(BLOCKS)


@pytest.mark.parametrize(
    ("status", "last", "said"),
    [
        ({"state": "finished", "done": 1.0}, {}, None),
        ({"state": "running"}, {"ess": 0.01, "b": 0.5}, None),  # on its way
        ({"state": "running"}, {"ess": 0.01, "b": 1.0}, "ESS 0.01 is below 0.05"),
        ({"state": "running"}, {"sampler_loss": math.nan}, "loss is not finite; lower --learning_rate"),
        ({"state": "failed", "why": "Diverged: bad"}, {}, "Diverged: bad"),
        ({"state": "stopped"}, {}, "continue with: egm train --resume a"),
        ({"state": "running", "host": "elsewhere", "time": 0}, {}, "continue with: egm train --resume a"),
    ],
)
def test_problems_are_named(status, last, said):
    shown = frame(a_run(status=status, **last), 200)
    assert ("problem: " in shown) == (said is not None)
    assert said is None or said in shown


def test_those_who_cannot_be_resumed_are_not_told_to():
    run = a_run(status={"state": "stopped"})
    config = run.read_config()
    run.write_config(config | {"method": "gibbs"})
    assert "a run of chains (gibbs), which are not continued" in frame(run, 200)
    run.write_config(config | {"target": "user: Target(energy)"})
    assert "egm.resume('a', target=...)" in frame(run, 200)
    run.write_config(config | {"method": "one of mine"})  # not registered here
    assert "egm train --resume a" in frame(run, 200)


# ---------------------------------------------------------------------- the command


def test_once_on_a_real_run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    small = [*TINY_SP, "--steps", "6", "--log_every", "2", "--evaluate", "false", "--evaluate_every", "3"]
    assert main(["train", *ISING, *small, "--out", "a"]) == 0
    capsys.readouterr()
    assert main(["watch", "a", "--once"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("finished: Ising(size=3, beta=0.4) by egm-sp in a\n")
    assert "100%  step 6 of 6" in said
    for name in ("loss", "ESS", "b ", "E-W1", "floor", "energy calls", "learning rate"):
        assert f"\n{name}" in said
    assert main(["watch", "a"]) == 0  # the run has ended, so `egm watch` ends
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("step 2 ")] != []
    assert "finished: Ising" in "\n".join(lines)


def test_what_is_no_run_is_refused(capsys):
    assert main(["watch", "nothing"]) == 2
    assert "nothing is not a run: it has no config.yaml" in capsys.readouterr().err


def start(*arguments, **options):
    command = [sys.executable, "-m", "egm.cli", *arguments]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **options)


def until(condition, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
def test_a_run_in_another_process_is_followed_to_its_end():
    small = [*TINY_SP, "--steps", "400", "--log_every", "20", "--evaluate", "false", "--evaluate_every", "0"]
    with start("train", *ISING, *small, "--out", "a", stderr=subprocess.DEVNULL) as training:
        until(Path("a/metrics.csv").is_file)
        with start("watch", "a", "--every", "0.2", stdout=subprocess.PIPE, text=True) as watching:
            said, _ = watching.communicate(timeout=120)
        assert training.wait(timeout=120) == 0
    assert watching.returncode == 0
    assert [int(step) for step in re.findall(r"^step (\d+) ", said, re.MULTILINE)] == list(range(20, 401, 20))
    assert "finished: Ising" in said


@pytest.mark.slow
def test_ctrl_c_leaves_the_watcher_alone_and_the_terminal_in_order():
    """On another terminal; the run belongs to this process, which goes on."""
    a_run(status={"done": 0.25})
    ours, theirs = pty.openpty()
    with start("watch", "a", "--every", "0.2", stdin=theirs, stdout=theirs, stderr=theirs) as watching:
        os.close(theirs)
        said = b""
        while b"energy calls" not in said:
            said += os.read(ours, 4096)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=30) == 0
        while b"\x1b[?25h" not in said:  # the cursor is shown again
            said += os.read(ours, 4096)
    os.close(ours)
    assert b"Traceback" not in said
    assert b"running: Ising(size=3, beta=0.4)" in said
