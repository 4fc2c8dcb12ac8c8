"""The client: a rank without its own pipeline. It takes its batches from memory that the host shares.

The host is the rank that loads for all ranks of its machine. `LoaderClient` is a client's end of the connection to the
host; `gloader.distributed.client_run` uses it. It receives messages only while a method waits; there is no receiving
thread. With a GPU two threads may wait: one for a batch, and the training loop for a step of an embedding. Then one of
them receives for both. The messages are defined in `gloader.distributed.wire`. The order of its calls is: connect (the
constructor), then for each run `begin`, `next_batch` for each batch, `leave`; and `close` at the end.

- A segment is a buffer in shared memory, which the host fills and the client maps. Segments are numbered.
- A run is a sequence of batches from one position on, such as an epoch. Runs are numbered, so that messages of an old
  run are recognised.
- A lease is the array that all views of a received segment hold. When the last view is freed, the client releases the
  segment, and the host may fill it again.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gloader.core.signals import SignalSafeCondition, is_signal_pending
from gloader.core.units import format_seconds
from gloader.distributed.shared_memory import read_batch, read_slots, take_segment
from gloader.distributed.wire import (
    CONNECT_S,
    NO_SEGMENT,
    Applied,
    Batch,
    Begin,
    Bye,
    Connection,
    ErrorReport,
    Failed,
    Gradient,
    Hello,
    Leave,
    Left,
    Ping,
    ReadRows,
    Release,
    RowsRead,
    Segment,
    Slots,
    Started,
    Unmap,
    Welcome,
)
from gloader.errors import ChannelClosedError, RankError, StallError
from gloader.pipeline.buffers import RowForm, matrices_in
from gloader.pipeline.gather import HostBatch
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from gloader.device import Pinned
    from gloader.distributed.agree import Team
    from gloader.distributed.device_agreement import FollowerDevice
    from gloader.distributed.wire import Message, Received

_PING_S = 1.0  # seconds of waiting after which the client sends a `Ping`
# Maximum seconds to wait for the host's answer to `Leave`: a failure must be reported within 5 s.
_LEAVE_S = 4.0


class LoaderClient:
    """A client's side of the connection to its host. Owns the connection until `close`.

    One thread at a time may use it, except for `take_step`, which another thread may call meanwhile. `consumer_waits`,
    `cancel` and `report_failure` only send or set a flag, and are safe in any thread.

    Parameters
    ----------
    team : the ranks of this machine
    device : this rank's device; it answers the host's requests while the host opens the loader
    stall_timeout_s : maximum seconds without any message from the host; 0 means no limit

    Raises
    ------
    RankError
        The host cannot be reached, or cannot load.
    BaseException
        The error of ``device``; the other ranks are notified.
    """

    def __init__(
        self,
        team: Team,
        device: FollowerDevice,
        *,
        stall_timeout_s: float,
    ) -> None:
        self.host = team.ranks[0]
        self._device = device
        self._timeout_s = stall_timeout_s or None
        self._segments: dict[int, NDArray[np.uint8]] = {}  # mapped memory, by number
        self._pinned: dict[int, Pinned | None] = {}  # by feature segment
        # Arrived batches of the present run; an error has its place after the last batch before it.
        self._inbox: deque[HostBatch | RankError] = deque()
        self._run = 0  # number of the present run
        self._started = 0  # the last run that the host began
        self._cancelled = 0  # the last run whose batches are no longer needed
        self._left = 0  # the last run for which the host sends no more batches
        self._num_received = 0  # batches of the present run
        self._awaited = BatchId(epoch=0, index=0)  # the last batch that was requested
        self.slots: dict[int, NDArray[np.float32]] = {}  # weights (C, D) of the host's slots, by embedding
        self._applied: dict[int, Applied] = {}  # the last step of the present run, by embedding
        self._answers: deque[RowsRead] = deque()  # to the last `ReadRows`
        self._copies_ids = False  # set by `begin`
        self._error: RankError | None = None  # set if the connection is unusable
        self._bye: RankError | None = None  # set if the host closed: no more messages will come
        self._does_consumer_wait = False
        self._is_closed = False
        self._turn = SignalSafeCondition()  # its lock guards the next flag
        self._is_receiving = False  # whether a thread receives
        self._heard_at = time.monotonic()  # time of the last message, in seconds
        self._connection = Connection.to(team.address, timeout_s=CONNECT_S)
        try:
            self._connection.send(Hello(rank=team.rank, token=team.token))
            self.welcome = self._await_welcome()  # the host's facts, such as its memory plan
        except EOFError as error:
            self._connection.close()
            raise RankError(f"rank {self.host} ended while it opened the loader of this machine") from error
        except BaseException:
            self._connection.close()
            raise

    def begin(self, position: BatchId, *, copies_ids: bool = False) -> None:
        """Request the batches from ``position`` on. Wait until all ranks of the machine have done so.

        Parameters
        ----------
        position : the first batch
        copies_ids : copy ids as in `read_batch`, because blocks go to a device before the next batch is requested

        Raises
        ------
        RankError
            A rank has ended, does not begin, or begins at another position.
        """
        self._run += 1
        self._num_received = 0
        self._awaited = position
        self._applied.clear()
        self._copies_ids = copies_ids
        self._inbox.clear()
        self._post(Begin(run=self._run, epoch=position.epoch, index=position.index))
        self._wait_until(lambda: self._started == self._run, position, self._timeout_s)

    @contextmanager
    def consumer_waits(self) -> Iterator[None]:
        """Mark the time in which the consumer waits for a batch. Each `Ping` reports the flag to the host.

        The consumer is the training loop. A thread that sends batches to the device ahead of time waits too, but a
        wait of that thread is no stall.
        """
        self._does_consumer_wait = True
        try:
            yield
        finally:
            self._does_consumer_wait = False

    def has_batch(self) -> bool:
        """Return whether `next_batch` would not wait."""
        while self._receive(0.0):
            pass
        return bool(self._inbox)

    def next_batch(self, batch_id: BatchId) -> HostBatch:
        """Return the next batch of the run, waiting for it.

        Raises
        ------
        ChannelClosedError
            The run was cancelled.
        RankError
            A rank failed or ended; the message names the rank and the cause.
        StallError
            The host shows no sign of life.
        """
        self._awaited = batch_id
        # Handle all received messages first: an urgent error may have arrived after batches.
        self.has_batch()
        self._wait_until(lambda: bool(self._inbox), batch_id, None)
        item = self._inbox.popleft()
        if isinstance(item, RankError):
            raise item
        return item

    def take_step(self, embedding: int, step: int, *, num_rows: int, descriptor: int | None) -> int:
        """Send this rank's part of a step, wait until the host has applied the step, and return `Applied.num_steps`.

        Parameters
        ----------
        embedding : number of the embedding
        step : number of the step in the run
        num_rows : rows in the segment of the gradients; 0 without a gradient
        descriptor : of a new segment, which stays the caller's; None if the host has it

        Raises
        ------
        ChannelClosedError, RankError, StallError
            As in `next_batch`.
        """
        self._require_alive()
        gradient = Gradient(run=self._run, embedding=embedding, step=step, num_rows=num_rows)
        with suppress(EOFError):  # the messages of the host, received next, have the cause
            self._connection.send(gradient, descriptor=descriptor)

        def is_applied() -> bool:
            applied = self._applied.get(embedding)
            return applied is not None and applied.step == step

        # The caller defers a Ctrl-C during a step.
        self._wait_until(lambda: is_applied() or is_signal_pending(), self._awaited, None)
        if not is_applied():
            raise RankError("this rank was interrupted in a step")
        return self._applied[embedding].num_steps

    def read_rows(self, embedding: int, *, num_rows: int, descriptor: int | None) -> None:
        """Ask the host for the newest weights of rows, and wait until they are in the segment; also between two runs.

        Parameters
        ----------
        embedding : number of the embedding
        num_rows : rows in the segment
        descriptor : of a new segment, which stays the caller's; None if the host has it

        Raises
        ------
        RankError, StallError
            The host could not read them, or is gone.
        """
        self._answers.clear()
        with suppress(EOFError):  # the messages of the host, received next, have the cause
            self._connection.send(ReadRows(embedding=embedding, num_rows=num_rows), descriptor=descriptor)
        self._wait_until(lambda: bool(self._answers), self._awaited, None, is_in_run=False)
        if error := self._answers.popleft().error:
            raise RankError(f"rank {self.host} could not read the rows of an embedding: {error}")

    def cancel(self) -> None:
        """Request the end of the run's batches, and end a wait for the next one. Idempotent."""
        if not self._is_over() and self._cancelled < self._run:
            self._cancelled = self._run
            self._post(Leave(run=self._run))

    def leave(self) -> None:
        """Leave the run, wait for the host's answer, and release batches that are still on the way. Idempotent."""
        self.cancel()
        if not self._is_over() and self._left < self._run:
            self._inbox.clear()
            # Batches that the host sent before its answer are received too, which returns their buffers.
            deadline = time.monotonic() + _LEAVE_S
            while not self._is_over() and self._left < self._run:
                left = deadline - time.monotonic()
                if left <= 0:
                    self._error = RankError(f"rank {self.host} does not answer")
                self._receive(left)
        self._inbox.clear()

    def report_failure(self, error: BaseException) -> None:
        """Report this rank's failure to the host, which reports it to the other ranks."""
        text = "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
        self._post(Failed(text=text))

    def close(self) -> None:
        """Send `Bye` and close. Batches in use stay valid. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._connection.post(Bye())
            self._connection.close()
            self._inbox.clear()
            for number in list(self._segments):
                self._unmap(number)

    def _await_welcome(self) -> Welcome:
        """Answer the host's requests to this rank's device until the host sends its `Welcome`."""
        while True:
            # There is no time limit; if the host ends, this call raises EOFError.
            received = self._connection.receive(None)
            if received is None:
                continue
            if isinstance(received.message, ErrorReport):
                raise _error_of(received.message)
            if isinstance(received.message, Welcome):
                return received.message
            try:
                answer = self._device.answer(received)
            except BaseException as error:
                self.report_failure(error)
                raise
            if answer is None:  # no request to the device
                self._handle(received)
            else:
                # `post` does not raise: if the host is gone, its last message names the cause, and is received next.
                self._post(answer)

    def _wait_until(
        self,
        is_done: Callable[[], bool],
        batch: BatchId,
        patience_s: float | None,
        *,
        is_in_run: bool = True,
    ) -> None:
        """Receive until ``is_done``, for at most ``patience_s`` (None means no limit); ping the host meanwhile."""
        # The host's silence counts from now on: the consumer may have computed for minutes without receiving.
        began = self._heard_at = time.monotonic()
        while True:
            self._require_alive(is_in_run=is_in_run)
            if is_done():
                return
            if self._inbox and isinstance(item := self._inbox[0], RankError):
                raise item
            if self._bye is not None:
                raise RankError(str(self._bye))
            if not self._receive(_PING_S, is_done):
                now = time.monotonic()
                self._require_sign_of_life(now - self._heard_at, batch)
                if patience_s is not None and now - began > patience_s:
                    raise RankError(
                        f"rank {self.host} did not begin to iterate within {format_seconds(patience_s)}; iterate "
                        "on all ranks, or raise stall_timeout_s"
                    )
                self._post(
                    Ping(
                        run=self._run,
                        waits=self._does_consumer_wait,
                        received=self._num_received,
                        epoch=batch.epoch,
                        index=batch.index,
                    )
                )

    def _is_over(self) -> bool:
        """Return whether no more messages can come."""
        return self._error is not None or self._bye is not None or self._is_closed

    def _require_alive(self, *, is_in_run: bool = True) -> None:
        """Raise the reason why no batch of this run can come, or without ``is_in_run`` no message, if there is one."""
        if self._is_closed:
            raise ChannelClosedError("the loader is closed")
        if self._error is not None:
            # The host's last message is the cause; the closed connection is only its consequence.
            reported = [item for item in self._inbox if isinstance(item, RankError)]
            raise reported[0] if reported else RankError(str(self._error))
        if is_in_run and self._cancelled >= self._run:
            raise ChannelClosedError("this rank left the run")

    def _require_sign_of_life(self, silent_s: float, batch: BatchId) -> None:
        """Raise StallError if the host has been silent for too long; ``batch`` is the awaited batch."""
        # The host answers each `Ping`, so the limit must leave time for two of them.
        if self._timeout_s is not None and silent_s > max(self._timeout_s, 2 * _PING_S):
            self._error = RankError(f"rank {self.host} does not answer")  # later waits fail immediately
            raise StallError(
                f"rank {self.host}, which loads for this machine, has not answered for "
                f"{format_seconds(silent_s)} during the wait for epoch {batch.epoch}, batch {batch.index} "
                f"(stall_timeout_s is {self._timeout_s:g}; 0 waits for ever)"
            )

    def _post(self, message: Message) -> None:  # neither waits nor raises, see `Connection.post`
        self._connection.post(message)

    def _receive(self, timeout_s: float, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Handle the next message, and return whether there was one. An ended connection is kept as ``_error``.

        While another thread receives, wait for that thread until ``is_done``; the result is then true as well.
        """

        def begin() -> bool:
            begins = not self._is_receiving and not is_done()
            self._is_receiving = self._is_receiving or begins
            return begins

        if not self._turn.when(lambda: is_done() or not self._is_receiving, begin, timeout_s):
            return is_done()
        try:
            return self._receive_one(timeout_s)
        finally:
            with self._turn.lock:
                self._is_receiving = False
                self._turn.notify_all()

    def _receive_one(self, timeout_s: float) -> bool:
        """Handle the next message, as `_receive` does. For the thread that receives."""
        if self._error is not None or self._is_closed:
            return False
        try:
            received = self._connection.receive(timeout_s)
        except EOFError:
            if self._bye is None:
                self._error = RankError(
                    f"rank {self.host}, which loads for this machine, ended; start all ranks again from the last "
                    "checkpoint"
                )
            return False
        if received is None:
            return False
        self._heard_at = time.monotonic()
        # A finalizer may have posted a message while the socket was full. Only this thread sends it later.
        self._connection.flush()
        self._handle(received)
        return True

    def _handle(self, received: Received) -> None:
        """Update the client's state after a message of the host. Unknown messages are ignored."""
        match received.message:
            case Segment(segment=number) if received.descriptor is not None:
                self._map(number, received.descriptor)
            case Unmap(segment=number):
                self._unmap(number)
            case Batch():
                self._take(received.message)
            case Slots(num_slots=count, width=width, dim=dim) if received.descriptor is not None:
                memory = take_segment(received.descriptor, is_touched=False, is_writable=False)
                rows = memory.view(np.float32)[: count * width].reshape(count, width)
                self.slots[received.message.embedding] = rows[:, :dim]
            case Applied(run=run, embedding=number) if run == self._run:
                self._applied[number] = received.message
            case RowsRead():
                self._answers.append(received.message)
            case Started(run=run):
                self._started = run
            case Left(run=run):
                self._left = run
            case ErrorReport():
                self._fail(received.message)
            case Bye():
                self._bye = RankError(f"rank {self.host}, which loads for this machine, closed its loader")

    def _fail(self, report: ErrorReport) -> None:
        """Keep a reported error: for all later calls, or, if it belongs to one run, in the inbox after its batches."""
        error = _error_of(report)
        if report.run is None:
            self._error = error
        elif report.run == self._run:
            if report.now:  # an urgent error, before batches that have arrived
                self._inbox.clear()
            self._inbox.append(error)

    def _map(self, number: int, descriptor: int) -> None:
        self._segments[number] = take_segment(descriptor)

    def _pin_once(self, number: int) -> None:
        """Pin a segment when it first holds features. Topology segments stay unpinned, as the CPU unpacks them."""
        if number not in self._pinned:
            self._pinned[number] = self._device.pin(self._segments[number])

    def _unmap(self, number: int) -> None:
        """Unpin and unmap a segment that the host has freed; views of it keep its memory alive. Idempotent."""
        if (pinned := self._pinned.pop(number, None)) is not None:
            pinned.close()
        self._segments.pop(number, None)

    def _take(self, batch: Batch) -> None:
        """Put an arrived batch into the inbox, as views of its segments; drop a batch of an old run.

        A batch has two segments, one with feature rows and one with topology.
        """
        features, topology = (self._lease(number) for number in batch.segments)
        if batch.run != self._run or self._left >= self._run:
            return  # this rank has left the batch's run; the dropped leases release the segments
        sampled, degrees = read_batch(batch.shape, topology, self._device.types, copies_ids=self._copies_ids)
        if any(batch.rows):
            self._pin_once(batch.segments[0])
        x = tuple(matrices_in(features, self._forms, batch.rows))
        self._num_received += 1
        self._inbox.append(
            HostBatch(
                sampled=sampled,
                x=x,
                src_degree=degrees,
                superbatch=0,
                ends_superbatch=False,
                slots=read_slots(batch.number, batch.num_slots, topology[batch.shape.num_bytes :]),
            )
        )

    @cached_property
    def _forms(self) -> tuple[RowForm, ...]:
        """The row form of each table, from the host's welcome."""
        pairs = zip(self._device.dims, self.welcome.row_dtypes, strict=True)
        return tuple(RowForm(dim=dim, dtype=np.dtype(name)) for dim, name in pairs)

    def _lease(self, number: int) -> NDArray[np.uint8]:
        """Return a segment's memory, empty for `NO_SEGMENT`. It is released when the last array over it is freed."""
        if number == NO_SEGMENT:
            return np.empty(0, dtype=np.uint8)
        # The lease is made from a memoryview, so that later views keep it alive. In numpy, a view of a view references
        # only the array that owns the memory, here the whole segment; see `BufferRing`.
        lease = np.frombuffer(self._segments[number].data, dtype=np.uint8)
        weakref.finalize(lease, self._connection.post, Release(segment=number)).atexit = False
        return lease


def _error_of(report: ErrorReport) -> RankError:
    """Return the error that a report of the host describes, with its notes."""
    error = RankError(report.text)
    for note in report.notes:
        error.add_note(note)
    return error
