"""Settings of Sphinx: pages in Markdown (MyST), the reference from docstrings; built by `make docs`."""

import re
from importlib.metadata import version as installed
from typing import Any

project = "egm"
author = project_copyright = "The egm developers"
version = release = installed("egm")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
html_theme = "furo"
html_title = f"egm {release}"
highlight_language = "text"  # of blocks without a language
smartquotes = False  # would make dashes of the options of commands

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # so that links such as weights.md#resampling-along-the-path lead somewhere

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes as a list, not as entries beside those of autodoc
napoleon_custom_sections = [("Args of a call", "params_style")]

SECTIONS = ("Args:", "Args of a call:", "Attributes:", "Returns:", "Raises:")
MARKS = re.compile(r"(?<!\w)(\*\w[^*\[\]]*[\w.]\*)|[*|\\]")  # *emphasis* stays


def to_restructured(*event: Any) -> None:
    """Docstrings are plain text with `code` in backticks; Sphinx reads reStructuredText, in which * and | are marks.

    Formulas (indented, after an empty line) and tables become literal blocks, examples are left alone. The last part of
    the event, the lines, is changed in place.
    """
    lines: list[str] = event[-1]
    found: list[str] = []
    kind = "text"
    for line in lines:
        if not line.strip():
            kind = kind if kind in ("section", "literal") else "text"
        elif line in SECTIONS:
            kind = "section"
        elif line.startswith(">>>"):
            kind = "example"
        elif kind != "example" and line.startswith("|" if kind == "section" else ("|", "    ")):
            if kind != "literal" and not (found and found[-1]):
                found += ["::", ""]
                kind = "literal"
        elif kind != "example" and not line.startswith(" "):
            kind = "text"
        indent = "    " if kind == "literal" and line.startswith("|") else ""
        found.append(indent + (line if kind in ("literal", "example") else escaped(line)))
    lines[:] = found


def escaped(line: str) -> str:
    """A line with code in two backticks, and with plain characters where reStructuredText would see marks."""
    parts = re.split(r"`([^`]+)`", line)  # every second one is code
    marked = (f"``{part}``\\ " if i % 2 else MARKS.sub(_escape, part) for i, part in enumerate(parts))
    return "".join(marked).removesuffix("\\ ")


def _escape(match: re.Match[str]) -> str:
    return match[1] or f"\\{match[0]}"


def setup(app: Any) -> None:
    """Called by Sphinx; the priority puts it before napoleon, which reads the sections."""
    app.connect("autodoc-process-docstring", to_restructured, priority=400)
