"""What goes wrong in a spill folder, said in bytes and paths."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gloader.core.units import format_bytes
from gloader.errors import SpillError, StoreError
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.write.errors import NO_SPACE, free_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ADVICE = "free some space, or set GLOADER_SPILL_DIR to a folder on a larger disk"


@contextmanager
def spill_errors(path: Path, doing: str, *, needed_bytes: int = 0, os_io: OsIO = REAL_OS) -> Iterator[None]:
    """Turn an `OSError` of the block into a `SpillError` that says what was being done to ``path``.

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
        if error.errno in NO_SPACE:
            text += f"; {_space_text(path.parent, needed_bytes, os_io)}; {_ADVICE}"
        raise SpillError(error.errno or errno.EIO, text, str(path)) from error


def require_free_disk(folder: Path, needed_bytes: int, doing: str, *, os_io: OsIO = REAL_OS) -> None:
    """Check that the file system of ``folder`` has room for ``needed_bytes``.

    Raises
    ------
    SpillError
        It has not (errno ENOSPC); the message says needed and free bytes.
    """
    if free_bytes(folder, os_io=os_io) < needed_bytes:
        text = f"{doing}: {_space_text(folder, needed_bytes, os_io)}; {_ADVICE}; nothing was written"
        raise SpillError(errno.ENOSPC, text, str(folder))


def _space_text(folder: Path, needed_bytes: int, os_io: OsIO) -> str:
    needed = f"needed {needed_bytes} bytes ({format_bytes(needed_bytes)})"
    try:
        free = free_bytes(folder, os_io=os_io)
    except OSError:
        return needed
    return f"{needed}, {free} bytes ({format_bytes(free)}) are free"
