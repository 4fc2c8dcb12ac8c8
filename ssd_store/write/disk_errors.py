"""Errors of the disk while stores and spill files are written, said in bytes and paths."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gloader.core.units import format_bytes
from gloader.errors import SpillError, StoreError, StoreWriteError
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A full disk, a full quota, a limit on the size of files: more space helps, so the message says how much.
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_SPILL_ADVICE = "free some space, or set GLOADER_SPILL_DIR to a folder on a larger disk"


@contextmanager
def write_errors(path: Path, doing: str, *, needed_bytes: int = 0, os_io: OsIO = REAL_OS) -> Iterator[None]:
    """Turn an `OSError` of the block into a `StoreWriteError` that says what was being done to ``path``.

    Parameters
    ----------
    path : the file or folder that is written
    doing : what the block does, as the message begins: "writing", "committing"
    needed_bytes : what all of it takes, for the message if the disk is full

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
        text = f"{doing} failed: {error.strerror or error}; nothing was written"
        if error.errno in _NO_SPACE:
            text += "; " + _store_space_text(path, needed_bytes, os_io)
        raise StoreWriteError(error.errno, text, str(path)) from error


@contextmanager
def spill_errors(path: Path, doing: str, *, needed_bytes: int = 0, os_io: OsIO = REAL_OS) -> Iterator[None]:
    """Turn an `OSError` of the block into a `SpillError` that says what was being done to ``path``.

    Parameters
    ----------
    path : the file or folder of the spill
    doing : what the block does, as the message begins
    needed_bytes : what all of it takes, for the message if the disk is full

    Raises
    ------
    SpillError
        The block raised `OSError`; errors of ours pass unchanged.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        text = f"{doing} failed: {error.strerror or error}"
        if error.errno in _NO_SPACE:
            text += f"; {_spill_space_text(path.parent, needed_bytes, os_io)}; {_SPILL_ADVICE}"
        raise SpillError(error.errno or errno.EIO, text, str(path)) from error


def require_free_space(folder: Path, needed_bytes: int, *, os_io: OsIO = REAL_OS) -> None:
    """Check that the file system of ``folder`` has room for a store of ``needed_bytes``.

    Parameters
    ----------
    folder : an existing folder
    needed_bytes : what is about to be written

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


def require_spill_space(folder: Path, needed_bytes: int, doing: str, *, os_io: OsIO = REAL_OS) -> None:
    """Check that the file system of the spill folder ``folder`` has room for ``needed_bytes``.

    Parameters
    ----------
    folder : an existing folder
    needed_bytes : what is about to be written
    doing : what does not fit, as the message begins

    Raises
    ------
    SpillError
        It has not (errno ENOSPC); the message says needed and free bytes.
    """
    if free_bytes(folder, os_io=os_io) < needed_bytes:
        text = (
            f"{doing}: {_spill_space_text(folder, needed_bytes, os_io)}; {_SPILL_ADVICE}; nothing was written"
        )
        raise SpillError(errno.ENOSPC, text, str(folder))


def free_bytes(folder: Path, *, os_io: OsIO = REAL_OS) -> int:
    """Return the bytes that an ordinary user may still write to the file system of ``folder``."""
    status = os_io.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _store_space_text(path: Path, needed_bytes: int, os_io: OsIO) -> str:
    try:
        free = free_bytes(path.parent, os_io=os_io)
    except OSError:  # the disk fails altogether: the first error is the one to report
        return f"needed {needed_bytes} bytes; free some space or choose another folder"
    return f"needed {needed_bytes} bytes, {free} bytes are free; free some space or choose another folder"


def _spill_space_text(folder: Path, needed_bytes: int, os_io: OsIO) -> str:
    needed = f"needed {needed_bytes} bytes ({format_bytes(needed_bytes)})"
    try:
        free = free_bytes(folder, os_io=os_io)
    except OSError:
        return needed
    return f"{needed}, {free} bytes ({format_bytes(free)}) are free"
