"""Passes over the edges behind samplers: nobody waits for one another, errors keep their place, nothing is left."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from swept import KnownHops, MemoryPasses, sweep_tier

from gloader.core.order import EpochOrder
from gloader.core.signals import Cancellation
from gloader.errors import ChannelClosedError, SpillError, StoreReadError
from gloader.observe.instruments import Instruments, Work
from gloader.observe.timeline import TimelineRecorder
from gloader.pipeline.edge_sweeps import EdgeSweeps, batches_swept
from gloader.pipeline.flow import SuperbatchCollector, SuperbatchWindow
from gloader.pipeline.sample import BatchSource, ReplayBatch, ReplayTrace, SamplerPool
from gloader.pipeline.seeds import BatchStream
from gloader.pipeline.superbatch import InspectJob, RunFeedback
from gloader.pipeline.threads import Channel, Failures, StageThread
from gloader.samplers import CscGraph, NeighborSampler
from gloader.types import BatchId, SampledBatch

PATIENCE_S = 20.0  # behind which nothing moves any more


def _graph() -> CscGraph:
    numbers = np.random.default_rng(3)
    degrees = numbers.integers(0, 6, 60)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return CscGraph(indptr=indptr, indices=numbers.integers(0, 60, indptr[-1]).astype(np.int32))


SAMPLER = NeighborSampler(_graph(), [2, 2], seed=1)


def _stream(ranks: int = 1, end_epoch: int | None = 3, first: int = 1) -> BatchStream:
    order = EpochOrder(seeds=np.arange(26), num_nodes=60, batch_size=2, seed=1, world_size=ranks)
    return BatchStream(order, BatchId(epoch=0, index=first), end_epoch=end_epoch, ranks=range(ranks))


def _alone(ranks: int) -> BatchStream:
    """Return the stream of the first of some ranks."""
    order = EpochOrder(seeds=np.arange(26), num_nodes=60, batch_size=2, seed=1, world_size=ranks)
    return BatchStream(order, BatchId(epoch=0, index=0), end_epoch=3)


class _Make:
    """The batch of a position alone, without its order and degrees."""

    name = "sample"

    def __init__(self, source: BatchSource) -> None:
        self._source = source

    def process(self, position: int) -> SampledBatch:
        with self._source.working(position) as work:
            batch = self._source.make(position, work)
        assert isinstance(batch, SampledBatch)
        return batch


class _Run:
    """Sweeps and samplers, and a thread that plans: their waits are those of a pipeline, and they do little else."""

    def __init__(
        self,
        stream: BatchStream,
        *,
        swept: int,
        planned: int,
        threads: int = 1,
        has_traces: bool = True,
        at_pass: Callable[[int, Cancellation], None] = lambda number, cancellation: None,
        timeline: TimelineRecorder | None = None,
        probed: Sequence[SampledBatch] = (),
    ) -> None:
        self.stream = stream
        self.failures = Failures(lambda _error: None)
        self.instruments = Instruments(timeline=timeline)
        self.tier = sweep_tier(SAMPLER, swept, at_pass, probed)
        self.sweeps = EdgeSweeps(
            self.tier,
            stream,
            planned=planned,
            feedback=RunFeedback(),
            instruments=self.instruments,
            failures=self.failures,
        )
        self.pool: SamplerPool[SampledBatch] = SamplerPool(
            stream,
            _Make(ReplayBatch(self.sweeps)),
            sample_trace=ReplayTrace(self.sweeps) if has_traces else None,
            failures=self.failures,
            num_threads=threads,
            ahead=1,
            ready=self.sweeps.swept,
        )
        self.window = SuperbatchWindow()
        self.collector = SuperbatchCollector(self.pool, stream, self.window, size=planned)
        self._planned: Channel[InspectJob] = Channel(1)
        threads_of_run = [self.sweeps.thread, *self.pool.threads]
        if has_traces:
            threads_of_run.append(StageThread(name="plans", run=self._plan))
        self._threads = [threading.Thread(target=thread.run) for thread in threads_of_run]
        self.traces: list[np.ndarray] = []

    @property
    def passes(self) -> MemoryPasses:
        assert isinstance(self.tier.passes, MemoryPasses)
        return self.tier.passes

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def cancel(self) -> None:
        for part in (self.sweeps, self.pool, self.window, self._planned):
            part.cancel()

    def close(self) -> None:
        self.cancel()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        self.failures.close()
        self.sweeps.release_all()

    def batches(self) -> Iterator[SampledBatch]:
        """Yield what is executed, superbatch by superbatch, as the threads behind the planner do."""
        while True:
            job = self._planned.get()
            trace = job.superbatch.traces[0]
            for index in range(len(trace)):
                batch = self.pool.get()
                np.testing.assert_array_equal(np.sort(batch.nodes), trace[index])
                yield batch
            number = job.superbatch.number
            self.window.own(SimpleNamespace(number=number, close=lambda: None))
            self.window.finish_with(SimpleNamespace(superbatch=number, ends_superbatch=True))

    def _plan(self) -> None:
        try:
            while True:
                self._planned.put(self.collector.get())
        except BaseException as error:
            self._planned.close(None if isinstance(error, ChannelClosedError) else error)


@contextmanager
def _running(run: _Run) -> Iterator[_Run]:
    # What waits for ever is ended, and fails then.
    end = threading.Timer(PATIENCE_S, run.cancel)
    end.start()
    try:
        run.start()
        yield run
    finally:
        end.cancel()
        end.join()
        run.close()
    assert [hops.num_left for hops in run.passes.made] == [0] * len(run.passes.made)


def _expected(stream: BatchStream, end: int | None = None) -> list[SampledBatch]:
    positions = iter(range(1_000)) if end is None else iter(range(end))
    found = []
    for position in positions:
        if not stream.has(position):
            break
        found.append(SAMPLER.sample(stream.id_of(position), stream.seeds_at(position)))
    return found


def _same(found: list[SampledBatch], expected: list[SampledBatch]) -> None:
    assert [batch.id for batch in found] == [batch.id for batch in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.nodes, other.nodes)


# Sizes of superbatches, of edges and of features, and ranks.
_SAMPLE = {(1, 1, 1), (1, 8, 1), (8, 1, 3), (2, 3, 2)}
_ALL = [
    pytest.param(*sizes, marks=[] if sizes in _SAMPLE else pytest.mark.long)
    for sizes in product((1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 3))
]


@pytest.mark.parametrize(("swept", "planned", "ranks"), _ALL)
def test_one_thread_with_room_for_one_batch_comes_to_the_end(swept: int, planned: int, ranks: int) -> None:
    """Whoever waits in a pipeline waits here too, and has as little room as there can be."""
    stream = _stream(ranks)
    with _running(_Run(stream, swept=swept, planned=planned)) as run:
        found, end = _all(run.batches())
    assert isinstance(end, ChannelClosedError)
    _same(found, _expected(stream))
    asked = [batch for batches in run.passes.asked for batch in batches]
    assert len(asked) == 2 * len(found)


def _random_run(seed: int) -> None:
    """Run until the end, until a pass fails, or until everything is cancelled, whatever comes first."""
    draw = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    ranks, end = draw.randint(1, 3), draw.choice(("whole", "whole", "error", "cancel"))
    error = StoreReadError("indices.npy: the disk is broken")
    stream = _stream(ranks, end_epoch=draw.randint(1, 3), first=draw.randrange(2))
    has_traces = draw.random() < 0.7

    fails_at, is_slow_each, num_taken = draw.randrange(30), draw.randint(1, 4), draw.randrange(20)

    def at_pass(number: int, cancellation: Cancellation) -> None:
        if end == "error" and number >= fails_at:
            raise error
        time.sleep(0 if number % is_slow_each else 0.001)

    run = _Run(
        stream,
        swept=draw.choice((1, 2, 3, 5, 8, 64)),
        planned=draw.choice((1, 2, 3, 8, 64)) if has_traces else 1,
        threads=draw.randint(1, 8),
        has_traces=has_traces,
        at_pass=at_pass,
    )
    with _running(run):
        expected = _expected(stream)
        taken = run.batches() if has_traces else _gets(run.pool)
        if end == "cancel":
            with suppress(ChannelClosedError):
                _same([next(taken) for _ in range(num_taken)], expected[:num_taken])
            run.cancel()
            return
        batches, stopped = _all(taken)
    assert stopped is error or (isinstance(stopped, ChannelClosedError) and len(batches) == len(expected))
    _same(batches, expected[: len(batches)])


@pytest.mark.reliability("K11")
def test_random_runs_come_to_an_end() -> None:
    for seed in range(20):
        _random_run(seed)


@pytest.mark.long
@pytest.mark.reliability("K11")
@pytest.mark.parametrize("block", range(50))
def test_thousands_of_random_runs_come_to_an_end(block: int) -> None:
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        _random_run(seed)


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_without_traces_are_those_of_the_sampler_and_what_they_are_made_of_goes(threads: int) -> None:
    stream = _stream()
    rooms = []

    def note(number: int, cancellation: Cancellation) -> None:
        # Both hops of those that wait to be made, and the first one of those that this pass completes.
        num_hops = sum(hops.num_left for hops in run.passes.made)
        completed = sum(hop for _, hop in run.passes.asked[-1])
        rooms.append(batches_swept(3, 1) - ((num_hops - completed) / 2 + completed))

    run = _Run(stream, swept=3, planned=1, has_traces=False, threads=threads, at_pass=note)
    with _running(run):
        found = [run.pool.get() for _ in _expected(stream)]
        with pytest.raises(ChannelClosedError):
            run.pool.get()
    _same(found, _expected(stream))
    assert min(rooms) >= 0


@pytest.mark.parametrize("has_traces", [False, True])
@pytest.mark.parametrize(("first", "ranks", "known"), [(0, 1, 3), (1, 1, 0), (0, 3, 1)])
def test_batches_that_the_loader_was_sized_by_are_not_swept_again(
    has_traces: bool, first: int, ranks: int, known: int
) -> None:
    stream = _stream(ranks, first=first)
    probed = _expected(_stream(first=0) if ranks == 1 else _alone(ranks), 3)
    run = _Run(stream, swept=3, planned=2, has_traces=has_traces, probed=probed)
    with _running(run):
        found, _ = _all(run.batches() if has_traces else _gets(run.pool))
    _same(found, _expected(stream))
    assert len(run.passes.asked[0]) == 1
    assert sum(len(batches) for batches in run.passes.asked) == 2 * (len(found) - known)
    assert run.tier.probed == []
    assert run.sweeps.known == {}


def test_batches_of_another_rank_are_not_taken_for_those_of_this_one() -> None:
    probed = _expected(_stream(3, first=0), 2)[1:]
    run = _Run(_alone(3), swept=3, planned=1, has_traces=False, probed=probed)
    with _running(run):
        found, _ = _all(_gets(run.pool))
    _same(found, _expected(_alone(3)))
    assert sum(len(batches) for batches in run.passes.asked) == 2 * len(found)


def test_what_passes_brought_is_given_back_though_a_part_of_it_cannot_be() -> None:
    run = _Run(_stream(), swept=3, planned=1, has_traces=False)
    with pytest.raises(SpillError, match="busy"), _running(run):
        deadline = time.monotonic() + PATIENCE_S
        while (
            run.sweeps.swept.num_ready < 6 and time.monotonic() < deadline
        ):  # nobody takes batches: they stay
            time.sleep(0.01)
        run.cancel()
        while any(thread.is_alive() for thread in run._threads) and time.monotonic() < deadline:
            time.sleep(0.01)
        held = [hops for hops in run.passes.made if hops.num_left]
        assert len(held) > 1

        def fail() -> None:
            raise SpillError("busy")

        held[0].close = fail  # type: ignore[method-assign]
    assert [hops.num_left for hops in held[1:]] == [0] * (len(held) - 1)
    assert held[0].num_left


def test_passes_stop_when_nobody_takes_batches() -> None:
    with _running(_Run(_stream(end_epoch=None), swept=2, planned=1, has_traces=False)) as run:
        deadline = time.monotonic() + PATIENCE_S
        while run.sweeps.swept.num_ready < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        # One batch is made and waits: S_t + S of the others may be there, and are.
        assert run.sweeps.swept.num_ready == 7
        run.cancel()


class _FailingPass:
    """Raises ``error`` at the begin of pass ``number``."""

    def __init__(self, number: int, error: BaseException) -> None:
        self._number, self._error = number, error

    def __call__(self, number: int, cancellation: Cancellation) -> None:
        if number == self._number:
            raise self._error


# Of superbatches of 1, 2, 3, 3, ... batches with two hops: the passes 0 and 1 end with batch 0, 2 with 1 and 2.
@pytest.mark.parametrize(("number", "good", "noted"), [(0, 0, 1), (1, 0, 1), (2, 1, 2), (4, 6, 7)])
@pytest.mark.parametrize("has_traces", [False, True])
def test_the_error_of_a_pass_comes_behind_the_batches_before_it(
    number: int, good: int, noted: int, has_traces: bool
) -> None:
    error = StoreReadError("indices.npy: the disk is broken")
    stream = _stream()
    run = _Run(stream, swept=3, planned=2, has_traces=has_traces, at_pass=_FailingPass(number, error))
    with _running(run):
        found, end = _all(run.batches() if has_traces else _gets(run.pool))
        assert end is error
        with pytest.raises(StoreReadError):  # whoever asks again hears the same
            run.pool.next_trace() if has_traces else run.pool.get()
    _same(found, _expected(stream, good))
    first = stream.id_of(good)
    batches = len(run.passes.asked[number])
    assert error.__notes__[0].startswith(f"in stage sweep, epoch {first.epoch}, batch {first.index}")
    assert f"and the {batches - 1} after it" in error.__notes__[0] or batches == 1


@pytest.mark.parametrize("method", ["begin", "extend", "replay"])
def test_an_error_of_the_sampler_keeps_its_place(method: str) -> None:
    stream = _stream()
    run = _Run(stream, swept=3, planned=1, has_traces=False)
    hops = run.tier.sampler
    assert isinstance(hops, KnownHops)
    works, error = getattr(hops, method), MemoryError("no memory")

    def fail(first: object, *arguments: object) -> object:
        batch_id = first if isinstance(first, BatchId) else first.batch_id
        if batch_id == stream.id_of(4):
            raise error
        return works(first, *arguments)

    setattr(hops, method, fail)
    with _running(run):
        found, end = _all(_gets(run.pool))
    assert end is error
    # Who draws is worked out for all batches of a pass: 4 begins with 3 and 5, in the pass that completes 1 and 2.
    _same(found, _expected(stream, {"begin": 1, "extend": 3, "replay": 4}[method]))


def test_a_pass_that_is_cancelled_ends_at_once_and_leaves_nothing() -> None:
    is_there, went_on = threading.Event(), []

    def wait(number: int, cancellation: Cancellation) -> None:
        if number == 3:
            is_there.set()
            while not cancellation.is_set():
                time.sleep(0.001)
            went_on.append(time.monotonic())

    with _running(_Run(_stream(), swept=3, planned=1, has_traces=False, at_pass=wait)) as run:
        run.pool.get()
        assert is_there.wait(PATIENCE_S)
        began = time.monotonic()
        run.cancel()
        with pytest.raises(ChannelClosedError):
            list(_gets(run.pool))
    assert went_on[0] - began < 0.5
    assert run.passes.made[2].num_left == 0  # it was drawn for batches that are not made any more


def test_a_look_for_a_cancellation_reports_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[str] = []
    monkeypatch.setattr(Work, "beat", lambda work: beats.append(work.stage))
    found: list[int] = []

    def look(number: int, cancellation: Cancellation) -> None:
        before = len(beats)
        assert not cancellation.is_set()
        found.append(len(beats) - before)

    with _running(_Run(_stream(), swept=3, planned=1, has_traces=False, at_pass=look)) as run:
        list(zip(range(12), _gets(run.pool), strict=False))
    assert found
    assert set(found) == {1}
    assert set(beats) == {"sweep"}


def test_passes_are_counted_and_their_ways_are_in_the_timeline(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    stream = _stream()
    with _running(_Run(stream, swept=3, planned=1, has_traces=False, timeline=timeline)) as run:
        list(zip(range(12), _gets(run.pool), strict=False))  # of epoch 0
        stats = run.instruments.recorder(0).snapshot()
    assert stats.edge_bytes_read == 4096 * stats.edge_passes
    assert stats.edge_bytes_written == 100 * stats.edge_passes
    assert (stats.bytes_read, stats.bytes_written) == (0, 0)
    # Superbatches of 1, 2, 3, 3 and 3 batches begin in it, and the pass that completes the last of them.
    assert stats.edge_passes == 6
    assert stats.stage_seconds["sweep"] > 0
    swept = [args for name, args in _recorded(timeline, tmp_path / "trace.json") if name == "sweep"][:6]
    assert [args["completed"] for args in swept] == [0, 1, 3, 6, 9, 12]
    assert [args["num_batches"] for args in swept] == [0, 1, 2, 3, 3, 3]
    assert all((args["way"], args["bytes_read"], args["requests"]) == ("full", 4096, 1) for args in swept)


@pytest.mark.parametrize("has_traces", [False, True])
def test_each_batch_is_one_piece_of_work_and_those_that_were_there_say_so(
    has_traces: bool, tmp_path: Path
) -> None:
    timeline, stream = TimelineRecorder(), _stream(first=0, end_epoch=1)
    probed = _expected(stream, 3)
    run = _Run(stream, swept=3, planned=2, has_traces=has_traces, probed=probed, timeline=timeline)
    with _running(run):
        found, _ = _all(run.batches() if has_traces else _gets(run.pool))
    kinds = [{"ahead": True}, {}] if has_traces else [{}]
    expected = [
        ("sample", {"epoch": 0, "batch": index} | kind | ({"known": True} if index < len(probed) else {}))
        for index in range(len(found))
        for kind in kinds
    ]
    sampled = [one for one in _recorded(timeline, tmp_path / "trace.json") if one[0] == "sample"]
    assert all(args.pop("cpu_us") > 0 for _, args in sampled)
    assert sorted(sampled, key=str) == sorted(expected, key=str)


def _recorded(timeline: TimelineRecorder, path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the name of each piece of work, and what is known of it, in their order."""
    timeline.write(path)
    slices = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    return [(one["name"], one["args"]) for one in sorted(slices, key=lambda one: one["ts"])]


def _gets(pool: SamplerPool[SampledBatch]) -> Iterator[SampledBatch]:
    while True:
        yield pool.get()


def _all(batches: Iterator[SampledBatch]) -> tuple[list[SampledBatch], BaseException]:
    found = []
    try:
        for batch in batches:
            found.append(batch)  # noqa: PERF402 - those before an error
    except BaseException as error:
        return found, error
    raise AssertionError
