"""A link table that is open for reading: columns are held where they fit, rows of others are read from the SSD."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import numpy as np

from gloader.core.ids import as_ids, outside
from gloader.dataset.link_record import LABELS, NEGATIVES, PAIRS, TIMES, link_error
from gloader.dataset.link_values import LinkCheck
from gloader.dataset.values import wrong_value
from gloader.errors import ShapeError, StoreError
from gloader.ssd_store.format.array_reader import load_array
from gloader.ssd_store.format.format import require_same, told_apart
from gloader.ssd_store.read.lane import ReadLane
from gloader.ssd_store.read.row_array import RowArray
from gloader.ssd_store.read.row_request import NO_POSITIONS, RowRequest
from gloader.types import LinkRows

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.config import IoMode
    from gloader.dataset.link_table import LinkTable
    from gloader.types import IdArray, Relation

# What is read passes through it: room for 512 requests of a page.
_BOUNCE_BYTES: Final = 2 * 2**20
_WHEN_CLOSED: Final = "the link table is closed; open it again"


class OpenLinks:
    """A link table that is open for reading: a `LinkReader`. Thread-safe; a forked child may read beside its parent.

    Nothing is believed that was not verified and checked when it was read. Owns memory, or files and a lane, until
    `close`; also a context manager. Made by `LinkTable.open`.

    Parameters
    ----------
    table : what is read
    max_bytes : memory for what is held: labels and times, then pairs, then negatives, as far as they fit
    io : how rows are read that are not held

    Raises
    ------
    StoreOpenError, IncompleteStoreError, TruncatedStoreError, StoreReadError, ChecksumError, FormatError
        As `LinkTable.open`.
    """

    def __init__(self, table: LinkTable, *, max_bytes: int, io: IoMode = "auto") -> None:
        self._table = table
        self._is_closed = False
        self._stack = ExitStack()
        held = _held(table, max_bytes)
        with told_apart(table.root, table.manifest, os_io=table.os_io):
            try:
                self._columns: dict[str, _Column] = {name: _load(table, name) for name in held}
                lane_bytes = self._open_rows([name for name in table.arrays if name not in held], io)
                require_same(table.root, table.manifest, os_io=table.os_io)
            except BaseException:
                self._stack.close()
                raise
        self._held_bytes = lane_bytes + sum(column.num_bytes for column in self._columns.values())

    @property
    def num_rows(self) -> int:
        """Edges in the table."""
        return self._table.num_rows

    @property
    def relation(self) -> Relation:
        """The relation that the edges are of, or would be."""
        return self._table.relation

    @property
    def reverse_relation(self) -> Relation | None:
        """The relation whose edges lead back; None: there is none."""
        return self._table.reverse_relation

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that are held: columns, or page checksums and the memory that reads pass through."""
        return self._held_bytes

    def read(self, rows: IdArray, /) -> LinkRows:
        """Return ``rows`` (n,) in 0..num_rows-1, in any order, repeats allowed; verified. Thread-safe.

        Raises
        ------
        ShapeError
            A row is not one of the table; nothing was read.
        ChecksumError, StoreReadError, TruncatedStoreError
            The bytes on disk are not those that were written, or cannot be read; names file, page and rows.
        FormatError
            A value cannot be, though its bytes are as they were written; names file and row.
        StoreError
            The table is closed.
        """
        if self._is_closed:
            raise StoreError(f"{self._table.root}: {link_error(self._table.name, _WHEN_CLOSED)}")
        ids = as_ids(rows, noun=f"rows of links {self._table.name!r}", error=ShapeError)
        if len(wrong := outside(ids, self.num_rows)):
            message = f"rows must be in 0..{self.num_rows - 1}; these are not: {wrong[:5].tolist()}"
            raise ShapeError(link_error(self._table.name, message))
        is_sorted = bool(np.all(ids[1:] >= ids[:-1]))
        request = RowRequest(rows=ids, position=NO_POSITIONS, is_sorted=is_sorted).in_file_order()
        found = {name: column.read(ids, request) for name, column in self._columns.items()}
        sources, destinations, positions, reverses = np.ascontiguousarray(found[PAIRS].T)
        return LinkRows(
            sources=sources,
            destinations=destinations,
            positions=positions,
            reverses=reverses,
            labels=found.get(LABELS),
            times=found.get(TIMES),
            negatives=found[NEGATIVES].astype(np.int64) if NEGATIVES in found else None,
        )

    def close(self) -> None:
        """Wait for the reads in progress and release everything. Idempotent."""
        self._is_closed = True
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_rows(self, names: list[str], io: IoMode) -> int:
        """Open the files of arrays, and a lane that they share, which is closed before them; return its bytes."""
        table, arrays = self._table, {}
        for name in names:
            arrays[name] = RowArray(table.root, table.arrays[name], io=io, os_io=table.os_io)
            self._stack.callback(arrays[name].close)
        if not arrays:
            return 0
        lane = ReadLane(
            max(_BOUNCE_BYTES, *(array.max_extent_bytes for array in arrays.values())),
            io=io,
            is_direct=all(array.is_direct for array in arrays.values()),
            os_io=table.os_io,
            when_closed=_WHEN_CLOSED,
        )
        self._stack.callback(lane.close)
        for name, array in arrays.items():
            self._columns[name] = _RowsOnDisk(table, name, array, lane)
        return lane.bounce_bytes


class _Column(Protocol):
    @property
    def num_bytes(self) -> int: ...

    def read(self, rows: IdArray, request: RowRequest) -> NDArray[Any]: ...


class _HeldRows:
    """An array in memory, whose values were checked."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values
        self.num_bytes = values.nbytes

    def read(self, rows: IdArray, request: RowRequest) -> NDArray[Any]:
        del request  # memory has no order
        return self._values[rows]


class _RowsOnDisk:
    """An array on the SSD, whose values are checked whenever they are read."""

    def __init__(self, table: LinkTable, name: str, array: RowArray, lane: ReadLane) -> None:
        self._table, self._name, self._array, self._lane = table, name, array, lane
        self.num_bytes = array.num_bytes

    def read(self, rows: IdArray, request: RowRequest) -> NDArray[Any]:
        values = self._array.read(self._lane, request)
        limits = self._table.limits
        at = limits.first_wrong(self._name, values)
        if at >= 0:
            width = values.size // len(rows)
            position = int(rows[at // width]) * width + at % width
            message = limits.describe(self._name, position, values.reshape(-1)[at])
            raise wrong_value(self._array.path, self._name, message)
        return values


def _held(table: LinkTable, max_bytes: int) -> tuple[str, ...]:
    """Return the names of the arrays that are held.

    The narrow columns first: a row of a column that is not held is a request of a page, however narrow it is.
    """
    held, left = [], max_bytes
    for name in (LABELS, TIMES, PAIRS, NEGATIVES):
        if name in table.arrays:
            left -= table.arrays[name].num_bytes
            if left < 0:
                break
            held.append(name)
    return tuple(held)


def _load(table: LinkTable, name: str) -> _Column:
    record = table.arrays[name]
    values = load_array(table.root, record, os_io=table.os_io)
    check = LinkCheck(name, table.limits, in_graph=table.in_graph)
    message = check.wrong(values) or check.wrong_end()
    if message is not None:
        raise wrong_value(table.root / record.file, name, message)
    return _HeldRows(values)
