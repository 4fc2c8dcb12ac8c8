"""Messages and shared memory between two ends: whole, in order, and every wait ends."""

import os
import signal
import socket
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from forking import in_child

from gloader.distributed.shared_memory import create_segment, map_segment, seal_contents
from gloader.distributed.wire import Bye, Connection, Failed, Hello, Leave, Listener, Pong, Release, Segment
from gloader.errors import RankError

NOBODY = 65534


@pytest.fixture
def ends():
    pair = [Connection(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
    yield pair
    for end in pair:
        end.close()


def test_messages_come_whole_and_in_order(ends) -> None:
    for number in range(50):
        ends[0].send(Hello(rank=number, token="x" * 1000))
    found = [ends[1].receive(1.0).message.rank for _ in range(50)]
    assert found == list(range(50))
    assert ends[1].receive(0.0) is None


def test_what_was_sent_before_the_end_is_received(ends) -> None:
    ends[0].send(Bye())
    ends[0].close()
    assert ends[1].receive(1.0).message == Bye()
    with pytest.raises(EOFError):
        ends[1].receive(1.0)
    with pytest.raises(EOFError):
        ends[1].send(Pong())
    ends[1].post(Pong())  # nobody is there: no matter


def test_what_was_sent_is_received_although_the_sender_did_not_read_all(ends) -> None:
    ends[1].send(Pong())
    ends[0].send(Bye())
    ends[0].close()
    assert ends[1].receive(1.0).message == Bye()
    with pytest.raises(EOFError):
        ends[1].receive(1.0)


def test_what_does_not_fit_is_sent_later(ends) -> None:
    for number in range(2000):
        ends[0].post(Hello(rank=number, token="x" * 1000))
    found = []
    while (received := ends[1].receive(0.0)) is not None:
        found.append(received.message.rank)
        ends[0].flush()
    assert found == list(range(2000))


def test_a_message_that_is_too_long_is_an_error_not_a_part(ends) -> None:
    ends[0].send(Failed(text="x" * 140_000))
    with pytest.raises(RankError, match="131072 bytes"):
        ends[1].receive(1.0)


@pytest.mark.parametrize("data", [b"{", b'{"op": "leave"}', b"[]"])
def test_what_is_no_message_is_refused_and_its_descriptor_closed(data: bytes) -> None:
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end = Connection(receiver)
    descriptor, _ = create_segment(8)
    before = set(Path("/proc/self/fd").iterdir())
    socket.send_fds(sender, [data], [descriptor])
    with pytest.raises(RankError, match="another rank sent"):
        end.receive(1.0)
    assert set(Path("/proc/self/fd").iterdir()) == before
    os.close(descriptor)
    sender.close()
    end.close()


def test_memory_is_shared_and_stays_after_its_descriptor(ends) -> None:
    descriptor, memory = create_segment(10_000)
    ends[0].send(Segment(segment=1), descriptor=descriptor)
    os.close(descriptor)
    received = ends[1].receive(1.0)
    assert received.descriptor is not None
    other = map_segment(received.descriptor)
    with pytest.raises(PermissionError):
        os.ftruncate(received.descriptor, 1)  # nobody can take the pages away
    os.close(received.descriptor)
    memory[:] = 7
    assert (other[:10_000] == 7).all()
    del memory
    other[5] = 9
    assert other[5] == 9
    assert np.shares_memory(other, other[3:])


def test_memory_that_is_full_is_mapped_for_writing_no_more() -> None:
    descriptor, memory = create_segment(10_000, is_touched=False)
    other = map_segment(descriptor)
    seal_contents(descriptor)
    memory[:] = 7
    assert (other[:10_000] == 7).all()  # mappings that are there stay as they are
    with pytest.raises(PermissionError):
        map_segment(descriptor)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 1)
    os.close(descriptor)


def test_a_forked_child_neither_speaks_for_its_parent_nor_keeps_its_connection(ends) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork beside threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        ends[0].post(Release(segment=1))
        time.sleep(30)
        os._exit(0)
    try:
        ends[0].close()
        with pytest.raises(EOFError):
            ends[1].receive(5.0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_listener_is_reached_by_its_name_until_it_is_closed() -> None:
    listener = Listener()
    assert listener.accept(0.01) is None
    client = Connection.to(listener.address, timeout_s=1.0)
    host = listener.accept(1.0)
    assert host is not None
    client.send(Leave(run=1))
    assert host.receive(1.0).message == Leave(run=1)
    listener.close()
    client.close()
    host.close()
    with pytest.raises(RankError, match="cannot be reached"):
        Connection.to(listener.address, timeout_s=1.0)


@pytest.mark.reliability("J9")
def test_a_connection_of_another_user_is_closed_before_a_byte_is_read(monkeypatch) -> None:
    listener = Listener()

    def knock() -> None:
        os.setuid(NOBODY)
        client = Connection.to(listener.address, timeout_s=5.0)
        with pytest.raises(EOFError):
            client.send(Hello(rank=1, token=""))  # it may be closed by now
            client.receive(30.0)

    if os.getuid() == 0:
        waiting = threading.Thread(target=lambda: ends.append(in_child(knock)))
        ends: list[int] = []
        waiting.start()
        assert listener.accept(30.0) is None
        waiting.join()
        assert ends == [0]
    # Where nobody may become another user, this process is another than the one that connects.
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)
    client = Connection.to(listener.address, timeout_s=5.0)
    client.send(Hello(rank=1, token=""))
    assert listener.accept(5.0) is None
    with pytest.raises(EOFError):
        client.receive(5.0)
    client.close()
    listener.close()
