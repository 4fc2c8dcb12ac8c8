"""The consumer's end of a run: batches with their labels, measured; and how an epoch and its run end."""

import signal
import weakref
from typing import Any

import numpy as np
import pytest

from gloader.device import CpuDevice, DeviceTier
from gloader.errors import ChannelClosedError
from gloader.observe.epoch_stats import EpochStats
from gloader.pipeline.consumer import Consumer, EpochIterator
from gloader.pipeline.gather import HostBatch
from gloader.pipeline.seeds import SeedLabels
from gloader.pipeline.send import Send, Transfer
from gloader.pipeline.superbatch import RunFeedback
from gloader.pipeline.threads import Channel, Failures
from gloader.types import BatchId, SampledBatch

from .items import DIM, FEATURES, ORDER, instruments, ring, stream

LABELS = np.arange(100, 120)


def _host(index: int) -> HostBatch:
    sampled = SampledBatch(id=BatchId(epoch=0, index=index), nodes=np.arange(4), num_seeds=4, blocks=())
    return HostBatch(
        sampled=sampled,
        x=(FEATURES[:4].copy(),),
        src_degree=np.ones(4, dtype=np.float32),
        superbatch=0,
        ends_superbatch=False,
    )


class _Parts:
    """A consumer of a channel that a test fills."""

    def __init__(self) -> None:
        self.channel: Channel[Any] = Channel(9)
        self.instruments = instruments()
        self.failures = Failures(lambda _error: None)
        tier = DeviceTier(device=CpuDevice())
        self.send = Send(Transfer([tier]), SeedLabels(ORDER, LABELS), self.instruments)
        self.consumer = Consumer(
            self.channel,
            stream=stream(),
            send=self.send,
            observer=ring(),
            failures=self.failures,
            instruments=self.instruments,
            feedback=RunFeedback(),
        )


class _Run:
    """Notes how it was closed."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.closed: list[BaseException | None] = []

    def close(self, error: BaseException | None = None) -> bool:
        self.closed.append(error)
        return True


@pytest.mark.parametrize("is_sent", [False, True])
def test_batches_come_in_order_with_their_labels(is_sent: bool) -> None:
    parts = _Parts()
    for index in range(2):
        host = _host(index)
        parts.channel.put(parts.send.process(host) if is_sent else host)
    for index in range(2):
        assert parts.consumer.next_id == BatchId(epoch=0, index=index)
        ready = parts.consumer.next_batch()
        assert ready.id == BatchId(epoch=0, index=index)
        positions = ORDER.batch_seeds(ORDER.epoch_positions(0), index)
        np.testing.assert_array_equal(ready.y.numpy(), LABELS[positions])
        assert ready.x.shape == (4, DIM)
    assert parts.consumer.num_taken == 2
    assert parts.consumer.has_next()


def test_waits_and_what_the_loop_does_between_are_measured() -> None:
    parts = _Parts()
    parts.channel.put(_host(0))
    recorder = parts.consumer.begin_epoch(0)
    parts.consumer.next_batch()
    assert recorder.snapshot().stage_seconds["compute"] == 0
    parts.consumer.end_compute()
    seconds = recorder.snapshot().stage_seconds
    parts.consumer.end_compute()
    assert recorder.snapshot().stage_seconds == seconds
    assert min(seconds["wait"], seconds["transfer"], seconds["compute"]) > 0


def test_an_error_brings_the_others_along_as_notes() -> None:
    parts = _Parts()
    parts.failures.add(OSError("the other"))
    parts.channel.close(MemoryError("this one"))
    with pytest.raises(MemoryError, match="this one") as caught:
        parts.consumer.next_batch()
    assert caught.value.__notes__ == ["another stage failed too: OSError('the other')"]
    parts.failures.close()


def _iterate(
    parts: _Parts, num_left: int
) -> tuple[_Run, EpochIterator, list[BatchId], list[tuple[EpochStats, bool]]]:
    run, taken, ends = _Run(parts.consumer), list[BatchId](), list[tuple[EpochStats, bool]]()

    def on_end(stats: EpochStats, *, is_complete: bool) -> None:
        ends.append((stats, is_complete))

    iterator = EpochIterator(run, epoch=0, num_left=num_left, on_batch=taken.append, on_end=on_end)
    return run, iterator, taken, ends


def test_a_whole_epoch_leaves_the_run_open() -> None:
    parts = _Parts()
    for index in range(3):
        parts.channel.put(_host(index))
    run, iterator, taken, ends = _iterate(parts, 3)
    assert [batch.id.index for batch in iterator] == [0, 1, 2]
    assert taken == [BatchId(epoch=0, index=index) for index in range(3)]
    assert [(stats.batches, is_complete) for stats, is_complete in ends] == [(3, True)]
    assert run.closed == []


def test_an_error_closes_the_run_and_says_why() -> None:
    parts = _Parts()
    boom = ValueError("boom")
    parts.channel.put(_host(0))
    parts.channel.close(boom)
    run, iterator, _, ends = _iterate(parts, 3)
    next(iterator)
    with pytest.raises(ValueError, match="boom"):
        next(iterator)
    assert run.closed == [boom]
    assert [is_complete for _, is_complete in ends] == [False]
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("end", ["whole", "failed", "closed"])
def test_an_epoch_that_has_ended_is_gone_before_a_ctrl_c_can_arrive(end: str) -> None:
    """Its finalizer is Python code, which swallows one."""
    parts = _Parts()
    parts.channel.put(_host(0))
    parts.channel.close(ValueError("boom"))
    _, iterator, _, _ = _iterate(parts, 2 if end == "failed" else 1)
    handlers = list[Any]()
    watched = weakref.ref(iterator._open, lambda _: handlers.append(signal.getsignal(signal.SIGINT)))
    next(iterator)
    if end == "closed":
        iterator.close()
    else:
        with pytest.raises(ValueError if end == "failed" else StopIteration):
            next(iterator)
    assert watched() is None
    assert handlers != [signal.getsignal(signal.SIGINT)]  # signals were kept back


@pytest.mark.parametrize("how", ["close", "drop"])
def test_an_iterator_that_is_left_closes_the_run(how: str) -> None:
    parts = _Parts()
    parts.channel.put(_host(0))
    run, iterator, _, ends = _iterate(parts, 3)
    next(iterator)
    if how == "close":
        iterator.close()
        iterator.close()
    del iterator
    assert run.closed == [None]
    assert [(stats.batches, is_complete) for stats, is_complete in ends] == [(1, False)]


def test_the_end_of_the_stream_is_the_end() -> None:
    parts = _Parts()
    parts.channel.close()
    with pytest.raises(ChannelClosedError):
        parts.consumer.next_batch()
