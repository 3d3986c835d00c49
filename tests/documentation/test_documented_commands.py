"""Every command that the documentation shows does what it says.

Commands of a page run in order in one folder, which begins with what the page takes for granted: `my_module.py`, runs
that it names, files that it shows. `egm` runs as written, but shortened: a thousandth of the steps and seconds, small
networks, few draws, the CPU; and `egm reproduce` only says what it would do. Other commands are checked without being
run (`command_rules.py`). A command that no rule covers fails.
"""

import re
import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from egm.cli import main
from egm.cli.main import COMMANDS
from egm.cli.parsing import peek, without
from egm.methods.registry import METHODS
from support import command_rules
from support.cli_cases import OWN, TINY, TINY_SP
from support.command_rules import RULES
from support.pages import DOCS, PAGES, ROOT, SHELL, blocks, files, name_of, prose, spans

LIMITS = ("--steps", "--time_limit", "--energy_calls")
NOT_INSTALLED = re.compile(r"^egm: .* pip install 'egm\[\w+\]'$", re.MULTILINE)


class Uncovered(AssertionError):
    """A command that no rule covers."""


def commands(page) -> list[list[str]]:
    """The words of every command in the blocks of a page; `a && b` are two."""
    found = []
    for block in blocks(page):
        if block.language not in SHELL:
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>()")
            lexer.commenters, lexer.whitespace_split = "#", True
            words = list(lexer)
            while "&&" in words:
                found.append(words[: words.index("&&")])
                words = words[words.index("&&") + 1 :]
            found += [words] if words else []
    return found


class Terminal:
    """Where the commands of a page run, one after the other.

    Attributes:
        home: folder of the small runs, which all pages share.
        missing: what commands said that need an extra which is not installed.
    """

    def __init__(self, home: Path, capsys: pytest.CaptureFixture) -> None:
        self.home, self.missing = home, []
        self._capsys, self._provided = capsys, set()

    def execute(self, words: list[str]) -> None:
        """Run or prove one command in the current folder."""
        if words[-2:-1] == [">"]:
            words = words[:-2]
        name = words[0].removeprefix(".venv/bin/")
        if name not in RULES or any(re.fullmatch(r"[&|;<>()]+", word) for word in words):
            raise Uncovered(f"no rule covers the command {shlex.join(words)}")
        if name != "egm":
            RULES[name](words[1:])
            return
        self._provide(words[1:])
        argv = shortened(words[1:])
        self._capsys.readouterr()
        code = main(argv)
        said = self._capsys.readouterr()
        if code == 2 and (match := NOT_INSTALLED.search(said.err)):
            self.missing.append(match[0])
            return
        assert code == 0, f"{shlex.join(words)}, run as egm {shlex.join(argv)}: {code}, {said.out}{said.err}"

    def _provide(self, argv: list[str]) -> None:
        """Provide a small run where a command reads one that the page does not make; remove it where it makes one."""
        for before, word in pairwise(argv):
            if before == "--out" and word in self._provided:
                shutil.rmtree(word)
                self._provided.remove(word)
            elif before != "--out" and word.startswith("runs/") and not Path(word).exists():
                shutil.copytree(self._small_run(own="--target" in argv), word)
                self._provided.add(word)

    def _small_run(self, *, own: bool) -> Path:
        """A briefly trained run, on a user-defined energy or a built-in one."""
        folder = self.home / ("own" if own else "built-in")
        target = ["--target", "my_module:make_target"] if own else ["gbrbm"]
        if not folder.exists():
            assert main(["train", *target, *TINY_SP, "--steps", "2", "--evaluate", "false", "--out", str(folder)]) == 0
        return folder


# ---------------------------------------------------------------------- what is run


def shortened(argv: list[str]) -> list[str]:
    """A command of `egm` that takes a moment."""
    command, rest = argv[0], argv[1:]
    if peek(rest, "--device") is not None:
        rest = given(rest, "--device", "cpu")
    if command == "train":
        rest = shortened_training(rest)
    elif command == "evaluate":
        for name, value in (("--n", 50), ("--repeats", 2), ("--floor_pairs", 2)):
            rest = given(rest, name, value)
    elif command == "report":
        rest = given(rest, "--n", 100)
    elif command == "reproduce" and rest[0] == "page":
        shutil.copytree(ROOT / "results", "results", dirs_exist_ok=True)
    elif command == "reproduce":  # figures, which tests/reproduce draws, have no dry run
        what = "all" if rest[0] == "figures" else rest[0]
        rest = [what, *(word for word in rest[1:] if word != "--dry_run"), "--dry_run"]
    return [command, *rest]


def shortened_training(argv: list[str]) -> list[str]:
    for name in LIMITS:
        if value := peek(argv, name):
            argv = given(argv, name, max(1, int(value) // 1000) if name != "--time_limit" else float(value) / 1000)
    if peek(argv, "--resume") is not None:  # all other options are those of the run
        return [*argv, "--evaluate", "false", "--progress", "false"]
    method = peek(argv, "--method") or "egm-sp"
    small = TINY_SP if method == "egm-sp" else TINY
    if not METHODS[method].trains:
        small = ["--warmup", "2", "--progress", "false", "--device", "cpu"]
    if not any(peek(argv, name) for name in LIMITS):
        small = [*small, "--steps", "2"]
    for name, value in zip(small[::2], small[1::2], strict=True):
        argv = argv if peek(argv, name) else [*argv, name, value]
    return given(argv, "--evaluate", "false")


def given(argv: list[str], name: str, value: object) -> list[str]:
    return [*without(argv, name), name, str(value)]


# ---------------------------------------------------------------------- the tests


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("documented")


@pytest.fixture
def terminal(tmp_path, monkeypatch, capsys, home):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield Terminal(home, capsys)
    for name in sys.modules.keys() - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == tmp_path:
            del sys.modules[name]  # another page has another my_module


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name_of)
def test_commands_in_blocks_run(page, tmp_path, terminal):
    for name, text in {"my_module.py": OWN, **shown_files(), **files(page)}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for words in commands(page):
        terminal.execute(words)
    if terminal.missing:
        pytest.skip(f"the others ran; {'; '.join(sorted(set(terminal.missing)))}")


def shown_files() -> dict[str, str]:
    """The recipe and the table that pages show, under the names that commands use."""
    shown = [block.text for page in PAGES for block in blocks(page) if block.language == "yaml"]
    kinds = {"target": "my_recipe.yaml", "rows": "my_table.yaml"}
    return {name: text for key, name in kinds.items() for text in shown if key in yaml.safe_load(text)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_the_text_exist(page):
    for span in spans(page):
        command = span.removeprefix(".venv/bin/")
        if re.match(rf"(?:{'|'.join(RULES)}) [a-z.'-]", command):
            name, *words = shlex.split(command)
            RULES[name](words)
    hidden = re.findall(rf"^(?: {{4,}}|\t)(?:{'|'.join(RULES)}) .*", prose(page), re.MULTILINE)
    assert hidden == [], "commands belong into a fenced block, where they are tested"


@pytest.mark.parametrize(
    "line",
    [
        "rm -rf runs",
        "egm list targets | head",
        "curl https://example.org",
        "make no-such-target",
        "pip install '.[nothing]'",
        "pip install something-else",
        "python benchmarks/no_such_script.py",
        "python benchmarks/speed.py --no_such_option",
        "python examples/no_such_example.py",
        "python -m no_such_module",
        "egm train ising --target.size 3 --no_such_option 1",
        "egm train ising",
        "egm evaluate no/such/run",
        "egm reproduce table1 --only no-such-row",
    ],
)
def test_wrong_commands_are_found(line, tmp_path, terminal):
    page = tmp_path / "page.md"
    page.write_text(f"```\n{line}\n```\n", encoding="utf-8")
    (words,) = commands(page)
    with pytest.raises((AssertionError, OSError)):
        terminal.execute(words)


def test_an_example_that_no_test_runs_is_found(tmp_path, monkeypatch, terminal):
    """The name in words, in other names and in other marks is not enough."""
    for folder in ("examples", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "examples" / "lonely.py").write_text("", encoding="utf-8")
    test, mark = tmp_path / "tests" / "test_it.py", "pytest.mark.example"
    monkeypatch.setattr(command_rules, "ROOT", tmp_path)
    words = ["python", "examples/lonely.py"]
    for text in ('run("examples", "lonely")', f'{mark}("lonely_hearts")', f'# {mark}("lonely")', f'"{mark}(lonely)"'):
        test.write_text(text, encoding="utf-8")
        with pytest.raises(AssertionError, match="no test runs"):
            terminal.execute(words)
    test.write_text(f'@{mark}("lonely")\ndef test_it(run_example):\n    run_example("lonely")\n', encoding="utf-8")
    terminal.execute(words)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="a mark is not enough: the example must run")
@pytest.mark.example("lonely")
def test_a_test_that_does_not_run_the_example_of_its_mark_fails():
    pass


def test_pages_are_read_as_meant(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```\na b \\\n  'c d'  # e\nf && g > ~/h\n```\n```python\ni\n```\n```sh\nj\n```\n", encoding="utf-8"
    )
    assert commands(page) == [["a", "b", "c d"], ["f"], ["g", ">", "~/h"], ["j"]]
    ran = [words for page in PAGES for words in commands(page)]
    assert {words[1] for words in ran if words[0].endswith("egm")} == set(COMMANDS)
    assert set(shown_files()) == {"my_recipe.yaml", "my_table.yaml"}
    assert files(DOCS / "tutorial.md").keys() == {"my_energy.py"}
