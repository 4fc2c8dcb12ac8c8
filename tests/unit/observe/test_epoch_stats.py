"""The sums of an epoch."""

import threading

import pytest

from gloader.observe.epoch_stats import STAGES, EpochStats, StatsRecorder
from gloader.types import ReadStats


def test_reading_ahead_counts_as_gather_and_is_known_apart() -> None:
    recorder = StatsRecorder(3)
    recorder.add_seconds("gather", 1.0)
    recorder.add_seconds("read", 0.5)
    stats = recorder.snapshot()
    assert stats.stage_seconds == {**dict.fromkeys(STAGES, 0.0), "gather": 1.5}
    assert stats.retrieval_s == 0.5
    assert stats.epoch == 3


def test_rows_and_bytes_add_up() -> None:
    recorder = StatsRecorder(0)
    recorder.add_gather(rows=10, hits=7, read=ReadStats(rows=3, requests=2, bytes_read=8192))
    recorder.add_gather(rows=5, hits=5, read=None)
    recorder.add_staged(bytes_read=100, bytes_written=50, requests=4)
    recorder.add_batch(6)
    stats = recorder.snapshot()
    assert (stats.rows_gathered, stats.cache_hits, stats.rows_read, stats.requests) == (15, 12, 3, 6)
    assert (stats.bytes_read, stats.bytes_written, stats.batches, stats.seeds) == (8292, 50, 1, 6)
    assert stats.hit_rate == 0.8


def test_the_clock_runs_from_start_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([(10.0, 1.0, 0.5), (20.0, 3.0, 1.5), (25.0, 4.0, 1.75)])
    monkeypatch.setattr("gloader.observe.epoch_stats._clocks", lambda: next(clock))
    recorder = StatsRecorder(0)  # work for the epoch may begin here, 10 s before its consumer
    recorder.start()
    recorder.stop()
    recorder.stop()
    stats = recorder.snapshot()
    assert (stats.seconds, stats.cpu_seconds, stats.compile_seconds) == (5.0, 1.0, 0.25)


def test_an_epoch_without_rows_has_no_hits() -> None:
    assert EpochStats(epoch=0).hit_rate == 0.0


def test_no_addition_is_lost_between_threads() -> None:
    recorder = StatsRecorder(0)

    def add() -> None:
        for _ in range(2000):
            recorder.add_seconds("read", 1.0)
            recorder.add_batch(1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = recorder.snapshot()
    assert (stats.retrieval_s, stats.stage_seconds["gather"], stats.seeds) == (8000.0, 8000.0, 8000)
