"""Links between the pages of the documentation lead to files and headings that exist."""

import re
import unicodedata

import pytest

from support.pages import DOCS, PAGES, name_of, prose

ELSEWHERE = re.compile(r"[a-z]+:")  # https:, mailto:
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]: +(\S+)", re.MULTILINE)


def links(page) -> list[str]:
    """Where a page links to in this repository."""
    text = re.sub(r"`[^`]*`", "", prose(page))
    found = [match[1] or match[2] for match in LINK.finditer(text)]
    return [link for link in found if not ELSEWHERE.match(link)]


def anchors(page) -> set[str]:
    """Names of a page's headings: lower case, hyphens for spaces, no punctuation; a number where a name repeats."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", prose(page), re.MULTILINE):
        letters = (c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LNM")
        slug = name = "".join(letters).replace(" ", "-")
        number = 0
        while name in found:
            number += 1
            name = f"{slug}-{number}"
        found.add(name)
    return found


def problem(page, link: str) -> str | None:
    """What is wrong with a link, or None."""
    path, _, anchor = link.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return f"{link}: there is no {file}"
    if DOCS in page.parents and file.suffix == ".md" and DOCS not in file.parents:
        return f"{link}: it leaves docs/, where the site ends"
    if anchor and (file.suffix != ".md" or anchor not in anchors(file)):
        return f"{link}: {file.name} has no heading of that name, but {sorted(anchors(file))}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    assert [found for link in links(page) if (found := problem(page, link))] == []


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "a.md"
    page.write_text(
        "# A page: its *name*\n\n[x](#a-page-its-name) [x](b.md) ![x](c.svg) [x](#another) `[x](d.md)`\n\n"
        '[x](https://example.org) [x](a.md "with a title") [x][y]\n\n[y]: e.md\n\n```\n[x](f.md)\n```\n',
        encoding="utf-8",
    )
    assert links(page) == ["#a-page-its-name", "b.md", "c.svg", "#another", "a.md", "e.md"]
    assert [link for link in links(page) if problem(page, link)] == ["b.md", "c.svg", "#another", "e.md"]


def test_there_are_links():
    assert sum(len(links(page)) for page in PAGES) > 30
    assert {"weights.md#resampling-along-the-path"} <= set(links(DOCS / "faq.md"))
