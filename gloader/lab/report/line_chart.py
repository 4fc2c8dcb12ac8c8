"""Charts of lines: the course of runs, over each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.lab.report.axis import Axis, can_be_drawn, fit_axis
from gloader.lab.report.svg import (
    BOTTOM,
    LEFT,
    PLOT_HEIGHT,
    RIGHT,
    WIDTH,
    Chart,
    axis_below,
    chart_of,
    grid_lines,
    joined,
    legend_of,
    mark,
    safe,
    straight,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MOST_MARKS: Final = 12
_MOST_POINTS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line."""

    label: str  # in the legend; empty: it is not there
    style: int
    points: Sequence[tuple[float, float]]
    spread: Sequence[float] = ()  # to either side of each point
    is_dotted: bool = False
    has_marks: bool = True  # that say their values where the pointer rests on them; a dotted line has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A dashed line across the chart."""

    label: str
    style: int
    value: float


def draw_lines(
    name: str,
    caption: str,
    series: Sequence[Series],
    *,
    x_label: str,
    levels: Sequence[Level] = (),
    from_zero: bool = False,
    is_whole_x: bool = False,
    written: Callable[[float], str] = "{:g}".format,
) -> Chart | None:
    """Return lines over a common axis; None where none of them has a point to draw.

    Parameters
    ----------
    name, caption : of the chart
    series : the lines
    x_label : what they are over
    levels : lines across
    from_zero : the vertical axis begins at 0
    is_whole_x : the horizontal axis counts, as epochs are counted
    written : a value on the vertical axis as text
    """
    drawn = [kept for each in series if (kept := _kept(each)).points]
    if not drawn:
        return None
    labels = [(each.label, _swatch_line(each)) for each in drawn if each.label]
    labels += [(each.label, _swatch_level(each)) for each in levels]
    legend, top = legend_of(labels)
    bottom = top + PLOT_HEIGHT
    x = fit_axis(
        [point[0] for each in drawn for point in each.points],
        start=LEFT + 8,
        end=WIDTH - RIGHT - 8,
        from_zero=not is_whole_x,
        is_whole=is_whole_x,
        most_ticks=8,
    )
    edges = [value for each in drawn for _, low, high in _bounds(each) for value in (low, high)]
    edges += [level.value for level in levels]
    y = fit_axis(edges, start=bottom, end=top + 6, from_zero=from_zero)
    body = [
        *grid_lines(y, written),
        *axis_below(x, bottom, "{:g}".format, x_label),
        *(_level(each, y) for each in levels),
        *(text for each in drawn for text in _line(each, x, y, written=written)),
    ]
    return chart_of(name, caption, [*legend, *body], height=bottom + BOTTOM)


def _kept(series: Series) -> Series:
    """Return what can be drawn of a line, and of a long one not more than there are pixels."""
    spread = series.spread or [0.0] * len(series.points)
    kept = [
        (point, width)
        for point, width in zip(series.points, spread, strict=True)
        if all(map(can_be_drawn, (*point, width)))
    ]
    if len(kept) > _MOST_POINTS:
        every = -(-len(kept) // _MOST_POINTS)
        kept = [*kept[:-1:every], kept[-1]]
    return Series(
        label=series.label,
        style=series.style,
        points=[point for point, _ in kept],
        spread=[width for _, width in kept] if series.spread else (),
        is_dotted=series.is_dotted,
        has_marks=series.has_marks,
    )


def _bounds(series: Series) -> list[tuple[float, float, float]]:
    spread = series.spread or [0.0] * len(series.points)
    return [(x, y - width, y + width) for (x, y), width in zip(series.points, spread, strict=True)]


def _line(series: Series, x: Axis, y: Axis, *, written: Callable[[float], str]) -> list[str]:
    places = [(x.place(across), y.place(up)) for across, up in series.points]
    parts = []
    if series.spread:
        bounds = _bounds(series)
        outline = [(x.place(across), y.place(high)) for across, _, high in bounds]
        outline += [(x.place(across), y.place(low)) for across, low, _ in reversed(bounds)]
        parts.append(f'<polygon class="band f{series.style}" points="{joined(outline)}"/>')
    dots = " dots" if series.is_dotted else ""
    parts.append(f'<polyline class="line s{series.style}{dots}" points="{joined(places)}"/>')
    if series.has_marks and not series.is_dotted:
        every = -(-len(places) // _MOST_MARKS)
        for place, (across, up) in list(zip(places, series.points, strict=True))[::every]:
            told = f"{series.label}, {across:.4g}: {written(up)}"
            parts.append(mark(series.style, *place, title=f"<title>{safe(told)}</title>"))
    return parts


def _level(level: Level, y: Axis) -> str:
    place = y.place(level.value)
    return straight(f"level s{level.style}", LEFT, place, WIDTH - RIGHT, place)


def _swatch_line(series: Series) -> Callable[[float, float], str]:
    dots = " dots" if series.is_dotted else ""

    def draw(x: float, y: float) -> str:
        stroke = straight(f"line s{series.style}{dots}", x, y, x + 24, y)
        return stroke if series.is_dotted or not series.has_marks else stroke + mark(series.style, x + 12, y)

    return draw


def _swatch_level(level: Level) -> Callable[[float, float], str]:
    return lambda x, y: straight(f"level s{level.style}", x, y, x + 24, y)
