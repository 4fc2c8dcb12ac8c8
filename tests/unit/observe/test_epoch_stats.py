"""The sums of an epoch."""

import threading

import pytest

from gloader.observe.epoch_stats import (
    OF_TABLES,
    STAGES,
    EpochStats,
    StatsRecorder,
    add_tables,
    hits_by_table,
    memory_by_table,
)
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


def _typed() -> EpochStats:
    recorder = StatsRecorder(2)
    few = ReadStats(rows=3, requests=2, bytes_read=8192)
    recorder.add_gather(rows=10, hits=6, read=few, device_hits=1, table="paper")
    recorder.add_gather(rows=5, hits=0, read=None, table="place")
    recorder.add_gather(rows=6, hits=3, read=few, table="paper")
    recorder.add_staged(bytes_read=100, bytes_written=50, requests=4, table="place")
    return recorder.snapshot()


def test_what_is_counted_of_a_table_is_also_counted_in_all() -> None:
    stats = _typed()
    assert list(stats.tables) == ["paper", "place"]
    assert (stats.rows_gathered, stats.cache_hits, stats.rows_read, stats.device_hits) == (21, 9, 6, 1)
    assert (stats.bytes_read, stats.bytes_written, stats.requests) == (2 * 8192 + 100, 50, 8)
    for name in OF_TABLES:
        assert sum(counts[name] for counts in stats.tables.values()) == getattr(stats, name)


def test_an_epoch_of_one_table_has_its_own_counts_and_hit_rate() -> None:
    paper = _typed().of_table("paper")
    assert (paper.epoch, paper.rows_gathered, paper.cache_hits, paper.device_hits) == (2, 16, 9, 1)
    assert (paper.rows_read, paper.requests, paper.bytes_read) == (6, 4, 2 * 8192)
    assert paper.hit_rate == 10 / 16
    assert memory_by_table([_typed(), _typed()]) == "from memory: paper 62%, place 0%"


def test_where_there_is_one_table_nothing_is_told_of_it() -> None:
    stats = EpochStats(epoch=0, rows_gathered=4, cache_hits=1)
    assert stats.of_table("node") is stats
    assert (hits_by_table([stats]), memory_by_table([stats])) == ({}, "")


def test_tables_of_several_ranks_are_added_up_whichever_each_of_them_saw() -> None:
    seen = dict.fromkeys(OF_TABLES, 1)
    total = add_tables([{"a": seen}, {}, {"b": seen, "a": seen}])
    assert total == {"a": dict.fromkeys(OF_TABLES, 2), "b": seen}
    assert seen == dict.fromkeys(OF_TABLES, 1)


def test_a_table_that_moved_nothing_so_far_has_no_counts() -> None:
    recorder = StatsRecorder(0)
    recorder.add_gather(rows=9, hits=9, read=None, table="paper")
    assert recorder.snapshot().of_table("author").rows_gathered == 0
