"""A rank that is loaded for: what it says while it waits, and how its waits end."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gloader.distributed.agree import Team
from gloader.distributed.client import LoaderClient
from gloader.distributed.client_run import ClientRun
from gloader.distributed.shared_memory import create_segment, shape_of, write_batch
from gloader.distributed.wire import (
    Answer,
    Batch,
    Begin,
    Connection,
    ErrorReport,
    Failed,
    Leave,
    Left,
    Listener,
    Message,
    Ping,
    Pong,
    Received,
    Segment,
    Started,
    TryStep,
    Welcome,
)
from gloader.errors import ChannelClosedError, RankError
from gloader.plan.memory_plan import MemoryPlan
from gloader.plan.predict import StepSeconds
from gloader.ssd_store.cost.strategy import SuperbatchSize
from gloader.types import BatchId, BatchTypes, Block, SampledBatch

HERE, NEXT = BatchId(epoch=0, index=0), BatchId(epoch=0, index=1)
PLAN = MemoryPlan(
    budget_bytes=100,
    features="ssd",
    num_buffers=2,
    ring_bytes=10,
    cache_rows=(3,),
    superbatch=SuperbatchSize(num_batches=2, reason="why not"),
    planned_accesses=(7,),
    missed_bytes=(0,),
    keep_bytes=0,
    pack_buffer_bytes=0,
    parts=(("ring", 10), ("cache", 90)),
    predicted_step_s=0.5,
    candidates=("500 ms a step: this", "600 ms a step: that"),
    step=StepSeconds(seconds=0.5, weighed_s=0.5, disk_s=0.1, miss_rate=0.2, strategy="direct"),
    would_fit=False,
)


FEATURE_BYTES = 8192
pinned_bytes: list[int] = []  # sizes of what was pinned


class Pinned:
    """Host memory that counts as pinned until it is closed."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        pinned_bytes.append(array.nbytes)

    def close(self) -> None:
        """Unpin it."""
        pinned_bytes.remove(self.array.nbytes)


@dataclass
class Device:
    """The device of the rank, as far as a client needs it."""

    answer: Callable[[Received], Message | None] = lambda _: None
    types: BatchTypes = field(default_factory=BatchTypes)
    dims: tuple[int, ...] = (1,)

    def pin(self, memory: NDArray[np.uint8]) -> Pinned:
        return Pinned(memory)


class Host:
    """The other side, as far as a test needs it: welcomes, starts runs, and keeps what it was told."""

    def __init__(self, listener: Listener) -> None:
        self.heard: list[Message] = []
        self.pinged = threading.Semaphore(0)
        self._listener = listener
        self._has_sent = False
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def send(self, sampled: SampledBatch, *, rows: int) -> None:
        """Send a batch in the segments 1, of features, and 2, of the topology."""
        degrees = np.ones(len(sampled.nodes), dtype=np.float32)
        shape = shape_of(sampled, degrees)
        if not self._has_sent:
            for number, size in ((1, FEATURE_BYTES), (2, 4096)):
                descriptor, memory = create_segment(size)
                write_batch(sampled, degrees, shape, memory)
                self.connection.send(Segment(segment=number), descriptor=descriptor)
                os.close(descriptor)
        self._has_sent = True
        self.connection.send(Batch(run=1, segments=(1, 2), rows=(rows,), shape=shape))

    def _serve(self) -> None:
        connection = self._listener.accept(5.0)
        assert connection is not None
        self.connection = connection
        try:
            self._welcome(connection)
            while True:
                received = connection.receive(None)
                assert received is not None
                self._hear(connection, received.message)
        except EOFError:
            connection.close()

    def _welcome(self, connection: Connection) -> None:
        connection.receive(5.0)
        connection.send(TryStep(shape=None))
        told = connection.receive(5.0)
        assert told is not None
        self.heard.append(told.message)
        connection.send(Welcome(plan=PLAN, text="all is well"))

    def _hear(self, connection: Connection, message: Message) -> None:
        self.heard.append(message)
        if isinstance(message, Begin):
            connection.send(Started(run=message.run))
        elif isinstance(message, Ping):
            connection.send(Pong())
            self.pinged.release()
        elif isinstance(message, Leave):
            connection.send(Left(run=message.run))


def _team(listener: Listener) -> Team:
    return Team(
        ranks=(0, 1),
        rank=1,
        address=listener.address,
        token="t",  # noqa: S106
        num_loaders=1,
        listener=None,
        hosts=(0,),
        machines=("here",),
        parts=(None,),
        launch="a loader",
    )


def _client(listener: Listener) -> LoaderClient:
    return LoaderClient(
        _team(listener),
        Device(lambda received: Answer(room=7) if received.message == TryStep(shape=None) else None),  # type: ignore[arg-type]
        stall_timeout_s=5.0,
    )


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LoaderClient, Host]]:
    monkeypatch.setattr("gloader.distributed.client._PING_S", 0.01)
    with ExitStack() as stack:
        listener = Listener()
        stack.callback(listener.close)
        host = Host(listener)
        stack.callback(host.thread.join)
        client = _client(listener)
        stack.callback(client.close)
        client.begin(HERE)
        yield client, host


@pytest.mark.parametrize("does_wait", [False, True])
def test_looking_ahead_is_not_told_as_a_wait(both: tuple[LoaderClient, Host], does_wait: bool) -> None:
    client, host = both
    ended: list[BaseException] = []

    def look() -> None:
        try:
            client.next_batch(NEXT)
        except ChannelClosedError as error:
            ended.append(error)

    with client.consumer_waits() if does_wait else nullcontext():
        thread = threading.Thread(target=look)
        thread.start()
        for _ in range(3):
            assert host.pinged.acquire(timeout=5.0)
        client.cancel()
        thread.join()
    client.leave()
    assert [str(error) for error in ended] == ["this rank left the run"]
    pings = [message for message in host.heard if isinstance(message, Ping) and message.index == 1]
    assert {message.waits for message in pings} == {does_wait}
    assert host.heard.count(Leave(run=1)) == 1


def test_what_the_host_asks_at_the_start_is_answered(both: tuple[LoaderClient, Host]) -> None:
    client, host = both
    assert host.heard[0] == Answer(room=7)
    assert client.welcome == Welcome(plan=PLAN, text="all is well")


def test_memory_is_pinned_where_the_device_copies_features_from_it(both: tuple[LoaderClient, Host]) -> None:
    client, host = both
    one = Block(
        indptr=np.array([0, 1], dtype=np.int32),
        indices=np.array([1], dtype=np.int32),
        edge_ids=np.array([3]),
        num_src=2,
        num_dst=1,
    )
    for index in range(3):
        sampled = SampledBatch(
            id=BatchId(epoch=0, index=index), nodes=np.array([5, 6]), num_seeds=1, blocks=(one,)
        )
        host.send(sampled, rows=0 if index == 0 else 2)
        client.next_batch(sampled.id)
        assert pinned_bytes == ([] if index == 0 else [FEATURE_BYTES])
    client.close()
    assert pinned_bytes == []


def test_an_answer_that_cannot_be_given_is_told_and_raised() -> None:
    listener = Listener()
    told: list[Any] = []

    def serve() -> None:
        connection = listener.accept(5.0)
        assert connection is not None
        connection.receive(5.0)
        connection.send(TryStep(shape=None))
        told.append(connection.receive(5.0))
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()

    def refuse(_: object) -> None:
        raise MemoryError("the device is full")

    with pytest.raises(MemoryError, match="the device is full"):
        LoaderClient(_team(listener), Device(refuse), stall_timeout_s=5.0)
    thread.join()
    listener.close()
    assert told[0].message == Failed(text="MemoryError: the device is full")


def test_a_host_that_refuses_is_heard_although_nothing_can_be_answered() -> None:
    listener = Listener()
    is_closed = threading.Event()

    def serve() -> None:
        connection = listener.accept(5.0)
        assert connection is not None
        connection.receive(5.0)
        connection.send(TryStep(shape=None))
        connection.send(ErrorReport(text="rank 0 failed: no disk", notes=("after lunch",)))
        connection.close()
        is_closed.set()

    thread = threading.Thread(target=serve)
    thread.start()

    def answer(_: object) -> Answer:
        is_closed.wait(5.0)
        return Answer()

    with pytest.raises(RankError, match="rank 0 failed: no disk") as caught:
        LoaderClient(_team(listener), Device(answer), stall_timeout_s=5.0)
    assert caught.value.__notes__ == ["after lunch"]
    thread.join()
    listener.close()


def test_a_run_that_is_dropped_is_closed_by_its_own_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    monkeypatch.setattr(ClientRun, "close", lambda run: closed.append(run._pid))
    for pid in (os.getpid(), os.getpid() + 1):
        run = ClientRun.__new__(ClientRun)
        run._pipeline, run._pid = None, pid  # type: ignore[assignment]
        del run
    assert closed == [os.getpid()]
