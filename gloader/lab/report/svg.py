"""Charts as SVG that a page holds as text: sharp in print, in the colours of the reader's screen, without a script."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from gloader.core.printable import printable_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.lab.report.axis import Axis

# Of M. Okabe and K. Ito, "Color Universal Design", 2008, but for the last two, which their yellow and black were: on
# a page that may be white or black, these show on neither. Those of dark screens are lighter.
_LIGHT: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5c3e", "#777777")
_DARK: Final = ("#4ba3d9", "#f0803c", "#2fc79a", "#e0a3c6", "#f0b840", "#8fd0f5", "#b8977a", "#a8a8a8")
NUM_STYLES: Final = len(_LIGHT)
# Of each style a mark of its own, for readers and printers without colours.
_MARKS: Final = ("circle", "square", "diamond", "triangle", "cross", "ring", "bar", "frame")

WIDTH: Final = 520
PLOT_HEIGHT: Final = 220
LEFT, RIGHT, BOTTOM, _TOP = 64, 14, 42, 8
_CHARACTER: Final = 6.6  # about the width of one, at the size of the text
LINE: Final = 18
SWATCH: Final = 30
_MOST_CHARACTERS: Final = 34
_HEAD: Final = 9  # of them, where a text is cut


def _variables(colors: Sequence[str], *, text: str, grid: str, paper: str) -> str:
    styles = "".join(f"--s{number}:{color};" for number, color in enumerate(colors))
    return f"{styles}--text:{text};--grid:{grid};--paper:{paper}"


LIGHT: Final = _variables(_LIGHT, text="#333", grid="#ddd", paper="#fff")
DARK: Final = _variables(_DARK, text="#ccc", grid="#444", paper="#17191c")
# A chart alone, as a file, has these; a page has them once for all.
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
        f"svg.chart .f{NUM_STYLES}{{fill:var(--grid)}}",  # of what is beside the point
        "svg.chart .hollow{fill:var(--paper);stroke-width:2}",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing, and what it shows."""

    name: str  # of the file, without ".svg"
    caption: str
    svg: str

    def as_file(self) -> bytes:
        """Return it as a file of its own, on white paper."""
        head, _, rest = self.svg.partition(">")
        own = f'{head} xmlns="http://www.w3.org/2000/svg">'
        style = f"<style>svg.chart{{{LIGHT};background:var(--paper)}}\n{RULES}</style>"
        return f"{own}{style}{rest}".encode(errors="backslashreplace")


def mark(style: int, x: float, y: float, *, title: str = "") -> str:
    """Return the mark of a style, with what it says where the pointer rests on it."""
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
    """Return a horizontal axis, its values and what they are."""
    parts = [straight("axis", min(x.start, LEFT), bottom, WIDTH - RIGHT, bottom)]
    parts += [text_at(x.place(tick), bottom + 16, written(tick), anchor="middle") for tick in x.ticks]
    return [*parts, text_at((x.start + x.end) / 2, bottom + 34, label, anchor="middle")]


def legend_of(entries: Sequence[tuple[str, Callable[[float, float], str]]]) -> tuple[list[str], float]:
    """Return the legend, in as many lines as it needs, and where the plot begins below it."""
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
    """Return the chart that ``parts`` make."""
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
    """Return ``text`` as far as there is room for it: names of runs often differ at their ends alone."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_HEAD]}…{text[_HEAD + 1 - _MOST_CHARACTERS :]}"


def safe(text: str) -> str:
    """Return ``text`` as the content of an element or an attribute."""
    return escape(printable_line(text))
