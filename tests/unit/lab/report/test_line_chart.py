from __future__ import annotations

import math

from training_runs import drawn, lines, texts, told

from gloader.lab.report.svg import Chart, Level, Series, draw_lines


def _draw(*series: Series, **options: object) -> Chart:
    chart = draw_lines("a", "b", series, x=("epoch", "zero"), **options)  # type: ignore[arg-type]
    assert chart is not None
    return chart


def _series(*values: float, label: str = "run", style: int = 0, **options: object) -> Series:
    points = list(enumerate(values, 1))
    return Series(label=label, style=style, points=points, **options)  # type: ignore[arg-type]


def test_lines_share_their_axes() -> None:
    chart = _draw(_series(1, 3), _series(2, 2, label="other", style=1))
    ((_, low), (_, high)), ((_, middle), (_, same)) = (*lines(chart, 0), *lines(chart, 1))
    assert low > middle > high  # from the top
    assert middle == same == (low + high) / 2
    assert {"run", "other", "epoch"} <= set(texts(chart))


def test_marks_say_their_values() -> None:
    assert told(_draw(_series(0.25, 0.5), written="{:.0%}".format)) == ["run, 1: 25%", "run, 2: 50%"]
    assert told(_draw(_series(0.25, 0.5, is_dotted=True))) == []
    assert len(told(_draw(_series(*range(100))))) <= 12


def test_what_cannot_be_drawn_is_left_out_and_nothing_is_no_chart() -> None:
    ((first, last),) = lines(_draw(_series(1, math.nan, 1e300, 2)), 0)
    assert first[1] > last[1]
    assert draw_lines("a", "b", [_series(math.nan)]) is None
    assert draw_lines("a", "b", [], levels=[Level(label="l", style=0, value=1)]) is None


def test_a_long_line_keeps_its_ends() -> None:
    values = [1.0, *[0.5] * 9_998, 0.0]
    (points,) = lines(_draw(_series(*values, has_marks=False)), 0)
    assert len(points) <= 402
    heights = [y for _, y in points]
    assert heights[0] < heights[1] == heights[-2] < heights[-1]


def test_a_band_is_as_high_as_the_spread_and_lies_inside_the_axis() -> None:
    chart = _draw(_series(1.0, 2.0, spread=[0.0, 0.5]))
    (band,) = drawn(chart, "band")
    heights = [float(pair.split(",")[1]) for pair in band["points"].split()]
    ((_, at_one), (_, at_two)) = lines(chart, 0)[0]
    per_unit = at_one - at_two
    assert heights[0] == heights[-1] == at_one
    assert abs((heights[2] - heights[1]) - per_unit) < 0.2
    assert min(heights) > 0


def test_a_level_is_in_the_legend_and_on_the_axis() -> None:
    chart = _draw(_series(1, 2), levels=[Level(label="budget 4", style=1, value=4)])
    swatch, line = drawn(chart, "level")
    assert "budget 4" in texts(chart)
    assert line["y1"] == line["y2"]
    assert float(swatch["y1"]) + 10 < float(line["y1"]) < min(y for _, y in lines(chart, 0)[0])  # above both


def test_an_upright_level_is_in_the_legend_and_within_the_axis() -> None:
    chart = _draw(_series(1, 2), uprights=[Level(label="knee", style=1, value=5)])
    _, line = drawn(chart, "level")
    assert "knee" in texts(chart)
    assert line["x1"] == line["x2"]
    assert float(line["x1"]) > max(x for x, _ in lines(chart, 0)[0])


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors() -> None:
    series = Series(label="run", style=0, points=[(1, 1), (10, 10), (100, 1000), (0, 1), (1, -1)])
    chart = draw_lines("a", "b", [series], x=("batches", "log"), y="log")
    assert chart is not None
    ((first, second, third),) = lines(chart, 0)  # what has no logarithm is left out
    assert abs((second[0] - first[0]) - (third[0] - second[0])) < 0.2
    assert abs(2 * (first[1] - second[1]) - (second[1] - third[1])) < 0.3
    assert {"1", "10", "100", "1000"} <= set(texts(chart))


def test_points_have_their_names_and_no_line() -> None:
    chart = _draw(_series(*range(20), names=[f"n{i}" for i in range(20)]))
    assert lines(chart, 0) == []
    assert len(told(chart)) == 20
    assert {"n0", "n19"} <= set(texts(chart))
    close = Series(label="", style=0, points=[(1, 1), (1, 1.0001), (9, 9)], names=["a", "b", "c"])
    assert {"a, b", "c"} <= set(texts(_draw(close)))
