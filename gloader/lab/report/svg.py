"""Charts as SVG text in a page: lines, bars and columns. Pure.

They are sharp in print, take the colours of the reader's screen, and need no script.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from gloader.core.malformed import printable_line
from gloader.core.units import format_exact_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_MARGIN: Final = 0.05
# Damaged files and diverged runs have such values: differences of larger ones overflow, and a smaller range has no
# parts, since its step rounds to 0.
_MOST: Final = 1e100
_LEAST_RANGE: Final = 1e-100


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A range of values, laid over a range of pixels."""

    low: float
    high: float
    start: float  # pixel of ``low``
    end: float  # pixel of ``high``
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Return the pixel of ``value``."""
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)


def can_be_drawn(value: float | None) -> bool:
    """Return whether ``value`` has a place on an axis; values of a diverged run may have none."""
    return value is not None and abs(value) < _MOST


def fit_axis(
    values: Iterable[float],
    *,
    start: float,
    end: float,
    from_zero: bool = False,
    is_whole: bool = False,
    most_ticks: int = 5,
) -> Axis:
    """Return the axis for ``values``, all of which `can_be_drawn`.

    Parameters
    ----------
    values : the values on it; 0 to 1 if there are none
    start, end : pixels of its ends
    from_zero : whether it begins at 0
    is_whole : whether only whole numbers exist, as for epochs
    most_ticks : upper bound of the ticks
    """
    found = list(values) or [0.0, 1.0]
    low, high = min(found), max(found)
    margin = 0.0 if is_whole else _MARGIN * (high - low)
    low, high = (0.0 if from_zero else low - margin), high + margin
    if high - low < _LEAST_RANGE:  # all are alike
        around = max(abs(low), 1.0) * _MARGIN
        low, high = (0.0 if from_zero else low - around), high + around
    step = _step((high - low) / most_ticks)
    if is_whole:
        step = max(step, 1.0)
    first, last = math.ceil(low / step), math.floor(high / step)
    ticks = tuple(number * step for number in range(first, min(last, first + 2 * most_ticks) + 1))
    return Axis(low=low, high=high, start=start, end=end, ticks=ticks)


def _step(least: float) -> float:
    """Return the least of 1, 2, 5, 10, 20, ... that is not below ``least``."""
    magnitude = 10.0 ** math.floor(math.log10(least))
    return next(step * magnitude for step in _STEPS if step * magnitude >= least * (1 - 1e-9))


# Of M. Okabe and K. Ito, "Color Universal Design", 2008, except the last two, which replace yellow and black: on
# a white or black page those would vanish. The colours for dark screens are lighter.
_LIGHT: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5c3e", "#777777")
_DARK: Final = ("#4ba3d9", "#f0803c", "#2fc79a", "#e0a3c6", "#f0b840", "#8fd0f5", "#b8977a", "#a8a8a8")
NUM_STYLES: Final = len(_LIGHT)
# Each style has its own mark, for readers and printers without colours.
_MARKS: Final = ("circle", "square", "diamond", "triangle", "cross", "ring", "bar", "frame")

WIDTH: Final = 520
PLOT_HEIGHT: Final = 220
LEFT, RIGHT, BOTTOM, _TOP = 64, 14, 42, 8
_CHARACTER: Final = 6.6  # about the width of one, at the size of the text
LINE: Final = 18
SWATCH: Final = 30
_MOST_CHARACTERS: Final = 34
_HEAD: Final = 9  # characters before a cut


def _variables(colors: Sequence[str], *, text: str, grid: str, paper: str) -> str:
    styles = "".join(f"--s{number}:{color};" for number, color in enumerate(colors))
    return f"{styles}--text:{text};--grid:{grid};--paper:{paper}"


LIGHT: Final = _variables(_LIGHT, text="#333", grid="#ddd", paper="#fff")
DARK: Final = _variables(_DARK, text="#ccc", grid="#444", paper="#17191c")
# A chart in its own file has these; a page has them once for all.
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
        *(
            f"svg.chart .s{number}{{stroke:var(--s{number})}}svg.chart .f{number}{{fill:var(--s{number})}}"
            for number in range(NUM_STYLES)
        ),
        f"svg.chart .f{NUM_STYLES}{{fill:var(--grid)}}",  # for content around the point
        "svg.chart .hollow{fill:var(--paper);stroke-width:2}",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing with its caption."""

    name: str  # of the file, without ".svg"
    caption: str
    svg: str

    def as_file(self) -> bytes:
        """Return the chart as a separate file, on white paper."""
        head, _, rest = self.svg.partition(">")
        own = f'{head} xmlns="http://www.w3.org/2000/svg">'
        style = f"<style>svg.chart{{{LIGHT};background:var(--paper)}}\n{RULES}</style>"
        return f"{own}{style}{rest}".encode(errors="backslashreplace")


def mark(style: int, x: float, y: float, *, title: str = "") -> str:
    """Return the mark of a style, with the text that appears under the pointer."""
    kind = _MARKS[style % NUM_STYLES]
    fill = f'class="f{style}"'
    hollow = f'class="s{style} hollow"'
    if kind in ("circle", "ring"):
        return f'<circle {fill if kind == "circle" else hollow} cx="{x:.1f}" cy="{y:.1f}" r="3.6">{title}</circle>'
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


def grid_lines(y: Axis, written: Callable[[float], str]) -> list[str]:
    """Return lines at the ticks of a vertical axis, and their values."""
    parts = []
    for tick in y.ticks:
        place = y.place(tick)
        parts.append(straight("grid", LEFT, place, WIDTH - RIGHT, place))
        parts.append(text_at(LEFT - 7, place + 4, written(tick), anchor="end"))
    return parts


def axis_below(x: Axis, bottom: float, written: Callable[[float], str], label: str) -> list[str]:
    """Return a horizontal axis with its values and label."""
    parts = [straight("axis", min(x.start, LEFT), bottom, WIDTH - RIGHT, bottom)]
    parts += [text_at(x.place(tick), bottom + 16, written(tick), anchor="middle") for tick in x.ticks]
    return [*parts, text_at((x.start + x.end) / 2, bottom + 34, label, anchor="middle")]


def legend_of(entries: Sequence[tuple[str, Callable[[float, float], str]]]) -> tuple[list[str], float]:
    """Return the legend, in as many lines as it needs, and the top of the plot below it."""
    parts, left, line = [], 4.0, _TOP + 10.0
    for label, swatch in entries:
        width = SWATCH + len(shortened(label)) * _CHARACTER + 14
        if left > 4 and left + width > WIDTH:
            left, line = 4.0, line + LINE
        parts.append(swatch(left, line - 4))
        parts.append(text_at(left + SWATCH, line, shortened(label)))
        left += width
    return parts, line + 12


def chart_of(name: str, caption: str, parts: Sequence[str], *, height: float) -> Chart:
    """Return the chart with the drawing ``parts``."""
    body = "\n".join(filter(None, parts))
    svg = (
        f'<svg class="chart" role="img" aria-label="{safe(caption)}" viewBox="0 0 {WIDTH} {height:.0f}">\n'
        f"{body}\n</svg>"
    )
    return Chart(name=name, caption=caption, svg=svg)


def straight(style: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a straight line."""
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text_at(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    """Return a text; any character of it may come from data."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{safe(text)}</text>'


def joined(places: Sequence[tuple[float, float]]) -> str:
    """Return places as SVG lists them."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def shortened(text: str) -> str:
    """Return ``text``, shortened to fit: names of runs often differ only at their ends."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_HEAD]}…{text[_HEAD + 1 - _MOST_CHARACTERS :]}"


def safe(text: str) -> str:
    """Return ``text`` as the content of an element or an attribute."""
    return escape(printable_line(text))


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
    """Return bars below each other, each with the same parts; None if they are empty.

    Parameters
    ----------
    name, caption : of the chart
    parts : names of the parts, and their styles; those too short to be seen in any bar are left out
    bars : of one part each for every name
    x_label : the label of their lengths
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
        # Above its bar: at its side, a long name would leave the bar no room on a narrow screen.
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
    """Return columns side by side; parameters as of `draw_bars`, of which this is the upright form."""
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
    """Return the visible parts; none if a bar has no place on an axis."""
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


_MOST_MARKS: Final = 12
_MOST_POINTS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line."""

    label: str  # in the legend; empty for none
    style: int
    points: Sequence[tuple[float, float]]
    spread: Sequence[float] = ()  # to either side of each point
    is_dotted: bool = False
    has_marks: bool = True  # marks show their values under the pointer; a dotted line has none


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
    """Return lines over a common axis; None if no line has a point to draw.

    Parameters
    ----------
    name, caption : of the chart
    series : the lines
    x_label : the label of the horizontal axis
    levels : lines across
    from_zero : the vertical axis begins at 0
    is_whole_x : whether the horizontal axis counts, as epochs do
    written : returns a value of the vertical axis as text
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
    """Return the drawable points of a line, and of a long one at most one per pixel."""
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
