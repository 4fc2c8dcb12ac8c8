"""The system calls on a mirror: a file's read gets its bytes from the SSD or the object store.

A mirror is a local copy of a dataset in an object store, filled block by block (8 MiB each). `MirrorIO` is the `OsIO`
of such a dataset: readers use it like the plain system calls. It serves three kinds of reads:

- `MirrorIO.pread_into` fetches a missing block before the read. `ReadAhead` requests the next blocks early.
- `MirrorIO.portions` serves compiled code (a kernel) that reads many extents (aligned reads) by itself. It fetches the
  missing blocks for a run of consecutive extents, and then lets the kernel read the run.
- `MirrorIO.source` serves a sweep, a pass over the needed pages in file order. `MirrorSource` requests the sweep's
  missing blocks ahead of it.

A pin protects a stored block from eviction while it is read. A mirror with a budget evicts blocks when their bytes on
the disk would exceed the budget. Some files have no page checksums, so only the digest of the entire file verifies
them: such a file is fetched and verified as a whole at its first read. An `Arrival` is one requested block. Each reader
that uses it calls `Mirror.drop` in the end.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.signals import Cancellation, close_in_finalizer
from gloader.errors import PlanError, StoreError
from gloader.ssd_store.format.manifest import DATA_OFFSET
from gloader.ssd_store.mirror.block_fetch import MirrorStats
from gloader.ssd_store.mirror.keeper import count_uses
from gloader.ssd_store.mirror.mirrored_file import HERE
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.read.device_file import DeviceFile
from gloader.ssd_store.read.extents import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.ssd_store.mirror.block_fetch import Fetcher
    from gloader.ssd_store.mirror.mirror import Arrival, Mirror
    from gloader.ssd_store.mirror.mirrored_file import MirroredFile
    from gloader.ssd_store.os_io import StrPath
    from gloader.types import IdArray


class ReadAhead:
    """Early requests for one file's blocks, for a reader in file order. Not thread-safe."""

    __slots__ = ("_arrivals", "_file", "_last", "_mirror", "_steps")

    def __init__(self, mirror: Mirror, file: MirroredFile) -> None:
        self._mirror = mirror
        self._file = file
        self._arrivals: dict[int, Arrival] = {}  # requested blocks, by number
        self._last = -2  # the block of the last read; -2 before the first read (-1 would precede block 0)
        self._steps = 0  # consecutive blocks read

    def move(self, block: int) -> Arrival:
        """Request ``block`` and the blocks after it, and return the arrival of ``block``.

        After the first reads in order, each further block in order about doubles the number of blocks ahead, up to the
        mirror's width.
        """
        if block != self._last:
            self._steps = self._steps + 1 if block == self._last + 1 else 0
        # 0, 2, 6, 14, ... blocks after 1, 2, 3, 4, ... steps. The limit of 16 only keeps the power small.
        num_ahead = min(2 ** min(self._steps, 16) - 2, self._mirror.width) if self._steps else 0
        past = min(block + 1 + num_ahead, self._file.num_blocks)
        for other in [each for each in self._arrivals if not block <= each < past]:
            self.leave(other)
        self._last = block
        for number in range(block, past):
            is_needed = number == block or self._file.marks[number] != HERE
            if is_needed and number not in self._arrivals:
                self._arrivals[number] = self._mirror.ask(self._file, number)
        return self._arrivals[block]

    def leave(self, block: int) -> None:
        """End the use of a block. Idempotent."""
        arrival = self._arrivals.pop(block, None)
        if arrival is not None:
            self._mirror.drop(arrival)


_MOST_PINNED: Final = 4096  # maximum number of blocks that a sweep pins ahead


def wanted_blocks(pages: NDArray[np.uint64], data_offset: int, file: MirroredFile) -> NDArray[np.intp]:
    """Return the blocks with at least one needed page, ascending. Pure.

    Parameters
    ----------
    pages : uint64 words with one bit per page, the lowest bit first; a set bit means that the page is needed
    data_offset : page 0's offset in the file, in bytes, whole pages
    file : the file
    """
    skipped = data_offset // ALIGNMENT
    per_block = file.block_bytes // ALIGNMENT
    bits = np.unpackbits(pages.view(np.uint8), bitorder="little")
    is_wanted = np.zeros(file.num_blocks * per_block, np.bool_)
    count = min(bits.size, is_wanted.size - skipped)
    is_wanted[skipped : skipped + count] = bits[:count]
    return np.flatnonzero(is_wanted.reshape(file.num_blocks, per_block).any(axis=1))


class MirrorSource:
    """One sweep's pages: a `SweepSource`. For one thread, except `close`. Owns a descriptor until `close`.

    The source requests missing blocks ahead of the sweep, as many as the store sustains. Stored blocks are pinned and
    read from the file.

    Parameters
    ----------
    mirror : the mirror, which fetches and keeps blocks
    file : the file to read
    wanted : blocks that will be read, ascending; another block is requested only when it is read
    os_io : the system calls
    """

    def __init__(self, mirror: Mirror, file: MirroredFile, wanted: NDArray[np.intp], *, os_io: OsIO) -> None:
        self._mirror = mirror
        self._file = file
        self._wanted = wanted.tolist()
        self._next = 0  # position in `wanted` of the first block that was not prepared
        self._arrivals: dict[int, Arrival] = {}
        self._pinned: set[int] = set()
        self._is_closed = False
        self._local = DeviceFile(file.path, os_io=os_io)

    def read(self, buffer: memoryview, offset: int, /, *, cancellation: Cancellation) -> None:
        """Read as `SweepSource.read` does. Bytes from the store are verified."""
        position = offset + DATA_OFFSET  # in the file, in bytes
        while buffer:
            block = position // self._file.block_bytes
            self._drop_before(block)
            self._look_ahead(block)
            count = min(len(buffer), self._file.start_of(block) + self._file.length_of(block) - position)
            if count <= 0:
                raise PlanError(
                    f"{self._file.path}: a sweep reads behind its end, at byte {position}; this is a bug of gloader"
                )
            self._read_block(block, buffer[:count], position, cancellation)
            buffer, position = buffer[count:], position + count

    def close(self) -> None:
        """Close, as `SweepSource.close`."""
        if not self._is_closed:
            self._is_closed = True
            self._drop_before(self._file.num_blocks)
            self._local.close()

    def _read_block(self, block: int, part: memoryview, position: int, cancellation: Cancellation) -> None:
        """Fill ``part`` with ``block``'s bytes from the file position ``position`` on."""
        cancellation.raise_if_set(f"a sweep over {self._file.path}")
        if block in self._pinned:
            self._local.read_fully(part, position)
            return
        data = self._mirror.wait(self._arrivals[block], cancellation=cancellation)
        start = position - self._file.start_of(block)
        np.copyto(np.frombuffer(part, np.uint8), data[start : start + len(part)])

    def _look_ahead(self, block: int) -> None:
        """Pin or request ``block``, and as many needed blocks after it as the limits allow."""
        if block not in self._pinned and block not in self._arrivals:
            while self._next < len(self._wanted) and self._wanted[self._next] <= block:
                self._next += 1
            self._prepare(block)
        width = self._mirror.width
        while (
            self._next < len(self._wanted)
            and len(self._arrivals) < width
            and len(self._pinned) < _MOST_PINNED
        ):
            self._prepare(self._wanted[self._next])
            self._next += 1

    def _prepare(self, block: int) -> None:
        """Pin a stored block, or request a missing one."""
        if self._mirror.keeper.pin(self._file, block, block + 1):
            self._pinned.add(block)
        else:
            self._arrivals[block] = self._mirror.ask(self._file, block)

    def _drop_before(self, block: int) -> None:
        """Drop and unpin all blocks before ``block``, which the sweep has passed."""
        for passed in [each for each in self._arrivals if each < block]:
            self._mirror.drop(self._arrivals.pop(passed))
        for passed in [each for each in self._pinned if each < block]:
            self._pinned.discard(passed)
            self._mirror.keeper.unpin(self._file, passed, passed + 1)


# With a budget, one run of extents pins at most a quarter of the budget's blocks. A run of 4 blocks is always allowed.
_RUN_BLOCKS: Final = 4
_RUN_SHARE: Final = 4
_WAITING_BLOCKS: Final = 6  # fetched blocks in memory that wait to be read or written
_FEWEST_REQUESTS: Final = 2  # requests in flight that are allowed whatever the memory limit


class MirrorIO(OsIO):
    """The real system calls, which fetch missing bytes of mirrored files before a read. Thread-safe.

    A descriptor's device and inode tell if its file belongs to the mirror. Calls that open, read or close go through
    ``os_io``; all others are the system's. Owns the mirror until `close_mirror`.

    Parameters
    ----------
    mirror : the mirror, which fetches blocks and stores them on this disk
    fetcher : the mirror's fetcher, which has the counts
    num_requests : number of requests to the store before the mirror was open, for `stats`
    os_io : the system calls
    """

    def __init__(
        self, mirror: Mirror, fetcher: Fetcher, *, num_requests: int = 0, os_io: OsIO = REAL_OS
    ) -> None:
        self.mirror = mirror
        self._fetcher = fetcher
        self._num_requests = num_requests
        self._os_io = os_io
        self._lock = threading.Lock()
        self._ahead: dict[str, ReadAhead] = {}  # by file name
        # Blocks pinned for sweeps that read only stored blocks, by descriptor.
        self._held: dict[int, tuple[MirroredFile, NDArray[np.intp]]] = {}

    @property
    def url(self) -> str:
        """The dataset's URL, in a form without secrets."""
        return self.mirror.record.url

    @property
    def is_whole(self) -> bool:
        """True if every block is on this disk."""
        stored, total = self.mirror.files.num_blocks
        return stored == total

    @property
    def likely_bytes_per_s(self) -> float:
        """Expected bytes per second from the store."""
        return self._fetcher.limits.likely_bytes_per_s

    def limit_memory(self, num_bytes: int, /) -> int:
        """Limit the memory for blocks in flight to about ``num_bytes``, at least two requests; return the limit.

        A request takes two blocks of memory during a copy, and a few blocks wait to be read or kept. If all blocks are
        stored, none is in flight.
        """
        block_bytes = self.mirror.record.block_bytes
        wanted = max((num_bytes // block_bytes - _WAITING_BLOCKS) // 2, _FEWEST_REQUESTS)
        requests = self._fetcher.limit(wanted)
        return 0 if self.is_whole else (2 * requests + _WAITING_BLOCKS) * block_bytes

    def stats(self) -> MirrorStats:
        """Return the counts so far."""
        counts = self._fetcher.counts
        stored, total = self.mirror.files.num_blocks
        return MirrorStats(
            requests=self._num_requests + counts.requests,
            retries=counts.retries,
            bytes=counts.bytes,
            waited_s=counts.limited_s + counts.paused_s,
            blocks_here=stored,
            blocks=total,
            starved_s=self.mirror.waits.seconds,
            evicted=self.mirror.keeper.num_evicted,
            not_kept=self.mirror.keeper.num_not_kept,
        )

    def open(self, path: StrPath, flags: int, mode: int = 0o666) -> int:
        """Open, as `OsIO.open`."""
        return self._os_io.open(path, flags, mode)

    def duplicate(self, fd: int) -> int:
        """Duplicate, as `OsIO.duplicate`."""
        return self._os_io.duplicate(fd)

    def close(self, fd: int) -> None:
        """Close, as `OsIO.close`."""
        self._let_go(fd)
        self._os_io.close(fd)

    def close_mirror(self) -> None:
        """Make no more requests to the store. Idempotent. Stored blocks can be read while their files are open."""
        self.mirror.close()

    def __del__(self) -> None:
        if hasattr(self, "mirror"):
            close_in_finalizer(self.mirror.close)

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Read as `OsIO.pread_into`, after waiting for missing bytes. May return fewer bytes than requested.

        Raises
        ------
        StoreReadError, StoreOpenError, ChecksumError
            A block cannot be fetched, its object was replaced, or it arrived damaged.
        """
        file = self.mirror.files.of(fd)
        # There is nothing to fetch for a file outside the mirror, and for the header page.
        first, past = (0, 0) if file is None else file.blocks_of(offset, len(buffer))
        if file is None or first == past:
            return self._os_io.pread_into(fd, buffer, offset)
        if self.mirror.files.is_checked_whole(file):
            self.mirror.require_whole(file)
            return self._os_io.pread_into(fd, buffer, offset)
        keeper = self.mirror.keeper
        if keeper.pin(file, first, past):
            try:
                return self._os_io.pread_into(fd, buffer, offset)
            finally:
                keeper.unpin(file, first, past)
        return self._read_ahead(file, buffer, offset)

    def portions(self, fd: int, offsets: IdArray, lengths: IdArray, /) -> Iterator[tuple[int, int]]:
        """Yield the ranges of `OsIO.portions`; raises as `pread_into`, and `StoreWriteError` if the disk fails."""
        file = self.mirror.files.of(fd) if len(offsets) else None
        if file is None:
            yield from super().portions(fd, offsets, lengths)
            return
        if self.mirror.files.is_checked_whole(file):
            self.mirror.require_whole(file)
            yield 0, len(offsets)
            return
        # Each extent's first block, and its last block plus one. Extents are in file order, so both arrays ascend.
        firsts = offsets // file.block_bytes
        ends = np.maximum.accumulate(offsets + lengths)
        pasts = -(-np.minimum(ends, file.size) // file.block_bytes)
        count_uses(file.uses, _touched(firsts, pasts, file))
        begin = 0
        while begin < len(offsets):
            if self.mirror.keeper.budget_bytes is None:
                past = self._bring_run(file, firsts, pasts, begin)
                yield begin, past
            else:
                past = self._count_run(file, firsts, pasts, begin)
                with self.mirror.held(file, _touched(firsts[begin:past], pasts[begin:past], file)):
                    yield begin, past
            begin = past

    def source(self, fd: int, pages: NDArray[np.uint64], data_offset: int, /) -> MirrorSource | None:
        """Return the source, as `OsIO.source`, or None if the file on this disk has all needed bytes."""
        self._let_go(fd)
        file = self.mirror.files.of(fd)
        if file is None:
            return None
        if self.mirror.files.is_checked_whole(file):
            self.mirror.require_whole(file)
            return None
        wanted = wanted_blocks(pages, data_offset, file)
        count_uses(file.uses, wanted)
        file.reload()
        # Fetched blocks may still be on their way to the disk. Without this wait, one such block would make the sweep
        # use a source for all blocks.
        self.mirror.wait_written(file, wanted[file.marks[wanted] != HERE].tolist())
        if (file.marks[wanted] == HERE).all() and self._hold(fd, file, wanted):
            return None
        return MirrorSource(self.mirror, file, wanted, os_io=self._os_io)

    def download_s(self, fd: int, pages: NDArray[np.uint64], data_offset: int, /) -> float:
        """Return the seconds of `OsIO.download_s`; 0 if fewer than half of the missing blocks are needed."""
        file = self.mirror.files.of(fd)
        if file is None:
            return 0.0
        file.reload()
        is_missing = file.marks != HERE
        num_wanted = np.count_nonzero(is_missing[wanted_blocks(pages, data_offset, file)])
        if 2 * num_wanted < np.count_nonzero(is_missing):
            return 0.0
        return num_wanted * file.block_bytes / self.likely_bytes_per_s

    def refetch(self, fd: int, offset: int, /) -> bool:
        """Fetch damaged bytes again, as `OsIO.refetch`; raises as `pread_into`, and `StoreWriteError`."""
        file = self.mirror.files.of(fd)
        return file is not None and self.mirror.refetch(file, offset)

    # --- reads of missing blocks ---

    def _read_ahead(self, file: MirroredFile, buffer: memoryview, offset: int) -> int:
        """Fill the start of ``buffer`` from one fetched block; return the number of bytes."""
        block = offset // file.block_bytes
        end = file.start_of(block) + file.length_of(block)
        with self._lock:
            ahead = self._ahead.setdefault(file.name, ReadAhead(self.mirror, file))
            arrival = ahead.move(block)
            self.mirror.share(arrival)
        part = buffer[: end - offset]
        start = offset - file.start_of(block)
        try:
            # The bytes are copied before `drop`, because the memory may then be reused for another block.
            data = self.mirror.wait(arrival)
            np.copyto(np.frombuffer(part, np.uint8), data[start : start + len(part)])
        except StoreError:
            with self._lock:
                ahead.leave(block)  # the next reader requests it again
            raise
        finally:
            self.mirror.drop(arrival)
        if offset + len(part) == end:
            with self._lock:
                ahead.leave(block)
        return len(part)

    def _bring_run(self, file: MirroredFile, firsts: IdArray, pasts: IdArray, begin: int) -> int:
        """Bring the blocks for a run of extents to this disk; return the run's end. For a mirror without a budget.

        If all blocks of extent ``begin`` are stored, nothing is fetched: the run ends before the first extent with a
        missing block. Otherwise the call fetches as many missing blocks as may be in flight. The run is then the
        extents whose blocks are all stored, at least one extent.

        Parameters
        ----------
        file : the file
        firsts, pasts : (X,) first block, and last block plus one, of all extents
        begin : the run's first extent
        """
        file.reload()
        # Missing blocks before each block.
        missing_before = np.concatenate([[0], np.cumsum(file.marks != HERE)])
        is_incomplete = missing_before[pasts[begin:]] > missing_before[firsts[begin:]]
        count = int(is_incomplete.argmax()) if is_incomplete.any() else len(is_incomplete)
        if count:
            return begin + count
        wanted = _touched(firsts[begin:], pasts[begin:], file)
        wanted = wanted[file.marks[wanted] != HERE][: self.mirror.width]
        past = begin + int(np.searchsorted(pasts[begin:], wanted[-1] + 1, "right"))
        past = max(past, begin + 1)
        wanted = _touched(firsts[begin:past], pasts[begin:past], file)
        self.mirror.bring(file, wanted[file.marks[wanted] != HERE].tolist())
        return past

    def _count_run(self, file: MirroredFile, firsts: IdArray, pasts: IdArray, begin: int) -> int:
        """Return the end of a run whose blocks are pinned together. For a mirror with a budget.

        The run is short, because other readers of the mirror need room in the budget too.
        """
        budget_blocks = (self.mirror.keeper.budget_bytes or 0) // file.block_bytes
        most = max(min(self.mirror.width, budget_blocks // _RUN_SHARE), _RUN_BLOCKS)
        return max(begin + int(np.searchsorted(pasts[begin:], firsts[begin] + most, "right")), begin + 1)

    # --- pins of sweeps ---

    def _hold(self, fd: int, file: MirroredFile, wanted: NDArray[np.intp]) -> bool:
        """Pin a sweep's blocks until its descriptor is closed or swept again. Return False if not all are stored."""
        keeper = self.mirror.keeper
        if not keeper.pin_all(file, wanted):
            return False
        if keeper.budget_bytes is not None:
            with self._lock:
                self._held[fd] = file, wanted
        return True

    def _let_go(self, fd: int) -> None:
        """Release the pins from `_hold`, if ``fd`` has some."""
        with self._lock:
            held = self._held.pop(fd, None)
        if held is not None:
            self.mirror.keeper.unpin_all(*held)


def _touched(firsts: IdArray, pasts: IdArray, file: MirroredFile) -> NDArray[np.intp]:
    """Return the blocks that extents touch, ascending. Pure.

    Parameters
    ----------
    firsts, pasts : (X,) each extent's first block, and its last block plus one
    file : the extents' file
    """
    # The running sum of +1 at each first and -1 at each past is the number of extents on a block.
    changes = np.zeros(file.num_blocks + 1, np.int64)
    np.add.at(changes, firsts, 1)
    np.add.at(changes, pasts, -1)
    return np.flatnonzero(np.cumsum(changes[:-1]) > 0)
