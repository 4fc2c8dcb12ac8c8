"""Sources for a superbatch's missing rows: direct reads, rows staged in memory, packs on the SSD.

A superbatch is S consecutive batches that are planned together. Its missing rows ("misses") are the feature rows that
no cache holds. The cost model chooses a strategy, and the loader then makes one `MissSource` for the superbatch:

- `DirectMisses` reads each batch's rows from the store.
- `InRamMisses` holds the rows in memory. `load_misses` reads them with one sweep.
- `PackedMisses` reads a pack back. `Packer` writes packs with one sweep each.

A sweep is one pass over the store's file, in file order. A pack holds one region of a temporary file for each batch,
with only this batch's rows. A random read of a small row costs as much as a sequential read of kilobytes. So the sweep
copies each row into the regions of all batches that need it, and each batch reads its region sequentially.

Rows may also arrive from other machines ("arriving"), in another order than the file's: in runs of ascending rows. The
order of arrival is an `ArrivalOrder`. A row's rank is its position among the ascending ids of the missing rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import numpy as np

from gloader.core.aligned_memory import mapped_bytes
from gloader.core.kernels import njit
from gloader.errors import BudgetError, PlanError, ShapeError, StoreError
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.read.columns import RowRequest, check_request, require_wanted_here
from gloader.ssd_store.read.row_kernels import copy_extent, make_target
from gloader.ssd_store.spill.regions import RegionStore, SharedBuffers, plan_regions, region_extents
from gloader.ssd_store.sweep.sweeper import MAX_PIECE_BYTES, MAX_RING_BYTES, SweepCost, Sweeper, plan_buffers
from gloader.ssd_store.sweep.wanted_rows import collect_rows, collect_union, first_at_least, rows_digest
from gloader.types import ReadStats

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.core.signals import Cancellation
    from gloader.ssd_store.feature_store import FeatureStore
    from gloader.ssd_store.read.columns import RowFile
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.ssd_store.spill.regions import Regions
    from gloader.ssd_store.sweep.supply import ArrivingRows
    from gloader.ssd_store.sweep.wanted_rows import ArrivalOrder, WantedRows
    from gloader.types import IdArray


# The cost of a source that is made without a sweep.
_NO_SWEEP: Final = SweepCost(read=ReadStats(rows=0, requests=0, bytes_read=0), writes=0, bytes_written=0)


class MissSource(Protocol):
    """The source of the rows that no cache holds, for one superbatch."""

    @property
    def strategy(self) -> str:
        """The strategy: "direct", "staged" or "packed"."""
        ...

    @property
    def cost(self) -> SweepCost:
        """The bytes and requests that made the source, without the batches' own reads.

        Rows from other machines or an object store count as `bytes_brought`, not as reads of the local disk.
        """
        ...

    def read_into(self, batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        """Read all missing rows of a batch, or raise.

        Parameters
        ----------
        batch : the batch's number within the superbatch, from 0
        rows : (M,) int64, ascending
        out : (K, F), with the stored dtype or float32
        at : (M,) int64, row in ``out`` for each row id
        """
        ...

    def release(self, batch: int) -> None:
        """Release the disk space or memory of a finished batch. Idempotent."""
        ...

    def close(self) -> None:
        """Release everything. Idempotent."""
        ...


class DirectMisses:
    """Reads each batch's missing rows from the store on request. Thread-safe; owns nothing.

    Parameters
    ----------
    store : the store; its owner closes it
    gap_bytes : longest hole between two rows that one read bridges; defaults to the store's value
    """

    strategy = "direct"
    cost = _NO_SWEEP

    def __init__(self, store: FeatureStore, *, gap_bytes: int | None = None) -> None:
        self._store = store
        self._gap_bytes = gap_bytes

    def read_into(self, _batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        """Read ``rows`` into ``out``; raises as `FeatureStore.read_into`.

        Parameters
        ----------
        rows : (M,) int64, ascending
        out : (K, F), with the stored dtype or float32
        at : (M,) int64, row in ``out`` for each row id
        """
        if self._gap_bytes is None:
            return self._store.read_into(rows, out, at=at)
        return self._store.read_into(rows, out, at=at, gap_bytes=self._gap_bytes)

    def release(self, batch: int) -> None:
        """Do nothing, because the source holds nothing for a batch."""

    def close(self) -> None:
        """Do nothing, because the store belongs to its opener."""


def check_misses(
    batch: int,
    rows: IdArray,
    out: NDArray[Any],
    at: IdArray,
    *,
    num_batches: int,
    num_rows: int,
    dim: int,
) -> RowRequest:
    """Check a `MissSource`'s arguments. Pure.

    Parameters
    ----------
    batch : the batch's number within the superbatch
    rows : (M,) int64, ascending
    out : (K, F)
    at : (M,) int64, row in ``out`` for each row id
    num_batches : S
    num_rows, dim : the store's N and F

    Raises
    ------
    ShapeError
        The batch or a row is out of range, rows do not ascend, or a shape does not fit.
    """
    if not 0 <= batch < num_batches:
        raise ShapeError(f"batch {batch} is not one of the superbatch's {num_batches}")
    # The kernels write to the rows ``at`` without a check.
    request = check_request(rows, out, num_rows=num_rows, dim=dim, at=at)
    if not request.is_sorted:
        raise ShapeError(f"batch {batch}: missing rows must ascend; sort them and `at` with them")
    return request


def other_rows(strategy: str, superbatch: str, batch: int) -> PlanError:
    """Return the error for a request that differs from the rows prepared for the batch. Pure.

    Parameters
    ----------
    strategy : the strategy that prepared the rows: "staged" or "packed"
    superbatch : start of the message, such as "superbatch 3, "; may be empty
    batch : the batch's number within the superbatch
    """
    return PlanError(
        f"{superbatch}batch {batch} asks for other rows than those that were {strategy} for it; pass exactly the rows "
        "that this batch misses in the superbatch's cache plan"
    )


BUFFER_BYTES: Final = 4 * 2**20  # bytes of the buffer for the sweep of `load_misses`


def load_misses(
    store: FeatureStore,
    misses: Sequence[IdArray],
    *,
    cancellation: Cancellation,
    arriving: ArrivingRows | None = None,
) -> InRamMisses:
    """Read the rows that any batch in a superbatch misses, each once, into memory, in stored form.

    Stored form means the bytes as they are on disk, for instance int8. The caller ensures that the rows fit:
    `in_ram_bytes` returns their size, and the read needs 4 MiB more for buffers.

    Parameters
    ----------
    store : the rows' store
    misses : S arrays with row ids, ascending, without repeats; each array is read once
    cancellation : the order to end the read early
    arriving : source of all rows in place of the store's file; its owner closes it. The read then takes four more bytes
        per row.

    Raises
    ------
    ShapeError
        Rows are out of range or do not ascend.
    RowNotHereError
        A row is on another machine.
    StoreReadError, TruncatedStoreError, ChecksumError
        The store cannot be read, or is damaged.
    StoreError, ConfigError
        As in `Sweeper`.
    ChannelClosedError
        The work was cancelled.
    PlanError
        A row does not arrive, or rows with another length arrive.
    GloaderError
        ``arriving`` raised it.
    """
    stored = store.stored_rows
    union = collect_union(
        misses, num_rows=stored.num_rows, row_bytes=stored.row_bytes, cancellation=cancellation
    )
    wanted, order = union, None
    if arriving is None:
        require_wanted_here(stored, union)
    else:
        wanted = collect_rows(
            [union.ids],
            num_rows=stored.num_rows,
            row_bytes=stored.row_bytes,
            cancellation=cancellation,
            layout=arriving.layout,
        )
        order = arriving.layout.order
    # The memory has one byte more than the rows: a sweep would try to write full memory to a file.
    rows = mapped_bytes(wanted.ids.shape[0] * stored.row_bytes + 1, touch=False)
    # Each superbatch gets a new sweeper: its 4 MiB are not kept while the rows, which may fill the memory, are used.
    # The sweeper reads the store's open file, because another file may be at its path now.
    sweeper = Sweeper(stored, mapped_bytes(BUFFER_BYTES), file=store.duplicate_file())
    try:
        cost = sweeper.to_memory(wanted, rows, cancellation=cancellation, source=arriving)
    finally:
        sweeper.close()
    return InRamMisses(stored, union.ids, rows, num_batches=len(misses), cost=cost, order=order)


def in_ram_bytes(num_rows: int, row_bytes: int) -> int:
    """Return the memory bytes for ``num_rows`` distinct rows in RAM, each with an int32 id. Pure."""
    return num_rows * (row_bytes + 4)


class InRamMisses:
    """A superbatch's missing rows in memory: a `MissSource`. Thread-safe; made by `load_misses`.

    Parameters
    ----------
    stored : the description of the store's rows
    ids : (K,) the rows' ids, ascending
    rows : (>= K * R,) the rows, of R bytes each, in stored form, in the ids' order or in ``order``
    num_batches : S
    cost : the cost of the sweep that brought the rows
    order : the rows' order of arrival; None means ascending
    """

    strategy = "staged"

    def __init__(
        self,
        stored: RowFile,
        ids: NDArray[Any],
        rows: NDArray[np.uint8],
        *,
        num_batches: int,
        cost: SweepCost,
        order: ArrivalOrder | None = None,
    ) -> None:
        self.cost = cost
        self._stored = stored
        self._arrivals = None if order is None else _ArrivalRuns.of(ids, order)
        self._num_batches = num_batches
        self._rows: tuple[NDArray[Any], NDArray[np.uint8]] | None = (ids, rows)

    @property
    def num_bytes(self) -> int:
        """Memory bytes; 0 after `close`."""
        rows = self._rows
        return 0 if rows is None else sum(array.nbytes for array in rows)

    def read_into(self, batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        """Copy the missing rows of ``batch``.

        Parameters
        ----------
        batch : 0..S-1
        rows : (M,) int64, loaded rows
        out : (K, F), with the stored dtype or float32
        at : (M,) int64, row in ``out`` for each row id

        Raises
        ------
        ShapeError
            A shape or dtype does not fit, or a row is out of range.
        PlanError
            A row was not loaded.
        StoreError
            The rows were released.
        """
        # This local reference keeps the rows alive if another thread closes the source during the copy.
        stored, held = self._stored, self._rows
        request = check_misses(
            batch, rows, out, at, num_batches=self._num_batches, num_rows=stored.num_rows, dim=stored.dim
        )
        if held is None:
            raise StoreError(f"{stored.path}: the staged rows were given back")
        ids, held_rows = held
        # First each row's rank, its position among the ascending ids, then its place, its position in the memory.
        place = np.empty(request.rows.shape[0], np.int64)
        if not _find_ranks(ids, request.rows, place):
            raise other_rows("staged", "", batch)
        form = stored.form_of(ids)
        if self._arrivals is not None:
            _ranks_to_places(place, self._arrivals.begins, self._arrivals.shift)
            if form.scale is not None:
                form = replace(form, scale=self._arrivals.in_memory_order(form.scale))
        target = make_target(place, request.position, out, form)
        # Copies rows 0 to M - 1 of the target from the memory's bytes 0 to the last, which are not shifted.
        copy_extent(
            *target, 0, place.shape[0], 0, held_rows.shape[0], 0, held_rows, held_rows.view(np.uint16)
        )
        return ReadStats(rows=place.shape[0], requests=0, bytes_read=0)

    def release(self, batch: int) -> None:
        """Do nothing, because other batches may need the same rows."""

    def close(self) -> None:
        """Release the memory. Idempotent."""
        self._rows = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ArrivalRuns:
    """Q runs of rows that arrived from other machines. A run's rows ascend; the runs lie in the order of arrival."""

    begins: IdArray  # (Q + 1,) rank of each run's first row
    shift: IdArray  # (Q,) a row's place in memory minus its rank, the same for all rows in a run
    run_order: IdArray  # (Q,) run numbers in the order of arrival

    @classmethod
    def of(cls, ids: NDArray[Any], order: ArrivalOrder) -> _ArrivalRuns:
        """Return the runs of the rows ``ids`` (K,), which ascend and arrive in ``order``. Pure."""
        begins = order.begins(ids)
        counts = np.diff(begins)[order.run_order]
        place = np.empty_like(counts)
        place[order.run_order] = np.cumsum(counts) - counts  # of each run's first row
        return cls(begins=begins, shift=place - begins[:-1], run_order=order.run_order)

    def in_memory_order(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the ``values`` (K,) of ascending rows in the order of the rows in memory."""
        parts = [values[self.begins[run] : self.begins[run + 1]] for run in self.run_order.tolist()]
        return np.concatenate([values[:0], *parts])


@njit(cache=True, nogil=True)
def _ranks_to_places(ranks: IdArray, begins: IdArray, shift: IdArray) -> None:
    """Replace ascending ranks (M,) by places; ``begins`` and ``shift`` as in `_ArrivalRuns`."""
    run = 0
    for i in range(ranks.shape[0]):
        while ranks[i] >= begins[run + 1]:
            run += 1
        ranks[i] += shift[run]


@njit(cache=True, nogil=True)
def _find_ranks(ids: NDArray[Any], rows: IdArray, rank: IdArray) -> bool:
    """Write the rank of each of ``rows`` (M,) in ``ids`` (K,); both arrays ascend. Return True if all were found."""
    low = np.int64(0)
    count = ids.shape[0]
    for i in range(rows.shape[0]):
        low = first_at_least(ids, low, count, rows[i])
        if low == count or ids[low] != rows[i]:
            return False
        rank[i] = low
    return True


class PackedMisses:
    """A superbatch's missing rows in a pack: a `MissSource`. Thread-safe; made by `Packer.pack`.

    Owns its files until their batches are released, or until `close`.

    Parameters
    ----------
    stored : the packed rows' description
    regions : the batches' regions on disk
    wanted : the packed rows' ids by batch; only the counts and digests are kept
    superbatch : the superbatch's number, for messages
    order : order of the rows in each batch's region; None means ascending
    """

    strategy = "packed"

    def __init__(
        self,
        stored: RowFile,
        regions: Regions,
        wanted: WantedRows,
        *,
        superbatch: int,
        order: ArrivalOrder | None = None,
    ) -> None:
        self.superbatch = superbatch
        self._stored = stored
        self._regions = regions
        self._counts = wanted.counts
        self._digests = wanted.digests
        self._order = order

    @property
    def cost(self) -> SweepCost:
        """Cost of the sweep that made the pack."""
        return self._regions.cost

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return int(self._counts.shape[0])

    @property
    def num_bytes(self) -> int:
        """Bytes on disk when the pack was made."""
        return self._regions.num_bytes

    @property
    def resident_bytes(self) -> int:
        """Memory bytes for the pack: checksums and layout, counts and digests."""
        return self._regions.resident_bytes + self._counts.nbytes + self._digests.nbytes

    def read_into(self, batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        """Read a batch's missing rows back, and check every byte.

        Parameters
        ----------
        batch : 0..S-1
        rows : (M,) int64, exactly the rows packed for the batch
        out : (K, F), with the stored dtype or float32
        at : (M,) int64, row in ``out`` for each row id

        Raises
        ------
        ShapeError
            A shape or dtype does not fit, or a row is out of range.
        PlanError
            The rows are not the packed rows.
        ChecksumError
            The pack was damaged or truncated; the message names superbatch, batch and byte.
        SpillError
            The device fails, or the batch was released.
        StoreError
            The packer is closed.
        """
        stored, layout = self._stored, self._regions.layout
        request = check_misses(
            batch, rows, out, at, num_batches=self.num_batches, num_rows=stored.num_rows, dim=stored.dim
        )
        num = request.rows.shape[0]
        # The pack stores no ids: a row's place in the region is its rank among the packed rows. So a request must name
        # exactly the packed rows.
        if num != self._counts[batch] or rows_digest(request.rows) != self._digests[batch]:
            raise other_rows("packed", f"superbatch {self.superbatch}, ", batch)
        if num == 0:
            return ReadStats(rows=0, requests=0, bytes_read=0)
        ids, position = request.rows, request.position
        if self._order is not None:
            in_region = self._order.positions(ids)
            ids, position = ids[in_region], position[in_region]
        # A row's place within the region is its rank. Its id only selects its scale.
        target = make_target(np.arange(num), position, out, stored.form_of(ids))
        first, last = layout.first_page[batch : batch + 2].tolist()
        extents = region_extents(int(layout.start[batch]), (last - first) * PAGE_BYTES, num, stored.row_bytes)
        requests = self._regions.read(batch, extents, target)
        return ReadStats(rows=num, requests=requests, bytes_read=extents.num_bytes)

    def release(self, batch: int) -> None:
        """Mark ``batch`` as done. A file whose batches are all done returns to the folder. Idempotent."""
        self._regions.release(batch)

    def close(self) -> None:
        """Remove the files whose batches were not released. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed; its bytes stay in use until the folder is closed.
        """
        self._regions.close()


DEFAULT_MEMORY_BYTES: Final = 16 * 2**20  # bytes of a packer's buffers
MIN_MEMORY_BYTES: Final = 2 * 2**20  # fewest bytes of a packer's buffers
# Maximum bytes of memory to read packs back: 64 chunks of 128 KiB. The extra page per chunk makes the distance between
# two chunks no power of two, so that they do not compete for the same cache lines.
_MAX_LANE_BYTES: Final = 8 * 2**20 + 64 * PAGE_BYTES
_SHARE_OF_ROOM: Final = 16  # the buffers take at most a sixteenth of the available memory


class Packer:
    """Makes packs of a store's rows, one sweep after another, and reads them back. Thread-safe.

    Owns a descriptor, rings or threads and buffers until `close`, which closes its packs as well. A pack may be read
    while the next pack is made.

    Parameters
    ----------
    store : the rows' store; it may be read, and closed, independently
    folder : folder for the packs, within its budget
    memory_bytes : bytes for all buffers; 16 MiB by default. A superbatch of many batches packs faster with more memory,
        see `packer_memory_bytes`
    max_gap_bytes : longest hole between two needed pages that a sweep bridges; defaults to the value in the device's
        remembered profile
    buffers : buffers from `pack_buffers`, in place of ``memory_bytes``. Packers for several stores may share them, one
        sweep at a time. Their owner closes them

    Raises
    ------
    BudgetError
        ``memory_bytes`` is below 2 MiB.
    StoreError, ConfigError
        As in `Sweeper`.
    """

    def __init__(
        self,
        store: FeatureStore,
        folder: SpillFolder,
        *,
        memory_bytes: int | None = None,
        max_gap_bytes: int | None = None,
        buffers: SharedBuffers | None = None,
    ) -> None:
        self._stored = store.stored_rows
        self._regions = RegionStore(
            self._stored,
            folder,
            buffers=pack_buffers(memory_bytes) if buffers is None else buffers,
            owns_buffers=buffers is None,
            gap_bytes=max_gap_bytes,
        )

    @property
    def resident_bytes(self) -> int:
        """Bytes of buffers."""
        return self._regions.resident_bytes

    def pack(
        self,
        misses: Sequence[IdArray],
        *,
        superbatch: int,
        cancellation: Cancellation,
        arriving: ArrivingRows | None = None,
    ) -> PackedMisses:
        """Write each batch's missing rows in a superbatch to the disk. On an error no file is left.

        The call takes four bytes of memory per row; the pack keeps eight bytes for each of its pages of 4 KiB.

        Parameters
        ----------
        misses : S arrays with row ids, ascending, without repeats; each array is read once
        superbatch : the superbatch's number, for messages
        cancellation : the order to end the sweep early
        arriving : source of all rows in place of the store's file; its owner closes it

        Raises
        ------
        ShapeError
            Rows are out of range or do not ascend.
        RowNotHereError
            A row is on another machine.
        BudgetError
            The pack exceeds the folder's budget, or there are too many batches for the buffers.
        SpillError
            The disk is full (the message has needed and free bytes) or fails, or the folder is closed.
        StoreReadError, TruncatedStoreError, ChecksumError
            The store cannot be read, or is damaged.
        ChannelClosedError
            The work was cancelled.
        StoreError
            The packer is closed.
        PlanError
            A row does not arrive, or rows with another length arrive.
        GloaderError
            ``arriving`` raised it.
        """
        stored = self._stored
        with self._regions.turn:  # the lock on the buffers: one sweep at a time
            self._regions.require_open()
            # The result is not used. Too many batches for the buffers must fail here, before rows are collected.
            plan_buffers(len(misses), self._regions.sweep_bytes)
            layout = None if arriving is None else arriving.layout
            wanted = collect_rows(
                misses,
                num_rows=stored.num_rows,
                row_bytes=stored.row_bytes,
                cancellation=cancellation,
                layout=layout,
            )
            if layout is None:
                require_wanted_here(stored, wanted)
            regions = self._regions.write(
                wanted,
                plan_regions(wanted.counts, stored.row_bytes),
                label=f"superbatch {superbatch}",
                member="batch",
                cancellation=cancellation,
                arriving=arriving,
            )
        order = None if layout is None else layout.order
        return PackedMisses(stored, regions, wanted, superbatch=superbatch, order=order)

    def close(self) -> None:
        """Wait for a sweep in progress, then close every pack and release everything. Idempotent."""
        self._regions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def pack_buffers(memory_bytes: int | None = None) -> SharedBuffers:
    """Return the buffers with which packers write and read back.

    Parameters
    ----------
    memory_bytes : bytes for all buffers; 16 MiB by default

    Raises
    ------
    BudgetError
        ``memory_bytes`` is below 2 MiB.
    """
    memory_bytes = DEFAULT_MEMORY_BYTES if memory_bytes is None else memory_bytes
    if memory_bytes < MIN_MEMORY_BYTES:
        raise BudgetError(
            f"packing needs {MIN_MEMORY_BYTES} bytes of buffers and {memory_bytes} are allowed; raise "
            "memory_budget, or use another io_strategy"
        )
    # The lane, which reads packs back, has separate memory, at most a quarter, so that a batch is read while the next
    # pack is written.
    lane_bytes = min(_MAX_LANE_BYTES, memory_bytes // 4 // PAGE_BYTES * PAGE_BYTES)
    sweep_bytes = (memory_bytes - lane_bytes) // PAGE_BYTES * PAGE_BYTES
    return SharedBuffers(sweep_bytes=sweep_bytes, lane_bytes=lane_bytes, name="the packer")


def packer_memory_bytes(num_batches: int, *, room: int | None = None) -> int:
    """Return the bytes of buffers with which superbatches of ``num_batches`` are packed at full speed. Pure.

    A piece is the buffer for one write. The result has room for pieces of 16 KiB at least and 64 KiB at most.

    Parameters
    ----------
    num_batches : S
    room : bytes of available memory; pieces above 16 KiB may use a sixteenth of them. None means no limit
    """
    pieces = num_batches + num_batches // 4  # one piece per batch, and a quarter more for writes in flight
    # The lane, the ring for extents that are read (3 MiB, or twice its largest size), and pieces of 16 or 64 KiB.
    least = max(DEFAULT_MEMORY_BYTES, _MAX_LANE_BYTES + 3 * 2**20 + pieces * 4 * PAGE_BYTES)
    most = max(least, _MAX_LANE_BYTES + 2 * MAX_RING_BYTES + pieces * MAX_PIECE_BYTES)
    chosen = most if room is None else min(most, max(least, room // _SHARE_OF_ROOM))
    return chosen // 2**20 * 2**20
