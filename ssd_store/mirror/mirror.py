"""A mirror: a dataset's files on this disk, whose blocks are fetched from an object store on demand.

`Mirror` joins the parts of this folder. The `Fetcher` requests blocks, `FileCheck` verifies them, and the `Keeper`
stores and evicts them within a budget. `MirrorIO` calls the mirror for each read. A pin protects a block from eviction.

An `Arrival` is one requested block. Its users are the readers that wait for it. It is settled once it is decided if the
block stays on the disk. A mark is a block's state on the disk: MISSING, WRITTEN (stored, not verified yet), or HERE
(stored and verified). WRITTEN is for a file without page checksums, which only the digest of the entire file verifies.
"""

from __future__ import annotations

import errno
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.aligned_memory import mapped_bytes
from gloader.core.signals import NEVER, Cancellation, SignalSafeCondition
from gloader.errors import (
    ChecksumError,
    StoreError,
    StoreOpenError,
    StoreReadError,
    StoreWriteError,
)
from gloader.ssd_store.mirror.block_fetch import BlockRequest, WaitClock
from gloader.ssd_store.mirror.keeper import Keeper
from gloader.ssd_store.mirror.mirror_folder import MirrorFiles, disk_errors
from gloader.ssd_store.mirror.mirrored_file import HERE, MISSING, WRITTEN, MirroredFile
from gloader.ssd_store.mirror.object_store import REQUEST_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from gloader.ssd_store.mirror.block_fetch import BlockFetch, Fetcher
    from gloader.ssd_store.mirror.mirrored_file import FileCheck, MirrorRecord
    from gloader.ssd_store.os_io import OsIO

_AHEAD: Final = 2  # blocks that a reader requests in addition to the blocks in flight
# Pause between two attempts to claim a block, and between two checks for a cancellation.
_LOOK_S: Final = 0.05
_WRITING_S: Final = 1.0  # longest wait of a sweep until fetched blocks are written
_MOST_REPORTS: Final = 3  # reports of one damaged block that lead to another read; further reports are errors


@dataclass(slots=True, eq=False)
class Arrival:
    """A block on its way from the store: in memory after its verification, then perhaps kept on the disk."""

    file: MirroredFile
    block: int  # the block's number within the file
    must_keep: bool = False  # a user reads the block from the disk, so it must be stored
    num_users: int = 0  # calls to `Mirror.ask` and `Mirror.share` without their `Mirror.drop`
    buffer: NDArray[np.uint8] | None = None  # the mirror's memory under ``data``
    data: NDArray[np.uint8] | None = None  # the verified bytes
    fetch: BlockFetch | None = None  # None if the block was already stored
    is_found: bool = False  # another process has stored it on this disk meanwhile
    is_settled: bool = False  # True once it is decided if the block is kept
    is_kept: bool = False
    is_pinned: bool = False  # True protects it from eviction, until the last user drops it
    failure: OSError | None = None  # the disk's error


class Mirror:
    """Fetches, verifies and keeps blocks. Thread-safe. Owns the fetcher and descriptors until `close`.

    Parameters
    ----------
    folder : the mirror's folder
    record : the mirror's owner record
    checks : each file's check, by name
    fetcher : fetches the blocks
    budget_bytes : maximum bytes for all blocks on the disk; None means that all blocks are kept
    os_io : the system calls

    Raises
    ------
    BudgetError
        The budget has no room for the blocks that must always be stored.
    StoreOpenError
        A file in the mirror cannot be opened.
    """

    def __init__(
        self,
        folder: Path,
        record: MirrorRecord,
        checks: Mapping[str, FileCheck],
        fetcher: Fetcher,
        *,
        budget_bytes: int | None,
        os_io: OsIO,
    ) -> None:
        self.folder = folder
        self.record = record
        self.waits = WaitClock()
        self.keeper = Keeper(folder, budget_bytes=budget_bytes, os_io=os_io)
        self.files = MirrorFiles(folder, record, checks, self.keeper, os_io=os_io)
        self._checks = checks
        self._fetcher = fetcher
        self._changed = SignalSafeCondition()
        # Arrivals that are not settled, by file name and block.
        self._arriving: dict[tuple[str, int], Arrival] = {}
        # Memory of earlier blocks, for reuse: getting new memory from the system takes longer than fetching a block.
        self._spare: list[NDArray[np.uint8]] = []
        # Number of reports of a damaged block, by file name and block.
        self._num_reports: dict[tuple[str, int], int] = {}
        # A lock for each file that only the digest of the entire file verifies: one thread fetches and verifies it.
        self._whole_locks = {
            name: threading.Lock() for name, check in checks.items() if check.pages_name is None
        }
        self._verified: set[str] = set()  # files that the digest of the entire file has verified

    @property
    def width(self) -> int:
        """Number of blocks to request ahead."""
        return self._fetcher.width + _AHEAD

    # --- blocks ---

    def ask(self, file: MirroredFile, block: int, *, must_keep: bool = False) -> Arrival:
        """Request a block, without waiting for it. The first request for a file waits for the file's page checksums.

        The caller calls `drop` when it no longer needs the block.

        Parameters
        ----------
        file, block : the block's file and number
        must_keep : the block will be read from the disk
        """
        sums = self._checks[file.name].pages_name  # the file of page checksums
        if sums is not None:
            self.require_whole(self.files.named(sums))
        with self._changed.lock:
            arrival = self._arriving.get((file.name, block))
            if arrival is None or (arrival.fetch is not None and arrival.fetch.error is not None):
                # The block may have arrived since the caller's test, or another process may have stored it.
                is_here = self.keeper.pin(file, block, block + 1)
                arrival = Arrival(file, block) if is_here else self._begin(file, block)
                arrival.is_pinned = is_here
            arrival.must_keep |= must_keep
            arrival.num_users += 1
            return arrival

    def share(self, arrival: Arrival) -> None:
        """Become another user of a requested block that still has a user; `drop` ends the use."""
        with self._changed.lock:
            arrival.num_users += 1

    def wait(self, arrival: Arrival, *, cancellation: Cancellation = NEVER) -> NDArray[np.uint8]:
        """Return a requested block's bytes.

        Raises
        ------
        StoreOpenError
            The object was replaced.
        StoreReadError
            The fetch failed; the message names the object, the bytes and the reason.
        ChecksumError
            The block arrived damaged twice; the message names the block.
        StoreError
            The mirror was closed.
        ChannelClosedError
            The work was cancelled.
        """
        if arrival.fetch is None:  # the block was already stored at the request, and is pinned
            if arrival.data is None:
                arrival.data = self._read(arrival)
            return arrival.data
        try:
            with self.waits:
                self._fetcher.wait(arrival.fetch, cancellation=cancellation)
        except StoreReadError as error:
            if error.errno != errno.ESTALE:
                raise
            text = (
                "the object was replaced after its mirror was made; open the dataset again. If its record is still the "
                f"same, remove {self.folder} first"
            )
            raise StoreOpenError(errno.ESTALE, text, self._url(arrival.file)) from None
        if arrival.data is None:
            raise StoreError(f"{self._url(arrival.file)}: block {arrival.block} was given up")
        return arrival.data

    def drop(self, arrival: Arrival) -> None:
        """End the use of a requested block. A request that was already made continues, and its block may be kept."""
        with self._changed.lock:
            arrival.num_users -= 1
            if arrival.num_users:
                return
            self._unpin(arrival)
            self._reuse(arrival)
            if arrival.fetch is not None and self._fetcher.forget(arrival.fetch):
                self._arriving.pop((arrival.file.name, arrival.block), None)

    def bring(
        self,
        file: MirroredFile,
        blocks: Iterable[int],
        *,
        cancellation: Cancellation = NEVER,
    ) -> None:
        """Fetch ``blocks`` (ascending) to the disk; raises as `wait`, and `StoreWriteError` if the disk fails."""
        arrivals: list[Arrival] = []
        remaining = iter(blocks)
        try:
            while True:
                while len(arrivals) < self.width and (block := next(remaining, None)) is not None:
                    arrivals.append(self.ask(file, block, must_keep=True))
                if not arrivals:
                    return
                self._wait_kept(arrivals, 0, cancellation)
                self.drop(arrivals.pop(0))
        finally:
            for arrival in arrivals:
                self.drop(arrival)

    def wait_written(self, file: MirroredFile, blocks: Iterable[int]) -> None:
        """Wait at most one second until each block in memory among ``blocks`` is written, or will not be kept."""
        with self._changed.lock:
            arrivals = [self._arriving.get((file.name, block)) for block in blocks]
        in_memory = [arrival for arrival in arrivals if arrival is not None and arrival.data is not None]
        self._changed.when(lambda: all(arrival.is_settled for arrival in in_memory), lambda: None, _WRITING_S)

    @contextmanager
    def held(self, file: MirroredFile, blocks: NDArray[np.intp]) -> Iterator[None]:
        """Fetch a few blocks to the disk, and protect them from eviction inside the context; raises as `bring`."""
        arrivals: list[Arrival] = []
        try:
            for block in blocks.tolist():
                arrivals.append(self.ask(file, block, must_keep=True))  # noqa: PERF401 - keeps these if one fails
            for number in range(len(arrivals)):
                self._wait_kept(arrivals, number, NEVER)
            yield
        finally:
            for arrival in arrivals:
                self.drop(arrival)

    def require_whole(self, file: MirroredFile, *, cancellation: Cancellation = NEVER) -> None:
        """Fetch a file that only a digest of the entire file can check; raises as `bring`, and `ChecksumError`."""
        if file.name in self._verified:
            return
        check = self._checks[file.name]
        with self._whole_locks[file.name]:
            for _ in range(2):  # damaged blocks are fetched once more
                if file.name in self._verified:
                    return
                file.reload()
                self.bring(file, np.flatnonzero(file.marks == MISSING).tolist(), cancellation=cancellation)
                with self._disk_errors(file):
                    is_sound = check.is_sound(file)
                    for block in np.flatnonzero(file.marks != (HERE if is_sound else MISSING)).tolist():
                        file.mark(block, HERE if is_sound else MISSING)
                if is_sound:
                    self._verified.add(file.name)
                    return
        raise ChecksumError(
            f"{self._url(file)}: it does not match the digest {check.array.digest} of the dataset's record: the object "
            "is damaged in the store; check the copy that it came from with `gloader verify` and upload it again"
        )

    def refetch(self, file: MirroredFile, offset: int) -> bool:
        """Fetch a damaged page's block once more, as in `OsIO.refetch`. Return False after `_MOST_REPORTS` reports."""
        block = offset // file.block_bytes
        key = file.name, block
        with self._changed.lock:
            number = self._num_reports[key] = self._num_reports.get(key, 0) + 1
            # Only the first report fetches the block. A later report may concern the old bytes, which another reader
            # had read before; then a second read suffices.
            if number > _MOST_REPORTS:
                return False
            if number == 1:
                file.mark(block, MISSING)
                self._verified.discard(file.name)
        if self.files.is_checked_whole(file):
            self.require_whole(file)
        elif number == 1 or file.marks[block] != HERE:
            self.bring(file, [block])
        return True

    def close(self) -> None:
        """Make no more requests, and close the files. Idempotent."""
        self._fetcher.close()
        self.files.close()

    # --- arrivals ---

    def _begin(self, file: MirroredFile, block: int) -> Arrival:
        """Request a block from the fetcher. The caller holds the lock."""
        arrival = self._arriving[file.name, block] = Arrival(file, block)
        request = BlockRequest(
            name=file.name,
            number=block,
            start=file.start_of(block),
            length=file.length_of(block),
            etag=file.etag,
        )
        arrival.fetch = self._fetcher.ask(
            request,
            lambda data: self._take(arrival, data),
            lambda: self._keep(arrival),
            lambda is_over: self._alone(arrival, is_over),
        )
        return arrival

    @contextmanager
    def _alone(self, arrival: Arrival, is_over: Callable[[], bool]) -> Iterator[Buffer | None]:
        """Exclude fetches of a block by other processes. Yield its bytes if another process has just stored it."""
        file, block = arrival.file, arrival.block
        deadline = time.monotonic() + REQUEST_TIMEOUT_S  # the other process may hang
        with self._disk_errors(file):
            while not file.claim(block) and not is_over() and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            file.reload(block, block + 1)
        try:
            # A stored block is used once. If it is damaged, the next attempt fetches it.
            arrival.is_found = file.marks[block] != MISSING and not arrival.is_found
            yield self._read(arrival).data if arrival.is_found else None
        finally:
            file.unclaim(block)

    def _take(self, arrival: Arrival, data: Buffer) -> None:
        """Verify a fetched block; called on one of the fetcher's threads."""
        file, block, check = arrival.file, arrival.block, self._checks[arrival.file.name]
        length = file.length_of(block)
        # The block is copied: checksums and the device need page-aligned memory, and the client's is not aligned.
        with self._changed.lock:
            buffer = self._spare.pop() if self._spare else None
        if buffer is None:
            buffer = mapped_bytes(self.record.block_bytes, touch=False)
        copy = buffer[:length]
        copy[:] = np.frombuffer(memoryview(data), np.uint8)
        if block == 0:
            check.require_header(copy, self._url(file))
        if check.pages_name is not None:
            sums = self.files.named(check.pages_name)
            with self._disk_errors(sums):
                check.require_pages(file, block, copy, sums, self._url(file))
        arrival.buffer, arrival.data = buffer, copy

    def _keep(self, arrival: Arrival) -> None:
        """Keep a fetched block on the disk, if there is room; called on one of the fetcher's threads."""
        file, data = arrival.file, arrival.data
        must = arrival.must_keep
        try:
            if arrival.is_found:
                arrival.is_kept = True
            elif data is not None:
                mark = WRITTEN if self.files.is_checked_whole(file) else HERE
                arrival.is_kept = self.keeper.keep(file, arrival.block, data, mark=mark, must=must)
                arrival.is_pinned = arrival.is_kept and must
        except Exception as error:  # noqa: BLE001 - reported to users who need the block on the disk
            arrival.failure = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
            self.keeper.warn(arrival.failure)
        finally:
            with self._changed.lock:
                arrival.is_settled = True
                if not arrival.num_users:
                    self._unpin(arrival)
                    self._reuse(arrival)
                if self._arriving.get((file.name, arrival.block)) is arrival:
                    del self._arriving[file.name, arrival.block]
                self._changed.notify_all()

    def _read(self, arrival: Arrival) -> NDArray[np.uint8]:
        """Return a block's bytes from this disk."""
        data = mapped_bytes(arrival.file.length_of(arrival.block), touch=False)
        with self._disk_errors(arrival.file):
            arrival.file.read(data.data, arrival.file.start_of(arrival.block))
        return data

    def _reuse(self, arrival: Arrival) -> None:
        """Take back the memory of a block without readers and writers. The caller holds the lock."""
        if arrival.buffer is None or not arrival.is_settled:
            return
        if len(self._spare) < self._fetcher.width:
            self._spare.append(arrival.buffer)
        arrival.buffer = arrival.data = None

    def _unpin(self, arrival: Arrival) -> None:
        """End the arrival's pin, if it has one. The caller holds the lock."""
        if arrival.is_pinned:
            arrival.is_pinned = False
            self.keeper.unpin(arrival.file, arrival.block, arrival.block + 1)

    def _wait_kept(self, arrivals: list[Arrival], number: int, cancellation: Cancellation) -> None:
        """Wait until the block of ``arrivals[number]`` is on the disk. It stays there until `drop`.

        The arrival may be replaced in the list, because a block that was not stored is requested again.
        """
        # A block without a fetch was already stored, and is pinned.
        while (arrival := arrivals[number]).fetch is not None:
            self.wait(arrival, cancellation=cancellation)
            self._wait_settled(arrival, cancellation)
            is_free = self.keeper.budget_bytes is not None and not self.files.is_checked_whole(arrival.file)
            if arrival.is_kept and (arrival.is_pinned or not is_free):
                return
            # The block was requested only for a read from memory. It was not kept, or may be evicted (``is_free``).
            arrivals[number] = self.ask(arrival.file, arrival.block, must_keep=True)
            self.drop(arrival)

    def _wait_settled(self, arrival: Arrival, cancellation: Cancellation) -> None:
        """Wait until it is decided if the block stays on the disk; raises `StoreWriteError` if the disk failed."""
        while not arrival.is_settled:
            cancellation.raise_if_set(f"waiting for block {arrival.block} of {arrival.file.path}")
            self._changed.when(lambda: arrival.is_settled, lambda: None, _LOOK_S)
        if arrival.failure is not None:
            text = (
                f"block {arrival.block} cannot be written: {arrival.failure.strerror}; free some space, or give "
                "another --mirror-dir"
            )
            raise StoreWriteError(arrival.failure.errno, text, str(arrival.file.path)) from arrival.failure

    # --- errors ---

    def _url(self, file: MirroredFile) -> str:
        return f"{self.record.url}/{file.name}"

    def _disk_errors(self, file: MirroredFile) -> AbstractContextManager[None]:
        """Return a context that turns an `OSError` of this disk into a `StoreReadError`."""
        return disk_errors(StoreReadError, "reading the mirror failed", file.path)
