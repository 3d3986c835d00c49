"""Processes side by side: how many at a time, what a failure leaves, and stopping all of them."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from egm.reproduce import runner
from egm.reproduce.runner import Job, last_lines, locked, run_jobs
from egm.train.signals import Stopped, stop_on_signals

NOTE_TIMES = """
import pathlib, sys, time
began, wanted, own = time.time(), int(sys.argv[2]), pathlib.Path(sys.argv[1])
own.with_suffix(".begun").touch()
while len(list(own.parent.glob("*.begun"))) < wanted and time.time() < began + 60:
    time.sleep(0.02)  # the first wait for each other
time.sleep(0.2)
own.write_text(f"{began} {time.time()}")
"""
SAVE_ON_SIGNAL = """
import signal, sys, time
def stop(*_):
    open(sys.argv[1] + ".saved", "a").write("saved ")
    time.sleep(0.3)  # a second signal would come in here
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
open(sys.argv[1], "w").close()
time.sleep(60)
"""


def jobs_of(folder, code, n, *words):
    program = [sys.executable, "-c", code]
    return [Job(f"job{i}", [*program, str(folder / f"{i}"), *words], folder / f"{i}.log") for i in range(n)]


@pytest.mark.parametrize("at_once", [1, 2])
def test_as_many_at_a_time_as_asked_for(tmp_path, at_once):
    ended = []
    with locked(tmp_path) as lock:
        run_jobs(
            jobs_of(tmp_path, NOTE_TIMES, 4, str(at_once)), at_once=at_once, threads=1, lock=lock,
            ended=lambda job, code, seconds: ended.append((job.name, code)),
        )  # fmt: skip
    assert sorted(ended) == [(f"job{i}", 0) for i in range(4)]
    spans = [tuple(map(float, (tmp_path / f"{i}").read_text().split())) for i in range(4)]
    together = max(sum(a <= start < b for a, b in spans) for start, _ in spans)
    assert together == at_once


def test_a_failure_is_reported_and_the_others_go_on(tmp_path):
    bad = Job("bad", [sys.executable, "-c", "import sys; print('why'); sys.exit(3)"], tmp_path / "bad.log")
    threads = "import os, sys; open(sys.argv[1], 'w').write(os.environ['OMP_NUM_THREADS'])"
    codes = {}
    with locked(tmp_path) as lock:
        jobs = [bad, *jobs_of(tmp_path, threads, 1)]
        run_jobs(jobs, at_once=1, threads=3, lock=lock, ended=lambda job, code, _: codes.update({job.name: code}))
    assert codes == {"bad": 3, "job0": 0}
    assert last_lines(bad.log) == "why"
    assert (tmp_path / "0").read_text() == "3"
    assert last_lines(tmp_path / "no.log") == ""


def test_an_interrupt_stops_every_process_once_and_waits_for_it(tmp_path):
    def interrupt():
        while not ((tmp_path / "0").exists() and (tmp_path / "1").exists()):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    ended = []
    with pytest.raises(Stopped), stop_on_signals(), locked(tmp_path) as lock:
        run_jobs(
            jobs_of(tmp_path, SAVE_ON_SIGNAL, 3), at_once=2, threads=1, lock=lock,
            ended=lambda job, code, seconds: ended.append(job),
        )  # fmt: skip
    assert [(tmp_path / f"{i}.saved").read_text() for i in range(2)] == ["saved ", "saved "]
    assert not (tmp_path / "2").exists()
    assert ended == []


def test_processes_that_do_not_stop_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "GRACE", 0.2)
    deaf = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); open(sys.argv[1], 'w').close(); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", deaf, str(tmp_path / "up")])
    while not (tmp_path / "up").exists():
        time.sleep(0.02)
    runner._stop([process])
    assert process.returncode == -signal.SIGKILL


def test_a_folder_is_held_as_long_as_a_process_of_it_lives(tmp_path):
    with locked(tmp_path) as lock:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=(lock,))
    try:
        with pytest.raises(ValueError, match="is at work in"), locked(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()
    with locked(tmp_path):
        pass
