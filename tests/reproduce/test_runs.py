"""Runs: their commands, which runs are continued and which begin again, budgets, and energy calls of other methods."""

import itertools
from dataclasses import replace

import pytest

from egm.reproduce.definitions import Row, Table
from egm.reproduce.runs import Run, runs_of, with_budget
from egm.reproduce.selection import Selection
from egm.reproduce.workflow import Plan
from egm.runs.directory import RunDirectory
from support.reproduce_cases import record, write_records

EQUAL = Row(
    "paper/ising5-b04", "gibbs", fast="full", label="equal",
    overrides={"energy_calls": "calls of egm", "steps": 10**9},
)  # fmt: skip
SAMPLER = Row("ising5-b04", "egm", fast=90)


def cell(row, kind="fast"):
    made = row.cell(kind)
    assert made is not None
    return made


def command(row, folder, **options):
    run = Run(cell(row), 7, folder)
    words = run.command(device="cpu", concurrent=3, calls=lambda method: {"egm": 1234}[method])
    values = dict(itertools.pairwise(words))
    return words, {name: values.get(name) for name in options.pop("of", ())}


def plan(tmp_path, rows=(SAMPLER, EQUAL), **changes):
    table = Table("t", "T", ("e_w1",), {}, tuple(rows))
    made = Plan(
        tables=[table], kind="fast", seeds=[0], only=Selection(), device="cpu", jobs=1, threads=1, time_limit=None,
        stretch=1.0, n=10, repeats=2, out=tmp_path / "runs", results=tmp_path / "results",
    )  # fmt: skip
    return replace(made, **changes)


def test_the_command_says_everything(tmp_path):
    row = Row("ising5-b04", "egm", fast=90, role="ablation", overrides={"symmetries": False, "clip_gradient": None})
    words, values = command(row, tmp_path / "a", of=("--recipe", "--seed", "--role", "--concurrent", "--time_limit"))
    assert values == {
        **{"--recipe": "fast/ising5-b04", "--seed": "7", "--role": "ablation", "--concurrent": "3"},
        "--time_limit": "90.0",
    }
    assert words[words.index("--symmetries") + 1] == "false"
    assert words[words.index("--clip_gradient") + 1] == "null"
    assert words[words.index("--evaluate_every") + 1] == "0"


def test_chains_have_no_loop_and_get_the_calls_of_another_run(tmp_path):
    words, values = command(EQUAL, tmp_path / "a", of=("--energy_calls", "--steps"))
    assert values == {"--energy_calls": "1234", "--steps": str(10**9)}
    assert "--evaluate_every" not in words
    limited = Run(replace(cell(EQUAL), time_limit=5.0), 0, tmp_path / "a")
    assert "--steps" not in limited.command(device="cpu", concurrent=1, calls=lambda method: 1)


def test_what_was_stopped_is_continued_but_chains_begin_again(tmp_path):
    for row, continued in ((SAMPLER, True), (EQUAL, False)):
        run = Run(cell(row), 0, tmp_path / row.method)
        RunDirectory(run.folder).write_config({"method": row.method})
        run.note(finished=False)
        run.forget()
        assert run.begun is continued
        assert ("--resume" in run.command(device="cpu", concurrent=1, calls=lambda method: 1)) is continued
    finished = Run(cell(EQUAL), 1, tmp_path / "finished")
    RunDirectory(finished.folder).write_config({"method": "gibbs"})
    finished.note(finished=True)
    finished.forget()
    assert finished.begun


def test_the_number_of_runs_that_share_the_device_only_grows(tmp_path):
    run = Run(cell(SAMPLER), 0, tmp_path / "a")
    run.note(finished=False, concurrent=4)
    run.note(finished=True, concurrent=2)
    assert run.notes() == {"finished": True, "concurrent": 4}
    assert run.finished


def test_budgets():
    assert with_budget(cell(SAMPLER), time_limit=None, stretch=2.5).time_limit == 225.0
    assert with_budget(cell(SAMPLER), time_limit=10.0, stretch=1.0).time_limit == 10.0
    assert with_budget(cell(EQUAL), time_limit=None, stretch=2.5).time_limit is None
    cost = cell(replace(SAMPLER, role="cost"))
    assert with_budget(cost, time_limit=10.0, stretch=3.0) is cost


def test_runs_are_named_once_and_the_longest_begin(tmp_path):
    rows = (Row("ising5-b04", "egm", fast=10), Row("ising5-b04", "egm-sp", fast=20, seeds=[0]))
    runs = runs_of([cell(row) for row in (*rows, rows[0])], (0, 1), tmp_path)
    assert [run.name for run in runs] == [
        *("fast-ising5-b04-egm-sp-0", "fast-ising5-b04-egm-0", "fast-ising5-b04-egm-1"),
    ]


def test_energy_calls_come_from_the_run_or_from_records(tmp_path):
    made = plan(tmp_path)
    waiting = Run(cell(EQUAL), 0, tmp_path / "runs" / "b")
    assert made.calls(waiting, "egm") is None
    write_records(tmp_path / "results", "t", [record(0, energy_calls=50), record(1, energy_calls=60)])
    assert made.calls(waiting, "egm") == 50
    (run,) = [run for run in made.runs if run.cell.method == "egm"]
    metrics = RunDirectory(run.folder)
    for calls in (70, 80):
        metrics.append_metrics({"step": calls, "energy_calls": calls})
    assert made.calls(waiting, "egm") == 50
    run.note(finished=True)
    assert made.calls(waiting, "egm") == 80
    assert made.calls(replace(waiting, seed=1), "egm") == 60


def test_runs_that_wait_for_others_come_last(tmp_path, monkeypatch):
    monkeypatch.setattr("egm.reproduce.definitions.recipes.methods", lambda name: ["egm", "gibbs"])
    names = [run.name for run in plan(tmp_path, rows=(EQUAL, SAMPLER)).runs]
    assert names == ["fast-ising5-b04-egm-0", "paper-ising5-b04-gibbs-energy_calls-calls_of_egm-0"]


@pytest.mark.parametrize("change", [{"method": "egm-bs"}, {"seed": 3}, {"notes": {"recipe": "fast/gbrbm"}}])
def test_a_folder_of_another_run_is_refused(tmp_path, change):
    run = Run(cell(SAMPLER), 0, tmp_path / "a")
    notes = {"recipe": "fast/ising5-b04", "role": "main", "overrides": {"time_limit": 5.0}}
    config = {"method": "egm", "seed": 0, "notes": notes, "time_limit": 5.0, "steps": None}
    RunDirectory(run.folder).write_config(config)
    run.check()
    assert "limit of 5 s" in str(run.kept_limit())
    RunDirectory(run.folder).write_config({**config, **change})
    with pytest.raises(ValueError, match="holds another run"):
        run.check()
