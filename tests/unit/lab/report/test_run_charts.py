from __future__ import annotations

from dataclasses import replace

import pytest
from training_runs import drawn, epoch, lines, run, texts, told

from gloader.lab.report.run_facts import grouped
from gloader.lab.report.run_sections import charts_of, epoch_parts
from gloader.lab.report.svg import Chart
from gloader.lab.report.training import Training


def _charts(*runs: Training) -> dict[str, Chart]:
    return {chart.name: chart for chart in charts_of(grouped(runs))}


WIDE = run("wide", settings={"fanouts": "15,10"})


def test_two_runs_have_every_chart_and_are_in_each() -> None:
    charts = _charts(run("a"), WIDE)
    assert list(charts) == [
        "loss", "loss-seconds", "acc", "acc-seconds", "seconds", "memory", "bytes", "rows"
    ]  # fmt: skip
    for chart in charts.values():
        assert {"a", "wide"} <= set(texts(chart)), chart.name


def test_curves_are_over_epochs_and_over_seconds_with_the_evaluation() -> None:
    charts = _charts(run("a", epoch(1, loss=4.0), epoch(2, loss=2.0)))
    assert told(charts["loss"]) == ["a, 1: 4", "a, 2: 2"]
    assert told(charts["loss-seconds"]) == ["a, 3: 4", "a, 6: 2"]
    assert told(charts["acc"]) == ["a, 1: 0.6", "a, 2: 0.7"]
    assert len(lines(charts["acc"], 0, is_dotted=True)) == 1  # of training


def test_an_epoch_that_was_not_evaluated_has_its_seconds_but_no_place_on_the_curve() -> None:
    charts = _charts(run("a", epoch(1, valid=None), epoch(2)))
    assert told(charts["acc-seconds"]) == ["a, 6: 0.7"]


def test_of_several_seeds_a_curve_is_their_mean_over_the_epochs_of_all() -> None:
    charts = _charts(
        run("s0", epoch(1, loss=4.0), epoch(2, loss=2.0), epoch(3)),
        run("s1", epoch(1, loss=2.0), epoch(2, loss=1.0), seed="1"),
    )
    assert told(charts["loss"]) == ["s (2 seeds), 1: 3", "s (2 seeds), 2: 1.5"]
    assert len(drawn(charts["loss"], "band")) == 1
    assert "one standard deviation" in charts["loss"].caption
    assert "one standard deviation" not in _charts(run("a"))["loss"].caption
    # Of memory each, under one name.
    assert len(lines(charts["memory"], 0)) == 2
    assert texts(charts["memory"]).count("s (2 seeds)") == 1


def test_runs_of_several_metrics_have_a_chart_of_each() -> None:
    charts = _charts(run("a"), run("b", metric="rmse"))
    assert {"acc", "acc-seconds", "rmse", "rmse-seconds"} <= set(charts)
    assert "b" not in texts(charts["acc"])


def test_memory_is_over_seconds_and_the_budget_across() -> None:
    one = run("a", epoch(1, memory_bytes=(2, 8) * 8), epoch(2, memory_bytes=(4,) * 16), budget_bytes=10)
    memory = _charts(one)["memory"]
    ((*points,),) = lines(memory, 0)
    assert len(points) == 32
    places = [x for x, _ in points]
    assert places == sorted(set(places))  # one epoch behind the other
    highest = min(y for _, y in points)
    assert [y == highest for _, y in points[:4]] == [False, True, False, True]
    assert float(drawn(memory, "level")[1]["y1"]) < highest
    assert "budget 10 B" in texts(memory)


def test_a_budget_that_is_far_above_is_said_not_drawn() -> None:
    memory = _charts(run("a", budget_bytes=10**9))["memory"]
    assert drawn(memory, "level") == []
    assert memory.caption.endswith("The budget, 1 GB, is far above.")
    assert "budget is" not in _charts(run("a", budget_bytes=None))["memory"].caption


def test_of_two_budgets_the_one_that_is_not_drawn_is_said_with_its_run() -> None:
    memory = _charts(run("mine", budget_bytes=10), run("large", budget_bytes=4 * 10**9))["memory"]
    assert "budget 10 B" in texts(memory)
    assert memory.caption.endswith("Dashed: the budget. Far above, and not drawn: a budget of 4 GB (large).")


def test_captions_say_what_is_shown_wherever_they_stand() -> None:
    charts = _charts(run("a"), run("b"))
    assert charts["loss-seconds"].caption.startswith("Training loss over seconds")
    assert "which the median epoch of the table leaves out" in charts["seconds"].caption


def test_a_budget_that_two_have_is_one_line() -> None:
    memory = _charts(run("a"), WIDE)["memory"]
    assert len(drawn(memory, "level")) == 2  # with that of the legend


def test_runs_of_an_earlier_version_are_named_where_they_recorded_nothing() -> None:
    old = run("old", epoch(1, wait_s=None, parts=(), memory_bytes=()), settings={"cache": "1 MB"})
    charts = _charts(run("a"), old)
    for name in ("memory", "seconds"):
        assert charts[name].caption.endswith("Not recorded, by an earlier version: old.")
    assert set(_charts(old)) == {"loss", "loss-seconds", "acc", "acc-seconds", "bytes", "rows"}
    assert epoch_parts(old) is None


def test_what_was_written_is_a_dotted_line_and_nothing_moved_is_no_chart() -> None:
    moved = _charts(run("a", epoch(1, bytes_written=5), epoch(2)))["bytes"]
    assert "written" in moved.caption
    assert len(lines(moved, 0, is_dotted=True)) == 1
    in_memory = [epoch(number, bytes_read=0, hit_rate=1.0) for number in (1, 2)]
    assert {"bytes", "rows"} & set(_charts(run("a", *in_memory))) == set()


def test_a_run_without_an_epoch_or_that_diverged_is_no_error() -> None:
    assert charts_of(grouped([replace(run("a"), epochs=())])) == []
    charts = _charts(run("a", epoch(1), epoch(2, loss=float("nan"))))
    assert told(charts["loss"]) == ["a, 1: 1"]


@pytest.mark.parametrize(("count", "columns"), [(3, 3), (100, 34)])
def test_the_seconds_of_each_epoch_are_a_column_and_of_many_a_mean(count: int, columns: int) -> None:
    chart = epoch_parts(run("a", *(epoch(number) for number in range(1, count + 1))))
    assert chart is not None
    assert len(drawn(chart, "f0")) == columns + 1  # with that of the legend
    assert told(chart)[:2] == ["epoch 1, the model's step: 1 s", "epoch 1, waiting for the SSD: 500 ms"]
    assert ("means of 3" in chart.caption) == (count == 100)
