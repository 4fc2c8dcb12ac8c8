"""The waits of a superbatch: its traces and the next one's, room for its plan, the first batch's reads."""

import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gloader.core.order import EpochOrder
from gloader.errors import ChannelClosedError
from gloader.pipeline.flow import (
    BatchFeed,
    FirstBatchGate,
    SuperbatchCollector,
    SuperbatchWindow,
)
from gloader.pipeline.gather import HostBatch
from gloader.pipeline.sample import CodedRows, TraceEntry
from gloader.pipeline.seeds import BatchStream
from gloader.pipeline.superbatch import OrderedBatch, PlannedSuperbatch, StagedSuperbatch
from gloader.pipeline.threads import Channel
from gloader.types import BatchId

from .items import DIM, closing, in_order, plan, sampled, staged, stream


class _Traces:
    """Traces of one node each, its position; then the end, or an error."""

    def __init__(self, count: int, error: BaseException | None = None, *, sampling_s: float = 0.0) -> None:
        self._count, self._error, self._sampling_s = count, error, sampling_s
        self.taken = 0

    def has_trace(self) -> bool:
        return self.taken < self._count

    def next_trace(self) -> TraceEntry:
        if not self.has_trace():
            raise self._error or ChannelClosedError("the end")
        self.taken += 1
        time.sleep(self._sampling_s)
        return (CodedRows.of(np.array([self.taken - 1])),)


class _Batches:
    def __init__(self) -> None:
        self._count = 0

    def get(self) -> OrderedBatch:
        self._count += 1
        return in_order(self._count - 1)


def _collector(
    traces: _Traces,
    size: int = 4,
    room: int = 100,
    *,
    unit: int = 1,
    download_s: float | None = None,
    of: BatchStream | None = None,
) -> SuperbatchCollector:
    def waits(first: Sequence[np.ndarray]) -> float:
        assert _ids(first) == [0]
        return download_s or 0.0

    table: Any = SimpleNamespace(retrieval=SimpleNamespace(download_s=waits))
    return SuperbatchCollector(
        traces,
        of or stream(end_epoch=None),
        SuperbatchWindow(room),
        size=size,
        unit=unit,
        downloaded=() if download_s is None else [table],
    )


def _ids(trace: Sequence[np.ndarray]) -> list[int]:
    return [int(nodes[0]) for nodes in trace]


def _all(collector: SuperbatchCollector) -> tuple[list[tuple[list[int], list[int]]], BaseException]:
    found = []
    try:
        while True:
            job = collector.get()
            found.append((_ids(job.superbatch.traces[0]), _ids(job.lookaheads[0])))
    except BaseException as error:
        return found, error


def test_superbatches_grow_and_look_ahead_and_the_first_does_not_wait() -> None:
    traces = _Traces(12)
    collector = _collector(traces)
    first = collector.get()
    assert (first.superbatch.number, _ids(first.superbatch.traces[0]), len(first.lookaheads[0])) == (
        0,
        [0],
        0,
    )
    assert traces.taken == 1
    found, end = _all(collector)
    assert found == [
        ([1, 2], [3, 4, 5, 6]),
        ([3, 4, 5, 6], [7, 8, 9, 10]),
        ([7, 8, 9, 10], [11]),
        ([11], []),
    ]
    assert isinstance(end, ChannelClosedError)


@pytest.mark.parametrize(
    ("size", "first", "expected"),
    [
        (8, 0, [4, 8, 3, 8, 7, 8, 7]),  # 15 batches an epoch, 4 a window: superbatch 0 is one window
        (8, 6, [2, 7, 8, 7, 8, 7]),  # a resumed run first ends the window that it is in
        (6, 0, [4, 4, 4, 3, 4, 4, 4, 3]),  # 6 batches hold one window
        (2, 0, [2, 2, 2, 2, 2, 2, 2, 1, 2]),  # none holds a whole window
    ],
)
def test_superbatches_end_with_windows_and_epochs(size, first, expected) -> None:
    order = EpochOrder(seeds=np.arange(30), num_nodes=30, batch_size=2, seed=0, seed_blocks=2, seed_window=4)
    found, _ = _all(_collector(_Traces(60), size=size, of=BatchStream(order, BatchId(epoch=0, index=first))))
    assert [len(batches) for batches, _ in found][: len(expected)] == expected


def test_superbatches_of_machines_hold_whole_steps() -> None:
    found, _ = _all(_collector(_Traces(20), size=6, unit=2))
    assert [len(batches) for batches, _ in found] == [2, 4, 6, 6, 2]


def test_batches_that_come_with_the_download_of_the_first_are_in_its_superbatch() -> None:
    found, end = _all(_collector(_Traces(10), download_s=1e9))
    assert found == [
        ([0, 1, 2, 3], []),
        ([4, 5, 6, 7], [8, 9]),
        ([8, 9], []),
    ]
    assert isinstance(end, ChannelClosedError)
    assert _all(_collector(_Traces(3), download_s=1e9))[0] == [([0, 1, 2], [])]
    assert _all(_collector(_Traces(0), download_s=1e9))[0] == []


def test_a_first_batch_that_waits_for_no_download_waits_for_no_other_batch() -> None:
    traces = _Traces(20)
    collector = _collector(traces, download_s=0.0)
    assert _ids(collector.get().superbatch.traces[0]) == [0]
    assert traces.taken == 1
    assert [len(superbatch) for superbatch, _ in _all(collector)[0]] == [2, 4, 4, 4, 4, 1]


def test_the_download_of_the_first_batch_waits_for_those_that_are_sampled_in_a_tenth_of_it() -> None:
    collector = _collector(_Traces(100, sampling_s=0.03), 32, download_s=1.0)
    first = len(collector.get().superbatch.traces[0])
    assert 1 < first <= 5
    assert len(collector.get().superbatch.traces[0]) == 2 * first


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, []),
        (1, [([0], [])]),
        (2, [([0], []), ([1], [])]),
        (3, [([0], []), ([1, 2], [])]),
        (7, [([0], []), ([1, 2], [3, 4, 5, 6]), ([3, 4, 5, 6], [])]),
    ],
)
@pytest.mark.parametrize("error", [None, OSError("topology")])
def test_what_ends_the_stream_comes_behind_the_batches_before_it(
    count: int, expected: object, error: BaseException | None
) -> None:
    found, end = _all(_collector(_Traces(count, error)))
    assert found == expected
    assert isinstance(end, ChannelClosedError) if error is None else end is error


def test_superbatches_are_named_by_their_first_batch() -> None:
    collector = _collector(_Traces(8))
    firsts = [collector.get().superbatch.first for _ in range(3)]
    assert firsts == [BatchId(epoch=0, index=index) for index in (0, 1, 3)]


def _ending(number: int) -> HostBatch:
    return HostBatch(
        sampled=sampled(0),
        x=(np.empty((4, DIM), dtype=np.float32),),
        src_degree=np.ones(4, dtype=np.float32),
        superbatch=number,
        ends_superbatch=True,
    )


def test_two_superbatches_are_planned_at_a_time_and_released_when_they_were_executed() -> None:
    window, misses = SuperbatchWindow(), [closing(), closing(), closing()]
    for number in range(2):
        window.wait_for_room()
        window.own(staged(number, misses[number]))
    waiting = threading.Thread(target=window.wait_for_room)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    window.finish_with(_ending(0))
    waiting.join(10)
    assert not waiting.is_alive()
    assert [source.is_closed for source in misses] == [True, False, False]
    window.own(staged(2, misses[2]))
    window.close()
    assert [source.is_closed for source in misses] == [True, True, True]
    window.close()


def test_a_cancelled_window_has_no_room() -> None:
    window = SuperbatchWindow()
    window.cancel()
    with pytest.raises(ChannelClosedError):
        window.wait_for_room()


@pytest.mark.parametrize("unit", [1, 2])
def test_the_second_superbatch_is_not_staged_before_the_first_batches_were_read(unit: int) -> None:
    planned: Channel[PlannedSuperbatch] = Channel(9)
    to_read: Channel[StagedSuperbatch] = Channel(9)
    first_read: Channel[None] = Channel(1)
    for number in range(3):
        planned.put(PlannedSuperbatch(number=number, first=BatchId(epoch=0, index=0), plans=(plan(),)))
        to_read.put(staged(number))
    gate = FirstBatchGate(planned, first_read)
    feed = BatchFeed(to_read, _Batches(), first_read, unit=unit)
    assert gate.get().number == 0
    second: list[int] = []
    waiting = threading.Thread(target=lambda: second.append(gate.get().number), daemon=True)
    waiting.start()
    jobs = [feed.get() for _ in range(unit)]
    waiting.join(0.1)
    assert second == []  # the last of the first batches is still being read
    jobs.append(feed.get())
    waiting.join(10)
    assert second == [1]
    assert gate.get().number == 2
    jobs += [feed.get() for _ in range(5 - unit)]
    assert [(job.superbatch.number, job.index, job.is_last) for job in jobs] == [
        (0, 0, False),
        (0, 1, True),
        (1, 0, False),
        (1, 1, True),
        (2, 0, False),
        (2, 1, True),
    ]
    assert [job.batch.sampled.id.index for job in jobs] == list(range(6))
    to_read.close()
    with pytest.raises(ChannelClosedError):
        feed.get()
