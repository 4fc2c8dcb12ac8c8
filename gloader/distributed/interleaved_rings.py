"""Interleaved rings: the buffers of several ranks in turn, for a stream that holds their batches in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from gloader.pipeline.buffers import BufferRing, RowMatrix


class InterleavedRings:
    """Gives a buffer of one rank's ring after the other's, for one thread that acquires batch by batch.

    Parameters
    ----------
    rings : one for each rank; the first belongs to this process
    """

    def __init__(self, rings: Sequence[BufferRing]) -> None:
        self._rings = rings
        self._position = 0
        # The ring whose buffer `acquire` waits for. It stays after a cancelled wait: a stall is explained by it.
        self.blocked_on: int | None = None

    def acquire(self, rows: Sequence[int]) -> tuple[RowMatrix, ...]:
        """Return uninitialised (rows, F) arrays, waiting for a free buffer; errors as `BufferRing.acquire`."""
        turn = self._position % len(self._rings)
        self.blocked_on = turn
        found = self._rings[turn].acquire(rows)
        self.blocked_on = None
        self._position += 1
        return found

    def consumer_waits(self) -> AbstractContextManager[None]:
        """Mark the time during which the consumer of this process waits for a batch."""
        return self._rings[0].consumer_waits()

    def cancel(self) -> None:
        """Wake whoever waits for a buffer, and refuse to give any until `resume`. Idempotent."""
        for ring in self._rings:
            ring.cancel()

    def resume(self) -> None:
        """Give buffers again after `cancel`, to the first rank first."""
        self._position = 0
        self.blocked_on = None
        for ring in self._rings:
            ring.resume()
