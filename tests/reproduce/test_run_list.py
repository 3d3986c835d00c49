"""Lists of runs, and how numbers, commits and commands are printed."""

import csv
import io

import pytest

from egm import recipes
from egm.report import markup
from egm.reproduce.definitions import Row, Table
from egm.reproduce.formats import command_text, commit_text, markdown
from egm.reproduce.run_list import csv_text, html_page, rows_of
from egm.reproduce.shown import Shown
from support.reproduce_cases import record, write_records

TABLE = Table("t", "T", ("e_w1",), {"ising5-b04": "Five"}, (Row("ising5-b04", "egm", fast=1, paper=60),))


def listed(tmp_path, *runs, metrics=("e_w1",)):
    rows = rows_of([Shown(TABLE, ["fast", "paper"], write_records(tmp_path, "t", list(runs)))], metrics)
    return list(csv.DictReader(io.StringIO(csv_text(rows)))), rows


def test_every_run_has_a_row(tmp_path):
    resampled = {"e_w1": {"mean": 0.2, "std": 0.0, "floor": 0.16, "floor_pairs": 200}}
    found, _ = listed(tmp_path, record(0, 1.25), record(1, 2.5, steps=24_000, n=1912, resampled=resampled))
    assert [(row["seed"], row["E-W1"]) for row in found] == [("0", "1.25"), ("1", "2.5")]
    assert found[1]["draws"] == "1912"
    assert found[1]["steps"] == "24000"
    assert (found[0]["E-W1, resampled"], found[1]["E-W1, resampled"]) == ("", "0.2")
    assert (found[0]["E-W1, floor"], found[0]["pairs behind the floor"]) == ("0.16", "200")
    assert (found[0]["energy calls"], found[0]["gradient calls"], found[0]["seconds"]) == ("1800000", "0", "90")
    assert (found[0]["target"], found[0]["commit"]) == ("Five", "0123456")
    assert found[0]["command"] == "egm train --recipe fast/ising5-b04"


def test_columns_without_values_and_runs_without_the_metric_are_left_out(tmp_path):
    found, _ = listed(tmp_path, record(0), record(1, ess=0.5), metrics=("ess",))
    assert [row["seed"] for row in found] == ["1"]
    assert "E-W1" not in found[0]
    assert "note" not in found[0]


def test_a_shortened_recipe_of_the_paper_says_what_all_of_it_would_take(tmp_path):
    whole = recipes.load("paper/ising5-b04", "egm")["steps"]
    short = record(recipe="paper/ising5-b04", steps=whole // 4, train_seconds=900.0)
    ((row,), _) = listed(tmp_path, short)
    assert (row["share of the paper's steps"], row["hours for all of them"]) == ("0.25", "1")


def test_runs_by_an_earlier_recipe_say_in_what(tmp_path):
    then = {**recipes.load("fast/ising5-b04", "egm"), "batch_size": 7}
    ((row,), _) = listed(tmp_path, record(stated=then))
    assert row["settings of an earlier recipe"] == "batch_size 7"


def test_the_page_holds_the_same(tmp_path):
    found, rows = listed(tmp_path, record(0, 1.25, command="egm train --out '/tmp/<a>/b'"))
    page = html_page("A & B", rows)
    assert page.count("<tr>") == 2
    assert all(f">{name}</th>" in page for name in found[0])
    assert "<title>A &amp; B</title>" in page
    assert "/tmp" not in page


@pytest.mark.parametrize(
    ("recorded", "text"),
    [
        ("egm train --recipe fast/x --out /tmp/a/b/x-0 --seed 0", "egm train --recipe fast/x --out runs/x-0 --seed 0"),
        ("egm train --out .scratch/r/x-0", "egm train --out runs/x-0"),
        ("egm train --out=~/r/x-0", "egm train --out=runs/x-0"),
        ("egm train --out ../r/x-0", "egm train --out runs/x-0"),
        ("egm train --out runs/ch/x-0", "egm train --out runs/ch/x-0"),
        ("egm train --network 'MLP(width=6)' --lr 1/2", "egm train --network 'MLP(width=6)' --lr 1/2"),
    ],
)
def test_folders_of_one_machine_are_not_shown(recorded, text):
    assert command_text(recorded) == text


@pytest.mark.parametrize(("commit", "text"), [("0123456789", "0123456"), ("0123456789+", "0123456+"), (None, "")])
def test_a_commit_with_changes_shows_them(commit, text):
    assert commit_text(commit) == text


def test_markdown_and_html_escape():
    grid = ["a|b", "c"], [["<x>", "y & z"]]
    assert markdown(grid) == "| a\\|b | c |\n| --- | --- |\n| <x> | y & z |"
    page = markup.page("T & U", markup.table(*grid, label="a & b"))
    assert '<th scope="row">&lt;x&gt;</th><td>y &amp; z</td>' in page
    assert "src=" not in page
    assert "href=" not in page
