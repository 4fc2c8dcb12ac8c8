"""Writes regions by sweeps over a file, and reads them back, every byte checked."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.errors import ChecksumError, SpillError, StoreError, StoreReadError, TruncatedStoreError
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.read.copy_kernels import make_target
from gloader.ssd_store.read.extents import Extents
from gloader.ssd_store.regions.files import RegionFiles
from gloader.ssd_store.sweep.sweep import Sweeper

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.ssd_store.read.copy_kernels import Target
    from gloader.ssd_store.read.lane import ReadLane
    from gloader.ssd_store.read.stored_rows import StoredRows
    from gloader.ssd_store.regions.layout import RegionLayout
    from gloader.ssd_store.regions.shared import SharedBuffers
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.ssd_store.sweep.arrivals import ArrivingRows
    from gloader.ssd_store.sweep.portions import WantedPositions
    from gloader.ssd_store.sweep.sweep import SweepCost
    from gloader.ssd_store.sweep.wanted_rows import WantedRows
    from gloader.types import IdArray

CHUNK_BYTES: Final = 128 * 1024  # of a read-back request
_IN_ORDER: IdArray = np.empty(0, dtype=np.int64)
_BYTE: Final = np.dtype(np.uint8)


class RegionStore:
    """Makes regions of a file's rows, one sweep at a time, and reads them back. Thread-safe.

    Owns a descriptor, rings or threads and its buffers until `close`, which closes its regions as well. Regions may be
    read while the next are made.

    Parameters
    ----------
    stored : whose rows
    folder : takes the regions, within its budget
    buffers : for sweeps and for reading back; others may share them
    owns_buffers : whether they are closed with it
    gap_bytes : longest hole that a sweep over `WantedRows` reads through; defaults to what is known of the device

    Raises
    ------
    StoreError, ConfigError
        As `Sweeper`.
    """

    def __init__(
        self,
        stored: StoredRows,
        folder: SpillFolder,
        *,
        buffers: SharedBuffers,
        owns_buffers: bool = True,
        gap_bytes: int | None = None,
    ) -> None:
        self.turn = buffers.turn
        self.sweep_bytes = buffers.memory.nbytes
        self.resident_bytes = buffers.num_bytes
        self._stored = stored
        self._folder = folder
        self._name = buffers.name
        self._owned = buffers if owns_buffers else None
        self._is_closed = False
        self._is_direct = True  # until a spilled file refuses
        self._made: list[RegionFiles] = []  # of those not given back yet
        self._sweeper = Sweeper(stored, buffers.memory, gap_bytes=gap_bytes, is_real=folder.os_io.is_real)
        try:
            self._lane = buffers.lane(
                io=stored.settings.io,
                is_direct=self._sweeper.is_direct,
                os_io=stored.os_io if folder.os_io.is_real else folder.os_io,
            )
        except BaseException:
            self._sweeper.close()
            raise

    def require_open(self) -> None:
        """Check that it is open.

        Raises
        ------
        StoreError
            It is closed.
        """
        if self._is_closed:
            raise StoreError(f"{self._stored.path}: {self._name} is closed; make another")

    def write(
        self,
        wanted: WantedRows | WantedPositions,
        layout: RegionLayout,
        *,
        label: str,
        member: str,
        is_cancelled: Callable[[], bool],
        arriving: ArrivingRows | None = None,
    ) -> Regions:
        """Write what each member wants to its region, or leave nothing there.

        Parameters
        ----------
        wanted : the rows of S members
        layout : of their regions
        label : whose they are, for messages, such as "superbatch 3"
        member : what one of them is called there, such as "batch"
        is_cancelled : looked at every few milliseconds
        arriving : rows that take the place of the file; ``wanted`` are slots of theirs

        Raises
        ------
        BudgetError
            The regions exceed the folder's budget, or there are too many members for the buffers.
        SpillError
            The disk is full (the message says needed and free bytes) or fails, or the folder is closed.
        StoreReadError, TruncatedStoreError, ChecksumError
            The rows cannot be read, or are damaged.
        ChannelClosedError
            ``is_cancelled`` returned true.
        StoreError
            This is closed.
        GloaderError
            What brings the rows failed, as it says.
        """
        with self.turn:
            self.require_open()
            sums = np.empty(layout.num_pages, np.uint64)
            files = RegionFiles(
                self._folder, layout, label, direct=self._is_direct and self._sweeper.is_direct
            )
            try:
                targets = files.create()
                self._is_direct = files.is_direct
                cost = self._sweeper.to_files(
                    wanted,
                    [targets[number] for number in layout.file.tolist()],
                    layout.start,
                    sums,
                    layout.first_page[:-1],
                    label=f"{label}, {member}",
                    is_cancelled=is_cancelled,
                    source=arriving,
                )
                self._folder.os_io.kill_point("pack.after_sweep")
                files.complete()
            except BaseException as error:
                files.give_up(error)
                raise
            # Noted once it is complete; until then `give_up` removes it. Those that are gone are forgotten.
            self._made = [*(others for others in self._made if not others.is_gone), files]
            return Regions(files, layout, sums, label=f"{label}, {member}", lane=self._lane, cost=cost)

    def close(self) -> None:
        """Wait for a sweep in progress, then close all regions and release everything. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed; the others are.
        """
        with self.turn, ExitStack() as stack:
            for files in self._made:
                stack.callback(files.close)
            # The lane before the files: nobody may read a region whose file goes away.
            self._is_closed = True
            self._sweeper.close()
            if self._owned is not None:
                self._owned.close()


class Regions:
    """What one sweep wrote, a region for each member. Thread-safe; made by `RegionStore.write`.

    Owns its files until their members are released, or until `close`.

    Parameters
    ----------
    files : that hold the regions
    layout : where they are in the files
    checksums : of their pages, region after region
    label : what one of them is called in messages, before its number
    lane : to read with; it stays the store's
    cost : of the sweep
    """

    def __init__(
        self,
        files: RegionFiles,
        layout: RegionLayout,
        checksums: NDArray[np.uint64],
        *,
        label: str,
        lane: ReadLane,
        cost: SweepCost,
    ) -> None:
        self.layout = layout
        self.cost = cost
        self._files = files
        self._checksums = checksums
        self._label = label
        self._lane = lane

    @property
    def num_bytes(self) -> int:
        """Bytes on disk when they were made."""
        return self.layout.num_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that are held: checksums, and the layout."""
        return int(self._checksums.nbytes + 3 * 8 * self.layout.file.shape[0])

    def read(self, number: int, extents: Extents, target: Target) -> int:
        """Read the region of a member, every byte checked; return the number of requests.

        Parameters
        ----------
        number : 0..S-1
        extents : the reads, see `region_extents`
        target : where its rows go

        Raises
        ------
        ChecksumError
            It was damaged or cut since; the message names whose it is, the file and the byte.
        SpillError
            The device fails, or the region was released.
        StoreError
            The store is closed.
        """
        first, last = self.layout.first_page[number : number + 2].tolist()
        start = int(self.layout.start[number])
        label = f"{self._label} {number}"
        with self._files.reading(number, label) as file:
            try:
                requests, page = self._lane.read(
                    file, extents, target, data_offset=start, checksums=self._checksums[first:last]
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
        return requests

    def read_array(self, number: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Read the region of a member as the array (count,) that it is; read-only. Raises as `read`.

        Parameters
        ----------
        number : 0..S-1
        count : elements that were written to it
        dtype : of them
        """
        if count == 0:  # of a region without a page there may be no file
            return np.empty(0, dtype)
        first, last = self.layout.first_page[number : number + 2].tolist()
        content = aligned_bytes((last - first) * PAGE_BYTES).reshape(-1, PAGE_BYTES)
        # Page by page: of an array nobody wants a part.
        self.read(
            number,
            region_extents(int(self.layout.start[number]), content.nbytes, last - first, PAGE_BYTES),
            make_target(np.arange(last - first), _IN_ORDER, content, dtype=_BYTE),
        )
        values = content.reshape(-1).view(dtype)[:count]
        values.flags.writeable = False  # as arrays in memory are, so that kernels are compiled for one kind
        return values

    def release(self, number: int) -> None:
        """Say that a member is done; its file goes back to the folder with the last member in it. Idempotent."""
        self._files.release(number)

    def close(self) -> None:
        """Remove the files of members that were not released. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed; its bytes stay in use until the folder is closed.
        """
        # The files first, which waits for a reader: with no checksums it would verify nothing.
        self._files.close()
        self._checksums = np.empty(0, np.uint64)


def region_extents(start: int, num_bytes: int, num_rows: int, row_bytes: int) -> Extents:
    """Return the reads of a region, in chunks of 128 KiB. Pure.

    Parameters
    ----------
    start : byte of the file at which the region starts
    num_bytes : of the region, whole pages
    num_rows : rows in it, one after the other
    row_bytes : R
    """
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
