"""Rows that wait for the batch that will load them, in memory and, if they do not fit, in the spill folder.

The piece of a batch has all rows that wait for it: those that were evicted forward to it, and those that were read
ahead from the table. Rows of many batches arrive mixed. They are kept in places of one array in memory. When it is
full, the rows of the batches with most rows leave it, a quarter of the array at a time: so a piece is written in large
parts, and nothing is written if the waiting rows fit in memory.

A row that leaves goes to a file in the spill folder. Without a folder, or if the folder or the index of its rows is
full, it goes to the table, which is read at the load: a page for each row, several times slower.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, PlanError
from gloader.ssd_store.embedding.piece_kernels import copy_rows, link, list_places, match
from gloader.ssd_store.format.checksum import PAGE_BYTES, num_pages_of
from gloader.ssd_store.os_io import REAL_OS
from gloader.ssd_store.read.lane import ReadLane
from gloader.ssd_store.spill.pieces import SpilledPieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.types import IdArray

_LOG = logging.getLogger(__name__)

_PLACE_BYTES: Final = 17  # bytes in memory for each place beside its row: id, links, flag, free list
INDEX_BYTES: Final = 9  # bytes in memory for each row in a file: id and flag
_LEAST_PLACES: Final = 16  # a quarter of the array is flushed, and two threads add a quarter each
_PART_BYTES: Final = 2**20  # most bytes of rows that are copied, written to a file or read from it at once
_CHUNK_BYTES: Final = 4 * 2**20  # most bytes of rows that are added at once, straight into their places
# Memory beside the waiting rows: parts that are gathered by two threads, written and read, and the lane's buffer.
WORK_BYTES: Final = 5 * _PART_BYTES


def least_staging_bytes(width: int) -> int:
    """Return the least memory bytes for waiting rows of ``width`` float32. Pure."""
    return _LEAST_PLACES * _bytes_of_place(width)


def _bytes_of_place(width: int) -> int:
    return 4 * width + _PLACE_BYTES


def copy_matching(
    ids: IdArray,
    read: Callable[[], NDArray[np.float32]],
    wanted: IdArray,
    target: NDArray[np.float32],
    is_found: NDArray[np.bool_],
) -> None:
    """Copy the rows with one of the ids ``wanted`` (M,), ascending, to ``target`` (M, width), and set ``is_found``.

    Parameters
    ----------
    ids : (n,) the rows' ids; no id of ``wanted`` repeats
    read : returns the rows (n, width); called if there is a match
    wanted, target, is_found : (M,), (M, width) and (M,)
    """
    take, at = np.empty((2, min(len(ids), len(wanted))), np.int64)
    count = match(ids, wanted, take, at)
    if count:
        copy_rows(read().reshape(-1), take[:count], target.reshape(-1), at[:count], target.shape[1])
        is_found[at[:count]] = True


def append_rows(
    append: Callable[[IdArray, NDArray[np.float32]], None],
    ids: IdArray,
    rows: NDArray[np.float32],
    places: IdArray,
) -> None:
    """Call ``append`` with the ids and copies of the rows at ``places``, in parts of about 1 MiB.

    Parameters
    ----------
    append : takes ids (n,) and rows (n, width)
    ids, rows : (C,) and (C, width), C-contiguous
    places : (M,) indices into both
    """
    part_rows = _part_rows(rows.shape[1])
    for start in range(0, len(places), part_rows):
        part = places[start : start + part_rows]
        append(ids[part], _gather(rows, part))


def _gather(rows: NDArray[np.float32], places: IdArray) -> NDArray[np.float32]:
    """Return a copy of the ``rows`` (C, width) at ``places`` (n,)."""
    out = np.empty((len(places), rows.shape[1]), np.float32)
    copy_rows(rows.reshape(-1), places, out.reshape(-1), np.arange(len(places)), rows.shape[1])
    return out


def _part_rows(width: int) -> int:
    """Return the rows that are copied, written or read at once."""
    return max(_PART_BYTES // (4 * width), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FilePart:
    """A part of a batch's piece in a file."""

    pieces: SpilledPieces
    owner: int
    ids: IdArray  # (n,)
    is_dirty: NDArray[np.bool_]  # (n,)


class RowPieces:
    """The rows that wait for batches. Thread-safe. Owns its files until `close`.

    A row is dirty if the table does not have its newest version.

    Parameters
    ----------
    width : float32 values in a row
    num_bytes : memory for waiting rows, beside `WORK_BYTES` and `INDEX_BYTES` for each row in a file
    most_spilled : rows in files, at most
    append : writes rows to the table; called with ids (n,) and rows (n, width)
    spill : folder for the rows that do not fit in memory; None means that they go to the table

    Raises
    ------
    BudgetError
        ``num_bytes`` is too small.
    """

    def __init__(
        self,
        width: int,
        *,
        num_bytes: int,
        most_spilled: int = 2**62,
        append: Callable[[IdArray, NDArray[np.float32]], None],
        spill: SpillFolder | None,
    ) -> None:
        if num_bytes < least_staging_bytes(width):
            raise BudgetError(
                f"rows of {width} float32 that wait for their batch need at least {least_staging_bytes(width)} bytes "
                f"of memory ({format_bytes(least_staging_bytes(width))}), and have {num_bytes}; raise memory_budget"
            )
        size = num_bytes // _bytes_of_place(width)
        self.chunk_rows = max(min(_CHUNK_BYTES // (4 * width), size // 4), 1)  # most rows of one `add`
        self._part_rows = _part_rows(width)
        self._width = width
        self._append = append
        self._spill = spill
        self._most_spilled = most_spilled
        self._lock = threading.RLock()  # guards everything below; held while files are written and read
        self._rows = aligned_bytes(size * 4 * width).view(np.float32).reshape(size, width)
        self._ids = np.full(size, -1, np.int64)  # -1: free, or not yet filled
        self._is_dirty = np.zeros(size, np.bool_)
        self._following = np.full(size, -1, np.int32)
        self._free = np.arange(size, dtype=np.int32)  # a stack of the free places
        self._num_free = size
        self._heads = np.full(1024, -1, np.int32)
        self._counts = np.zeros(1024, np.int32)
        self._first = 0  # no row waits for a batch before this one
        self._last = -1  # nor for one after this
        self._parts: dict[int, list[_FilePart]] = {}  # by batch
        self._num_spilled = 0
        self._in_table: dict[int, int] = {}  # by batch: rows that left to the table
        self._lane: ReadLane | None = None
        self._has_warned = False  # whether the log says that rows leave to the table
        self.bytes_read = 0  # of files
        self.bytes_written = 0  # to files

    def add(
        self,
        ids: IdArray,
        batches: IdArray,
        is_dirty: NDArray[np.bool_],
        fill: Callable[[NDArray[np.float32], IdArray], IdArray],
    ) -> IdArray:
        """Add rows, and return the positions of those that ``fill`` did not write, which are not added.

        Each batch is later than those that `take` was called for.

        Parameters
        ----------
        ids : (n,) at most `chunk_rows`
        batches : (n,) the batch that each row waits for
        is_dirty : (n,)
        fill : called with an array and the places (n,) in it, to which it writes rows; returns the positions of the
            rows that it did not write

        Raises
        ------
        BudgetError, SpillError, StoreError
            Other rows cannot be written to make room, or ``fill`` raised it.
        PlanError
            Rows for batches that are over fill the memory.
        """
        with self._lock:
            while self._num_free < len(ids):
                self._flush()
            self._num_free -= len(ids)
            places = self._free[self._num_free : self._num_free + len(ids)].astype(np.int64)
        # The places are not free and in no list, so this thread may write to them without the lock.
        dropped = fill(self._rows, places)
        with self._lock:
            self._release_places(places[dropped])
            kept = np.delete(np.arange(len(ids)), dropped)
            places, ids, batches = places[kept], ids[kept], batches[kept]
            self._last = max(self._last, int(batches.max(initial=-1)))
            if self._last - self._first >= len(self._heads):
                self._widen()
            self._ids[places] = ids
            self._is_dirty[places] = is_dirty[kept]
            link(places, batches, self._heads, self._counts, self._following)
        return dropped

    def take(
        self,
        batch: int,
        wanted: IdArray,
        target: NDArray[np.float32],
        at: IdArray,
        is_dirty: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Take the rows that wait for ``batch``. Return a mask of ``wanted``: False for rows that the table has.

        Parameters
        ----------
        batch : the batch; after the call no rows may be added for it, or for a batch before it
        wanted : (M,) ascending ids of all rows that were added for the batch
        target : (C, width), receives the rows
        at : (M,) row in ``target`` for each id
        is_dirty : (C,) receives whether each row is dirty

        Raises
        ------
        PlanError
            Other rows wait for the batch than ``wanted``.
        ChecksumError, SpillError
            A file is damaged or cannot be read.
        """
        is_found = np.zeros(len(wanted), np.bool_)

        def put(rows: NDArray[np.float32], places: IdArray, ids: IdArray, flags: NDArray[np.bool_]) -> None:
            index, position = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
            count = match(ids, wanted, index, position)
            is_found[position[:count]] = True
            if count != len(ids):
                row = np.setdiff1d(ids, wanted)[0]
                raise PlanError(f"row {row} waits for batch {batch}, which does not load it")
            copy_rows(rows.reshape(-1), places[index], target.reshape(-1), at[position], self._width)
            is_dirty[at[position]] = flags[index]

        with self._lock:
            places = self._list(batch)
            num_taken = len(places)
            put(self._rows, places, self._ids[places], self._is_dirty[places])
            self._clear(batch, places)
            for part in self._parts.pop(batch, ()):
                rows = self._read(part)
                put(rows, np.arange(len(rows)), part.ids, part.is_dirty)
                num_taken += len(rows)
                self._release(part)
            num_missing = self._in_table.pop(batch, 0)
            self._first = batch + 1
        if num_taken != np.count_nonzero(is_found) or num_taken + num_missing != len(wanted):
            raise PlanError(
                f"batch {batch} loads {len(wanted)} rows, and {num_taken} wait for it, {np.count_nonzero(is_found)} of "
                f"them distinct; {num_missing} are in the table"
            )
        return is_found

    def copy_held(self, wanted: IdArray, target: NDArray[np.float32], is_found: NDArray[np.bool_]) -> None:
        """Copy the waiting rows among ``wanted`` (M,), ascending, to ``target`` (M, width), and set ``is_found``."""
        with self._lock:
            copy_matching(self._ids, lambda: self._rows, wanted, target, is_found)
            for part in self._all_parts():
                copy_matching(part.ids, partial(self._read, part), wanted, target, is_found)

    def save(self) -> int:
        """Write the dirty rows to the table. They keep waiting, and are then clean. Return their number."""
        with self._lock:
            places = np.flatnonzero(self._is_dirty)
            count = len(places)
            append_rows(self._append, self._ids, self._rows, places)
            self._is_dirty[places] = False
            for parts in self._dirty_runs():
                rows = self._read_each(parts)
                for part, content in zip(parts, rows, strict=True):
                    self._append(part.ids[part.is_dirty], content[part.is_dirty])
                    count += int(np.count_nonzero(part.is_dirty))
                    part.is_dirty[:] = False
        return count

    def clear(self) -> None:
        """Drop all rows. The next batch is batch 0."""
        with self._lock:
            for part in self._all_parts():
                self._release(part)
            self._parts.clear()
            self._in_table.clear()
            self._ids[:] = -1
            self._is_dirty[:] = False
            self._free[:] = np.arange(len(self._free))
            self._num_free = len(self._free)
            self._heads[:] = -1
            self._counts[:] = 0
            self._first, self._last = 0, -1

    def close(self) -> None:
        """Remove all files. Idempotent."""
        with self._lock:
            self.clear()
            if self._lane is not None:
                self._lane.close()
                self._lane = None

    def _list(self, batch: int) -> IdArray:
        """Return the places of the batch's rows in memory."""
        index = batch & (len(self._heads) - 1)
        places = np.empty(self._counts[index] if batch <= self._last else 0, np.int64)
        list_places(int(self._heads[index]), self._following, places)
        return places

    def _clear(self, batch: int, places: IdArray) -> None:
        """Free the ``places`` of the batch."""
        if len(places):
            index = batch & (len(self._heads) - 1)
            self._heads[index], self._counts[index] = -1, 0
            self._release_places(places)

    def _release_places(self, places: IdArray) -> None:
        """Make ``places`` free."""
        self._ids[places] = -1
        self._is_dirty[places] = False
        self._free[self._num_free : self._num_free + len(places)] = places
        self._num_free += len(places)

    def _widen(self) -> None:
        """Double the number of lists until every batch has its own."""
        heads, counts = self._heads, self._counts
        size = 1 << (self._last - self._first + 1).bit_length()
        self._heads, self._counts = np.full(size, -1, np.int32), np.zeros(size, np.int32)
        batches = self._first + np.arange(len(heads))
        self._heads[batches & (size - 1)] = heads[batches & (len(heads) - 1)]
        self._counts[batches & (size - 1)] = counts[batches & (len(heads) - 1)]

    def _flush(self) -> None:
        """Let the rows of the batches with most rows leave the memory, at least a quarter of its rows if there are any.

        So parts are large: a batch reads few of them. Of batches with equally many rows the farthest leave first.
        """
        batches = np.arange(self._last, self._first - 1, -1)
        counts = self._counts[batches & (len(self._heads) - 1)]
        order = np.argsort(-counts, kind="stable")
        num_leaving = int(np.searchsorted(np.cumsum(counts[order]), len(self._free) // 4)) + 1
        chosen = order[:num_leaving]
        chosen = chosen[counts[chosen] > 0]
        leaving = [(batch, self._list(batch)) for batch in batches[chosen].tolist()]
        count = int(counts[chosen].sum())
        if not leaving:
            raise PlanError(
                f"rows wait for batches before batch {self._first}, which were loaded without them"
            )
        # Each part ends on a page, so a file is at most a page for each batch longer than its rows.
        num_bytes = 4 * self._width * count + PAGE_BYTES * (
            len(leaving) + 4 * self._width * count // _PART_BYTES + 1
        )
        if (
            self._spill is not None
            and self._num_spilled + count <= self._most_spilled
            and self._spill.room_bytes >= num_bytes
        ):
            self._write(self._spill, leaving)
        else:
            if not self._has_warned:
                self._has_warned = True
                _LOG.warning(
                    "rows of an embedding that wait for later batches do not fit in memory or in the spill folder: "
                    "they are read again from the table, which takes several times longer; raise spill_budget, or give "
                    "the embedding a larger cache"
                )
            for batch, places in leaving:
                append_rows(self._append, self._ids, self._rows, places[self._is_dirty[places]])
                self._in_table[batch] = self._in_table.get(batch, 0) + len(places)
        for batch, places in leaving:
            self._clear(batch, places)

    def _write(self, spill: SpillFolder, leaving: list[tuple[int, IdArray]]) -> None:
        """Write rows to one file; ``leaving`` has the places of each batch."""
        parts = [
            (batch, places[start : start + self._part_rows])
            for batch, places in leaving
            for start in range(0, len(places), self._part_rows)
        ]
        num_pages = sum(num_pages_of(4 * self._width * len(places)) for _, places in parts)
        pieces = SpilledPieces(
            spill,
            [0] * len(parts),
            {0: num_pages * PAGE_BYTES},
            piece_bytes=4 * self._width * max(len(places) for _, places in parts),
            label="the rows that wait for later batches",
        )
        try:
            for owner, (_, places) in enumerate(parts):
                pieces.append(owner, _gather(self._rows, places).reshape(-1).view(np.uint8))
            pieces.complete()
        except BaseException as error:
            pieces.give_up(error)
            raise
        self.bytes_written += pieces.bytes_written
        for owner, (batch, places) in enumerate(parts):
            part = _FilePart(
                pieces=pieces, owner=owner, ids=self._ids[places], is_dirty=self._is_dirty[places]
            )
            self._parts.setdefault(batch, []).append(part)
            self._num_spilled += len(places)

    def _all_parts(self) -> Iterator[_FilePart]:
        """Yield every part in a file."""
        for parts in self._parts.values():
            yield from parts

    def _dirty_runs(self) -> Iterator[list[_FilePart]]:
        """Yield the parts with dirty rows, those of a file in its order, as many as may be read at once."""
        dirty = [part for part in self._all_parts() if part.is_dirty.any()]
        dirty.sort(key=lambda part: (id(part.pieces), part.owner))
        run: list[_FilePart] = []
        for part in dirty:
            num_rows = sum(len(each.ids) for each in run) + len(part.ids)
            if run and (run[0].pieces is not part.pieces or num_rows > self._part_rows):
                yield run
                run = []
            run.append(part)
        if run:
            yield run

    def _read(self, part: _FilePart) -> NDArray[np.float32]:
        """Return the rows (n, width) of a part, every byte checked."""
        return self._read_each([part])[0]

    def _read_each(self, parts: list[_FilePart]) -> list[NDArray[np.float32]]:
        """Return the rows (n, width) of each of some parts of one file, every byte checked."""
        if self._lane is None:  # without a file there is no lane
            self._lane = ReadLane(
                _PART_BYTES,
                io="auto",
                is_direct=True,
                os_io=REAL_OS if self._spill is None else self._spill.os_io,
                when_closed="the embedding is closed",
            )
        owners = [part.owner for part in parts]
        found = parts[0].pieces.read_each(owners, self._lane, np.dtype(np.float32))
        self.bytes_read += sum(rows.nbytes for rows in found)
        return [rows.reshape(-1, self._width) for rows in found]

    def _release(self, part: _FilePart) -> None:
        """Give a part's bytes back."""
        part.pieces.release(part.owner)
        self._num_spilled -= len(part.ids)
