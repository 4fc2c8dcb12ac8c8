"""Buffers that region stores of several files take turns with."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gloader.core.aligned_memory import mapped_bytes
from gloader.ssd_store.read.lane import ReadLane

if TYPE_CHECKING:
    from gloader.config import IoMode
    from gloader.ssd_store.os_io import OsIO


class SharedBuffers:
    """Memory for sweeps, and a lane to read back through, of stores of one folder: one sweeps at a time. Thread-safe.

    Owns the lane until `close`, which comes behind that of the stores.

    Parameters
    ----------
    sweep_bytes, lane_bytes : for sweeps and for reading back; whole pages
    name : whose they are, in messages, such as "the packer"
    """

    def __init__(self, *, sweep_bytes: int, lane_bytes: int, name: str) -> None:
        self.turn = threading.RLock()  # held during a sweep
        self.memory = mapped_bytes(sweep_bytes)
        self.num_bytes = sweep_bytes + lane_bytes
        self.name = name
        self._lane_bytes = lane_bytes
        self._lane: ReadLane | None = None

    def lane(self, *, io: IoMode, is_direct: bool, os_io: OsIO) -> ReadLane:
        """Return the lane, which is made as the first store wants it.

        Parameters
        ----------
        io : how requests are made
        is_direct : whether files are read past the page cache
        os_io : the system calls

        Raises
        ------
        ConfigError
            ``io`` is "uring" and there is none.
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
