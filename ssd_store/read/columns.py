"""Stored columns of rows: requests for rows, each row's place and dtype, and arrays read row by row.

A column is a stored array whose rows belong to nodes or edges. `RowRequest` has one read's checked row ids (M,).
`RowFile` describes the rows in a store's file, with their scales and page checksums. `ArrayFile` reads rows or pages
from any array. A page is 4 KiB of the file, with a checksum. A lane is the memory and the threads or the ring through
which files are read. A sweep is one pass over a file for all needed rows. Several machines may each store a range of
the rows: requests for rows that another machine stores are refused before any read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.dtypes import SCALE_SUFFIX, STORED_DTYPES, RowFormat
from gloader.core.ids import outside
from gloader.core.kernels import njit
from gloader.errors import ConfigError, FormatError, RowNotHereError, ShapeError
from gloader.ssd_store.cost.profile import default_row_gap_bytes
from gloader.ssd_store.format.array_reader import damaged_pages, load_array, load_page_checksums
from gloader.ssd_store.format.checksum import PAGE_BYTES
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
from gloader.types import ReadStats

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.config import IoMode
    from gloader.core.ids import HeldRows
    from gloader.ssd_store.format.format import Manifest
    from gloader.ssd_store.read.lane import ReadLane, ReadSettings
    from gloader.ssd_store.sweep.wanted_rows import WantedRows
    from gloader.types import IdArray


NO_POSITIONS: IdArray = np.empty(0, np.int64)  # output positions if row i goes to row i


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRequest:
    """Row ids in range with their output positions."""

    rows: IdArray  # (M,)
    position: IdArray  # (M,) rows in the output; empty if row i goes to row i
    is_sorted: bool  # True if the rows ascend

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
    """Check a read's arguments. Pure.

    Parameters
    ----------
    rows : (M,) integers
        In any order, repeats allowed.
    out : (M, F), or (K, F) with ``at``
        The output; only its shape is checked.
    num_rows, dim : int
        The source's N and F.
    at : (M,) int64, optional
        Row in ``out`` for each row id; by default row i goes to row i.

    Raises
    ------
    ShapeError
        ``rows`` or ``at`` are not integers in range, or a shape does not fit.
    """
    rows = _as_ids("rows", rows)
    # One pass replaces three numpy passes. A second pass lists the wrong ids, if there are any.
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
    """Return ``ids`` (M,) as contiguous int64; ``name`` is the argument's name in messages."""
    # This check is stricter than `as_ids`, as the test suite for feature sources demands. It also refuses empty floats,
    # and uint64, whose large values would silently become negative ids.
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.dtype == np.uint64:
        raise ShapeError(
            f"{name} must be a one-dimensional array of int64, got {ids.dtype} of shape {ids.shape}"
        )
    return np.ascontiguousarray(ids, np.int64)


def _out_of_range(name: str, ids: IdArray, limit: int) -> ShapeError:
    """Return the error for ``ids`` that are not in 0..limit-1; ``name`` is the argument's name. Pure."""
    wrong = outside(ids, limit)
    listed = ", ".join(str(i) for i in wrong[:5])
    return ShapeError(f"{name}: {wrong.shape[0]} ids are out of range 0..{limit - 1}: {listed}")


@njit(cache=True, nogil=True)
def _inspect(ids: IdArray) -> tuple[np.int64, np.int64, bool]:
    """Return the smallest and the largest id (0 without ids), and True if the ids ascend."""
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


def writable(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array writable, because for numba a read-only array is another type."""
    array.setflags(write=True)
    return array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowFile:
    """The description of an open `FeatureStore`'s rows, for a sweep or another lane.

    It shares the store's arrays, not its descriptor, and stays valid after the store is closed.
    """

    path: Path
    identity: tuple[int, int]  # device and inode of the store's open file
    num_rows: int  # N
    form: RowFormat  # the rows' dtype, width, and factors if they are int8
    checksums: NDArray[np.uint64]  # (P,) one per page; empty without verification
    format_version: int  # the checksums' format version
    gap_bytes: int  # longest hole between needed pages that a batch's reads bridge
    settings: ReadSettings  # the settings with which the store was opened
    os_io: OsIO
    held: HeldRows | None = None  # rows on this machine; None for all rows

    @property
    def dim(self) -> int:
        """Number of features in a row."""
        return self.form.dim

    @property
    def row_bytes(self) -> int:
        """Bytes in a stored row."""
        return self.form.row_bytes

    def form_of(self, rows: NDArray[Any]) -> RowFormat:
        """Return the form for a copy of ``rows`` (M,), with only these rows' factors. Pure."""
        return self.form if self.form.scale is None else replace(self.form, scale=self.form.scale[rows])

    def open_file(self) -> DeviceFile:
        """Open the file again; the caller owns the descriptor.

        Raises
        ------
        StoreOpenError
            The file cannot be opened, or is not the file that the store has open.
        """
        file = DeviceFile(self.path, direct=self.settings.file_mode, os_io=self.os_io)
        try:
            is_same = file.identity == self.identity
        except BaseException:
            file.close()
            raise
        if is_same:
            return file
        # The store's checksums belong to its own file, not to a newer file at the same path.
        file.close()
        raise replaced_error(self.path)


def open_column(
    root: Path, name: str, manifest: Manifest, *, settings: ReadSettings, os_io: OsIO = REAL_OS
) -> tuple[DeviceFile, RowFile]:
    """Check a column's files, load its scales and page checksums, and open it; the caller owns the file.

    Parameters
    ----------
    root : Path
        A store's or dataset's folder.
    name : str
        The column's name.
    manifest : Manifest
        The folder's commit record.
    settings : ReadSettings
        The column's read settings.
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
    if STORED_DTYPES[record.dtype].has_scale and (factors := arrays.get(name + SCALE_SUFFIX)) is not None:
        # Kernels index the scales by row number.
        if (factors.dtype, factors.shape) != ("float32", record.shape[:1]):
            raise FormatError(
                f"{root / factors.file}: the scales of {name!r} are {factors.dtype} of shape {factors.shape}; they "
                f"must be float32 of shape {record.shape[:1]}"
            )
        check_record(root, factors, os_io=os_io)
        scale = writable(load_array(root, factors, os_io=os_io))
    form = RowFormat(
        dtype=stored_dtype(record.dtype),
        dim=record.shape[1],
        is_bfloat16=record.dtype == "bfloat16",
        scale=scale,
    )
    return _opened(root, record, form, manifest.held_rows(name), settings=settings, os_io=os_io)


def stored_array(root: Path, record: ArrayRecord, *, settings: ReadSettings, os_io: OsIO) -> RowFile:
    """Return a one-dimensional array's elements as rows with one element, for a sweep over them.

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
    check_array_file(root / record.file, record.dtype, record.shape, os_io=os_io)
    form = RowFormat(dtype=stored_dtype(record.dtype), dim=1)
    file, stored = _opened(root, record, form, None, settings=settings, os_io=os_io)
    file.close()
    return stored


def _opened(
    root: Path,
    record: ArrayRecord,
    form: RowFormat,
    held: HeldRows | None,
    *,
    settings: ReadSettings,
    os_io: OsIO,
) -> tuple[DeviceFile, RowFile]:
    """Open an array's file and load its page checksums; ``form`` is the rows' form, ``held`` the stored rows."""
    path, gap = root / record.file, settings.gap_bytes
    checksums = np.empty(0, np.uint64)
    if settings.verify != "off":
        checksums = writable(load_page_checksums(root, record, os_io=os_io))
    file = DeviceFile(path, direct=settings.file_mode, os_io=os_io)
    try:
        return file, RowFile(
            path=path,
            identity=file.identity,
            num_rows=record.shape[0],
            form=form,
            checksums=checksums,
            format_version=record.version,
            gap_bytes=default_row_gap_bytes(path.parent, form.row_bytes) if gap is None else gap,
            settings=settings,
            os_io=os_io,
            held=held,
        )
    except BaseException:
        file.close()
        raise


def require_here(path: Path, held: HeldRows | None, first: int, last: int) -> None:
    """Require that the rows from ``first`` to ``last`` are on this machine. Pure.

    Parameters
    ----------
    path : the file, for messages
    held : rows on this machine; None means all rows
    first, last : the smallest and the largest requested row

    Raises
    ------
    RowNotHereError
        At least one of the two rows is on another machine.
    """
    if held is None or (held.first <= first and last < held.past):
        return
    row = last if held.first <= first < held.past else first
    raise RowNotHereError(
        f"{path}: row {row} is not on this machine, which has {held}; part {held.part_of(row)} has it: start the run "
        "with torchrun on the machines of all parts, which exchange rows, or prepare a copy with all rows: gloader "
        "prepare without --ranges"
    )


def require_wanted_here(stored: RowFile, wanted: WantedRows) -> None:
    """Require that a sweep's rows are on this machine. Called before the sweep begins. Pure.

    Raises
    ------
    RowNotHereError
        A row is on another machine.
    """
    if stored.held is None:
        return
    begins, ends = wanted.bounds[:-1], wanted.bounds[1:]
    has_rows = begins < ends
    if has_rows.any():
        # Each batch's rows ascend, so its first and its last row are its limits.
        first, last = int(wanted.ids[begins[has_rows]].min()), int(wanted.ids[ends[has_rows] - 1].max())
        require_here(stored.path, stored.held, first, last)


MAX_EXTENT_BYTES: Final = 128 * 1024  # longest read of an `ArrayFile`, if a row is shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition that every element in an array satisfies. Zeros always satisfy it."""

    first_wrong: Callable[[NDArray[Any]], int]  # position of a violating element, or -1
    error: Callable[[int, object], Exception]  # returns the error for an element's position and value


class ArrayFile:
    """An array's open file, read row by row or page by page. Thread-safe. Owns a descriptor until `close`.

    Unlike a `FeatureStore`, it converts nothing, and reads through a lane that other files may share.

    Parameters
    ----------
    root : the directory
    record : the array's entry in the commit record; its rows have at least one byte
    rule : condition on every element that is read page by page
    io : the request method
    os_io : the system calls

    Raises
    ------
    StoreOpenError, IncompleteStoreError, TruncatedStoreError, FormatError, StoreReadError, ChecksumError
        A file cannot be opened or read, its length differs from the record, or its checksums are damaged.
    """

    def __init__(
        self,
        root: Path,
        record: ArrayRecord,
        *,
        rule: Rule | None = None,
        io: IoMode = "auto",
        os_io: OsIO = REAL_OS,
    ) -> None:
        self.path = root / record.file
        check_array_file(self.path, record.dtype, record.shape, os_io=os_io)
        self.record = record
        self.dtype: np.dtype[Any] = stored_dtype(record.dtype)
        self.per_page = PAGE_BYTES // self.dtype.itemsize  # elements per page
        self._rule = rule
        self._gap_bytes = default_row_gap_bytes(self.path.parent, record.row_bytes)
        self._checksums = writable(load_page_checksums(root, record, os_io=os_io))
        self._file = DeviceFile(self.path, direct="off" if io == "buffered" else "auto", os_io=os_io)

    @property
    def is_direct(self) -> bool:
        """True if reads bypass the page cache."""
        return self._file.is_direct

    @property
    def max_extent_bytes(self) -> int:
        """Longest read, for which a lane must have room."""
        return max(MAX_EXTENT_BYTES, min_extent_bytes(self.record.row_bytes))

    @property
    def num_bytes(self) -> int:
        """Bytes that the object holds, without the lane."""
        return self._checksums.nbytes

    def read_rows(self, lane: ReadLane, request: RowRequest) -> NDArray[Any]:
        """Return the rows for ``request`` (ascending) as (M, *shape[1:]), with the stored dtype, at its positions.

        Raises
        ------
        ChecksumError, StoreReadError, TruncatedStoreError
            The bytes on disk differ from the written bytes, or are unreadable; the message names file, page and rows.
        StoreError
            The lane is closed.
        """
        count, shape = len(request.rows), self.record.shape[1:]
        values = np.empty((count, math.prod(shape)), dtype=self.dtype)
        self.read_rows_into(lane, request, values)
        return values.reshape(count, *shape)

    def read_rows_into(self, lane: ReadLane, request: RowRequest, out: NDArray[Any]) -> ReadStats:
        """Read the rows for ``request`` (ascending) into ``out`` (K, elements of a row), at its positions.

        ``out`` is C-contiguous, with the stored dtype. The other rows of ``out`` are left unchanged.

        Raises
        ------
        ChecksumError, StoreReadError, TruncatedStoreError, StoreError
            As in `read_rows`.
        """
        row_bytes = self.record.row_bytes
        # The rows are read as bytes, for which the kernels are already compiled.
        content = out.view(np.uint8).reshape(out.shape[0], row_bytes)
        cost, page = self._read(lane, request.rows, request.position, content, self._gap_bytes)
        if page >= 0:
            raise mismatch(self.path, page, request.rows, row_bytes=row_bytes)
        return cost

    def read_pages(
        self, lane: ReadLane, pages: IdArray, content: NDArray[np.uint8], *, gap_bytes: int
    ) -> ReadStats:
        """Read a one-dimensional array's pages into ``content``, verified. Pages in bridged holes are ignored.

        Parameters
        ----------
        lane : the lane to read through
        pages : (P,) ascending, without repeats
        content : (P, 4096), C-contiguous
        gap_bytes : longest hole that a read bridges

        Raises
        ------
        ChecksumError, StoreReadError, TruncatedStoreError
            The bytes on disk differ from the written bytes, or are unreadable; the message names file and page.
        Exception
            An element violates the array's rule, although its bytes are intact; the error is the rule's.
        """
        cost, page = self._read(lane, pages, NO_POSITIONS, content, gap_bytes)
        if page >= 0:
            raise damaged_pages(self.path, self.record, np.array([page]))
        if self._rule is not None:
            elements = content.view(self.dtype)
            wrong = self._rule.first_wrong(elements.reshape(-1))
            if wrong >= 0:
                row, column = divmod(wrong, self.per_page)
                raise self._rule.error(int(pages[row]) * self.per_page + column, elements[row, column])
        return cost

    def close(self) -> None:
        """Close the file. Idempotent; no read may be in progress."""
        self._file.close()

    def _read(
        self, lane: ReadLane, rows: IdArray, position: IdArray, out: NDArray[np.uint8], gap_bytes: int
    ) -> tuple[ReadStats, int]:
        """Read rows, or pages as rows of 4096 bytes, into ``out``; return the cost and the first bad page, or -1.

        Parameters
        ----------
        lane : the lane to read through
        rows : (M,) row or page numbers, ascending
        position : (M,) output rows, or empty
        out : (>= M, bytes per row)
        gap_bytes : longest hole that a read bridges
        """
        row_bytes = out.shape[1]
        longest = max(MAX_EXTENT_BYTES, min_extent_bytes(row_bytes))
        extents = plan_extents(
            rows,
            row_bytes=row_bytes,
            data_offset=DATA_OFFSET,
            max_gap_bytes=gap_bytes,
            max_extent_bytes=min(longest, lane.bounce_bytes),
        )
        requests, page = lane.read(
            self._file,
            extents,
            make_target(rows, position, out),
            data_offset=DATA_OFFSET,
            checksums=self._checksums,
            format_version=self.record.version,
        )
        return ReadStats(rows=len(rows), requests=requests, bytes_read=extents.num_bytes), page
