"""Results of `gloader inspect` as charts and a section.

`gloader inspect` predicts a run's reads. One chart shows the rows read from the SSD against the cache's memory, with a
curve for each cache policy. Its knee is the size beyond which more memory saves little. The other chart shows the edges
read against the number of batches that share a pass over the edges. `inspection_section` returns the report page's
section.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gloader.core.malformed import MALFORMED, shown
from gloader.core.units import format_bytes
from gloader.errors import FormatError
from gloader.lab.inspect.policy_misses import Inspection
from gloader.lab.report.page import Section, TextTable
from gloader.lab.report.svg import NUM_STYLES, Level, Series, draw_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.dataset.edge_passes import PassWay
    from gloader.lab.inspect.topology_reads import TopologyReads
    from gloader.lab.report.svg import Chart

_WAYS: tuple[PassWay, ...] = ("direct", "merged", "full")  # the drawn ways of a pass to read the edges
_GREY = NUM_STYLES - 1  # the style of the levels


def draw_inspection(inspection: Inspection, name: str) -> Chart | None:
    """Return a curve per policy, with the knee marked. None if nothing can be drawn.

    Parameters
    ----------
    inspection : the curves' data
    name : the chart's name
    """
    factor, unit = byte_unit(max(inspection.memory_bytes()))
    series = [
        Series(
            label=policy,
            style=number % NUM_STYLES,
            points=[
                (memory / factor, float(read))
                for memory, read in zip(
                    inspection.memory_bytes(), inspection.epoch_bytes(policy), strict=True
                )
            ],
            is_dotted=policy == "none" or number >= NUM_STYLES,
        )
        for number, policy in enumerate(inspection.misses)
    ]
    knee = Level(
        label=f"knee {format_bytes(inspection.knee_bytes)}", style=_GREY, value=inspection.knee_bytes / factor
    )
    return draw_lines(
        name,
        "Rows read from the SSD in an epoch against the memory of the cache, for each policy. The loading of static "
        "sets is not counted.",
        series,
        x=(f"host cache, {unit}", "zero"),
        y="zero",
        uprights=[knee],
        written=format_bytes,
    )


def draw_topology(reads: TopologyReads, name: str) -> Chart | None:
    """Return a curve per way to read edges, with a loader's choice of batches per pass.

    Parameters
    ----------
    reads : the curves' data
    name : the chart's name
    """
    series = [
        Series(
            label=way,
            style=style,
            points=[
                (float(found.num_batches), found.ways[way].num_bytes)
                for found in reads.passes
                if way in found.ways
            ],
        )
        for style, way in enumerate(_WAYS)
    ]
    choice = (
        []
        if reads.sweep is None
        else [Level(label="a loader's choice", style=_GREY, value=float(reads.sweep.num_batches))]
    )
    # A graph without edges has no reads, and zero has no logarithm.
    has_reads = reads.file_bytes > 0
    return draw_lines(
        name,
        "Edges read per batch against the batches that share a pass.",
        series,
        x=("batches that share a pass (S_t)", "log"),
        y="log" if has_reads else "zero",
        levels=[Level(label="alone, hop after hop", style=_GREY, value=reads.direct.num_bytes)]
        if has_reads
        else [],
        uprights=choice,
        written=format_bytes,
    )


def byte_unit(num_bytes: float) -> tuple[float, str]:
    """Return the bytes and the name of the unit for a readable axis up to ``num_bytes``. Pure."""
    return next(
        ((factor, name) for factor, name in ((1e9, "GB"), (1e6, "MB")) if num_bytes >= factor), (1e3, "KB")
    )


def inspection_section(values: Mapping[str, Any], *, source: str) -> Section:
    """Return the section for an ``inspect.json``. Raises FormatError if the file is no inspection.

    Parameters
    ----------
    values : the file's content
    source : the file's path
    """
    try:
        inspection = Inspection(
            num_nodes=values["num_nodes"],
            row_bytes=values["row_bytes"],
            num_accesses=values["accesses"],
            num_distinct=values["distinct_rows"],
            num_batches=values["batches"],
            epoch_batches=values["epoch_batches"],
            slots=tuple(values["slots"]),
            misses={name: tuple(policy["misses"]) for name, policy in values["policies"].items()},
            knee_slots=values["knee"]["slots"],
        )
        name = str(values["dataset"])
    except MALFORMED as error:
        raise FormatError(f"{source} is no inspection: {shown(error)}") from error
    policies = [policy for policy in inspection.misses if policy != "none"]
    columns = [inspection.ratios(policy) for policy in policies]
    rows = [
        (format_bytes(size), *(f"{ratio:.1%}" for ratio in ratios))
        for size, *ratios in zip(inspection.memory_bytes(), *columns, strict=True)
    ]
    return Section(
        title=f"Misses: {name}",
        source=source,
        facts=(
            ("knee", format_bytes(inspection.knee_bytes)),
            ("batches", f"{inspection.num_batches:,} of {inspection.epoch_batches:,}"),
        ),
        charts=tuple(filter(None, [draw_inspection(inspection, f"{name}-misses")])),
        tables=(TextTable(header=("cache", *policies), rows=tuple(rows)),),
        notes=(
            "static sets are in memory already: to load one reads as much as its memory, and is not counted",
        ),
    )
