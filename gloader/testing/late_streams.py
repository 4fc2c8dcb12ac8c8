"""Streams of software whose work is done when it must be, and the memory that it touches; for `RehearsedDevice`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# Of every dtype that a batch has something that cannot be right: NaN in all floats but float64, huge as an id.
_POISON: Final = np.uint16(0x7FC0)


def poison(memory: NDArray[Any]) -> None:
    """Overwrite ``memory``, contiguous, with what no batch holds."""
    flat = memory.reshape(-1).view(np.uint8)
    even = len(flat) // 2 * 2
    flat[:even].view(np.uint16)[:] = _POISON
    flat[even:] = 0xC0


class Reachable(Protocol):
    """A mark in a stream's work."""

    reached: bool


@dataclass(slots=True, eq=False)
class Work:
    """Something that a stream will do."""

    run: Callable[[], None]
    touches: frozenset[int] = frozenset()  # addresses of the blocks that it reads or writes
    seconds: float = 0.0
    since_s: float = 0.0  # when the host gave it to the stream
    is_wait: bool = False
    is_early: bool = False  # takes no time, and comes as soon as what is before it is done


class Stream:
    """Work in order, done when it must be."""

    def __init__(self) -> None:
        self.work: deque[Work] = deque()
        self.now_s = 0.0

    def run_until(self, mark: Reachable) -> None:
        """Work until ``mark`` is reached."""
        while not mark.reached:
            self._run_next()

    def run_all(self) -> None:
        """Do all work."""
        while self.work:
            self._run_next()

    def overwrite(self, block: Block) -> None:
        """Let the next user of the memory write to it, behind the last work here that touches it."""
        last = 0
        for place, work in enumerate(self.work, start=1):
            if work.is_wait or block.address in work.touches:
                last = place
        self.work.insert(last, Work(partial(poison, block.memory), is_early=True))
        self.run_early()

    def _run_next(self) -> None:
        work = self.work.popleft()
        self.now_s = max(self.now_s, work.since_s) + work.seconds
        work.run()
        self.run_early()

    def run_early(self) -> None:
        """Do what takes no time and has nothing before it."""
        while self.work and self.work[0].is_early:
            self.work.popleft().run()


@dataclass(slots=True, eq=False)
class Block:
    """Memory of the device, or host memory that it reads. Work refers to the memory; users hold a lease of it."""

    memory: NDArray[np.uint8]
    num_bytes: int
    stream: Stream | None = None  # that it was made on; None: the host's own work
    is_host: bool = False
    is_open: bool = True  # whether the device may read it; false once it was unpinned
    streams: set[Stream] = field(default_factory=set)  # others that use it

    @property
    def address(self) -> int:
        """Where it begins."""
        return int(self.memory.ctypes.data)

    def holds(self, address: int) -> bool:
        """Return whether ``address`` lies in it."""
        return self.address <= address < self.address + self.memory.nbytes
