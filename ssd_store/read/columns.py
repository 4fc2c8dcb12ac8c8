"""Stored columns of rows: requests for rows, the place and dtype of each row, and arrays read row by row.

`RowRequest` is the checked, sorted row ids (M,) of one read. `Column` holds the scales and page checksums of rows in
memory. `StoredRows` is the rows in a store's file, and `RowArray` an array whose rows are read on request. Requests for
rows that another machine stores are refused before any read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.ids import outside
from gloader.core.kernels import njit
from gloader.errors import ConfigError, FormatError, RowNotHereError, ShapeError
from gloader.ssd_store.cost.profile import default_row_gap_bytes
from gloader.ssd_store.format.array_reader import load_array, load_page_checksums
from gloader.ssd_store.format.format import (
    DATA_OFFSET,
    ArrayRecord,
    check_array_file,
    check_record,
    replaced_error,
    stored_dtype,
)
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.read.device_file import DeviceFile
from gloader.ssd_store.read.extents import min_extent_bytes, plan_extents
from gloader.ssd_store.read.lane import mismatch
from gloader.ssd_store.read.row_kernels import make_target

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.config import IoMode
    from gloader.core.ids import HeldRows
    from gloader.ssd_store.format.format import Manifest
    from gloader.ssd_store.read.lane import ReadLane, ReadSettings
    from gloader.ssd_store.sweep.wanted_rows import WantedRows
    from gloader.types import IdArray


NO_POSITIONS: IdArray = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRequest:
    """Row ids in range with their output positions."""

    rows: IdArray  # (M,)
    position: IdArray  # (M,) rows of the output; empty if row i goes to row i
    is_sorted: bool  # the rows ascend

    def in_file_order(self) -> RowRequest:
        """Return the same request with ascending rows. Pure."""
        if self.is_sorted:
            return self
        order = np.argsort(self.rows)
        position = self.position[order] if self.position.shape[0] else order
        return RowRequest(rows=self.rows[order], position=position, is_sorted=True)


def check_request(
    rows: IdArray, out: NDArray[Any], *, num_rows: int, dim: int, at: IdArray | None = None
) -> RowRequest:
    """Check the arguments of a read. Pure.

    Parameters
    ----------
    rows : (M,) integers
        In any order, repeats allowed.
    out : (M, F), or (K, F) with ``at``
        The output; only its shape is checked.
    num_rows, dim : int
        N and F of the source.
    at : (M,) int64, optional
        Row in ``out`` for each row id; by default row i goes to row i.

    Raises
    ------
    ShapeError
        ``rows`` or ``at`` are not integers in range, or a shape does not fit.
    """
    rows = _as_ids("rows", rows)
    # One pass in place of three with numpy. The ids are listed only if one is wrong.
    smallest, largest, is_sorted = _inspect(rows)
    if rows.shape[0] and (smallest < 0 or largest >= num_rows):
        raise _out_of_range("rows", rows, num_rows)
    if at is None:
        position, expected = NO_POSITIONS, (rows.shape[0], dim)
    else:
        position, expected = _as_ids("at", at), (out.shape[0] if out.ndim else 0, dim)
        if position.shape != rows.shape:
            raise ShapeError(f"at must give one position for each of {rows.shape[0]} rows, not {at.shape[0]}")
        smallest, largest, _ = _inspect(position)
        if position.shape[0] and (smallest < 0 or largest >= expected[0]):
            raise _out_of_range("at", position, expected[0])
    if out.shape != expected:
        raise ShapeError(
            f"out has shape {out.shape}, but {rows.shape[0]} rows of {dim} features need {expected}"
        )
    return RowRequest(rows=rows, position=position, is_sorted=bool(is_sorted))


def _as_ids(name: str, ids: IdArray) -> IdArray:
    # Stricter than `as_ids`, as the suite of feature sources demands. Empty floats are refused too, and so is uint64,
    # whose large values would silently become negative ids.
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.dtype == np.uint64:
        raise ShapeError(
            f"{name} must be a one-dimensional array of int64, got {ids.dtype} of shape {ids.shape}"
        )
    return np.ascontiguousarray(ids, np.int64)


def _out_of_range(name: str, ids: IdArray, limit: int) -> ShapeError:
    wrong = outside(ids, limit)
    listed = ", ".join(str(i) for i in wrong[:5])
    return ShapeError(f"{name}: {wrong.shape[0]} ids are out of range 0..{limit - 1}: {listed}")


@njit(cache=True, nogil=True)
def _inspect(ids: IdArray) -> tuple[np.int64, np.int64, bool]:
    """Return the smallest and the largest id, and True if they ascend."""
    smallest = np.int64(0)
    largest = np.int64(0)
    is_sorted = True
    for i in range(ids.shape[0]):
        if i == 0:
            smallest = largest = ids[0]
        else:
            is_sorted &= ids[i] >= ids[i - 1]
            smallest = min(smallest, ids[i])
            largest = max(largest, ids[i])
    return smallest, largest, is_sorted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """A store's matrix that can be read row by row."""

    path: Path  # of its file
    record: ArrayRecord
    scale: NDArray[np.float32] | None  # (N,) factor of each int8 row
    checksums: NDArray[np.uint64]  # (P,) one per page; empty without verification
    held: HeldRows | None = None  # rows on this machine; None for all


def load_column(
    root: Path, name: str, manifest: Manifest, *, is_verified: bool = True, os_io: OsIO = REAL_OS
) -> Column:
    """Check the files of a column and load its scales and page checksums.

    Parameters
    ----------
    root : Path
        The folder of a store or dataset.
    name : str
        The column's name.
    manifest : Manifest
        The folder's commit record.
    is_verified : bool
        Reads will be verified, so the page checksums are needed.
    os_io : OsIO
        The system calls.

    Raises
    ------
    StoreOpenError, IncompleteStoreError, TruncatedStoreError
        A file is missing or cannot be read.
    FormatError, ChecksumError
        A file is damaged, or there is not one scale per row.
    ConfigError
        There is no such column.
    ShapeError
        The column is not a matrix.
    """
    arrays = manifest.arrays
    if name not in arrays:
        raise ConfigError(f"{root} has no column {name!r}; it has {', '.join(arrays) or 'none'}")
    record = arrays[name]
    if len(record.shape) != 2 or record.shape[1] < 1:
        raise ShapeError(
            f"{root}: column {name!r} has shape {record.shape}; only an (N, F >= 1) matrix has rows"
        )
    check_record(root, record, os_io=os_io)
    scale = None
    if record.dtype == "int8" and (factors := arrays.get(f"{name}.scale")) is not None:
        # Kernels index the scales by row number.
        if (factors.dtype, factors.shape) != ("float32", record.shape[:1]):
            raise FormatError(
                f"{root / factors.file}: the scales of {name!r} are {factors.dtype} of shape {factors.shape}; they "
                f"must be float32 of shape {record.shape[:1]}"
            )
        check_record(root, factors, os_io=os_io)
        scale = writable(load_array(root, factors, os_io=os_io))
    checksums = np.empty(0, np.uint64)
    if is_verified:
        checksums = writable(load_page_checksums(root, record, os_io=os_io))
    return Column(
        path=root / record.file,
        record=record,
        scale=scale,
        checksums=checksums,
        held=manifest.held_rows(name),
    )


def writable(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array writable, because for numba a read-only array is another type."""
    array.setflags(write=True)
    return array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredRows:
    """The description of an open `FeatureStore`'s rows, for a sweep or another lane.

    It shares the store's arrays, not its descriptor, and stays valid after the store is closed.
    """

    path: Path
    identity: tuple[int, int]  # device and inode of the store's open file
    num_rows: int  # N
    dim: int  # F
    row_bytes: int  # R
    dtype: np.dtype[Any]  # uint16 for bfloat16
    is_bfloat16: bool
    scale: NDArray[np.float32] | None  # (N,) for int8 rows
    checksums: NDArray[np.uint64]  # (P,) one per page; empty without verification
    format_version: int  # of the checksums
    gap_bytes: int  # longest hole that a batch's reads bridge
    settings: ReadSettings
    os_io: OsIO
    held: HeldRows | None = None  # rows on this machine; None for all

    def open_file(self) -> DeviceFile:
        """Open the file again; the caller owns the descriptor.

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
        # The store's checksums belong to its own file, not to a newer one at the same path.
        file.close()
        raise replaced_error(self.path)


def stored_array(root: Path, record: ArrayRecord, *, settings: ReadSettings, os_io: OsIO) -> StoredRows:
    """Return the elements of a one-dimensional array as rows of one element, for a sweep over them.

    Parameters
    ----------
    root : the directory
    record : the array's entry in the commit record
    settings : settings for the reads
    os_io : the system calls

    Raises
    ------
    StoreOpenError, TruncatedStoreError, FormatError, StoreReadError
        A file cannot be opened or read, or its length differs from the record.
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


def require_here(path: Path, held: HeldRows | None, first: int, last: int) -> None:
    """Require that the rows from ``first`` to ``last`` are on this machine. Pure.

    Parameters
    ----------
    path : the file, for messages
    held : rows on this machine. None means all rows.
    first, last : the least and the greatest requested row

    Raises
    ------
    RowNotHereError
        One of the two is on another machine.
    """
    if held is None or (held.first <= first and last < held.past):
        return
    row = last if held.first <= first < held.past else first
    raise RowNotHereError(
        f"{path}: row {row} is not on this machine, which has {held}; part {held.part_of(row)} has it: start the run "
        "with torchrun on the machines of all parts, which exchange rows, or prepare a copy with all rows: gloader "
        "prepare without --ranges"
    )


def require_wanted_here(stored: StoredRows, wanted: WantedRows) -> None:
    """Require that a sweep's rows are on this machine. Called before the sweep begins. Pure.

    Raises
    ------
    RowNotHereError
        A row is on another machine.
    """
    if stored.held is None:
        return
    begins, ends = wanted.bounds[:-1], wanted.bounds[1:]
    some = begins < ends
    if some.any():
        # The rows of each batch ascend.
        first, last = int(wanted.ids[begins[some]].min()), int(wanted.ids[ends[some] - 1].max())
        require_here(stored.path, stored.held, first, last)


_MAX_EXTENT_BYTES: Final = 128 * 1024
_BYTE: Final = np.dtype(np.uint8)


class RowArray:
    """Rows of an array of any shape and dtype on the SSD. Thread-safe. Owns a descriptor until `close`.

    Unlike a `FeatureStore` it converts nothing, and reads through a lane that other arrays may share.

    Parameters
    ----------
    root : the directory
    record : the array's entry in the commit record; its rows have at least one byte
    io : request method
    os_io : the system calls

    Raises
    ------
    StoreOpenError, IncompleteStoreError, TruncatedStoreError, FormatError, StoreReadError, ChecksumError
        A file cannot be opened or read, its length differs from the record, or its checksums are damaged.
    """

    def __init__(
        self, root: Path, record: ArrayRecord, *, io: IoMode = "auto", os_io: OsIO = REAL_OS
    ) -> None:
        path = root / record.file
        check_array_file(path, record.dtype, record.shape, os_io=os_io)
        self._record = record
        self._dtype = stored_dtype(record.dtype)
        self._checksums = writable(load_page_checksums(root, record, os_io=os_io))
        self._gap_bytes = default_row_gap_bytes(path.parent, record.row_bytes)
        self._extent_bytes = max(_MAX_EXTENT_BYTES, min_extent_bytes(record.row_bytes))
        self._file = DeviceFile(path, direct="off" if io == "buffered" else "auto", os_io=os_io)

    @property
    def path(self) -> Path:
        """The file's path."""
        return self._file.path

    @property
    def is_direct(self) -> bool:
        """Reads bypass the page cache."""
        return self._file.is_direct

    @property
    def max_extent_bytes(self) -> int:
        """Longest read, which a lane must have room for."""
        return self._extent_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes held, without the lane."""
        return self._checksums.nbytes

    def read(self, lane: ReadLane, request: RowRequest) -> NDArray[Any]:
        """Return the (ascending) rows of ``request`` as (M, *shape[1:]) of the stored dtype, at its positions.

        Raises
        ------
        ChecksumError, StoreReadError, TruncatedStoreError
            The bytes on disk differ from the written ones, or are unreadable; the message names file, page and rows.
        StoreError
            The lane is closed.
        """
        count, shape = len(request.rows), self._record.shape[1:]
        values = np.empty((count, math.prod(shape)), dtype=self._dtype)
        extents = plan_extents(
            request.rows,
            row_bytes=self._record.row_bytes,
            data_offset=DATA_OFFSET,
            max_gap_bytes=self._gap_bytes,
            max_extent_bytes=self._extent_bytes,
        )
        # As bytes, for which the kernels are already compiled.
        out = values.view(np.uint8).reshape(count, self._record.row_bytes)
        _, page = lane.read(
            self._file,
            extents,
            make_target(request.rows, request.position, out, dtype=_BYTE),
            data_offset=DATA_OFFSET,
            checksums=self._checksums,
            format_version=self._record.version,
        )
        if page >= 0:
            raise mismatch(
                self.path, page, request.rows, row_bytes=self._record.row_bytes, data_offset=DATA_OFFSET
            )
        return values.reshape(count, *shape)

    def close(self) -> None:
        """Close the file. Idempotent; no read may be in progress."""
        self._file.close()
