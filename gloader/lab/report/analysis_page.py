"""The sections and charts for the `Findings` of `gloader analyze`. Pure.

`analysis_sections` returns the sections for the report page. They show an epoch with each change, the causes of an
epoch's seconds, the measured and replayed work on three batches, seconds against memory, and a cache's misses against
its size. "Replayed" means simulated from the recorded run. The ``draw_`` functions return the charts of the sections.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from gloader.core.units import format_bytes, format_exact_seconds
from gloader.lab.analyze.findings import VERIFYING_RUNS, bound_words, lines_of, no_help_words, signed
from gloader.lab.analyze.lanes import lane_order
from gloader.lab.analyze.machines import non_dominated
from gloader.lab.report.inspection import byte_unit
from gloader.lab.report.page import Section, TextTable
from gloader.lab.report.svg import (
    NUM_STYLES,
    Bar,
    Lanes,
    LaneSpan,
    Level,
    Series,
    draw_bars,
    draw_lanes,
    draw_lines,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.lab.analyze.findings import Course, Findings
    from gloader.lab.analyze.lanes import Slice
    from gloader.lab.report.svg import Chart


# Styles of the bars and the lines. `NUM_STYLES` is the style in the grid's colour.
_CHANGED, _FLOOR, _BASE, _MEASURED, _SAVED = 0, 4, 6, 7, NUM_STYLES
# Styles in the lanes: for each shown batch, for work on a superbatch with one of these, and for other work.
_BATCH_STYLES: Final = (0, 4, 2)
_SEVERAL, _OTHERS = 7, NUM_STYLES


def draw_what_if(findings: Findings, name: str) -> Chart | None:
    """Return bars for the epoch as it was, the epoch with each change, and the floor below all of them."""
    base = findings.replayed_s
    bars = [
        Bar(label="measured", parts=(findings.measured_s, 0.0, 0.0, 0.0)),
        Bar(label="replayed", parts=(0.0, base, 0.0, 0.0)),
    ]
    for one in findings.shown:
        saved, change = max(base - one.replayed_s, 0.0), signed(one.replayed_s / base - 1)
        end = f"{format_exact_seconds(one.replayed_s)}, {change}"
        bars.append(Bar(label=one.change, parts=(0.0, 0.0, one.replayed_s, saved), end=end))
    floor = findings.floor_s
    return draw_bars(
        f"{name}-what-if",
        "An epoch as recorded, and with each single change. The gains do not add up.",
        (("measured", _MEASURED), ("replayed", _BASE), ("with a change", _CHANGED), ("saved", _SAVED)),
        bars,
        x_label="seconds of an epoch",
        levels=[] if floor is None else [Level(label="floor of the same work", style=_FLOOR, value=floor)],
    )


def draw_course(course: Course, name: str) -> Chart | None:
    """Return each lane's work while some batches passed, measured above and replayed below."""
    lanes = sorted({one.lane for one in (*course.measured, *course.replayed)}, key=lane_order)
    groups = [
        Lanes(
            title=title,
            lanes=[(lane, [_span(one, course) for one in slices if one.lane == lane]) for lane in lanes],
        )
        for title, slices in (("measured", course.measured), ("replayed", course.replayed))
    ]
    batches = zip(course.batches, _BATCH_STYLES, strict=False)
    return draw_lanes(
        f"{name}-course",
        "The work of each stage and thread: measured above, replayed below.",
        groups,
        x_label="seconds since the sampling of the first batch",
        parts=[
            *((f"batch {batch}", style) for batch, style in batches),
            ("a superbatch with one of these", _SEVERAL),
            ("other batches", _OTHERS),
        ],
    )


def draw_memory(findings: Findings, names: Sequence[str], name: str) -> Chart | None:
    """Return seconds per epoch against memory, for the run and each change, numbered as in the table.

    Parameters
    ----------
    findings : findings with sizes in bytes
    names : a label for each point in `memory_points`
    name : the run's name
    """
    points = memory_points(findings)
    factor, unit = byte_unit(max(size for size, _ in points))
    best = best_points(points)
    series = []
    for is_best, style, label in (
        (True, _CHANGED, "no other is faster with less memory"),
        (False, _FLOOR, "another is faster with less memory"),
    ):
        found = [(one, text) for one, text in zip(points, names, strict=True) if (one in best) == is_best]
        series.append(
            Series(
                label=label,
                style=style,
                points=[(size / factor, seconds) for (size, seconds), _ in found],
                names=[text for _, text in found],
            )
        )
    front = sorted(best)  # joined by a staircase: at a point's memory, the line drops to the point's seconds
    steps = [
        front[0],
        *(step for (_, before), (size, s) in pairwise(front) for step in ((size, before), (size, s))),
    ]
    series.append(
        Series(
            label="",
            style=_CHANGED,
            points=[(size / factor, seconds) for size, seconds in steps],
            has_marks=False,
        )
    )
    return draw_lines(
        f"{name}-memory",
        "Seconds of an epoch against memory. The line joins the points that no other point beats in both.",
        series,
        x=(f"memory that the loader plans for, {unit}", "fit"),
        written=format_exact_seconds,
    )


def draw_curve(findings: Findings, name: str) -> Chart | None:
    """Return a host cache's misses against its size, with the knee marked."""
    factor, unit = byte_unit(max(point.cache_bytes for point in findings.curve))
    points = [(point.cache_bytes / factor, point.miss_rate) for point in findings.curve]
    knee = findings.knee_bytes
    return draw_lines(
        f"{name}-misses",
        "Misses against the size of the host cache. Beyond the mark, another byte saves little.",
        [Series(label="rows read from the SSD", style=_CHANGED, points=points)],
        x=(f"host cache, {unit}", "zero"),
        y="zero",
        uprights=[]
        if knee is None
        else [Level(label=f"knee {format_bytes(knee)}", style=_FLOOR, value=knee / factor)],
        written="{:.0%}".format,
    )


def memory_points(findings: Findings) -> list[tuple[int, float]]:
    """Return memory and seconds for the run, then for each change whose memory was computed. Pure."""
    points = [(findings.memory_bytes, findings.replayed_s)]
    points += [(one.memory_bytes, one.replayed_s) for one in findings.what_if]
    return [(size, seconds) for size, seconds in points if size is not None]


def best_points(points: Sequence[tuple[int, float]]) -> set[tuple[int, float]]:
    """Return the ``points`` that no other point beats in one value without losing in the other. Pure."""
    return {points[number] for number in non_dominated(points)}


def _span(one: Slice, course: Course) -> LaneSpan:
    """Return the drawn piece of a lane for one piece of work."""
    return LaneSpan(
        started_s=one.started_s,
        ended_s=one.ended_s,
        style=f"f{_style(one, course)}",
        told=f"{one.stage}, batch {one.batch}",
    )


def _style(one: Slice, course: Course) -> int:
    """Return the style of a piece of work: that of its batch, of a superbatch with a shown batch, or of other work."""
    if one.epoch != course.epoch or one.is_ahead:
        return _OTHERS
    if one.batches == 1:
        number = course.batches.index(one.batch) if one.batch in course.batches else len(_BATCH_STYLES)
        return _BATCH_STYLES[number] if number < len(_BATCH_STYLES) else _OTHERS
    is_among = any(one.batch <= batch < one.batch + one.batches for batch in course.batches)
    return _SEVERAL if is_among else _OTHERS


_LEAST_POINTS = 2  # fewest points for a chart of time against memory


def analysis_sections(findings: Findings, *, source: str, name: str) -> list[Section]:
    """Return the report's sections for ``findings``.

    Parameters
    ----------
    findings : the findings
    source : the file with the findings
    name : the run's name
    """
    sections = [_what_if(findings, name, source), _parts(findings, name), _course(findings, name)]
    sections += [_memory(findings, name), _curve(findings, name)]
    return [section for section in sections if section is not None]


def _what_if(findings: Findings, name: str, source: str) -> Section:
    """Return the section with an epoch's seconds for each change."""
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
        title=f"Analysis: {name}",
        source=source,
        facts=tuple(lines_of(findings).items()),
        charts=tuple(filter(None, [draw_what_if(findings, name)])),
        tables=(TextTable(header=header, rows=tuple(rows)),),
        notes=() if findings.shown or findings.refused else (no_help_words(findings),),
    )


def _parts(findings: Findings, name: str) -> Section | None:
    """Return the section with the causes of an epoch's seconds, and the stalls. None without predictions."""
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
                rows=tuple((words, _seconds_of(measured, key)) for key, words in VERIFYING_RUNS.items()),
            )
        )
    return Section(
        title=f"Where an epoch goes: {name}",
        source="The chain of work that the epoch's end waited for, and the seconds that each kind of stall adds.",
        tables=tuple(tables),
    )


def _course(findings: Findings, name: str) -> Section | None:
    """Return the section with the measured and replayed work on a few batches. None without such work."""
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
        title=f"Measured beside replayed: {name}",
        source=f"Batches {batches} of epoch {course.epoch + 1}, from the first batch's sampling to the last batch's "
        "computation; replay.trace.json has all batches.",
        charts=tuple(filter(None, [draw_course(course, name)])),
        tables=(TextTable(header=("thread-seconds of", "measured", "replayed"), rows=tuple(rows)),),
    )


def _memory(findings: Findings, name: str) -> Section | None:
    """Return the section with seconds against memory. None if too few changes have a computed memory."""
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
        title=f"Seconds against memory: {name}",
        source="The memory that the loader plans, and the seconds of an epoch with it.",
        charts=tuple(filter(None, [draw_memory(findings, names, name)])),
        tables=(TextTable(header=header, rows=tuple(rows)),),
    )


def _curve(findings: Findings, name: str) -> Section | None:
    """Return the section with a cache's misses against its size. None without a curve."""
    if not findings.curve:
        return None
    knee = findings.knee_bytes
    return Section(
        title=f"Misses against memory: {name}",
        source="The share of the rows gathered on the host that are read from the SSD, by the host cache's size.",
        facts=()
        if knee is None
        else (("knee", f"{format_bytes(knee)}: beyond it, another byte saves little"),),
        charts=tuple(filter(None, [draw_curve(findings, name)])),
        tables=(
            TextTable(
                header=("cache", "misses"),
                rows=tuple((format_bytes(one.cache_bytes), f"{one.miss_rate:.1%}") for one in findings.curve),
            ),
        ),
    )


def _shares(name: str, seconds: float, epoch: float) -> tuple[str, str, str]:
    """Return a table's row: the name, the seconds, and their share of the ``epoch``."""
    return name, format_exact_seconds(seconds), f"{seconds / epoch:.1%}"


def _seconds_of(values: Mapping[str, float], name: str) -> str:
    return format_exact_seconds(values[name]) if name in values else ""


def _size(num_bytes: int | None) -> str:
    return "" if num_bytes is None else format_bytes(num_bytes)
