"""Names that a test registers are forgotten after it."""

from collections.abc import Iterator
from contextlib import contextmanager

from egm.config import registry


@contextmanager
def kept() -> Iterator[None]:
    """The registry is afterwards what it was before."""
    tables = [registry.METHODS, registry.OPTION_GROUPS, *(table for _, table in registry.KINDS.values())]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.clear()
            table.update(entries)
