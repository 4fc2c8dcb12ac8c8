"""The picture of a comparison: the epochs of contenders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gloader.lab.report.canvas import new_figure, save_figure, tidy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import BinaryIO

    from gloader.lab.report.comparison import Comparison, Row

# Blue and orange stay apart for readers who do not tell red from green.
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
    """Draw a bar to the later epoch, a mark at the first, and what became of a contender without either."""
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
    """Draw the parts of an epoch one after another; those of gloader's stages overlap its computation."""
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
