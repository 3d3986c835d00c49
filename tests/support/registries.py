"""Names that a test registers are forgotten after it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from egm.config.registry import KINDS
from egm.methods.registry import METHODS, OPTION_GROUPS


@contextmanager
def kept() -> Iterator[None]:
    """Restores the registry at the end."""
    tables: list[dict[str, Any]] = [METHODS, OPTION_GROUPS, *(table for _, table in KINDS.values())]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.clear()
            table.update(entries)
