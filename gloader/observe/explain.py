"""A loader's explanations as text: its plan before the run, and the comparison with measurements afterwards.

`explain_tiers` shows each part of the data with its home: memory or the SSD. `explain_io` shows the disk's rates.
`explain_run` compares predicted with measured times of superbatches, which are groups of batches whose missing rows
are read together. `explain_passes` does the same for passes (sweeps), which read the edge file once for many batches.
A loader's `explain` and the command line print these texts. Retrieval is the reading of missing rows from the disk. A
step is one batch's part of the training loop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from gloader.core.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gloader.dataset.edge_passes import PassReport
    from gloader.observe.epoch_stats import EpochStats
    from gloader.plan.embedding_cost import RowCost, RowTraffic
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.plan.topology_home import TopologyChoice
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.ssd_store.cost.strategy import Choice, SuperbatchSize


# Advice for a loader whose features would fit in memory, but are kept on the SSD by its settings.
FITS_IN_MEMORY: Final = (
    "all features would fit in memory, and are read from the SSD again and again; --features auto (in Python "
    "features='auto') keeps them in memory"
)

# With three feature buffers, reading, gathering and the training loop overlap.
_ALL_AT_WORK: Final = 3
# The effect of fewer buffers, by their number.
_FEW_BUFFERS: Final = {
    1: "memory for one feature buffer: reading waits while the loop computes, and asking for the next batch empties "
    "the x of the last; a smaller batch size or a larger budget makes room for more",
    2: "memory for two feature buffers: reading the next batch waits until the last one is gathered",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """Size of one node type's feature table."""

    name: str  # the node type
    num_nodes: int  # number of rows
    row_bytes: int  # stored bytes per row


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFacts:
    """Facts for `explain_tiers`: homes and sizes of a loader's data."""

    tables: tuple[TableFacts, ...]  # tables in the plan's order
    plan: MemoryPlan  # the division of the memory budget
    policy: str  # cache policy
    topology: TopologyChoice  # the home of the edges, with the reason
    rates: IoRates  # the disk's rates, measured or assumed
    links: str = ""  # a line about the links, if seeds are edges
    embeddings: tuple[str, ...] = ()  # a line about the trained rows of each node type with an embedding

    @property
    def table_names(self) -> tuple[str, ...]:
        """Each table's node type."""
        return tuple(table.name for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class IoFacts:
    """Facts for `explain_io`: the settings and rates by which missing rows are read."""

    size: SuperbatchSize  # batches per superbatch, with the reason
    rates: IoRates  # the disk's rates, measured or assumed
    staging_bytes: int  # memory for the missing rows of a superbatch
    spill_bytes: int  # disk space for them


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperbatchReport:
    """Predicted and measured figures for one superbatch."""

    number: int  # number of the superbatch, from 0
    num_batches: int  # batches of the superbatch
    rows: int  # gathered rows
    misses: int  # rows read from the disk
    choice: Choice  # how the rows were read, with the prediction
    predicted_step_s: float | None  # seconds per batch; None without an earlier measurement
    measured_retrieval_s: float  # seconds over all batches
    measured_step_s: float  # mean seconds per batch
    measured_bytes: int = 0  # disk reads over all batches
    table: str = ""  # name of the rows' table, if there are several tables, each with its own report

    @property
    def predicted_retrieval_s(self) -> float:
        """Predicted seconds for reading all missing rows."""
        return self.choice.predicted_s


def predict_step(*, cpu_s: float, retrieval_s: float, compute_s: float, cores: int) -> float:
    """Return the seconds for a step whose parts overlap: the busiest resource's time. Pure.

    There are three resources: the cores, which share all processor seconds; the disk; and the computation, whose steps
    follow one another. Either all arguments are for one batch, or all are for one superbatch.

    Parameters
    ----------
    cpu_s : processor seconds for sampling, inspection, gathering and the computation
    retrieval_s : seconds that the disk is busy
    compute_s : wall seconds for the computation or another consumer
    cores : cores that all parts share
    """
    # This is the largest time and not the sum, because the resources work on different batches at the same time.
    return max(cpu_s / cores, retrieval_s, compute_s)


def explain_tiers(facts: TierFacts) -> str:
    """Return one line for each part of the data with its home and size."""
    plan = facts.plan
    lines = [f"memory budget {format_bytes(plan.budget_bytes)}, planned {format_bytes(plan.total_bytes)}:"]
    lines += [f"  {name}: {format_bytes(size)}" for name, size in plan.parts]
    lines += _explain_topology(facts)
    lines += [facts.links] if facts.links else []
    lines += _explain_features(facts)
    if plan.would_fit:
        lines.append(f"  {FITS_IN_MEMORY}")
    lines += facts.embeddings
    if plan.num_buffers < _ALL_AT_WORK:
        lines.append(f"  {_FEW_BUFFERS[plan.num_buffers]}")
    if facts.tables:  # without tables nothing is divided
        lines.append("shared out as predicted to be the fastest:")
        lines += [f"  {text}" for text in plan.candidates]
    return "\n".join(lines)


def _explain_features(facts: TierFacts) -> list[str]:
    """Return the features' home, and each table's cached rows if there are several tables."""
    plan = facts.plan
    if not facts.tables:
        return ["features: no node type has any"]
    if plan.features == "ram":
        return ["features: in memory (they fit the budget); the SSD is not used"]
    num_nodes = sum(table.num_nodes for table in facts.tables)
    cached = _cached_text(sum(plan.cache_rows), num_nodes)
    lines = [f"features: on the SSD; {cached} in memory, policy {facts.policy}"]
    if len(facts.tables) == 1:
        return lines
    for table, rows, missed in zip(facts.tables, plan.cache_rows, plan.missed_bytes, strict=True):
        text = f"  {table.name}: {_cached_text(rows, table.num_nodes)} of {format_bytes(table.row_bytes)}"
        read = f"about {format_bytes(missed)} are" if missed else "nothing is"
        lines.append(f"{text}; {read} read from the SSD for a superbatch")
    return lines


def _cached_text(rows: int, num_nodes: int) -> str:
    """Return the number of cached rows as text, with their share of all rows."""
    return f"{rows:,} rows ({100 * rows / max(num_nodes, 1):.1f}%)"


def _explain_topology(facts: TierFacts) -> list[str]:
    """Return the edges' home and their reading cost."""
    choice, sweeps = facts.topology, facts.plan.sweeps
    size = format_bytes(choice.topology_bytes)
    if choice.home == "ram":
        return [f"edges: {size}, kept in memory ({choice.reason})"]
    if sweeps is None:
        return [f"edges: {size} on the SSD, read page by page ({choice.reason})"]
    part, drawn, whole, spilled = (
        format_bytes(num_bytes)
        for num_bytes in (
            sweeps.part_bytes,
            sweeps.drawn_bytes,
            sweeps.file_bytes,
            sweeps.spill_bytes,
        )
    )
    seconds = format_seconds(sweeps.pass_seconds(facts.rates))
    return [
        f"edges: {size} on the SSD, read in sweeps ({choice.reason})",
        f"  sweeps of up to {sweeps.num_batches} batches ({sweeps.reason}), and of up to {whole} each",
        f"  a batch: {part} of that, and {drawn} written and read back twice, in {seconds}",
        f"  disk for what sweeps bring: up to {spilled}",
    ]


def explain_io(facts: IoFacts) -> str:
    """Return the superbatch size, the disk's rates, and the room for missing rows."""
    rates = facts.rates
    wide = f" ({format_count(rates.wide_reads_per_s)} of 64 KiB)" if rates.wide_reads_per_s else ""
    source = "disk (assumed; `gloader doctor` measures it)" if rates.is_assumed else "disk"
    disk = (
        f"{source}: {format_count(rates.random_reads_per_s)} random reads/s{wide}, "
        f"{format_bytes(rates.read_bytes_per_s)}/s read, {format_bytes(rates.write_bytes_per_s)}/s written"
    )
    room = (
        f"missing rows of a superbatch: up to {format_bytes(facts.staging_bytes)} in memory, "
        f"{format_bytes(facts.spill_bytes)} on disk"
    )
    return "\n".join(
        [
            f"superbatch: up to {facts.size.num_batches} batches planned together ({facts.size.reason})",
            disk,
            room,
        ]
    )


def explain_run(reports: Sequence[SuperbatchReport]) -> str:
    """Return a table with predicted and measured seconds. It has a line for each kind of superbatch.

    Superbatches of the same kind have the same number of batches and were read in the same way. The figures are medians
    over a kind. A column "error" compares the medians in the two columns to its left.
    """
    if not reports:
        return "no superbatch was finished"
    table = [
        ["read", "batches", "times", "misses", "retrieval", "measured", "error", "step", "measured", "error"],
        *(_cells(kind) for kind in _kinds(reports)),
    ]
    lines = ["superbatches, predicted and measured:", *aligned(table)]
    for what, error in (("retrieval", retrieval_error(reports)), ("step", step_error(reports))):
        if error is not None:
            lines.append(f"{what} time: predicted to {error:.0%} (median over superbatches)")
    return "\n".join(lines + _explain_tables(reports))


def _explain_tables(reports: Sequence[SuperbatchReport]) -> list[str]:
    """Return each table's share of cached rows and its reads. Empty with a single table."""
    tables: dict[str, list[SuperbatchReport]] = defaultdict(list)
    for report in reports:
        if report.table:
            tables[report.table].append(report)
    lines = []
    for name, table_reports in tables.items():
        rows = sum(report.rows for report in table_reports)
        misses = sum(report.misses for report in table_reports)
        ways = Counter(report.choice.text for report in table_reports if report.misses)
        text = ", ".join(f"{way} {times}" for way, times in ways.most_common())
        text = f"{text}; {_bytes_text(table_reports)}" if text else "nothing was read"
        lines.append(
            f"{name}: {1 - misses / max(rows, 1):.0%} of {format_count(rows)} rows were cached; {text}"
        )
    return lines


def _bytes_text(reports: Sequence[SuperbatchReport]) -> str:
    """Return the bytes that the disk read per batch, measured and predicted."""
    batches = max(sum(report.num_batches for report in reports), 1)
    measured, predicted = (
        format_bytes(sum(sizes) // batches)
        for sizes in (
            [report.measured_bytes for report in reports],
            [report.choice.read_bytes for report in reports],
        )
    )
    return f"a batch read {measured}, predicted {predicted}"


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Return ``table`` as lines. The first column is left-aligned, numbers are right-aligned. Pure."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in table
    ]


def run_json(reports: Sequence[SuperbatchReport]) -> dict[str, Any]:
    """Return all reports and the median errors as JSON values."""
    return {
        "retrieval_error": retrieval_error(reports),
        "step_error": step_error(reports),
        "superbatches": [_report_json(report) for report in reports],
    }


def retrieval_error(reports: Iterable[SuperbatchReport]) -> float | None:
    """Return the retrieval's median |predicted / measured - 1|, or None if nothing was read."""
    pairs = [(r.predicted_retrieval_s, r.measured_retrieval_s) for r in reports if r.misses]
    return median_error(pairs)


def step_error(reports: Iterable[SuperbatchReport]) -> float | None:
    """Return the step's median |predicted / measured - 1|, or None without predictions."""
    pairs = [(r.predicted_step_s, r.measured_step_s) for r in reports if r.predicted_step_s is not None]
    return median_error(pairs)


def median_error(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Return the median |predicted / measured - 1| over ``pairs``, or None without measurements. Pure."""
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs if measured > 0]
    # The median is used, because a superbatch may be far off while the machine does something else.
    return median(errors) if errors else None


def _kinds(reports: Sequence[SuperbatchReport]) -> list[list[SuperbatchReport]]:
    """Group reports by table, size and strategy, in the order of first appearance."""
    kinds: dict[tuple[str, int, str], list[SuperbatchReport]] = defaultdict(list)
    for report in reports:
        kinds[report.table, report.num_batches, report.choice.text].append(report)
    return list(kinds.values())


def _cells(kind: list[SuperbatchReport]) -> list[str]:
    """Return the table row for one kind of superbatch."""
    first = kind[0]
    steps = [report for report in kind if report.predicted_step_s is not None]
    retrieval = [
        _median(kind, "predicted_retrieval_s"),
        _median(kind, "measured_retrieval_s"),
    ]
    predicted_s = _median(steps, "predicted_step_s") if steps else None
    step_s = _median(kind, "measured_step_s")
    return [
        f"{first.table} {first.choice.text}".lstrip(),
        str(first.num_batches),
        str(len(kind)),
        format_count(_median(kind, "misses")),
        *map(format_seconds, retrieval),
        # This error compares the two medians in this row. The median error over all rows is below the table.
        format_error(
            median_error([(retrieval[0], retrieval[1])] if any(report.misses for report in kind) else [])
        ),
        "-" if predicted_s is None else format_seconds(predicted_s),
        format_seconds(step_s),
        format_error(None if predicted_s is None else median_error([(predicted_s, step_s)])),
    ]


def _median(kind: list[SuperbatchReport], value: str) -> float:
    """Return the median of the attribute ``value``."""
    return median(getattr(report, value) for report in kind)


def format_error(error: float | None) -> str:
    """Return ``error`` as a percentage, or "-" for None."""
    return "-" if error is None else f"{error:.0%}"


def _choice_json(choice: Choice) -> dict[str, Any]:
    return {"strategy": choice.strategy, "predicted_s": dict(choice.predicted), "reason": choice.reason}


def _report_json(report: SuperbatchReport) -> dict[str, Any]:
    """Return a report as JSON values by the names of its fields."""
    table = {"table": report.table} if report.table else {}
    return table | {
        "number": report.number,
        "num_batches": report.num_batches,
        "rows": report.rows,
        "misses": report.misses,
        "choice": _choice_json(report.choice),
        "predicted_retrieval_s": report.predicted_retrieval_s,
        "measured_retrieval_s": report.measured_retrieval_s,
        "predicted_step_s": report.predicted_step_s,
        "measured_step_s": report.measured_step_s,
        "predicted_bytes": report.choice.read_bytes,
        "measured_bytes": report.measured_bytes,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPass:
    """One completed pass over the edges."""

    report: PassReport  # the pass's way of reading, its cost and its predicted seconds
    num_batches: int  # batches that can be built now, because the pass drew the edges of their last hop
    measured_s: float  # time on the disk; concurrent users share the disk's time
    cpu_s: float  # processor time of the pass's thread: picking neighbours, verifying and distributing edges


def explain_passes(passes: Sequence[MeasuredPass]) -> str:
    """Return a table with predicted and measured disk seconds, as medians for each kind of pass.

    Passes of the same kind completed the same number of batches and read in the same way.
    """
    kinds: dict[tuple[str, int], list[MeasuredPass]] = defaultdict(list)
    for measured in passes:
        kinds[measured.report.way, measured.num_batches].append(measured)
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
    table += [_pass_cells(kind) for kind in kinds.values()]
    lines = ["passes over the edges, predicted for the disk and measured:", *aligned(table)]
    error = pass_error(passes)
    if error is not None:
        lines.append(f"pass time: predicted to {error:.0%} (median over passes)")
    return "\n".join(lines)


def pass_error(passes: Sequence[MeasuredPass]) -> float | None:
    """Return the median |predicted / measured - 1| over ``passes``, or None without passes. Pure."""
    return median_error((measured.report.predicted_s, measured.measured_s) for measured in passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReport:
    """Predicted and measured work for the trained rows of a node type."""

    name: str  # the node type
    traffic: RowTraffic  # the rows that moved
    row_bytes: int  # weights and state of a row
    predicted: RowCost  # the disk's work
    bytes_read: int
    bytes_written: int
    measured_s: float  # seconds of reading ahead, of evictions and of loads; several threads share them
    waited_s: float  # seconds that loads waited for steps
    is_assumed: bool = False  # True if the disk's rates were assumed, not measured


def explain_rows(report: RowReport) -> str:
    """Return lines on trained rows: the loaded rows by source, and the work of the disk, predicted and measured.

    The text is "" before the first load.
    """
    traffic, predicted = report.traffic, report.predicted
    loaded = traffic.forward + traffic.staged + traffic.late + traffic.fresh
    if not loaded:
        return ""
    kept, ahead, fresh, late = (
        rows / loaded for rows in (traffic.forward, traffic.staged, traffic.fresh, traffic.late)
    )
    source = ", for assumed rates of the disk (`gloader doctor` measures them)" if report.is_assumed else ""
    sizes = [
        format_bytes(rows * report.row_bytes // max(traffic.num_superbatches, 1))
        for rows in (traffic.forward, traffic.staged, traffic.appended)
    ]
    return (
        f"trained rows of {report.name}: {format_count(loaded)} loaded, of which {kept:.0%} were kept since an earlier "
        f"batch, {ahead:.0%} were read ahead, {fresh:.0%} were not yet trained and {late:.0%} were read at their load; "
        f"loads waited {format_seconds(report.waited_s)} for steps\n"
        f"  a superbatch: {sizes[0]} kept for later batches, {sizes[1]} read ahead, {sizes[2]} written to the table\n"
        f"  predicted{source}: {format_bytes(predicted.read_bytes)} read, {format_bytes(predicted.written_bytes)} "
        f"written, {format_seconds(predicted.seconds)} of the disk\n"
        f"  measured: {format_bytes(report.bytes_read)} read, {format_bytes(report.bytes_written)} written, "
        f"{format_seconds(report.measured_s)} of reading ahead, of evictions and of loads"
    )


def edges_moved(stats: EpochStats) -> str:
    """Return a text on the bytes that an epoch's passes over the edges read and wrote, or "" without passes. Pure."""
    if not stats.edge_passes:
        return ""
    times = "pass" if stats.edge_passes == 1 else "passes"
    return (
        f"{stats.edge_passes:,} {times} over the edges: {format_bytes(stats.edge_bytes_read)} read, "
        f"{format_bytes(stats.edge_bytes_written)} written"
    )


def _pass_cells(kind: list[MeasuredPass]) -> list[str]:
    """Return the table row for one kind of pass."""
    first = kind[0]
    measured_s = median(measured.measured_s for measured in kind)
    reports = [measured.report for measured in kind]
    predicted_s = median(report.predicted_s for report in reports)
    return [
        first.report.way,
        str(first.num_batches),
        str(len(kind)),
        format_bytes(median(report.cost.read.bytes_read for report in reports)),
        format_bytes(median(report.cost.bytes_written for report in reports)),
        format_seconds(predicted_s),
        format_seconds(measured_s),
        format_seconds(median(measured.cpu_s for measured in kind)),
        format_error(median_error([(predicted_s, measured_s)])),
    ]
