"""Arithmetic and marks of tables, from made-up records; and how they are printed."""

import math

import pytest

from egm import recipes
from egm.report import markup
from egm.reproduce.comparison import QUANTITIES, Spread, compare
from egm.reproduce.definitions import Published, Row, Table
from egm.reproduce.rendering import Shown, commit_text, html_table, markdown
from support.reproduce_cases import record, write_records

TABLE = Table(
    "t", "T", ("e_w1",), {"ising5-b04": "Five"},
    (Row("ising5-b04", "gibbs", fast="full", published={"e_w1": [0.71, 0.43]}), Row("ising5-b04", "egm", fast=1),
     Row("ising5-b04", "egm-bs", fast=1), Row("ising5-b04", "egm-sp", fast=1)),
    beside="gibbs",
)  # fmt: skip


def lines_of(values, table=TABLE, **changes):
    """Lines by method, of one value a seed for each method."""
    found = []
    for cell in table.cells("fast"):
        runs = [record(seed, v, method=cell.method, **changes) for seed, v in enumerate(values.get(cell.method, []))]
        found.append((cell, runs))
    return {line.cell.method: line for line in compare(table, {"ising5-b04": found})}


def test_mean_and_spread_over_seeds():
    lines = lines_of({"egm": [1.0, 2.0, 4.5], "egm-sp": [0.3]})
    assert lines["egm"].value == Spread(2.5, math.sqrt(3.25))  # over n − 1
    assert lines["egm"].seeds == (0, 1, 2)
    assert lines["egm-sp"].value == Spread(0.3, None)
    assert "egm-bs" in lines  # published and not run
    assert lines["egm-bs"].value is None
    assert lines["egm-bs"].marks == ()


def test_best_and_worse_than_a_baseline():
    lines = lines_of({"gibbs": [0.5], "egm": [3.0], "egm-bs": [0.4], "egm-sp": [0.45]})
    assert "best" in lines["egm-bs"].marks
    assert [method for method, line in lines.items() if "best" in line.marks] == ["egm-bs"]
    assert [method for method, line in lines.items() if "worse than gibbs" in line.marks] == ["egm"]
    assert [line.beside for line in lines.values()] == [Spread(0.5, None)] * 4


def test_no_runs_of_the_baseline_show_its_published_number():
    assert lines_of({"egm": [3.0]})["egm"].beside == Published(0.71, 0.43)


def test_at_the_floor_needs_every_seed():
    floor = 0.16
    inside, outside = 1.24 * floor, 1.26 * floor
    assert "at the floor" in lines_of({"egm-sp": [inside, inside]})["egm-sp"].marks
    assert "1 of 2 at the floor" in lines_of({"egm-sp": [inside, outside]})["egm-sp"].marks
    assert lines_of({"egm-sp": [outside, outside]})["egm-sp"].at_floor == 0
    assert "at the floor" not in lines_of({"egm-sp": [inside]}, repeats=19)["egm-sp"].marks
    few = {"e_w1": {"mean": inside, "std": 0.0, "floor": floor, "floor_pairs": 199}}
    assert lines_of({"egm-sp": [inside]}, metrics=few)["egm-sp"].marks == ()


def test_a_baseline_that_is_better_within_the_floor_is_noise():
    lines = lines_of({"gibbs": [0.15], "egm-sp": [0.17], "egm-bs": [0.3]})
    assert "worse than gibbs" not in lines["egm-sp"].marks
    assert "worse than gibbs" in lines["egm-bs"].marks


def test_resampled_draws_have_a_mark_of_their_own():
    resampled = {"e_w1": {"mean": 0.17, "std": 0.0, "floor": 0.16, "floor_pairs": 200}}
    line = lines_of({"egm-sp": [0.5]}, resampled=resampled)["egm-sp"]
    assert line.resampled == Spread(0.17, None)
    assert "resampled at the floor" in line.marks


@pytest.mark.parametrize(("value", "worse"), [(4.50, False), (4.52, True)])
def test_worse_than_the_papers_mean_and_two_deviations(value, worse):
    assert ("worse than the paper" in lines_of({"egm": [value]})["egm"].marks) is worse  # 3.73 ± 0.39


@pytest.mark.parametrize(("value", "worse"), [(0.654, False), (0.656, True)])
def test_without_a_deviation_only_rounding_is_granted(value, worse):
    rows = (Row("x", "pis", fast=1, published={"e_w1": [0.65, None]}),)
    table = Table("t", "T", ("e_w1",), {}, rows)
    (line,) = compare(table, {"x": [(cell, [record(e_w1=value)]) for cell in table.cells("fast")]})
    assert ("worse than the paper" in line.marks) is worse


def test_runs_by_an_earlier_recipe_say_so(tmp_path):
    def shown(**stated):
        run = record(0, 0.5, stated={**recipes.load("fast/ising5-b04", "egm"), **stated})
        table = Shown(TABLE, ["fast"], write_records(tmp_path, "t", [run]))
        columns, rows = table.provenance()
        (marks,) = [line.marks for line in table.lines if line.cell.method == "egm"]
        return marks, rows[0][columns.index("recipe")]

    assert shown() == ((), "fast")
    assert shown(batch_size=7) == (("by an earlier recipe",), "fast, earlier: batch_size 7")


def test_our_own_method_is_compared_with_the_papers_best():
    assert "worse than the paper's egm-bs" in lines_of({"egm-sp": [0.85]})["egm-sp"].marks  # 0.60 ± 0.12
    assert "worse than the paper's egm-bs" not in lines_of({"egm-sp": [0.83]})["egm-sp"].marks


def test_more_is_better_for_some():
    table = Table("t", "T", ("modes",), {}, (Row("x", "pis", fast=1), Row("x", "egm", fast=1)))

    def modes(pis, egm):
        pairs = zip(table.cells("fast"), (pis, egm), strict=True)
        return [line.marks for line in compare(table, {"x": [(c, [record(modes=n)]) for c, n in pairs]})]

    assert modes(1, 4) == [(), ("best",)]
    assert modes(4, 4) == [(), ()]  # nobody is better than the other
    stated = Table(
        "t", "T", ("ess",), {}, (Row("x", "pis", fast=1, published={"ess": (0.9, None)}),), source="published"
    )
    for ess, marks in ((0.95, ()), (0.8951, ()), (0.8949, ("worse than published",))):  # 0.90, rounded
        (line,) = compare(stated, {"x": [(cell, [record(ess=ess)]) for cell in stated.cells("fast")]})
        assert line.marks == marks
    assert modes(4, 1) == [("best",), ("worse than pis",)]


@pytest.mark.parametrize(
    ("gibbs", "egm", "best", "worse"),
    [
        (0.14, 0.15, None, False),
        (0.15, 0.17, "gibbs", True),
        (0.19, 0.17, "egm", False),
        (0.17, 0.17, None, False),
    ],
)
def test_below_the_floor_nobody_is_better(gibbs, egm, best, worse):  # which is 0.16
    lines = lines_of({"gibbs": [gibbs], "egm": [egm]}, repeats=5)  # too few to be called at the floor
    assert [name for name, line in lines.items() if "best" in line.marks] == ([] if best is None else [best])
    assert ("worse than gibbs" in lines["egm"].marks) is worse


def test_lines_with_fewer_draws_are_compared_with_no_other():
    def marks(n, gibbs=0.3):
        runs = {"gibbs": [record(0, gibbs, n=n)], "egm": [record(0, 0.4)], "egm-bs": [record(0, 0.5)]}
        found = [(cell, runs.get(cell.method, [])) for cell in TABLE.cells("fast")]
        return {line.cell.method: line.marks for line in compare(TABLE, {"ising5-b04": found}) if line.value}

    assert marks(2000) == {"gibbs": ("best",), "egm": ("worse than gibbs",), "egm-bs": ("worse than gibbs",)}
    assert marks(790) == {"gibbs": ("n = 790",), "egm": ("best",), "egm-bs": ()}
    assert marks(2000, gibbs=0.17)["gibbs"] == ("best", "at the floor")
    assert marks(790, gibbs=0.17)["gibbs"] == ("n = 790",)  # their floor is a wider one


@pytest.mark.parametrize(("calls", "marked"), [(1_800_000, False), (1_799_999, True)])
def test_equal_calls_are_those_of_the_run_that_is_shown(calls, marked):
    equal = {"energy_calls": "calls of egm-sp"}
    table = Table("t", "T", ("e_w1",), {}, (Row("x", "gibbs", fast=1, overrides=equal), Row("x", "egm-sp", fast=1)))
    gibbs, ours = table.cells("fast")
    found = {
        "x": [
            (gibbs, [record(energy_calls=3, overrides={"energy_calls": calls})]),
            (ours, [record(), record(1, energy_calls=7)]),
        ]
    }
    marks = {line.cell.method: line.marks for line in compare(table, found)}
    assert ("not at equal calls: run it again" in marks["gibbs"]) is marked
    assert "not at equal calls: run it again" not in marks["egm-sp"]


def test_roles_are_not_compared():
    table = Table("t", "T", ("e_w1",), {}, (Row("x", "pis", fast=1, role="ablation"), Row("x", "egm", fast=1)))
    cells = table.cells("fast")
    found = {"x": [(cell, [record(e_w1=value, role=cell.role)]) for cell, value in zip(cells, (0.3, 1.0), strict=True)]}
    assert [line.marks for line in compare(table, found)] == [(), ()]


def test_resampled_at_the_floor_means_every_seed():
    def resampled(value):
        return {"e_w1": {"mean": value, "std": 0.0, "floor": 0.16, "floor_pairs": 200}}

    table = Table("t", "T", ("e_w1",), {}, (Row("x", "egm", fast=1),))
    for second, marked in ((0.17, True), (0.4, False)):
        runs = [record(0, 0.5, resampled=resampled(0.17)), record(1, 0.5, resampled=resampled(second))]
        (line,) = compare(table, {"x": [(cell, runs) for cell in table.cells("fast")]})
        assert ("resampled at the floor" in line.marks) is marked


def test_smoke_runs_are_not_judged():
    cells = TABLE.cells("smoke")
    found = [(cell, [record(0, 0.16, method=cell.method, role="smoke")]) for cell in cells]
    assert {line.marks for line in compare(TABLE, {"ising5-b04": found})} == {()}


def test_costs_are_held_against_published_ones_alone():
    costs = {"ms_per_step": [9.0, None], "energy_calls": [10_000, None], "peak_memory_gib": [1.0, None]}
    table = Table("t", "T", tuple(costs), {}, (Row("x", "gibbs", fast=1), Row("x", "egm", fast=1, published=costs)))
    for energy_calls, gib, verdict in ((20_000, 2.0, ("worse than the paper",)), (5_000, 0.5, ())):
        run = {"peak_memory_gib": gib, "energy_calls": energy_calls, "train_seconds": energy_calls / 1e3, "steps": 1000}
        gibbs = {"peak_memory_gib": 0.7, "energy_calls": 7_000, "train_seconds": 7.0, "steps": 1000}
        found = zip(table.cells("fast"), (record(0, method="gibbs", **gibbs), record(0, **run)), strict=True)
        lines = compare(table, {"x": [(cell, [run]) for cell, run in found]})
        marks = {(line.cell.method, line.metric): line.marks for line in lines}
        assert all(marks["gibbs", name] == () for name in costs)
        assert all(marks["egm", name] == verdict for name in costs)


def test_quantities_of_a_record():
    run = record(train_seconds=3.0, steps=1500, ess=0.9, log_z=21.4)
    assert QUANTITIES["ms_per_step"].value(run) == pytest.approx(2.0)
    assert QUANTITIES["log_z_error"].value(run) == pytest.approx(0.1)
    assert QUANTITIES["log_z_error"].value(record(log_z=run["log_z_exact"] + 0.2)) == pytest.approx(0.2)
    assert QUANTITIES["log_z_error"].value(record(log_z=run["log_z_exact"] - 0.2)) == pytest.approx(0.2)
    assert QUANTITIES["energy_calls"].value(run) == 1_800_000
    assert QUANTITIES["x_w2"].value(run) is None
    assert QUANTITIES["ms_per_step"].value(record(steps=None)) is None


def test_in_print(tmp_path):
    runs = [record(0, 1.0), record(1, 2.0), record(0, 0.17, method="egm-sp", steps=24_000)]
    shown = Shown(TABLE, ["fast"], write_records(tmp_path, "t", runs))
    columns, rows = shown.comparison()
    assert columns == ["target", "metric", "method", "recipe", "seeds", "paper", "ours", "gibbs", "floor", "verdict"]
    assert rows[1] == ["Five", "E-W1", "egm", "fast", "2", "3.73 ± 0.39", "1.500 ± 0.707", "0.71 ± 0.43 (paper)",
                       "0.160", ""]  # fmt: skip
    assert rows[2][5:7] == ["0.60 ± 0.12", "not run"]
    assert rows[3][-1] == "best; at the floor"
    assert shown.reasons()[""] == ["fast/ising5-b04 by egm-bs"]
    made = dict(zip(*[shown.provenance()[0], shown.provenance()[1][1]], strict=True))
    assert (made["n × repeats"], made["seeds"], made["steps"]) == ("2000 × 20", "0", "24 k")
    assert (made["energy calls"], made["gradient calls"], made["seconds"], made["commit"]) == (
        *("1.8 M", "0", "90", "0123456"),
    )
    assert made["command"] == "`egm train --recipe fast/ising5-b04`"


@pytest.mark.parametrize(("commit", "text"), [("0123456789", "0123456"), ("0123456789+", "0123456+"), (None, "")])
def test_a_commit_with_changes_shows_them(commit, text):
    assert commit_text(commit) == text


def test_a_shortened_recipe_of_the_paper_says_what_all_of_it_would_take(tmp_path):
    table = Table("t", "T", ("e_w1",), {}, (Row("ising5-b04", "egm-bs", paper=60),))
    run = record(recipe="paper/ising5-b04", method="egm-bs", steps=25_000, train_seconds=900.0)
    columns, rows = Shown(table, ["paper"], write_records(tmp_path, "t", [run])).provenance()
    assert rows[0][columns.index("of the recipe")] == "25% (all would take 1.0 h)"  # of 100 000 steps


@pytest.mark.parametrize(("runs", "text"), [(1, "none"), (0, "not run")])  # of the second kind of recipe
def test_a_run_without_a_quantity_is_not_one_that_is_missing(tmp_path, runs, text):
    row = Row("x", "gibbs", fast=1, paper=1, published={"peak_memory_gib": [1, None]})
    table = Table("t", "T", ("peak_memory_gib",), {}, (row,))
    made = [record(recipe="paper/x", method="gibbs", peak_memory_gib=None)] * runs
    columns, rows = Shown(table, ["fast", "paper"], write_records(tmp_path, "t", made)).comparison()
    assert rows[0][columns.index("ours")] == text


def test_markdown_and_html_escape():
    grid = ["a|b", "c"], [["<x>", "`y & z`"]]
    assert markdown(grid) == "| a\\|b | c |\n| --- | --- |\n| <x> | `y & z` |"
    page = markup.page("T & U", html_table(grid, label="a & b"))
    assert '<th scope="row">&lt;x&gt;</th><td><code>y &amp; z</code></td>' in page
    assert "<title>T &amp; U</title>" in page
    assert "src=" not in page
    assert "href=" not in page
