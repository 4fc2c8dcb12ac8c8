"""A rank that is loaded for: what it says while it waits, and how its waits end."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch

from gloader.distributed.agree import Team
from gloader.distributed.client import LoaderClient
from gloader.distributed.wire import Connection, Listener
from gloader.errors import ChannelClosedError, RankError
from gloader.types import BatchId

HERE, NEXT = BatchId(epoch=0, index=0), BatchId(epoch=0, index=1)


class Host:
    """The other side, as far as a test needs it: welcomes, starts runs, and keeps what it was told."""

    def __init__(self, listener: Listener) -> None:
        self.heard: list[dict[str, Any]] = []
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
        connection.send({"op": "ask"})
        told = connection.receive(5.0)
        assert told is not None
        self.heard.append(told.message)
        connection.send({"op": "welcome"})

    def _hear(self, connection: Connection, message: dict[str, Any]) -> None:
        self.heard.append(message)
        if message["op"] == "begin":
            connection.send({"op": "started", "run": message["run"]})
        elif message["op"] == "ping":
            connection.send({"op": "pong"})
            self.pinged.release()
        elif message["op"] == "leave":
            connection.send({"op": "left", "run": message["run"]})


def _team(listener: Listener) -> Team:
    return Team(ranks=(0, 1), rank=1, address=listener.address, token="t", num_local=2, listener=None)  # noqa: S106


def _client(listener: Listener) -> LoaderClient:
    return LoaderClient(
        _team(listener),
        dim=1,
        place=torch.device("cpu"),
        answer=lambda received: {"op": "answered", "what": received.message["op"]},
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
    pings = [message for message in host.heard if message["op"] == "ping" and message["index"] == 1]
    assert {message["waits"] for message in pings} == {does_wait}
    assert [message["op"] for message in host.heard].count("leave") == 1


def test_what_the_host_asks_at_the_start_is_answered(both: tuple[LoaderClient, Host]) -> None:
    assert both[1].heard[0] == {"op": "answered", "what": "ask"}


def test_an_answer_that_cannot_be_given_is_told_and_raised() -> None:
    listener = Listener()
    told: list[Any] = []

    def serve() -> None:
        connection = listener.accept(5.0)
        assert connection is not None
        connection.receive(5.0)
        connection.send({"op": "ask"})
        told.append(connection.receive(5.0))
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()

    def refuse(_: object) -> None:
        raise MemoryError("the device is full")

    with pytest.raises(MemoryError, match="the device is full"):
        LoaderClient(_team(listener), dim=1, place=torch.device("cpu"), answer=refuse, stall_timeout_s=5.0)
    thread.join()
    listener.close()
    assert told[0].message == {"op": "failed", "text": "MemoryError: the device is full"}


def test_a_host_that_refuses_is_heard_although_nothing_can_be_answered() -> None:
    listener = Listener()
    is_closed = threading.Event()

    def serve() -> None:
        connection = listener.accept(5.0)
        assert connection is not None
        connection.receive(5.0)
        connection.send({"op": "ask"})
        connection.send({"op": "error", "text": "rank 0 failed: no disk", "notes": []})
        connection.close()
        is_closed.set()

    thread = threading.Thread(target=serve)
    thread.start()

    def answer(_: object) -> dict[str, Any]:
        is_closed.wait(5.0)
        return {"op": "answer"}

    with pytest.raises(RankError, match="rank 0 failed: no disk"):
        LoaderClient(_team(listener), dim=1, place=torch.device("cpu"), answer=answer, stall_timeout_s=5.0)
    thread.join()
    listener.close()
