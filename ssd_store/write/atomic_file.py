"""Files that are either complete or not there: written beside their name, forced to the device, then renamed."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from gloader.ssd_store.os_io import REAL_OS, OsIO, write_full

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


TEMPORARY_PATTERN = ".*.tmp"  # what a process that was killed may leave


def write_atomically(path: Path, content: bytes | memoryview, *, os_io: OsIO = REAL_OS) -> None:
    """Replace ``path`` by a file with ``content``, or leave it as it was; see `write_chunks_atomically`.

    Parameters
    ----------
    path : the file, in a folder that exists
    content : all of its bytes

    Raises
    ------
    OSError
        As `write_chunks_atomically`.
    """
    write_chunks_atomically(path, [content], os_io=os_io)


def write_chunks_atomically(
    path: Path,
    chunks: Iterable[bytes | memoryview],
    *,
    temporary: Path | None = None,
    label: str = "file",
    os_io: OsIO = REAL_OS,
) -> None:
    """Replace ``path`` by a file that holds ``chunks`` one after the other, or leave it as it was.

    Parameters
    ----------
    path : the file, in a folder that exists
    chunks : its bytes, piece by piece
    temporary : its name until it is complete; defaults to one that this process alone uses
    label : first part of the names of the kill points, for crash tests

    Raises
    ------
    OSError
        Writing failed; no temporary file is left, nor when ``chunks`` raises.
    """
    draft = temporary or path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = os_io.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            for chunk in chunks:
                write_full(fd, memoryview(chunk), os_io=os_io)
            os_io.kill_point(f"{label}.after_write")
            # The bytes reach the device before the name does, or a power loss could leave an empty file under it.
            os_io.fsync(fd)
            os_io.kill_point(f"{label}.after_fsync")
        finally:
            os_io.close(fd)
        os_io.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the error that brought us here says more
            os_io.unlink(draft)
        raise
    os_io.kill_point(f"{label}.after_rename")
    os_io.fsync_dir(path.parent)
    os_io.kill_point(f"{label}.after_folder_fsync")
