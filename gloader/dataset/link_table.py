"""A dataset's link tables: edges to predict, with optional labels, times and negative destinations.

`LinkTable` describes a table from the commit record, without open files. `LinkTable.open` returns `OpenLinks`, which
reads rows. A table has up to four columns: pairs, labels, times and negatives, see `gloader.dataset.link_record`. A
column is in memory if it fits, and otherwise its rows are read from the SSD. A lane is a read queue with an aligned
buffer. A link loader opens a table and reads the rows of each batch.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.core.ids import as_ids, outside
from gloader.core.near_names import near_attributes
from gloader.dataset.link_record import LINK_LABELS, NEGATIVES, PAIRS, TIMES, LinkCheck, link_error
from gloader.dataset.values import wrong_value
from gloader.errors import ShapeError, StoreError
from gloader.ssd_store.format.array_reader import load_array
from gloader.ssd_store.format.format import detecting_replacement, require_same
from gloader.ssd_store.read.columns import NO_POSITIONS, ArrayFile, RowRequest
from gloader.ssd_store.read.lane import ReadLane
from gloader.types import LinkRows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.config import IoMode
    from gloader.dataset.link_record import LinkLimits
    from gloader.dataset.schema import LinkRecord
    from gloader.ssd_store.format.format import ArrayRecord, Manifest
    from gloader.ssd_store.os_io import OsIO
    from gloader.types import IdArray, Relation


# Minimum bytes of the lane's read buffer: 512 requests of one page of 4096 bytes.
_BOUNCE_BYTES: Final = 2 * 2**20
_WHEN_CLOSED: Final = "the link table is closed; open it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkArrays:
    """A link table's arrays, and the bounds for their values, checked at every read."""

    root: Path  # the dataset's directory
    manifest: Manifest  # the dataset's checked commit record
    os_io: OsIO  # system calls for reading
    table: LinkRecord  # the table's entry in the commit record
    records: Mapping[str, ArrayRecord]  # array records by plain name
    limits: LinkLimits  # bounds for the values


class OpenLinks:
    """A link table that is open for reading, as the protocol `LinkReader`. Thread-safe. A forked child may read too.

    Checksums and values are checked at every read. Owns memory, or files and a lane, until `close`. A context manager.
    Made by `LinkTable.open`.

    Parameters
    ----------
    arrays : the table's arrays
    max_bytes : memory for columns. Labels, times, pairs and negatives are held in this order, as far as they fit
    io : the I/O mode for rows on disk

    Raises
    ------
    StoreOpenError, IncompleteStoreError, TruncatedStoreError, StoreReadError, ChecksumError, FormatError
        As `LinkTable.open`.
    """

    def __init__(self, arrays: LinkArrays, *, max_bytes: int, io: IoMode = "auto") -> None:
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
    def num_rows(self) -> int:
        """The number of edges to predict."""
        return self._arrays.records[PAIRS].shape[0]

    @property
    def relation(self) -> Relation:
        """The edges' relation."""
        return self._arrays.table.relation

    @property
    def reverse_relation(self) -> Relation | None:
        """The reverse relation, or None."""
        return self._arrays.table.reverse

    @property
    def held_bytes(self) -> int:
        """Bytes in memory: columns, page checksums and the read buffer."""
        return self._held_bytes

    def read(self, rows: IdArray, /) -> LinkRows:
        """Return the verified rows with the numbers ``rows`` (n,), which may be unsorted and repeated. Thread-safe.

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
        if self._is_closed:
            raise StoreError(f"{self._arrays.root}: {link_error(self._arrays.table.name, _WHEN_CLOSED)}")
        ids = as_ids(rows, noun=f"rows of links {self._arrays.table.name!r}", error=ShapeError)
        if len(wrong := outside(ids, self.num_rows)):
            message = f"rows must be in 0..{self.num_rows - 1}; these are not: {wrong[:5].tolist()}"
            raise ShapeError(link_error(self._arrays.table.name, message))
        is_sorted = bool(np.all(ids[1:] >= ids[:-1]))
        # A column on disk is read in file order. ``columns`` have the rows in the order of ``rows``.
        request = RowRequest(rows=ids, position=NO_POSITIONS, is_sorted=is_sorted).in_file_order()
        columns = {name: column.read(ids, request) for name, column in self._columns.items()}
        sources, destinations, positions, reverses = np.ascontiguousarray(columns[PAIRS].T)
        return LinkRows(
            sources=sources,
            destinations=destinations,
            positions=positions,
            reverses=reverses,
            labels=columns.get(LINK_LABELS),
            times=columns.get(TIMES),
            negatives=columns[NEGATIVES].astype(np.int64) if NEGATIVES in columns else None,
        )

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

    def __init__(self, name: str, file: ArrayFile, lane: ReadLane, limits: LinkLimits) -> None:
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


def _held(arrays: LinkArrays, max_bytes: int) -> tuple[str, ...]:
    """Return the names of the columns to hold in memory.

    Narrow columns come first: on disk, each row costs a request for a full page, even if the row is narrow.
    """
    held, left = [], max_bytes
    for name in (LINK_LABELS, TIMES, PAIRS, NEGATIVES):
        if name in arrays.records:
            left -= arrays.records[name].num_bytes
            if left < 0:
                break
            held.append(name)
    return tuple(held)


def _load(arrays: LinkArrays, name: str) -> _HeldRows:
    """Read a column into memory, verified. Raises FormatError for an invalid value."""
    record = arrays.records[name]
    values = load_array(arrays.root, record, os_io=arrays.os_io)
    check = LinkCheck(name, arrays.limits, in_graph=arrays.table.in_graph)
    message = check.wrong(values) or check.wrong_end()
    if message is not None:
        raise wrong_value(arrays.root / record.file, name, message)
    return _HeldRows(values)


@near_attributes
class LinkTable:
    """A link table. Thread-safe and read-only, without open files. Made by `Dataset`.

    Parameters
    ----------
    arrays : the table's arrays, and its entry in the commit record
    """

    def __init__(self, arrays: LinkArrays) -> None:
        self._arrays = arrays

    def __repr__(self) -> str:
        """Return the table's name, relation and number of rows."""
        return f"LinkTable({self.name!r}, relation={':'.join(self.relation)!r}, num_rows={self.num_rows})"

    @property
    def arrays(self) -> Mapping[str, ArrayRecord]:
        """The array records, by plain name."""
        return self._arrays.records

    @property
    def name(self) -> str:
        """The table's name, such as "train"."""
        return self._arrays.table.name

    @property
    def relation(self) -> Relation:
        """The edges' relation."""
        return self._arrays.table.relation

    @property
    def reverse_relation(self) -> Relation | None:
        """The reverse relation, or None."""
        return self._arrays.table.reverse

    @property
    def num_rows(self) -> int:
        """The number of edges to predict."""
        return self.arrays[PAIRS].shape[0]

    @property
    def in_graph(self) -> int:
        """Number of rows whose edge is also in the graph. A batch may sample such an edge unless it is excluded."""
        return self._arrays.table.in_graph

    @property
    def has_labels(self) -> bool:
        """True if each row has a label."""
        return LINK_LABELS in self.arrays

    @property
    def label_dtype(self) -> str | None:
        """The labels' dtype, int64 or float32, or None without labels."""
        return self.arrays[LINK_LABELS].dtype if self.has_labels else None

    @property
    def has_times(self) -> bool:
        """True if each row has a time."""
        return TIMES in self.arrays

    @property
    def negatives_per_row(self) -> int:
        """The number of given negative destinations per row, or 0."""
        return self.arrays[NEGATIVES].shape[1] if NEGATIVES in self.arrays else 0

    @property
    def num_bytes(self) -> int:
        """Bytes of pairs, labels and times."""
        return sum(record.num_bytes for record in self.arrays.values()) - self.negative_bytes

    @property
    def negative_bytes(self) -> int:
        """Bytes for the given negative destinations."""
        return self.arrays[NEGATIVES].num_bytes if NEGATIVES in self.arrays else 0

    def open(self, *, max_bytes: int, io: IoMode = "auto") -> OpenLinks:
        """Open the table for reading rows in any order, until the reader is closed.

        Labels, times, pairs and negatives, in this order, are read into memory as far as they fit into ``max_bytes``,
        and verified once. For the other columns, only the page checksums are in memory. Their rows are read, verified
        and checked on demand. `OpenLinks.read` returns the same values in either case.

        Parameters
        ----------
        max_bytes : memory for columns
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
        return OpenLinks(self._arrays, max_bytes=max_bytes, io=io)
