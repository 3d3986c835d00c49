"""`egm reproduce` from the command line: a tiny table is trained, evaluated, kept, stopped and continued."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from egm.cli import main
from egm.reproduce import runner
from egm.runs.directory import RunDirectory
from support.reproduce_cases import RECIPE, TABLE, write_table

CHEAP = ["--device", "cpu", "--n", "50", "--repeats", "2", "--results", "results"]
LONG = RECIPE.replace("egm-sp: {steps: 8", "egm-sp: {steps: 200")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def records_in(file):
    return json.loads(Path(file).read_text(encoding="utf-8"))


def no_process(*_, **__):
    raise AssertionError("nothing is left to do")


@pytest.mark.slow
def test_a_table_is_made_once(folder, capsys, monkeypatch):
    file = str(write_table(folder))
    command = ["reproduce", file, *CHEAP, "--only", "egm", "gibbs", "--seeds", "0", "3", "--jobs", "2", "--out", "runs"]
    assert main(command) == 0
    said = capsys.readouterr()
    runs = records_in("results/small.json")
    assert [(run["method"], run["seed"], run["role"]) for run in runs] == [("egm", 0, "main"), ("egm", 3, "main")]
    assert [run["concurrent"] for run in runs] == [2, 2]
    assert [(run["steps"], run["n"], run["repeats"]) for run in runs] == [(8, 50, 2)] * 2
    assert runs[0]["recipe"].endswith("tiny.yaml")
    assert "--seed 3" in runs[1]["command"]
    assert "--concurrent 2" in runs[1]["command"]
    mean = np.mean([run["metrics"]["e_w1"]["mean"] for run in runs])
    assert f"{mean:.3f} ± " in said.out
    assert "has no section 'gibbs'" in said.out
    assert "Tiny" in Path("runs/small.md").read_text(encoding="utf-8")
    assert "<table>" in Path("runs/small.html").read_text(encoding="utf-8")
    with np.load(next(Path("runs").glob("*egm-3/figures.npz")), allow_pickle=False) as drawn:
        assert drawn["s"].shape == (50, 3, 3)
        assert drawn["s"].dtype == np.uint8
        assert drawn[".energy"].shape == drawn[".reference.energy"].shape == (50,)
        assert len(drawn[".series.ess"]) > 1
    (shown,) = records_in("results/figures.json")
    assert (shown["label"], shown["seed"]) == ("egm", 0)
    assert sum(shown["energy"]["draws"]) == sum(shown["energy"]["reference"]) == 50

    Path("results/small.json").unlink()
    monkeypatch.setattr(runner, "_start", no_process)  # what is finished is neither trained nor evaluated again
    assert main(command) == 0
    assert records_in("results/small.json") == runs

    capsys.readouterr()
    assert main([*command, "--time_limit", "5"]) == 0  # runs that are there keep their limit, and that is said
    assert "egm-0 has a limit of 8 steps; it is kept" in capsys.readouterr().err
    with pytest.raises(AssertionError, match="nothing is left"):
        main([*command, "--repeats", "3"])  # more evaluations than there are


@pytest.mark.slow
def test_a_table_that_was_stopped_goes_on(folder, capsys):
    file = str(write_table(folder, recipe=LONG))
    options = ["reproduce", file, *CHEAP, "--only", "egm-sp", "--seeds", "1", "--out", "runs", "--jobs", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "egm.cli", *options], env=environment, stderr=subprocess.PIPE, text=True
    )
    run = None
    for _ in range(600):
        begun = list(Path("runs").glob("*/metrics.csv"))
        if begun and len(RunDirectory(begun[0].parent).read_metrics()) > 5:
            run = begun[0].parent
            break
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    assert run is not None
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Traceback" not in error
    reached = int(RunDirectory(run).read_metrics()[-1]["step"])
    assert 0 < reached < 200
    assert (run / "checkpoint.pt").is_file()
    assert not (run / "results.json").exists()
    assert json.loads((run / "reproduce.json").read_text())["finished"] is False

    (run / "reproduce.json").write_text('{"finished": false, "concurrent": 5}')  # as if more had shared the device
    assert main(options) == 0
    starts = json.loads((run / "environment.json").read_text())
    assert len(starts) == 2
    assert "--resume" in starts[1]["command"]
    steps = [int(row["step"]) for row in RunDirectory(run).read_metrics()]
    assert steps == sorted(set(steps))
    assert steps[-1] == 200
    (record,) = records_in("results/small.json")
    assert (record["method"], record["seed"], record["steps"]) == ("egm-sp", 1, 200)
    assert record["concurrent"] == 5
    assert "egm-sp" in capsys.readouterr().out


def test_another_run_in_the_folder_is_not_continued(folder, capsys):
    file = str(write_table(folder))
    name = f"{folder.name}-tiny-egm-0"
    tiny = ["--network", "MLP(width=4)", "--steps", "1", "--evaluate", "false", "--progress", "false"]
    started = ["train", "ising", "--target.size", "3", "--target.beta", "0.3", "--method", "egm", "--device", "cpu"]
    assert main([*started, *tiny, "--proposals", "2", "--refresh", "8", "--out", f"runs/{name}"]) == 0
    cheap = ["reproduce", file, *CHEAP, "--only", "egm", "--seeds", "0", "--out", "runs"]
    assert main(cheap) == 2
    assert "holds another run" in capsys.readouterr().err
    assert main([word for word in cheap if "results" not in word]) == 2
    assert "such runs would replace the runs of the tables in results/; give another folder" in capsys.readouterr().err


@pytest.mark.slow
def test_changed_rows_state_their_recipe_and_are_in_no_figure(folder):
    table = TABLE.replace("method: egm, fast: full", "method: egm, fast: full, overrides: {refresh: 9}")
    assert table != TABLE
    file = str(write_table(folder, table))
    assert main(["reproduce", file, *CHEAP, "--only", "egm", "--seeds", "0", "--out", "runs"]) == 0
    (run,) = records_in("results/small.json")
    assert run["overrides"]["refresh"] == 9
    assert run["stated"]["steps"] == 8
    assert run["stated"]["target"] == "Ising(size=3, beta=0.3)"
    assert "method" not in run["stated"]
    assert not Path("results/figures.json").exists()


def test_what_would_be_run(folder, capsys):
    table = TABLE.replace("method: egm-sp, fast: full", "method: egm-sp, fast: 100, overrides: {buffer: calls of egm}")
    options = ["--dry_run", "--seeds", "0", "1", "--device", "cpu", "--jobs", "2"]
    assert main(["reproduce", str(write_table(folder, table)), *options, "--stretch", "1.5"]) == 0
    said = capsys.readouterr().out
    assert said.count("to be run") == 4
    assert "150 s" in said
    assert "about 2 min of training, 2 at a time, and 2 runs without a time limit" in said
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tabel2"], "did you mean 'table2'"),
        (["nowhere.yaml"], "there is no file nowhere.yaml"),
        (["table1", "--only", "egm-bss"], "did you mean 'egm-bs'"),
        (["table1", "--time_limit", "3", "--stretch", "2"], "leave one out"),
        (["time_to_floor", "--recipe", "paper"], "try --recipe fast"),
        (["table1", "--seed", "1"], "did you mean '--seeds'"),
        (["figures"], "no folder results"),
        (["page"], "no folder results"),
    ],
)
def test_mistakes_are_named(capsys, arguments, said):
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_help_shows_examples(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["reproduce", "--help"]) == 0
    said = capsys.readouterr().out
    assert "egm reproduce table1 --recipe smoke" in said
    assert len(said.splitlines()) <= 45
