"""The open file of one array: mapped at once, read and verified later; both see the same file."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.ssd_store.format.array_reader import (
    as_stored,
    known_page_checksums,
    open_array,
    read_pages,
)
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.format.format import DATA_OFFSET, ArrayRecord, check_array_file, stored_dtype
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from numpy.typing import NDArray


class ArrayFile:
    """An array of a store, its size and header checked. Owns a descriptor until `close`; a context manager.

    Parameters
    ----------
    root : the directory
    record : what its commit record says of the array

    Raises
    ------
    StoreOpenError, IncompleteStoreError, TruncatedStoreError, FormatError, StoreReadError
        The file is missing, cannot be read, or is not as long as the record says.
    """

    def __init__(self, root: Path | str, record: ArrayRecord, *, os_io: OsIO = REAL_OS) -> None:
        self._path = Path(root) / record.file
        self._record = record
        self._os_io = os_io
        # Touching a mapped page beyond the end of its file kills the process, so the length is checked now.
        check_array_file(self._path, record.dtype, record.shape, os_io=os_io)
        self._file = open_array(self._path, os_io=os_io)

    def map(self) -> NDArray[Any]:
        """Return the array as read-only memory that the file backs, not verified; it outlives `close`.

        The mapping keeps the file's inode open, as `numpy.memmap` does, until the last view of it is gone.
        """
        shape, dtype = self._record.shape, stored_dtype(self._record.dtype)
        # The system maps no empty range.
        if self._record.num_bytes == 0:
            return np.empty(shape, dtype=dtype)
        mapping = mmap.mmap(self._file.number, DATA_OFFSET + self._record.num_bytes, access=mmap.ACCESS_READ)
        count = self._record.num_bytes // dtype.itemsize
        return np.frombuffer(mapping, dtype=dtype, count=count, offset=DATA_OFFSET).reshape(shape)

    def load(self, *, is_cancelled: Callable[[], bool]) -> NDArray[Any] | None:
        """Read the array into memory and verify it; None: ``is_cancelled``, asked every few MB, ended it.

        Raises
        ------
        ChecksumError, StoreReadError, TruncatedStoreError
            The bytes are not those that were written, or cannot be read.
        """
        # Whole pages: the padding is read and verified with the elements, and cut off in the view.
        data = aligned_bytes(self._record.num_pages * PAGE_BYTES)
        return as_stored(data, self._record) if self._read(data, is_cancelled) else None

    def verify(self, *, is_cancelled: Callable[[], bool]) -> bool:
        """Read and verify the array, keeping nothing; False: ``is_cancelled`` ended it.

        Raises
        ------
        ChecksumError, StoreReadError, TruncatedStoreError
            As `load`.
        """
        return self._read(None, is_cancelled)

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, out: NDArray[np.uint8] | None, is_cancelled: Callable[[], bool]) -> bool:
        checksums = known_page_checksums(self._path.parent, self._record, os_io=self._os_io)
        pages = read_pages(
            self._file.number, self._path, self._record, checksums=checksums, out=out, os_io=self._os_io
        )
        # One call more than there are pieces: the digest is compared after the last.
        return not any(is_cancelled() for _ in pages)
