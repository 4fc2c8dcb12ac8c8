"""A file that is open for reading, and is closed even if a signal arrives while it is opened or closed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gloader.core.signals import uninterrupted
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath, close_quietly, open_regular

if TYPE_CHECKING:
    from types import TracebackType


class Descriptor:
    """The descriptor of an existing regular file. Owns it until `close`; a context manager.

    A number that `os.open` returned stays open when a signal came meanwhile: that is handled before it is kept.
    There is no ``__del__``: Python swallows a Ctrl-C that arrives inside one, and files are opened all the time.

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

    __slots__ = ("_os_io", "number")

    def __init__(self, path: StrPath, flags: int = os.O_RDONLY, *, os_io: OsIO = REAL_OS) -> None:
        self._os_io = os_io
        self.number = -1  # none once it is closed
        try:
            with uninterrupted():
                self.number = open_regular(path, flags, os_io=os_io)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it. Idempotent."""
        if self.number >= 0:
            with uninterrupted():
                number, self.number = self.number, -1
                close_quietly(number, os_io=self._os_io)

    def __enter__(self) -> int:
        return self.number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
