"""Packs: the missing rows of a superbatch, brought together on the disk batch by batch, and read back.

A random read of a small row costs as much as kilobytes of sequential reading. One sweep over the store's file
writes each batch's rows into a region of their own; a batch then reads its region sequentially, and nothing else.
"""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.core.aligned_memory import mapped_bytes
from gloader.errors import (
    BudgetError,
    ChecksumError,
    SpillError,
    StoreError,
    StoreReadError,
    TruncatedStoreError,
)
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.misses.direct import check_misses, other_rows
from gloader.ssd_store.misses.pack_files import PackFiles
from gloader.ssd_store.misses.pack_layout import PackLayout, plan_regions
from gloader.ssd_store.read.copy_kernels import make_target
from gloader.ssd_store.read.extents import Extents
from gloader.ssd_store.read.lane import ReadLane
from gloader.ssd_store.sweep.sweep import MAX_PIECE_BYTES, MAX_RING_BYTES, Sweeper, plan_buffers
from gloader.ssd_store.sweep.wanted_rows import collect_rows, rows_digest
from gloader.types import ReadStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.ssd_store.read.reader import FeatureStore
    from gloader.ssd_store.read.stored_rows import StoredRows
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.ssd_store.sweep.sweep import SweepCost
    from gloader.types import IdArray

DEFAULT_MEMORY_BYTES: Final = 16 * 2**20
MIN_MEMORY_BYTES: Final = 2 * 2**20
CHUNK_BYTES: Final = 256 * 1024  # of a read-back request
_MAX_LANE_BYTES: Final = 4 * 2**20 + 16 * PAGE_BYTES  # sixteen chunks, not a power of two apart
_SHARE_OF_ROOM: Final = 16


class Packer:
    """Makes packs of a store's rows, one sweep at a time, and reads them back. Thread-safe.

    Owns a descriptor, rings or threads and ``memory_bytes`` of buffers until `close`, which closes its packs as well.
    A pack may be read while the next is made.

    Parameters
    ----------
    store : whose rows; it may be read, and closed, independently
    folder : takes the packs, within its budget
    memory_bytes : of all buffers; 16 MiB by default. Pieces of 16 KiB or more for S batches need about 6 MiB and
        20 KiB for each batch, see `packer_memory_bytes`
    max_gap_bytes : longest hole between two wanted pages that a sweep reads through; by default what the remembered
        profile of the device says

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
    ) -> None:
        memory_bytes = DEFAULT_MEMORY_BYTES if memory_bytes is None else memory_bytes
        if memory_bytes < MIN_MEMORY_BYTES:
            raise BudgetError(
                f"packing needs {MIN_MEMORY_BYTES} bytes of buffers and {memory_bytes} are allowed; raise memory_bytes"
            )
        lane_bytes = min(_MAX_LANE_BYTES, memory_bytes // 4 // PAGE_BYTES * PAGE_BYTES)
        sweep_bytes = (memory_bytes - lane_bytes) // PAGE_BYTES * PAGE_BYTES
        self.resident_bytes = lane_bytes + sweep_bytes
        self._folder = folder
        self._stored = store.stored_rows
        self._turn = threading.Lock()  # held during a sweep
        self._is_closed = False
        self._is_direct = True  # until a spilled file refuses
        self._packs: list[PackFiles] = []  # of those not given back yet
        self._sweeper = Sweeper(
            self._stored, mapped_bytes(sweep_bytes), gap_bytes=max_gap_bytes, is_real=folder.os_io.is_real
        )
        try:
            self._lane = ReadLane(
                lane_bytes,
                io=self._stored.settings.io,
                is_direct=self._sweeper.is_direct,
                os_io=self._stored.os_io if folder.os_io.is_real else folder.os_io,
                when_closed="the packer that reads it is closed",
            )
        except BaseException:
            self._sweeper.close()
            raise

    def pack(
        self, misses: Sequence[IdArray], *, superbatch: int, is_cancelled: Callable[[], bool]
    ) -> PackedMisses:
        """Write the missing rows of each batch of a superbatch to the disk, or leave nothing there.

        Takes four bytes a row while it lasts; the pack keeps eight for each 4 KiB of it.

        Parameters
        ----------
        misses : S arrays of row ids, ascending, none twice; each is asked for once
        superbatch : its number, for messages
        is_cancelled : looked at every few milliseconds

        Raises
        ------
        ShapeError
            Rows are out of range or do not ascend.
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
        """
        label = f"superbatch {superbatch}"
        stored = self._stored
        with self._turn:
            if self._is_closed:
                raise StoreError(f"{stored.path}: the packer is closed; make another")
            plan_buffers(len(misses), self._sweeper.memory_bytes)  # enough of them?
            wanted = collect_rows(
                misses, num_rows=stored.num_rows, row_bytes=stored.row_bytes, is_cancelled=is_cancelled
            )
            layout = plan_regions(wanted.counts, stored.row_bytes)
            sums = np.empty(layout.num_pages, np.uint64)
            files = PackFiles(self._folder, layout, label, direct=self._is_direct and self._sweeper.is_direct)
            try:
                targets = files.create()
                self._is_direct = files.is_direct
                cost = self._sweeper.to_files(
                    wanted,
                    [targets[number] for number in layout.file.tolist()],
                    layout.start,
                    sums,
                    layout.first_page[:-1],
                    label=label,
                    is_cancelled=is_cancelled,
                )
                self._folder.os_io.kill_point("pack.after_sweep")
                files.complete()
                pack = PackedMisses(
                    stored,
                    files,
                    layout,
                    sums,
                    superbatch=superbatch,
                    counts=wanted.counts,
                    digests=wanted.digests,
                    lane=self._lane,
                    cost=cost,
                )
            except BaseException as error:
                files.give_up(error)
                raise
            self._packs = [*(others for others in self._packs if not others.is_gone), files]
            return pack

    def close(self) -> None:
        """Wait for a sweep in progress, then close every pack and release everything. Idempotent."""
        with self._turn:
            self._is_closed = True
            self._sweeper.close()
            self._lane.close()
            for files in self._packs:
                files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PackedMisses:
    """The missing rows of a superbatch in a pack: a `MissSource`. Thread-safe; made by `Packer.pack`.

    Owns its files until they are released, batch by batch, or until `close`.
    """

    strategy = "packed"

    def __init__(
        self,
        stored: StoredRows,
        files: PackFiles,
        layout: PackLayout,
        sums: NDArray[np.uint64],
        *,
        superbatch: int,
        counts: IdArray,
        digests: NDArray[np.uint64],
        lane: ReadLane,
        cost: SweepCost,
    ) -> None:
        self.superbatch = superbatch
        self.cost = cost  # of the sweep that made it
        self._stored = stored
        self._files = files
        self._layout = layout
        self._sums = sums
        self._counts = counts
        self._digests = digests
        self._lane = lane

    @property
    def num_batches(self) -> int:
        """S."""
        return int(self._counts.shape[0])

    @property
    def num_bytes(self) -> int:
        """Bytes on disk when it was made."""
        return self._layout.num_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the pack holds: checksums."""
        return int(self._sums.nbytes + 7 * 8 * self._counts.shape[0])

    def read_into(self, batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        """Read the missing rows of ``batch`` back, every byte checked.

        Parameters
        ----------
        batch : 0..S-1
        rows : (M,) int64, exactly the rows that were packed for it
        out : (K, F), of the stored dtype or float32
        at : (M,) int64, row of ``out`` for each of ``rows``

        Raises
        ------
        ShapeError
            A shape or dtype does not fit, or a row is out of range.
        PlanError
            The rows are not those that were packed.
        ChecksumError
            The pack was damaged or cut since; the message names superbatch, batch and byte.
        SpillError
            The device fails, or the batch was released.
        StoreError
            The packer is closed.
        """
        stored, layout = self._stored, self._layout
        request = check_misses(
            batch, rows, out, at, num_batches=self.num_batches, num_rows=stored.num_rows, dim=stored.dim
        )
        num = request.rows.shape[0]
        if num != self._counts[batch] or rows_digest(request.rows) != self._digests[batch]:
            raise other_rows("packed", f"superbatch {self.superbatch}, ", batch)
        if num == 0:
            return ReadStats(rows=0, requests=0, bytes_read=0)
        target = make_target(
            np.arange(num),
            request.position,
            out,
            dtype=stored.dtype,
            is_bfloat16=stored.is_bfloat16,
            scale=None if stored.scale is None else stored.scale[request.rows],
        )
        first, last = layout.first_page[batch : batch + 2].tolist()
        start = int(layout.start[batch])
        extents = region_extents(start, (last - first) * PAGE_BYTES, num, stored.row_bytes)
        label = f"superbatch {self.superbatch}, batch {batch}"
        with self._files.reading(batch, label) as file:
            try:
                requests, page = self._lane.read(
                    file, extents, target, data_offset=start, checksums=self._sums[first:last]
                )
            except TruncatedStoreError as error:
                text = f"it has {file.num_bytes} bytes, {start + (last - first) * PAGE_BYTES} are needed"
                raise _damage(label, file.path, start, text) from error
            except StoreReadError as error:
                text = f"reading the pack of {label} failed: {error.strerror}"
                raise SpillError(error.errno or errno.EIO, text, str(file.path)) from error
        if page >= 0:
            offset = start + page * PAGE_BYTES
            raise _damage(label, file.path, offset, f"the page at byte {offset} does not match its checksum")
        return ReadStats(rows=num, requests=requests, bytes_read=extents.num_bytes)

    def release(self, batch: int) -> None:
        """Say that ``batch`` is done; its file goes with the last batch in it. Idempotent.

        Raises
        ------
        SpillError
            The file cannot be removed; its bytes stay in use.
        """
        self._files.release(batch)

    def close(self) -> None:
        """Remove all files. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed; its bytes stay in use until the folder is closed.
        """
        self._files.close()
        self._sums = np.empty(0, np.uint64)


def packer_memory_bytes(num_batches: int, *, room: int | None = None) -> int:
    """Return the buffers that pack superbatches of ``num_batches`` at full speed. Pure.

    Parameters
    ----------
    room : bytes of memory that there are; beyond what pieces of 16 KiB need, no more than a sixteenth of it is taken
    """
    per_piece = num_batches + num_batches // 4
    least = max(DEFAULT_MEMORY_BYTES, _MAX_LANE_BYTES + 3 * 2**20 + per_piece * 4 * PAGE_BYTES)
    most = max(least, _MAX_LANE_BYTES + 2 * MAX_RING_BYTES + per_piece * MAX_PIECE_BYTES)
    wanted = most if room is None else min(most, max(least, room // _SHARE_OF_ROOM))
    return wanted // 2**20 * 2**20


def region_extents(start: int, num_bytes: int, num_rows: int, row_bytes: int) -> Extents:
    """Return the reads of a region of ``num_bytes`` at ``start`` that holds ``num_rows`` rows, one by one. Pure."""
    offset = np.arange(0, num_bytes, CHUNK_BYTES)
    end = np.minimum(offset + CHUNK_BYTES, num_bytes)
    return Extents(
        offset=start + offset,
        length=end - offset,
        row_begin=offset // row_bytes,
        row_end=np.minimum(-(-end // row_bytes), num_rows),
    )


def _damage(label: str, path: Path, offset: int, what: str) -> ChecksumError:
    return ChecksumError(
        f"the pack of {label} ({path}) is damaged at byte {offset}: {what}; it was changed after it was written: "
        "check the disk and resume from the last checkpoint"
    )
