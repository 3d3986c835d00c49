"""The page of results, and those of the README, are what committed records say; the page leaves none of them out."""

import json
from pathlib import Path

import pytest

from egm.reproduce.definitions import TABLES, table
from egm.reproduce.page import EXTRAS, page, write_page
from egm.reproduce.records import belongs, read, records_of
from egm.reproduce.summary import BEGIN, END, summary, write_summary
from support.reproduce_cases import record, write_records

ROOT = Path(__file__).parents[2]
RUNS = ("self_proposal", "paper_rows", "self_proposal_cpu", "time_to_floor")


def test_the_committed_page_is_up_to_date():
    written = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page(ROOT / "results", ROOT / "docs") == written, "run `egm reproduce page`"
    assert "Written by `egm reproduce page`" in written.splitlines()[0]


def test_every_committed_run_is_shown_and_by_no_table_twice():
    results, tables = ROOT / "results", [table(name) for name in TABLES]
    kinds = [(each, cell) for each in tables for kind in ("fast", "paper") for cell in each.cells(kind)]
    cells = list({(each.name, cell.name): (each, cell) for each, cell in kinds}.values())  # some are both
    shown = {name: [] for name in TABLES}
    for definition, cell in cells:
        shown[definition.name] += records_of(definition, cell, results)
    for name in sorted({*RUNS, *TABLES} & {file.stem for file in results.glob("*.json")}):
        for run in json.loads((results / f"{name}.json").read_text(encoding="utf-8")):
            own = [(d.name, cell) for d, cell in cells if belongs(run, cell)]
            same = [(n, cell, read(results / f"{n}.json")) for n, cell in own]
            newer = [n for n, cell, runs in same if any(belongs(r, cell) and r["seed"] == run["seed"] for r in runs)]
            most = max(runs.count(run) for runs in shown.values())
            assert most == (0 if newer and name not in newer else 1), (name, run["recipe"], run["seed"])


def test_other_committed_files_are_shown():
    known = {*TABLES, *RUNS, *EXTRAS, "figures"}
    assert {file.stem for file in (ROOT / "results").glob("*.json")} <= known
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for name, extra in EXTRAS.items():
        assert (ROOT / "results" / f"{name}.json").is_file() == (f"## {extra.title}\n" in text)


def test_a_page_of_other_records(tmp_path):
    runs = [record(0, 1.0), record(1, 1.5), record(2, 60.0, role="smoke")]
    results = write_records(tmp_path / "results", "table1", runs)
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "docs" / "figures" / "energy.svg").write_text("<svg/>", encoding="utf-8")
    file = write_page(results, tmp_path / "docs")
    text = file.read_text(encoding="utf-8")
    assert "| Ising 5 × 5, β = 0.4 | E-W1 | egm | fast | 2 | 3.73 ± 0.39 | 1.250 ± 0.354 |" in text
    assert "60.0" not in text
    assert "![energy](figures/energy.svg)" in text
    assert "## Speed" not in text
    assert "fast/ising5-b04 (tempering at equal calls, swendsen-wang, egm-bs, egm-sp)" in text  # not run yet
    write_records(tmp_path / "results", "table1", [*runs[:1], record(1, 2.5)])
    assert page(results, tmp_path / "docs") != text


def test_the_readme_has_the_committed_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{BEGIN}\n{summary(ROOT / 'results')}{END}" in text, "run `egm reproduce page`"


def test_results_of_a_readme(tmp_path):
    """One line a target, of EGM-SP's main runs alone; what surrounds the markers stays."""
    runs = [record(seed, e_w1, method="egm-sp") for seed, e_w1 in ((0, 0.2), (1, 0.3))]
    others = [record(2, 9.0, method="egm-sp", role="smoke"), record(0, 7.0)]
    chains = [record(seed, 0.2, method="gibbs", recipe="paper/ising5-b04", energy_calls=280) for seed in (0, 1)]
    results = write_records(tmp_path / "results", "table1", [*runs, *others, *chains])
    readme = tmp_path / "README.md"
    assert write_summary(results, readme) is None
    readme.write_text("# Own\n", encoding="utf-8")
    assert write_summary(results, readme) is None
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    assert write_summary(results, readme) == readme
    text = readme.read_text(encoding="utf-8")
    assert text == f"before\n{BEGIN}\n{summary(results)}{END}\nafter\n"
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 3  # heading, rule, one target
    expected = ["Ising 5 × 5, β = 0.4", "0.60 ± 0.12", "0.250 ± 0.071", "1.8 M", "", "0.200 ± 0.000", "280", "0.160"]
    assert rows[2] == f"| {' | '.join(expected)} |"
    write_records(tmp_path / "results", "table1", [record(0, 7.0)])
    assert "No run" in summary(results)


@pytest.mark.parametrize(("name", "minutes"), [("egm-10", "1.2"), ("draws-10", "")])
def test_what_all_steps_of_a_recipe_take(tmp_path, name, minutes):
    run = {"name": name, "recipe": "paper/ising10-b04", "method": "egm", "ms": 7.2}  # 10 000 steps
    (tmp_path / "speed.json").write_text(json.dumps([run]), encoding="utf-8")
    lines = [
        line.split(" | ") for line in page(tmp_path, tmp_path).splitlines() if line.startswith(("| case", f"| {name}"))
    ]
    assert lines[1][lines[0].index("all steps, min")] == minutes
