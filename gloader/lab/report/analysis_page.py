"""Sections of an analysis: where an epoch goes, what would help, three batches beside their replay, memory, misses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.core.units import format_bytes, format_exact_seconds
from gloader.errors import MissingDependencyError
from gloader.lab.analyze.lanes import lane_order
from gloader.lab.analyze.words import bound_words, lines_of, no_help_words, signed
from gloader.lab.report.analysis_pictures import (
    best_points,
    draw_course,
    draw_curve,
    draw_memory,
    draw_what_if,
    memory_points,
)
from gloader.lab.report.canvas import drawn
from gloader.lab.report.page import Picture, Section
from gloader.lab.report.text_table import TextTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import BinaryIO

    from gloader.lab.analyze.findings import Findings

_LEAST_POINTS = 2  # of a picture of time against memory


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisSections:
    """The sections of an analysis."""

    shown: tuple[Section, ...]
    missing: str  # why they have no pictures; empty: they have


def analysis_sections(findings: Findings, *, source: str, name: str) -> AnalysisSections:
    """Return the sections of ``findings``; without pictures where matplotlib is not installed.

    Parameters
    ----------
    findings : what was found
    source : where they were read from
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
        """Return a picture, or none where matplotlib is not installed."""
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
