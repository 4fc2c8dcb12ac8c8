"""System calls that note which pages of the edges are read."""

from __future__ import annotations

from typing import Any

from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.testing.faults import FaultyOS


class CountingOS(FaultyOS):
    """Notes the pages of the sources of edges, in the order in which they are read."""

    def __init__(self, **faults: Any) -> None:
        super().__init__(**faults)
        self.pages: list[int] = []

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """As `FaultyOS.pread_into`."""
        count = super().pread_into(fd, buffer, offset)
        if self._paths.get(fd, "").endswith("indices.npy") and offset >= DATA_OFFSET:
            self.pages += range((offset - DATA_OFFSET) // 4096, (offset + count - DATA_OFFSET) // 4096)
        return count
