"""The append buffer of an embedding table: the newest versions of some rows, in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.ssd_store.embedding.table_kernels import put_rows, take_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

# Bytes for each row beside its floats: its id, up to four places of the index (a power of two of at least two places
# for each row), and its position in id order while the buffer is written to a run.
_INDEX_BYTES: Final = 8 + 4 * 4 + 8


def buffered_row_bytes(width: int) -> int:
    """Return the bytes of memory for a row of ``width`` float32. Pure."""
    return 4 * width + _INDEX_BYTES


class RowBuffer:
    """Rows by id, of which the newest version stays. Takes its memory at once. Not thread-safe.

    Parameters
    ----------
    capacity : largest number of rows, at least 1; above 2**30 it is 2**30
    width : number of float32 in a row
    """

    def __init__(self, capacity: int, width: int) -> None:
        capacity = min(capacity, 2**30)  # the index has numbers of 32 bits
        self._ids = np.empty(capacity, np.int64)
        self._rows = np.empty((capacity, width), np.float32)
        self._index = np.full(1 << (2 * capacity - 1).bit_length(), -1, np.int32)
        self._count = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count

    @property
    def capacity(self) -> int:
        """Largest number of rows."""
        return self._ids.shape[0]

    def put(self, ids: IdArray, rows: NDArray[np.float32]) -> int:
        """Copy ``rows`` (M, width) of ``ids`` (M,), until the buffer is full; return the number of copied rows."""
        taken, self._count = put_rows(ids, rows, self._index, self._ids, self._rows, self._count)
        return int(taken)

    def take(self, ids: IdArray, at: IdArray, out: NDArray[np.float32]) -> IdArray:
        """Copy the rows of ``ids`` (M,) that are here to the rows ``at`` (M,) of ``out``.

        Returns
        -------
        (n,) the positions of the other ids, ascending
        """
        missing = np.empty(ids.shape[0], np.int64)
        count = take_rows(ids, at, self._index, self._ids, self._rows, out, missing)
        return missing[:count]

    def order(self) -> IdArray:
        """Return the rows' numbers in the order of their ids."""
        return np.argsort(self._ids[: self._count])

    def numbered(self, numbers: IdArray) -> tuple[IdArray, NDArray[np.float32]]:
        """Return the ids (n,) and rows (n, width) of the given numbers, copied."""
        return self._ids[numbers], self._rows[numbers]

    def clear(self) -> None:
        """Forget all rows."""
        self._index.fill(-1)
        self._count = 0
