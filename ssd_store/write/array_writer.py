"""The writer for one array with known shape, row by row, into a file of the format.

An array has two files: ``NAME.npy`` with the elements, and ``NAME.pages`` with a checksum for each page of 4 KiB.
`PageFile` writes one file: a header page and then whole pages. `ArrayWriter` fills both files from rows, and makes the
array's entry for the commit record. `NewDirectory` makes the writers. A machine that stores only a part of the rows
writes only these rows' pages; the rest of the file is a hole.
"""

from __future__ import annotations

import contextlib
import errno
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.signals import uninterrupted
from gloader.errors import ShapeError
from gloader.ssd_store.format.checksum import PAGE_BYTES, Digest, checksum_pages
from gloader.ssd_store.format.manifest import ArrayRecord, data_bytes, file_bytes, npy_header, stored_dtype
from gloader.ssd_store.os_io import REAL_OS, OsIO, close_quietly, write_errors, write_full

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.core.ids import HeldRows


BUFFER_BYTES: Final = 4 * 2**20  # bytes in each of the two buffers


class PageFile:
    """Appends bytes to a new file through an aligned buffer. Owns its descriptor and buffers until `finish` or `abort`.

    A thread writes full buffers while a second buffer fills, without the page cache if the file system allows it. In
    the cache, the bytes would evict other programs' pages, although they are not needed soon. A file smaller than the
    buffer is written through the cache.

    Every method raises the system's `OSError`; a write's error may come one call later. After an error the file must be
    aborted.

    Parameters
    ----------
    path : a file that does not exist yet
    header : the bytes before the data
    on_pages : receives every data page, in order, just before it is written
    kept : first data page to write, and the last plus one. The other pages are a hole in the file, which still has its
        full size. None means that every page is written
    buffer_bytes : size of the buffer, whole pages
    os_io : the system calls
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
        # The range of bytes after the header that is written; None means all.
        self._kept = None if kept is None else (kept[0] * PAGE_BYTES, kept[1] * PAGE_BYTES)
        self._num_bytes = 0  # bytes after the header that have left the buffer
        self._buffer = aligned_bytes(buffer_bytes)
        self._filled = 0  # bytes in the buffer
        self._spare: NDArray[np.uint8] | None = None  # the second buffer, from the first full buffer on
        self._pool: ThreadPoolExecutor | None = None  # the writing thread
        self._written: Future[None] | None = None  # the write in progress
        self._is_direct = False
        self._fd = os_io.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            write_full(self._fd, memoryview(header), os_io=os_io)
            if self._kept is not None:
                # One seek is enough, because the kept pages are consecutive, and are written from here on.
                os_io.seek(self._fd, self._header_bytes + self._kept[0])
        except BaseException:
            self.abort()
            raise

    def append(self, data: NDArray[np.uint8]) -> None:
        """Add the bytes ``data`` (n,)."""
        # Chunks of any size pass through the buffer, so that the device gets full buffers, and `on_pages` whole pages.
        done = 0
        while done < data.size:
            count = min(data.size - done, self._buffer.size - self._filled)
            self._buffer[self._filled : self._filled + count] = data[done : done + count]
            self._filled += count
            done += count
            if self._filled == self._buffer.size:
                self._flush_behind()

    def write_out(self) -> None:
        """Pad to whole pages with zeros and write the buffer. Nothing can be added afterwards."""
        padded = -(-self._filled // PAGE_BYTES) * PAGE_BYTES
        self._buffer[self._filled : padded] = 0
        self._filled = padded
        pages = self._take_pages()
        self._settle()
        self._write(pages.data)
        if self._kept is not None:
            self._os_io.truncate(self._fd, self._header_bytes + self._num_bytes)

    def finish(self, *, is_synced: bool = True) -> None:
        """Close, and before that force the content to the device, unless the caller does that later.

        A failed fsync is final and never repeated.
        """
        # After a failed fsync the kernel may have dropped the pages, and a second fsync would find nothing to write.
        self._end_thread()
        if is_synced:
            self._os_io.fsync(self._fd)
        # The close is checked too, because some network file systems report a full disk only now.
        fd, self._fd = self._fd, -1
        self._os_io.close(fd)
        self._drop_buffers()

    def abort(self) -> None:
        """Close the file; its content is then undefined. Idempotent."""
        with uninterrupted():
            self._end_thread()
            if self._fd >= 0:
                fd, self._fd = self._fd, -1
                close_quietly(fd, os_io=self._os_io)
            self._drop_buffers()

    def _take_pages(self) -> NDArray[np.uint8]:
        """Empty the buffer: pass its pages to `on_pages`, and return the pages to write."""
        pages, self._filled = self._buffer[: self._filled], 0
        if pages.size and self._on_pages is not None:
            self._on_pages(pages)
        first = self._num_bytes
        self._num_bytes += pages.size
        if self._kept is None:
            return pages
        return pages[max(self._kept[0] - first, 0) : max(self._kept[1] - first, 0)]

    def _flush_behind(self) -> None:
        """Write the full buffer in the thread while the other buffer fills."""
        pages = self._take_pages()
        if self._spare is None:
            # O_DIRECT needs whole pages at page offsets. All writes are such pages: the header, full buffers, and then
            # the filled pages of the last buffer.
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
        """Wait for the last buffer's write, and raise its error."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _end_thread(self) -> None:
        """Wait for the writing thread, and end it."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _drop_buffers(self) -> None:
        """Free the buffers' memory, because a directory keeps all its writers until the commit."""
        self._buffer, self._spare = aligned_bytes(0), None

    def _write(self, data: memoryview) -> None:
        """Write ``data`` at the file's position, with O_DIRECT as long as the file system accepts it."""
        if not len(data):  # pages in a hole are not written
            return
        if self._is_direct:
            done = 0
            try:
                done = self._os_io.write(self._fd, data)
            except OSError as error:
                # Some file systems refuse the first write instead of the flag.
                if error.errno not in {errno.EINTR, errno.EINVAL}:
                    raise
            # The rest after a short write may begin at an offset that O_DIRECT refuses.
            if done < len(data):
                self._os_io.set_direct(self._fd, is_direct=False)
                self._is_direct = False
            data = data[done:]
        write_full(self._fd, data, os_io=self._os_io)


_PAGES_BUFFER_BYTES: Final = 64 * 2**10  # bytes in the buffer of the file with page checksums


class ArrayWriter:
    """Appends rows, in order, to an array in a new directory, with a checksum for each page; `close` completes it.

    The writer takes memory for two buffers, whatever the array's size. Use it in a ``with`` block or call `close`. Not
    thread-safe.

    Parameters
    ----------
    folder : the directory's folder; the folder for the array's files exists
    name, dtype, shape : as in `ArrayRecord`
    held : rows whose pages are written, in a file with its full size. All rows are appended and have checksums. None
        means that all rows are written
    on_close : receives the completed array's record
    is_synced : False if the caller forces the files to the device later
    os_io : the system calls
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        held: HeldRows | None = None,
        on_close: Callable[[ArrayRecord], None],
        is_synced: bool = True,
        os_io: OsIO = REAL_OS,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.held = held
        self.rows_written = 0
        self._stored = stored_dtype(dtype)  # the dtype that rows must have
        self._path = folder / f"{name}.npy"
        self._os_io = os_io
        self._on_close = on_close
        self._is_synced = is_synced
        self._is_open = True
        # The digest is computed during the writes, so that nothing is read back.
        self._digest = Digest()
        self._checksums = np.empty(BUFFER_BYTES // PAGE_BYTES, dtype=np.uint64)
        self._num_bytes = data_bytes(dtype, shape)
        self._files: list[PageFile] = []  # the data's file, then the page checksums' file
        with self._errors("creating the file"):
            # There are two files: if the second cannot be created, the first file's descriptor must be closed.
            try:
                self._open_files(folder)
            except BaseException:
                self.abort()
                raise

    @property
    def path(self) -> Path:
        """The file's path until the commit, in the directory's temporary folder; complete after `close`."""
        return self._path

    @property
    def file_bytes(self) -> int:
        """The array's bytes on disk."""
        return disk_bytes(self.dtype, self.shape, self.held)

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of rows still to be written."""
        first, past = (0, self.shape[0]) if self.held is None else (self.held.first, self.held.past)
        return max(past - max(first, self.rows_written), 0) * data_bytes(self.dtype, self.shape[1:])

    def append(self, chunk: NDArray[Any]) -> None:
        """Append the rows ``chunk`` (n, *shape[1:]) with the stored dtype (bfloat16 as uint16).

        Raises
        ------
        ShapeError
            The width or dtype is wrong, rows exceed the array, or the writer is closed; carries the row number.
        StoreWriteError
            The device refuses; the array will not be committed.
        """
        self._validate(chunk)
        with self._errors("writing"):
            self._files[0].append(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8))
        self.rows_written += chunk.shape[0]

    def close(self) -> None:
        """Complete the array: write, force it to the device and record it. Idempotent.

        Raises
        ------
        ShapeError
            Fewer rows arrived than ``shape`` has.
        StoreWriteError
            The device refuses; there will be no commit.
        """
        if not self._is_open:
            return
        try:
            if self.rows_written != self.shape[0]:
                raise ShapeError(
                    f"array {self.name!r} has {self.shape[0]} rows and got {self.rows_written}: row "
                    f"{self.rows_written} is missing; append it or declare fewer rows"
                )
            with self._errors("writing"):
                self._complete()
        finally:
            self.abort()
        # The record comes last: an array without a record was abandoned, and stops the commit.
        self._on_close(self._record())

    def abort(self) -> None:
        """Abandon the array. Idempotent."""
        self._is_open = False
        for file in self._files:
            file.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _open_files(self, folder: Path) -> None:
        """Create both files with their headers; raises `OSError`."""
        header = npy_header(self.dtype, self.shape)
        row_bytes = data_bytes(self.dtype, self.shape[1:])
        kept = None if self.held is None else self.held.span(row_bytes, PAGE_BYTES)
        self._files.append(
            PageFile(self._path, header, on_pages=self._record_pages, kept=kept, os_io=self._os_io)
        )
        header = npy_header("uint64", (-(-self._num_bytes // PAGE_BYTES),))
        path = folder / f"{self.name}.pages"
        self._files.append(PageFile(path, header, buffer_bytes=_PAGES_BUFFER_BYTES, os_io=self._os_io))
        self._os_io.kill_point("writer.after_create")  # a crash test may end the process at a kill point

    def _record_pages(self, pages: NDArray[np.uint8]) -> None:
        """Append the checksums of the next pages to the second file and to the digest."""
        checksums = self._checksums[: pages.size // PAGE_BYTES]
        checksum_pages(pages, self._digest.num_pages, checksums)
        self._digest.update(checksums)
        self._files[1].append(checksums.view(np.uint8))

    def _complete(self) -> None:
        """Write the last pages of both files, and force the files to the device; raises `OSError`."""
        for file in self._files:  # the data file comes first, because writing it appends to the checksums
            file.write_out()
        self._os_io.kill_point("writer.after_data_write")
        # All writes come before the first fsync, so that the device may order them.
        for file in self._files:
            file.finish(is_synced=self._is_synced)
        self._os_io.kill_point("writer.after_data_fsync")

    def _record(self) -> ArrayRecord:
        """Return the array's entry for the commit record."""
        return ArrayRecord(
            name=self.name,
            file=f"{self.name}.npy",
            dtype=self.dtype,
            shape=self.shape,
            num_bytes=self._num_bytes,
            digest=self._digest.hexdigest(),
            pages_file=f"{self.name}.pages",
        )

    def _validate(self, chunk: NDArray[Any]) -> None:
        """Raise ShapeError if the rows ``chunk`` cannot be appended."""
        where = f"array {self.name!r}, row {self.rows_written}"
        if not self._is_open:
            raise ShapeError(f"{where}: the writer is closed and takes no more rows")
        if getattr(chunk, "dtype", None) != self._stored:
            kind = getattr(chunk, "dtype", type(chunk).__name__)
            raise ShapeError(f"{where}: rows must be a numpy array of {self._stored}, not {kind}; convert it")
        if chunk.ndim != len(self.shape) or chunk.shape[1:] != self.shape[1:]:
            expected = ("n", *self.shape[1:])
            raise ShapeError(f"{where}: rows must have shape {expected}, not {chunk.shape}")
        if self.rows_written + chunk.shape[0] > self.shape[0]:
            raise ShapeError(
                f"{where}: {chunk.shape[0]} more rows exceed the declared {self.shape[0]}; "
                f"row {self.shape[0]} is one too many"
            )

    def _errors(self, doing: str) -> Any:
        """Return a context that turns an `OSError` into a `StoreWriteError`; ``doing`` is the operation."""
        return write_errors(self._path, doing, needed_bytes=self.file_bytes, os_io=self._os_io)


def disk_bytes(dtype: str, shape: tuple[int, ...], held: HeldRows | None = None) -> int:
    """Return the disk bytes for an array and its page checksums. Pure.

    Parameters
    ----------
    dtype, shape : as in `ArrayRecord`
    held : written rows; None means all rows
    """
    num_bytes = data_bytes(dtype, shape)
    written = num_bytes
    if held is not None:
        first, past = held.span(data_bytes(dtype, shape[1:]), PAGE_BYTES)
        written = (past - first) * PAGE_BYTES
    return file_bytes(written) + file_bytes(-(-num_bytes // PAGE_BYTES) * 8)
