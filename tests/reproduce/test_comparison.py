"""The numbers of a table's lines and how they are judged, from made-up records."""

import math

import pytest

from egm.metrics import floors
from egm.reproduce.comparison import QUANTITIES, Spread, compare
from egm.reproduce.definitions import Row, Table
from support.reproduce_cases import record

TABLE = Table(
    "t", "T", ("e_w1",), {"ising5-b04": "Five"},
    (Row("ising5-b04", "gibbs", fast="full", published={"e_w1": [0.71, 0.43]}), Row("ising5-b04", "egm", fast=1),
     Row("ising5-b04", "egm-bs", fast=1), Row("ising5-b04", "egm-sp", fast=1)),
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
    assert not lines["egm-bs"].worse


def test_baselines_that_are_better():
    lines = lines_of({"gibbs": [0.5], "egm": [3.0], "egm-bs": [0.4], "egm-sp": [0.45]})
    assert {method: line.baselines for method, line in lines.items() if line.baselines} == {"egm": ("gibbs",)}


def test_at_the_floor_counts_seeds():
    floor = 0.16
    inside, outside = 1.24 * floor, 1.26 * floor
    assert lines_of({"egm-sp": [inside, inside]})["egm-sp"].all_at_floor
    assert lines_of({"egm-sp": [inside, outside]})["egm-sp"].at_floor == 1
    assert not lines_of({"egm-sp": [inside, outside]})["egm-sp"].all_at_floor
    assert lines_of({"egm-sp": [outside, outside]})["egm-sp"].at_floor == 0
    assert lines_of({"egm-sp": [inside]}, repeats=19)["egm-sp"].at_floor is None
    few = {"e_w1": {"mean": inside, "std": 0.0, "floor": floor, "floor_pairs": 199}}
    assert lines_of({"egm-sp": [inside]}, metrics=few)["egm-sp"].at_floor is None


def test_the_rule_is_that_of_the_metrics(monkeypatch):
    monkeypatch.setattr(floors, "TOLERANCE", 2.0)
    assert lines_of({"egm-sp": [0.31]})["egm-sp"].all_at_floor
    assert not lines_of({"egm-sp": [0.33]})["egm-sp"].all_at_floor


def test_a_baseline_that_is_better_within_the_floor_is_noise():
    lines = lines_of({"gibbs": [0.15], "egm-sp": [0.17], "egm-bs": [0.3]})
    assert lines["egm-sp"].baselines == ()
    assert lines["egm-bs"].baselines == ("gibbs",)
    lines = lines_of({"gibbs": [0.14], "egm": [0.15], "egm-bs": [0.17]}, repeats=5)  # too few to be at the floor
    assert lines["egm"].baselines == ()
    assert lines["egm-bs"].baselines == ("gibbs",)


@pytest.mark.parametrize(("second", "reached"), [(0.17, 2), (0.4, 1)])
def test_resampled_draws_are_judged_too(second, reached):
    def resampled(value):
        return {"e_w1": {"mean": value, "std": 0.0, "floor": 0.16, "floor_pairs": 200}}

    table = Table("t", "T", ("e_w1",), {}, (Row("x", "egm", fast=1),))
    runs = [record(0, 0.5, resampled=resampled(0.17)), record(1, 0.5, resampled=resampled(second))]
    (line,) = compare(table, {"x": [(cell, runs) for cell in table.cells("fast")]})
    assert line.resampled == Spread.of([0.17, second])
    assert (line.at_floor, line.resampled_at_floor) == (0, reached)


@pytest.mark.parametrize(("value", "worse"), [(4.50, False), (4.52, True)])
def test_worse_than_the_papers_mean_and_two_deviations(value, worse):
    assert lines_of({"egm": [value]})["egm"].worse is worse  # 3.73 ± 0.39


@pytest.mark.parametrize(("value", "worse"), [(0.654, False), (0.656, True)])
def test_without_a_deviation_only_rounding_is_granted(value, worse):
    rows = (Row("x", "pis", fast=1, published={"e_w1": [0.65, None]}),)
    table = Table("t", "T", ("e_w1",), {}, rows)
    (line,) = compare(table, {"x": [(cell, [record(e_w1=value)]) for cell in table.cells("fast")]})
    assert line.worse is worse


def test_our_own_method_is_compared_with_the_papers_best():
    assert lines_of({"egm-sp": [0.85]})["egm-sp"].worse  # 0.60 ± 0.12
    assert not lines_of({"egm-sp": [0.83]})["egm-sp"].worse


def test_more_is_better_for_some():
    table = Table("t", "T", ("modes",), {}, (Row("x", "pis", fast=1), Row("x", "egm", fast=1)))

    def baselines(pis, egm):
        pairs = zip(table.cells("fast"), (pis, egm), strict=True)
        return [line.baselines for line in compare(table, {"x": [(c, [record(modes=n)]) for c, n in pairs]})]

    assert baselines(1, 4) == baselines(4, 4) == [(), ()]
    assert baselines(4, 1) == [(), ("pis",)]
    stated = Table("t", "T", ("ess",), {}, (Row("x", "pis", fast=1, published={"ess": (0.9, None)}),))
    for ess, worse in ((0.95, False), (0.8951, False), (0.8949, True)):  # 0.90, rounded
        (line,) = compare(stated, {"x": [(cell, [record(ess=ess)]) for cell in stated.cells("fast")]})
        assert line.worse is worse


def test_lines_with_fewer_draws_are_compared_with_no_other():
    def lines(n, gibbs=0.3):
        runs = {"gibbs": [record(0, gibbs, n=n)], "egm": [record(0, 0.4)]}
        found = [(cell, runs.get(cell.method, [])) for cell in TABLE.cells("fast")]
        return {line.cell.method: line for line in compare(TABLE, {"ising5-b04": found}) if line.value}

    assert lines(2000)["egm"].baselines == ("gibbs",)
    assert lines(790)["egm"].baselines == ()
    assert lines(790)["gibbs"].fewer
    assert not lines(790)["egm"].fewer
    assert lines(2000, gibbs=0.17)["gibbs"].all_at_floor
    assert lines(790, gibbs=0.17)["gibbs"].at_floor is None  # their floor is a higher one


@pytest.mark.parametrize(("calls", "unequal"), [(1_800_000, False), (1_799_999, True)])
def test_equal_calls_are_those_of_the_run_that_is_shown(calls, unequal):
    equal = {"energy_calls": "calls of egm-sp"}
    table = Table("t", "T", ("e_w1",), {}, (Row("x", "gibbs", fast=1, overrides=equal), Row("x", "egm-sp", fast=1)))
    gibbs, ours = table.cells("fast")
    found = {
        "x": [
            (gibbs, [record(energy_calls=3, overrides={"energy_calls": calls})]),
            (ours, [record(), record(1, energy_calls=7)]),
        ]
    }
    lines = {line.cell.method: line for line in compare(table, found)}
    assert lines["gibbs"].unequal is unequal
    assert not lines["egm-sp"].unequal


def test_roles_are_not_compared():
    table = Table("t", "T", ("e_w1",), {}, (Row("x", "pis", fast=1, role="ablation"), Row("x", "egm", fast=1)))
    cells = table.cells("fast")
    found = {"x": [(cell, [record(e_w1=value, role=cell.role)]) for cell, value in zip(cells, (0.3, 1.0), strict=True)]}
    assert [line.baselines for line in compare(table, found)] == [(), ()]


def test_smoke_runs_are_not_judged():
    cells = TABLE.cells("smoke")
    found = [(cell, [record(0, 0.16, method=cell.method, role="smoke")]) for cell in cells]
    found[1] = (cells[1], [record(0, 99.0, role="smoke")])
    lines = compare(TABLE, {"ising5-b04": found})
    assert {(line.at_floor, line.worse, line.baselines) for line in lines} == {(None, False, ())}


def test_costs_are_held_against_published_ones_alone():
    costs = {"ms_per_step": [9.0, None], "energy_calls": [10_000, None], "peak_memory_gib": [1.0, None]}
    table = Table("t", "T", tuple(costs), {}, (Row("x", "gibbs", fast=1), Row("x", "egm", fast=1, published=costs)))
    for energy_calls, gib, worse in ((20_000, 2.0, True), (5_000, 0.5, False)):
        run = {"peak_memory_gib": gib, "energy_calls": energy_calls, "train_seconds": energy_calls / 1e3, "steps": 1000}
        gibbs = {"peak_memory_gib": 0.1, "energy_calls": 1_000, "train_seconds": 1.0, "steps": 1000}
        found = zip(table.cells("fast"), (record(0, method="gibbs", **gibbs), record(0, **run)), strict=True)
        lines = compare(table, {"x": [(cell, [run]) for cell, run in found]})
        assert {line.worse for line in lines if line.cell.method == "egm"} == {worse}
        assert {line.baselines for line in lines} == {()}


def test_quantities_of_a_record():
    run = record(train_seconds=3.0, steps=1500, ess=0.9, log_z=21.4)
    assert QUANTITIES["ms_per_step"].value(run) == pytest.approx(2.0)
    assert QUANTITIES["log_z_error"].value(run) == pytest.approx(0.1)
    assert QUANTITIES["log_z_error"].value(record(log_z=run["log_z_exact"] + 0.2)) == pytest.approx(0.2)
    assert QUANTITIES["log_z_error"].value(record(log_z=run["log_z_exact"] - 0.2)) == pytest.approx(0.2)
    assert QUANTITIES["energy_calls"].value(run) == 1_800_000
    assert QUANTITIES["x_w2"].value(run) is None
    assert QUANTITIES["ms_per_step"].value(record(steps=None)) is None
