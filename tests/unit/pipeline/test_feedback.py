"""Feedback from superbatches of several tables: seconds belong to the table that was read."""

from dataclasses import replace
from typing import Any

from gloader.pipeline.superbatch import RunFeedback, StagedSuperbatch
from gloader.ssd_store.cost.strategy import MissCounts

from .items import staged

COUNTS = MissCounts(
    num_batches=2,
    rows=5,
    unique_rows=4,
    row_bytes=12,
    direct_requests=2,
    direct_bytes=8192,
    sweep_requests=1,
    sweep_bytes=4096,
    pack_bytes=8192,
)


class Learner:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def observe(self, counts: MissCounts, strategy: str, *, staged_s: float, read_s: float) -> None:
        self.told.append((counts, strategy, staged_s, read_s))


def counted(**changes: Any) -> StagedSuperbatch:
    """Return a superbatch of one table, whose choice knows what is read."""
    superbatch = staged()
    (table,) = superbatch.tables
    choice = replace(table.choice, counts=COUNTS, **changes)
    return replace(superbatch, tables=(replace(table, choice=choice),))


def test_what_the_disk_took_is_handed_on_when_a_superbatch_is_done() -> None:
    learner = Learner()
    feedback = RunFeedback(learner=learner)  # type: ignore[arg-type]
    feedback.begin(counted(), stage_s=[1.0])
    feedback.add_read(1, 2.0)
    feedback.add_read(1, 0.5)
    feedback.delivered(1, ends_superbatch=True, wait_s=0.0)
    assert learner.told == []
    feedback.computed(0.1)
    assert learner.told == [(COUNTS, "direct", 1.0, 2.5)]


def test_rows_of_other_machines_teach_nothing_of_this_disk() -> None:
    learner = Learner()
    feedback = RunFeedback(learner=learner)  # type: ignore[arg-type]
    feedback.begin(counted(is_exchanged=True), stage_s=[1.0])
    feedback.delivered(1, ends_superbatch=True, wait_s=0.0)
    feedback.computed(0.1)
    assert len(feedback.reports) == 1
    assert learner.told == []


def test_seconds_of_reading_are_those_of_the_table() -> None:
    feedback = RunFeedback(table_names=("paper", "author"))
    superbatch = replace(staged(), tables=staged().tables * 2)
    feedback.begin(superbatch, stage_s=[1.0, 2.0])
    feedback.add_read(1, 4.0, table=1)
    feedback.add_read(1, 0.5, table=0)
    feedback.delivered(1, ends_superbatch=True, wait_s=0.5)
    feedback.computed(0.1)
    found = {report.table: report.measured_retrieval_s for report in feedback.reports}
    assert found == {"paper": 1.5, "author": 6.0}


def test_the_only_table_has_no_name() -> None:
    assert RunFeedback(table_names=("node",)).name_of(0) == ""
    assert RunFeedback(table_names=("paper", "author")).name_of(1) == "author"
