"""Conversion of a typed source into a dataset directory, within a memory budget."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from gloader.convert.csc.edge_rules import PlannedRelation, plan_relations
from gloader.convert.csc.external_csc import ScratchCsc
from gloader.convert.derived import MeanRows, averaged_edges, derivation_order, plan_means
from gloader.convert.edge_rows import FeaturedEdges, recorded_dtype, write_edges
from gloader.convert.links.link_tables import planned_tables, split_source, with_tables
from gloader.convert.links.write_tables import write_tables
from gloader.convert.node_order import RowOrder, ordered_rows
from gloader.convert.options import EdgeRules
from gloader.convert.prepare_plan import HeteroPlan, mean_shares, plan_hetero
from gloader.convert.receipt import Receipt
from gloader.convert.source import MeanOf
from gloader.convert.source_check import check_hetero
from gloader.convert.stored_parts import KeptTopology, StreamedColumn, stored_column
from gloader.core.paths import bytes_on_disk, nearest_existing
from gloader.core.units import format_bytes
from gloader.dataset.schema import relation_text
from gloader.dataset.writer import HeteroDatasetWriter
from gloader.plan.available import default_budget_bytes
from gloader.plan.too_small import planned_within
from gloader.ssd_store.os_io import require_free_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gloader.convert.csc.external_csc import CscReport
    from gloader.convert.derived import Column
    from gloader.convert.edge_rows import EdgeSink
    from gloader.convert.links.write_tables import LinkReport
    from gloader.convert.options import PrepareOptions
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import FeatureStream, HeteroSource, NodeSource

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeReport:
    """A node type as the dataset has it."""

    num_nodes: int
    feature_dim: int  # 0: no features
    is_derived: bool  # whether the conversion made the features


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationReport:
    """A relation as the dataset has it."""

    num_edges: int  # stored
    edges_read: int  # from the source
    has_edge_times: bool
    edge_feature_dim: int  # 0: edges have no features


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroPrepareReport:
    """Sizes, counts and times of a finished conversion of a typed source."""

    path: Path
    node_types: dict[str, TypeReport]
    relations: dict[str, RelationReport]  # by "source:name:destination"
    labelled: str
    feature_dtype: str
    seconds: float
    edge_seconds: float  # with the features of edges
    feature_seconds: float  # of given and of derived ones
    dataset_bytes: int  # on disk
    spilled_bytes: int  # temporary edges that went through the disk
    budget_bytes: int
    peak_bytes: int = 0  # of memory, above Python, libraries and kernels; as it was seen between chunks
    links: dict[str, LinkReport] = field(default_factory=dict)  # of each link table
    receipt: dict[str, str] = field(default_factory=dict)  # as the dataset records it; see `Receipt`


def plan_typed_source(
    source: HeteroSource, out: Path, options: PrepareOptions
) -> tuple[HeteroPlan, tuple[PlannedRelation, ...]]:
    """Check a typed source and return what its conversion takes, and the relations; nothing is written.

    Parameters
    ----------
    source : labels and splits are checked; edges and features are not read
    out : the folder that the dataset would have
    options : of the conversion

    Raises
    ------
    GloaderError
        As `prepare_typed`, as far as it is known before anything is read.
    """
    return _plan(with_tables(source, options), out, options)


def _plan(
    source: HeteroSource, out: Path, options: PrepareOptions
) -> tuple[HeteroPlan, tuple[PlannedRelation, ...]]:
    check_hetero(source)
    relations = plan_relations(source, options)
    budget = default_budget_bytes() if options.memory_budget_bytes is None else options.memory_budget_bytes
    plan = planned_within(lambda size: plan_hetero(source, relations, options, budget_bytes=size), budget)
    require_free_space(nearest_existing(out.absolute().parent), plan.dataset_bytes + plan.scratch_bytes)
    return plan, relations


def prepare_typed(
    source: HeteroSource, out: Path, options: PrepareOptions, *, progress: PrepareProgress
) -> HeteroPrepareReport:
    """Write ``source`` as a dataset directory at ``out``: all of it, or nothing.

    Relations are sorted one after another; features pass through in chunks; derived features are averaged from the
    stored ones.

    Parameters
    ----------
    source : the graph
    out : the folder to make; it appears when the dataset is complete
    options : of the conversion
    progress : receives the steps, each with the relation or type that it is about

    Raises
    ------
    SourceError, ShapeError
        Types, labels or splits contradict each other; also where a stream turns out shorter, longer or malformed.
    ConfigError
        An option does not fit a typed source, or names a relation that is not there.
    BudgetError
        The memory budget is too small; says needed and allowed.
    GraphError
        An edge is out of its types' ranges, a weight is not a finite number of at least 0, a time is beyond those that
        are stored, or a name cannot be stored.
    StoreExistsError, StoreLockedError, StoreWriteError
        ``out`` exists, is being created by another process, or the disk refuses or has no room.
    """
    started = time.perf_counter()
    receipt, source = Receipt.of(with_tables(source, options), options)
    plan, relations = _plan(source, out, options)
    with HeteroDatasetWriter(
        out,
        name=source.name,
        num_nodes={nodes.name: nodes.num_nodes for nodes in source.nodes},
        relations=[each.relation for each in relations],
        num_classes=source.num_classes,
        overwrite=options.overwrite,
        part=options.ranges,
        metadata={"source": source.origin, "options": _recorded(relations, options)},
    ) as writer:
        _LOG.info(
            "preparing %s: at most %s of memory, %s on disk and %s of temporary files",
            source.origin,
            format_bytes(plan.memory_bytes),
            format_bytes(plan.dataset_bytes),
            format_bytes(plan.scratch_bytes),
        )
        if options.edge_split is not None:
            source = split_source(source, options, budget_bytes=plan.free_bytes, progress=progress)
            relations = plan_relations(source, options)
        graphs = {each.relation: KeptTopology(writer.edges(each.relation)) for each in relations}
        edges = []
        for each in relations:
            counted = receipt.counted(each.relation, each.source.edges, budget_bytes=plan.budget_bytes)
            given = FeaturedEdges(
                edges=counted,
                features=each.source.edge_features,
                dtype=options.stored_edge_dtype,
                num_passes=options.num_parts,
            )
            edges.append(_write_edges(each, given, graphs[each.relation], writer.scratch, plan, progress))
        links = write_tables(
            planned_tables(source, list(graphs), options),
            writer,
            graphs,
            budget_bytes=plan.free_bytes,
            progress=progress,
        )
        edges_done = time.perf_counter()
        _FeatureWriter(source, writer, plan, options, progress).write()
        features_done = time.perf_counter()
        labelled = writer.nodes(source.labelled)
        labelled.labels(source.labels)
        labelled.splits(train=source.splits.train, valid=source.splits.valid, test=source.splits.test)
        lines = receipt.lines({each.relation: sort for each, sort in zip(relations, edges, strict=True)})
        writer.annotate(receipt=lines)
    return HeteroPrepareReport(
        path=out,
        node_types={nodes.name: _type_report(nodes, plan) for nodes in source.nodes},
        relations={
            relation_text(each.relation): _relation_report(each, sort)
            for each, sort in zip(relations, edges, strict=True)
        },
        labelled=source.labelled,
        feature_dtype=options.stored_dtype,
        seconds=time.perf_counter() - started,
        edge_seconds=edges_done - started,
        feature_seconds=features_done - edges_done,
        dataset_bytes=bytes_on_disk(out, has_holes=options.num_parts > 1),
        spilled_bytes=sum(sort.spilled_bytes for sort in edges),
        budget_bytes=plan.budget_bytes,
        links=links,
        receipt=lines,
    )


def _recorded(relations: tuple[PlannedRelation, ...], options: PrepareOptions) -> dict[str, object]:
    """Return what the commit record says of the options: those of all relations, and which were symmetrized."""
    both_ways = [relation_text(each.relation) for each in relations if each.rules.symmetrize]
    rules = asdict(EdgeRules(self_loops=options.self_loops, deduplicate=options.deduplicate))
    return rules | {
        "symmetrize": both_ways,
        "add_reverse": options.add_reverse,
        "dtype": options.stored_dtype,
        "order": options.order,
        **recorded_dtype(options, *(each.source.edge_features for each in relations)),
        **({"reverse": ["=".join(pair) for pair in options.reverse]} if options.reverse else {}),
        **options.recorded_split,
    }


def _type_report(nodes: NodeSource, plan: HeteroPlan) -> TypeReport:
    return TypeReport(
        num_nodes=nodes.num_nodes,
        feature_dim=plan.dims.get(nodes.name, 0),
        is_derived=isinstance(nodes.features, MeanOf),
    )


def _relation_report(each: PlannedRelation, sort: CscReport) -> RelationReport:
    rows = each.source.edge_features
    return RelationReport(
        num_edges=sort.num_edges,
        edges_read=sort.edges_read,
        has_edge_times=each.source.edges.has_times,
        edge_feature_dim=0 if rows is None else rows.dim,
    )


def _write_edges(
    each: PlannedRelation,
    given: FeaturedEdges,
    sink: EdgeSink,
    scratch: Path,
    plan: HeteroPlan,
    progress: PrepareProgress,
) -> CscReport:
    return write_edges(
        given,
        sink,
        ends=each.ends,
        rules=each.rules,
        budget_bytes=plan.free_bytes,
        scratch=scratch,
        progress=_Named(progress, relation_text(each.relation)),
    )


class _Named:
    """Passes the progress on, every step with the name of what it is about."""

    def __init__(self, progress: PrepareProgress, name: str) -> None:
        self._progress = progress
        self._name = name

    def advance(self, step: str, done: int, total: int | None, unit: str) -> None:
        self._progress.advance(f"{step} of {self._name}", done, total, unit)


class _FeatureWriter:
    """Writes the features of all types: the given ones first, as derived ones are made of what is stored.

    Where a part of the rows is stored alone, what a mean averages is streamed again, and the edges that lead to it are
    kept until all is written.
    """

    def __init__(
        self,
        source: HeteroSource,
        writer: HeteroDatasetWriter,
        plan: HeteroPlan,
        options: PrepareOptions,
        progress: PrepareProgress,
    ) -> None:
        self._source = source
        self._writer = writer
        self._plan = plan
        self._dtype = options.stored_dtype
        self._num_parts = options.num_parts
        self._is_in_part = options.num_parts > 1
        self._mean_bytes = plan.free_bytes // mean_shares(source, options)
        self._progress = progress
        self._stored: dict[str, Column] = {}

    def write(self) -> None:
        """Write all of them."""
        for nodes in self._source.nodes:
            if nodes.features is not None and not isinstance(nodes.features, MeanOf):
                self._append(nodes, "writing features", self._rows(nodes, nodes.features), nodes.features)
        with ExitStack() as graphs:
            for nodes, other in derivation_order(self._source):
                self._derive(nodes, self._stored[other], graphs)
                if not self._is_in_part:
                    graphs.close()

    def _rows(self, nodes: NodeSource, features: FeatureStream) -> Iterator[NDArray[np.generic]]:
        """Return the rows of a type in the order of its nodes."""
        chunk_rows = self._plan.chunk_rows[nodes.name]
        moves = RowOrder.of_rows(nodes.row_ids, None)
        if moves is None:
            return features.chunks(chunk_rows)
        return ordered_rows(
            features,
            moves,
            dtype=self._dtype,
            chunk_rows=chunk_rows,
            range_rows=self._plan.range_rows[nodes.name],
            num_passes=self._num_parts,
            scratch=self._writer.scratch,
            progress=_Named(self._progress, nodes.name),
        )

    def _derive(self, nodes: NodeSource, column: Column, graphs: ExitStack) -> None:
        edges, ends = averaged_edges(self._source, nodes)
        folder = self._writer.scratch / f"mean-{len(self._stored)}"
        folder.mkdir()
        graph = graphs.enter_context(ScratchCsc(folder=folder, ends=ends))
        num_edges = graph.fill(
            edges,
            rules=EdgeRules(),
            budget_bytes=self._plan.free_bytes,
            progress=_Named(self._progress, f"what {nodes.name} averages"),
        )
        plan = plan_means(
            num_rows=nodes.num_nodes,
            num_edges=num_edges,
            dim=column.dim,
            source_row_bytes=column.row_bytes,
            budget_bytes=self._mean_bytes,
        )
        rows = MeanRows(graph=graph, column=column, plan=plan)
        self._append(nodes, "averaging features", rows.chunks(self._plan.chunk_rows[nodes.name]), rows)

    def _append(
        self, nodes: NodeSource, step: str, chunks: Iterator[NDArray[np.generic]], features: FeatureStream
    ) -> None:
        dim, done = self._plan.dims[nodes.name], 0
        row_bytes = 4 * dim
        progress = _Named(self._progress, nodes.name)
        with self._writer.nodes(nodes.name).features(dim, self._dtype) as column:
            for chunk in chunks:
                column.append(chunk)
                done += chunk.shape[0]
                progress.advance(step, done * row_bytes, nodes.num_nodes * row_bytes, "bytes")
        self._stored[nodes.name] = (
            StreamedColumn(features=features, dtype=self._dtype)
            if self._is_in_part
            else stored_column(column, dtype=self._dtype, num_rows=nodes.num_nodes, dim=dim)
        )
