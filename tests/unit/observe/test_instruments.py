"""Reports of a stage, and their receivers."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from processor_time import BURN_NS, burn, run_on_thread

from gloader.core.thread_times import helping
from gloader.errors import ChannelClosedError
from gloader.observe.epoch_stats import StatsRecorder, WorkName
from gloader.observe.instruments import Instruments
from gloader.observe.timeline import TimelineRecorder
from gloader.observe.watchdog import Watchdog
from gloader.types import BatchId

BATCH = BatchId(epoch=1, index=17)


def test_time_counts_for_the_epoch_of_the_batch() -> None:
    instruments = Instruments()
    with instruments.working("gather", BATCH) as work:
        pass
    assert work.seconds > 0
    assert instruments.recorder(1).snapshot().stage_seconds["gather"] == work.seconds
    assert instruments.recorder(0).snapshot().stage_seconds["gather"] == 0


def recorded(timeline: TimelineRecorder, path: Path) -> list[dict[str, Any]]:
    """Return what is known of each piece of work, in their order."""
    timeline.write(path)
    slices = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    return [slice_["args"] for slice_ in sorted(slices, key=lambda one: one["ts"])]


def test_work_shows_the_processor_time_of_its_thread_and_of_those_that_work_for_it(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    instruments = Instruments(timeline=timeline)
    with instruments.working("gather", BATCH):
        burn()
    with instruments.working("gather", BATCH):
        time.sleep(4 * BURN_NS / 1e9)
    with instruments.working("gather", BATCH):
        run_on_thread(helping(burn))
    with instruments.working("gather", BATCH):
        run_on_thread(burn)  # for somebody else
    burnt, slept, helped, alone = (args["cpu_us"] * 1e3 for args in recorded(timeline, tmp_path / "x"))
    assert min(burnt, helped) >= BURN_NS > max(slept, alone)


def test_a_computation_shows_the_processor_time_of_all_threads(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    instruments = Instruments(timeline=timeline)
    work = instruments.working("compute", BATCH).begin()
    run_on_thread(burn)
    burn()
    work.end()
    (computed,) = recorded(timeline, tmp_path / "x")
    assert computed["cpu_us"] * 1e3 >= 2 * BURN_NS


def test_what_work_moves_adds_up_in_the_timeline(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    with Instruments(timeline=timeline).working("stage", BATCH) as work:
        work.add_bytes(read=5, requests=2)
        work.add_bytes(read=6, written=7, requests=1)
    (moved,) = recorded(timeline, tmp_path / "x")
    assert (moved["bytes_read"], moved["bytes_written"], moved["requests"]) == (11, 7, 3)


def test_the_sums_of_earlier_epochs_are_dropped() -> None:
    instruments = Instruments()
    for epoch in range(20):
        instruments.recorder(epoch).add_batch(5)
    late = instruments.working("sample", BatchId(epoch=11, index=0)).begin()
    instruments.forget_before(12)
    late.end()
    assert instruments.recorder(12).snapshot().batches == 1
    assert instruments.recorder(11).snapshot().batches == 0
    assert instruments.recorder(11).snapshot().stage_seconds["sample"] == 0


def test_threads_that_ask_at_once_get_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_slowly(epoch: int) -> StatsRecorder:
        time.sleep(0.01)
        return StatsRecorder(epoch)

    monkeypatch.setattr("gloader.observe.instruments.StatsRecorder", make_slowly)
    instruments = Instruments()
    barrier = threading.Barrier(8)
    found: list[StatsRecorder] = []

    def ask() -> None:
        barrier.wait()
        found.append(instruments.recorder(0))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 < len(found)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, MemoryError, KeyboardInterrupt])
def test_an_error_is_noted_once_with_the_innermost_stage(kind: type[BaseException]) -> None:
    instruments = Instruments(timeline=TimelineRecorder())
    error = kind("x")
    with (
        pytest.raises(kind) as caught,
        instruments.working("gather", BATCH),
        instruments.working("read", BATCH),
    ):
        raise error
    assert caught.value is error
    assert error.__notes__ == ["in stage read, epoch 1, batch 17"]
    assert instruments.recorder(1).snapshot().retrieval_s > 0  # failed work took its time too


def test_an_error_over_several_batches_says_how_many() -> None:
    error = ValueError("x")
    with pytest.raises(ValueError, match="x"), Instruments().working("inspect", BATCH, batches=4):
        raise error
    assert error.__notes__ == ["in stage inspect, epoch 1, batch 17 and the 3 after it"]


@pytest.mark.parametrize(
    ("stage", "error"),
    [("gather", ChannelClosedError("x")), ("wait", ValueError("x")), ("compute", ValueError("x"))],
)
def test_what_ends_or_passes_through_gets_no_note(stage: WorkName, error: Exception) -> None:
    with pytest.raises(type(error)), Instruments().working(stage, BATCH):
        raise error
    assert not hasattr(error, "__notes__")


def test_the_watchdog_hears_of_work_and_of_waiting_but_not_of_the_model() -> None:
    watchdog = Watchdog(60, lambda error: None)
    instruments = Instruments(watchdog=watchdog)
    with instruments.working("read", BATCH) as read, instruments.working("wait", BATCH) as wait:
        assert list(watchdog._running) == [read, wait]
        with instruments.working("compute", BATCH):
            assert list(watchdog._running) == [read, wait]
        before = read.since_ns
        read.beat()
        assert read.since_ns > before
        before = read.since_ns
        read.add_bytes(read=1)
        assert read.since_ns > before
    assert not watchdog._running


def test_work_that_fails_leaves_the_watchdog() -> None:
    watchdog = Watchdog(60, lambda error: None)
    with pytest.raises(ValueError, match="x"), Instruments(watchdog=watchdog).working("read", BATCH):
        raise ValueError("x")
    assert not watchdog._running
