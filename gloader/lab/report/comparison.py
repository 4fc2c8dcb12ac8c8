"""Measurements of `experiments/bench/compare.py` as tables and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gloader.core.malformed import MALFORMED, shown
from gloader.core.units import format_bytes, format_seconds
from gloader.errors import FormatError
from gloader.lab.report.page import TextTable, new_figure, save_figure, tidy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO


_HEADER = (
    "contender",
    "features",
    "limit",
    "first epoch",
    "later epochs",
    "least to most",
    "sample",
    "gather",
    "compute",
    "wait",
    "read an epoch",
    "peak resident",
    "group's peak",
    "to target",
    "outcome",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median over repeats, and their range."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contender. Figures that were not measured are None."""

    name: str
    features: str  # their place: "memory", "ssd" or "memmap"
    is_limited: bool
    outcome: str  # "done", or the reason of another end
    settings: str  # the chosen ones among those tried, in words
    first_epoch_s: Spread | None
    later_epoch_s: Spread | None
    is_extrapolated: bool  # the figures of epochs are in proportion to a part of one
    sample_s: float | None
    gather_s: float | None
    compute_s: float | None
    wait_s: float | None
    bytes_read: float | None
    peak_bytes: int | None  # resident; file pages shared with others are counted
    group_peak_bytes: int | None  # of the control group: the bytes that a limit counts, page cache included
    seconds_to_target: Spread | None

    @property
    def shown_epoch_s(self) -> Spread | None:
        """A later epoch, or the first if there is no other."""
        return self.later_epoch_s or self.first_epoch_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Contenders on one graph."""

    kind: str  # of the graph
    heading: str
    rows: tuple[Row, ...]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Comparison:
        """Read one element of ``comparisons``.

        Raises
        ------
        FormatError
            Something is missing or of the wrong type.
        """
        try:
            return cls(
                kind=str(values["graph"]["kind"]),
                heading=_heading(values),
                rows=tuple(_row(row) for row in values["rows"]),
            )
        except MALFORMED as error:
            raise FormatError(
                f"the comparison is malformed: {shown(error)}; write it anew with experiments/bench/compare.py"
            ) from error

    def table(self) -> TextTable:
        """Return a row for each contender."""
        return TextTable(header=_HEADER, rows=tuple(_cells(row) for row in self.rows))

    def notes(self) -> tuple[str, ...]:
        """Return a line for each contender with another end than planned, or with chosen settings."""
        return tuple(
            f"{row.name}: "
            + "; ".join(filter(None, (row.settings, "" if row.outcome == "done" else row.outcome)))
            for row in self.rows
            if row.outcome != "done" or row.settings
        )


def _heading(values: Mapping[str, Any]) -> str:
    graph, work = values["graph"], values["workload"]
    fanouts = ",".join(map(str, work["fanouts"]))
    target = values["target_accuracy"]
    reach = "" if target is None else f", target accuracy {target:.3f}"
    return (
        f"{graph['kind']}: {graph['num_nodes']:,} nodes, {graph['num_edges']:,} edges, "
        f"{format_bytes(graph['feature_bytes'])} of features; {work['model']}, fan-outs {fanouts}, "
        f"{work['seeds']:,} seeds an epoch in batches of {work['batch_size']:,}; memory limit "
        f"{format_bytes(values['limit_bytes'])}; {work['repeats']} repeats{reach}"
    )


def _row(values: Mapping[str, Any]) -> Row:
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values["settings"].items())
    return Row(
        name=str(values["name"]),
        features=str(values["home"]),
        is_limited=bool(values["is_limited"]),
        outcome=str(values["outcome"]),
        settings=settings,
        is_extrapolated=bool(values["is_extrapolated"]),
        peak_bytes=values["peak_resident_bytes"],
        group_peak_bytes=values["group_peak_bytes"],
        first_epoch_s=_spread(values["first_epoch_s"]),
        later_epoch_s=_spread(values["later_epoch_s"]),
        seconds_to_target=_spread(values["seconds_to_target"]),
        sample_s=values["sample_s"],
        gather_s=values["gather_s"],
        compute_s=values["compute_s"],
        wait_s=values["wait_s"],
        bytes_read=values["bytes_read"],
    )


def _spread(values: Mapping[str, float] | None) -> Spread | None:
    if values is None:
        return None
    return Spread(median=values["median"], least=values["least"], most=values["most"])


def _cells(row: Row) -> tuple[str, ...]:
    about = "~" if row.is_extrapolated else ""
    shown = row.shown_epoch_s
    span = "" if shown is None else f"{format_seconds(shown.least)} to {format_seconds(shown.most)}"
    return (
        row.name,
        row.features,
        "yes" if row.is_limited else "none",
        _median(row.first_epoch_s, about if row.later_epoch_s is None else ""),
        _median(row.later_epoch_s, about),
        span,
        *(_seconds(value) for value in (row.sample_s, row.gather_s, row.compute_s, row.wait_s)),
        "" if row.bytes_read is None else format_bytes(int(row.bytes_read)),
        "" if row.peak_bytes is None else format_bytes(row.peak_bytes),
        "" if row.group_peak_bytes is None else format_bytes(row.group_peak_bytes),
        _median(row.seconds_to_target, ""),
        row.outcome.split(":")[0],
    )


def _median(value: Spread | None, about: str) -> str:
    return "" if value is None else about + format_seconds(value.median)


def _seconds(value: float | None) -> str:
    return "" if value is None else format_seconds(value)


# Blue and orange differ for readers without the difference of red and green.
_OURS: Final = "#4c78a8"
_PEERS: Final = "#f58518"
_PARTS: Final = {
    "sample_s": ("sample", "#4c78a8"),
    "gather_s": ("gather", "#b279a2"),
    "compute_s": ("compute", "#54a24b"),
    "wait_s": ("wait", "#bab0ac"),
}
_LOG_FROM: Final = 20.0  # ratio of the longest to the shortest bar
_ROW_INCHES: Final = 0.36


def draw_comparison(comparison: Comparison, path: Path | BinaryIO) -> None:
    """Write a PNG: seconds of the first and of later epochs of each contender, their parts, bytes and memory.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    rows = comparison.rows
    figure = new_figure(width=16, height=1.6 + _ROW_INCHES * len(rows))
    epochs, parts, read, peak, target = figure.subplots(1, 5, sharey=True, width_ratios=(3, 3, 1, 1, 1))
    _draw_epochs(epochs, rows)
    _draw_parts(parts, rows)
    _draw_bars(read, rows, "GB read an epoch", [_in_gb(row.bytes_read) for row in rows])
    _draw_bars(
        peak, rows, "GB of memory, peak", [_in_gb(row.group_peak_bytes or row.peak_bytes) for row in rows]
    )
    times = [None if row.seconds_to_target is None else row.seconds_to_target.median for row in rows]
    _draw_bars(target, rows, "seconds to target accuracy", times)
    epochs.set_yticks(range(len(rows)), labels=[row.name for row in rows])
    epochs.invert_yaxis()
    figure.suptitle(f"{comparison.kind}: one epoch", fontsize="medium")
    save_figure(figure, path)


def _draw_epochs(axes: Any, rows: Sequence[Row]) -> None:
    """Draw a bar to the later epoch, a mark at the first, and the outcome of a contender without either."""
    for place, row in enumerate(rows):
        shown = row.shown_epoch_s
        if shown is None:
            note = row.outcome.split(":")[0]
            axes.annotate(
                note, (0.01, place), xycoords=("axes fraction", "data"), va="center", fontsize="small"
            )
            continue
        error = [[shown.median - shown.least], [shown.most - shown.median]]
        axes.barh(
            place,
            shown.median,
            height=0.7,
            color=_color(row),
            hatch="//" if row.is_extrapolated else None,
            edgecolor="white",
            xerr=error,
            error_kw={"linewidth": 0.8},
        )
        if row.first_epoch_s is not None:
            axes.plot(row.first_epoch_s.median, place, "|", color="black", markersize=9)
    seconds = [row.shown_epoch_s.median for row in rows if row.shown_epoch_s is not None]
    # On a linear axis a bar twenty times shorter is a line.
    if seconds and max(seconds) > _LOG_FROM * min(seconds):
        axes.set_xscale("log")
    axes.set_xlabel("seconds; bar: later epochs, mark: first; hatched: from a part of one", fontsize="small")
    tidy(axes, grid="x")


def _draw_parts(axes: Any, rows: Sequence[Row]) -> None:
    """Draw the parts of an epoch one after another; gloader's stages overlap its computation."""
    left = [0.0] * len(rows)
    for name, (label, color) in _PARTS.items():
        widths = [_share(row, name) for row in rows]
        axes.barh(range(len(rows)), widths, left=left, height=0.7, color=color, label=label)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlabel(
        "share of thread-seconds (gloader: sample, gather behind compute)",
        fontsize="small",
    )
    axes.legend(fontsize="small", ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    tidy(axes, grid="x")


def _draw_bars(axes: Any, rows: Sequence[Row], label: str, values: Sequence[float | None]) -> None:
    """Draw a bar for each contender that has a value."""
    known = [(place, value) for place, value in enumerate(values) if value is not None]
    colors = [_color(rows[place]) for place, _ in known]
    axes.barh([place for place, _ in known], [value for _, value in known], height=0.7, color=colors)
    axes.set_xlabel(label, fontsize="small")
    axes.set_xlim(left=0)
    tidy(axes, grid="x")


def _in_gb(num_bytes: float | None) -> float | None:
    return None if num_bytes is None else num_bytes / 1e9


def _color(row: Row) -> str:
    return _OURS if row.name.startswith("gloader") else _PEERS


def _share(row: Row, name: str) -> float:
    values = {part: getattr(row, part) or 0.0 for part in _PARTS}
    total = sum(values.values())
    return max(values[name], 0.0) / total if total > 0 else 0.0
