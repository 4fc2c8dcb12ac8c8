"""A sweep over a file that is not here whole: missing blocks come from the store, in order, dealt out at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.errors import ChannelClosedError, PlanError
from gloader.ssd_store.format.npy_header import DATA_OFFSET
from gloader.ssd_store.read.device_file import DeviceFile
from gloader.ssd_store.read.extents import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gloader.ssd_store.mirror.mirror import Arrival, Mirror
    from gloader.ssd_store.mirror.mirrored_file import MirroredFile
    from gloader.ssd_store.os_io import OsIO

_MOST_PINNED: Final = 4096  # blocks that are here, ahead of the sweep


def wanted_blocks(pages: NDArray[np.uint64], data_offset: int, file: MirroredFile) -> NDArray[np.intp]:
    """Return the blocks that hold any wanted page, ascending. Pure.

    Parameters
    ----------
    pages : a bit for each page
    data_offset : byte of the file at which page 0 begins, whole pages
    file : whose blocks they are
    """
    skipped = data_offset // ALIGNMENT
    per_block = file.block_bytes // ALIGNMENT
    bits = np.unpackbits(pages.view(np.uint8), bitorder="little")
    is_wanted = np.zeros(file.num_blocks * per_block, np.bool_)
    count = min(bits.size, is_wanted.size - skipped)
    is_wanted[skipped : skipped + count] = bits[:count]
    return np.flatnonzero(is_wanted.reshape(file.num_blocks, per_block).any(axis=1))


class MirrorSource:
    """Brings the pages of one sweep: a `SweepSource`. For one thread, but for `close`. Owns a descriptor until `close`.

    Blocks that are missing are asked for ahead of the sweep, as many as the store bears; those that are here are pinned
    and read from the file.

    Parameters
    ----------
    mirror : that brings and keeps blocks
    file : to read
    wanted : blocks that will be read, ascending; others may be, and are asked for only then
    os_io : the system calls to make
    """

    def __init__(self, mirror: Mirror, file: MirroredFile, wanted: NDArray[np.intp], *, os_io: OsIO) -> None:
        self._mirror = mirror
        self._file = file
        self._wanted = wanted.tolist()
        self._next = 0  # of `wanted`: the first block that was not looked at
        self._arrivals: dict[int, Arrival] = {}
        self._pinned: set[int] = set()
        self._is_closed = False
        self._local = DeviceFile(file.path, os_io=os_io)

    def read(self, buffer: memoryview, offset: int, /, *, is_cancelled: Callable[[], bool]) -> None:
        """As `SweepSource.read`; what comes from the store is verified."""
        at = offset + DATA_OFFSET
        while buffer:
            block = at // self._file.block_bytes
            self._leave_behind(block)
            self._look_ahead(block)
            count = min(len(buffer), self._file.start_of(block) + self._file.length_of(block) - at)
            if count <= 0:
                raise PlanError(
                    f"{self._file.path}: a sweep reads behind its end, at byte {at}; this is a bug of gloader"
                )
            self._read_block(block, buffer[:count], at, is_cancelled)
            buffer, at = buffer[count:], at + count

    def close(self) -> None:
        """As `SweepSource.close`."""
        if not self._is_closed:
            self._is_closed = True
            self._leave_behind(self._file.num_blocks)
            self._local.close()

    def _read_block(self, block: int, part: memoryview, at: int, is_cancelled: Callable[[], bool]) -> None:
        if is_cancelled():
            raise ChannelClosedError(f"a sweep over {self._file.path} was cancelled")
        if block in self._pinned:
            self._local.read_fully(part, at)
            return
        data = self._mirror.wait(self._arrivals[block], is_cancelled=is_cancelled)
        start = at - self._file.start_of(block)
        np.copyto(np.frombuffer(part, np.uint8), data[start : start + len(part)])

    def _look_ahead(self, block: int) -> None:
        """Pin or ask for ``block``, and for wanted ones behind it."""
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
        if self._mirror.keeper.pin(self._file, block, block + 1):
            self._pinned.add(block)
        else:
            self._arrivals[block] = self._mirror.ask(self._file, block)

    def _leave_behind(self, block: int) -> None:
        for passed in [each for each in self._arrivals if each < block]:
            self._mirror.drop(self._arrivals.pop(passed))
        for passed in [each for each in self._pinned if each < block]:
            self._pinned.discard(passed)
            self._mirror.keeper.unpin(self._file, passed, passed + 1)
