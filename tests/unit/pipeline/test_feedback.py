"""What superbatches of several tables taught: seconds are those of the table that was read."""

from dataclasses import replace

from gloader.pipeline.feedback import RunFeedback

from .items import staged


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
