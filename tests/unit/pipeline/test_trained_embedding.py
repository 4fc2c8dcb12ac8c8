"""The bytes of trained rows: those of a stage's work, of other threads, and of a cache that is enough."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gloader.cache import Trace
from gloader.cache.write_plan import WritePlanner
from gloader.errors import BudgetError
from gloader.observe.epoch_stats import StatsRecorder
from gloader.pipeline.embedding_rows import slot_bytes
from gloader.pipeline.trained_embedding import TrainedEmbedding


class _Work:
    def __init__(self) -> None:
        self.bytes = (0, 0)

    def add_bytes(self, *, read: int, written: int) -> None:
        self.bytes = (self.bytes[0] + read, self.bytes[1] + written)


def test_a_stage_counts_its_own_bytes_and_an_epoch_all_of_them() -> None:
    table = SimpleNamespace(bytes_merged=(5, 5))
    rows: Any = SimpleNamespace(table=table, bytes_read=10, bytes_written=20, step=None)
    embedding = TrainedEmbedding(name="author", number=0, rows=rows)
    recorder, work = StatsRecorder(0), _Work()
    rows.bytes_read, rows.bytes_written = 110, 220  # a checkpoint before the work
    embedding.count_bytes(recorder)
    rows.bytes_read, rows.bytes_written, table.bytes_merged = (
        1117,
        2229,
        (1005, 2005),
    )  # a merge beside the work
    embedding.count_bytes(recorder, work)  # type: ignore[arg-type]
    assert work.bytes == (7, 9)
    stats = recorder.snapshot()
    assert (stats.bytes_read, stats.bytes_written) == (1107, 2209)


def test_a_cache_below_a_later_batch_is_told_with_the_bytes_that_are_enough() -> None:
    def planned(num_bytes: int, num_ranks: int) -> None:
        rows: Any = SimpleNamespace(
            planner=WritePlanner(100, num_bytes // slot_bytes(33), batches_per_step=num_ranks),
            table=SimpleNamespace(width=33, bytes_merged=(0, 0)),
            bytes_read=0,
            bytes_written=0,
            step=None,
            batches_per_step=num_ranks,
        )
        batches = [np.arange(10), np.arange(10, 40), np.arange(5), np.arange(40, 60)]
        TrainedEmbedding(name="author", number=0, rows=rows).plan(Trace(batches[:2]), Trace(batches[2:]))

    for num_ranks in (1, 2):
        with pytest.raises(BudgetError, match="distinct rows of the embedding") as told:
            planned(29 * slot_bytes(33), num_ranks)
        (note,) = told.value.__notes__
        assert note.startswith("the embedding is that of 'author': these rows fit into NodeEmbedding(cache=")
        planned(int(note.split("cache=")[1].split(")")[0]), num_ranks)
