"""What goes wrong while a store is written, said in bytes and paths."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gloader.core.units import format_bytes
from gloader.errors import StoreError, StoreWriteError
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NO_SPACE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
)  # errors of a disk, a quota or a limit that is full


@contextmanager
def write_errors(path: Path, doing: str, *, needed_bytes: int = 0, os_io: OsIO = REAL_OS) -> Iterator[None]:
    """Turn an `OSError` of the block into a `StoreWriteError` that says what was being done to ``path``.

    Raises
    ------
    StoreWriteError
        The block raised `OSError`; errors of ours pass unchanged.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        text = f"{doing} failed: {error.strerror or error}; nothing was committed"
        if error.errno in NO_SPACE:
            text += "; " + _space_text(path, needed_bytes, os_io)
        raise StoreWriteError(error.errno, text, str(path)) from error


def require_free_space(folder: Path, needed_bytes: int, *, os_io: OsIO = REAL_OS) -> None:
    """Check that the file system of ``folder`` has room for ``needed_bytes``.

    Raises
    ------
    StoreWriteError
        It has not (errno ENOSPC); the message says needed and free bytes.
    """
    free = free_bytes(folder, os_io=os_io)
    if free < needed_bytes:
        raise StoreWriteError(
            errno.ENOSPC,
            f"writing needs {needed_bytes} bytes ({format_bytes(needed_bytes)}), the file system has "
            f"{free} bytes ({format_bytes(free)}) free; free some space or choose another folder; nothing was written",
            str(folder),
        )


def free_bytes(folder: Path, *, os_io: OsIO = REAL_OS) -> int:
    """Return the bytes that an ordinary user may still write to the file system of ``folder``."""
    status = os_io.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _space_text(path: Path, needed_bytes: int, os_io: OsIO) -> str:
    try:
        free = free_bytes(path.parent, os_io=os_io)
    except OSError:
        return f"needed {needed_bytes} bytes; free some space or choose another folder"
    return f"needed {needed_bytes} bytes, {free} bytes are free; free some space or choose another folder"
