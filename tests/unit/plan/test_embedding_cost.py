"""The predicted work of the disk for an embedding, against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from write_plans import trace

from gloader.cache.write_plan import WritePlanner
from gloader.plan.embedding_cost import RowTraffic, TableSizes, TrafficCounter, merged_rows, predict_rows
from gloader.plan.predict import expected_reads
from gloader.ssd_store.cost.io_rates import IoRates

STORAGE = TableSizes(num_rows=1000, row_bytes=512, buffer_rows=100, gap_bytes=0)
RATES = IoRates(
    random_reads_per_s=1e4, read_bytes_per_s=1e9, write_bytes_per_s=5e8, pack_read_bytes_per_s=2e9
)


def _count(superbatches: list[list[list[int]]], capacity: int, places: int) -> RowTraffic:
    planner, counter = WritePlanner(100, capacity, depth=1), TrafficCounter(places)
    for index, superbatch in enumerate(superbatches):
        ahead = superbatches[index + 1 : index + 2]
        counter.add(planner.plan(trace(superbatch), trace(ahead[0]) if ahead else ()))
    return counter.traffic()


def test_rows_are_counted_by_source_and_target() -> None:
    traffic = _count([[[0, 1], [2, 3], [0, 4]], [[1, 5]]], capacity=3, places=100)
    # Row 0 or 1 is evicted for a later batch, and the other one stays.
    assert traffic == RowTraffic(
        num_superbatches=2, num_batches=4, accesses=8, forward=1, staged=6, late=0, appended=3, spilled=0
    )


def test_waiting_rows_beyond_the_memory_are_spilled() -> None:
    superbatches = [[[10 * batch + row for row in range(10)] for batch in range(4)] for _ in range(3)]
    fits = _count(superbatches, capacity=10, places=40)
    assert (fits.staged, fits.forward, fits.spilled) == (40, 80, 0)
    for places in (30, 20, 5):
        assert 0 < _count(superbatches, capacity=10, places=places).spilled <= 120
    assert _count(superbatches, capacity=10, places=0).spilled == 120


def test_a_full_memory_of_waiting_rows_spills_a_quarter_of_it() -> None:
    superbatch = [[row] for row in range(9)]  # nine rows are read ahead
    assert [_count([superbatch], capacity=1, places=places).spilled for places in (9, 8)] == [0, 2]


def test_merges_read_two_tables_for_each_table_of_appended_rows() -> None:
    # Runs of 100 rows come upon a table of 1,000 until there are 2,000 rows, which one merge makes a table again.
    assert merged_rows(2000, STORAGE) == (pytest.approx(1450), 4000, 2000)
    assert merged_rows(500, STORAGE)[1:] == (1000, 500)
    assert merged_rows(0, STORAGE)[1:] == (0, 0)
    # With many small runs some are merged before.
    _, read, written = merged_rows(10**6, replace(STORAGE, num_rows=10**6, buffer_rows=1000))
    assert read > 2 * 10**6
    assert written > 10**6


def test_bytes_and_seconds_follow_from_the_rows() -> None:
    traffic = RowTraffic(num_superbatches=2, num_batches=8, staged=400, late=16, appended=2000, spilled=50)
    cost = predict_rows(traffic, STORAGE, RATES)
    staged = expected_reads(200, file_rows=1450, row_bytes=512, gap_bytes=0)
    late = expected_reads(2, file_rows=1450, row_bytes=512, gap_bytes=0)
    assert cost.staged_bytes == round(2 * staged[1] + 8 * late[1])
    assert (cost.spilled_bytes, cost.appended_bytes) == (50 * 512, 2000 * 520)
    assert (cost.merge_read_bytes, cost.merge_written_bytes) == (4000 * 520, 2000 * 520)
    assert cost.read_bytes == cost.staged_bytes + 50 * 512 + 4000 * 520
    assert cost.written_bytes == 50 * 512 + 4000 * 520
    reads_s = 2 * RATES.read_seconds(*staged) + 8 * RATES.read_seconds(*late)
    assert cost.seconds == pytest.approx(
        reads_s + cost.written_bytes / 5e8 + 4000 * 520 / 1e9 + 50 * 512 / 2e9
    )
    assert predict_rows(RowTraffic(), STORAGE, RATES).seconds == 0
