"""Sections and pictures of an analysis: gains of changes, three batches and their replay, memory, misses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gloader.core.malformed import printable_line
from gloader.core.units import format_bytes, format_exact_seconds
from gloader.errors import MissingDependencyError
from gloader.lab.analyze.findings import bound_words, lines_of, no_help_words, signed
from gloader.lab.analyze.lanes import lane_order
from gloader.lab.report.page import Picture, Section, TextTable, drawn, new_figure, save_figure, tidy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from gloader.lab.analyze.findings import Course, Findings
    from gloader.lab.analyze.lanes import Slice


# Of M. Okabe and K. Ito, "Color Universal Design", 2008: distinct colours without the difference of red and green.
_BLUE: Final = "#0072b2"
_ORANGE: Final = "#e69f00"
_GREEN: Final = "#009e73"
_BLACK: Final = "#000000"
_GREY: Final = "#bbbbbb"
_PALE: Final = "#e4e4e4"
_OF_BATCHES: Final = (_BLUE, _ORANGE, _GREEN)
_ROW_INCHES: Final = 0.34
_EDGE_POINTS: Final = 0.4
_MOST_CHARACTERS: Final = 40
_PLACES: Final = 40  # on an axis, beyond which names overlap
_GB: Final = 1e9
_MB: Final = 1e6


def draw_what_if(findings: Findings, path: Path | BinaryIO) -> None:
    """Write a PNG: the epoch as it was, the rest of it with each change, and the floor below all of them.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    base = findings.replayed_s
    bars = [("measured", findings.measured_s, _GREY), ("replayed", base, _BLACK)]
    bars += [(one.change, one.replayed_s, _BLUE) for one in findings.shown]
    figure = new_figure(width=10, height=1.3 + _ROW_INCHES * len(bars))
    axes = figure.add_subplot()
    for place, (_, seconds, color) in enumerate(bars):
        axes.barh(place, seconds, height=0.7, color=color)
        if color == _BLUE and seconds < base:
            axes.barh(
                place,
                base - seconds,
                left=seconds,
                height=0.7,
                color=_PALE,
            )
        share = f", {signed(seconds / base - 1)}" if color == _BLUE else ""
        axes.annotate(
            _short(f"{format_exact_seconds(seconds)}{share}"),
            (max(seconds, base if color == _BLUE else 0.0), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
        )
    if findings.floor_s is not None:
        axes.axvline(
            findings.floor_s, color=_ORANGE, linestyle="--", linewidth=1.5, label="floor of the same work"
        )
        axes.legend(fontsize="small", loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axes.set_yticks(range(len(bars)), labels=[_short(name) for name, _, _ in bars])
    _plain(axes.get_yticklabels())
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds of an epoch; pale: what the change saves")
    tidy(axes, grid="x")
    save_figure(figure, path)


def draw_course(course: Course, path: Path | BinaryIO) -> None:
    """Write a PNG: the work of each lane while some batches passed, measured above and replayed below.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    lanes = sorted({one.lane for one in (*course.measured, *course.replayed)}, key=lane_order)
    figure = new_figure(width=11, height=1.6 + 2 * _ROW_INCHES * len(lanes))
    above, below = figure.subplots(2, 1, sharex=True)
    for axes, title, slices in ((above, "measured", course.measured), (below, "replayed", course.replayed)):
        for row, lane in enumerate(lanes):
            _draw_lane(axes, row, [one for one in slices if one.lane == lane], course)
        axes.set_yticks(range(len(lanes)), labels=[_short(lane) for lane in lanes])
        axes.set_ylim(len(lanes) - 0.5, -0.5)
        axes.set_title(title, loc="left", fontsize="medium")
        axes.tick_params(axis="y", length=0)
        tidy(axes, grid="x")
    for batch, color in zip(course.batches, _OF_BATCHES, strict=False):
        above.barh(0, 0, color=color, label=_short(f"batch {batch}"))
    above.barh(0, 0, color=_GREY, label="several, one of these among them")
    above.barh(0, 0, color=_PALE, label="others")
    above.legend(
        fontsize="small",
        ncols=5,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        handlelength=1.2,
    )
    above.set_xlim(left=0)
    below.set_xlabel("seconds since the first of them was sampled")
    save_figure(figure, path)


def draw_memory(findings: Findings, names: Sequence[str], path: Path | BinaryIO) -> None:
    """Write a PNG: seconds of an epoch against memory, of the run and of each change, numbered as in the table below.

    Parameters
    ----------
    findings : of a run with known sizes
    names : a label for each point of `memory_points`
    path : of the picture

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    points = memory_points(findings)
    figure = new_figure(width=8, height=4.5)
    axes = figure.add_subplot()
    factor, unit = (_GB, "GB") if max(size for size, _ in points) >= _GB else (_MB, "MB")
    best = best_points(points)
    for is_best, color, marker, label in (
        (True, _BLUE, "o", "no other is faster with less"),
        (False, _ORANGE, "x", "another is"),
    ):
        found = [(size / factor, seconds) for size, seconds in points if ((size, seconds) in best) == is_best]
        if found:
            axes.plot(*zip(*found, strict=True), marker, color=color, label=label)
    front = sorted(best)
    axes.step(
        [size / factor for size, _ in front],
        [seconds for _, seconds in front],
        where="post",
        color=_BLUE,
        linewidth=0.8,
    )
    for (size, seconds), name in _joined(points, names).items():
        axes.annotate(
            name,
            (size / factor, seconds),
            # To the left of a long one: labels side by side have room there.
            xytext=(-5, 4) if "," in name else (5, 4),
            ha="right" if "," in name else "left",
            textcoords="offset points",
            fontsize="small",
        )
    axes.set(xlabel=f"memory that the loader plans for, {unit}", ylabel="seconds of an epoch")
    axes.margins(x=0.1, y=0.15)
    axes.legend(fontsize="small")
    tidy(axes, grid="both")
    save_figure(figure, path)


def draw_curve(findings: Findings, path: Path | BinaryIO) -> None:
    """Write a PNG: misses of a host cache against its size, with a mark at the knee.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    sizes = [point.cache_bytes for point in findings.curve]
    factor, unit = (_GB, "GB") if max(sizes) >= _GB else (_MB, "MB")
    figure = new_figure(width=8, height=4.5)
    axes = figure.add_subplot()
    axes.plot(
        [size / factor for size in sizes],
        [100 * point.miss_rate for point in findings.curve],
        ".-",
        color=_BLUE,
    )
    axes.set_ylim(bottom=0)
    if findings.knee_bytes is not None:
        axes.axvline(findings.knee_bytes / factor, color=_ORANGE, linestyle="--", linewidth=1.2)
        axes.annotate(
            _short(f"knee {format_bytes(findings.knee_bytes)}"),
            (findings.knee_bytes / factor, axes.get_ylim()[1]),
            xytext=(4, -12),
            textcoords="offset points",
        )
    axes.set(xlabel=f"host cache, {unit}", ylabel="% of the rows read from the SSD")
    tidy(axes, grid="both")
    save_figure(figure, path)


def memory_points(findings: Findings) -> list[tuple[int, float]]:
    """Return memory and seconds of the run, then of each change with known memory. Pure."""
    found = [(findings.memory_bytes, findings.replayed_s)]
    found += [(one.memory_bytes, one.replayed_s) for one in findings.what_if]
    return [(size, seconds) for size, seconds in found if size is not None]


def best_points(points: Sequence[tuple[int, float]]) -> set[tuple[int, float]]:
    """Return those of ``points`` that no other beats in one of both, at least as good in the other. Pure."""
    return {
        (size, seconds)
        for size, seconds in points
        if not any(
            other <= size and less <= seconds and (other, less) != (size, seconds) for other, less in points
        )
    }


def _joined(points: Sequence[tuple[int, float]], names: Sequence[str]) -> dict[tuple[int, float], str]:
    """Return the names at each point; names of neighbouring points are joined at the first of them."""
    widths = [max(axis) - min(axis) or 1.0 for axis in zip(*points, strict=True)]
    found: dict[tuple[int, ...], tuple[tuple[int, float], list[str]]] = {}
    for point, name in zip(points, names, strict=True):
        place = tuple(round(_PLACES * at / width) for at, width in zip(point, widths, strict=True))
        found.setdefault(place, (point, []))[1].append(name)
    return {point: ", ".join(of_point) for point, of_point in found.values()}


def _draw_lane(axes: Any, row: int, slices: Sequence[Slice], course: Course) -> None:
    spans: dict[str, list[tuple[float, float]]] = {}
    for one in slices:
        spans.setdefault(_color(one, course), []).append((one.started_s, one.ended_s - one.started_s))
    for color, of_color in spans.items():
        axes.broken_barh(
            of_color, (row - 0.35, 0.7), facecolors=color, edgecolors="white", linewidth=_EDGE_POINTS
        )


def _color(one: Slice, course: Course) -> str:
    if one.epoch != course.epoch or one.is_ahead:
        return _PALE
    if one.batches == 1:
        place = course.batches.index(one.batch) if one.batch in course.batches else len(_OF_BATCHES)
        return _OF_BATCHES[place] if place < len(_OF_BATCHES) else _PALE
    return _GREY if any(one.batch <= batch < one.batch + one.batches for batch in course.batches) else _PALE


def _short(text: str) -> str:
    """Return a bar's label, shortened: it may come from data."""
    line = printable_line(text)
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"


def _plain(labels: Sequence[Any]) -> None:
    """Take the texts as they are: a dollar in a name is a dollar."""
    for label in labels:
        label.set_parse_math(False)


_LEAST_POINTS = 2  # of a picture of time against memory


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisSections:
    """The sections of an analysis."""

    shown: tuple[Section, ...]
    missing: str  # why they have no pictures; empty: they have


def analysis_sections(findings: Findings, *, source: str, name: str) -> AnalysisSections:
    """Return the sections of ``findings``; without pictures if matplotlib is not installed.

    Parameters
    ----------
    findings : the findings
    source : the file that they were read from
    name : of the run
    """
    page = _Page(name)
    sections = [_what_if(findings, page, source), _parts(findings, page), _course(findings, page)]
    sections += [_memory(findings, page), _curve(findings, page)]
    shown = [section for section in sections if section is not None]
    if page.missing:
        note = f"no pictures: {page.missing}"
        shown.append(Section(title="Pictures", source="", notes=(note,)))
    return AnalysisSections(shown=tuple(shown), missing=page.missing)


class _Page:
    """Draws the pictures of a page, or notes why it cannot."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.missing = ""

    def draw(self, what: str, caption: str, draw: Callable[[BinaryIO], None]) -> tuple[Picture, ...]:
        """Return a picture, or none if matplotlib is not installed."""
        try:
            return (drawn(f"{self.name}-{what}", caption, draw),)
        except MissingDependencyError as error:
            self.missing = str(error)
            return ()


def _what_if(findings: Findings, page: _Page, source: str) -> Section:
    base = findings.replayed_s
    rows = [
        ("measured", format_exact_seconds(findings.measured_s), "", "", "", "", ""),
        (
            "replayed",
            format_exact_seconds(base),
            "",
            "",
            _size(findings.memory_bytes),
            _size(findings.spill_bytes),
            "",
        ),
    ]
    rows += [
        (
            one.change,
            format_exact_seconds(one.replayed_s),
            signed(-one.gain, digits=1),
            bound_words(one.bound_by),
            _size(one.memory_bytes),
            _size(one.spill_bytes),
            one.note,
        )
        for one in findings.shown
    ]
    if findings.floor_s is not None:
        floor = format_exact_seconds(findings.floor_s)
        rows.append(("floor", floor, signed(findings.floor_s / base - 1, digits=1), "", "", "", ""))
    header = ("change", "an epoch", "of the replay", "bound by then", "memory", "packs on disk", "")
    return Section(
        title=f"Analysis: {page.name}",
        source=source,
        facts=tuple(lines_of(findings).items()),
        pictures=page.draw(
            "what-if",
            "An epoch as it was, and with each change alone; they do not add up.",
            lambda out: draw_what_if(findings, out),
        ),
        tables=(TextTable(header=header, rows=tuple(rows)),),
        notes=() if findings.shown or findings.refused else (no_help_words(findings),),
    )


def _parts(findings: Findings, page: _Page) -> Section | None:
    if findings.refused:
        return None
    epoch = findings.replayed_s
    parts = sorted(findings.parts.items(), key=lambda part: -part[1])
    measured = findings.verified
    header = ("stall", "replayed", "share", *(("measured",) if measured else ()))
    stalls = [
        (*_shares(name, seconds, epoch), *((_seconds_of(measured, name),) if measured else ()))
        for name, seconds in findings.stalls.items()
    ]
    runs = {"compute_s": "computing alone", "warm_s": "all in memory", "cold_s": "as recorded"}
    tables = [
        TextTable(
            header=("an epoch goes to", "seconds", "share"),
            rows=tuple(_shares(name, seconds, epoch) for name, seconds in parts),
        ),
        TextTable(header=header, rows=tuple(stalls)),
    ]
    if measured:
        tables.append(
            TextTable(
                header=("an epoch, measured", "seconds"),
                rows=tuple((words, _seconds_of(measured, key)) for key, words in runs.items()),
            )
        )
    return Section(
        title=f"Where an epoch goes: {page.name}",
        source="The chain of work that its end waited for; and what it takes longer because of each kind of stall.",
        tables=tuple(tables),
    )


def _course(findings: Findings, page: _Page) -> Section | None:
    course = findings.course
    if not course.measured or not course.replayed:
        return None
    stages = {one.stage for one in (*course.measured, *course.replayed)}
    rows = [
        (
            stage,
            *(
                format_exact_seconds(sum(one.ended_s - one.started_s for one in slices if one.stage == stage))
                for slices in (course.measured, course.replayed)
            ),
        )
        for stage in sorted(stages, key=lane_order)
    ]
    ends = [max(one.ended_s for one in slices) for slices in (course.measured, course.replayed)]
    rows.append(("from the first sample to the last step", *map(format_exact_seconds, ends)))
    batches = ", ".join(map(str, course.batches))
    return Section(
        title=f"Measured beside replayed: {page.name}",
        source=f"Batches {batches} of epoch {course.epoch + 1}, from where the first is sampled to where the last is "
        "computed; replay.trace.json has all of them.",
        pictures=page.draw(
            "course",
            "What each stage and thread did meanwhile: measured above, replayed below.",
            lambda out: draw_course(course, out),
        ),
        tables=(TextTable(header=("thread-seconds of", "measured", "replayed"), rows=tuple(rows)),),
    )


def _memory(findings: Findings, page: _Page) -> Section | None:
    named = [("as it was", findings.memory_bytes, findings.spill_bytes, findings.replayed_s)]
    named += [(one.change, one.memory_bytes, one.spill_bytes, one.replayed_s) for one in findings.what_if]
    named = [one for one in named if one[1] is not None]
    points = memory_points(findings)
    if len(set(points)) < _LEAST_POINTS:
        return None
    best = best_points(points)
    names = [str(number) for number in range(1, len(named) + 1)]
    rows = [
        (
            number,
            change,
            _size(memory),
            _size(spill),
            format_exact_seconds(seconds),
            "" if (memory, seconds) in best else "yes",
        )
        for number, (change, memory, spill, seconds) in zip(names, named, strict=True)
    ]
    header = ("point", "change", "memory", "packs on disk", "an epoch", "another is as good with less")
    return Section(
        title=f"Seconds against memory: {page.name}",
        source="What the loader plans for, and an epoch with it.",
        pictures=page.draw(
            "memory",
            "Seconds of an epoch against memory; the line joins those that no other beats in both.",
            lambda out: draw_memory(findings, names, out),
        ),
        tables=(TextTable(header=header, rows=tuple(rows)),),
    )


def _curve(findings: Findings, page: _Page) -> Section | None:
    if not findings.curve:
        return None
    knee = findings.knee_bytes
    return Section(
        title=f"Misses against memory: {page.name}",
        source="Rows that are read from the SSD, of those that the host gathers, for a host cache of each size.",
        facts=() if knee is None else (("knee", f"{format_bytes(knee)}: beyond it a byte saves little"),),
        pictures=page.draw(
            "misses",
            "Misses against the size of the host cache; the mark is where a byte more begins to save little.",
            lambda out: draw_curve(findings, out),
        ),
        tables=(
            TextTable(
                header=("cache", "misses"),
                rows=tuple((format_bytes(one.cache_bytes), f"{one.miss_rate:.1%}") for one in findings.curve),
            ),
        ),
    )


def _shares(name: str, seconds: float, epoch: float) -> tuple[str, str, str]:
    return name, format_exact_seconds(seconds), f"{seconds / epoch:.1%}"


def _seconds_of(values: Mapping[str, float], name: str) -> str:
    return format_exact_seconds(values[name]) if name in values else ""


def _size(num_bytes: int | None) -> str:
    return "" if num_bytes is None else format_bytes(num_bytes)
