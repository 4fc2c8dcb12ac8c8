"""The verb "read": the missing rows of a batch are in its buffer."""

from dataclasses import replace

import numpy as np
import pytest

from gloader.cache import SlotCache, Trace, make_planner
from gloader.pipeline.buffers import BufferRing, RowForm
from gloader.pipeline.gather import GatherCached, ReadMisses
from gloader.pipeline.superbatch import BatchJob, RunFeedback, StagedSuperbatch
from gloader.ssd_store import DirectMisses, RamFeatures

from .items import FEATURES, NUM_NODES, in_order, instruments, ring, staged, trace


def _job(superbatch: StagedSuperbatch, index: int) -> BatchJob:
    return BatchJob(superbatch=superbatch, index=index, batch=in_order(index))


@pytest.mark.parametrize("index", [0, 1])
def test_missing_rows_are_in_their_place(index: int) -> None:
    superbatch, feedback, found = staged(), RunFeedback(), instruments()
    feedback.begin(superbatch, stage_s=[0.0])
    filled = ReadMisses(ring(), feedback=feedback, instruments=found).process(_job(superbatch, index))
    nodes = filled.job.batch.sampled.nodes
    assert filled.x[0].shape == (len(nodes), FEATURES.shape[1])
    missing = filled.steps[0].miss_pos
    assert len(missing) == [4, 1][index]
    np.testing.assert_array_equal(filled.x[0][missing], FEATURES[nodes[missing]])
    stats = found.recorder(0).snapshot()
    assert (stats.rows_gathered, stats.rows_read) == (len(nodes), len(missing))
    assert stats.cache_hits == len(nodes) - len(missing)
    assert stats.retrieval_s > 0
    assert stats.tables == {}


def test_of_several_tables_each_is_counted_by_its_name() -> None:
    feedback, found = RunFeedback(table_names=("paper", "author")), instruments()
    superbatch, batch = staged(), in_order(0)
    superbatch = replace(superbatch, tables=superbatch.tables * 2)
    form = RowForm(dim=FEATURES.shape[1], dtype=np.dtype(np.float32))
    buffers = BufferRing(forms=[form] * 2, rows=[16] * 2, max_bytes=10**6)
    feedback.begin(superbatch, stage_s=[0.0, 0.0])
    job = BatchJob(superbatch=superbatch, index=0, batch=replace(batch, tables=batch.tables * 2))
    filled = ReadMisses(buffers, feedback=feedback, instruments=found).process(job)
    assert len(filled.x) == len(filled.steps) == 2
    stats = found.recorder(0).snapshot()
    assert (stats.rows_read, len(stats.tables)) == (8, 2)
    for name in ("paper", "author"):
        one = stats.of_table(name)
        assert (one.rows_gathered, one.rows_read) == (stats.rows_gathered // 2, 4)


def test_rows_of_a_table_that_the_device_brings_have_no_place_in_the_buffer() -> None:
    feedback, found = RunFeedback(), instruments()
    superbatch, batch = staged(), in_order(0)
    held = make_planner("belady", num_nodes=NUM_NODES, capacity=0, device_resident=np.arange(NUM_NODES))
    on_device = replace(superbatch.tables[0], plan=held.plan(trace(), Trace()).without_trace())
    superbatch = replace(superbatch, tables=(*superbatch.tables, on_device))
    form = RowForm(dim=FEATURES.shape[1])
    buffers = BufferRing(forms=[form] * 2, rows=[16, 1], max_bytes=10**6)
    feedback.begin(superbatch, stage_s=[0.0, 0.0])
    job = BatchJob(superbatch=superbatch, index=0, batch=replace(batch, tables=batch.tables * 2))
    read = ReadMisses(buffers, feedback=feedback, instruments=found, brought=[False, True])
    with SlotCache(2, dim=form.dim) as slots, SlotCache(0, dim=form.dim) as none:
        host = GatherCached([slots, none], found).process(read.process(job))
    assert [len(x) for x in host.x] == [len(batch.sampled.nodes), 0]
    assert buffers.rows == (16, 1)
    stats = found.recorder(0).snapshot()
    assert stats.device_hits == len(batch.sampled.nodes)


def test_every_table_of_a_batch_that_was_read_is_given_back() -> None:
    released: list[tuple[int, int]] = []

    class Noting(DirectMisses):
        def __init__(self, table: int) -> None:
            super().__init__(RamFeatures(FEATURES))  # type: ignore[arg-type]
            self.table = table

        def release(self, batch: int) -> None:
            released.append((self.table, batch))

    feedback, batch = RunFeedback(), in_order(1)
    tables = tuple(staged(misses=Noting(table)).tables[0] for table in range(2))
    superbatch = replace(staged(), tables=tables)
    feedback.begin(superbatch, stage_s=[0.0, 0.0])
    buffers = BufferRing(forms=[RowForm(dim=FEATURES.shape[1])] * 2, rows=[16] * 2, max_bytes=10**6)
    job = BatchJob(superbatch=superbatch, index=1, batch=replace(batch, tables=batch.tables * 2))
    ReadMisses(buffers, feedback=feedback, instruments=instruments()).process(job)
    assert released == [(0, 1), (1, 1)]
