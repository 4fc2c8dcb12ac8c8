from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from training_runs import drawn, texts, told

from gloader.lab.report.svg import Bar, Chart, Level, draw_bars, draw_columns

PARTS = [("compute", 0), ("wait", 1), ("rest", 2)]
BARS = [Bar(label="a", parts=(1.0, 3.0, 0.0)), Bar(label="b", parts=(2.0, 0.0, 0.0001))]
both = pytest.mark.parametrize("draw", [draw_bars, draw_columns])
Draw = Callable[..., Chart | None]


def _chart(draw: Draw, bars: list[Bar] = BARS) -> Chart:
    chart = draw("n", "c", PARTS, bars, x_label="epoch")
    assert chart is not None
    return chart


@both
def test_parts_are_as_long_as_what_they_stand_for_and_touch(draw: Draw) -> None:
    chart = _chart(draw)
    side, start = ("width", "x") if draw is draw_bars else ("height", "y")
    compute, other = drawn(chart, "f0")[1:]  # behind the one of the legend
    (wait,) = drawn(chart, "f1")[1:]
    assert float(wait[side]) == pytest.approx(3 * float(compute[side]), abs=0.3)
    assert float(other[side]) == pytest.approx(2 * float(compute[side]), abs=0.3)
    near, far = (compute, wait) if draw is draw_bars else (wait, compute)
    assert float(far[start]) == pytest.approx(float(near[start]) + float(near[side]), abs=0.2)


@both
def test_parts_that_nobody_would_see_are_in_no_legend(draw: Draw) -> None:
    assert {"compute", "wait", "a", "b"} <= set(texts(_chart(draw)))
    assert "rest" not in texts(_chart(draw))


@both
def test_what_cannot_be_drawn_is_no_chart(draw: Draw) -> None:
    assert draw("n", "c", PARTS, [], x_label="epoch") is None
    assert draw("n", "c", PARTS, [Bar(label="a", parts=(0.0, 0.0, 0.0))], x_label="epoch") is None
    for wrong in (math.nan, math.inf, 1e200):
        assert draw("n", "c", PARTS, [Bar(label="a", parts=(wrong, 1.0, 0.0))], x_label="epoch") is None


def test_bars_say_their_sums_and_their_parts() -> None:
    chart = _chart(draw_bars)
    assert {"4 s", "2 s"} <= set(texts(chart))
    assert told(chart) == ["a, compute: 1 s", "a, wait: 3 s", "b, compute: 2 s"]
    assert told(_chart(draw_columns))[0] == "epoch a, compute: 1 s"


def test_of_many_columns_some_have_their_number() -> None:
    bars = [Bar(label=f"n{number}", parts=(1.0, 0.0, 0.0)) for number in range(40)]
    shown = [text for text in texts(_chart(draw_columns, bars)) if text.startswith("n")]
    assert shown[:2] == ["n0", "n4"]
    assert len(shown) == 10


def test_a_bar_may_have_a_text_of_its_own_and_a_level_crosses_all() -> None:
    bars = [Bar(label="a", parts=(1.0, 0.0, 0.0), end="faster"), Bar(label="b", parts=(3.0, 0.0, 0.0))]
    chart = draw_bars("n", "c", PARTS, bars, x_label="x", levels=[Level(label="floor", style=4, value=6.0)],
                      written="{:.2f}".format)  # fmt: skip
    assert chart is not None
    assert {"faster", "3.00", "floor"} <= set(texts(chart))
    _, line = drawn(chart, "level")
    ends = [float(bar["x"]) + float(bar["width"]) for bar in drawn(chart, "part")]
    assert float(line["x1"]) > max(ends)
    assert float(line["y2"]) > max(float(bar["y"]) for bar in drawn(chart, "part"))
