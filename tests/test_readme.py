"""The README is short, its example has ten lines that assert their result, and its picture can be made again."""

import re
from pathlib import Path

import pytest
import yaml

from egm.reproduce.summary import BEGIN

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PICTURE = "docs/picture.png"
MOST_WORDS = 750


def test_the_ten_lines_assert_their_ess():
    """test_documentation.py runs the lines, and fails where they do."""
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) == 10
    assert "\nassert draws.ess >= 0.7" in block


def test_it_is_short_and_its_picture_light():
    assert len(TEXT.split()) <= MOST_WORDS
    assert f"]({PICTURE})" in TEXT
    assert f"python examples/picture.py {PICTURE}" in TEXT
    assert (ROOT / PICTURE).stat().st_size < 200_000


def test_its_first_paragraph_names_the_paper():
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"][0]
    first = " ".join(TEXT.split("\n\n")[1].split())
    assert f"[{paper['title']}]({paper['url']})" in first
    assert f"NeurIPS {paper['year']}" in first


def test_terms_of_its_results_are_defined_above_them():
    before, table = TEXT.split(BEGIN)
    columns = next(line for line in table.splitlines() if line.startswith("| ")).strip("| ").lower().split(" | ")
    defined = [term.lower() for term in re.findall(r"\*\*([^*]+)\*\*", before)]
    assert {"e-w1", "floor", "ess", "energy calls"} <= {*columns} & {*defined}


@pytest.mark.slow
@pytest.mark.example("picture")
def test_the_picture_can_be_made(run_example, capsys):
    pytest.importorskip("matplotlib")
    script = run_example("picture")
    figure = script["picture"](200, steps=2, refresh=64, batch_size=16, sample_steps=8, refresh_steps=8, progress=False)
    assert len(figure.axes) == 3 * len(script["PANELS"])
    assert all(axis.collections or axis.images for axis in figure.axes)
    assert capsys.readouterr().out.count("ESS") == len(script["PANELS"])
