"""Packages import each other one way, and their number and the length of functions are bounded."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest

import egm

SOURCE = Path(egm.__file__).parent
#: packages and top-level modules; each may import those before it
ORDER = [
    *("util", "spaces", "draws", "mcmc", "paths", "targets", "processes", "simulation", "networks", "estimation"),
    *("runs", "network_sampler", "sampler", "metrics", "evaluation", "config", "train", "methods", "baselines"),
    *("api", "recipes", "report", "reproduce", "adapters", "checking", "__init__", "cli", "__main__"),
]
MOST_PACKAGES, MOST_MODULES, MOST_LINES = 24, 9, 60


def place(file: Path) -> str:
    """Returns the package of a file, or the name of a top-level module."""
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(tree: ast.AST, package: str = "egm") -> set[str]:
    """The places of `egm` that a module of a package imports, wherever the statement stands."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*parts, *([node.module] if node.module else [])])
            found |= _places(module) if module != "egm" else {_member(alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                found |= _places(alias.name)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            for argument in node.args:
                found |= _places(str(argument.value)) if isinstance(argument, ast.Constant) else set()
    return found


def _places(module: str) -> set[str]:
    parts = module.split(".")
    return {parts[1] if len(parts) > 1 else "__init__"} if parts[0] == "egm" else set()


def _member(name: str) -> str:
    return name if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").exists() else "__init__"


def edges(files) -> list[str]:
    """Returns the imports against the order."""
    wrong = []
    for name, tree in files:
        for other in sorted(imported(tree, ".".join(["egm", *Path(name).parts[:-1]]))):
            if ORDER.index(other) > ORDER.index(place(SOURCE / name)):
                wrong.append(f"{name} imports egm.{other}")
    return wrong


def test_imports_run_one_way():
    files = [(str(file.relative_to(SOURCE)), ast.parse(file.read_text(encoding="utf-8"))) for file in modules()]
    assert edges(files) == []


def test_an_import_against_the_order_is_found():
    tree = ast.parse(
        "def late():\n    from egm.methods.egm import EGM\n    import egm.cli.main\n    from egm import api\n"
        "import egm\nfrom ..baselines import pis\nimportlib.import_module('egm.report.write')\nfrom . import gaussian\n"
    )
    assert edges([("paths/base.py", tree)]) == [
        "paths/base.py imports egm.__init__",
        "paths/base.py imports egm.api",
        "paths/base.py imports egm.baselines",
        "paths/base.py imports egm.cli",
        "paths/base.py imports egm.methods",
        "paths/base.py imports egm.report",
    ]


def test_every_place_has_its_turn():
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    tops = {path.stem for path in SOURCE.glob("*.py")}
    assert packages | tops == set(ORDER)
    assert len(packages) <= MOST_PACKAGES
    assert len(tops) <= MOST_MODULES


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, text: list[str]) -> int:
    """Counts the lines of a function without its docstring, comments and blank lines."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    skipped = range(first.lineno, (first.end_lineno or first.lineno) + 1) if documented else range(0)
    lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    kept = (text[number - 1].strip() for number in lines if number not in skipped)
    return sum(bool(line) and not line.startswith("#") for line in kept)


@pytest.mark.parametrize("file", modules(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_functions_fit_a_screen(file):
    text = file.read_text(encoding="utf-8")
    long = {f.name: n for f in functions(ast.parse(text)) if (n := code_lines(f, text.splitlines())) > MOST_LINES}
    assert long == {}


def test_lines_of_code_are_counted():
    text = 'def f(a):\n    """What\n    it does."""\n    # why\n\n    b = a\n    return b\n'
    assert [code_lines(f, str(text).splitlines()) for f in functions(ast.parse(text))] == [3]


def test_the_order_has_no_name_twice():
    assert all(a < b for a, b in pairwise(sorted(ORDER)))
