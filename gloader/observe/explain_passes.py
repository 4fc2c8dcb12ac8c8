"""What passes over the edges took, beside what was predicted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from gloader.core.units import format_bytes, format_seconds
from gloader.observe.explain import aligned, format_error, median_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.dataset.edge_passes import PassReport
    from gloader.observe.epoch_stats import EpochStats


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPass:
    """A pass over the edges that was made."""

    report: PassReport
    num_batches: int  # that it brought the last hop of: those that can be made now
    measured_s: float  # that it used the disk, whose time is shared out among those who use it together
    cpu_s: float  # that its thread picked, verified and dealt out meanwhile


def explain_passes(passes: Sequence[MeasuredPass]) -> str:
    """Return a table of the disk's predicted against measured seconds, a line for each kind of pass, of medians.

    Passes of one kind completed the same number of batches, and read in the same way.
    """
    kinds: dict[tuple[str, int], list[MeasuredPass]] = defaultdict(list)
    for one in passes:
        kinds[one.report.way, one.num_batches].append(one)
    table = [
        [
            "read",
            "batches",
            "times",
            "read from disk",
            "written",
            "predicted",
            "measured",
            "processor",
            "error",
        ]
    ]
    table += [_cells(kind) for kind in kinds.values()]
    lines = ["passes over the edges, predicted for the disk and measured:", *aligned(table)]
    error = pass_error(passes)
    if error is not None:
        lines.append(f"pass time: predicted to {error:.0%} (median over passes)")
    return "\n".join(lines)


def pass_error(passes: Sequence[MeasuredPass]) -> float | None:
    """Return the median of |predicted / measured - 1| over ``passes``; None: there are none. Pure."""
    return median_error((one.report.predicted_s, one.measured_s) for one in passes)


def edges_moved(stats: EpochStats) -> str:
    """Say what passes over the edges moved in an epoch; nothing where there were none. Pure."""
    if not stats.edge_passes:
        return ""
    times = "pass" if stats.edge_passes == 1 else "passes"
    return (
        f"{stats.edge_passes:,} {times} over the edges: {format_bytes(stats.edge_bytes_read)} read, "
        f"{format_bytes(stats.edge_bytes_written)} written"
    )


def _cells(kind: list[MeasuredPass]) -> list[str]:
    first = kind[0]
    measured_s = median(one.measured_s for one in kind)
    return [
        first.report.way,
        str(first.num_batches),
        str(len(kind)),
        format_bytes(median(one.report.cost.read.bytes_read for one in kind)),
        format_bytes(median(one.report.cost.bytes_written for one in kind)),
        format_seconds(median(one.report.predicted_s for one in kind)),
        format_seconds(measured_s),
        format_seconds(median(one.cpu_s for one in kind)),
        format_error(median_error([(median(one.report.predicted_s for one in kind), measured_s)])),
    ]
