"""Every Python block of the documentation runs (if its extra is there), and pages agree with the code."""

import contextlib
import importlib
import inspect
import io
import re
import tomllib
from fnmatch import fnmatch

import pytest
import yaml

import egm
from egm.methods.registry import OPTION_GROUPS
from egm.util.extras import MissingPackage
from support.conditions import missing, package
from support.pages import DOCS, PAGES, ROOT, SHELL, TOGETHER, Block, blocks, files, name_of, prose, spans

LANGUAGES = {*SHELL, "python", "yaml", "text"}
NEEDS = re.compile(r"^# needs (\w+)$", re.MULTILINE)  # a package of `make test-adapters`
ALONE = [
    pytest.param(block, id=f"{name_of(page)}-{number}", marks=[pytest.mark.adapters] * bool(NEEDS.search(block)))
    for page in PAGES
    if page not in TOGETHER
    for number, block in enumerate(block.text for block in blocks(page) if block.language == "python")
]


def run(block, names):
    for name in NEEDS.findall(block):
        package(name)
    try:
        exec(compile(block, "documentation", "exec"), names)
    except MissingPackage as error:
        missing(error.name or "", str(error))


@pytest.mark.parametrize("block", ALONE)
def test_code_blocks_run(block):
    run(block, {})


@pytest.mark.slow
@pytest.mark.parametrize("page", TOGETHER, ids=name_of)
def test_blocks_that_follow_each_other_print_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in files(page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    names, printed, compared = {}, "", 0
    for block in blocks(page):
        assert not NEEDS.search(block.text), "`make test-adapters` runs single blocks alone"
        if block.language == "python":
            assert printed == "", f"the page does not show what is printed: {printed}"
            with contextlib.redirect_stdout(io.StringIO()) as out:
                run(block.text, names)
            printed = without_numbers(out.getvalue())
        elif block.language == "text":
            assert without_numbers(block.text) == printed
            printed, compared = "", compared + 1
    assert printed == ""
    assert compared > 0


def without_numbers(text):
    return " ".join(re.sub(r"-?\d+(\.\d+)?", "#", text).split())


def test_numbers_are_all_that_may_differ():
    assert without_numbers("a  -0.51 (12)\n") == without_numbers("a 3.0 (4)")
    assert without_numbers("ESS 0.5, no problem") != without_numbers("ESS 0.5, unreliable")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_of_a_kind_that_is_tested(page):
    """A fence that is not closed, or of another kind, would hide what it holds."""
    assert re.findall(r"^ *(?:```|~~~).*", prose(page), re.MULTILINE) == []
    assert [block.language for block in blocks(page) if not known(block)] == []
    for block in blocks(page):
        if block.language == "yaml":
            yaml.safe_load(block.text)


def known(block: Block) -> bool:
    return block.language in LANGUAGES or bool(re.fullmatch(r"\{[\w-]+\}", block.language))


def test_readme_shows_both_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make quickstart" in text
    assert "make test" in text


def test_theory_names_what_exists():
    named = [span for span in spans(DOCS / "theory.md") if re.fullmatch(r"egm\.[\w.]+", span)]
    assert len(named) > 70
    assert [name for name in named if find(name) is None] == []
    assert find("egm.paths.Path.no_such_thing") is None
    assert find("egm.no_such_module.thing") is None


def find(name: str):
    """Returns the object that a dotted name stands for, or None."""
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            thing = importlib.import_module(".".join(parts[:i]))
            for part in parts[i:]:
                thing = getattr(thing, part, None)
            return thing
    return None


def test_the_reference_has_every_public_name():
    page = (DOCS / "api" / "egm.md").read_text(encoding="utf-8")
    for name in egm.__all__:
        if inspect.ismodule(getattr(egm, name)):
            assert f"automodule:: egm.{name}\n" in (DOCS / "api" / f"{name}.md").read_text(encoding="utf-8")
        else:
            assert re.search(rf":: egm\.{name}$", page, re.MULTILINE), name
    options = (DOCS / "api" / "options.md").read_text(encoding="utf-8")
    for group in OPTION_GROUPS.values():
        assert f":: {group.__module__}.{group.__name__}\n" in options


def test_every_page_is_in_the_table_of_contents():
    """Sphinx warns of others, and `make docs` is not part of `make test`."""
    trees = [block.text for block in blocks(DOCS / "index.md") if block.language == "{toctree}"]
    listed = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    pages = [page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")]
    assert [page for page in pages if page != "index" and not any(fnmatch(page, entry) for entry in listed)] == []
    assert [entry for entry in listed if "*" not in entry and entry not in pages] == []


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert egm.__version__ == project["version"] == citation["version"]
    assert citation["authors"] == project["authors"]
    assert f"\n## {egm.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.example("exact_references")
def test_the_example_runs(run_example, capsys):
    run_example("exact_references", run_name="__main__")
    assert "log Z = 4.26997" in capsys.readouterr().out
