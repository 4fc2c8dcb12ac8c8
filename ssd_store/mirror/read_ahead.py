"""Blocks that are asked for before whoever reads a file from its start needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.ssd_store.mirror.mirrored_file import HERE

if TYPE_CHECKING:
    from gloader.ssd_store.mirror.mirror import Arrival, Mirror
    from gloader.ssd_store.mirror.mirrored_file import MirroredFile


class ReadAhead:
    """Blocks of one file that are asked for before somebody who reads it from its start needs them. Not thread-safe."""

    __slots__ = ("_arrivals", "_file", "_last", "_mirror", "_steps")

    def __init__(self, mirror: Mirror, file: MirroredFile) -> None:
        self._mirror = mirror
        self._file = file
        self._arrivals: dict[int, Arrival] = {}
        self._last = -2
        self._steps = 0  # from one block to the next, in a row

    def move(self, block: int) -> Arrival:
        """Return ``block``, and ask for those behind it: the more, the longer the file is read block after block."""
        if block != self._last:
            self._steps = self._steps + 1 if block == self._last + 1 else 0
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
        """Give a block up. Idempotent."""
        arrival = self._arrivals.pop(block, None)
        if arrival is not None:
            self._mirror.drop(arrival)
