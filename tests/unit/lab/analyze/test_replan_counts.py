"""Superbatches that are counted without being executed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gloader.cache import make_planner
from gloader.core.order import EpochOrder
from gloader.errors import BudgetError
from gloader.lab.analyze.replan_counts import (
    CountedTable,
    ReadingRules,
    SuperbatchCounter,
    superbatch_jobs,
)
from gloader.pipeline.sample import CodedRows
from gloader.pipeline.seeds import BatchStream
from gloader.pipeline.stage import RowsOnDisk
from gloader.ssd_store.cost.io_rates import Calibration, IoRates
from gloader.types import BatchId, IdArray

NUM_ROWS, PAGE = 64, 4096
RATES = IoRates(
    random_reads_per_s=1e4, read_bytes_per_s=1e9, write_bytes_per_s=1e9, pack_read_bytes_per_s=1e9
)
# A row a page: what is read is what is missed, and no hole is read through.
ROWS = RowsOnDisk(num_rows=NUM_ROWS, row_bytes=PAGE, max_extent_bytes=2**18, sweep_gap_bytes=0, gap_bytes=0)


def _stream(num_batches: int) -> BatchStream:
    order = EpochOrder(seeds=np.arange(num_batches), num_nodes=NUM_ROWS, batch_size=1, seed=0)
    return BatchStream(order, BatchId(epoch=0, index=0), end_epoch=1)


def _jobs(batches: list[list[list[int]]], *, size: int, unit: int = 1) -> list[Any]:
    """Return the superbatches of batches that have so many rows of each table."""
    entries = [tuple(CodedRows.of(np.array(rows, np.int64)) for rows in batch) for batch in batches]
    stream = _stream(len(batches))
    return list(superbatch_jobs(entries, stream, size=size, num_tables=len(batches[0]), unit=unit))


def _table(*, capacity: int = 0, **values: Any) -> CountedTable:
    given: dict[str, Any] = {
        "rows": ROWS,
        "planner": make_planner("belady", num_nodes=NUM_ROWS, capacity=capacity),
        "staging_bytes": 2**20,
        "spill_share": 1.0,
        "is_whole": True,
    }
    return CountedTable(**(given | values))


def _rules(forced: str, **values: Any) -> ReadingRules:
    given: dict[str, Any] = {"rates": RATES, "calibration": Calibration(), "pack_bytes": 2**20}
    return ReadingRules(forced=forced, **(given | values))


def _counts(rows: IdArray | list[int], forced: str, **values: Any) -> Any:
    (job,) = _jobs([[list(rows)]], size=1)
    return SuperbatchCounter([_table()], _rules(forced, **values)).count(job)


@pytest.mark.parametrize(
    ("unit", "sizes"), [(1, [1, 2, 4, 5, 5, 3]), (2, [2, 4, 4, 4, 4, 2])]
)  # 5 batches are two steps of two, and those that are left
def test_sizes_and_look_aheads_are_those_of_a_run(unit: int, sizes: list[int]) -> None:
    jobs = _jobs([[[number]] for number in range(20)], size=5, unit=unit)
    assert [job.superbatch.num_batches for job in jobs] == sizes
    # The first is planned without looking ahead, the last has nothing ahead of it.
    assert [len(job.lookaheads[0]) for job in jobs] == [0, *sizes[2:], 0]
    assert [job.superbatch.first.index for job in jobs] == np.cumsum([0, *sizes[:-1]]).tolist()


def test_a_batch_counts_what_it_reads_alone() -> None:
    found = _counts([1, 2, 5, 9], "direct")
    assert found.batches == ((4, 0, 4, 0, 3, 4 * PAGE),)
    assert (found.stage_requests, found.stage_bytes, found.written_bytes) == (0, 0, 0)
    assert (found.strategy, found.accesses, found.unique_rows) == ("direct", 4, 4)


def test_a_sweep_brings_each_row_once_in_reads_of_its_own_length() -> None:
    (job, *_) = _jobs([[[7]], [list(range(40))], [list(range(60))]], size=2)[1:]
    found = SuperbatchCounter([_table()], _rules("staged")).count(job)
    # 60 rows of a page, 32 of which are as long as a read of a sweep gets.
    assert (found.stage_requests, found.stage_bytes, found.written_bytes) == (2, 60 * PAGE, 0)
    assert [(batch.misses, batch.read_requests, batch.read_bytes) for batch in found.batches] == [
        (40, 0, 0),
        (60, 0, 0),
    ]
    assert (found.accesses, found.unique_rows, found.misses) == (100, 60, 100)


def test_a_pack_is_written_and_read_back() -> None:
    found = _counts(list(range(40)), "packed")
    assert (found.stage_requests, found.stage_bytes, found.written_bytes) == (2, 40 * PAGE, 40 * PAGE)
    assert found.batches[0][4:] == (2, 40 * PAGE)  # in chunks of 32 pages


def test_what_is_cached_is_not_read() -> None:
    (_, job) = _jobs([[[9]], [[1, 2]], [[1, 3]]], size=2)
    found = SuperbatchCounter([_table(capacity=1)], _rules("direct")).count(job).batches
    assert [(batch.hits, batch.misses, batch.read_bytes) for batch in found] == [
        (0, 2, 2 * PAGE),
        (1, 1, PAGE),
    ]
    assert (found[0].rows, found[0].admitted) == (2, 1)


@pytest.mark.parametrize("is_last", [True, False])
def test_tables_are_counted_together_and_named_by_the_one_that_reads_most(is_last: bool) -> None:
    turn = 1 if is_last else -1
    (job,) = _jobs([[[1], [3, 4, 5]][::turn]], size=1)
    # Of a file that is not here, a batch alone would bring nearly all.
    tables = [_table(), _table(rows=replace(ROWS, row_bytes=2 * PAGE), is_whole=False)][::turn]
    found = SuperbatchCounter(tables, _rules("auto")).count(job)
    assert found.batches[0][:3] == (4, 0, 4)
    assert found.strategy == "staged"
    assert (found.batches[0].read_bytes, found.stage_bytes) == (PAGE, 6 * PAGE)


def test_packs_of_other_tables_and_of_the_superbatch_before_take_their_room() -> None:
    jobs = _jobs([[[1, 2], [3]], [[4], [5, 6]], [[7], [8]]], size=1)
    rules = _rules("packed", pack_bytes=6 * PAGE)
    counter = SuperbatchCounter([_table(), _table()], rules)
    assert [counter.count(job).written_bytes for job in jobs] == [3 * PAGE, 3 * PAGE, 2 * PAGE]
    counter = SuperbatchCounter([_table(), _table()], replace(rules, pack_bytes=6 * PAGE - 1))
    counter.count(jobs[0])
    with pytest.raises(BudgetError, match=r"needs 8192 bytes .* of disk .* and 8191"):
        counter.count(jobs[1])
