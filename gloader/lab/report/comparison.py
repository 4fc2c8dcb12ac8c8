"""Measurements of `experiments/bench/compare.py` as tables and as charts.

The benchmark trains the same model with several contenders: gloader with some settings, and other libraries. It writes
a JSON file. `Comparison.from_json` reads the part for one graph: a `Row` has one contender's measurements.
`Comparison.table` and `comparison_charts` show them on the report page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gloader.core.malformed import MALFORMED, shown
from gloader.core.units import format_bytes, format_seconds
from gloader.errors import FormatError
from gloader.lab.report.page import TextTable
from gloader.lab.report.svg import Bar, draw_bars

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gloader.lab.report.svg import Chart


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
    """A median over repeats in seconds, and their range."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contender. Figures that were not measured are None."""

    name: str
    features: str  # the features' place: "memory", "ssd" or "memmap"
    is_limited: bool  # True if a memory limit applied
    outcome: str  # "done", or the reason why the contender ended early
    settings: str  # the chosen settings, in words
    first_epoch_s: Spread | None
    later_epoch_s: Spread | None
    is_extrapolated: bool  # epoch figures are extrapolated from a part of an epoch
    # Per epoch: the seconds of all threads together in each stage, and the bytes read from the disk.
    sample_s: float | None
    gather_s: float | None
    compute_s: float | None
    wait_s: float | None
    bytes_read: float | None
    peak_bytes: int | None  # resident bytes, with shared file pages
    group_peak_bytes: int | None  # the control group's bytes, with page cache: a limit counts these
    seconds_to_target: Spread | None  # seconds until the target accuracy was reached

    @property
    def shown_epoch_s(self) -> Spread | None:
        """A later epoch's seconds, or the first epoch's if there is no other."""
        return self.later_epoch_s or self.first_epoch_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Contenders on one graph."""

    kind: str  # the graph's kind
    heading: str
    rows: tuple[Row, ...]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Comparison:
        """Read one element from ``comparisons``.

        Raises
        ------
        FormatError
            A value is missing or has the wrong type.
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
        """Return a table with a row for each contender."""
        return TextTable(header=_HEADER, rows=tuple(_cells(row) for row in self.rows))

    def notes(self) -> tuple[str, ...]:
        """Return a line for each contender that ended early or has chosen settings."""
        return tuple(
            f"{row.name}: "
            + "; ".join(filter(None, (row.settings, "" if row.outcome == "done" else row.outcome)))
            for row in self.rows
            if row.outcome != "done" or row.settings
        )


def _heading(values: Mapping[str, Any]) -> str:
    """Return the comparison's graph, workload and limit in words."""
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
    """Return a contender's row from its JSON object."""
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
    """Return the spread in a JSON object, or None if it was not measured."""
    if values is None:
        return None
    return Spread(median=values["median"], least=values["least"], most=values["most"])


def _cells(row: Row) -> tuple[str, ...]:
    """Return a row of the table. Its columns are those of `_HEADER`."""
    approximately = "~" if row.is_extrapolated else ""
    shown = row.shown_epoch_s
    span = "" if shown is None else f"{format_seconds(shown.least)} to {format_seconds(shown.most)}"
    return (
        row.name,
        row.features,
        "yes" if row.is_limited else "none",
        _median(row.first_epoch_s, approximately if row.later_epoch_s is None else ""),
        _median(row.later_epoch_s, approximately),
        span,
        *(_seconds(value) for value in (row.sample_s, row.gather_s, row.compute_s, row.wait_s)),
        "" if row.bytes_read is None else format_bytes(int(row.bytes_read)),
        "" if row.peak_bytes is None else format_bytes(row.peak_bytes),
        "" if row.group_peak_bytes is None else format_bytes(row.group_peak_bytes),
        _median(row.seconds_to_target, ""),
        row.outcome.split(":")[0],
    )


def _median(value: Spread | None, approximately: str) -> str:
    """Return a median in words, after the prefix ``approximately``; "" without a value."""
    return "" if value is None else approximately + format_seconds(value.median)


def _seconds(value: float | None) -> str:
    return "" if value is None else format_seconds(value)


_GB: Final = 1e9  # bytes
# Chart styles (see `gloader.lab.report.svg`) of gloader, of other contenders, and of the parts of an epoch.
_OURS: Final = 0
_PEERS: Final = 4
_PARTS: Final = (("sample", 0), ("gather", 3), ("compute", 2), ("wait", 7))


def comparison_charts(comparison: Comparison) -> list[Chart]:
    """Return a comparison's charts: seconds per epoch, their parts, bytes, memory, and time to the target."""
    kind, rows = comparison.kind, comparison.rows
    # The bars of the second chart, for the contenders whose stages were measured. Their ends have no text.
    parts = [
        Bar(label=row.name, parts=shares, end=" ") for row in rows if sum(shares := _part_shares(row)) > 0
    ]
    charts = [
        _bars(
            f"compare-{kind}",
            "Seconds of a later epoch, or of the first if there is no other; medians, least to most in brackets.",
            [(row, row.shown_epoch_s) for row in rows],
            "seconds of an epoch",
            format_seconds,
        ),
        draw_bars(
            f"compare-{kind}-parts",
            "Share of the thread-seconds of an epoch; gloader samples and gathers while the model computes.",
            _PARTS,
            parts,
            x_label="share of thread-seconds",
            written="{:.0%}".format,
        ),
        _bars(
            f"compare-{kind}-read",
            "Bytes read in an epoch.",
            [(row, _in_gb(row.bytes_read)) for row in rows],
            "GB",
            _gb_text,
        ),
        _bars(
            f"compare-{kind}-memory",
            "Peak of memory.",
            [(row, _in_gb(row.group_peak_bytes or row.peak_bytes)) for row in rows],
            "GB",
            _gb_text,
        ),
        _bars(
            f"compare-{kind}-target",
            "Seconds to the target accuracy.",
            [(row, row.seconds_to_target) for row in rows],
            "seconds",
            format_seconds,
        ),
    ]
    return [chart for chart in charts if chart is not None]


def _bars(
    name: str,
    caption: str,
    values: Sequence[tuple[Row, Spread | float | None]],
    label: str,
    written: Callable[[float], str],
) -> Chart | None:
    """Return a chart with a bar for each contender. Without a value, the bar shows the outcome."""
    bars = []
    for row, value in values:
        figure = value.median if isinstance(value, Spread) else value
        approximately = "~" if row.is_extrapolated and figure is not None else ""
        end = row.outcome.split(":")[0] if figure is None else approximately + written(figure)
        if isinstance(value, Spread):
            end += f" ({written(value.least)} to {written(value.most)})"
        is_own = row.name.startswith("gloader")
        # A bar has two parts, one in gloader's style and one in the others' style; one of them is 0.
        length = figure or 0.0
        bars.append(Bar(label=row.name, parts=(length * is_own, length * (not is_own)), end=end))
    parts = (("gloader", _OURS), ("others", _PEERS))
    return draw_bars(name, caption, parts, bars, x_label=label, written=written)


def _part_shares(row: Row) -> tuple[float, ...]:
    """Return the share of each part in `_PARTS`, or zeros if no part was measured."""
    values = [max(value or 0.0, 0.0) for value in (row.sample_s, row.gather_s, row.compute_s, row.wait_s)]
    return tuple(value / (sum(values) or 1.0) for value in values)


def _in_gb(num_bytes: float | None) -> float | None:
    return None if num_bytes is None else num_bytes / _GB


def _gb_text(value: float) -> str:
    return format_bytes(value * _GB)
