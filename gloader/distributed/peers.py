"""The host's view of the other ranks on its machine: their connections, their batches, and their waits.

The host is the rank that loads for all ranks of its machine; the other ranks are its clients. `LoaderHost` uses this
file: `accept_all` returns a connection to each client, an `Outbox` sends messages and batches through it, and a `Peer`
keeps the client's state. The watchdog raises an error if a wait lasts too long.

- A segment is a buffer in shared memory, which the host fills and a client maps. Segments are numbered.
- A sent batch takes two segments: its feature rows, and its topology (nodes, blocks, links). Both are lent until the
  client releases them.
- A `BufferRing` reuses the segments. A table is the feature rows of a node type or of a relation.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gloader.distributed.shared_memory import (
    bytes_of_slots,
    create_segment,
    rows_bytes,
    rows_in_segment,
    shape_of,
    take_segment,
    write_batch,
    write_slots,
)
from gloader.distributed.wire import (
    CONNECT_S,
    NO_SEGMENT,
    Batch,
    ErrorReport,
    Hello,
    Left,
    RowsRead,
    Segment,
    Unmap,
)
from gloader.errors import RankError
from gloader.pipeline.buffers import BufferRing, RowForm

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from gloader.distributed.agree import Team
    from gloader.distributed.wire import Connection, Gradient, Message, ReadRows
    from gloader.observe.epoch_stats import WorkName
    from gloader.observe.watchdog import Watchdog
    from gloader.pipeline.gather import HostBatch
    from gloader.types import BatchId, IdArray

# Maximum seconds to wait for the `Hello` of a new connection. Other connections wait during this time.
_HELLO_S: Final = 1.0
# Bound of the ring of topologies, in bytes: none. A topology lives as long as its batch's features, which are bounded.
_UNBOUNDED: Final = 2**62
_WORD: Final = RowForm(dim=1)  # topologies are measured in words of 4 bytes


def accept_all(team: Team) -> dict[int, Connection]:
    """Return the connections to the other ranks of ``team``, by ascending rank.

    Raises
    ------
    RankError
        A rank did not connect.
    """
    connections: dict[int, Connection] = {}
    deadline = time.monotonic() + CONNECT_S
    try:
        while len(connections) + 1 < len(team.ranks) and time.monotonic() < deadline:
            connection = team.listener.accept(deadline - time.monotonic()) if team.listener else None
            if connection is None:
                continue
            rank = _rank_of(connection, team.token)
            # Any process of this user may connect. Only the team's ranks have the token, and each connects once.
            if rank is None or rank not in team.ranks[1:] or rank in connections:
                connection.close()
            else:
                connections[rank] = connection
        _require_all(team.ranks[1:], connections)
    except BaseException:
        for connection in connections.values():
            connection.close()
        raise
    return {rank: connections[rank] for rank in team.ranks[1:]}


def _require_all(ranks: Sequence[int], connected: Collection[int]) -> None:
    """Raise RankError, which names the missing ranks, unless all ``ranks`` are connected."""
    missing = [rank for rank in ranks if rank not in connected]
    if missing:
        names = ", ".join(map(str, missing))
        raise RankError(f"rank {names} did not connect within {CONNECT_S:g} s; see its own error")


def _rank_of(connection: Connection, token: str) -> int | None:
    """Return the rank in a new connection's `Hello`; None without a `Hello` or with a wrong token."""
    try:
        received = connection.receive(_HELLO_S)
    except (EOFError, RankError):
        return None
    hello = None if received is None else received.message
    return hello.rank if isinstance(hello, Hello) and hello.token == token else None


class RemoteWait:
    """Another rank's wait for a batch, with the fields of a `Work`, which the watchdog observes."""

    def __init__(self, batch: BatchId) -> None:
        self.stage: WorkName = "wait"
        self.batch = batch
        self.since_ns = time.perf_counter_ns()
        self.thread_id = threading.get_ident()


class Peer:
    """The host's state of a client. Its methods are thread-safe; `LoaderHost` guards the public fields by its lock."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.begins = 0  # the run that the rank requests; 0 for none
        self.position: BatchId | None = None  # the first batch of that run
        self.has_closed = False  # whether the rank has closed its loader
        self._gradients: dict[int, Gradient] = {}  # the rank's part of a step, by embedding
        # Memory of the rank with its gradients, and with ids of rows that it reads, by embedding.
        self._gradient_memory: dict[int, NDArray[np.uint8]] = {}
        self._read_memory: dict[int, NDArray[np.uint8]] = {}
        self._lock = threading.Lock()
        self._wait: RemoteWait | None = None
        self._watchdog: Watchdog | None = None

    def watch(self, watchdog: Watchdog) -> None:
        """Report later waits to ``watchdog``, which belongs to the new run."""
        self._wait, self._watchdog = None, watchdog

    def deliver(self, batch: HostBatch) -> None:
        """Send ``batch``, which ends the rank's wait; errors as in `Outbox.deliver`."""
        # `note_wait` uses the same lock: a ping from before the batch must not begin a wait after it.
        with self._lock:
            self.outbox.deliver(batch)
            self._set_wait(None)

    def is_behind(self, num_batches: int) -> bool:
        """Return whether the rank takes part in the run and was sent fewer than ``num_batches`` batches."""
        return self.outbox.takes_part and self.outbox.num_sent < num_batches

    def keep(self, gradient: Gradient, descriptor: int | None, *, run: int) -> None:
        """Keep the rank's part of a step of ``run`` until `take`, and map its memory, if it is new."""
        if descriptor is not None:
            self._gradient_memory[gradient.embedding] = take_segment(descriptor)
        if gradient.run == run:
            self._gradients[gradient.embedding] = gradient

    def has_stepped(self, embedding: int, step: int) -> bool:
        """Return whether the rank has sent its part of a step."""
        kept = self._gradients.get(embedding)
        return kept is not None and kept.step == step

    def take(self, embedding: int, *, dim: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the slots (n,) and gradients (n, dim) of the rank's part of a step; None without a gradient.

        The rank reuses their memory when the step has been applied.

        Raises
        ------
        RankError
            The memory is smaller than the gradients.
        """
        num_rows = self._gradients.pop(embedding).num_rows
        if not num_rows:
            return None
        slots, rows = self._rows_in(self._gradient_memory.get(embedding), num_rows, dim=dim)
        return torch.from_numpy(slots), torch.from_numpy(rows)

    def answer(
        self, request: ReadRows, descriptor: int | None, read: Callable[[int, IdArray], NDArray[np.float32]]
    ) -> None:
        """Write the weights that the rank requests into its memory, and tell it.

        Parameters
        ----------
        request, descriptor : the message
        read : returns the weights (M, D) of an embedding's rows (M,)
        """
        embedding = request.embedding
        if descriptor is not None:
            self._read_memory[embedding] = take_segment(descriptor)
        try:
            memory = self._read_memory.get(embedding)
            found = read(embedding, self._rows_in(memory, request.num_rows, dim=0)[0].copy())
            self._rows_in(memory, request.num_rows, dim=found.shape[1])[1][:] = found
            answer = RowsRead()
        except Exception as error:  # noqa: BLE001 - the rank that asked must learn of it, whatever it is
            answer = RowsRead(error=f"{type(error).__name__}: {error}")
        self.outbox.tell(answer)

    def _rows_in(
        self, memory: NDArray[np.uint8] | None, num_rows: int, *, dim: int
    ) -> tuple[IdArray, NDArray[np.float32]]:
        """Return the ids and rows in a segment of the rank; RankError if it is too small."""
        num_bytes = 0 if memory is None else len(memory)
        if memory is None or num_bytes < rows_bytes(num_rows, dim=dim):
            raise RankError(
                f"rank {self.outbox.rank} sent {num_rows} rows of an embedding in {num_bytes} B; use one version of "
                "gloader on all ranks"
            )
        return rows_in_segment(memory, num_rows, dim=dim)

    def forget_steps(self) -> None:
        """Drop gradients of an ended run."""
        self._gradients.clear()

    def note_wait(self, batch: BatchId, *, num_received: int) -> None:
        """Note that the rank waits for ``batch``, unless a batch is on its way."""
        with self._lock:
            # If the numbers differ, a batch is on its way: the rank sent its ping before the batch arrived.
            if self.outbox.takes_part and num_received == self.outbox.num_sent:
                self._set_wait(batch)

    def end_wait(self) -> None:
        """Note that the rank does not wait. Idempotent."""
        with self._lock:
            self._set_wait(None)

    def _set_wait(self, batch: BatchId | None) -> None:
        """Begin the rank's wait for ``batch``, or end its wait if ``batch`` is None. The caller holds the lock."""
        self.outbox.ring.note_wait(is_waiting=batch is not None)
        if batch is None:
            wait, self._wait = self._wait, None
            if wait is not None and self._watchdog is not None:
                self._watchdog.leave(wait, time.perf_counter_ns())
        elif self._wait is None and self._watchdog is not None:
            self._wait = RemoteWait(batch)
            self._watchdog.enter(self._wait)


def report_of(
    error: BaseException, rank: int | None, *, run: int | None = None, now: bool = False
) -> ErrorReport:
    """Return the report of ``error`` for another rank.

    Parameters
    ----------
    error : the error that ended the run, or the loader
    rank : the failed rank; None if the text already names a rank
    run, now : as in `ErrorReport`
    """
    has_name = isinstance(error, RankError) or rank is None
    text = str(error) if has_name else f"rank {rank} failed: {type(error).__name__}: {error}"
    return ErrorReport(text=text, notes=tuple(getattr(error, "__notes__", [])), run=run, now=now)


class Outbox:
    """Sends messages and batches to another rank, which maps the batches' segments. Thread-safe.

    A sent batch is lent until the other rank releases it or ends. Owns the connection until `close`.

    Parameters
    ----------
    rank : the other rank
    connection : the connection to this rank
    forms : the form of each table's feature rows
    rows : initial capacity of a new feature buffer, in rows of each table
    max_bytes : maximum bytes of all feature buffers
    """

    def __init__(
        self,
        rank: int,
        connection: Connection,
        *,
        forms: Sequence[RowForm],
        rows: Sequence[int],
        max_bytes: int,
    ) -> None:
        self.rank = rank
        self.connection = connection
        self._segments = _Segments(connection)
        allocate = self._segments.allocate
        self.ring = BufferRing(forms=forms, rows=rows, max_bytes=max_bytes, allocate=allocate)
        self._topologies = BufferRing(forms=[_WORD], rows=[1], max_bytes=_UNBOUNDED, allocate=allocate)
        self._lock = threading.Lock()
        # Arrays that the other rank uses, by segment; they keep buffers from returning to the ring.
        self._lent: dict[int, Any] = {}
        self._run: int | None = None  # the run in which the other rank takes part
        self.num_sent = 0  # batches sent in this run

    def begin(self, run: int) -> None:
        """Send the batches of ``run`` from now on."""
        with self._lock:
            self._run, self.num_sent = run, 0

    @property
    def takes_part(self) -> bool:
        """True if the other rank takes batches of the current run."""
        return self._run is not None

    def leave(self, run: int) -> bool:
        """Send no more batches of ``run``, and report this to the rank; return whether the rank took part."""
        with self._lock:
            took_part = self._run == run
            if took_part:
                self._run = None
            with contextlib.suppress(EOFError):
                self.connection.send(Left(run=run))
        return took_part

    def deliver(self, batch: HostBatch) -> None:
        """Send ``batch``, or drop it if the other rank left the run.

        Raises
        ------
        EOFError
            The other rank is gone.
        """
        with self._lock:
            if self._run is None:
                return
            shape = shape_of(batch.sampled, batch.src_degree)
            num_slots = tuple(len(each.slots) for each in batch.slots)
            num_bytes = shape.num_bytes + bytes_of_slots(num_slots)
            topology = self._topologies.acquire([-(-num_bytes // _WORD.num_bytes)])
            memory = topology[0].reshape(-1).view(np.uint8)
            write_batch(batch.sampled, batch.src_degree, shape, memory)
            write_slots(batch.slots, memory[shape.num_bytes :])
            # The buffers are lent before the send: their release may arrive before `send` returns.
            segments = (self._lend(batch.x) if batch.x else NO_SEGMENT, self._lend(topology))
            self.num_sent += 1
            self.connection.send(
                Batch(
                    run=self._run,
                    segments=segments,
                    rows=tuple(map(len, batch.x)),
                    shape=shape,
                    number=batch.slots[0].number if batch.slots else 0,
                    num_slots=num_slots,
                )
            )

    def release(self, segment: int) -> None:
        """Take back a segment that the other rank has released."""
        self._lent.pop(segment, None)

    def tell(self, message: Message) -> None:
        """Send ``message`` if the other rank is still there."""
        with contextlib.suppress(EOFError):
            self.connection.send(message)

    def close(self) -> None:
        """Close the connection and take all buffers back. Idempotent."""
        with self._lock:
            self._run = None
            self.connection.close()
        self._lent.clear()

    def _lend(self, arrays: tuple[NDArray[Any], ...]) -> int:
        """Keep the arrays of a segment until `release`, and return the segment's number."""
        number = self._segments.number_of(arrays[0])
        self._lent[number] = arrays
        return number


class _Segments:
    """Allocates segments, and announces each one to the other rank.

    Holds no reference to a ring, as the ring holds the allocator.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers: dict[int, int] = {}  # each live segment's number, by its memory address
        self._counter = itertools.count(1)

    def number_of(self, array: NDArray[Any]) -> int:
        """Return the number of the segment whose memory begins with ``array``."""
        return self._numbers[array.ctypes.data]

    def allocate(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return a new buffer (num_bytes,); the other rank gets the buffer now, and a message when it is freed."""
        number = next(self._counter)
        descriptor, memory = create_segment(num_bytes)
        try:
            buffer = memory[:num_bytes]
            address = buffer.ctypes.data
            self._numbers[address] = number
            weakref.finalize(buffer, _forget, self._numbers, self._connection, address, number).atexit = False
            with contextlib.suppress(EOFError):  # the receiving thread notices the end of the connection
                self._connection.send(Segment(segment=number), descriptor=descriptor)
        finally:
            # The message holds a copy of the descriptor. Open originals would add up over all segments.
            os.close(descriptor)
        return buffer


def _forget(numbers: dict[int, int], connection: Connection, address: int, number: int) -> None:
    """Drop a freed segment's number, and send the other rank the request to unmap the segment."""
    # A new buffer may have the same address before the old buffer's finalizer runs.
    if numbers.get(address) == number:
        del numbers[address]
    connection.post(Unmap(segment=number))
