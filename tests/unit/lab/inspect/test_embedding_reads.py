"""The rows that an embedding moves at several cache sizes."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from gloader.cache.write_plan import WritePlanner, write_slot_bytes
from gloader.errors import BudgetError
from gloader.lab.inspect import AccessTrace, EmbeddingReads, inspect_embedding
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


def test_sizes_whose_plans_do_not_fit_are_left_out() -> None:
    def inspect(budget_bytes: int | None) -> EmbeddingReads:
        return inspect_embedding(
            _trace(),
            STORAGE,
            RATES,
            slot_bytes=170,
            superbatch=5,
            shares=(0.2, 0.5, 1),
            budget_bytes=budget_bytes,
        )

    whole = inspect(None)
    assert (whole.slots, whole.left_out) == ((40, 100, 200), ())
    assert inspect(whole.needed_bytes) == whole
    part = inspect(whole.needed_bytes - 1)
    assert (part.slots, part.left_out, part.traffic) == ((40, 100), (200,), whole.traffic[:2])
    least = whole.needed_bytes - 160 * write_slot_bytes()
    assert inspect(least).slots == (40,)
    with pytest.raises(BudgetError) as caught:
        inspect(least - 1)
    assert str(caught.value).startswith("the plans of an embedding with 40 rows in its cache take about ")
    assert f"Give --memory-budget {2 * least}, or plan fewer batches" in str(caught.value)


def test_the_plans_take_the_memory_that_is_counted() -> None:
    rng = np.random.default_rng(3)
    rows = 400_000
    batches = tuple(np.sort(rng.choice(rows, 20_000, replace=False)).astype(np.int32) for _ in range(24))
    trace = AccessTrace(accesses=batches, num_nodes=rows, epoch_batches=24)
    storage = replace(STORAGE, num_rows=rows)
    inspect_embedding(_trace(), STORAGE, RATES, slot_bytes=170)  # compiles the kernels
    peaks = []
    for _ in range(3):  # the smallest, because tracing counts threads of earlier tests
        tracemalloc.start()
        reads = inspect_embedding(trace, storage, RATES, slot_bytes=170, superbatch=8, shares=(1.0,))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Besides the plans there are the sorted rows of the batches.
    assert min(peaks) <= reads.needed_bytes + sum(nodes.nbytes for nodes in batches)
    assert min(peaks) > reads.needed_bytes // 2


def test_assumed_rates_are_told() -> None:
    reads = inspect_embedding(_trace(), STORAGE, replace(RATES, is_assumed=True), slot_bytes=170)
    assert reads.to_json()["rates_are_assumed"]
