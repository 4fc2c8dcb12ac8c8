"""The other ranks as the host sees them: who is let in, what is lent to them, and what they are told of an error."""

import gc
import threading

import numpy as np
import pytest

from gloader.distributed.agree import Team
from gloader.distributed.peers import Outbox, accept_all, report_of
from gloader.distributed.shared_memory import read_batch, take_segment
from gloader.distributed.wire import Batch, Connection, Hello, Listener, Message, Pong, Segment, Unmap
from gloader.errors import RankError
from gloader.pipeline.buffers import BufferRing, RowForm
from gloader.pipeline.gather import HostBatch
from gloader.types import BatchId, BatchTypes, SampledBatch

TOKEN = "only the ranks know it"  # noqa: S105 - of this test


def _team(listener: Listener, *ranks: int) -> Team:
    return Team(
        ranks=ranks,
        rank=ranks[0],
        address=listener.address,
        token=TOKEN,
        num_loaders=1,
        listener=listener,
        hosts=(ranks[0],),
        machines=("here",),
        parts=(None,),
        launch="a loader",
    )


def _connected(listener: Listener, message: Message) -> Connection:
    connection = Connection.to(listener.address, timeout_s=1.0)
    connection.send(message)
    return connection


def test_only_ranks_that_know_the_token_are_let_in_each_once() -> None:
    listener = Listener()
    hellos = [
        Hello(rank=4, token="a guess"),  # noqa: S106 - of this test
        Hello(rank=9, token=TOKEN),
        Pong(),
        Hello(rank=5, token=TOKEN),
        Hello(rank=5, token=TOKEN),
        Hello(rank=4, token=TOKEN),
    ]
    ends = [_connected(listener, hello) for hello in hellos]
    found = accept_all(_team(listener, 3, 4, 5))
    assert list(found) == [4, 5]
    found[4].send(Pong())
    received = ends[-1].receive(1.0)
    assert received is not None
    assert received.message == Pong()
    for end in ends[:3]:
        with pytest.raises(EOFError):
            end.receive(1.0)
    for end in [*ends, *found.values(), listener]:
        end.close()


def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gloader.distributed.peers.CONNECT_S", 0.05)
    listener = Listener()
    with pytest.raises(RankError, match=r"rank 4, 5 did not connect within 0\.05 s"):
        accept_all(_team(listener, 3, 4, 5))
    listener.close()


def _batch(outbox: Outbox) -> HostBatch:
    x = outbox.ring.acquire([2])[0]
    x[:] = [[1, 2, 3], [4, 5, 6]]
    nodes = np.array([7, 8])
    sampled = SampledBatch(id=BatchId(epoch=1, index=2), nodes=nodes, num_seeds=1, blocks=())
    degrees = np.ones(2, dtype=np.float32)
    return HostBatch(sampled=sampled, x=(x,), src_degree=degrees, superbatch=0, ends_superbatch=False)


def _acquire(ring: BufferRing, has_acquired: threading.Event) -> None:
    ring.acquire([2])[0]
    has_acquired.set()


def test_a_batch_is_lent_until_it_is_released_and_unmapped_when_its_ring_is_gone() -> None:
    listener = Listener()
    client = Connection.to(listener.address, timeout_s=1.0)
    connection = listener.accept(1.0)
    assert connection is not None
    outbox = Outbox(4, connection, forms=[RowForm(dim=3)], rows=[2], max_bytes=24)
    outbox.deliver(_batch(outbox))  # the rank takes no part: dropped
    outbox.begin(6)
    outbox.deliver(_batch(outbox))
    memory = {}
    for _ in range(2):
        received = client.receive(1.0)
        assert received is not None
        assert isinstance(received.message, Segment)
        assert received.descriptor is not None
        memory[received.message.segment] = take_segment(received.descriptor)
    received = client.receive(1.0)
    assert received is not None
    batch = received.message
    assert isinstance(batch, Batch)
    features, topology = batch.segments
    assert (batch.run, batch.rows, outbox.num_sent) == (6, (2,), 1)
    assert memory[features][:24].view(np.float32).tolist() == [1, 2, 3, 4, 5, 6]
    assert read_batch(batch.shape, memory[topology], BatchTypes())[0].nodes.tolist() == [7, 8]

    got_another = threading.Event()
    waiting = threading.Thread(target=_acquire, args=(outbox.ring, got_another))
    waiting.start()
    assert not got_another.wait(0.1)  # the only buffer is lent
    outbox.release(features)
    assert got_another.wait(5.0)
    waiting.join()
    outbox.release(topology)
    outbox.tell(Pong())
    received = client.receive(1.0)
    assert received is not None
    assert received.message == Pong()
    del outbox
    gc.collect()
    gone = [client.receive(1.0) for _ in range(2)]
    assert {one.message for one in gone if one is not None} == {
        Unmap(segment=features),
        Unmap(segment=topology),
    }
    for end in (client, connection, listener):
        end.close()


def test_an_error_is_told_with_the_rank_that_had_it_once() -> None:
    error = OSError("no disk")
    error.add_note("while reading")
    report = report_of(error, 3, run=2, now=True)
    assert (report.text, report.notes) == ("rank 3 failed: OSError: no disk", ("while reading",))
    assert (report.run, report.now) == (2, True)
    assert report_of(RankError("rank 5 ended"), 3).text == "rank 5 ended"
    assert report_of(error, None).text == "no disk"
