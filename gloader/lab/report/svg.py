"""Charts as SVG text in a page: lines, points, bars, columns, and lanes with work over time. Pure.

The other modules of `gloader.lab.report` call `draw_bars`, `draw_columns`, `draw_lanes` or `draw_lines`, and get a
`Chart`. Each of these functions draws the legend, then the axes, then the data. SVG charts are sharp in print, take the
reader's screen colours, and need no script.

- An `Axis` maps values to pixels. Pixels of SVG count from the top, so a vertical axis ends above its start.
- A style is a number from 0 to `NUM_STYLES` that stands for a colour and a mark. The last one is the grid's grey.
- A part is one coloured section of each bar. The parts of a bar lie end to end.
- A swatch is a legend entry's sample of a style.
- A drawing is a list of SVG elements, each as text. The classes of an element, such as "f0", choose its `RULES`.
- A `Level` is a dashed line at one value of an axis.
- A lane is a row with the work of one thread over time, and a `Span` is one piece of this work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from gloader.core.malformed import printable_line
from gloader.core.units import format_exact_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

# An axis fits its values, starts at 0, has whole numbers such as epochs, or is logarithmic.
AxisKind: TypeAlias = Literal["fit", "zero", "whole", "log"]


_STEPS: Final = (1.0, 2.0, 5.0, 10.0)  # distances between ticks, times a power of 10
_MARGIN: Final = 0.05  # empty share of the range at each end of an axis
# Larger values, as in damaged files and diverged runs, are not drawn: their differences may overflow.
_MOST: Final = 1e100
# A smaller range is widened, because its step between ticks would round to 0.
_LEAST_RANGE: Final = 1e-100


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A range of values, mapped to a range of pixels."""

    low: float  # the least value, or its logarithm
    high: float  # the largest value, or its logarithm
    start: float  # pixel of ``low``
    end: float  # pixel of ``high``
    ticks: tuple[float, ...]  # values with a grid line and a label
    written: Callable[[float], str] = "{:g}".format  # returns a value as text
    is_log: bool = False  # whether ``low`` and ``high`` are decimal logarithms; ``ticks`` are values

    def place(self, value: float) -> float:
        """Return the pixel of ``value``."""
        value = math.log10(value) if self.is_log else value
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)


def can_be_drawn(value: float | None) -> bool:
    """Return True if ``value`` has a place on an axis. None, NaN and very large values have none."""
    return value is not None and abs(value) < _MOST


def fit_axis(
    values: Iterable[float],
    *,
    start: float,
    end: float,
    kind: AxisKind = "fit",
    most_ticks: int = 5,
    written: Callable[[float], str] = "{:g}".format,
) -> Axis:
    """Return the axis for ``values``, all of which `can_be_drawn`. A logarithmic axis needs values above 0.

    Parameters
    ----------
    values : the axis's values; 0 to 1 if empty
    start, end : pixels at the axis's ends
    kind : the axis's kind
    most_ticks : upper bound for the ticks
    written : returns a value as text
    """
    is_log, is_whole, from_zero = kind == "log", kind == "whole", kind == "zero"
    scaled = [math.log10(value) if is_log else value for value in values] or [0.0, 1.0]
    low, high = min(scaled), max(scaled)
    margin = 0.0 if is_whole else _MARGIN * (high - low)
    low, high = (0.0 if from_zero else low - margin), high + margin
    if high - low < _LEAST_RANGE:  # all values are alike
        half_range = max(abs(low), 1.0) * _MARGIN
        low, high = (0.0 if from_zero else low - half_range), high + half_range
    step = _step((high - low) / most_ticks)
    if is_whole:
        step = max(step, 1.0)
    first, last = math.ceil(low / step), math.floor(high / step)
    # The upper bound matters only if rounding has made the step far too small.
    ticks = tuple(number * step for number in range(first, min(last, first + 2 * most_ticks) + 1))
    return Axis(
        low=low,
        high=high,
        start=start,
        end=end,
        ticks=tuple(10**tick for tick in ticks) if is_log else ticks,
        written=written,
        is_log=is_log,
    )


def _step(least: float) -> float:
    """Return the least number among 1, 2, 5, 10, 20, ... that is not below ``least``."""
    magnitude = 10.0 ** math.floor(math.log10(least))
    # The tolerance accepts a step that is below ``least`` only by rounding.
    return next(step * magnitude for step in _STEPS if step * magnitude >= least * (1 - 1e-9))


# The colours are from M. Okabe and K. Ito, "Color Universal Design", 2008, except the last two. The last two replace
# yellow and black, which would vanish on a white or black page. The colours for dark screens are lighter.
_LIGHT: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5c3e", "#777777")
_DARK: Final = ("#4ba3d9", "#f0803c", "#2fc79a", "#e0a3c6", "#f0b840", "#8fd0f5", "#b8977a", "#a8a8a8")
NUM_STYLES: Final = len(_LIGHT)  # number of colours
# Each style has its own mark, for readers and printers without colours.
_MARKS: Final = ("circle", "square", "diamond", "triangle", "cross", "ring", "bar", "frame")

# Sizes in pixels. Small numbers in the functions below are also pixels: they place text next to a line or a mark.
WIDTH: Final = 520  # a chart's width
PLOT_HEIGHT: Final = 220  # height of the plot, without legend, axis and labels
LEFT, RIGHT, BOTTOM, _TOP = 64, 14, 42, 8  # margins around the plot
_CHARACTER: Final = 6.6  # a character's approximate width
LINE: Final = 18  # distance between two lines of text
SWATCH: Final = 30  # width for a legend entry's sample of the style
# Sizes in characters.
_MOST_CHARACTERS: Final = 34  # longest label; longer labels are cut
_HEAD: Final = 9  # characters that a cut label keeps before the cut


def _variables(colors: Sequence[str], *, text: str, grid: str, paper: str) -> str:
    """Return CSS variables for the colours of the styles, the text, the grid and the background."""
    styles = "".join(f"--s{number}:{color};" for number, color in enumerate(colors))
    return f"{styles}--text:{text};--grid:{grid};--paper:{paper}"


LIGHT: Final = _variables(_LIGHT, text="#333", grid="#ddd", paper="#fff")
DARK: Final = _variables(_DARK, text="#ccc", grid="#444", paper="#17191c")
# A separate chart file contains these rules. A page contains them once for all charts.
# Class "s0" draws an element's outline in the colour of style 0, and class "f0" fills its area.
RULES: Final = "\n".join(
    [
        "svg.chart text{font:12px system-ui,sans-serif;fill:var(--text)}",
        "svg.chart .grid{stroke:var(--grid);stroke-width:1}",
        "svg.chart .axis{stroke:var(--text);stroke-width:1}",
        "svg.chart .line{fill:none;stroke-width:2;stroke-linejoin:round}",
        "svg.chart .dots{stroke-dasharray:2 4}",
        "svg.chart .level{stroke-dasharray:8 4;stroke-width:1.5}",
        "svg.chart .band{opacity:.18;stroke:none}",
        "svg.chart .part{stroke:var(--paper);stroke-width:1}",
        "svg.chart .pale{opacity:.5}",
        *(
            f"svg.chart .s{number}{{stroke:var(--s{number})}}svg.chart .f{number}{{fill:var(--s{number})}}"
            for number in range(NUM_STYLES)
        ),
        f"svg.chart .f{NUM_STYLES}{{fill:var(--grid)}}",  # a style in the grid's colour, for the background
        "svg.chart .hollow{fill:var(--paper);stroke-width:2}",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing with its caption."""

    name: str  # file name without ".svg"
    caption: str
    svg: str  # an svg element without style rules, for a page that has them
    is_wide: bool = False  # whether the chart takes the page's full width

    def as_file(self) -> bytes:
        """Return the chart as a separate file, on white paper."""
        head, _, rest = self.svg.partition(">")
        opening = f'{head} xmlns="http://www.w3.org/2000/svg">'
        style = f"<style>svg.chart{{{LIGHT};background:var(--paper)}}\n{RULES}</style>"
        return f"{opening}{style}{rest}".encode(errors="backslashreplace")


def mark(style: int, x: float, y: float, *, title: str = "") -> str:
    """Return a style's mark at (x, y). ``title`` is an SVG element with the text that appears under the pointer."""
    kind = _MARKS[style % NUM_STYLES]
    fill = f'class="f{style}"'
    hollow = f'class="s{style} hollow"'
    if kind in ("circle", "ring"):
        return f'<circle {fill if kind == "circle" else hollow} cx="{x:.1f}" cy="{y:.1f}" r="3.6">{title}</circle>'
    # Corners relative to (x, y), in pixels.
    shapes = {
        "square": ((-3.4, -3.4), (3.4, -3.4), (3.4, 3.4), (-3.4, 3.4)),
        "frame": ((-3.4, -3.4), (3.4, -3.4), (3.4, 3.4), (-3.4, 3.4)),
        "diamond": ((0, -5), (5, 0), (0, 5), (-5, 0)),
        "triangle": ((0, -5), (4.6, 3.6), (-4.6, 3.6)),
        "cross": ((-4.5, -1.5), (-1.5, -1.5), (-1.5, -4.5), (1.5, -4.5), (1.5, -1.5), (4.5, -1.5), (4.5, 1.5),
                  (1.5, 1.5), (1.5, 4.5), (-1.5, 4.5), (-1.5, 1.5), (-4.5, 1.5)),
        "bar": ((-1.6, -5), (1.6, -5), (1.6, 5), (-1.6, 5)),
    }  # fmt: skip
    outline = joined([(x + across, y + up) for across, up in shapes[kind]])
    return f'<polygon {hollow if kind == "frame" else fill} points="{outline}">{title}</polygon>'


def grid_lines(y: Axis) -> list[str]:
    """Return lines and values at a vertical axis's ticks."""
    parts = []
    for tick in y.ticks:
        place = y.place(tick)
        parts.append(straight("grid", LEFT, place, WIDTH - RIGHT, place))
        parts.append(text_at(LEFT - 7, place + 4, y.written(tick), anchor="end"))
    return parts


def axis_below(x: Axis, bottom: float, label: str, *, width: int = WIDTH) -> list[str]:
    """Return a horizontal axis at the pixel ``bottom``, with its values and label, in a chart of ``width`` pixels."""
    parts = [straight("axis", min(x.start, LEFT), bottom, width - RIGHT, bottom)]
    parts += [text_at(x.place(tick), bottom + 16, x.written(tick), anchor="middle") for tick in x.ticks]
    return [*parts, text_at((x.start + x.end) / 2, bottom + 34, label, anchor="middle")]


def legend_of(entries: Sequence[tuple[str, str]], *, width: int = WIDTH) -> tuple[list[str], float]:
    """Return the legend, with as many lines as it needs, and the top of the plot below it.

    Parameters
    ----------
    entries : each entry's label and swatch; the swatch is drawn at (0, 0)
    width : the chart's pixels
    """
    parts, left, line = [], 4.0, _TOP + 10.0  # left end of the next entry, and base line of its text
    for label, swatch in entries:
        needed = SWATCH + len(shortened(label)) * _CHARACTER + 14
        if left > 4 and left + needed > width:
            left, line = 4.0, line + LINE
        parts.append(f'<g transform="translate({left:.1f} {line - 4:.1f})">{swatch}</g>')
        parts.append(text_at(left + SWATCH, line, shortened(label)))
        left += needed
    return parts, line + 12


def chart_of(name: str, caption: str, parts: Sequence[str], *, height: float, width: int = WIDTH) -> Chart:
    """Return the chart with the SVG elements ``parts``. ``height`` and ``width`` are in pixels."""
    body = "\n".join(filter(None, parts))
    svg = (
        f'<svg class="chart" role="img" aria-label="{safe(caption)}" viewBox="0 0 {width} {height:.0f}">\n'
        f"{body}\n</svg>"
    )
    return Chart(name=name, caption=caption, svg=svg, is_wide=width > WIDTH)


def straight(style: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a straight line from (x1, y1) to (x2, y2). ``style`` is its CSS class."""
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text_at(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    """Return a text element. ``text`` may have any characters, because it may come from data."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{safe(text)}</text>'


def joined(places: Sequence[tuple[float, float]]) -> str:
    """Return pixel positions (x, y) in SVG's list form."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def shortened(text: str) -> str:
    """Return ``text``, shortened to fit. The end is kept, because run names often differ only at their ends."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_HEAD]}…{text[_HEAD + 1 - _MOST_CHARACTERS :]}"


def safe(text: str) -> str:
    """Return ``text`` as the content of an element or an attribute."""
    return escape(printable_line(text))


_BAR: Final = 16  # a bar's height, in pixels
_LEAST_SHARE: Final = 0.003  # share of the longest bar, one or two pixels; shorter parts are left out
_MOST_LABELS: Final = 12  # most labels below columns
_MOST_MARKS: Final = 12  # most marks on a line
_MOST_POINTS: Final = 400  # most points of a line
_NUM_CELLS: Final = 40  # cells along each axis; the names of points in the same cell would overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A dashed line across the chart, or up and down."""

    label: str  # text in the legend
    style: int
    value: float  # position on the axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar made of consecutive parts."""

    label: str
    parts: Sequence[float]  # length of each part, as a value of the axis
    end: str = ""  # text at the bar's end; empty means the sum of the parts


def draw_bars(
    name: str,
    caption: str,
    parts: Sequence[tuple[str, int]],
    bars: Sequence[Bar],
    *,
    x_label: str,
    levels: Sequence[Level] = (),
    written: Callable[[float], str] = format_exact_seconds,
) -> Chart | None:
    """Return a chart with bars below each other, each with the same parts. None if there is nothing to draw.

    Parameters
    ----------
    name, caption : the chart's name and caption
    parts : names and styles of the parts. A part that is too short in every bar is left out.
    bars : bars with one part for each name
    x_label : the label for the lengths
    levels : vertical lines
    written : returns a length as text
    """
    shown = _shown(bars)
    if not shown:
        return None
    legend, top = legend_of([*_legend_of_parts(parts, shown), *map(_legend_of_level, levels)])
    bottom = top + len(bars) * (_BAR + LINE + 4) + 4
    lengths = [sum(bar.parts) for bar in bars] + [level.value for level in levels]
    ends = [bar.end or written(sum(bar.parts)) for bar in bars]
    end_width = max(5 * RIGHT, _CHARACTER * max(map(len, ends)) + RIGHT)  # for the text at the bars' ends
    x = fit_axis(lengths, start=RIGHT, end=WIDTH - end_width, kind="zero", most_ticks=6)
    body = [*axis_below(x, bottom, x_label)]
    body += [straight("grid", x.place(tick), top, x.place(tick), bottom) for tick in x.ticks]
    for place, (bar, end_text) in enumerate(zip(bars, ends, strict=True)):
        above = top + place * (_BAR + LINE + 4) + LINE
        # The label is above its bar. At the side, a long name would leave no room for the bar on a narrow screen.
        body.append(text_at(RIGHT, above - 5, shortened(bar.label)))
        left = 0.0
        for i in shown:
            tooltip = f"{bar.label}, {parts[i][0]}: {written(bar.parts[i])}"
            start, end = x.place(left), x.place(left + bar.parts[i])
            body.append(_part(f"f{parts[i][1]}", start, above, end - start, _BAR, tooltip))
            left += bar.parts[i]
        body.append(text_at(x.place(left) + 5, above + _BAR - 4, end_text))
    body += [_upright(each, x, top, bottom) for each in levels]
    return chart_of(name, caption, [*legend, *body], height=bottom + BOTTOM)


def draw_columns(
    name: str, caption: str, parts: Sequence[tuple[str, int]], bars: Sequence[Bar], *, x_label: str
) -> Chart | None:
    """Return a chart with columns side by side, the upright form of `draw_bars` with the same parameters."""
    shown = _shown(bars)
    if not shown:
        return None
    legend, top = legend_of(_legend_of_parts(parts, shown))
    bottom = top + PLOT_HEIGHT
    y = fit_axis([sum(bar.parts) for bar in bars], start=bottom, end=top + 6, kind="zero")
    step = (WIDTH - LEFT - RIGHT) / len(bars)
    width = min(0.8 * step, 60.0)
    every = -(-len(bars) // _MOST_LABELS)
    body = [*grid_lines(y), text_at((WIDTH + LEFT) / 2, bottom + 34, x_label, anchor="middle")]
    for place, bar in enumerate(bars):
        middle, below = LEFT + (place + 0.5) * step, 0.0
        for i in shown:
            upper = y.place(below + bar.parts[i])
            tooltip = f"{x_label} {bar.label}, {parts[i][0]}: {format_exact_seconds(bar.parts[i])}"
            body.append(
                _part(f"f{parts[i][1]}", middle - width / 2, upper, width, y.place(below) - upper, tooltip)
            )
            below += bar.parts[i]
        if place % every == 0:
            body.append(text_at(middle, bottom + 16, bar.label, anchor="middle"))
    return chart_of(name, caption, [*legend, *body], height=bottom + BOTTOM)


def _shown(bars: Sequence[Bar]) -> list[int]:
    """Return the indices of the visible parts. The result is empty if a part's length cannot be drawn."""
    if not bars or not all(can_be_drawn(part) for bar in bars for part in bar.parts):
        return []
    least = _LEAST_SHARE * max(sum(bar.parts) for bar in bars)
    return [i for i, parts in enumerate(zip(*(bar.parts for bar in bars), strict=True)) if max(parts) > least]


def _part(style: str, x: float, y: float, width: float, height: float, tooltip: str) -> str:
    """Return a rectangle with the text that appears under the pointer, or "" without an area."""
    if width <= 0 or height <= 0:
        return ""
    return (
        f'<rect class="part {style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">'
        f"<title>{safe(tooltip)}</title></rect>"
    )


def _legend_of_parts(parts: Sequence[tuple[str, int]], shown: Iterable[int]) -> list[tuple[str, str]]:
    """Return the `legend_of` entries of the ``parts`` with the indices ``shown``: a coloured square for each."""
    return [
        (parts[i][0], f'<rect class="f{parts[i][1]}" x="10" y="-6" width="14" height="12"/>') for i in shown
    ]


def _legend_of_level(level: Level) -> tuple[str, str]:
    """Return a level's `legend_of` entry: a short dashed line."""
    return level.label, straight(f"level s{level.style}", 0, 0, 24, 0)


def _upright(level: Level, x: Axis, top: float, bottom: float) -> str:
    """Return a vertical dashed line."""
    return straight(f"level s{level.style}", x.place(level.value), top, x.place(level.value), bottom)


class LaneSpan(NamedTuple):
    """A piece of work in a lane."""

    started_s: float  # seconds on the horizontal axis
    ended_s: float  # seconds on the horizontal axis
    style: str  # the colour's class: "f0", or "f0 pale"
    told: str = ""  # tooltip, the text that appears under the pointer


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Lanes with work below each other, under a heading."""

    title: str  # the heading; empty means none
    lanes: Sequence[tuple[str, Sequence[LaneSpan]]]  # label and spans of each lane


# Sizes of a chart with lanes, in pixels.
_WIDE: Final = 1000  # width
_LANE: Final = 20  # height of a lane
_LABEL: Final = 110  # width for the labels of lanes


def draw_lanes(
    name: str, caption: str, groups: Sequence[Lanes], *, x_label: str, parts: Sequence[tuple[str, int]] = ()
) -> Chart | None:
    """Return a chart of lanes with work over seconds, in groups below each other. None if there is nothing to draw.

    Parameters
    ----------
    name, caption : the chart's name and caption
    groups : the lanes
    x_label : the horizontal axis's label
    parts : names and styles in the legend
    """
    spans = [span for group in groups for _, lane in group.lanes for span in lane]
    if not spans or not all(can_be_drawn(end) for span in spans for end in span[:2]):
        return None
    legend, top = legend_of(_legend_of_parts(parts, range(len(parts))), width=_WIDE) if parts else ([], _TOP)
    ends = [span.ended_s for span in spans]
    x = fit_axis(ends, start=_LABEL, end=_WIDE - 2 * RIGHT, kind="zero", most_ticks=10)
    body, above = [], top
    for group in groups:
        if group.title:
            body.append(text_at(4, above + _BAR, group.title))
            above += _LANE
        for label, lane in group.lanes:
            body.append(text_at(_LABEL - 8, above + _BAR - 2, shortened(label), anchor="end"))
            body += [
                _part(style, x.place(start), above + 2, x.place(end) - x.place(start), _BAR, told)
                for start, end, style, told in lane
            ]
            above += _LANE
    grid = [straight("grid", x.place(tick), top, x.place(tick), above) for tick in x.ticks]
    body = [*legend, *grid, *body, *axis_below(x, above, x_label, width=_WIDE)]
    return chart_of(name, caption, body, height=above + BOTTOM, width=_WIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line, or separate points."""

    label: str  # label in the legend; empty means no entry
    style: int
    points: Sequence[tuple[float, float]]  # (x, y) values
    spread: Sequence[float] = ()  # for each point: the band's extent above it and below it
    names: Sequence[str] = ()  # names of the points; points with names are drawn without a line
    is_dotted: bool = False  # whether the line is dotted; then it has no marks
    has_marks: bool = True  # a mark shows its value under the pointer


def draw_lines(
    name: str,
    caption: str,
    series: Sequence[Series],
    *,
    x: tuple[str, AxisKind] = ("epoch", "whole"),
    y: AxisKind = "fit",
    levels: Sequence[Level] = (),
    uprights: Sequence[Level] = (),
    written: Callable[[float], str] = "{:g}".format,
) -> Chart | None:
    """Return a chart with lines over a common axis. None if no line has a point to draw.

    Parameters
    ----------
    name, caption : the chart's name and caption
    series : the lines
    x : the horizontal axis's label and kind
    y : the vertical axis's kind
    levels, uprights : horizontal lines, and vertical lines
    written : returns a value on the vertical axis as text
    """
    drawn = [kept for each in series if (kept := _kept(each, x[1], y)).points]
    if not drawn:
        return None
    labels = [(each.label, _swatch_of_line(each)) for each in drawn if each.label]
    legend, top = legend_of([*labels, *map(_legend_of_level, (*levels, *uprights))])
    bottom = top + PLOT_HEIGHT
    across = fit_axis(
        [point[0] for each in drawn for point in each.points] + [each.value for each in uprights],
        start=LEFT + 8,
        end=WIDTH - RIGHT - 8,
        kind=x[1],
        most_ticks=8,
    )
    heights = [value for each in drawn for _, low, high in _bounds(each) for value in (low, high)]
    heights += [level.value for level in levels]
    up = fit_axis(heights, start=bottom, end=top + 6, kind=y, written=written)
    body = [
        *grid_lines(up),
        *axis_below(across, bottom, x[0]),
        *(_level(each, up) for each in levels),
        *(_upright(each, across, top, bottom) for each in uprights),
        *(text for each in drawn for text in _line(each, across, up)),
        *(text_at(*place, text) for each in drawn for text, place in _named(each, across, up)),
    ]
    return chart_of(name, caption, [*legend, *body], height=bottom + BOTTOM)


def _kept(series: Series, x: AxisKind, y: AxisKind) -> Series:
    """Return ``series`` with the points that can be drawn. A long line keeps about `_MOST_POINTS` of them."""
    spread = series.spread or [0.0] * len(series.points)
    names = series.names or [""] * len(series.points)
    kept = [
        (point, width, name)
        for point, width, name in zip(series.points, spread, names, strict=True)
        if all(map(can_be_drawn, (*point, width)))
        and all(value > 0 for value, kind in zip(point, (x, y), strict=True) if kind == "log")
    ]
    if len(kept) > _MOST_POINTS and not series.names:
        # Every n-th point is kept, and the last one.
        every = -(-len(kept) // _MOST_POINTS)
        kept = [*kept[:-1:every], kept[-1]]
    return replace(
        series,
        points=[point for point, _, _ in kept],
        spread=[width for _, width, _ in kept] if series.spread else (),
        names=[name for _, _, name in kept] if series.names else (),
    )


def _bounds(series: Series) -> list[tuple[float, float, float]]:
    """Return each point's x, and the band's lower and upper y."""
    spread = series.spread or [0.0] * len(series.points)
    return [(x, y - width, y + width) for (x, y), width in zip(series.points, spread, strict=True)]


def _line(series: Series, x: Axis, y: Axis) -> list[str]:
    """Return the elements for one series: the band, the line, and the marks."""
    places = [(x.place(across), y.place(up)) for across, up in series.points]
    parts = []
    if series.spread:
        bounds = _bounds(series)
        outline = [(x.place(across), y.place(high)) for across, _, high in bounds]
        outline += [(x.place(across), y.place(low)) for across, low, _ in reversed(bounds)]
        parts.append(f'<polygon class="band f{series.style}" points="{joined(outline)}"/>')
    if not series.names:
        parts.append(f'<polyline class="{_stroke(series)}" points="{joined(places)}"/>')
    if series.has_marks and not series.is_dotted:
        every = 1 if series.names else -(-len(places) // _MOST_MARKS)
        for place, (across, up) in list(zip(places, series.points, strict=True))[::every]:
            tooltip = f"{series.label}, {across:.4g}: {y.written(up)}"
            parts.append(mark(series.style, *place, title=f"<title>{safe(tooltip)}</title>"))
    return parts


def _named(series: Series, x: Axis, y: Axis) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the points' names and places. Names that would overlap are joined at the first point."""
    by_cell: dict[tuple[int, int], tuple[tuple[float, float], list[str]]] = {}
    for name, (across, up) in zip(series.names, series.points, strict=False):
        place = x.place(across), y.place(up)
        cell = round(place[0] * _NUM_CELLS / WIDTH), round(place[1] * _NUM_CELLS / PLOT_HEIGHT)
        by_cell.setdefault(cell, (place, []))[1].append(name)
    for (left, above), names in by_cell.values():  # the text is a little right of its point and above it
        yield shortened(", ".join(filter(None, names))), (left + 6, above - 5)


def _level(level: Level, y: Axis) -> str:
    """Return a horizontal dashed line."""
    place = y.place(level.value)
    return straight(f"level s{level.style}", LEFT, place, WIDTH - RIGHT, place)


def _stroke(series: Series) -> str:
    """Return the CSS classes of the series' line."""
    return f"line s{series.style}{' dots' if series.is_dotted else ''}"


def _swatch_of_line(series: Series) -> str:
    """Return the series' sample in the legend: its line, its mark, or both."""
    line = "" if series.names else straight(_stroke(series), 0, 0, 24, 0)
    return line if series.is_dotted or not series.has_marks else line + mark(series.style, 12, 0)
