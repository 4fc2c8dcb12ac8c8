"""A rank that is loaded for: what it says while it waits, and how its waits end."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch

from gloader.distributed.agree import Team
from gloader.distributed.client import LoaderClient
from gloader.distributed.client_run import ClientRun
from gloader.distributed.messages import (
    Answer,
    Begin,
    ErrorReport,
    Failed,
    Leave,
    Left,
    Message,
    Ping,
    Pong,
    Started,
    TryStep,
    Welcome,
)
from gloader.distributed.wire import Connection, Listener
from gloader.errors import ChannelClosedError, RankError
from gloader.memory.plan import MemoryPlan
from gloader.ssd_store.cost.superbatch_size import SuperbatchSize
from gloader.types import BatchId

HERE, NEXT = BatchId(epoch=0, index=0), BatchId(epoch=0, index=1)
PLAN = MemoryPlan(
    budget_bytes=100,
    features="ssd",
    num_buffers=2,
    ring_bytes=10,
    cache_rows=3,
    superbatch=SuperbatchSize(num_batches=2, reason="why not"),
    planned_accesses=7,
    keep_bytes=0,
    pack_buffer_bytes=0,
    parts=(("ring", 10), ("cache", 90)),
    predicted_step_s=0.5,
    candidates=("500 ms a step: this", "600 ms a step: that"),
    would_fit=False,
)


class Host:
    """The other side, as far as a test needs it: welcomes, starts runs, and keeps what it was told."""

    def __init__(self, listener: Listener) -> None:
        self.heard: list[Message] = []
        self.pinged = threading.Semaphore(0)
        self._listener = listener
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        connection = self._listener.accept(5.0)
        assert connection is not None
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
    return Team(ranks=(0, 1), rank=1, address=listener.address, token="t", num_local=2, listener=None)  # noqa: S106


def _client(listener: Listener) -> LoaderClient:
    return LoaderClient(
        _team(listener),
        dim=1,
        device=torch.device("cpu"),
        answer=lambda received: Answer(room=7) if received.message == TryStep(shape=None) else None,
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
        LoaderClient(_team(listener), dim=1, device=torch.device("cpu"), answer=refuse, stall_timeout_s=5.0)
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
        LoaderClient(_team(listener), dim=1, device=torch.device("cpu"), answer=answer, stall_timeout_s=5.0)
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
