"""Conversion of a source into a dataset directory, within a memory budget."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, overload

from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.edge_rows import FeaturedEdges, recorded_dtype, write_edges
from gloader.convert.hetero_prepare import HeteroPrepareReport, prepare_typed
from gloader.convert.links.link_tables import planned_tables, split_source, with_tables
from gloader.convert.links.write_tables import write_tables
from gloader.convert.node_order import RowOrder, find_order, ordered_rows, renumbered
from gloader.convert.prepare_plan import PreparePlan, plan_prepare
from gloader.convert.progress import NO_PROGRESS, PrepareProgress, WatchedSteps
from gloader.convert.receipt import Receipt
from gloader.convert.source import AnySource, HeteroSource
from gloader.convert.source_check import check_source
from gloader.convert.stored_parts import KeptTopology
from gloader.core.paths import bytes_on_disk, nearest_existing
from gloader.core.units import format_bytes
from gloader.dataset.writer import DatasetWriter
from gloader.errors import ConfigError
from gloader.plan.available import default_budget_bytes
from gloader.plan.too_small import planned_within
from gloader.ssd_store.os_io import require_free_space
from gloader.types import EDGE

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.convert.csc.external_csc import CscReport
    from gloader.convert.edge_rows import EdgeSink
    from gloader.convert.links.write_tables import LinkReport
    from gloader.convert.options import OrderName, PrepareOptions
    from gloader.convert.source import Source

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareReport:
    """Sizes, counts and times of a finished conversion."""

    path: Path
    num_nodes: int
    num_edges: int  # stored
    edges_read: int  # from the source
    has_edge_times: bool
    edge_feature_dim: int  # 0: edges have no features
    edge_feature_dtype: str | None  # None: likewise
    feature_dim: int
    feature_dtype: str
    order: OrderName
    seconds: float
    order_seconds: float  # spent on finding the order
    edge_seconds: float  # with the features of edges
    feature_seconds: float
    dataset_bytes: int  # on disk
    spilled_bytes: int  # temporary edges that went through the disk
    budget_bytes: int
    peak_bytes: int = 0  # of memory, above Python, libraries and kernels; as it was seen between chunks
    links: dict[str, LinkReport] = field(default_factory=dict)  # of each link table
    receipt: dict[str, str] = field(default_factory=dict)  # as the dataset records it; see `Receipt`


def plan_source(source: Source, out: Path, options: PrepareOptions) -> PreparePlan:
    """Check a source and return what its conversion takes; nothing is written.

    Parameters
    ----------
    source : its arrays of one entry per node are checked; edges and features are not read
    out : the folder that the dataset would have
    options : of the conversion

    Raises
    ------
    ShapeError
        Features or labels are not one per node, or a feature row has no columns.
    SourceError
        A label is no class, or the splits are malformed.
    BudgetError
        The memory budget is too small; says needed and allowed.
    StoreWriteError
        The disk has no room; says needed and free.
    ConfigError
        The feature dtype cannot be stored, or a link table is not one.
    """
    return _plan(with_tables(source, options), out, options)


def _plan(source: Source, out: Path, options: PrepareOptions) -> PreparePlan:
    check_source(source)
    _refuse_options(source, options)
    budget = default_budget_bytes() if options.memory_budget_bytes is None else options.memory_budget_bytes
    plan = planned_within(lambda size: plan_prepare(source, options, budget_bytes=size), budget)
    require_free_space(nearest_existing(out.absolute().parent), plan.dataset_bytes + plan.scratch_bytes)
    return plan


@overload
def prepare(
    source: Source, out: Path, options: PrepareOptions, *, progress: PrepareProgress = ...
) -> PrepareReport: ...
@overload
def prepare(
    source: HeteroSource, out: Path, options: PrepareOptions, *, progress: PrepareProgress = ...
) -> HeteroPrepareReport: ...
@overload
def prepare(
    source: AnySource, out: Path, options: PrepareOptions, *, progress: PrepareProgress = ...
) -> PrepareReport | HeteroPrepareReport: ...
def prepare(
    source: AnySource, out: Path, options: PrepareOptions, *, progress: PrepareProgress = NO_PROGRESS
) -> PrepareReport | HeteroPrepareReport:
    """Write ``source`` as a dataset directory at ``out``: all of it, or nothing.

    Edges are read once, or twice where nodes are put in another order, and sorted within the budget; features
    pass through in chunks. Besides the budget, a running interpreter with the libraries takes about 200 MB.

    Parameters
    ----------
    source : the graph; one of several types is written by `prepare_typed`
    out : the folder to make; it appears when the dataset is complete
    options : of the conversion
    progress : receives the steps

    Raises
    ------
    ShapeError, SourceError, BudgetError, ConfigError
        As `plan_source`; also where a stream turns out shorter, longer or malformed.
    GraphError
        An edge names a node that does not exist, has a weight that is not a finite number of at least 0, or a time that
        is beyond those that are stored.
    StoreExistsError, StoreLockedError, StoreWriteError
        ``out`` exists, is being created by another process, or the disk refuses.
    """
    steps = WatchedSteps(progress)
    held = source.labels.nbytes + source.splits.num_bytes
    report: PrepareReport | HeteroPrepareReport
    if isinstance(source, HeteroSource):
        report = prepare_typed(source, out, options, progress=steps)
    else:
        report = _prepare(source, out, options, steps)
    return replace(report, peak_bytes=steps.peak_bytes(held))


def _prepare(source: Source, out: Path, options: PrepareOptions, progress: PrepareProgress) -> PrepareReport:
    started = time.perf_counter()
    receipt, source = Receipt.of(with_tables(source, options), options)
    plan = _plan(source, out, options)
    with DatasetWriter(
        out,
        name=source.name,
        num_nodes=source.num_nodes,
        num_classes=source.num_classes,
        overwrite=options.overwrite,
        part=options.ranges,
        metadata={
            "source": source.origin,
            "options": asdict(options.rules)
            | {"dtype": options.stored_dtype, "order": options.order}
            | recorded_dtype(options, source.edge_features)
            | options.recorded_split,
            "has_self_loops": options.self_loops,
        },
    ) as writer:
        _log_plan(source, plan)
        source = split_source(source, options, budget_bytes=plan.edge_budget_bytes, progress=progress)
        order = _find_order(source, writer, plan, options, progress)
        order_done = time.perf_counter()
        # Edges, labels and splits get their new ids here; the rows of the features change places as they are written.
        if order is not None:
            source = renumbered(source, order)
            writer.original_ids(order.original_ids)
        graph = KeptTopology(writer)
        counted = receipt.counted(EDGE, source.edges, budget_bytes=plan.budget_bytes)
        edges = _write_edges(replace(source, edges=counted), graph, writer.scratch, plan, options, progress)
        links = write_tables(
            planned_tables(source, [EDGE], options, new_ids=None if order is None else order.new_ids),
            writer,
            {EDGE: graph},
            budget_bytes=plan.edge_budget_bytes,
            progress=progress,
        )
        edges_done = time.perf_counter()
        _write_features(source, order, writer, plan, options, progress)
        features_done = time.perf_counter()
        writer.labels(source.labels)
        writer.splits(train=source.splits.train, valid=source.splits.valid, test=source.splits.test)
        lines = receipt.lines({EDGE: edges})
        writer.annotate(receipt=lines)
    return PrepareReport(
        path=out,
        num_nodes=source.num_nodes,
        num_edges=edges.num_edges,
        edges_read=edges.edges_read,
        has_edge_times=source.edges.has_times,
        edge_feature_dim=0 if source.edge_features is None else source.edge_features.dim,
        edge_feature_dtype=None if source.edge_features is None else options.stored_edge_dtype,
        feature_dim=source.features.dim,
        feature_dtype=options.stored_dtype,
        seconds=time.perf_counter() - started,
        order=options.order,
        order_seconds=order_done - started,
        edge_seconds=edges_done - order_done,
        feature_seconds=features_done - edges_done,
        dataset_bytes=bytes_on_disk(out, has_holes=options.num_parts > 1),
        spilled_bytes=edges.spilled_bytes,
        budget_bytes=plan.budget_bytes,
        links=links,
        receipt=lines,
    )


def _refuse_options(source: Source, options: PrepareOptions) -> None:
    one = f"is for graphs of several node types; {source.origin} has one type and one relation"
    if options.symmetrized:
        raise ConfigError(f"--symmetrize {options.symmetrized[0]} {one}: write --symmetrize alone")
    if options.add_reverse:
        raise ConfigError(f"--add-reverse {one}: write --symmetrize")


def _log_plan(source: Source, plan: PreparePlan) -> None:
    # How many edges such a file has is known when it has been read: few take little of what they may take.
    is_counted = source.edges.num_edges is not None
    _LOG.info(
        "preparing %s: at most %s of memory%s, %s on disk and %s of temporary files",
        source.origin,
        format_bytes(plan.memory_bytes),
        "" if is_counted else " (as much as its edges take: they are not counted yet)",
        format_bytes(plan.dataset_bytes),
        format_bytes(plan.scratch_bytes),
    )


def _find_order(
    source: Source,
    writer: DatasetWriter,
    plan: PreparePlan,
    options: PrepareOptions,
    progress: PrepareProgress,
) -> RowOrder | None:
    return find_order(
        source,
        options.order,
        rules=options.rules,
        budget_bytes=plan.edge_budget_bytes,
        max_edges=plan.chunk_edges,
        scratch=writer.scratch,
        progress=progress,
    )


def _write_edges(
    source: Source,
    sink: EdgeSink,
    scratch: Path,
    plan: PreparePlan,
    options: PrepareOptions,
    progress: PrepareProgress,
) -> CscReport:
    return write_edges(
        FeaturedEdges(
            edges=source.edges,
            features=source.edge_features,
            dtype=options.stored_edge_dtype,
            num_passes=options.num_parts,
        ),
        sink,
        ends=EdgeEnds.of(source.num_nodes, source.edge_origin),
        rules=options.rules,
        budget_bytes=plan.edge_budget_bytes,
        scratch=scratch,
        progress=progress,
    )


def _write_features(
    source: Source,
    order: RowOrder | None,
    writer: DatasetWriter,
    plan: PreparePlan,
    options: PrepareOptions,
    progress: PrepareProgress,
) -> None:
    features = source.features
    row_bytes = features.dim * features.dtype.itemsize
    moves = RowOrder.of_rows(source.row_ids, order)
    if moves is None:
        chunks = features.chunks(plan.chunk_rows)
    else:
        chunks = ordered_rows(
            features,
            moves,
            dtype=options.stored_dtype,
            chunk_rows=plan.chunk_rows,
            range_rows=plan.range_rows,
            num_passes=options.num_parts,
            scratch=writer.scratch,
            progress=progress,
        )
    done = 0
    with writer.features(features.dim, options.stored_dtype) as column:
        for chunk in chunks:
            column.append(chunk)
            done += chunk.shape[0]
            progress.advance("writing features", done * row_bytes, source.num_nodes * row_bytes, "bytes")
