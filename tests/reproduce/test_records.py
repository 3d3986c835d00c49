"""Which records belong to a row: roles are kept apart, settings count, budgets do not."""

import json

import pytest

from egm.reproduce import records
from egm.reproduce.definitions import Row, table
from egm.reproduce.records import belongs, changed_since, merge, records_of
from egm.reproduce.shown import Shown
from support.reproduce_cases import record, write_records


def cell(recipe="ising5-b04", method="egm", **row):
    made = Row(recipe, method, fast=row.pop("fast", "full"), **row).cell("fast")
    assert made is not None
    return made


def test_budgets_are_no_settings():
    assert belongs(record(overrides={"time_limit": 200.0, "log_every": 10}), cell())
    assert not belongs(record(overrides={"time_limit": 90.0, "batch_size": 7}), cell())
    assert not belongs(record(seed=1, method="egm-bs"), cell())
    assert not belongs(record(recipe="paper/ising5-b04"), cell())


def test_what_the_recipe_says_is_no_change():
    stated = cell(overrides={"proposals": 2000, "batch_size": 64})  # the recipe's own proposals
    assert belongs(record(overrides={"batch_size": 64}), stated)
    assert not belongs(record(overrides={}), stated)


def test_runs_about_cost_differ_by_their_seconds():
    short, long = (cell(role="cost", fast=seconds) for seconds in (10, 20))
    run = record(role="cost", overrides={"time_limit": 10.0})
    assert belongs(run, short)
    assert not belongs(run, long)


def test_calls_of_another_method_match_any_number():
    equal = cell(overrides={"batch_size": "calls of egm-sp"})
    assert belongs(record(overrides={"batch_size": 12345}), equal)
    assert not belongs(record(overrides={}), equal)


@pytest.mark.parametrize("role", ["smoke", "ablation", "cost"])
def test_only_main_runs_enter_main_rows(tmp_path, role):
    main = [record(0, 1.0), record(1, 2.0)]
    stranger = record(2, 50.0, role=role)

    def mean(*runs):
        folder = write_records(tmp_path / "results", "table1", [*main, *runs])
        shown = Shown(table("table1"), ["fast"], folder)
        (line,) = [line for line in shown.lines if line.cell.name == "fast-ising5-b04-egm" and line.metric == "e_w1"]
        assert line.value is not None
        return line.value.mean

    assert mean() == pytest.approx(1.5)
    assert mean(stranger) == pytest.approx(1.5)
    assert mean({**stranger, "role": "main"}) == pytest.approx(53 / 3)  # it would have changed the table


def test_files_are_merged_run_by_run(tmp_path):
    file = tmp_path / "results" / "a.json"
    merge(file, [record(0), record(1)])
    merge(file, [record(1, 7.0), record(1, 8.0, role="smoke"), record(1, 9.0, overrides={"batch_size": 3})])
    found = json.loads(file.read_text(encoding="utf-8"))
    assert sorted((r["seed"], r["role"], r["metrics"]["e_w1"]["mean"]) for r in found) == [
        *((0, "main", 1.0), (1, "main", 7.0), (1, "main", 9.0), (1, "smoke", 8.0)),
    ]
    assert [entry.name for entry in file.parent.iterdir()] == ["a.json"]


def test_a_run_at_other_equal_calls_takes_the_place_of_the_first(tmp_path):
    equal = cell(overrides={"batch_size": "calls of egm-sp"})
    old = [record(seed, overrides={"batch_size": 100}) for seed in (0, 1)]
    other = record(0, overrides={"proposals": 3})
    merge(tmp_path / "t.json", [*old, other])
    new = record(0, overrides={"batch_size": 200})
    merge(tmp_path / "t.json", [new], cell=equal)
    found = records.read(tmp_path / "t.json")
    assert sorted(found, key=str) == sorted([old[1], other, new], key=str)


def test_a_file_of_something_else_is_not_overwritten(tmp_path):
    file = tmp_path / "speed.json"
    file.write_text('[{"ms": 3}]', encoding="utf-8")
    with pytest.raises(ValueError, match="does not hold a list of runs"):
        merge(file, [record()])
    assert file.read_text(encoding="utf-8") == '[{"ms": 3}]'


def test_a_tables_own_file_goes_before_others(tmp_path):
    definition = table("table1")
    chosen = cell(fast=90)
    write_records(tmp_path, "paper_rows", [record(0, 3.0), record(1, 4.0)])
    assert [r["metrics"]["e_w1"]["mean"] for r in records_of(definition, chosen, tmp_path)] == [3.0, 4.0]
    write_records(tmp_path, "table1", [record(2, 6.0), record(1, 5.0)])  # seed by seed
    assert [r["metrics"]["e_w1"]["mean"] for r in records_of(definition, chosen, tmp_path)] == [3.0, 5.0, 6.0]
    write_records(tmp_path, "self_proposal_cpu", [record(3, 7.0)])  # not one of this table's files
    assert len(records_of(definition, chosen, tmp_path)) == 3
    assert records.read(tmp_path / "nothing.json") == []


def test_a_recipe_that_changed_is_noticed():
    row = cell(method="egm-bs", overrides={"epsilon": 0.2}, fast=60)
    now = {key: value for key, value in row.stated.items() if key != "method"}
    assert changed_since(record(stated=None), row) == {}
    assert changed_since(record(stated=now), row) == {}
    before = {**now, "batch_size": 7, "steps": 3, "epsilon": 0.9, "evaluate_every": 1, "ema": 0.5}
    del before["proposals"]
    assert changed_since(record(stated=before), row) == {"batch_size": 7, "ema": 0.5, "proposals": None}
    whole = cell(method="egm-bs")  # without seconds, steps are what was run
    assert changed_since(record(stated={**now, "steps": 3, "target": "Other()"}), whole) == {
        "steps": 3,
        "target": "Other()",
    }
