"""Missing rows in RAM: what a superbatch's batches miss, read once, in file order, into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit

from gloader.core.aligned_memory import mapped_bytes
from gloader.errors import StoreError
from gloader.ssd_store.misses.direct import check_misses, other_rows
from gloader.ssd_store.read.copy_kernels import copy_extent, make_target
from gloader.ssd_store.sweep.sweep import Sweeper
from gloader.ssd_store.sweep.wanted_rows import collect_union
from gloader.types import ReadStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gloader.ssd_store.read.reader import FeatureStore
    from gloader.ssd_store.read.stored_rows import StoredRows
    from gloader.ssd_store.sweep.sweep import SweepCost
    from gloader.types import IdArray

BUFFER_BYTES: Final = 4 * 2**20  # of the sweep
_PAGE_BYTES: Final = 4096


def load_misses(
    store: FeatureStore,
    misses: Sequence[IdArray],
    *,
    is_cancelled: Callable[[], bool],
    max_gap_bytes: int | None = None,
) -> InRamMisses:
    """Read the rows that any batch of a superbatch misses, each once, into memory, as they are stored.

    The caller sees to it that they fit: `in_ram_bytes` says how much they take, and 4 MiB of buffers come on top of it
    while they are read.

    Parameters
    ----------
    store : of the rows
    misses : S arrays of row ids, ascending, none twice; each is asked for once
    is_cancelled : looked at every few milliseconds
    max_gap_bytes : longest hole that is read through; defaults to what the remembered profile of the device says

    Raises
    ------
    ShapeError
        Rows are out of range or do not ascend.
    StoreReadError, TruncatedStoreError, ChecksumError
        The store cannot be read, or is damaged.
    StoreError, ConfigError
        As `Sweeper`.
    ChannelClosedError
        ``is_cancelled`` returned true.
    """
    stored = store.stored_rows
    wanted = collect_union(
        misses, num_rows=stored.num_rows, row_bytes=stored.row_bytes, is_cancelled=is_cancelled
    )
    # One byte more than the rows, so that the sweep never finds it full.
    rows = mapped_bytes(wanted.ids.shape[0] * stored.row_bytes + 1, touch=False)
    # A sweeper for each superbatch: its 4 MiB are not kept while the rows, which may be all of the memory, are used.
    # On the file that the store has open: another may be at its path by now.
    sweeper = Sweeper(
        stored, mapped_bytes(BUFFER_BYTES), file=store.duplicate_file(), gap_bytes=max_gap_bytes
    )
    try:
        cost = sweeper.to_memory(wanted, rows, is_cancelled=is_cancelled)
    finally:
        sweeper.close()
    return InRamMisses(stored, wanted.ids, rows, num_batches=len(misses), cost=cost)


def in_ram_bytes(num_rows: int, row_bytes: int) -> int:
    """Return the bytes of memory that ``num_rows`` different rows in RAM take. Pure."""
    return num_rows * (row_bytes + 4)


class InRamMisses:
    """The missing rows of a superbatch in memory: a `MissSource`. Thread-safe; made by `load_misses`.

    Parameters
    ----------
    stored : the store's rows, for their shape and dtype
    ids : (K,) ids of the rows, ascending
    rows : (>= K * R,) their bytes, in the same order, as stored
    num_batches : S
    cost : of the sweep that brought them
    """

    strategy = "staged"

    def __init__(
        self,
        stored: StoredRows,
        ids: NDArray[Any],
        rows: NDArray[np.uint8],
        *,
        num_batches: int,
        cost: SweepCost,
    ) -> None:
        self.cost = cost
        self._stored = stored
        self._num_batches = num_batches
        self._rows: tuple[NDArray[Any], NDArray[np.uint8]] | None = (ids, rows)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory; 0 when closed."""
        rows = self._rows
        return 0 if rows is None else sum(array.nbytes for array in rows)

    def read_into(self, batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        """Copy the missing rows of ``batch``.

        Parameters
        ----------
        batch : 0..S-1
        rows : (M,) int64, rows that were loaded
        out : (K, F), of the stored dtype or float32
        at : (M,) int64, row of ``out`` for each of ``rows``

        Raises
        ------
        ShapeError
            A shape or dtype does not fit, or a row is out of range.
        PlanError
            A row was not loaded.
        StoreError
            The rows were given back.
        """
        # Taken once: if another thread closes this meanwhile, the copy still has its rows.
        stored, held = self._stored, self._rows
        request = check_misses(
            batch, rows, out, at, num_batches=self._num_batches, num_rows=stored.num_rows, dim=stored.dim
        )
        if held is None:
            raise StoreError(f"{stored.path}: the staged rows were given back")
        ids, held_rows = held
        rank = np.empty(request.rows.shape[0], np.int64)
        if not _find(ids, request.rows, rank):
            raise other_rows("staged", "", batch)
        target = make_target(
            rank,
            request.position,
            out,
            dtype=stored.dtype,
            is_bfloat16=stored.is_bfloat16,
            scale=None if stored.scale is None else stored.scale[ids],
        )
        copy_extent(*target, 0, rank.shape[0], 0, held_rows.shape[0], 0, held_rows, held_rows.view(np.uint16))
        return ReadStats(rows=rank.shape[0], requests=0, bytes_read=0)

    def release(self, batch: int) -> None:
        """Do nothing: other batches may want the same rows."""

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        self._rows = None


@njit(cache=True, nogil=True)
def _find(ids: NDArray[Any], rows: IdArray, rank: IdArray) -> bool:
    """Write where each of ``rows`` is in ``ids``, both ascending; return whether all are there."""
    low = np.int64(0)
    count = ids.shape[0]
    for i in range(rows.shape[0]):
        step = np.int64(1)
        high = low
        # Leaps that double, then halves: nearly every row is asked for in turn, so the next one is near.
        while high < count and ids[high] < rows[i]:
            low = high + 1
            high += step
            step *= 2
        high = min(high, count)
        while low < high:
            middle = (low + high) // 2
            if ids[middle] < rows[i]:
                low = middle + 1
            else:
                high = middle
        if low == count or ids[low] != rows[i]:
            return False
        rank[i] = low
    return True
