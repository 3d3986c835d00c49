"""Checks of documented commands that are not run: one function for each program, which takes the command's words."""

import ast
import contextlib
import functools
import importlib.util
import io
import re
import runpy
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from egm.cli.main import COMMANDS
from support.pages import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def is_make_target(words: list[str]) -> None:
    (target,) = (word for word in words if "=" not in word)
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), target


def installs_what_there_is(words: list[str]) -> None:
    """Asserts that `pip install` installs this project, with extras that exist."""
    assert words[0] == "install", words
    for word in (word for word in words[1:] if not word.startswith("-")):
        match = re.fullmatch(r"(?:\.|egm)(?:\[([\w,]+)\])?", word)
        assert match, f"pip install {word}: not this project"
        assert set(match[1].split(",") if match[1] else ()) <= EXTRAS.keys(), word


def runs_a_script(words: list[str]) -> None:
    """Asserts that the options of `python FILE` exist, or the module and the files of `python -m MODULE`."""
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]), words
        assert [word for word in words[2:] if "/" in word and not (ROOT / word).exists()] == []
        return
    script, options = ROOT / words[0], [word.partition("=")[0] for word in words if word.startswith("--")]
    compile(script.read_text(encoding="utf-8"), words[0], "exec")
    if script.parent.name == "examples":
        assert runs_in_a_test(script), f"no test runs {script}"
    if options:
        assert set(options) <= set(re.findall(r"--[\w-]+", help_of(script))), words


def runs_in_a_test(script: Path) -> bool:
    """Whether a test is marked as one that runs the example; `conftest.py` checks that it does."""
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / "tests").rglob("test_*.py"))
    calls = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    marks = (call for call in calls if ast.unparse(call.func) == "pytest.mark.example")
    return any(ast.literal_eval(mark.args[0]) == script.stem for mark in marks)


def help_of(script: Path) -> str:
    """Returns the help of a script; not for scripts that take no options, which would run."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.setattr(sys, "argv", [str(script), "--help"])
        patch.setattr(sys, "path", [str(script.parent), *sys.path])
        with pytest.raises(SystemExit, match="0"):
            runpy.run_path(str(script), run_name="__main__")
    return said.getvalue()


def comes_with_an_extra(words: list[str], *, program: str, extra: str) -> None:
    assert any(requirement.startswith(program) for requirement in EXTRAS[extra])


def has_the_options(words: list[str]) -> None:
    """A command of `egm` in the text, which may have placeholders: the command exists, and so do its options."""
    if words[0] in ("--help", "--version"):
        return
    module, _, function = COMMANDS[words[0]][0].partition(":")
    known = getattr(import_module(module), f"{function}_parser")()._option_string_actions
    for option in (word.partition("=")[0] for word in words if word.startswith("-")):
        assert option in known or option.startswith(("--target", "--paths.", "--processes.")), (words[0], option)


RULES = {
    "egm": has_the_options,  # and those in blocks are run
    "make": is_make_target,
    "pip": installs_what_there_is,
    "python": runs_a_script,
    "tensorboard": functools.partial(comes_with_an_extra, program="tensorboard", extra="log"),
}
