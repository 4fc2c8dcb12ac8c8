"""Packs: the missing rows of a superbatch, brought together on the disk batch by batch, and read back.

A random read of a small row costs as much as kilobytes of sequential reading. One sweep over the store's file
writes each batch's rows into a region of their own; a batch then reads its region sequentially, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from gloader.errors import BudgetError
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.misses.packed_misses import PackedMisses
from gloader.ssd_store.read.held_rows import require_wanted_here
from gloader.ssd_store.regions.layout import plan_regions
from gloader.ssd_store.regions.shared import SharedBuffers
from gloader.ssd_store.regions.store import RegionStore
from gloader.ssd_store.sweep.arrivals import collect_arrivals, order_of
from gloader.ssd_store.sweep.sweep import MAX_PIECE_BYTES, MAX_RING_BYTES, plan_buffers
from gloader.ssd_store.sweep.wanted_rows import collect_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from gloader.ssd_store.read.reader import FeatureStore
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.ssd_store.sweep.arrivals import ArrivingRows
    from gloader.types import IdArray

DEFAULT_MEMORY_BYTES: Final = 16 * 2**20
MIN_MEMORY_BYTES: Final = 2 * 2**20
_MAX_LANE_BYTES: Final = 8 * 2**20 + 64 * PAGE_BYTES  # 64 chunks, not a power of two apart
_SHARE_OF_ROOM: Final = 16


class Packer:
    """Makes packs of a store's rows, one sweep at a time, and reads them back. Thread-safe.

    Owns a descriptor, rings or threads and buffers until `close`, which closes its packs as well. A pack may be read
    while the next is made.

    Parameters
    ----------
    store : whose rows; it may be read, and closed, independently
    folder : takes the packs, within its budget
    memory_bytes : of all buffers; 16 MiB by default. Pieces of 16 KiB or more for S batches need about 6 MiB and
        20 KiB for each batch, see `packer_memory_bytes`
    max_gap_bytes : longest hole between two wanted pages that a sweep reads through; defaults to what the remembered
        profile of the device says
    buffers : of `pack_buffers`, in place of ``memory_bytes``: packers of several stores take turns with them, and
        their owner closes them

    Raises
    ------
    BudgetError
        ``memory_bytes`` is below 2 MiB.
    StoreError, ConfigError
        As `Sweeper`.
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
        is_cancelled: Callable[[], bool],
        arriving: ArrivingRows | None = None,
    ) -> PackedMisses:
        """Write the missing rows of each batch of a superbatch to the disk, or leave nothing there.

        Takes four bytes a row while it lasts; the pack keeps eight for each 4 KiB of it.

        Parameters
        ----------
        misses : S arrays of row ids, ascending, none twice; each is asked for once
        superbatch : its number, for messages
        is_cancelled : looked at every few milliseconds
        arriving : brings all of them, in place of the store, whose file is not read; its owner closes it

        Raises
        ------
        ShapeError
            Rows are out of range or do not ascend.
        RowNotHereError
            A row is on another machine.
        BudgetError
            The pack exceeds the folder's budget, or there are too many batches for the buffers.
        SpillError
            The disk is full (the message says needed and free bytes) or fails, or the folder is closed.
        StoreReadError, TruncatedStoreError, ChecksumError
            The store cannot be read, or is damaged.
        ChannelClosedError
            ``is_cancelled`` returned true.
        StoreError
            The packer is closed.
        PlanError
            A row does not arrive, or rows of another length do.
        GloaderError
            What brings the rows failed, as it says.
        """
        stored = self._stored
        with self._regions.turn:
            self._regions.require_open()
            # Planned for its error alone: too many batches are to fail before a row is collected.
            plan_buffers(len(misses), self._regions.sweep_bytes)
            num_rows, row_bytes = stored.num_rows, stored.row_bytes
            if arriving is None:
                wanted = collect_rows(
                    misses, num_rows=num_rows, row_bytes=row_bytes, is_cancelled=is_cancelled
                )
                require_wanted_here(stored, wanted)
            else:
                wanted = collect_arrivals(
                    misses, arriving.layout, num_rows=num_rows, is_cancelled=is_cancelled
                )
            regions = self._regions.write(
                wanted,
                plan_regions(wanted.counts, row_bytes),
                label=f"superbatch {superbatch}",
                member="batch",
                is_cancelled=is_cancelled,
                arriving=arriving,
            )
        order = None if arriving is None else order_of(arriving.layout)
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
    """Return the buffers that packers pack and read back with.

    Parameters
    ----------
    memory_bytes : of all of them; 16 MiB by default

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
    # The lane has memory and a ring of its own: a batch is read back while the next pack is being written.
    lane_bytes = min(_MAX_LANE_BYTES, memory_bytes // 4 // PAGE_BYTES * PAGE_BYTES)
    sweep_bytes = (memory_bytes - lane_bytes) // PAGE_BYTES * PAGE_BYTES
    return SharedBuffers(sweep_bytes=sweep_bytes, lane_bytes=lane_bytes, name="the packer")


def packer_memory_bytes(num_batches: int, *, room: int | None = None) -> int:
    """Return the buffers that pack superbatches of ``num_batches`` at full speed. Pure.

    Parameters
    ----------
    num_batches : S
    room : bytes of memory that there are; beyond what pieces of 16 KiB need, no more than a sixteenth of it is taken.
        None: no limit
    """
    per_piece = num_batches + num_batches // 4
    least = max(DEFAULT_MEMORY_BYTES, _MAX_LANE_BYTES + 3 * 2**20 + per_piece * 4 * PAGE_BYTES)
    most = max(least, _MAX_LANE_BYTES + 2 * MAX_RING_BYTES + per_piece * MAX_PIECE_BYTES)
    chosen = most if room is None else min(most, max(least, room // _SHARE_OF_ROOM))
    return chosen // 2**20 * 2**20
