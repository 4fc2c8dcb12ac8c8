"""Charts of counted cells: a matrix of classes, and predicted against true values. Pure.

A cell is a rectangle whose opacity grows with its count; an empty cell is not drawn. The rectangles are SVG elements
like those of `gloader.lab.report.svg`, which has the axes, the text and the colours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.lab.report.svg import (
    BOTTOM,
    LEFT,
    LINE,
    RIGHT,
    WIDTH,
    axis_below,
    can_be_drawn,
    chart_of,
    fit_axis,
    grid_lines,
    safe,
    shortened,
    straight,
    text_at,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.lab.report.svg import Chart

# Sizes in pixels.
_WIDE: Final = 1000  # width of a chart with many classes
_LABELS: Final = 220  # width for the names of the classes
_CELL: Final = 40  # largest side of a cell
_LEAST_NUMBERED: Final = 26  # smallest side of a cell with room for its share
_SQUARE: Final = 320  # height of a plot of values
_MOST_NARROW: Final = 10  # most classes in a chart of normal width
_FAINTEST: Final = 0.06  # opacity of a cell with the smallest count, which can still be seen


def draw_matrix(
    name: str, caption: str, names: Sequence[str], counts: Sequence[Sequence[int]]
) -> Chart | None:
    """Return a chart of a square matrix, shaded by the share of each row. None without counts.

    Parameters
    ----------
    name, caption : the chart's name and caption
    names : names of the rows and of the columns
    counts : for each row the counts of its columns
    """
    if not names or not any(map(any, counts)):
        return None
    width = WIDTH if len(names) <= _MOST_NARROW else _WIDE
    side = min((width - _LABELS - RIGHT) / len(names), _CELL)
    top = LINE + 6
    body = [text_at(_LABELS - 8, top - 8, "true", anchor="end"), text_at(_LABELS, top - 8, "predicted")]
    bottom = top + side * len(names)
    for row, (label, line) in enumerate(zip(names, counts, strict=True)):
        above, total = top + row * side, sum(line)
        # A column has room for the number of its class alone, so a row begins with it.
        numbered = label if label == str(row) else f"{row} {label}"
        body.append(text_at(_LABELS - 8, above + side / 2 + 4, shortened(numbered), anchor="end"))
        body.append(text_at(_LABELS + (row + 0.5) * side, bottom + 16, str(row), anchor="middle"))
        for column, count in enumerate(line):
            if count:
                left, share = _LABELS + column * side, count / total
                told = f"true {label}, predicted {names[column]}: {count:,} ({share:.1%})"
                body.append(_cell(left, above, side, side, share, told, style=0 if row == column else 1))
                if side >= _LEAST_NUMBERED:
                    body.append(
                        text_at(left + side / 2, above + side / 2 + 4, f"{share:.0%}", anchor="middle")
                    )
    return chart_of(name, caption, body, height=bottom + BOTTOM, width=width)


def draw_grid(
    name: str,
    caption: str,
    counts: Sequence[Sequence[int]],
    *,
    low: float,
    high: float,
    labels: tuple[str, str],
) -> Chart | None:
    """Return a chart of two values in cells, with a line where both are equal. None if it cannot be drawn.

    Parameters
    ----------
    name, caption : the chart's name and caption
    counts : for each cell of the horizontal value, from ``low`` on, the counts over the vertical one
    low, high : the range of both values
    labels : labels of the horizontal and of the vertical value
    """
    most = max((count for column in counts for count in column), default=0)
    if most == 0 or not can_be_drawn(low) or not can_be_drawn(high) or low >= high:
        return None
    top = LINE + 6
    bottom = top + _SQUARE
    x = fit_axis([low, high], start=LEFT, end=WIDTH - RIGHT, most_ticks=6, written="{:.4g}".format)
    y = fit_axis([low, high], start=bottom, end=top, most_ticks=6, written="{:.4g}".format)
    body = [text_at(LEFT, top - 8, labels[1]), *grid_lines(y), *axis_below(x, bottom, labels[0])]
    step = (high - low) / len(counts)
    for across, column in enumerate(counts):
        left, right = (x.place(low + (across + side) * step) for side in (0, 1))
        for up, count in enumerate(column):
            if count:
                lower, upper = (y.place(low + (up + side) * step) for side in (0, 1))
                places = (low + (each + 0.5) * step for each in (across, up))
                words = (f"{label} {place:.4g}" for label, place in zip(labels, places, strict=True))
                told = f"{', '.join(words)}: {count:,}"
                # Counts differ by powers of ten. The root shows the small ones too.
                share = (count / most) ** 0.5
                body.append(_cell(left, upper, right - left, lower - upper, share, told, style=0))
    body.append(straight("level s1", x.place(low), y.place(low), x.place(high), y.place(high)))
    return chart_of(name, caption, body, height=bottom + BOTTOM)


def _cell(
    left: float, above: float, width: float, height: float, share: float, told: str, *, style: int
) -> str:
    """Return a rectangle with an opacity that grows with ``share``, 0 to 1, and text that appears under the pointer."""
    opacity = _FAINTEST + (1 - _FAINTEST) * share
    return (
        f'<rect class="f{style}" fill-opacity="{opacity:.2f}" x="{left:.1f}" y="{above:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}"><title>{safe(told)}</title></rect>'
    )
