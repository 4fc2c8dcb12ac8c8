"""A file of the format while it is written: the header page, then whole 4 KiB pages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from gloader.core.aligned_memory import aligned_bytes
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.os_io import REAL_OS, OsIO, close_quietly, write_full

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

BUFFER_BYTES: Final = 4 * 2**20


class PageFile:
    """Appends bytes to a new file through an aligned buffer. Owns its descriptor until `finish` or `abort`.

    Raises `OSError` as the system does; a failed file must be aborted.

    Parameters
    ----------
    path : of a file that does not exist yet
    header : the bytes before the data
    on_pages : sees every page of data, in order, just before it is written
    buffer_bytes : whole pages
    """

    __slots__ = ("_buffer", "_fd", "_filled", "_on_pages", "_os_io")

    def __init__(
        self,
        path: Path,
        header: bytes,
        *,
        on_pages: Callable[[NDArray[np.uint8]], None] | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        os_io: OsIO = REAL_OS,
    ) -> None:
        self._os_io = os_io
        self._on_pages = on_pages
        self._buffer = aligned_bytes(buffer_bytes)
        self._filled = 0
        self._fd = os_io.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            write_full(self._fd, memoryview(header), os_io=os_io)
        except BaseException:
            self.abort()
            raise

    def append(self, data: NDArray[np.uint8]) -> None:
        """Add the bytes ``data`` (n,)."""
        # Through the buffer, however small the chunk: the device sees whole buffers, and `on_pages` whole pages.
        done = 0
        while done < data.size:
            count = min(data.size - done, self._buffer.size - self._filled)
            self._buffer[self._filled : self._filled + count] = data[done : done + count]
            self._filled += count
            done += count
            if self._filled == self._buffer.size:
                self._flush()

    def write_out(self) -> None:
        """Pad to whole pages with zeros and write what is buffered; nothing can be added afterwards."""
        padded = -(-self._filled // PAGE_BYTES) * PAGE_BYTES
        self._buffer[self._filled : padded] = 0
        self._filled = padded
        self._flush()

    def finish(self) -> None:
        """Force the content to the device and close. A failing fsync is final and never repeated."""
        # After a failed fsync the kernel may have dropped the pages, and a second one would find nothing to write.
        self._os_io.fsync(self._fd)
        # The close is checked too: some network file systems report a full disk only now.
        fd, self._fd = self._fd, -1
        self._os_io.close(fd)

    def abort(self) -> None:
        """Close without a promise about the content. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            close_quietly(fd, os_io=self._os_io)

    def _flush(self) -> None:
        pages = self._buffer[: self._filled]
        if pages.size and self._on_pages is not None:
            self._on_pages(pages)
        write_full(self._fd, pages.data, os_io=self._os_io)
        self._filled = 0
