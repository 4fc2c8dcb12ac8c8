"""Repeated rows of link tables, found exactly and out of core.

All rows are dealt out over *buckets* by a hash of their ids, so that equal rows are in one bucket, and each bucket is
sorted in memory. A row is *repeated* if an earlier row of its table equals it, and *shared* if a row of an earlier
table does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.convert.csc.spill import Spill
from gloader.core.hashing import GOLDEN, mixed_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import IdArray

_ROW_BYTES: Final = 32  # of a spilled row: its number and three ids
# Bytes per row of a bucket: the row, its copy in order, and the sort.
_SORT_BYTES: Final = 160
_MIN_ROWS: Final = 4_096  # rows that are read or sorted together with any budget
_MAX_ROWS: Final = 1 << 18
_MAX_BUCKETS: Final = 1024  # each bucket has a file


@dataclass(slots=True, kw_only=True)
class Repeats:
    """The repeated rows of one table."""

    num_rows: int
    num_repeated: int = 0
    num_shared: int = 0  # rows that are not repeated, and that an earlier table has
    bits: NDArray[np.uint8] = field(init=False)  # one bit per row; 1 for a repeated row

    def __post_init__(self) -> None:
        self.bits = np.zeros(-(-self.num_rows // 8), np.uint8)

    def mark(self, rows: IdArray) -> None:
        """Mark the rows with the numbers ``rows`` as repeated."""
        np.bitwise_or.at(self.bits, rows >> 3, np.left_shift(1, rows & 7).astype(np.uint8))
        self.num_repeated += len(rows)

    def of(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which of the rows ``start`` ... ``stop - 1`` are repeated (n,)."""
        first = start >> 3
        bits = np.unpackbits(self.bits[first : -(-stop // 8)], bitorder="little")
        return bits[start - 8 * first : stop - 8 * first].astype(np.bool_)


def find_repeats(
    tables: Sequence[tuple[int, Callable[[int], Iterator[IdArray]]]], folder: Path, *, budget_bytes: int
) -> tuple[Repeats, ...]:
    """Return each table's repeated rows.

    Parameters
    ----------
    tables : the number of rows, and a function that yields rows (n, 3) in order, at most as many as its argument
    folder : an existing folder for temporary files
    budget_bytes : memory for the rows of a bucket

    Raises
    ------
    StoreWriteError
        The disk has no room for the temporary files.
    """
    repeats = tuple(Repeats(num_rows=num_rows) for num_rows, _ in tables)
    starts = np.cumsum([0, *(num_rows for num_rows, _ in tables)])  # number of each table's first row
    # Half of the memory holds rows that need no file, and the other half the rows of a bucket.
    most = max(_MIN_ROWS, min(_MAX_ROWS, budget_bytes // 2 // _SORT_BYTES))
    with Spill(
        folder=folder,
        name="repeats",
        dtype=np.dtype(np.int64),
        num_buckets=int(min(_MAX_BUCKETS, max(1, -(-2 * starts[-1] // most)))),
        held_bytes=budget_bytes // 2,
        row_shape=(_ROW_BYTES // 8,),
    ) as spill:
        for start, (_, read) in zip(starts, tables, strict=False):
            done = int(start)
            for ids in read(most):
                rows = np.column_stack([np.arange(done, done + len(ids)), ids])
                spill.deal_out(rows, _buckets(ids, spill.num_buckets))
                done += len(ids)
        for bucket in np.flatnonzero(spill.counts).tolist():
            seen = np.empty((0, _ROW_BYTES // 8), np.int64)
            for piece in spill.pieces(bucket, most):
                seen = _without_repeats(np.concatenate([seen, piece]), starts, repeats)
            _count_shared(seen, starts, repeats)
            spill.drop(bucket)
    return repeats


def _buckets(ids: IdArray, num_buckets: int) -> IdArray:
    """Return each row's bucket (n,). Pure."""
    mixed = np.zeros(len(ids), np.uint64)
    for column in np.ascontiguousarray(ids.T):
        mixed = mixed_words(mixed + column.view(np.uint64) * GOLDEN)
    return (mixed % np.uint64(num_buckets)).astype(np.int64)


def _ordered(rows: IdArray) -> tuple[IdArray, NDArray[np.bool_]]:
    """Return rows sorted by their ids and then their numbers, and which equal the row before (n,). Pure."""
    number, *ids = rows.T
    rows = rows[np.lexsort((number, *ids))]  # the last key counts first
    is_equal = np.zeros(len(rows), np.bool_)
    is_equal[1:] = (rows[1:, 1:] == rows[:-1, 1:]).all(axis=1)
    return rows, is_equal


def _without_repeats(rows: IdArray, starts: IdArray, repeats: tuple[Repeats, ...]) -> IdArray:
    """Mark the repeated rows, and return the others, sorted."""
    rows, is_equal = _ordered(rows)
    tables = np.searchsorted(starts, rows[:, 0], side="right") - 1
    is_repeated = is_equal.copy()
    is_repeated[1:] &= tables[1:] == tables[:-1]
    for number, found in enumerate(repeats):
        found.mark(rows[is_repeated & (tables == number), 0] - starts[number])
    return rows[~is_repeated]


def _count_shared(rows: IdArray, starts: IdArray, repeats: tuple[Repeats, ...]) -> None:
    """Count the rows that an earlier table has. No row of ``rows`` is repeated."""
    rows, is_equal = _ordered(rows)
    tables = np.searchsorted(starts, rows[is_equal, 0], side="right") - 1
    for found, count in zip(repeats, np.bincount(tables, minlength=len(repeats)).tolist(), strict=True):
        found.num_shared += count
