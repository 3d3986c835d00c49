"""Builds HTML that is safe by construction: text is escaped unless it is `Html`, which only these functions return."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import NamedTuple

Grid = tuple[list[str], list[list[str]]]
"""Columns and rows of text."""

VOID = ("img", "meta")  # elements without an end tag


class Html(str):
    """Markup, which is put into a page without escaping."""

    __slots__ = ()


class Number(NamedTuple):
    """A cell of a table that is sorted by its value instead of its text."""

    text: str
    value: float | None


Cell = str | Number


def element(name: str, /, *children: str | None, **attributes: str | int | None) -> Html:
    """Return an element; None is left out, `class_` stands for class, and other underscores stand for hyphens.

    >>> element("p", "a < b", element("b", "c"), class_="note", data_sort=1)
    '<p class="note" data-sort="1">a &lt; b<b>c</b></p>'
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    start = "".join(f' {key}="{html.escape(str(value))}"' for key, value in given.items())
    return Html(f"<{name}{start}>" if name in VOID else f"<{name}{start}>{joined(children)}</{name}>")


def joined(parts: Iterable[str | None]) -> Html:
    """Join parts; texts among them are escaped."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts if part is not None))


def prose(text: str) -> Html:
    """Return text in which the parts between backticks are code.

    >>> prose("call `f(a < b)`")
    'call <code>f(a &lt; b)</code>'
    """
    return joined(element("code", part) if i % 2 else part for i, part in enumerate(text.split("`")))


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, label: str) -> Html:
    """Return a table that scrolls if it is wider than the page, and that `page.js` makes sortable.

    Args:
        columns: headings.
        rows: cells; the first of each row is its heading.
        label: description of the table for screen readers.
    """
    head = element("tr", *(element("th", column, scope="col") for column in columns))
    body = (element("tr", *(_cell(cell, heading=i == 0) for i, cell in enumerate(row))) for row in rows)
    whole = element("table", element("thead", head), element("tbody", *body))
    return element("div", whole, class_="scroll", role="region", aria_label=label, tabindex=0)


def _cell(cell: Cell, *, heading: bool) -> Html:
    text, value = cell if isinstance(cell, Number) else (cell, None)
    sort = None if value is None else repr(float(value))
    return element("th", text, scope="row", data_sort=sort) if heading else element("td", text, data_sort=sort)


def page(title: str, *parts: str | None) -> Html:
    """Return a page that needs no other file; its policy forbids all requests, and all scripts except `page.js`."""
    style, script = (
        " ".join((resources.files("egm.report") / name).read_text(encoding="utf-8").split())
        for name in ("page.css", "page.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=f"{policy}; base-uri 'none'; form-action 'none'"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(style)),
    )
    body = element("body", element("main", *parts), element("script", Html(script)))
    return Html(f"<!doctype html>\n{element('html', head, body, lang='en')}\n")


def count(value: float | None) -> str:
    """Return a number of calls or steps as text.

    >>> count(280), count(53444682), count(None)
    ('280', '53.4 M', '')
    """
    if value is None:
        return ""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= size:
            return f"{value / (1e3 if unit == ' k' else size):.3g}{unit}"
    return f"{value:.3g}" if value % 1 else f"{value:.0f}"
