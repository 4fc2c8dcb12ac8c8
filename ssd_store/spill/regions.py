"""Regions in the spill folder, one for each batch or frontier: written by a sweep, read back with every byte checked.

A region is a range of a temporary file, in whole pages, with the rows of one member. A member is a batch with its
feature rows that no cache holds, or a frontier of sampled nodes with its edges. The frontiers' sweep treats edges as
rows. Several regions share a file. A pack is all regions of one sweep, for instance of a superbatch, which is
consecutive batches that are planned together.

`plan_regions` lays regions out, `RegionStore` writes them with one sweep, and `Regions` reads them back through a lane
(threads or a ring for reads). `SharedBuffers` are the memory for both; several region stores may share it, one sweep at
a time.
"""

from __future__ import annotations

import errno
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.aligned_memory import aligned_bytes, mapped_bytes
from gloader.errors import ChecksumError, SpillError, StoreError, TruncatedStoreError
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.read.extents import Extents
from gloader.ssd_store.read.lane import ReadLane
from gloader.ssd_store.read.row_kernels import make_target
from gloader.ssd_store.spill.folder import SpillFiles
from gloader.ssd_store.sweep.sweeper import Sweeper

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.config import IoMode
    from gloader.core.signals import Cancellation
    from gloader.ssd_store.os_io import OsIO
    from gloader.ssd_store.read.columns import RowFile
    from gloader.ssd_store.read.row_kernels import Target
    from gloader.ssd_store.spill.folder import SpillFile, SpillFolder
    from gloader.ssd_store.sweep.supply import ArrivingRows, WantedPositions
    from gloader.ssd_store.sweep.sweeper import SweepCost
    from gloader.ssd_store.sweep.wanted_rows import WantedRows
    from gloader.types import IdArray


# Maximum number of files per group of members. When its last member is done, the folder gets a file back for reuse.
MAX_FILES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegionLayout:
    """The regions of S members. A member's row i starts ``i * row_bytes`` after the region's start."""

    file: IdArray  # (S,) number of the file that holds each region
    start: IdArray  # (S,) each region's offset in its file, a multiple of 4096
    first_page: IdArray  # (S + 1,) index of each region's first page in the pack's checksums
    file_bytes: IdArray  # (files,) each file's bytes

    @property
    def num_bytes(self) -> int:
        """Bytes in all files."""
        return int(self.file_bytes.sum())

    @property
    def num_pages(self) -> int:
        """Pages in all regions."""
        return int(self.first_page[-1])


def pack_bytes(misses_per_batch: Sequence[int] | IdArray, row_bytes: int) -> int:
    """Return the disk bytes for a superbatch's pack with the given number of rows per batch. Pure."""
    return plan_regions(np.asarray(misses_per_batch, np.int64), row_bytes).num_bytes


def plan_regions(counts: IdArray, row_bytes: int, groups: Sequence[int] = ()) -> RegionLayout:
    """Lay out a region for ``counts[i]`` rows of each member i; consecutive members share a file. Pure.

    Parameters
    ----------
    counts : (S,) number of rows of each member
    row_bytes : R
    groups : (S,) each member's group. Neighbours in different groups share no file, because they finish at different
        times. Empty means one group
    """
    pages = -(-counts * row_bytes // PAGE_BYTES)
    first_page = np.concatenate([[0], np.cumsum(pages)]).astype(np.int64)
    file = _files(counts.shape[0], groups)
    num_files = int(file[-1]) + 1 if file.shape[0] else 0
    begins = np.searchsorted(file, np.arange(num_files))  # each file's first member
    file_pages = np.bincount(file, pages, num_files).astype(np.int64)
    return RegionLayout(
        file=file,
        start=(first_page[:-1] - first_page[begins][file]) * PAGE_BYTES,
        first_page=first_page,
        file_bytes=file_pages * PAGE_BYTES,
    )


def _files(num_batches: int, groups: Sequence[int]) -> IdArray:
    """Return each member's file number (S,): at most `MAX_FILES` files per run of members with the same group."""
    # Neighbours share a file: members end in order, so files and disk space become free in order.
    # ``sizes`` are the lengths of the runs. A run's members are divided evenly among its files.
    ends = np.flatnonzero(np.diff(np.asarray(groups, np.int64))) + 1
    sizes = np.diff(np.concatenate([[0], ends, [num_batches]]))
    file, first = [np.empty(0, np.int64)], 0
    for size in sizes.tolist():
        file.append(first + np.arange(size) // max(1, -(-size // MAX_FILES)))
        first = int(file[-1][-1]) + 1 if size else first
    return np.concatenate(file)


class SharedBuffers:
    """Sweep memory and a read-back lane for stores in one folder, used by one sweep at a time. Thread-safe.

    Owns the lane until `close`, which comes after closing the stores.

    Parameters
    ----------
    sweep_bytes, lane_bytes : bytes for sweeps and for reading back; whole pages
    name : the owner in messages, such as "the packer"
    """

    def __init__(self, *, sweep_bytes: int, lane_bytes: int, name: str) -> None:
        self.turn = threading.RLock()  # held during a sweep: the memory serves one sweep at a time
        self.memory = mapped_bytes(sweep_bytes)
        self.num_bytes = sweep_bytes + lane_bytes
        self.name = name
        self._lane_bytes = lane_bytes
        self._lane: ReadLane | None = None

    def lane(self, *, io: IoMode, is_direct: bool, os_io: OsIO) -> ReadLane:
        """Return the lane, which the first call creates.

        Parameters
        ----------
        io : the request method
        is_direct : reads bypass the page cache
        os_io : the system calls

        Raises
        ------
        ConfigError
            ``io`` is "uring" and io_uring is not available.
        """
        with self.turn:
            if self._lane is None:
                self._lane = ReadLane(
                    self._lane_bytes,
                    io=io,
                    is_direct=is_direct,
                    os_io=os_io,
                    when_closed=f"{self.name} that reads it is closed",
                )
            return self._lane

    def close(self) -> None:
        """Close the lane. Idempotent."""
        with self.turn:
            if self._lane is not None:
                self._lane.close()


CHUNK_BYTES: Final = 128 * 1024  # bytes of one request when a region is read back
_IN_ORDER: IdArray = np.empty(0, dtype=np.int64)  # output positions; empty means that row i goes to row i


class RegionStore:
    """Writes regions of a file's rows, one sweep at a time, and reads them back. Thread-safe.

    Owns a descriptor, rings or threads and its buffers until `close`, which closes its regions as well. Regions may be
    read while the next regions are written.

    Parameters
    ----------
    stored : the rows' description
    folder : folder for the regions, within its budget
    buffers : buffers for sweeps and for reading back; other stores may share them
    owns_buffers : True if `close` closes the buffers
    gap_bytes : longest hole that a sweep over `WantedRows` bridges; defaults to the value in the device's profile

    Raises
    ------
    StoreError, ConfigError
        As in `Sweeper`.
    """

    def __init__(
        self,
        stored: RowFile,
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
        self._is_direct = True  # until a spilled file refuses O_DIRECT
        self._written: list[SpillFiles] = []  # the files of all regions that the folder did not get back yet
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
        """Check that the store is open.

        Raises
        ------
        StoreError
            The store is closed.
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
        cancellation: Cancellation,
        arriving: ArrivingRows | None = None,
    ) -> Regions:
        """Write each member's rows to its region. On an error no region is left.

        Parameters
        ----------
        wanted : S members' rows
        layout : the regions' layout
        label : name of the members' owner in messages, such as "superbatch 3"
        member : name for one member in messages, such as "batch"
        cancellation : the order to end the sweep early
        arriving : source of rows in place of the file; ``wanted`` then holds the rows' slots, which are their places in
            the order of arrival

        Raises
        ------
        BudgetError
            The regions exceed the folder's budget, or there are too many members for the buffers.
        SpillError
            The disk is full (the message has needed and free bytes) or fails, or the folder is closed.
        StoreReadError, TruncatedStoreError, ChecksumError
            The rows cannot be read, or are damaged.
        ChannelClosedError
            The work was cancelled.
        StoreError
            The store is closed.
        GloaderError
            ``arriving`` raised it.
        """
        with self.turn:
            self.require_open()
            sums = np.empty(layout.num_pages, np.uint64)
            is_direct = self._is_direct and self._sweeper.is_direct
            files = SpillFiles(self._folder, f"the pack of {label}", is_direct=is_direct)
            try:
                targets = self._create(files, layout, label)
                self._is_direct = files.is_direct
                cost = self._sweeper.to_files(
                    wanted,
                    [targets.get(number) for number in layout.file.tolist()],
                    layout.start,
                    sums,
                    layout.first_page[:-1],
                    label=f"{label}, {member}",
                    cancellation=cancellation,
                    source=arriving,
                )
                self._folder.os_io.kill_point("pack.after_sweep")  # a crash test may end the process here
                files.complete()
            except BaseException as error:
                files.give_up(error)
                raise
            # The files are recorded once they are complete; before, `give_up` removes them. Files that are gone are no
            # longer recorded.
            self._written = [*(others for others in self._written if not others.is_gone), files]
            paths = {number: target.path for number, target in targets.items()}
            return Regions(files, paths, layout, sums, label=f"{label}, {member}", lane=self._lane, cost=cost)

    def _create(self, files: SpillFiles, layout: RegionLayout, label: str) -> dict[int, SpillFile]:
        """Reserve all files in ``layout``, and create them; files without a page do not exist."""
        # The check covers all files and precedes any reservation, so the message has the size of the entire pack.
        self._folder.require_room(layout.num_bytes, f"the pack of {label}")
        sizes = {number: size for number, size in enumerate(layout.file_bytes.tolist()) if size}
        reserved = {number: files.reserve(size) for number, size in sizes.items()}
        targets = {
            number: files.create(path, sizes[number], is_new=is_new, needed_bytes=layout.num_bytes)
            for number, (path, is_new) in reserved.items()
        }
        self._folder.os_io.kill_point("pack.in_sweep")
        return targets

    def close(self) -> None:
        """Wait for a sweep in progress, then close all regions and release everything. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed; the other files are removed.
        """
        with self.turn, ExitStack() as stack:
            for files in self._written:
                stack.callback(files.close)
            # The lane closes before the files: a region must not be read while its file is removed.
            self._is_closed = True
            self._sweeper.close()
            if self._owned is not None:
                self._owned.close()


class Regions:
    """The result of one sweep, a region for each member. Thread-safe; made by `RegionStore.write`.

    Owns its files until their members are released, or until `close`.

    Parameters
    ----------
    files : the regions' files
    paths : the files' paths, by number
    layout : the regions' places in the files
    checksums : the page checksums, region after region
    label : a region's name in messages, before its number
    lane : lane for the reads; the store owns it
    cost : the sweep's cost
    """

    def __init__(
        self,
        files: SpillFiles,
        paths: Mapping[int, Path],
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
        self._paths = paths
        self._is_live = np.ones(layout.file.shape[0], np.bool_)  # True for members that were not released
        self._checksums = checksums
        self._label = label
        self._lane = lane

    @property
    def num_bytes(self) -> int:
        """Bytes on disk when the regions were made."""
        return self.layout.num_bytes

    @property
    def resident_bytes(self) -> int:
        """Memory bytes held: checksums, and the layout's three int64 arrays (S,)."""
        return int(self._checksums.nbytes + 3 * 8 * self.layout.file.shape[0])

    def read(self, number: int, extents: Extents, target: Target) -> int:
        """Read a member's region, check every byte, and return the number of requests.

        Parameters
        ----------
        number : 0..S-1
        extents : the reads, see `region_extents`
        target : target for the region's rows

        Raises
        ------
        ChecksumError
            The region was damaged or truncated; the message names its owner, the file and the byte.
        SpillError
            The device fails, or the region was released.
        StoreError
            The store is closed.
        """
        first, last = self.layout.first_page[number : number + 2].tolist()
        start = int(self.layout.start[number])
        label = f"{self._label} {number}"
        if not self._is_live[number]:
            raise SpillError(errno.ENOENT, f"the pack of {label} was released", str(self._files.folder.path))
        path = self._paths[int(self.layout.file[number])]
        with self._files.reading(path, f"the pack of {label}") as file:
            try:
                requests, page = self._lane.read(
                    file, extents, target, data_offset=start, checksums=self._checksums[first:last]
                )
            except TruncatedStoreError as error:
                text = f"it has {file.num_bytes} bytes, {start + (last - first) * PAGE_BYTES} are needed"
                raise _damage(label, path, start, text) from error
        if page >= 0:  # a damaged page's number within the region
            offset = start + page * PAGE_BYTES
            raise _damage(label, path, offset, f"the page at byte {offset} does not match its checksum")
        return requests

    def read_array(self, number: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Read a member's region as an array (count,), read-only. Raises as `read`.

        Parameters
        ----------
        number : 0..S-1
        count : number of elements that were written to the region
        dtype : the elements' dtype
        """
        if count == 0:  # a region without a page may have no file
            return np.empty(0, dtype)
        first, last = self.layout.first_page[number : number + 2].tolist()
        content = aligned_bytes((last - first) * PAGE_BYTES).reshape(-1, PAGE_BYTES)
        # The read treats pages as rows, because the array is needed as one piece.
        self.read(
            number,
            region_extents(int(self.layout.start[number]), content.nbytes, last - first, PAGE_BYTES),
            make_target(np.arange(last - first), _IN_ORDER, content),
        )
        values = content.reshape(-1).view(dtype)[:count]
        values.flags.writeable = False  # like arrays in memory, so that kernels compile for one type
        return values

    def release(self, number: int) -> None:
        """Mark a member as done. After the last member in a file, the folder gets the file for reuse. Idempotent."""
        self._is_live[number] = False
        file = int(self.layout.file[number])
        if file in self._paths and not self._is_live[self.layout.file == file].any():
            self._files.keep(self._paths[file])

    def close(self) -> None:
        """Remove the files whose members were not released. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed; its bytes stay in use until the folder is closed.
        """
        # The files close first, which waits for a read in progress: that read still needs the checksums.
        self._is_live[:] = False
        self._files.close()
        self._checksums = np.empty(0, np.uint64)


def region_extents(start: int, num_bytes: int, num_rows: int, row_bytes: int) -> Extents:
    """Return a region's reads, in chunks of 128 KiB. Pure.

    Parameters
    ----------
    start : the region's first byte in the file
    num_bytes : the region's bytes, whole pages
    num_rows : rows in the region, one after another
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
    """Return the error for a region that is damaged at byte ``offset`` of its file; ``what`` is the damage. Pure."""
    return ChecksumError(
        f"the pack of {label} ({path}) is damaged at byte {offset}: {what}; it was changed after it was written: "
        "check the disk and resume from the last checkpoint"
    )
