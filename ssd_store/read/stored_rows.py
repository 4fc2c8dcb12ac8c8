"""The rows in a store's file: where they lie, what they look like and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.ssd_store.format.array_reader import load_page_checksums
from gloader.ssd_store.format.format import check_array_file, replaced_error, stored_dtype
from gloader.ssd_store.read.column import writable
from gloader.ssd_store.read.device_file import DeviceFile

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.core.row_ranges import HeldRows
    from gloader.ssd_store.format.format import ArrayRecord
    from gloader.ssd_store.os_io import OsIO
    from gloader.ssd_store.read.read_settings import ReadSettings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredRows:
    """All that a sweep or another lane needs to read the rows of an open `FeatureStore` beside it.

    Shares the store's arrays, not its descriptor: it stays valid when the store is closed.
    """

    path: Path
    identity: tuple[int, int]  # device and inode of the file that the store has open
    num_rows: int  # N
    dim: int  # F
    row_bytes: int  # R
    dtype: np.dtype[Any]  # uint16 for bfloat16
    is_bfloat16: bool
    scale: NDArray[np.float32] | None  # (N,) of int8 rows
    checksums: NDArray[np.uint64]  # (P,) one per page; empty: do not verify
    format_version: int  # of the format that they were made by
    gap_bytes: int  # longest hole that a batch's reads read through
    settings: ReadSettings
    os_io: OsIO
    held: HeldRows | None = None  # the rows that are here; None: all

    def open_file(self) -> DeviceFile:
        """Open the file once more; the caller owns the descriptor.

        Raises
        ------
        StoreOpenError
            The file cannot be opened, or is not the one that the store has open.
        """
        file = DeviceFile(self.path, direct=self.settings.file_mode, os_io=self.os_io)
        try:
            is_same = file.identity == self.identity
        except BaseException:
            file.close()
            raise
        if is_same:
            return file
        # The checksums that the store holds are those of its own file, not of a newer one at the same path.
        file.close()
        raise replaced_error(self.path)


def stored_array(root: Path, record: ArrayRecord, *, settings: ReadSettings, os_io: OsIO) -> StoredRows:
    """Return the elements of a one-dimensional array as rows of one element, for a sweep over them.

    Parameters
    ----------
    root : the directory
    record : what its commit record says of the array
    settings : how it is read
    os_io : the system calls to make

    Raises
    ------
    StoreOpenError, TruncatedStoreError, FormatError, StoreReadError
        A file cannot be opened or read, or is not as long as the record says.
    ChecksumError
        The page checksums are damaged.
    """
    path, dtype = root / record.file, stored_dtype(record.dtype)
    check_array_file(path, record.dtype, record.shape, os_io=os_io)
    file = DeviceFile(path, direct=settings.file_mode, os_io=os_io)
    try:
        identity = file.identity
    finally:
        file.close()
    checksums = np.empty(0, np.uint64)
    if settings.verify != "off":
        checksums = writable(load_page_checksums(root, record, os_io=os_io))
    return StoredRows(
        path=path,
        identity=identity,
        num_rows=record.shape[0],
        dim=1,
        row_bytes=dtype.itemsize,
        dtype=dtype,
        is_bfloat16=False,
        scale=None,
        checksums=checksums,
        format_version=record.version,
        gap_bytes=0,
        settings=settings,
        os_io=os_io,
    )
