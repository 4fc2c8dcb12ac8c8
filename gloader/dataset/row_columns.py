"""Columns of a table's rows, held in memory or read from the SSD: the rows of link tables and task tables.

`OpenColumns` reads any rows of a table's arrays. A column is in memory if it fits, and otherwise its rows are read from
the SSD. Checksums and values are checked at every read. A lane is a read queue with an aligned buffer.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import numpy as np

from gloader.core.ids import as_ids, outside
from gloader.dataset.values import wrong_value
from gloader.errors import ShapeError, StoreError
from gloader.ssd_store.format.array_reader import load_array
from gloader.ssd_store.format.format import detecting_replacement, require_same
from gloader.ssd_store.read.columns import NO_POSITIONS, ArrayFile, RowRequest
from gloader.ssd_store.read.lane import ReadLane

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.config import IoMode
    from gloader.ssd_store.format.format import ArrayRecord, Manifest
    from gloader.ssd_store.format.verification import ElementCheck
    from gloader.ssd_store.os_io import OsIO
    from gloader.types import IdArray


# Minimum bytes of the lane's read buffer: 512 requests of one page of 4096 bytes.
_BOUNCE_BYTES: Final = 2 * 2**20
_WHEN_CLOSED: Final = "the table is closed; open it again"


class RowLimits(Protocol):
    """Bounds for the values of a table's arrays."""

    def first_wrong(self, name: str, values: NDArray[Any], /) -> int:
        """Return the index of the first invalid value in ``values`` of the array ``name``, or -1."""
        ...

    def describe(self, name: str, position: int, value: object, /) -> str:
        """Return a message about the invalid ``value`` at element ``position`` of the flat array ``name``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowArrays:
    """The arrays of a table with one row per edge to predict, per row to predict or per node."""

    root: Path  # the dataset's directory
    manifest: Manifest  # the dataset's checked commit record
    os_io: OsIO  # system calls for reading
    noun: str  # the table's kind and name for messages, such as "links 'train'"
    records: Mapping[str, ArrayRecord]  # by plain name, in the order in which they are held in memory
    limits: RowLimits  # bounds for the values, checked at every read
    check: Callable[[str], ElementCheck]  # makes the check of a full array from its plain name

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return next(iter(self.records.values())).shape[0]


class OpenColumns:
    """A table's columns, open for reading. Thread-safe. A forked child may read too. A context manager.

    Checksums and values are checked at every read. Owns memory, or files and a lane, until `close`.

    Parameters
    ----------
    arrays : the table's arrays
    max_bytes : memory for columns, which are held in the order of ``arrays.records``, as far as they fit
    io : the I/O mode for rows on disk

    Raises
    ------
    StoreOpenError, IncompleteStoreError, TruncatedStoreError, StoreReadError
        A file cannot be read, or does not have the recorded length. Or the dataset was replaced.
    ChecksumError, FormatError
        The bytes differ from the written bytes, or a value is invalid. The message names file, and page or row.
    ConfigError
        ``io`` is not available here.
    """

    def __init__(self, arrays: RowArrays, *, max_bytes: int, io: IoMode = "auto") -> None:
        self._arrays = arrays
        self._is_closed = False
        self._stack = ExitStack()
        held = _held(arrays, max_bytes)
        with detecting_replacement(arrays.root, arrays.manifest, os_io=arrays.os_io):
            try:
                self._columns: dict[str, _HeldRows | _RowsOnDisk] = {
                    name: _load(arrays, name) for name in held
                }
                lane_bytes = self._open_rows([name for name in arrays.records if name not in held], io)
                require_same(arrays.root, arrays.manifest, os_io=arrays.os_io)
            except BaseException:
                self._stack.close()
                raise
        self._held_bytes = lane_bytes + sum(column.num_bytes for column in self._columns.values())

    @property
    def held_bytes(self) -> int:
        """Bytes in memory: columns, page checksums and the read buffer."""
        return self._held_bytes

    def read(self, rows: IdArray, *, names: tuple[str, ...] | None = None) -> dict[str, NDArray[Any]]:
        """Return the verified values of ``rows`` (n,), which may be unsorted and repeated, by column. Thread-safe.

        Parameters
        ----------
        rows : numbers of rows
        names : the columns to read; None reads all

        Raises
        ------
        ShapeError
            A number is not in 0..num_rows-1. Nothing was read.
        ChecksumError, StoreReadError, TruncatedStoreError
            The bytes differ from the written bytes, or cannot be read. The message names file, page and rows.
        FormatError
            A value is invalid, though its bytes are unchanged. The message names file and row.
        StoreError
            The table is closed.
        """
        arrays = self._arrays
        if self._is_closed:
            raise StoreError(f"{arrays.root}: {arrays.noun}: {_WHEN_CLOSED}")
        ids = as_ids(rows, noun=f"rows of {arrays.noun}", error=ShapeError)
        if len(wrong := outside(ids, arrays.num_rows)):
            message = f"rows must be in 0..{arrays.num_rows - 1}; these are not: {wrong[:5].tolist()}"
            raise ShapeError(f"{arrays.noun}: {message}")
        is_sorted = bool(np.all(ids[1:] >= ids[:-1]))
        # A column on disk is read in file order. The values have the order of ``rows``.
        request = RowRequest(rows=ids, position=NO_POSITIONS, is_sorted=is_sorted).in_file_order()
        return {
            name: column.read(ids, request)
            for name, column in self._columns.items()
            if names is None or name in names
        }

    def close(self) -> None:
        """Wait for running reads, and release everything. Idempotent."""
        self._is_closed = True
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_rows(self, names: list[str], io: IoMode) -> int:
        """Open the files of the arrays ``names`` and their shared lane. Return the bytes of its read buffer.

        The lane is closed before the files.
        """
        arrays, files = self._arrays, {}
        for name in names:
            files[name] = ArrayFile(arrays.root, arrays.records[name], io=io, os_io=arrays.os_io)
            self._stack.callback(files[name].close)
        if not files:
            return 0
        lane = ReadLane(
            max(_BOUNCE_BYTES, *(file.max_extent_bytes for file in files.values())),
            io=io,
            is_direct=all(file.is_direct for file in files.values()),
            os_io=arrays.os_io,
            when_closed=_WHEN_CLOSED,
        )
        self._stack.callback(lane.close)
        for name, file in files.items():
            self._columns[name] = _RowsOnDisk(name, file, lane, arrays.limits)
        return lane.bounce_bytes


class _HeldRows:
    """A column in memory, with checked values."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values
        self.num_bytes = values.nbytes

    def read(self, rows: IdArray, request: RowRequest) -> NDArray[Any]:
        """Return the values of ``rows`` (n,)."""
        del request  # the order does not matter in memory
        return self._values[rows]


class _RowsOnDisk:
    """A column on the SSD. Its values are checked at every read."""

    def __init__(self, name: str, file: ArrayFile, lane: ReadLane, limits: RowLimits) -> None:
        self._name, self._file, self._lane, self._limits = name, file, lane, limits
        self.num_bytes = file.num_bytes

    def read(self, rows: IdArray, request: RowRequest) -> NDArray[Any]:
        """Return the values of ``rows`` (n,), which ``request`` has in file order. Raises FormatError."""
        values = self._file.read_rows(self._lane, request)
        wrong_index = self._limits.first_wrong(self._name, values)
        if wrong_index >= 0:
            width = values.size // len(rows)  # elements per row
            position = int(rows[wrong_index // width]) * width + wrong_index % width
            message = self._limits.describe(self._name, position, values.reshape(-1)[wrong_index])
            raise wrong_value(self._file.path, self._name, message)
        return values


def _held(arrays: RowArrays, max_bytes: int) -> tuple[str, ...]:
    """Return the names of the columns to hold in memory."""
    sums = accumulate(record.num_bytes for record in arrays.records.values())
    return tuple(name for name, num_bytes in zip(arrays.records, sums, strict=True) if num_bytes <= max_bytes)


def _load(arrays: RowArrays, name: str) -> _HeldRows:
    """Read a column into memory, verified. Raises FormatError for an invalid value."""
    record = arrays.records[name]
    values = load_array(arrays.root, record, os_io=arrays.os_io)
    check = arrays.check(name)
    message = check.wrong(values) or check.wrong_end()
    if message is not None:
        raise wrong_value(arrays.root / record.file, name, message)
    return _HeldRows(values)
