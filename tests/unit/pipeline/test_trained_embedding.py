"""The bytes of trained rows: those of a stage's work, and those of other threads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gloader.observe.epoch_stats import StatsRecorder
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
