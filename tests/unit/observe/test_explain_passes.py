"""The measured passes over the edges, compared with the prediction."""

from __future__ import annotations

import pytest

from gloader.dataset.edge_passes import PassReport
from gloader.observe.epoch_stats import StatsRecorder
from gloader.observe.explain import MeasuredPass, edges_moved, explain_passes, pass_error
from gloader.pipeline.superbatch import RunFeedback
from gloader.ssd_store.sweep.sweeper import SweepCost
from gloader.types import ReadStats


def _report(way: str, predicted_s: float) -> PassReport:
    read = ReadStats(rows=10**6, requests=10**3, bytes_read=12 * 10**9)
    cost = SweepCost(read=read, writes=100, bytes_written=10**9)
    return PassReport(way=way, predicted_s=predicted_s, pages_wanted=3 * 10**6, cost=cost)  # type: ignore[arg-type]


def test_passes_of_a_kind_have_a_line() -> None:
    feedback = RunFeedback()
    feedback.add_pass(_report("direct", 0.1), num_batches=0, measured_s=0.2, cpu_s=0.1)
    for measured_s in (10.0, 12.0, 16.0):
        feedback.add_pass(_report("full", 12.0), num_batches=256, measured_s=measured_s, cpu_s=3.0)
    assert explain_passes(feedback.passes).splitlines() == [
        "passes over the edges, predicted for the disk and measured:",
        "  read    batches  times  read from disk  written  predicted  measured  processor  error",
        "  direct        0      1           12 GB     1 GB     100 ms    200 ms     100 ms    50%",
        "  full        256      3           12 GB     1 GB     12.0 s    12.0 s      3.0 s     0%",
        "pass time: predicted to 22% (median over passes)",
    ]


def test_without_passes_there_is_no_error() -> None:
    assert pass_error([]) is None
    assert (
        pass_error([MeasuredPass(report=_report("full", 1.0), num_batches=1, measured_s=0.0, cpu_s=0.0)])
        is None
    )


def test_the_epoch_says_what_passes_moved_and_keeps_the_features_apart() -> None:
    recorder = StatsRecorder(0)
    assert edges_moved(recorder.snapshot()) == ""
    recorder.add_sweep(bytes_read=10**9, bytes_written=10**6)
    assert edges_moved(recorder.snapshot()) == "1 pass over the edges: 1 GB read, 1 MB written"
    recorder.add_sweep(bytes_read=10**9, bytes_written=10**6)
    stats = recorder.snapshot()
    assert edges_moved(stats) == "2 passes over the edges: 2 GB read, 2 MB written"
    assert (stats.bytes_read, stats.bytes_written) == (0, 0)


def test_the_disk_s_time_for_edges_is_in_the_prediction_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from gloader.pipeline import superbatch as module

    feedback = RunFeedback(num_ranks=2)
    feedback.add_pass(_report("full", 12.0), num_batches=256, measured_s=25.6, cpu_s=1.0)
    feedback.add_pass(_report("full", 12.0), num_batches=0, measured_s=1.0, cpu_s=1.0)  # completes nothing
    monkeypatch.setattr(feedback, "_known", module._Known(cpu_s=0.0, compute_s=0.0))
    tables = [SimpleNamespace(choice=SimpleNamespace(predicted_s=seconds)) for seconds in (3.0, 1.0)]
    staged = SimpleNamespace(tables=tables, num_batches=8)
    # Of a step of two ranks: a second for the features of two batches, and 0.1 s for the edges of each.
    assert feedback._predicted_step(staged) == pytest.approx(1.2)  # type: ignore[arg-type]
