"""The pages of the documentation taken apart: fenced blocks, the text around them, code in the text."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
#: pages whose Python blocks follow each other; elsewhere each runs by itself
TOGETHER = [DOCS / "tutorial.md"]
SHELL = ("", "sh", "bash")  # languages of blocks that hold commands
FENCE = re.compile(r"^( *)```([^\s`]*)[^\n`]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language ("" for none, "{…}" for a directive of MyST) and its text."""

    language: str
    text: str


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    return [Block(found[2], found[3]) for found in FENCE.finditer(page.read_text(encoding="utf-8"))]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def spans(page: Path) -> list[str]:
    """Code in the text of a page; it may go over the end of a line."""
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))]


def files(page: Path) -> dict[str, str]:
    """Files that a page shows: Python blocks whose first line is `# name.py`."""
    found = (re.match(r"# (\w+\.py)\n", block.text) for block in blocks(page) if block.language == "python")
    return {match[1]: match.string for match in found if match}
