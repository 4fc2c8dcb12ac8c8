"""The host: the first rank of a machine, which loads for all ranks of the machine. The other ranks are its clients.

One pipeline gathers the batches of all ranks in turn: batch i belongs to the rank with index i modulo their number.
`LoaderHost` gives each batch to its rank: the host's own batches through a channel, and the clients' batches through
shared memory (`gloader.distributed.peers`). It also listens to the clients' messages. `HostRun` is the host's own part
of a run. On the other ranks, `gloader.distributed.client` has the other end.

- A run is a sequence of batches from one position on. It begins when every rank requests this position, and ends when
  every rank has left it. Runs are numbered; a request that begins no run has a number too.
- A peer is the host's view of a client; its outbox sends messages and batches.
- To share batches is to give the gathered batches to their ranks.
"""

from __future__ import annotations

import logging
import math
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gloader.core.signals import SignalSafeCondition, is_signal_pending, uninterrupted
from gloader.distributed.device_agreement import PeerDevices
from gloader.distributed.embedding_steps import HostSteps
from gloader.distributed.peers import Outbox, Peer, accept_all, report_of
from gloader.distributed.wire import (
    Applied,
    Begin,
    Bye,
    Failed,
    Gradient,
    Leave,
    Ping,
    Pong,
    ReadRows,
    Release,
    Started,
    Welcome,
)
from gloader.errors import ChannelClosedError, RankError, StateError
from gloader.pipeline.buffers import InterleavedRings
from gloader.pipeline.threads import StageThread
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from gloader.distributed.agree import Team
    from gloader.distributed.wire import Message
    from gloader.observe.watchdog import Watchdog
    from gloader.pipeline.consumer import Consumer
    from gloader.pipeline.gather import HostBatch
    from gloader.pipeline.open.tiers import FeatureTier
    from gloader.pipeline.run import PipelineRun
    from gloader.pipeline.threads import Channel, Failures


logger = logging.getLogger("gloader")

# Maximum seconds that the host waits for slower ranks before it leaves a run: they may still need their last batches.
_WAIT_FOR_SLOWER_S = 60.0
_LOOK_FOR_SIGNALS_S = 0.2  # seconds between two tests for a Ctrl-C in the waits for other ranks


class LoaderHost:
    """Runs the pipeline of all ranks of a machine. Owns its thread, the connections and the run until `close`.

    A run begins when every rank requests the same position, and ends when every rank has left it. Three threads meet
    here: the consumer's thread, which begins and leaves runs; a run's sharing thread; and the thread that listens to
    the other ranks. The lock of ``_changed`` guards their shared state.

    Parameters
    ----------
    team : the ranks of this machine
    stall_timeout_s : maximum seconds that a rank waits for another rank to begin a run; 0 means for ever

    Raises
    ------
    RankError
        A rank did not connect.
    """

    def __init__(self, team: Team, *, stall_timeout_s: float) -> None:
        self._ranks = team.ranks
        self.steps = HostSteps(self, num_ranks=len(team.ranks))  # of the embeddings that all ranks train
        self._timeout_s = stall_timeout_s or None
        self._changed = SignalSafeCondition()
        self._connections = accept_all(team)
        self._peers: list[Peer] = []
        self._ring: InterleavedRings | None = None
        self._run: PipelineRun | None = None
        self._runs = 0  # number of the last requested run, even if it did not begin
        self._is_taking_part = False  # the host's own rank takes batches of the present run
        self._error: BaseException | None = None  # set if a rank is gone, so that the loader is unusable
        self._failure: BaseException | None = None  # of the present run
        self._is_broken = False  # a rank ended without a `Bye` message
        self._is_closed = False
        self._is_sharing = False  # the sharing thread runs
        self._ending = threading.Lock()  # held while a run is ended
        # A pair of sockets wakes the listening thread out of its `select` when the host closes.
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="gloader-ranks", daemon=True)
        self._has_begun = False  # the listening thread has been started

    def refuse(self, error: BaseException) -> None:
        """Report to the other ranks that this rank cannot load, and close."""
        with uninterrupted():
            for connection in self._connections.values():
                connection.post(report_of(error, self._ranks[0]))
            self.close()

    @property
    def devices(self) -> PeerDevices:
        """The devices of the other ranks, until `welcome`."""
        return PeerDevices(self._connections)

    def welcome(self, tier: FeatureTier) -> None:
        """Send the plan and the explanation of ``tier`` to the other ranks, and start the listening thread."""
        self.steps.send(self._connections.values())
        rings = [tier.ring]
        for rank, connection in self._connections.items():
            ring = tier.ring
            outbox = Outbox(rank, connection, forms=ring.forms, rows=ring.rows, max_bytes=ring.max_bytes)
            self._peers.append(Peer(outbox))
            rings.append(outbox.ring)
            row_dtypes = tuple(form.dtype.name for form in ring.forms)
            outbox.tell(Welcome(plan=tier.plan, text=tier.explain_host(), row_dtypes=row_dtypes))
        self._ring = InterleavedRings(rings)
        with uninterrupted():
            self._thread.start()
            self._has_begun = True

    # --- called by the current run, see `gloader.pipeline.run.MachineRanks`

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks that receive batches in turn; the first is this process."""
        return self._ranks

    @property
    def ring(self) -> InterleavedRings:
        """The buffers for the batches of all ranks in turn."""
        if self._ring is None:
            raise RankError("the loader of this machine was not opened")
        return self._ring

    def sharing_thread(
        self, gathered: Channel[HostBatch], own: Channel[HostBatch], failures: Failures
    ) -> StageThread:
        """Return the thread that gives each gathered batch to its rank.

        Parameters
        ----------
        gathered : the batches of all ranks, in turn
        own : receives this rank's batches
        failures : receives the thread's error immediately
        """
        return StageThread(name="gloader-share", run=lambda: self._share(gathered, own, failures))

    def fail(self, error: BaseException) -> None:
        """Report to the other ranks that the run ended with ``error``, which they raise immediately."""
        for peer in self._peers:
            peer.outbox.tell(report_of(error, self._ranks[0], run=self._runs, now=True))
        with self._changed.lock:
            self._failure = self._failure or error
            self._changed.notify_all()

    def explain_stall(self, error: BaseException) -> BaseException:
        """Return ``error``, or a RankError that names the rank for which all others wait."""
        turn = self._ring.blocked_on if self._ring is not None else None
        if not turn:  # no rank blocks the pipeline, or this rank (0) does
            return error
        return RankError(f"rank {self._ranks[turn]} does not take its batches, and all wait for it: {error}")

    def watch(self, watchdog: Watchdog) -> None:
        """Report the other ranks' waits to ``watchdog``."""
        for peer in self._peers:
            peer.watch(watchdog)

    # --- called by the consumer's thread

    def begin(self, position: BatchId, start: Callable[[], PipelineRun]) -> PipelineRun:
        """Wait until every rank requests ``position``, then ``start`` the run and return it.

        Raises
        ------
        StateError
            A rank begins at another position.
        RankError
            A rank has ended, or does not begin.
        """
        with self._changed.lock:
            self._is_taking_part = False
        number = self._runs + 1  # each rank counts its requests, even those that begin no run
        self._changed.when(
            lambda: self._error is not None or all(peer.begins == number for peer in self._peers),
            lambda: self._require_all(number, position),
            self._timeout_s,
        )
        self._end_run()
        with self._changed.lock:
            self._runs = number
            self._failure = None
            for peer in self._peers:
                peer.forget_steps()
                peer.outbox.begin(number)
                peer.outbox.tell(Started(run=number))
            # Set before the run starts: its first batch goes only to ranks that already take part.
            self._is_taking_part = self._is_sharing = True
        run = start()
        with self._changed.lock:
            self._run = run
        return run

    def gradients(self, embedding: int, step: int, *, dim: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Wait until every other rank has sent its part of a step; return those with a gradient, in rank order.

        Parameters
        ----------
        embedding : number of the embedding
        step : number of the step in the run
        dim : D

        Returns
        -------
        The slots (n,) and the gradients (n, D) of each rank, in memory that is valid until `release_step`.

        Raises
        ------
        RankError
            A rank is gone, failed, left the run before this step, or does not make it in time.
        """

        def missing() -> list[Peer]:
            return [peer for peer in self._peers if not peer.has_stepped(embedding, step)]

        def is_over() -> bool:
            late, has_failed = missing(), self._error is not None or self._failure is not None
            return has_failed or not late or any(not peer.outbox.takes_part for peer in late)

        deadline = math.inf if self._timeout_s is None else time.monotonic() + self._timeout_s
        # Short waits, because a Ctrl-C wakes no waiter, and is deferred while the caller makes a step.
        while not self._changed.when(is_over, is_over, _LOOK_FOR_SIGNALS_S) and time.monotonic() < deadline:
            if is_signal_pending():
                raise RankError(f"rank {self._ranks[0]} was interrupted in a step")
        with self._changed.lock:
            late = missing()
            # A rank that left the epoch often closes its loader at once. The error names the cause, not the close.
            if not any(peer.has_closed and not peer.outbox.takes_part for peer in late):
                self._require_alive()
            if self._failure is not None:
                raise RankError(f"the loader failed before this step: {self._failure}") from self._failure
            if late:
                raise _without_step(late, self._timeout_s)
            return [part for peer in self._peers if (part := peer.take(embedding, dim=dim)) is not None]

    def release_step(self, embedding: int, step: int, *, num_steps: int) -> None:
        """Tell the other ranks that a step was applied; ``num_steps`` is `Applied.num_steps`."""
        for peer in self._peers:
            peer.outbox.tell(Applied(run=self._runs, embedding=embedding, step=step, num_steps=num_steps))

    def leave(self) -> None:
        """Take no more batches of the present run. The run ends when the last rank has left. Idempotent."""
        with self._changed.lock:
            self._is_taking_part = False
            run = self._run
        if run is not None:
            run.drop_own()
            self._end_if_left()

    def end_with(self, error: BaseException) -> None:
        """End the present run, if any, with ``error`` for all ranks."""
        run = self._run
        if run is not None:
            run.fail(error)

    def wait_for_slower_ranks(self, num_taken: int) -> None:
        """Wait, for a limited time, until every rank has been sent at least ``num_taken`` batches."""
        deadline = time.monotonic() + min(_WAIT_FOR_SLOWER_S, self._timeout_s or _WAIT_FOR_SLOWER_S)

        def is_over() -> bool:
            return not self._is_sharing or not any(peer.is_behind(num_taken) for peer in self._peers)

        # Short waits, because a Ctrl-C wakes no waiter: while the loader closes, the signal is deferred. `when` returns
        # the result of its second argument.
        while not (is_signal_pending() or time.monotonic() > deadline):
            if self._changed.when(is_over, is_over, _LOOK_FOR_SIGNALS_S):
                return

    def close(self) -> bool:
        """End the run, send `Bye` and join the listening thread; return whether every thread ended. Idempotent."""
        with self._changed.lock:
            if self._is_closed:
                return True
            self._is_closed = True
        self.steps.close()
        is_whole = self._end_run()
        for peer in self._peers:
            peer.outbox.tell(Bye())
        self._wake.send(b".")
        if self._has_begun:
            self._thread.join()
        # The sockets are closed after the listening thread has ended, as it selects on them.
        for peer in self._peers:
            peer.outbox.close()
        for connection in self._connections.values():
            connection.close()
        self._wake.close()
        self._woken.close()
        return is_whole

    def _end_run(self) -> bool:
        """End the present run, if any; return whether all of its threads ended."""
        # The lock is held until the run has ended, so that another thread does not begin the next run earlier.
        with self._ending:
            with self._changed.lock:
                run, self._run = self._run, None
            for peer in self._peers:
                peer.end_wait()
            return run is None or run.close()

    def _end_if_left(self) -> None:
        """End the present run if no rank takes part in it any more."""
        with self._changed.lock:
            is_needed = self._is_taking_part or any(peer.outbox.takes_part for peer in self._peers)
        if not is_needed:
            self._end_run()

    def _require_all(self, number: int, position: BatchId) -> None:
        """Raise, and notify the other ranks, unless every rank begins run ``number`` at ``position``."""
        self._require_alive()
        late = [peer.outbox.rank for peer in self._peers if peer.begins != number]
        error = _late(late, self._timeout_s) if late else self._position_error(position)
        if error is None:
            return
        for peer in self._peers:
            peer.begins = 0
            peer.outbox.tell(report_of(error, self._ranks[0], run=number, now=True))
        self._runs = number
        raise error

    def _require_alive(self) -> None:
        """Raise RankError if a rank is gone, after which no run can begin."""
        if self._error is not None:
            raise RankError(str(self._error)) from self._error

    def _position_error(self, position: BatchId) -> StateError | None:
        """Return an error if a rank begins at another position; None if all begin at ``position``."""
        for peer in self._peers:
            if peer.position != position:
                return StateError(
                    f"rank {peer.outbox.rank} begins at {peer.position}, rank {self._ranks[0]} at {position}; give "
                    "every rank the same state, and end epochs early on all ranks or on none"
                )
        return None

    # --- the sharing thread of a run

    def _share(self, gathered: Channel[HostBatch], own: Channel[HostBatch], failures: Failures) -> None:
        """Give each gathered batch to its rank, until the run ends or fails."""
        position = 0
        try:
            while True:
                self._hand_over(gathered.get(), position % len(self._ranks), own)
                position += 1
        except BaseException as error:  # noqa: BLE001 - every failure must reach every rank, whatever its type
            failures.add(error)
            is_end = isinstance(error, ChannelClosedError)
            if not is_end:
                # Without ``now``: every rank first receives the batches before the error.
                for peer in self._peers:
                    peer.outbox.tell(report_of(error, self._ranks[0], run=self._runs))
            own.close(None if is_end else error)
        finally:
            with self._changed.lock:
                self._is_sharing = False
                self._changed.notify_all()

    def _hand_over(self, batch: HostBatch, turn: int, own: Channel[HostBatch]) -> None:
        """Give ``batch`` to the rank with index ``turn``; 0 is this rank."""
        if turn == 0:
            if self._is_taking_part:
                with suppress(ChannelClosedError):  # this rank has just left
                    own.put(batch)
            return
        peer = self._peers[turn - 1]
        try:
            peer.deliver(batch)
        except EOFError as error:
            raise self._lost(peer) from error
        with self._changed.lock:
            self._changed.notify_all()

    # --- the listening thread

    def _listen(self) -> None:
        """Handle the messages of all clients until the host closes."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for peer in self._peers:
                selector.register(peer.outbox.connection, selectors.EVENT_READ, peer)
            while not self._is_closed:
                for key, _ in selector.select():
                    if key.data is not None and not self._receive(key.data):
                        selector.unregister(key.fileobj)

    def _receive(self, peer: Peer) -> bool:
        """Handle a message from ``peer``; return whether more may follow."""
        try:
            received = peer.outbox.connection.receive(0.0)
            if received is not None:
                self._handle(peer, received.message, received.descriptor)
            peer.outbox.connection.flush()
        except EOFError:
            self._gone(peer, self._lost(peer))
            return False
        except Exception as error:  # noqa: BLE001 - whatever fails here, the other ranks must learn of it
            self._gone(
                peer, RankError(f"the message of rank {peer.outbox.rank} cannot be handled: {error!r}")
            )
            return False
        return not peer.has_closed

    def _handle(self, peer: Peer, message: Message, descriptor: int | None) -> None:
        """Update the state after a message from ``peer``, and answer it if necessary."""
        match message:
            case Release(segment=segment):
                peer.outbox.release(segment)
            case Ping():
                peer.outbox.tell(Pong())
                self._note_wait(peer, message)
            case Begin():
                with self._changed.lock:
                    peer.position = BatchId(epoch=message.epoch, index=message.index)
                    peer.begins = message.run
                    self._changed.notify_all()
            case Gradient():
                with self._changed.lock:
                    peer.keep(message, descriptor, run=self._runs)
                    self._changed.notify_all()
            case ReadRows():
                peer.answer(message, descriptor, self.steps.read)
            case Leave(run=run):
                peer.end_wait()
                if peer.outbox.leave(run):
                    with self._changed.lock:
                        self._changed.notify_all()
                    self._end_if_left()
            case Failed(text=text):
                self.end_with(RankError(f"rank {peer.outbox.rank} failed: {text}"))
            case Bye():
                peer.has_closed = True
                self._gone(peer, RankError(f"rank {peer.outbox.rank} closed its loader"))

    def _note_wait(self, peer: Peer, ping: Ping) -> None:
        """Report the wait in a client's `Ping` to the watchdog, which detects stalls."""
        if not ping.waits:
            peer.end_wait()  # the rank only reads ahead
        elif ping.run == self._runs:  # otherwise the ping was sent before this run began
            peer.note_wait(BatchId(epoch=ping.epoch, index=ping.index), num_received=ping.received)

    def _gone(self, peer: Peer, error: RankError) -> None:
        """Give up a client. All other ranks fail with ``error``, unless the client has closed its loader.

        After a normal close the current run continues, and `begin` raises ``error`` for the next run.
        """
        if self._is_closed:
            return
        is_needed = not peer.has_closed  # false after a normal close
        with self._changed.lock:
            is_first = is_needed and not self._is_broken
            if is_first or self._error is None:
                self._error = error
            self._is_broken = self._is_broken or is_needed
            run = self._run
            self._changed.notify_all()
        # Outside the lock, because ending a run joins threads that take the lock.
        peer.outbox.close()
        if is_first:
            logger.error("%s", error)
            for other in self._peers:
                if other is not peer:
                    other.outbox.tell(report_of(error, None, now=True))
            if run is not None:
                run.fail(error)
        else:
            self._end_if_left()

    def _lost(self, peer: Peer) -> RankError:
        """Return the error for a client whose connection ended without `Bye`."""
        return RankError(
            f"rank {peer.outbox.rank} ended without closing its loader; all ranks on the machine of rank "
            f"{self._ranks[0]} stop: start them again from the last checkpoint"
        )


def _late(ranks: list[int], timeout_s: float | None) -> RankError:
    """Return the error for ``ranks`` that have not requested the run in time."""
    names = ", ".join(map(str, ranks))
    return RankError(
        f"rank {names} did not begin to iterate within {timeout_s:g} s of the others; iterate on all ranks, or raise "
        "stall_timeout_s"
    )


def _without_step(peers: Sequence[Peer], timeout_s: float | None) -> RankError:
    """Return the error for ``peers``, whose part of a step is missing."""
    left = [str(peer.outbox.rank) for peer in peers if not peer.outbox.takes_part]
    if left:
        return RankError(
            f"rank {', '.join(left)} left the epoch before the step of its batch; call embedding.step(batch) for every "
            "batch on all ranks, and end epochs early on all ranks or on none"
        )
    names = ", ".join(str(peer.outbox.rank) for peer in peers)
    return RankError(
        f"rank {names} did not call embedding.step(batch) within {timeout_s:g} s of rank 0; call it for every batch on "
        "all ranks, or raise stall_timeout_s"
    )


class HostRun:
    """The host's own batches of a run.

    Parameters
    ----------
    host : begins the run and serves the other ranks
    position : the run's first batch, the same on every rank
    start : starts the pipeline after all ranks have requested ``position``

    Raises
    ------
    RankError, StateError
        As in `LoaderHost.begin`.
    """

    def __init__(self, host: LoaderHost, position: BatchId, start: Callable[[], PipelineRun]) -> None:
        self._host = host
        run = host.begin(position, start)
        self._has_left = False
        self.consumer: Consumer = run.consumer

    def close(self, error: BaseException | None = None) -> bool:
        """Leave the run, which the other ranks may continue. An ``error`` ends the run for all ranks. Idempotent.

        Return True, as no thread belongs to this object: `LoaderHost.close` reports the threads that did not end.
        """
        if error is not None:
            self._host.end_with(error)
        if not self._has_left:
            self._has_left = True
            consumer = self.consumer
            # At the end of an epoch this rank may be ahead. If it left and closed now, other ranks would lose batches.
            if consumer.num_taken and (not consumer.has_next() or consumer.next_id.index == 0):
                self._host.wait_for_slower_ranks(consumer.num_taken)
            self._host.leave()
        return True
