"""A mirror's stored blocks: all blocks, or as many as a budget allows.

A mirror is a local copy of a dataset in an object store. The `Mirror` gives each verified block to its `Keeper`, which
writes the block to the disk if the budget has room. Otherwise the keeper evicts less used blocks, which means that it
removes them from the disk. A pin protects a block from eviction while it is read. Each pass over a file counts one use
for each needed block, and earlier uses lose a quarter of their weight.

A mark is a byte on the disk for each block: MISSING, HERE (stored and verified), or WRITTEN (stored, not yet verified).
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from contextlib import contextmanager
from io import FileIO
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.signals import uninterrupted
from gloader.ssd_store.mirror.mirrored_file import EVICTED, HERE, MIRROR_RECORD, MISSING
from gloader.ssd_store.os_io import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.ssd_store.mirror.mirrored_file import MirroredFile
    from gloader.ssd_store.os_io import OsIO


_FADE: Final = np.float32(0.75)  # factor on all earlier uses with each pass over the file
# Factor by which a new block must be used more than the block that it replaces. Without this margin, equally used
# blocks would replace each other. In a sweep over more than the budget, each would be evicted just before its next use.
_MARGIN: Final = np.float32(1.25)


def count_uses(uses: NDArray[np.float32], wanted: NDArray[np.intp]) -> None:
    """Record one pass over a file that used exactly the blocks ``wanted``."""
    uses *= _FADE
    uses[wanted] += 1


def choose_victims(
    uses: NDArray[np.float32], lengths: NDArray[np.int64], *, needed_bytes: int, newcomer: float | None
) -> NDArray[np.intp] | None:
    """Return the blocks to evict, the least used first, or None if the new block is worth less. Pure.

    Parameters
    ----------
    uses : (V,) uses of the blocks that may be evicted
    lengths : (V,) bytes in these blocks
    needed_bytes : bytes that must become free
    newcomer : the new block's uses; None means that the block must be kept, even beyond the budget
    """
    order = np.argsort(uses, kind="stable")
    freed = np.cumsum(lengths[order])
    # The fewest blocks of ``order`` that free enough bytes.
    count = int(np.searchsorted(freed, needed_bytes)) + 1 if needed_bytes > 0 else 0
    if count > order.size:
        return order if newcomer is None else None
    chosen = order[:count]
    if newcomer is not None and (uses[chosen] * _MARGIN >= newcomer).any():
        return None
    return chosen


_LOG = logging.getLogger(__name__)
_ATTEMPTS: Final = 100  # attempts to get the folder's eviction lock
_PAUSE_S: Final = 0.01  # pause between attempts; another process evicts a few blocks meanwhile


class Keeper:
    """Keeps blocks within a budget. Thread-safe; several processes may keep blocks in one folder.

    Without a budget, a shared lock on each open file keeps other processes from evicting its blocks. With a budget,
    blocks are pinned while they are read. A pin is a count for this process's threads, and a lock on the block's mark
    for other processes.

    Parameters
    ----------
    folder : the mirror's folder; eviction requires gloader's owner record in it
    budget_bytes : maximum bytes for all blocks; None means that all blocks are kept
    os_io : the system calls
    """

    def __init__(self, folder: Path, *, budget_bytes: int | None, os_io: OsIO) -> None:
        self.budget_bytes = budget_bytes
        self.num_evicted = 0
        self.num_not_kept = 0
        self._folder = folder
        self._os_io = os_io
        self._files: list[MirroredFile] = []
        self._evictable: set[str] = set()  # names of files whose blocks may be evicted
        self._lock = threading.RLock()  # protects the pins
        # Admits one block after another, so that two do not take the same room.
        self._admission = threading.Lock()
        # Blocks that have room in the budget and are being written.
        self._admitted: list[tuple[MirroredFile, int]] = []
        self._has_warned = False

    def add(self, file: MirroredFile, *, is_evictable: bool) -> None:
        """Add a file. ``is_evictable`` is False if all of its blocks must stay on the disk."""
        if self.budget_bytes is None:
            file.share(0, file.num_blocks)
        with self._lock:
            self._files.append(file)
            if is_evictable:
                self._evictable.add(file.name)

    def used_bytes(self) -> int:
        """Return the bytes in all stored and admitted blocks."""
        used = 0
        for file in self._files:
            # One read of the marks: with two, a block that is marked in between would count twice, or not at all.
            is_used = file.marks != MISSING
            is_used[[block for other, block in self._admitted if other is file]] = True
            used += int(_lengths(file)[is_used].sum())
        return used

    def pin(self, file: MirroredFile, first: int, past: int) -> bool:
        """Pin blocks ``first`` to ``past - 1`` until `unpin`. Return False if some of them are not stored."""
        if self.budget_bytes is None:
            if not (file.marks[first:past] == HERE).all():
                file.reload(first, past)
            return bool((file.marks[first:past] == HERE).all())
        with self._lock:
            if (file.pins[first:past] == EVICTED).any():  # another thread evicts one of them now
                return False
            file.pins[first:past] += 1
        try:
            file.share(first, past)
            file.reload(first, past)
            if (file.marks[first:past] == HERE).all():
                return True
        except BaseException:
            self.unpin(file, first, past)
            raise
        self.unpin(file, first, past)  # some blocks are missing
        return False

    def unpin(self, file: MirroredFile, first: int, past: int) -> None:
        """Release the pins from `pin`."""
        if self.budget_bytes is None:
            return
        with self._lock:
            file.pins[first:past] -= 1
            free = first + np.flatnonzero(file.pins[first:past] == 0)
            # The file's locks are released under `_lock`. Otherwise a thread that pins such a block now would lose the
            # lock that it has just taken.
            for begin, end in _runs(free):
                file.release(begin, end)

    def pin_all(self, file: MirroredFile, blocks: NDArray[np.intp]) -> bool:
        """Pin ``blocks`` (ascending) until `unpin_all`. Return False, without pins, if some of them are not stored."""
        runs = _runs(blocks)
        for number, (first, past) in enumerate(runs):
            if not self.pin(file, first, past):
                for begin, end in runs[:number]:
                    self.unpin(file, begin, end)
                return False
        return True

    def unpin_all(self, file: MirroredFile, blocks: NDArray[np.intp]) -> None:
        """Release the pins from `pin_all`."""
        for first, past in _runs(blocks):
            self.unpin(file, first, past)

    def keep(
        self,
        file: MirroredFile,
        block: int,
        data: NDArray[np.uint8],
        *,
        mark: int,
        must: bool,
    ) -> bool:
        """Write a verified block and mark it. Return False if there is no room for it.

        Parameters
        ----------
        file, block : the block's file and number
        data : the block's bytes
        mark : HERE, or WRITTEN for a file that only the digest of the entire file can verify
        must : True keeps the block even beyond the budget, and pins it

        Raises
        ------
        OSError
            The disk fails, or is full.
        """
        if self.budget_bytes is not None:
            with self._admission:
                if not self._make_room(file, block, must=must):
                    self.num_not_kept += 1
                    return False
                self._admitted.append((file, block))
        try:
            return self._write(file, block, data, mark, is_held=must)
        finally:
            if self.budget_bytes is not None:
                with self._admission:
                    self._admitted.remove((file, block))

    def warn(self, error: OSError) -> None:
        """Log once that blocks cannot be kept."""
        with self._lock:
            self.num_not_kept += 1
            is_first, self._has_warned = not self._has_warned, True
        if is_first:
            _LOG.warning(
                "%s: blocks cannot be kept here (%s), and are read from the object store again: free some space, or "
                "give a --mirror-budget that fits",
                self._folder,
                error.strerror or error,
            )

    def _write(
        self, file: MirroredFile, block: int, data: NDArray[np.uint8], mark: int, *, is_held: bool
    ) -> bool:
        """Write and mark an admitted block; arguments as in `keep`. ``is_held`` leaves the block pinned."""
        if self.budget_bytes is None:
            file.write(block, data)
            file.mark(block, mark)
            return True
        with self._lock:
            if file.pins[block] == EVICTED:  # another thread evicts the block's earlier copy now
                return False
            file.pins[block] += 1
        try:
            # Another process may be about to free this block's space.
            file.share(block, block + 1)
            file.write(block, data)
            file.mark(block, mark)
        except BaseException:
            self.unpin(file, block, block + 1)
            raise
        if not is_held:
            self.unpin(file, block, block + 1)
        return True

    def _make_room(self, file: MirroredFile, block: int, *, must: bool) -> bool:
        """Evict less used blocks to make room for a new block. Return False if the new block must not be stored.

        A new block with ``must`` is stored even if it exceeds the budget.
        """
        needed = self._needed_bytes(file.length_of(block))
        if needed <= 0:
            return True
        newcomer = None if must else float(file.uses[block])
        if self._victims(needed, newcomer) is None:
            return False
        with self._alone() as is_alone:
            # Another process evicts for long. A block that must be stored then exceeds the budget for a time.
            if not is_alone:
                return must
            # Other processes may have stored or evicted blocks meanwhile, so the victims are chosen again.
            for kept_file in self._files:
                kept_file.reload()
            needed = self._needed_bytes(file.length_of(block))
            victims = self._victims(needed, newcomer)
            for victim_file, number in victims or ():
                self._evict(victim_file, number)
            return must or (victims is not None and self._needed_bytes(file.length_of(block)) <= 0)

    def _needed_bytes(self, length: int) -> int:
        """Return the bytes to free before a block with ``length`` bytes fits; 0 or less if it fits now."""
        return self.used_bytes() + length - (self.budget_bytes or 0)

    def _victims(self, needed: int, newcomer: float | None) -> list[tuple[MirroredFile, int]] | None:
        """Return the blocks to evict, as (file, block); arguments and None as in `choose_victims`."""
        blocks: list[tuple[MirroredFile, int]] = []
        uses, lengths = [np.empty(0, np.float32)], [np.empty(0, np.int64)]
        for file in self._files:
            if file.name in self._evictable:
                free = np.flatnonzero((file.marks == HERE) & (file.pins == 0))
                blocks += [(file, int(number)) for number in free]
                uses.append(file.uses[free])
                lengths.append(_lengths(file)[free])
        chosen = choose_victims(
            np.concatenate(uses), np.concatenate(lengths), needed_bytes=needed, newcomer=newcomer
        )
        return None if chosen is None else [blocks[position] for position in chosen]

    def _evict(self, file: MirroredFile, block: int) -> None:
        """Remove a block from the disk, unless a thread or another process reads it."""
        with self._lock:
            if file.pins[block] != 0:
                return
            file.pins[block] = EVICTED
        try:
            if file.own(block):  # no other process reads the block
                try:
                    # The mark is removed first, durably: with a mark, the hole's zeros would pass for data.
                    file.mark(block, MISSING, is_durable=True)
                    # A crash test may end the process at this point.
                    self._os_io.kill_point("mirror.before_punch")
                    file.punch(block)
                    self.num_evicted += 1
                finally:
                    file.release(block, block + 1)
        finally:
            with self._lock:
                file.pins[block] = 0

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Hold the folder's eviction lock. Yield False if another process holds it for long."""
        with uninterrupted():
            record = FileIO(
                open_regular(self._folder / MIRROR_RECORD, os.O_RDONLY | os.O_NOFOLLOW, os_io=self._os_io)
            )
        with record:
            yield self._try_lock(record.fileno())  # closing the file releases the lock

    def _try_lock(self, fd: int) -> bool:
        """Take the lock on the open file ``fd``. Return False if another process holds it for about a second."""
        for _ in range(_ATTEMPTS):
            try:
                self._os_io.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_PAUSE_S)
            else:
                return True
        return False


def _runs(blocks: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Return runs of consecutive numbers, each as (first, last + 1). Pure."""
    if not blocks.size:
        return []
    cuts = np.flatnonzero(np.diff(blocks) != 1) + 1
    firsts, lasts = blocks[np.r_[0, cuts]], blocks[np.r_[cuts, blocks.size] - 1]
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def _lengths(file: MirroredFile) -> NDArray[np.int64]:
    """Return the bytes in each of a file's blocks. Pure."""
    lengths = np.full(file.num_blocks, file.block_bytes, np.int64)
    lengths[-1] = file.length_of(file.num_blocks - 1)
    return lengths
