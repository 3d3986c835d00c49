"""Tables with methods as columns, and the sentences below them, from made-up records."""

import pytest

from egm import recipes
from egm.reproduce.definitions import Row, Table
from egm.reproduce.footnotes import commands, footnotes
from egm.reproduce.layout import MOST_COLUMNS, grids
from egm.reproduce.shown import Shown
from support.reproduce_cases import record, write_records

FOUR, TWO = "fast/ising5-b04", "fast/ising5-b02"
TARGETS = {"ising5-b04": "Four", "ising5-b02": "Two"}
ROWS = (
    Row("ising5-b04", "gibbs", fast=1, published={"e_w1": [0.71, 0.43]}),
    Row("ising5-b04", "egm", fast=1, paper=1),
    Row("ising5-b04", "egm-sp", fast=1),
)
ONE = Table("t", "T", ("e_w1",), TARGETS, ROWS)
BOTH = Table(
    "t", "T", ("e_w1",), TARGETS, (*ROWS, Row("ising5-b02", "egm-sp", fast=1), Row("ising5-b02", "egm", fast=1))
)
SCORE = {"std": 0.1, "floor": 0.16, "floor_pairs": 200}


def shown(tmp_path, table, runs):
    return Shown(table, ["fast", "paper"], write_records(tmp_path, "t", runs))


def cells(grid):
    """Cells by row and heading."""
    columns, rows = grid
    return {row[0]: dict(zip(columns[1:], row[1:], strict=True)) for row in rows}


def test_one_target_has_a_row_for_each_method(tmp_path):
    runs = [record(0, 4.0), record(1, 6.0), record(0, 0.17, method="egm-sp"), record(0, 3.0, recipe="paper/ising5-b04")]
    (grid,) = grids(shown(tmp_path, ONE, runs), "e_w1")
    assert grid[0] == ["Four", "in the paper", "here", "floor"]
    assert grid[1] == [
        ["gibbs", "0.71 ± 0.43", "", ""],
        ["egm", "3.73 ± 0.39", "5.000 ± 1.414 ✗", "0.160"],
        ["egm (paper's settings)", "3.73 ± 0.39", "3.000", "0.160"],
        ["egm-sp", "0.60 ± 0.12 (egm-bs)", "0.170 ✓", "0.160"],
    ]


def test_several_targets_have_a_column_for_each_method(tmp_path):
    resampled = {"e_w1": {"mean": 0.17, **SCORE}}
    runs = [record(0, 0.5, resampled=resampled), record(0, 0.17, method="egm-sp"), record(1, 0.3, method="egm-sp")]
    runs += [record(0, 0.2, method="egm-sp", recipe=TWO), record(0, 0.4, method="gibbs", n=60)]
    (grid,) = grids(shown(tmp_path, BOTH, runs), "e_w1")
    found = cells(grid)
    assert list(found) == ["Four", "Two"]
    assert found["Four"] == {
        "gibbs in the paper": "0.71 ± 0.43",
        "gibbs": "0.400 (n = 60, floor 0.160)",
        "egm in the paper": "3.73 ± 0.39",
        "egm": "0.500",
        "egm, resampled": "0.170 ✓",
        "egm-bs in the paper": "0.60 ± 0.12",  # what EGM-SP is compared with
        "egm-sp": "0.235 ± 0.092 ✓ 1/2",
        "floor": "0.160",
    }
    assert found["Two"]["egm-sp"] == "0.200 ✓"
    assert found["Two"]["gibbs"] == found["Two"]["egm"] == ""


def test_numbers_of_others_name_them(tmp_path):
    stated = {"e_w1": [0.15, None, "SMC"]}
    rows = (Row("ising5-b04", "egm-sp", fast=1, published=stated), Row("ising5-b02", "egm-sp", fast=1))
    table = Table("t", "T", ("e_w1",), TARGETS, rows, source="published")
    runs = [record(0, 0.5, method="egm-sp"), record(0, 0.5, method="egm-sp", recipe=TWO)]
    (grid,) = grids(shown(tmp_path, table, runs), "e_w1")
    assert cells(grid)["Four"]["others published"] == "0.15 (SMC)"


def test_a_wide_table_is_taken_apart(tmp_path):
    rows, runs = [], []
    for recipe, stem in ((FOUR, "ising5-b04"), (TWO, "ising5-b02")):
        for i in range(6):
            for method in ("egm", "gibbs"):
                rows.append(Row(stem, method, fast=1, label=f"{method} {i}", overrides={"refresh": i}))
                runs.append(record(0, 1.0, method=method, recipe=recipe, overrides={"refresh": i}))
    made = grids(shown(tmp_path, Table("t", "T", ("e_w1",), TARGETS, tuple(rows)), runs), "e_w1")
    assert [columns[1].split()[0] for columns, _ in made] == ["egm", "gibbs"]
    assert all(len(columns) <= MOST_COLUMNS for columns, _ in made)
    assert sum(len(columns) - 2 for columns, _ in made) == 12


def test_the_floor_of_a_target_is_the_same_in_both_parts(tmp_path):
    rows, runs = [], []
    for i in range(5):
        for method, floor in (("egm", 0.2), ("gibbs", 0.1)):
            rows += [Row(s, method, fast=1, label=f"{method} {i}", overrides={"refresh": i}) for s in TARGETS]
            score = {"e_w1": {"mean": 1.0, **SCORE, "floor": floor}}
            runs.append(record(0, method=method, overrides={"refresh": i}, metrics=score))
            runs.append(record(0, method=method, overrides={"refresh": i}, metrics=score, recipe=TWO))
    made = grids(shown(tmp_path, Table("t", "T", ("e_w1",), TARGETS, tuple(rows)), runs), "e_w1")
    assert [cells(grid)["Four"]["floor"] for grid in made] == ["0.150", "0.150"]


def test_a_metric_that_nobody_has(tmp_path):
    assert grids(shown(tmp_path, ONE, [record()]), "x_w2") == []


def test_sentences_name_what_marks_do_not_say(tmp_path):
    runs = [record(0, 2.0, repeats=5), record(0, 0.2, method="gibbs", recipe=FOUR, note="done twice")]
    runs += [record(0, 3.0, recipe="paper/ising5-b04", stated={"batch_size": 7})]
    table = Table("t", "T", ("e_w1",), TARGETS, ROWS, note="A general note.", notes={"m_w1": "Of M-W1."})
    sentences = footnotes(shown(tmp_path, table, runs), "e_w1")
    assert sentences == [
        "A baseline is better than: *egm* and *egm (paper's settings)* on Four.",
        "Evaluated fewer than 20 times, so without ✓: *egm* (5) on Four.",
        "The recipe has changed since (the list of runs has the old settings): *egm (paper's settings)* on Four.",
        "A general note.",
        "About `fast/ising5-b04` by *gibbs*: done twice.",
        "Not run yet: `fast/ising5-b04` (egm-sp).",
    ]


def test_notes_on_runs_stand_below_the_first_metric_alone(tmp_path):
    table = Table("t", "T", ("e_w1", "m_w1"), TARGETS, ROWS[1:2], note="A general note.", notes={"m_w1": "Of M-W1."})
    made = shown(tmp_path, table, [record(0, 0.17), record(0, 0.17, recipe="paper/ising5-b04")])
    assert footnotes(made, "e_w1") == ["A general note."]
    assert footnotes(made, "m_w1")[-1] == "Of M-W1."
    assert "A general note." not in footnotes(made, "m_w1")


def test_few_pairs_behind_a_floor_are_said(tmp_path):
    score = {"e_w1": {"mean": 0.17, **SCORE, "floor_pairs": 20}}
    sentences = footnotes(shown(tmp_path, ONE, [record(metrics=score)]), "e_w1")
    assert sentences[0] == "A floor from fewer than 200 pairs, so without ✓: *egm* (20) on Four."


def test_an_unchanged_recipe_is_not_named(tmp_path):
    run = record(0, 0.17, stated=recipes.load(FOUR, "egm"))
    assert not [s for s in footnotes(shown(tmp_path, ONE, [run]), "e_w1") if "changed" in s]


@pytest.mark.parametrize(("paper", "more"), [(None, False), (1, True)])
def test_commands_of_a_table(paper, more):
    table = Table("t", "T", ("e_w1",), {}, (Row("x", "egm", fast=1, paper=paper),))
    assert commands(table) == "`egm reproduce t`" + " and `egm reproduce t --recipe paper`" * more
