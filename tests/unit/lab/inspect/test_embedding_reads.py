"""The rows that an embedding moves at several cache sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gloader.cache.write_plan import WritePlanner
from gloader.lab.inspect import AccessTrace, inspect_embedding
from gloader.plan.embedding_cost import TableSizes, predict_rows
from gloader.ssd_store.cost.io_rates import IoRates

STORAGE = TableSizes(num_rows=200, row_bytes=132, buffer_rows=50, gap_bytes=0)
RATES = IoRates(
    random_reads_per_s=1e4, read_bytes_per_s=1e9, write_bytes_per_s=5e8, pack_read_bytes_per_s=2e9
)


def _trace() -> AccessTrace:
    rng = np.random.default_rng(3)
    batches = tuple(rng.choice(200, 30, replace=False).astype(np.int32) for _ in range(12))
    return AccessTrace(accesses=batches, num_nodes=200, epoch_batches=24)


def test_each_size_has_the_rows_of_a_runs_plans() -> None:
    reads = inspect_embedding(
        _trace(), STORAGE, RATES, slot_bytes=170, superbatch=5, shares=(0.01, 0.2, 0.5, 1)
    )
    assert reads.slots == (30, 40, 100, 200)  # the largest batch has 30 rows
    for capacity, traffic in zip(reads.slots, reads.traffic, strict=True):
        planner = WritePlanner(200, capacity)
        parts = [[np.sort(rows) for rows in _trace().accesses[start : start + 5]] for start in (0, 5, 10)]
        plans = [planner.plan(part, ahead) for part, ahead in zip(parts, [*parts[1:], ()], strict=True)]
        assert traffic.forward + traffic.staged + traffic.late == sum(plan.num_loads for plan in plans)
        assert traffic.appended == sum(plan.num_evictions - plan.num_forward for plan in plans)
    distinct = len(np.unique(np.concatenate(_trace().accesses)))
    assert (reads.traffic[-1].staged, reads.traffic[-1].appended) == (distinct, 0)


def test_the_buffer_follows_from_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gloader.ssd_store.embedding.embedding_table._LEAST_BUFFER_BYTES", 1)
    report = inspect_embedding(_trace(), STORAGE, RATES, slot_bytes=170, superbatch=5, shares=(0.15,))
    assert report.costs[0] == predict_rows(report.traffic[0], replace(STORAGE, buffer_rows=200 // 40), RATES)


def test_the_report_is_per_epoch() -> None:
    reads = inspect_embedding(_trace(), STORAGE, RATES, slot_bytes=170, superbatch=5, shares=(0.2, 1))
    report = reads.to_json()
    assert (report["row_bytes"], report["slots"], report["memory_bytes"]) == (132, [40, 200], [6800, 34000])
    assert report["read_bytes_per_epoch"] == [2 * cost.read_bytes for cost in reads.costs]
    assert report["written_bytes_per_epoch"] == [2 * cost.written_bytes for cost in reads.costs]
    assert report["disk_s_per_epoch"] == [2 * cost.seconds for cost in reads.costs]
    assert report["load_ratio"][0] > report["load_ratio"][1] > 0
