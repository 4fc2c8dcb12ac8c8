"""Missing rows in RAM: what a superbatch's batches miss, read once, in file order, into memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit

from gloader.core.aligned_memory import mapped_bytes
from gloader.errors import StoreError
from gloader.ssd_store.misses.direct import check_misses, other_rows
from gloader.ssd_store.read.copy_kernels import copy_extent, make_target
from gloader.ssd_store.read.held_rows import require_wanted_here
from gloader.ssd_store.sweep.arrivals import collect_arrivals, order_of
from gloader.ssd_store.sweep.sweep import Sweeper
from gloader.ssd_store.sweep.wanted_rows import collect_union, first_at_least
from gloader.types import ReadStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gloader.ssd_store.read.reader import FeatureStore
    from gloader.ssd_store.read.stored_rows import StoredRows
    from gloader.ssd_store.sweep.arrivals import ArrivalOrder, ArrivingRows
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
    arriving: ArrivingRows | None = None,
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
    arriving : brings all of them, in place of the store, whose file is not read; its owner closes it. Takes four bytes
        more for each row while it lasts

    Raises
    ------
    ShapeError
        Rows are out of range or do not ascend.
    RowNotHereError
        A row is on another machine.
    StoreReadError, TruncatedStoreError, ChecksumError
        The store cannot be read, or is damaged.
    StoreError, ConfigError
        As `Sweeper`.
    ChannelClosedError
        ``is_cancelled`` returned true.
    PlanError
        A row does not arrive, or rows of another length do.
    GloaderError
        What brings the rows failed, as it says.
    """
    stored = store.stored_rows
    union = collect_union(
        misses, num_rows=stored.num_rows, row_bytes=stored.row_bytes, is_cancelled=is_cancelled
    )
    wanted, order = union, None
    if arriving is None:
        require_wanted_here(stored, union)
    else:
        wanted = collect_arrivals(
            [union.ids], arriving.layout, num_rows=stored.num_rows, is_cancelled=is_cancelled
        )
        order = order_of(arriving.layout)
    # One byte more than the rows, so that the sweep never finds it full.
    rows = mapped_bytes(wanted.ids.shape[0] * stored.row_bytes + 1, touch=False)
    # A sweeper for each superbatch: its 4 MiB are not kept while the rows, which may be all of the memory, are used.
    # On the file that the store has open: another may be at its path by now.
    sweeper = Sweeper(
        stored, mapped_bytes(BUFFER_BYTES), file=store.duplicate_file(), gap_bytes=max_gap_bytes
    )
    try:
        cost = sweeper.to_memory(wanted, rows, is_cancelled=is_cancelled, source=arriving)
    finally:
        sweeper.close()
    return InRamMisses(stored, union.ids, rows, num_batches=len(misses), cost=cost, order=order)


def in_ram_bytes(num_rows: int, row_bytes: int) -> int:
    """Return the bytes of memory that ``num_rows`` different rows in RAM take. Pure."""
    return num_rows * (row_bytes + 4)


class InRamMisses:
    """The missing rows of a superbatch in memory: a `MissSource`. Thread-safe; made by `load_misses`.

    Parameters
    ----------
    stored : the store's rows, for their shape and dtype
    ids : (K,) ids of the rows, ascending
    rows : (>= K * R,) their bytes, as stored, in the same order or in ``order``
    num_batches : S
    cost : of the sweep that brought them
    order : in which they arrived; None: they ascend
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
        order: ArrivalOrder | None = None,
    ) -> None:
        self.cost = cost
        self._stored = stored
        self._runs = None if order is None else _Runs.of(ids, order)
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
        scale = None if stored.scale is None else stored.scale[ids]
        if self._runs is not None:
            _move(rank, self._runs.begins, self._runs.shift)
            scale = None if scale is None else self._runs.in_order(scale)
        target = make_target(
            rank,
            request.position,
            out,
            dtype=stored.dtype,
            is_bfloat16=stored.is_bfloat16,
            scale=scale,
        )
        copy_extent(*target, 0, rank.shape[0], 0, held_rows.shape[0], 0, held_rows, held_rows.view(np.uint16))
        return ReadStats(rows=rank.shape[0], requests=0, bytes_read=0)

    def release(self, batch: int) -> None:
        """Do nothing: other batches may want the same rows."""

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        self._rows = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Runs:
    """Stretches of ascending rows that lie in memory in another order."""

    begins: IdArray  # (Q + 1,) rank at which each begins
    shift: IdArray  # (Q,) from a row's rank to its place
    in_turn: IdArray  # (Q,) as they lie

    @classmethod
    def of(cls, ids: NDArray[Any], order: ArrivalOrder) -> _Runs:
        begins = order.begins(ids)
        counts = np.diff(begins)[order.in_turn]
        place = np.empty_like(counts)
        place[order.in_turn] = np.cumsum(counts) - counts
        return cls(begins=begins, shift=place - begins[:-1], in_turn=order.in_turn)

    def in_order(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return ``values`` (K,) of ascending rows as the rows lie."""
        parts = [values[self.begins[run] : self.begins[run + 1]] for run in self.in_turn.tolist()]
        return np.concatenate([values[:0], *parts])


@njit(cache=True, nogil=True)
def _move(rank: IdArray, begins: IdArray, shift: IdArray) -> None:
    """Turn ranks, which ascend, into places."""
    run = 0
    for i in range(rank.shape[0]):
        while rank[i] >= begins[run + 1]:
            run += 1
        rank[i] += shift[run]


@njit(cache=True, nogil=True)
def _find(ids: NDArray[Any], rows: IdArray, rank: IdArray) -> bool:
    """Write where each of ``rows`` is in ``ids``, both ascending; return whether all are there."""
    low = np.int64(0)
    count = ids.shape[0]
    for i in range(rows.shape[0]):
        low = first_at_least(ids, low, count, rows[i])
        if low == count or ids[low] != rows[i]:
            return False
        rank[i] = low
    return True
