"""Tables as data: every row can be run or gives a reason why not, and published numbers are those of the papers."""

import pytest

from egm import recipes
from egm.reproduce.comparison import QUANTITIES
from egm.reproduce.definitions import TABLES, Published, Row, table
from egm.reproduce.selection import Selection
from support.reproduce_cases import TABLE, write_table

# From the paper: Gibbs (tables 1 and 2), PIS, iDEM, LEAPS, the bootstrapping time and the running average.
PUBLISHED = {
    ("table1", "ising5-b02", "gibbs"): {"e_w1": (0.10, 0.02), "m_w1": (0.06, 0.02)},
    ("table1", "ising5-b04", "gibbs"): {"e_w1": (0.71, 0.43), "m_w1": (0.23, 0.18)},
    ("table1", "ising10-b02", "gibbs"): {"e_w1": (0.53, 0.04), "m_w1": (0.04, 0.01)},
    ("table1", "ising10-b04", "gibbs"): {"e_w1": (5.29, 1.95), "m_w1": (0.29, 0.11)},
    ("table1", "ising10-b04", "egm-bs"): {"e_w1": (2.51, 0.16), "m_w1": (0.24, 0.01)},
    ("table2", "gbrbm", "gibbs"): {"e_w1": (0.77, 0.03), "x_w2": (5.12, 0.21)},
    ("table2", "jointdw4", "gibbs"): {"e_w1": (4.80, 0.02)},
    ("table2", "jointmog", "gibbs"): {"e_w1": (7.76, 0.02)},
    ("manywell", "manywell", "egm-bs"): {"e_w1": (3.30, None), "x_w2": (7.07, None), "modes": (4, None)},
    ("manywell", "manywell", "pis"): {"e_w1": (3.39, None), "x_w2": (6.14, None), "modes": (1, None)},
    ("manywell", "manywell", "idem"): {"e_w1": (5.53, None), "x_w2": (7.74, None), "modes": (4, None)},
    ("leaps", "ising15-b028", "egm"): {"e_w1": (0.89, None), "m_w1": (0.06, None)},
    ("leaps", "ising15-b028", "leaps"): {"e_w1": (0.68, None), "m_w1": (0.01, None)},
    ("leaps", "ising15-b028", "leaps-mcmc"): {"e_w1": (0.49, None), "m_w1": (0.01, None)},
    ("epsilon", "ising5-b04", "ε = 0.01"): {"e_w1": (2.84, None), "m_w1": (0.32, None)},
    ("epsilon", "ising5-b04", "ε = 0.02"): {"e_w1": (0.96, None), "m_w1": (0.09, None)},
    ("epsilon", "ising5-b04", "ε = 0.05"): {"e_w1": (0.84, None), "m_w1": (0.08, None)},
    ("epsilon", "ising5-b04", "ε = 0.10"): {"e_w1": (0.58, None), "m_w1": (0.08, None)},
    ("epsilon", "ising5-b04", "ε = 0.20"): {"e_w1": (1.90, None), "m_w1": (0.09, None)},
    ("epsilon", "ising5-b04", "ε = 0.50"): {"e_w1": (3.73, None), "m_w1": (0.20, None)},
    ("ema", "ising10-b04", "with EMA"): {"e_w1": (2.51, 0.16), "m_w1": (0.24, 0.01)},
    ("ema", "ising10-b04", "without EMA"): {"e_w1": (10.08, 8.65), "m_w1": (0.45, 0.13)},
    ("particles", "dw4", "idem"): {"e_w2": (0.44, None)},
    ("particles", "lj13", "idem"): {"e_w2": (5.2, None)},
}


def cells_of(name):
    definition = table(name)
    return [cell for kind in ("fast", "paper", "smoke") for cell in definition.cells(kind)]


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_complete(name):
    definition = table(name)
    assert set(definition.metrics) <= set(QUANTITIES)
    assert {cell.stem for cell in cells_of(name)} == set(definition.targets)
    for cell in cells_of(name):
        assert cell.why_not() is None
        assert set(cell.overrides) <= set(recipes.option_names())
        assert (cell.role == "smoke") == ("smoke" in cell.name)
    for kind in ("fast", "paper"):
        names = [cell.name for cell in definition.cells(kind)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("key", PUBLISHED, ids="-".join)
def test_published_numbers(key):
    name, recipe, label = key
    (cell,) = [cell for cell in table(name).cells("fast") if (cell.stem, cell.label) == (recipe, label)]
    assert {metric: (number.mean, number.std) for metric, number in cell.published.items()} == PUBLISHED[key]
    assert all(number.of is None for number in cell.published.values())


def test_our_own_method_stands_beside_the_papers_best():
    (cell,) = [cell for cell in table("table1").cells("fast") if cell.name == "fast-ising5-b04-egm-sp"]
    assert cell.published["e_w1"] == Published(0.60, 0.12, of="egm-bs")


def test_reasons_why_a_row_cannot_be_run():
    def reason(recipe, method):
        cell = Row(recipe, method, fast="full").cell("fast")
        assert cell is not None
        return cell.why_not()

    assert reason("gbrbm", "egm") is None
    assert reason("gbrbm", "no-such-method") == "this version of egm has no method 'no-such-method'"
    assert reason("no-such-recipe", "egm") == "there is no recipe 'fast/no-such-recipe'"
    assert reason("gmm40", "egm") == "the recipe 'fast/gmm40' has no section 'egm'"


def test_kinds_of_recipes():
    row = Row("ising5-b04", "egm-bs", fast=160, paper="full", overrides={"epsilon": 0.1})
    fast, paper, smoke = row.cell("fast"), row.cell("paper"), row.cell("smoke")
    assert fast is not None
    assert paper is not None
    assert smoke is not None
    assert (fast.recipe, fast.time_limit, fast.role) == ("fast/ising5-b04", 160.0, "main")
    assert (paper.recipe, paper.time_limit, paper.role) == ("paper/ising5-b04", None, "main")
    assert (smoke.recipe, smoke.role) == ("fast/ising5-b04", "smoke")
    assert smoke.time_limit is not None
    assert smoke.time_limit < 10
    assert smoke.overrides["epsilon"] == 0.1
    assert smoke.overrides["batch_size"] < 128
    assert Row("ising5-b04", "egm-sp", fast=10).cell("paper") is None
    fixed = Row("paper/ising5-b04", "egm", fast="full").cell("fast")
    assert fixed is not None
    assert (fixed.recipe, fixed.stem) == ("paper/ising5-b04", "ising5-b04")


def test_changed_rows_do_not_stand_beside_the_recipes_numbers():
    plain, changed = (Row("ising5-b04", "egm", fast=1, overrides=o).cell("fast") for o in ({}, {"proposals": 3}))
    assert plain is not None
    assert changed is not None
    assert plain.published["e_w1"].mean == 3.73
    assert changed.published == {}


def test_words_select_rows():
    cells = table("table1").cells("fast")

    def chosen(*words):
        selection = Selection.of(words, cells)
        return [f"{cell.stem}-{cell.method}" for cell in cells if selection.takes(cell)]

    assert len(chosen()) == len(cells)
    assert chosen("ising5-b02", "ising5-b04", "egm") == ["ising5-b02-egm", "ising5-b04-egm"]
    assert chosen("ising5-b02-egm-bs") == ["ising5-b02-egm-bs"]
    assert chosen("ising5-b02-egm-bs", "gibbs", "ising10-b04") == [
        *("ising5-b02-egm-bs", *["ising10-b04-gibbs"] * 3),  # by scans, by single sites, and at equal calls
    ]
    with pytest.raises(ValueError, match="did you mean 'ising5-b04'"):
        chosen("ising5-b05")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title: A tiny table", "titel: A tiny table", "did you mean 'title'"),
        ("title: A tiny table", "", "needs title"),
        ("method: egm, fast: full", "method: egm, fats: full", "did you mean 'fast'"),
        ("method: egm, fast: full", "method: egm", "needs a budget"),
        ("method: egm, fast: full", "method: egm, fast: long", "seconds or 'full'"),
        ("method: egm, fast: full", "method: egm, fast: full, role: minor", "the role of"),
        ("rows:", "rows: [", "is not YAML"),
    ],
)
def test_mistakes_in_a_table_are_named(tmp_path, old, new, said):
    file = write_table(tmp_path, TABLE.replace(old, new))
    with pytest.raises(ValueError, match=said):
        table(str(file))


def test_tables_that_are_not_there():
    with pytest.raises(ValueError, match="did you mean 'table1'"):
        table("tabel1")
    with pytest.raises(ValueError, match="there is no file"):
        table("nowhere.yaml")
