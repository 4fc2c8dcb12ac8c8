"""A file that is open for reading, and is closed even if a signal arrives while it is opened or closed."""

from __future__ import annotations

import os
from contextlib import suppress
from io import FileIO
from typing import TYPE_CHECKING

from gloader.core.signals import uninterrupted
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath, open_regular

if TYPE_CHECKING:
    from types import TracebackType


class Descriptor:
    """The descriptor of an existing regular file. Owns it until `close`; a context manager.

    A signal may come between the line that opens and the block that closes, and between the end of that block and its
    closing: what nobody holds any longer is then closed by Python's own file object, in C. A ``__del__`` here would
    swallow a Ctrl-C that arrives inside of it, and files are opened all the time.

    Parameters
    ----------
    path : of the file
    flags : as of `os.open`
    os_io : the system calls to make

    Raises
    ------
    OSError
        As `open_regular`.
    """

    __slots__ = ("_file",)

    def __init__(self, path: StrPath, flags: int = os.O_RDONLY, *, os_io: OsIO = REAL_OS) -> None:
        self._file: FileIO | None = None
        try:
            with uninterrupted():
                self._file = FileIO(open_regular(path, flags, os_io=os_io))
        except BaseException:
            self.close()
            raise

    @property
    def number(self) -> int:
        """The descriptor; -1: it is closed."""
        return -1 if self._file is None or self._file.closed else self._file.fileno()

    def close(self) -> None:
        """Close it. Idempotent."""
        if self._file is not None:
            with suppress(OSError):  # nothing was written that could be lost
                self._file.close()

    def __enter__(self) -> int:
        return self.number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
