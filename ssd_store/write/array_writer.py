"""The writer of one array of known shape, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.errors import ShapeError
from gloader.ssd_store.format.checksum import PAGE_BYTES, Digest, checksum_pages
from gloader.ssd_store.format.manifest import ArrayRecord
from gloader.ssd_store.format.npy_header import data_bytes, file_bytes, npy_header, stored_dtype
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.write.disk_errors import write_errors
from gloader.ssd_store.write.page_file import BUFFER_BYTES, PageFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.core.row_ranges import HeldRows

_PAGES_BUFFER_BYTES: Final = 64 * 2**10


class ArrayWriter:
    """Appends rows, in order, to an array in a new directory and keeps a checksum of each page; `close` completes it.

    Memory is two buffers, whatever the array's size. Use it in a ``with`` block or call `close`. Not
    thread-safe.

    Parameters
    ----------
    folder : that of the directory; the folder of the array's files is there
    name, dtype, shape : as in `ArrayRecord`
    held : the rows whose pages are written, in a file of full size; all rows are appended and have their checksums.
        None: all are written
    on_close : receives the record of the completed array
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
        os_io: OsIO = REAL_OS,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.held = held
        self.rows_written = 0
        self._stored = stored_dtype(dtype)
        self._path = folder / f"{name}.npy"
        self._os_io = os_io
        self._on_close = on_close
        self._is_open = True
        # Computed while the bytes pass, so that nothing is read back.
        self._digest = Digest()
        self._checksums = np.empty(BUFFER_BYTES // PAGE_BYTES, dtype=np.uint64)
        self._num_bytes = data_bytes(dtype, shape)
        self._files: list[PageFile] = []
        with self._errors("creating the file"):
            # Two files: if the second cannot be made, the first one's descriptor must go.
            try:
                self._open_files(folder)
            except BaseException:
                self.abort()
                raise

    @property
    def path(self) -> Path:
        """The file, where it lies until the commit; whole once the writer is closed."""
        return self._path

    @property
    def file_bytes(self) -> int:
        """Bytes that the array's files take on disk."""
        return disk_bytes(self.dtype, self.shape, self.held)

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of rows that are still to come and will be written."""
        first, past = (0, self.shape[0]) if self.held is None else (self.held.first, self.held.past)
        return max(past - max(first, self.rows_written), 0) * data_bytes(self.dtype, self.shape[1:])

    def append(self, chunk: NDArray[Any]) -> None:
        """Append the rows ``chunk`` (n, *shape[1:]) of the stored dtype (bfloat16 as uint16).

        Raises
        ------
        ShapeError
            Wrong width or dtype, more rows than the array has, or a closed writer; carries the row number.
        StoreWriteError
            The device refuses; nothing will be committed.
        """
        self._validate(chunk)
        with self._errors("writing"):
            self._files[0].append(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8))
        self.rows_written += chunk.shape[0]

    def close(self) -> None:
        """Complete the array: write, fsync and record it. Idempotent.

        Raises
        ------
        ShapeError
            Fewer rows came than the shape says.
        StoreWriteError
            The device refuses; nothing will be committed.
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
        # Only now: an array without a record is one that was given up, and stops the commit.
        self._on_close(self._record())

    def abort(self) -> None:
        """Give the array up without completing it. Idempotent."""
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
        header = npy_header(self.dtype, self.shape)
        row_bytes = data_bytes(self.dtype, self.shape[1:])
        kept = None if self.held is None else self.held.span(row_bytes, PAGE_BYTES)
        self._files.append(
            PageFile(self._path, header, on_pages=self._see_pages, kept=kept, os_io=self._os_io)
        )
        header = npy_header("uint64", (-(-self._num_bytes // PAGE_BYTES),))
        path = folder / f"{self.name}.pages"
        self._files.append(PageFile(path, header, buffer_bytes=_PAGES_BUFFER_BYTES, os_io=self._os_io))
        self._os_io.kill_point("writer.after_create")

    def _see_pages(self, pages: NDArray[np.uint8]) -> None:
        checksums = self._checksums[: pages.size // PAGE_BYTES]
        checksum_pages(pages, self._digest.num_pages, checksums)
        self._digest.update(checksums)
        self._files[1].append(checksums.view(np.uint8))

    def _complete(self) -> None:
        for file in self._files:  # the data first: writing it appends to the checksums
            file.write_out()
        self._os_io.kill_point("writer.after_data_write")
        # All writes before the first fsync, so that the device may order them.
        for file in self._files:
            file.finish()
        self._os_io.kill_point("writer.after_data_fsync")

    def _record(self) -> ArrayRecord:
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
        return write_errors(self._path, doing, needed_bytes=self.file_bytes, os_io=self._os_io)


def disk_bytes(dtype: str, shape: tuple[int, ...], held: HeldRows | None = None) -> int:
    """Return the bytes that an array and its page checksums take on disk. Pure.

    Parameters
    ----------
    dtype, shape : as in `ArrayRecord`
    held : the rows that are written; None: all
    """
    num_bytes = data_bytes(dtype, shape)
    written = num_bytes
    if held is not None:
        first, past = held.span(data_bytes(dtype, shape[1:]), PAGE_BYTES)
        written = (past - first) * PAGE_BYTES
    return file_bytes(written) + file_bytes(-(-num_bytes // PAGE_BYTES) * 8)
