"""A ring of buffers that shows at once who reads a buffer that was given back."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gloader.pipeline.buffers import BufferRing, RowMatrix
from gloader.testing.late_streams import poison

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class OverwritingRing(BufferRing):
    """A ring that overwrites a buffer at once when it comes back, as the next batch would a moment later."""

    def acquire(self, rows: Sequence[int]) -> tuple[RowMatrix, ...]:
        """Return a buffer; as `BufferRing.acquire`."""
        found = super().acquire(rows)
        if not found:  # of no tables: there is no buffer
            return found
        lease = cast("NDArray[np.uint8]", found[0].base)
        memory = cast("memoryview", lease.base)
        # Called before the reference that gives the buffer back: the newer of two comes first.
        address = int(lease.ctypes.data)
        self._watched[address] = weakref.ref(lease, partial(_overwrite, memory))
        return found

    @property
    def _watched(self) -> dict[int, Any]:
        return self.__dict__.setdefault("_watched_leases", {})


def _overwrite(memory: memoryview, _lease: object) -> None:
    poison(np.frombuffer(memory, dtype=np.uint8))
