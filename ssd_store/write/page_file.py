"""A file of the format while it is written: the header page, then whole 4 KiB pages."""

from __future__ import annotations

import contextlib
import errno
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.signals import uninterrupted
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.os_io import REAL_OS, OsIO, close_quietly, write_full

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

BUFFER_BYTES: Final = 4 * 2**20


class PageFile:
    """Appends bytes to a new file through an aligned buffer. Owns its descriptor and buffers until `finish` or `abort`.

    What does not fit the buffer is written past the page cache where the file system allows it, by a thread, while a
    second buffer is filled: nobody reads it soon, it would evict what others have there, and memory that the system
    must find for it costs more than the write. A smaller file stays in the cache.

    Raises `OSError` as the system does, for a write perhaps one call later; a failed file must be aborted.

    Parameters
    ----------
    path : of a file that does not exist yet
    header : the bytes before the data
    on_pages : sees every page of data, in order, just before it is written
    kept : the first page of data that is written, and the page behind the last; the others leave a hole in the file,
        which has its full size all the same. None: every page is written
    buffer_bytes : whole pages
    """

    __slots__ = (
        "_buffer",
        "_fd",
        "_filled",
        "_header_bytes",
        "_is_direct",
        "_kept",
        "_num_bytes",
        "_on_pages",
        "_os_io",
        "_pool",
        "_spare",
        "_written",
    )

    def __init__(
        self,
        path: Path,
        header: bytes,
        *,
        on_pages: Callable[[NDArray[np.uint8]], None] | None = None,
        kept: tuple[int, int] | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        os_io: OsIO = REAL_OS,
    ) -> None:
        self._os_io = os_io
        self._on_pages = on_pages
        self._header_bytes = len(header)
        # As bytes behind the header, of which so many were handed on to be written.
        self._kept = None if kept is None else (kept[0] * PAGE_BYTES, kept[1] * PAGE_BYTES)
        self._num_bytes = 0
        self._buffer = aligned_bytes(buffer_bytes)
        self._filled = 0
        self._spare: NDArray[np.uint8] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._written: Future[None] | None = None
        self._is_direct = False
        self._fd = os_io.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            write_full(self._fd, memoryview(header), os_io=os_io)
            if self._kept is not None:
                # Once: what is kept lies in one stretch, and is written from here on.
                os_io.seek(self._fd, self._header_bytes + self._kept[0])
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
                self._flush_behind()

    def write_out(self) -> None:
        """Pad to whole pages with zeros and write what is buffered; nothing can be added afterwards."""
        padded = -(-self._filled // PAGE_BYTES) * PAGE_BYTES
        self._buffer[self._filled : padded] = 0
        self._filled = padded
        pages = self._take_pages()
        self._settle()
        self._write(pages.data)
        if self._kept is not None:
            self._os_io.truncate(self._fd, self._header_bytes + self._num_bytes)

    def finish(self) -> None:
        """Force the content to the device and close. A failing fsync is final and never repeated."""
        # After a failed fsync the kernel may have dropped the pages, and a second one would find nothing to write.
        self._end_thread()
        self._os_io.fsync(self._fd)
        # The close is checked too: some network file systems report a full disk only now.
        fd, self._fd = self._fd, -1
        self._os_io.close(fd)
        self._drop_buffers()

    def abort(self) -> None:
        """Close without a promise about the content. Idempotent."""
        with uninterrupted():
            self._end_thread()
            if self._fd >= 0:
                fd, self._fd = self._fd, -1
                close_quietly(fd, os_io=self._os_io)
            self._drop_buffers()

    def _take_pages(self) -> NDArray[np.uint8]:
        """Return what is to be written of what is buffered, and take note of its pages."""
        pages, self._filled = self._buffer[: self._filled], 0
        if pages.size and self._on_pages is not None:
            self._on_pages(pages)
        first = self._num_bytes
        self._num_bytes += pages.size
        if self._kept is None:
            return pages
        return pages[max(self._kept[0] - first, 0) : max(self._kept[1] - first, 0)]

    def _flush_behind(self) -> None:
        """Have the full buffer written while the other one is filled."""
        pages = self._take_pages()
        if self._spare is None:
            # Every write is of whole pages at their place: the header, full buffers, and at the end a part of one.
            with contextlib.suppress(OSError):
                self._os_io.set_direct(self._fd, is_direct=True)
                self._is_direct = True
            self._spare = aligned_bytes(self._buffer.size)
        self._settle()
        with uninterrupted():
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="gloader-write")
            self._written = self._pool.submit(self._write, pages.data)
        self._buffer, self._spare = self._spare, self._buffer

    def _settle(self) -> None:
        """Wait for the last buffer, and raise what its write raised."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _end_thread(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _drop_buffers(self) -> None:
        # Not left to whoever drops the file: a directory keeps all of its writers until it is committed.
        self._buffer, self._spare = aligned_bytes(0), None

    def _write(self, data: memoryview) -> None:
        if not len(data):  # of pages that leave a hole nothing is written
            return
        if self._is_direct:
            done = 0
            try:
                done = self._os_io.write(self._fd, data)
            except OSError as error:
                # Some file systems refuse the first write, not the flag.
                if error.errno not in {errno.EINTR, errno.EINVAL}:
                    raise
            # What a short write leaves may begin where O_DIRECT cannot go on.
            if done < len(data):
                self._os_io.set_direct(self._fd, is_direct=False)
                self._is_direct = False
            data = data[done:]
        write_full(self._fd, data, os_io=self._os_io)
