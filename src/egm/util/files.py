"""Files that are there as a whole or not at all: written beside their place, then renamed."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def replacing(file: Path, *, sync: bool = True) -> Iterator[IO[bytes]]:
    """A stream whose content takes the place of `file` at the end, unless something is raised before.

    `sync` waits for the disk, so that it survives a power failure too; some milliseconds.
    """
    with replacing_path(file, sync=sync) as temporary, temporary.open("xb") as stream:
        yield stream


@contextmanager
def replacing_path(file: Path, *, sync: bool = True) -> Iterator[Path]:
    """The same for those who open a file by its name: a name beside it that nothing has yet."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        if sync:
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(file: Path, record: Any, *, indent: int | None = 1, sync: bool = True) -> None:
    """Write a record that holds no NaN and no infinity."""
    content = json.dumps(record, indent=indent, allow_nan=False) + "\n"
    with replacing(file, sync=sync) as stream:
        stream.write(content.encode())
