"""The way of batches to one other rank of the machine: into its buffers, with a message about each."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.distributed.batch_layout import BatchShape, write_batch
from gloader.distributed.shared_memory import create_segment
from gloader.pipeline.buffers import BufferRing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.distributed.wire import Connection, Message
    from gloader.pipeline.gather import HostBatch

_UNBOUNDED = 2**62  # a batch's topology takes memory as long as its features do, and those are bounded


class Outlet:
    """Hands batches to ``rank``, which maps the buffers that they are gathered into. Thread-safe.

    What was sent belongs to the other side until it releases it, or is gone. Owns the connection until `close`.

    Parameters
    ----------
    dim, rows, max_bytes : as of `BufferRing`, for the features of this rank
    """

    def __init__(self, rank: int, connection: Connection, *, dim: int, rows: int, max_bytes: int) -> None:
        self.rank = rank
        self.connection = connection
        self._segments = _Segments(connection)
        allocate = self._segments.allocate
        self.ring = BufferRing(dim=dim, rows=rows, max_bytes=max_bytes, allocate=allocate)
        self._topologies = BufferRing(dim=1, rows=1, max_bytes=_UNBOUNDED, allocate=allocate)
        self._lock = threading.Lock()
        self._lent: dict[int, Any] = {}  # what the other side uses, by segment
        self._run: int | None = None  # which it takes part in
        self.num_sent = 0  # batches of that run

    def begin(self, run: int) -> None:
        """Send the batches of ``run`` from now on."""
        with self._lock:
            self._run, self.num_sent = run, 0

    @property
    def takes_part(self) -> bool:
        """Whether the other side takes batches of the run under way."""
        return self._run is not None

    def leave(self, run: int) -> bool:
        """Send no more batches of ``run``, and say so behind the last one; return whether it took part."""
        with self._lock:
            took_part = self._run == run
            if took_part:
                self._run = None
            with contextlib.suppress(EOFError):
                self.connection.send({"op": "left", "run": run})
        return took_part

    def deliver(self, host: HostBatch) -> None:
        """Send ``host``, or drop it where the other side does not take part any more.

        Raises
        ------
        EOFError
            The other side is gone.
        """
        with self._lock:
            if self._run is None:
                return
            shape = BatchShape.of(host.sampled)
            topology = self._topologies.acquire(-(-shape.num_bytes // 4))
            write_batch(host.sampled, host.src_degree, shape, topology.reshape(-1).view(np.uint8))
            numbers = [self._lend(host.x), self._lend(topology)]
            self.num_sent += 1
            self.connection.send(
                {
                    "op": "batch",
                    "run": self._run,
                    "segments": numbers,
                    "rows": len(host.x),  # none where the other side's device brings all of them
                    "shape": shape.to_json(),
                }
            )

    def release(self, segment: int) -> None:
        """Take a buffer back that the other side does not use any more."""
        self._lent.pop(segment, None)

    def tell(self, message: Message) -> None:
        """Send ``message``, if anybody is there."""
        with contextlib.suppress(EOFError):
            self.connection.send(message)

    def close(self) -> None:
        """Close the connection and take everything back. Idempotent."""
        with self._lock:
            self._run = None
            self.connection.close()
        self._lent.clear()

    def _lend(self, array: NDArray[np.float32]) -> int:
        number = self._segments.number_of(array)
        self._lent[number] = array
        return number


class _Segments:
    """Makes buffers that the other side of a connection maps. Knows no ring, so that none keeps itself alive."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers: dict[int, int] = {}  # by address
        self._counter = itertools.count(1)

    def number_of(self, array: NDArray[np.float32]) -> int:
        """Return the number of the buffer that ``array`` begins."""
        return self._numbers[array.ctypes.data]

    def allocate(self, num_floats: int) -> NDArray[np.float32]:
        """Return a new buffer (num_floats,), which the other side is told of; and again when it is gone."""
        number = next(self._counter)
        descriptor, memory = create_segment(4 * num_floats)
        try:
            buffer = memory[: 4 * num_floats].view(np.float32)
            address = buffer.ctypes.data
            self._numbers[address] = number
            weakref.finalize(buffer, _forget, self._numbers, self._connection, address, number).atexit = False
            with contextlib.suppress(EOFError):  # whoever receives from the connection hears of its end
                self._connection.send({"op": "segment", "segment": number}, descriptor=descriptor)
        finally:
            os.close(descriptor)
        return buffer


def _forget(numbers: dict[int, int], connection: Connection, address: int, number: int) -> None:
    if numbers.get(address) == number:
        del numbers[address]
    connection.post({"op": "unmap", "segment": number})
