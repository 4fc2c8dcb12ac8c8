"""What passes over the edges brought for batches that are not made yet: where the sweep and the samplers meet."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gloader.core.locks import SignalSafeCondition
from gloader.errors import ChannelClosedError
from gloader.pipeline.wavefront import edge_passes

if TYPE_CHECKING:
    from gloader.dataset.edge_passes import SweptHops
    from gloader.pipeline.positions import BatchStream
    from gloader.pipeline.wavefront import EdgePass


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptPass:
    """A pass that was made. Whoever has it owns ``hops``."""

    edges: EdgePass
    hops: SweptHops


class SweptBatches:
    """What was swept for each position of the stream, hop by hop, until its batch is made. Thread-safe.

    The positions before `num_ready` have all of their hops, and nobody waits here for one that has not: sampler threads
    that did would keep others from making batches, which is what the next pass waits for. Where a pass failed, the
    position behind them is ready too: it has the error. Owns what passes brought until `release_all`.

    Parameters
    ----------
    most : positions that may be ready and not released, those that the pass under way completes included
    start : the first position that is swept; those before it are ready, and are neither read nor released
    """

    def __init__(self, most: int, *, start: int = 0) -> None:
        self.changed = SignalSafeCondition()  # of whoever samples, too: one lock says what may be done
        self._most = most
        self._hops: dict[int, list[tuple[SweptHops, int]]] = {}  # of each position, and whose they are there
        self._num_swept = start
        self._num_released = start
        self._error: BaseException | None = None
        self._is_closed = False

    @property
    def num_ready(self) -> int:
        """Positions that may be asked for: all before it. To be read with the lock of ``changed`` held."""
        return self._num_swept + (self._error is not None)

    def wait_for_room(self, edges: EdgePass) -> None:
        """Wait until so many batches are made that ``edges`` may be swept.

        Raises
        ------
        ChannelClosedError
            Everything was cancelled.
        """
        # A pass that completes nothing is small, and there is nothing yet that could be made.
        is_free = not edges.completed
        self.changed.when(
            lambda: is_free or self._is_closed or edges.completed.stop - self._num_released <= self._most,
            self._require_open,
        )

    def put(self, swept: SweptPass) -> None:
        """Take care of what a pass brought, and let the batches that it completed be made."""
        with self.changed.lock:
            for owner, position in enumerate(swept.edges.positions):
                self._hops.setdefault(position, []).append((swept.hops, owner))
            self._num_swept = max(self._num_swept, swept.edges.completed.stop)
            self.changed.notify_all()

    def close(self, error: BaseException | None = None) -> None:
        """Say that there are no more passes: the stream is over, or ended with ``error``."""
        with self.changed.lock:
            self._error = error
            self.changed.notify_all()

    def read(self, position: int) -> list[Any]:
        """Return what was drawn in each hop of the batch at ``position``, one that is ready; see `HopRule`.

        Raises
        ------
        ChecksumError, SpillError
            As of `SweptHops.read`.
        BaseException
            Whatever ended the passes before this batch.
        """
        with self.changed.lock:
            if position >= self._num_swept and self._error is not None:
                raise self._error
            self._require_open()
            hops = self._hops[position]
        return [swept.read(owner) for swept, owner in hops]

    def release(self, position: int) -> None:
        """Give back what was swept for ``position``: its batch is made."""
        with self.changed.lock:
            hops = self._hops.pop(position, [])
        for swept, owner in hops:  # before the count: the next pass may need the room
            swept.release(owner)
        with self.changed.lock:
            self._num_released += 1
            self.changed.notify_all()

    def cancel(self) -> None:
        """End every wait. Idempotent."""
        with self.changed.lock:
            self._is_closed = True
            self.changed.notify_all()

    def release_all(self) -> None:
        """Give everything back, once every thread has ended. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed.
        """
        with self.changed.lock:
            left, self._hops = self._hops, {}
        with ExitStack() as stack:  # the others are closed, too, if one of them cannot be
            for swept in {id(swept): swept for hops in left.values() for swept, _ in hops}.values():
                stack.callback(swept.close)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ChannelClosedError("the passes over the edges were cancelled")


class PassFeed:
    """The passes that a stream needs, one after another, each when there is room for what it brings. For one thread.

    Parameters
    ----------
    stream : whose batches
    swept : knows how many are left to be made
    size : S_t
    num_hops : L
    start : the first position that is to be swept
    """

    def __init__(
        self, stream: BatchStream, swept: SweptBatches, *, size: int, num_hops: int, start: int
    ) -> None:
        self._passes = edge_passes(size, num_hops=num_hops, has=stream.has, start=start)
        self._swept = swept

    def get(self) -> EdgePass:
        """Return the next pass; raises ChannelClosedError behind the last one."""
        edges = next(self._passes, None)
        if edges is None:
            raise ChannelClosedError("the passes over the edges are over")
        self._swept.wait_for_room(edges)
        return edges
