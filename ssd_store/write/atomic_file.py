"""Files that are either complete or not there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gloader.ssd_store.os_io import REAL_OS, OsIO, write_full

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


TEMPORARY_PATTERN = ".*.tmp"  # what a process that was killed may leave


def write_atomically(path: Path, content: bytes | memoryview, *, os_io: OsIO = REAL_OS) -> None:
    """Replace ``path`` by a file with ``content``, or leave it as it was; see `write_chunks_atomically`."""
    write_chunks_atomically(path, [content], os_io=os_io)


def write_chunks_atomically(
    path: Path, chunks: Iterable[bytes | memoryview], *, os_io: OsIO = REAL_OS
) -> None:
    """Replace ``path`` by a file that holds ``chunks`` one after the other, or leave it as it was.

    The bytes reach the device before the name does.

    Raises
    ------
    OSError
        Writing failed; no temporary file is left, nor when ``chunks`` raises.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = os_io.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            for chunk in chunks:
                write_full(fd, memoryview(chunk), os_io=os_io)
            os_io.fsync(fd)
        finally:
            os_io.close(fd)
        os_io.replace(temporary, path)
    except BaseException:
        if temporary.exists():
            os_io.unlink(temporary)
        raise
    os_io.fsync_dir(path.parent)
