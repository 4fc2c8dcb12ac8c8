"""Sections and charts for training runs: a single run, or several together. Pure.

`run_section` makes the section of a single run. With several runs, `beside` adds a first section that compares them.
`charts_of` makes the charts. A chart shows all groups in its section, over epochs or seconds. A group has the runs that
differ only in the random seed. Its line shows their mean, with a band of one standard deviation.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Final

from gloader.core.units import format_bytes
from gloader.lab.report.page import Section
from gloader.lab.report.run_facts import (
    circumstances_of,
    differences,
    each_seed,
    facts_of,
    grouped,
    metric_words,
    overview,
    table_of,
    waits_of,
    with_own_names,
)
from gloader.lab.report.score_pictures import pictures_of
from gloader.lab.report.svg import NUM_STYLES, Bar, Level, Series, draw_bars, draw_columns, draw_lines
from gloader.lab.report.training import PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.lab.report.run_facts import RunGroup
    from gloader.lab.report.svg import Chart
    from gloader.lab.report.training import Epoch, Training


_MOST_COLUMNS: Final = 40  # largest number of columns in a chart of epochs; more epochs are averaged
_MOST_PIECES: Final = 400  # largest number of points in a run's memory line
_SHARED: Final = NUM_STYLES - 1  # the style of a budget that several runs share
_BAND: Final = "Bands: one standard deviation over seeds."


def charts_of(groups: Sequence[RunGroup]) -> list[Chart]:
    """Return charts for the runs' recorded values. A chart without data is left out."""
    runs = [run for group in groups for run in group.runs]
    charts = [
        _curve("loss", "Training loss over epochs.", groups, "loss"),
        _curve(
            "loss-seconds", "Training loss over seconds, evaluation included.", groups, "loss",
            over_seconds=True,
        ),
        *(chart for metric in dict.fromkeys(run.metric for run in runs) for chart in _of_metric(metric, groups)),
        _mean_parts(groups) if len(runs) > 1 else None,
        _memory(groups),
        _bytes(groups),
        _from_memory(groups),
    ]  # fmt: skip
    return [chart for chart in charts if chart is not None]


def epoch_parts(run: Training) -> Chart | None:
    """Return each epoch's seconds in a run, by cause. None if they are not recorded."""
    epochs = [epoch for epoch in run.epochs if epoch.parts]
    if not epochs:
        return None
    every = -(-len(epochs) // _MOST_COLUMNS)  # epochs per column
    spans = [epochs[first : first + every] for first in range(0, len(epochs), every)]
    bars = [Bar(label=str(span[0].number), parts=_mean_of_parts(span)) for span in spans]
    caption = "Seconds of each epoch: the model's step, the loop's waits by cause, and the evaluation."
    if every > 1:
        caption = (
            f"Seconds of an epoch, means of {every}: the model's step, the loop's waits by cause, evaluation."
        )
    return draw_columns(f"{run.name}-epochs", caption, PARTS, bars, x_label="epoch")


def _of_metric(metric: str, groups: Sequence[RunGroup]) -> list[Chart | None]:
    """Return the charts for runs that measured ``metric``."""
    measured, words = [group for group in groups if group.runs[0].metric == metric], metric_words(metric)
    trained = [
        series for group in measured for series in _lines(group, "train_acc", label="", is_dotted=True)
    ]
    is_same = metric == "acc"  # otherwise the training accuracy is not comparable with the validation metric
    dotted = " Dotted: training." if is_same else ""
    valid = f"Validation {words} over epochs.{dotted}"
    return [
        _curve(metric, valid, measured, "valid", beside=trained if is_same else []),
        _curve(
            f"{metric}-seconds", f"Validation {words} over seconds, evaluation included.", measured,
            "valid", over_seconds=True,
        ),
    ]  # fmt: skip


def _curve(
    name: str,
    caption: str,
    groups: Sequence[RunGroup],
    value: str,
    *,
    over_seconds: bool = False,
    beside: Sequence[Series] = (),
) -> Chart | None:
    """Return a chart with a line per group for ``value``, a field in `Epoch`. None without values."""
    lines = [series for group in groups for series in _lines(group, value, over_seconds=over_seconds)]
    spread = f" {_BAND}" if any(line.spread for line in lines) else ""
    return draw_lines(
        name,
        caption + spread,
        [*lines, *beside],
        x=("seconds", "zero") if over_seconds else ("epoch", "whole"),
        written="{:.4g}".format,
    )


def _lines(
    group: RunGroup,
    value: str,
    *,
    label: str | None = None,
    over_seconds: bool = False,
    is_dotted: bool = False,
) -> list[Series]:
    """Return a group's line: a single run's values, or the seeds' mean over the common epochs.

    Parameters
    ----------
    group : the runs
    value : a field in `Epoch`
    label : the line's label; None means the group's name
    over_seconds : whether the horizontal axis has seconds instead of epochs
    is_dotted : whether the line is dotted, without a band
    """
    courses = [_course(run, value, over_seconds=over_seconds) for run in group.runs]
    shared = [number for number in courses[0] if all(number in course for course in courses)]
    points, spread = [], []
    for number in shared:
        # ``across`` and ``up`` are the coordinates of the epoch's point in each run.
        across, up = zip(*(course[number] for course in courses), strict=True)
        points.append((fmean(across), fmean(up)))
        spread.append(stdev(up) if len(up) > 1 else 0.0)
    return [
        Series(
            label=group.name if label is None else label,
            style=group.style % NUM_STYLES,
            points=points,
            spread=spread if len(courses) > 1 and not is_dotted else (),
            is_dotted=is_dotted,
        )
    ]


def _course(run: Training, value: str, *, over_seconds: bool) -> dict[int, tuple[float, float]]:
    """Return each epoch's point in a run, by the epoch's number. ``value`` is a field in `Epoch`."""
    ends = accumulate(epoch.all_seconds for epoch in run.epochs)
    found = {}
    for epoch, end in zip(run.epochs, ends, strict=True):
        if (up := getattr(epoch, value)) is not None:
            found[epoch.number] = (end if over_seconds else float(epoch.number), float(up))
    return found


def _mean_parts(groups: Sequence[RunGroup]) -> Chart | None:
    """Return bars with each group's mean seconds per epoch, by cause."""
    runs = [run for group in groups for run in group.runs]
    known = [
        (group.name, [epoch for run in group.runs for epoch in run.epochs if epoch.parts]) for group in groups
    ]
    bars = [Bar(label=name, parts=_mean_of_parts(epochs)) for name, epochs in known if epochs]
    caption = (
        "Mean seconds of an epoch: the model's step, the loop's waits by cause, and the evaluation, which the median "
        "epoch of the table leaves out."
    )
    return draw_bars("seconds", caption + _unknown(runs, "parts"), PARTS, bars, x_label="seconds")


def _mean_of_parts(epochs: Sequence[Epoch]) -> list[float]:
    """Return the mean seconds of each part in `PARTS`."""
    return [fmean(values) for values in zip(*(epoch.parts for epoch in epochs), strict=True)]


def _memory(groups: Sequence[RunGroup]) -> Chart | None:
    """Return each run's memory over its seconds, also for runs that differ only in the seed."""
    runs = [(group, run) for group in groups for run in group.runs]
    lines: list[Series] = []
    levels: dict[int, Level] = {}
    beyond: dict[int, str] = {}  # budgets that are not drawn, and the runs with them
    for group, run in runs:
        points = _memory_points(run)
        if points:
            style = group.style % NUM_STYLES
            label = "" if any(line.label == group.name for line in lines) else group.name
            lines.append(Series(label=label, style=style, points=points, has_marks=False))
            most = max(up for _, up in points)
            # A budget far above the lines would press them to the bottom of the chart.
            if run.budget_bytes is not None and run.budget_bytes >= 4 * most:
                beyond.setdefault(run.budget_bytes, group.name)
            elif run.budget_bytes is not None:
                # A shared budget belongs to no single run.
                levels[run.budget_bytes] = Level(
                    label=f"budget {format_bytes(run.budget_bytes)}",
                    style=_SHARED if run.budget_bytes in levels else style,
                    value=run.budget_bytes,
                )
    caption = "Memory over seconds, as the budget counts it: anonymous, above a bare import of torch."
    if levels:
        caption += " Dashed: the budget."
    if beyond and len(runs) == 1:
        caption += f" The budget, {format_bytes(min(beyond))}, is far above."
    elif beyond:
        some = ", ".join(f"{format_bytes(budget)} ({name})" for budget, name in sorted(beyond.items()))
        caption += f" Far above, and not drawn: a budget of {some}."
    return draw_lines(
        "memory",
        caption + _unknown([run for _, run in runs], "memory_bytes"),
        lines,
        x=("seconds", "zero"),
        y="zero",
        levels=list(levels.values()),
        written=format_bytes,
    )


def _memory_points(run: Training) -> list[tuple[float, float]]:
    """Return the peak memory in pieces of the run's time, each at its end."""
    points, began_s = [], 0.0
    per_epoch = max(1, _MOST_PIECES // max(len(run.epochs), 1))
    for epoch in run.epochs:
        count = len(epoch.memory_bytes)
        every = -(-count // per_epoch) if count else 1
        for first in range(0, count, every):
            piece = epoch.memory_bytes[first : first + every]
            points.append((began_s + epoch.all_seconds * (first + len(piece)) / count, float(max(piece))))
        began_s += epoch.all_seconds
    return points if any(up for _, up in points) else []


def _bytes(groups: Sequence[RunGroup]) -> Chart | None:
    """Return the bytes that each epoch read and wrote. None if all are zero."""
    runs = [run for group in groups for run in group.runs]
    if not any(run.bytes_read or run.bytes_written for run in runs):
        return None
    lines = [series for group in groups for series in _lines(group, "bytes_read")]
    written = [
        series
        for group in groups
        if any(run.bytes_written for run in group.runs)
        for series in _lines(group, "bytes_written", label="", is_dotted=True)
    ]
    dotted = " Dotted: written to it, in sweeps." if written else ""
    return draw_lines(
        "bytes",
        f"Bytes read from the SSD in each epoch.{dotted}",
        [*lines, *written],
        y="zero",
        written=format_bytes,
    )


def _from_memory(groups: Sequence[RunGroup]) -> Chart | None:
    """Return the share of rows from memory. None if all rows came from memory."""
    if all(epoch.hit_rate == 1 for group in groups for run in group.runs for epoch in run.epochs):
        return None
    return draw_lines(
        "rows",
        "Share of the feature rows that came from memory.",
        [series for group in groups for series in _lines(group, "hit_rate")],
        y="zero",
        written="{:.0%}".format,
    )


def _unknown(runs: Sequence[Training], value: str) -> str:
    """Return a sentence that names the runs whose epochs have no recorded ``value``."""
    names = [run.name for run in runs if run.epochs and not any(getattr(one, value) for one in run.epochs)]
    return f" Not recorded, by an earlier version: {', '.join(names)}." if names else ""


_NOTHING: Final = "nothing: settings, versions and machine are the same"


def run_section(run: Training) -> Section:
    """Return a single run's section."""
    section = _own_section(run, shared_facts=())
    return replace(section, charts=(*section.charts, *charts_of(grouped([run]))))


def beside(sections: Sequence[Section]) -> list[Section]:
    """Return ``sections`` after a first section that compares their runs. A single run is unchanged."""
    runs = with_own_names([section.run for section in sections if section.run is not None])
    if len(runs) < 2:
        return list(sections)
    together, own_runs = _together(runs), iter(runs)
    # The runs' own sections leave out the common charts, because the first section shows them.
    return [
        together,
        *(
            section if section.run is None else _own_section(next(own_runs), shared_facts=together.facts)
            for section in sections
        ),
    ]


def _together(runs: Sequence[Training]) -> Section:
    """Return the section that compares runs."""
    groups = grouped(runs)
    differing, seeds = differences(groups), each_seed(groups)
    first, *others = [circumstances_of(run) for run in runs]
    return Section(
        title="Runs beside each other",
        source=f"{len(runs)} runs, each of which has a section below",
        facts=tuple(fact for fact in first if all(fact in other for other in others)),
        tables=(overview(groups),),
        named_tables=()
        if differing is None
        else (("Settings, versions and machines that differ", differing),),
        folded_tables=() if seeds is None else (("Each seed", seeds),),
        notes=_notes(groups, has_differences=differing is not None),
        charts=tuple(charts_of(groups)),
    )


def _notes(groups: Sequence[RunGroup], *, has_differences: bool) -> tuple[str, ...]:
    """Return notes for comparing the runs."""
    runs = [run for group in groups for run in group.runs]
    notes = [
        f"without a config.yaml, so that its settings are not known: {run.name}"
        for run in runs
        if not run.settings
    ]
    notes += [
        f"above its memory budget: {run.name}, by {format_bytes(run.peak_bytes - run.budget_bytes)}"
        for run in runs
        if run.peak_bytes and run.budget_bytes and run.peak_bytes > run.budget_bytes
    ]
    if not has_differences and all(run.settings for run in runs):
        notes.append(f"the runs differ in {'their seed alone' if len(groups) == 1 else _NOTHING}")
    return tuple(notes)


def _own_section(run: Training, *, shared_facts: Sequence[tuple[str, str]]) -> Section:
    """Return a run's section, without the facts in ``shared_facts``, which another section shows."""
    parts, scores = epoch_parts(run), pictures_of(run)
    if run.epochs:
        notes: tuple[str, ...] = ("waited for\n" + "\n".join(waits_of(run)),)
    else:
        notes = ("no epoch was finished",)
    return Section(
        title=f"Training: {run.name}",
        source=run.source,
        run=run,
        facts=(*facts_of(run), *(fact for fact in circumstances_of(run) if fact not in shared_facts)),
        charts=(*scores.charts, *(() if parts is None else (parts,))),
        folded_tables=(*scores.tables, *((("Each epoch", table_of(run)),) if run.epochs else ())),
        notes=notes,
    )
