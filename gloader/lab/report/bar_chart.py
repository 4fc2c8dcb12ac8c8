"""Charts of bars and columns, each of the same parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.core.units import format_exact_seconds
from gloader.lab.report.axis import Axis, can_be_drawn, fit_axis
from gloader.lab.report.svg import (
    BOTTOM,
    LEFT,
    LINE,
    PLOT_HEIGHT,
    RIGHT,
    WIDTH,
    Chart,
    axis_below,
    chart_of,
    grid_lines,
    legend_of,
    safe,
    shortened,
    straight,
    text_at,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BAR: Final = 16
_LEAST_SHARE: Final = 0.003  # of the longest bar: one pixel or two


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of parts, one behind the other."""

    label: str
    parts: Sequence[float]


def draw_bars(
    name: str, caption: str, parts: Sequence[tuple[str, int]], bars: Sequence[Bar], *, x_label: str
) -> Chart | None:
    """Return bars below each other, each of the same parts; None where they are empty.

    Parameters
    ----------
    name, caption : of the chart
    parts : names of the parts, and their styles; those too short to be seen in any bar are left out
    bars : of one part each for every name
    x_label : what their lengths are
    """
    shown = _shown(bars)
    if not shown:
        return None
    legend, top = legend_of([(parts[i][0], _swatch_part(parts[i][1])) for i in shown])
    bottom = top + len(bars) * (_BAR + LINE + 4) + 4
    x = fit_axis(
        [sum(bar.parts) for bar in bars], start=RIGHT, end=WIDTH - 5 * RIGHT, from_zero=True, most_ticks=6
    )
    body = [*axis_below(x, bottom, "{:g}".format, x_label)]
    body += [straight("grid", x.place(tick), top, x.place(tick), bottom) for tick in x.ticks]
    for place, bar in enumerate(bars):
        above = top + place * (_BAR + LINE + 4) + LINE
        # Above its bar: beside it, a long name would leave the bar no room on a narrow screen.
        body.append(text_at(RIGHT, above - 5, shortened(bar.label)))
        left = 0.0
        for i in shown:
            told = f"{bar.label}, {parts[i][0]}: {format_exact_seconds(bar.parts[i])}"
            body.append(_part(x, left, bar.parts[i], above, parts[i][1], told))
            left += bar.parts[i]
        body.append(text_at(x.place(left) + 5, above + _BAR - 4, format_exact_seconds(sum(bar.parts))))
    return chart_of(name, caption, [*legend, *body], height=bottom + BOTTOM)


def draw_columns(
    name: str, caption: str, parts: Sequence[tuple[str, int]], bars: Sequence[Bar], *, x_label: str
) -> Chart | None:
    """Return columns beside each other; parameters as of `draw_bars`, of which this is the upright form."""
    shown = _shown(bars)
    if not shown:
        return None
    legend, top = legend_of([(parts[i][0], _swatch_part(parts[i][1])) for i in shown])
    bottom = top + PLOT_HEIGHT
    y = fit_axis([sum(bar.parts) for bar in bars], start=bottom, end=top + 6, from_zero=True)
    step = (WIDTH - LEFT - RIGHT) / len(bars)
    width = min(0.8 * step, 60.0)
    every = -(-len(bars) // 12)
    body = [*grid_lines(y, "{:g}".format), text_at((WIDTH + LEFT) / 2, bottom + 34, x_label, anchor="middle")]
    for place, bar in enumerate(bars):
        middle, below = LEFT + (place + 0.5) * step, 0.0
        for i in shown:
            height = y.place(below) - y.place(below + bar.parts[i])
            told = f"{x_label} {bar.label}, {parts[i][0]}: {format_exact_seconds(bar.parts[i])}"
            if height > 0:
                body.append(
                    f'<rect class="part f{parts[i][1]}" x="{middle - width / 2:.1f}" '
                    f'y="{y.place(below + bar.parts[i]):.1f}" width="{width:.1f}" height="{height:.1f}">'
                    f"<title>{safe(told)}</title></rect>"
                )
            below += bar.parts[i]
        if place % every == 0:
            body.append(text_at(middle, bottom + 16, bar.label, anchor="middle"))
    return chart_of(name, caption, [*legend, *body], height=bottom + BOTTOM)


def _shown(bars: Sequence[Bar]) -> list[int]:
    """Return which parts are drawn: those that can be seen; none where a bar has no place on an axis."""
    if not bars or not all(can_be_drawn(part) for bar in bars for part in bar.parts):
        return []
    least = _LEAST_SHARE * max(sum(bar.parts) for bar in bars)
    return [i for i, parts in enumerate(zip(*(bar.parts for bar in bars), strict=True)) if max(parts) > least]


def _part(x: Axis, left: float, length: float, top: float, style: int, told: str) -> str:
    start, end = x.place(left), x.place(left + length)
    if end <= start:
        return ""
    return (
        f'<rect class="part f{style}" x="{start:.1f}" y="{top:.1f}" width="{end - start:.1f}" height="{_BAR}">'
        f"<title>{safe(told)}</title></rect>"
    )


def _swatch_part(style: int) -> Callable[[float, float], str]:
    return lambda x, y: f'<rect class="f{style}" x="{x + 10:.1f}" y="{y - 6:.1f}" width="14" height="12"/>'
