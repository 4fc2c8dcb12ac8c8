"""The chart of a trace."""

import json
from pathlib import Path
from typing import Any

import pytest
from training_runs import drawn, texts

from gloader.errors import ConfigError
from gloader.lab.report.svg import Chart, Lanes, LaneSpan, draw_lanes
from gloader.lab.report.timeline_picture import draw_timeline
from gloader.observe.epoch_stats import WORK_NAMES
from gloader.observe.timeline import TimelineRecorder
from gloader.types import BatchId

S = 10**9


def written(timeline: TimelineRecorder, folder: Path) -> dict[str, Any]:
    timeline.write(folder / "trace.json")
    return json.loads((folder / "trace.json").read_text())


@pytest.fixture
def trace(tmp_path: Path) -> dict[str, Any]:
    timeline = TimelineRecorder()
    for epoch in (0, 1):
        for place, stage in enumerate(WORK_NAMES):
            for index in range(3):
                begin = (epoch * 20 + place + index) * S
                timeline.record(stage, BatchId(epoch=epoch, index=index), 1, begin, begin + S)
    return written(timeline, tmp_path)


def chart_of(values: dict[str, Any], epoch: int) -> Chart:
    chart = draw_timeline("n", "c", values, epoch=epoch)
    assert chart is not None
    return chart


def spans(chart: Chart) -> list[dict[str, str]]:
    return drawn(chart, "part")


def test_it_holds_one_epoch_from_its_first_work_on(trace: dict[str, Any]) -> None:
    found = spans(chart_of(trace, 1))
    assert len(found) == 3 * len(WORK_NAMES)
    lefts, widths = ([float(span[side]) for span in found] for side in ("x", "width"))
    assert max(lefts) - min(lefts) == pytest.approx((len(WORK_NAMES) + 1) * widths[0], rel=0.01)
    assert [text for text in texts(chart_of(trace, 1)) if text in WORK_NAMES] == list(WORK_NAMES)


def test_superbatches_alternate_in_shade(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    for index in range(4):
        batch = BatchId(epoch=0, index=index)
        timeline.record("sample", batch, 1, index * S, (index + 1) * S)
        timeline.record("read", batch, 1, (5 + index) * S, (6 + index) * S, notes={"superbatch": index // 2})
    timeline.record("stage", BatchId(epoch=0, index=2), 2, 4 * S, 5 * S, notes={"superbatch": 1})
    found = spans(chart_of(written(timeline, tmp_path), 0))
    is_pale = {name: [] for name in ("sample", "stage", "read")}
    for span in found:
        style, *pale = span["class"].removeprefix("part f").split()
        is_pale[WORK_NAMES[int(style)]].append(bool(pale))
    assert is_pale == {
        "sample": [False, False, True, True],
        "stage": [True],
        "read": [False, False, True, True],
    }


def test_rows_follow_the_stages_and_number_their_threads() -> None:
    events = [
        {"ph": "X", "cat": "stage", "name": n, "tid": t, "ts": 0, "dur": 5, "args": {"epoch": 0, "batch": 0}}
        for n, t in [("gather", 1), ("sample", 3), ("sample", 2), ("gather", 1)]
    ]
    shown = texts(chart_of({"traceEvents": events}, 0))
    assert shown[:3] == ["sample 1", "sample 2", "gather"]


def test_an_epoch_without_work_is_refused(trace: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"the timeline holds no work of epoch 7; choose another"):
        draw_timeline("n", "c", trace, epoch=7)


def test_lanes_stand_in_groups_over_one_axis() -> None:
    early, late = LaneSpan(0.0, 1.0, "f0", "a"), LaneSpan(3.0, 4.0, "f1", "b")
    groups = [Lanes(title="above", lanes=[("x", [early])]), Lanes(title="below", lanes=[("x", [late])])]
    chart = draw_lanes("n", "c", groups, x_label="seconds", parts=[("one", 0)])
    assert chart is not None
    first, second = spans(chart)
    assert float(second["x"]) == pytest.approx(float(first["x"]) + 3 * float(first["width"]), abs=0.3)
    assert float(second["y"]) > float(first["y"]) + float(first["height"])
    assert chart.is_wide
    assert draw_lanes("n", "c", [Lanes(title="", lanes=[("x", [])])], x_label="seconds") is None
    never = LaneSpan(0.0, float("nan"), "f0")
    assert draw_lanes("n", "c", [Lanes(title="", lanes=[("x", [never])])], x_label="seconds") is None
