"""The sampler threads: both sequences in order, kept or sampled again, errors in their place."""

import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Self

import numpy as np
import pytest

from gloader.cache import decode_ids
from gloader.core.order import EpochOrder
from gloader.errors import ChannelClosedError
from gloader.observe.instruments import Instruments
from gloader.pipeline.sample import (
    KeptBatches,
    SampleBatch,
    SampleOrdered,
    SamplerPool,
    SampleTrace,
)
from gloader.pipeline.seeds import BatchStream
from gloader.pipeline.superbatch import OrderedBatch
from gloader.pipeline.threads import Failures
from gloader.samplers import CscGraph
from gloader.types import BatchId, IdArray, SampledBatch

PER_EPOCH = 5
EDGELESS = CscGraph(indptr=np.zeros(1001, dtype=np.int64), indices=np.empty(0, dtype=np.int32))


def _stream(end_epoch: int | None = 3) -> BatchStream:
    order = EpochOrder(seeds=np.arange(20), num_nodes=1000, batch_size=4, seed=1)
    return BatchStream(order, BatchId(epoch=1, index=2), end_epoch=end_epoch)


def _sample(batch_id: BatchId, seeds: IdArray) -> SampledBatch:
    rng = np.random.Generator(np.random.Philox(key=[batch_id.epoch, batch_id.index]))
    nodes = rng.permutation(1000)[: 50 + 7 * batch_id.index].astype(np.int64)
    return SampledBatch(id=batch_id, nodes=nodes, num_seeds=len(seeds), blocks=())


class _Noted(Failures):
    """Failures that are only looked at."""

    def __init__(self) -> None:
        super().__init__(lambda _error: None)
        self.errors: list[BaseException] = []

    def add(self, error: BaseException) -> None:
        self.errors.append(error)


class _Running:
    """A pool whose threads run for the length of a with-block."""

    def __init__(
        self,
        sample: Callable[..., SampledBatch] = _sample,
        *,
        stream: BatchStream | None = None,
        keep_bytes: int = 0,
        has_traces: bool = True,
    ) -> None:
        stream = stream or _stream()
        once = SampleBatch(SimpleNamespace(sample=sample), stream, Instruments())
        kept = KeptBatches(keep_bytes)
        self.failures = _Noted()
        self.pool: SamplerPool[OrderedBatch] = SamplerPool(
            stream,
            SampleOrdered(once, kept, EDGELESS),
            sample_trace=SampleTrace(once, kept) if has_traces else None,
            failures=self.failures,
            num_threads=3,
            ahead=4,
        )
        self._threads = [threading.Thread(target=t.run, name=t.name) for t in self.pool.threads]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.cancel()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


def _expected() -> list[BatchId]:
    ids = [BatchId(epoch=e, index=i) for e in (1, 2) for i in range(PER_EPOCH)]
    return ids[2:]


@pytest.mark.parametrize("keep_bytes", [0, 900, 10**9])
def test_traces_and_batches_come_in_order_over_the_borders_of_epochs(keep_bytes: int) -> None:
    calls: Counter[BatchId] = Counter()
    lock = threading.Lock()

    def sample(batch_id: BatchId, seeds: IdArray) -> SampledBatch:
        with lock:
            calls[batch_id] += 1
        return _sample(batch_id, seeds)

    traces, batches = [], []
    with _Running(sample, keep_bytes=keep_bytes) as running:
        traces.extend(running.pool.next_trace() for _ in range(3))
        for step in range(8):
            if len(traces) < 8:
                traces.append(running.pool.next_trace())
            batches.append(running.pool.get())
            assert batches[-1].sampled.id == _expected()[step]
        assert not running.pool.has_trace()
        for take in (running.pool.next_trace, running.pool.get):
            with pytest.raises(ChannelClosedError):
                take()
    for batch_id, entry, batch in zip(_expected(), traces, batches, strict=True):
        nodes = _sample(batch_id, np.empty(4)).nodes
        (coded,), (rows,) = entry, batch.tables
        np.testing.assert_array_equal(decode_ids(coded.code, coded.count), np.sort(nodes))
        np.testing.assert_array_equal(rows.ascending, np.sort(nodes))
        np.testing.assert_array_equal(nodes[rows.order], rows.ascending)
    times = set(calls.values())
    assert times == {2} if keep_bytes == 0 else times == {1} if keep_bytes == 10**9 else times == {1, 2}


def test_without_traces_every_batch_is_sampled_once() -> None:
    with _Running(has_traces=False) as running:
        ids = [running.pool.get().sampled.id for _ in _expected()]
    assert ids == _expected()


@pytest.mark.parametrize("at", [0, 3, 7])
def test_an_error_keeps_its_place_and_is_reported_at_once(at: int) -> None:
    boom = MemoryError("boom")

    def sample(batch_id: BatchId, seeds: IdArray) -> SampledBatch:
        if batch_id == _expected()[at]:
            raise boom
        return _sample(batch_id, seeds)

    with _Running(sample) as running:
        for _ in range(at):
            running.pool.next_trace()
        assert not running.pool.has_trace()
        with pytest.raises(MemoryError) as caught:
            running.pool.next_trace()
        assert caught.value is boom
        assert running.failures.errors == [boom]
        for _ in range(at):
            running.pool.get()


def test_cancel_wakes_a_waiter() -> None:
    with _Running(stream=_stream(None)) as running:
        threading.Timer(0.05, running.pool.cancel).start()
        with pytest.raises(ChannelClosedError):
            while True:  # no trace is taken, so that a batch is not started
                running.pool.get()
