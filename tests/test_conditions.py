"""A missing package skips a test, or fails it where `EGM_NEEDED` names it; the Makefile installs what it names."""

import re
import sys

import pytest
from _pytest.outcomes import Failed, Skipped

from support.command_rules import EXTRAS
from support.conditions import missing, package
from support.pages import PAGES, ROOT, blocks

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("asked_for", "outcome"), [(None, Skipped), ("", Skipped), ("jax", Skipped), ("jax pyro", Failed), ("pyro", Failed)]
)
def test_only_what_was_asked_for_fails(monkeypatch, asked_for, outcome):
    monkeypatch.delenv("EGM_NEEDED", raising=False)
    if asked_for is not None:
        monkeypatch.setenv("EGM_NEEDED", asked_for)
    monkeypatch.setitem(sys.modules, "pyro", None)
    with pytest.raises(outcome, match=r"there is no pyro here; pip install 'egm\[pyro\]'"):
        package("pyro")
    with pytest.raises(Skipped, match="there is no browser here; install one"):
        missing("browser", "install one")


def test_a_package_that_is_here_but_broken_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "broken_package.py").write_text("import no_such_module\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        package("broken_package")


def test_what_blocks_of_the_documentation_need_is_installed_for_them():
    (named,) = re.findall(r"EGM_NEEDED='([\w ]+)'.* -m adapters ", MAKEFILE)
    (extras,) = re.findall(r"\.venv/adapters/bin/python -m pip install .*'\.\[([\w,]+)\]'", MAKEFILE)
    assert set(extras.split(",")) == set(named.split()) <= EXTRAS.keys()
    text = "".join(block.text for page in PAGES for block in blocks(page))
    assert set(re.findall(r"^# needs (\w+)$", text, re.MULTILINE)) == set(named.split())
