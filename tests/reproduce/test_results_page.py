"""The pages of results, and the table of the README, agree with the committed records; no run is left out."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from egm.reproduce.comparison import QUANTITIES
from egm.reproduce.definitions import TABLES, table
from egm.reproduce.layout import MOST_COLUMNS
from egm.reproduce.measurements import MEASUREMENTS
from egm.reproduce.pages import GENERATED, KINDS, MAIN_PAGE, PAGES, pages, write_pages
from egm.reproduce.records import belongs, read, records_of
from egm.reproduce.summary import BEGIN, END, ROWS, summary, write_summary
from support.reproduce_cases import record, write_records

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RUNS = ("self_proposal", "paper_rows", "self_proposal_cpu", "time_to_floor")
LONGEST_LINE = 400


@pytest.fixture(scope="module")
def committed():
    return pages(ROOT / "results", DOCS)


def test_the_committed_pages_are_up_to_date(committed):
    written = {f"results/{file.name}" for file in (DOCS / "results").iterdir()} | {"results.md"}
    assert written == set(committed), "run `egm reproduce page`, and remove what it does not write"
    for name, text in committed.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"{name}: run `egm reproduce page`"


def test_a_person_can_read_them(committed):
    for name in (name for name in committed if name.endswith(".md")):
        lines = committed[name].splitlines()
        assert lines[0] == GENERATED
        assert max(map(len, lines)) <= LONGEST_LINE, name
        assert max((line.count(" | ") + 1 for line in lines if line.startswith("| ")), default=0) <= MOST_COLUMNS, name
        assert len(re.findall(r"(?m)^# ", committed[name])) == 1


def test_no_folder_of_one_machine_is_shown(committed):
    assert [name for name, text in committed.items() if re.search(r"/tmp\b|\.scratch|/home/|/root/", text)] == []


def test_both_marks_are_explained(committed):
    text = committed["results.md"]
    assert text.count("| ✓ |") == text.count("| ✗ |") == 1
    assert " ✓ |" in text.split("## ", 1)[1]
    assert " ✗ |" in text.split("## ", 1)[1]


def test_every_figure_is_shown_once(committed):
    text = "".join(text for name, text in committed.items() if name.endswith(".md"))
    shown = re.findall(r"figures/(\w+)\.svg\)", text)
    assert sorted(shown) == sorted(file.stem for file in (DOCS / "figures").glob("*.svg"))


def test_every_metric_has_a_page():
    shown = {metric for page in (MAIN_PAGE, *PAGES) for metric in page.metrics}
    assert shown == {metric for name in TABLES for metric in table(name).metrics}


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


def test_every_run_of_a_metric_is_listed(committed):
    for page in (MAIN_PAGE, *(page for page in PAGES if page.stem in ("m_w1", "x_w2", "e_w2"))):
        (metric,) = page.metrics
        tables = [table(name) for name in TABLES if metric in table(name).metrics]
        cells = [(t, c) for t in tables for c in {c.name: c for k in KINDS for c in t.cells(k)}.values()]
        runs = [run for t, cell in cells for run in records_of(t, cell, ROOT / "results") if metric in run["metrics"]]
        rows = list(csv.DictReader(io.StringIO(committed[f"results/{page.stem}.csv"])))
        assert len(rows) == len(runs) > 10
        label = QUANTITIES[metric].label
        assert sum(float(row[label]) for row in rows) == pytest.approx(
            sum(run["metrics"][metric]["mean"] for run in runs)
        )


def test_other_committed_files_are_shown(committed):
    known = {*TABLES, *RUNS, *MEASUREMENTS, "figures"}
    assert {file.stem for file in (ROOT / "results").glob("*.json")} <= known
    for name in MEASUREMENTS:
        assert (ROOT / "results" / f"{name}.json").is_file() == (f"results/{name}.md" in committed)


def test_pages_of_other_records(tmp_path):
    runs = [record(0, 1.0), record(1, 1.5), record(2, 60.0, role="smoke")]
    results = write_records(tmp_path / "results", "table1", runs)
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "docs" / "figures" / "energy.svg").write_text("<svg/>", encoding="utf-8")
    written = write_pages(results, tmp_path / "docs")
    text = (tmp_path / "docs" / "results.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| Ising 5 × 5, β = 0.4 |")]
    assert any("1.250 ± 0.354 |" in row and "3.73 ± 0.39 |" in row for row in rows)  # one row has both
    assert "60.0" not in text
    assert "![energy](figures/energy.svg)" in text
    assert "`fast/ising5-b04` (tempering at equal calls, swendsen-wang, egm-bs, egm-sp)" in " ".join(text.split())
    names = {file.relative_to(tmp_path / "docs").as_posix() for file in written}
    assert {"results.md", "results/m_w1.md", "results/e_w1.csv", "results/e_w1.html"} <= names
    assert "results/ess.md" not in names  # no run has it
    assert "results/speed.md" not in names
    write_records(tmp_path / "results", "table1", [*runs[:1], record(1, 2.5)])
    assert pages(results, tmp_path / "docs")["results.md"] != text


def test_the_readme_has_the_committed_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{BEGIN}\n{summary(ROOT / 'results')}{END}" in text, "run `egm reproduce page`"
    assert summary(ROOT / "results").count("\n| ") == len(ROWS) + 1  # and the rule below the heading


def test_results_of_a_readme(tmp_path):
    """One line a target, of EGM-SP's main runs alone; text outside the markers stays."""
    changes = {"method": "egm-sp", "recipe": "fast/ising10-b04", "ess": 0.9}
    runs = [record(seed, e_w1, **changes) for seed, e_w1 in ((0, 0.2), (1, 0.3))]
    others = [record(2, 9.0, **changes, role="smoke"), record(0, 7.0, recipe="fast/ising10-b04")]
    results = write_records(tmp_path / "results", "table1", [*runs, *others])
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
    expected = ["Ising 10 × 10, β = 0.4", "100 spins", "0.250 ± 0.071", "0.160", "0.9000", "1.8 M"]
    assert rows[2] == f"| {' | '.join(expected)} |"
    assert "90 to 90 s on NVIDIA H200" in text
    write_records(tmp_path / "results", "table1", [record(0, 7.0)])
    assert "No run" in summary(results)


@pytest.mark.parametrize(("name", "minutes"), [("egm-10", "1.2"), ("draws-10", "")])
def test_what_all_steps_of_a_recipe_take(tmp_path, name, minutes):
    run = {"name": name, "recipe": "paper/ising10-b04", "method": "egm", "ms": 7.2}  # 10 000 steps
    (tmp_path / "speed.json").write_text(json.dumps([run]), encoding="utf-8")
    text = pages(tmp_path, tmp_path)["results/speed.md"]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(("| case", f"| {name}"))]
    assert dict(zip(*lines, strict=False)).get("all steps, min", "") == minutes


def test_posteriors_have_a_row_for_each_marginal(tmp_path):
    def run(seed, mean):
        score = {"inclusion_max": {"mean": mean, "std": None, "floor": 0.01}}
        return {"problem": "spike-slab", "method": "egm-sp", "seed": seed, "metrics": score, "marginals": {"a": 1}}

    (tmp_path / "bayes.json").write_text(json.dumps([run(0, 0.1), run(1, 0.3)]), encoding="utf-8")
    made = pages(tmp_path, tmp_path)
    assert "| spike-slab | inclusion of a coefficient | 0.2000 ± 0.1414 | 0.0100 |" in made["results/bayes.md"]
    assert "metrics.inclusion_max.mean" in made["results/bayes.csv"].splitlines()[0]
    assert "marginals" not in made["results/bayes.csv"]
