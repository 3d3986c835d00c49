"""Every Python block of the README and the documentation runs (if its extra is there), and the example does."""

import re
import runpy
from pathlib import Path

import pytest

from egm.extras import MissingPackage

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_blocks_run(block):
    for package in re.findall(r"^# needs (\w+)$", block, re.MULTILINE):
        pytest.importorskip(package, reason=f"this block needs {package}: pip install 'egm[{package}]'")
    try:
        exec(compile(block, "documentation", "exec"), {})
    except MissingPackage as missing:
        pytest.skip(str(missing))


def test_readme_shows_both_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in ("quickstart", "test"):
        assert f"make {name}" in text
        assert re.search(rf"^{name}:", makefile, re.MULTILINE)


@pytest.mark.slow
def test_the_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "exact_references.py"), run_name="__main__")
    assert "log Z = 4.26997" in capsys.readouterr().out
