"""The picture of a timeline: the work of all stages, one row each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from gloader.errors import ConfigError, MissingDependencyError
from gloader.observe.epoch_stats import WORK_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO


_COLORS: Final = {
    "sweep": ("#d6616b", "#e7969c"),
    "sample": ("#4c78a8", "#9ecae9"),
    "inspect": ("#72b7b2", "#b5dedb"),
    "stage": ("#e45756", "#f5b3b2"),
    "read": ("#f58518", "#ffbf79"),
    "gather": ("#b279a2", "#d8b5cf"),
    "transfer": ("#9d755d", "#d8b5a5"),
    "compute": ("#54a24b", "#a5d59d"),
    "wait": ("#bab0ac", "#bab0ac"),
}
_ROW_INCHES: Final = 0.34
_EDGE_POINTS: Final = 0.4
_THINNEST: Final = 0.004  # of the width; a thinner slice would vanish behind its edge


def render_timeline(
    timeline_json: Path,
    out_png: Path | BinaryIO,
    *,
    epoch: int | None = None,
    seconds: tuple[float, float] | None = None,
    title: str = "",
) -> None:
    """Draw a file of `TimelineRecorder.write`: a row per stage and thread, time from left to right.

    Superbatches alternate between a stage's two shades, or batches, if the timeline names no superbatch.

    Parameters
    ----------
    timeline_json : the timeline
    out_png : the picture
    epoch : draws only work on its batches; None means all epochs
    seconds : begin and end of the drawn part, from the first drawn event; None means all of it
    title : above the picture

    Raises
    ------
    ConfigError
        The timeline has no work in that epoch and time.
    MissingDependencyError
        matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError.of_extra("the picture needs matplotlib", "plot") from error
    slices = _cut(_slices_of(timeline_json, epoch), seconds)
    if not slices:
        part = "" if seconds is None else f" between {seconds[0]:g} s and {seconds[1]:g} s"
        raise ConfigError(
            f"{timeline_json} holds no work of epoch {'*' if epoch is None else epoch}{part}; choose another"
        )
    rows = _rows(slices)
    end = max(s["end"] for s in slices)
    thinnest = _THINNEST * end
    height = 1.2 + _ROW_INCHES * len(rows)
    figure = Figure(figsize=(11, height), layout="constrained")
    axes = figure.add_subplot()
    for number, (stage, thread) in enumerate(rows):
        for shade in (0, 1):
            spans = [
                (s["begin"], s["end"] - s["begin"])
                for s in slices
                if (s["name"], s["tid"], s["shade"]) == (stage, thread, shade)
            ]
            # White edges separate touching slices, but would cover slices thinner than the edges.
            edge = _EDGE_POINTS if min((length for _, length in spans), default=0.0) > thinnest else 0.0
            axes.broken_barh(
                spans,
                (number - 0.4, 0.8),
                facecolors=_COLORS[stage][shade],
                edgecolors="white",
                linewidth=edge,
            )
    axes.set_yticks(range(len(rows)), labels=_labels(rows))
    axes.invert_yaxis()
    axes.set(xlabel="seconds", title=title, xlim=(0, end))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    FigureCanvasAgg(figure).print_png(out_png)


def _slices_of(timeline_json: Path, epoch: int | None) -> list[dict[str, Any]]:
    """Return the stages' work on batches of ``epoch``, with times in seconds."""
    events = [
        event
        for event in json.loads(timeline_json.read_text())["traceEvents"]
        if event["ph"] == "X"
        and event["cat"] == "stage"
        and (epoch is None or event["args"]["epoch"] == epoch)
    ]
    # Sampling and sending record no superbatch: their slices take the shade of their batch's superbatch.
    superbatch = {
        _batch(event): event["args"]["superbatch"] for event in events if "superbatch" in event["args"]
    }
    return [
        {
            "name": event["name"],
            "tid": event["tid"],
            "shade": event["args"].get("superbatch", superbatch.get(_batch(event), event["args"]["batch"]))
            % 2,
            "begin": event["ts"] / 1e6,
            "end": (event["ts"] + event["dur"]) / 1e6,
        }
        for event in events
    ]


def _batch(event: Mapping[str, Any]) -> tuple[int, int]:
    return event["args"]["epoch"], event["args"]["batch"]


def _cut(slices: list[dict[str, Any]], seconds: tuple[float, float] | None) -> list[dict[str, Any]]:
    """Return the slices between two times, with the first time as the new origin. Pure."""
    origin = min((s["begin"] for s in slices), default=0.0)
    begin, end = seconds or (0.0, float("inf"))
    shown = [
        s | {"begin": max(s["begin"] - origin, begin) - begin, "end": min(s["end"] - origin, end) - begin}
        for s in slices
    ]
    return [s for s in shown if s["begin"] < s["end"]]


def _rows(slices: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Return stage and track of each row, in the order in which a batch passes them. Pure."""
    return sorted({(s["name"], s["tid"]) for s in slices}, key=lambda row: (WORK_NAMES.index(row[0]), row[1]))


def _labels(rows: Sequence[tuple[str, int]]) -> list[str]:
    """Return the stage of each row, numbered if it has several. Pure."""
    names = [stage for stage, _ in rows]
    return [
        f"{name} {names[:i].count(name) + 1}" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    ]
