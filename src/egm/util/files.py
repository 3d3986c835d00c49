"""Atomic writes: to a temporary file in the same folder, then renamed."""

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
    """Opens a stream whose content replaces `file` at the end, unless an exception is raised before.

    `sync` waits for the disk, so that the content also survives a power failure; this takes some milliseconds.
    """
    with replacing_path(file, sync=sync) as temporary, temporary.open("xb") as stream:
        yield stream


@contextmanager
def replacing_path(file: Path, *, sync: bool = True) -> Iterator[Path]:
    """Like `replacing`, but yields the path of the temporary file, for writers that open a file by its name."""
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
    """Writes a record as JSON; raises `ValueError` on NaN and infinity."""
    content = json.dumps(record, indent=indent, allow_nan=False) + "\n"
    with replacing(file, sync=sync) as stream:
        stream.write(content.encode())
