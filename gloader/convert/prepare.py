"""Conversion of a source into a dataset directory, within a memory budget.

`gloader prepare` and ``Dataset.from_...`` call `prepare` with a source, which is a graph in another format. The steps
are the same for every graph. First the source is checked, and memory and disk are planned; `plan_source` does only
this. Then `prepare` splits the edges on request, finds the node order, sorts each relation's edges, and writes link
tables (edges to predict), features, labels and splits. A relation is an edge type; a graph of one node type has one
relation. The receipt records the data that the conversion found and used. Derived features are means over neighbours'
features, for types without their own.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gloader.convert.csc.edge_rules import plan_relations
from gloader.convert.csc.external_csc import ScratchCsc
from gloader.convert.derived import MeanRows, averaged_edges, derivation_order, plan_means
from gloader.convert.edge_rows import FeaturedEdges, recorded_dtype, write_edges
from gloader.convert.key_numbers import plain_graph
from gloader.convert.keyed_graph import KeyedGraph
from gloader.convert.keys.stored_keys import write_keys
from gloader.convert.links.link_tables import planned_tables, split_source, with_tables
from gloader.convert.links.write_tables import write_tables
from gloader.convert.node_order import NodeOrder, find_order, ordered_rows, renumbered
from gloader.convert.options import EdgeRules
from gloader.convert.prepare_plan import PreparePlan, plan_prepare
from gloader.convert.progress import NO_PROGRESS, NamedProgress, PrepareProgress, WatchedSteps
from gloader.convert.receipt import Receipt
from gloader.convert.source import MeanOf
from gloader.convert.source_check import check_source
from gloader.convert.stored_parts import StreamedColumn, stored_column
from gloader.convert.task_tables import write_tasks
from gloader.core.paths import bytes_on_disk, nearest_existing
from gloader.core.units import format_bytes
from gloader.dataset.encoders import METADATA_KEY
from gloader.dataset.record import LABELS_ENTRY
from gloader.dataset.schema import relation_text
from gloader.dataset.values import label_kind_of
from gloader.dataset.writer import DatasetWriter
from gloader.plan.available import default_budget_bytes
from gloader.plan.too_small import planned_within
from gloader.ssd_store.os_io import require_free_space

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gloader.convert.csc.edge_rules import PlannedRelation
    from gloader.convert.csc.external_csc import CscReport
    from gloader.convert.links.write_tables import LinkReport
    from gloader.convert.options import OrderName, PrepareOptions
    from gloader.convert.source import AnySource, FeatureStream, GraphSource, NodeSource
    from gloader.convert.stored_parts import AnyColumn
    from gloader.dataset.schema import DatasetKind
    from gloader.types import Relation

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeReport:
    """A node type in the finished dataset."""

    num_nodes: int
    feature_dim: int  # number of columns; 0 without features
    is_derived: bool  # True if the conversion computed the features as means over neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationReport:
    """A relation in the finished dataset."""

    num_edges: int  # stored edges
    edges_read: int  # edges read from the source
    has_edge_times: bool
    edge_feature_dim: int  # number of columns; 0 without edge features


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareReport:
    """Sizes, counts and times of a finished conversion."""

    path: Path
    kind: DatasetKind
    node_types: dict[str, TypeReport]
    relations: dict[str, RelationReport]  # keys are "source:name:destination"
    labelled: str  # the type with labels and splits
    edge_feature_dtype: str | None  # None without edge features
    feature_dtype: str  # the stored dtype
    order: OrderName
    seconds: float  # time for the whole conversion
    order_seconds: float  # time to find the node order
    edge_seconds: float  # time for edges and edge features
    feature_seconds: float  # time for given and derived features
    dataset_bytes: int  # bytes on disk
    spilled_bytes: int  # bytes of edges in temporary files
    budget_bytes: int  # the memory budget
    key_seconds: float = 0.0  # time to number the keys, and to read the labels and columns of their tables
    peak_bytes: int = 0  # peak memory without Python, libraries and kernels, measured between chunks
    links: dict[str, LinkReport] = field(default_factory=dict)  # a report for each link table
    tables: dict[str, str] = field(default_factory=dict)  # a text on each task table, "909 rows of users"
    # Short texts about the conversion by name, such as "not used"; also stored in the dataset.
    receipt: dict[str, str] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(each.num_nodes for each in self.node_types.values())

    @property
    def num_edges(self) -> int:
        """Stored edges of all relations."""
        return sum(each.num_edges for each in self.relations.values())

    @property
    def edges_read(self) -> int:
        """Edges read for all relations."""
        return sum(each.edges_read for each in self.relations.values())

    @property
    def has_edge_times(self) -> bool:
        """True if edges of any relation have times."""
        return any(each.has_edge_times for each in self.relations.values())

    @property
    def edge_feature_dim(self) -> int:
        """Columns of the widest edge features, or 0."""
        return max((each.edge_feature_dim for each in self.relations.values()), default=0)

    @property
    def feature_dim(self) -> int:
        """Columns of the labelled type's features, or 0."""
        return self.node_types[self.labelled].feature_dim

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values. For one type, it has counts instead of types and relations."""
        values = asdict(self) | {"path": str(self.path)}
        path, kind = values.pop("path"), values.pop("kind")
        for name in ("key_seconds", "tables"):
            if not values[name]:
                values.pop(name)
        if kind == "hetero":
            omitted = ("edge_feature_dtype", "order", "order_seconds")
            return {"path": path} | {name: each for name, each in values.items() if name not in omitted}
        counts = ("num_nodes", "num_edges", "edges_read", "has_edge_times", "edge_feature_dim", "feature_dim")
        omitted = ("node_types", "relations", "labelled")
        others = {name: each for name, each in values.items() if name not in omitted}
        return {"path": path} | {name: getattr(self, name) for name in counts} | others


def plan_source(source: AnySource, out: Path, options: PrepareOptions) -> PreparePlan:
    """Check a source, and return the plan for its conversion. Nothing is written.

    Parameters
    ----------
    source : the graph; labels and splits are checked, and edges are not read. Features are read only if the option
        ``missing`` is "flag", because the number of flags must be known
    out : the dataset's folder
    options : the conversion's options

    Raises
    ------
    ShapeError, GraphError
        There is not one feature row or label per node, a feature row has no columns, or a name cannot be stored.
    SourceError
        Types contradict each other, a label is not a class, or the splits are malformed.
    BudgetError
        The memory budget is too small. The message gives needed and allowed bytes.
    StoreWriteError
        The disk has no room. The message gives needed and free bytes.
    ConfigError
        The feature dtype cannot be stored, a link table's text is malformed, or an option does not fit the source.
    """
    return _plan(Receipt.of(with_tables(source, options), options)[1], out, options)


def _plan(source: GraphSource, out: Path, options: PrepareOptions) -> PreparePlan:
    """Check a source with its link tables, and return the plan. Raises as `plan_source`."""
    check_source(source)
    plan_relations(source, options)  # refuses options that do not fit, before any budget error
    budget = default_budget_bytes() if options.memory_budget_bytes is None else options.memory_budget_bytes
    plan = planned_within(lambda size: plan_prepare(source, options, budget_bytes=size), budget)
    require_free_space(nearest_existing(out.absolute().parent), plan.dataset_bytes + plan.scratch_bytes)
    return plan


def prepare(
    source: AnySource | KeyedGraph,
    out: Path,
    options: PrepareOptions,
    *,
    progress: PrepareProgress = NO_PROGRESS,
) -> PrepareReport:
    """Write ``source`` as a dataset directory at ``out``. A failed conversion leaves no dataset.

    If the source has keys, they are numbered first. Edges are sorted within the memory budget. They are read once, or
    twice if nodes are reordered. Features are read and written chunk by chunk, and derived features are means over
    stored rows. The interpreter and the libraries take about 200 MB besides the budget.

    Parameters
    ----------
    source : the graph
    out : the folder to make; it appears when the dataset is complete
    options : the conversion's options
    progress : receives the steps. For several types, each step names its relation or type

    Raises
    ------
    ShapeError, SourceError, BudgetError, ConfigError
        As `plan_source`, or a stream turns out shorter, longer or malformed.
    FeatureValueError
        A feature is missing or infinite, or its stored dtype does not hold it.
    GraphError
        An edge names an unknown node, has a weight that is negative or not finite, or a time out of range. Or a name
        cannot be stored.
    StoreExistsError, StoreLockedError, StoreWriteError
        ``out`` exists, another process creates it, or the disk fails or has no room.
    """
    steps = WatchedSteps(progress)  # measures the memory at each report of progress
    started = time.perf_counter()
    with plain_graph(source, out, options, steps) as graph:
        key_seconds = time.perf_counter() - started
        held = graph.labels.nbytes + graph.splits.num_bytes
        report = _prepare(graph, out, options, steps)
    return replace(
        report,
        peak_bytes=steps.peak_bytes(held),
        seconds=time.perf_counter() - started,
        key_seconds=key_seconds if isinstance(source, KeyedGraph) else 0.0,
    )


def _prepare(
    source: GraphSource, out: Path, options: PrepareOptions, progress: PrepareProgress
) -> PrepareReport:
    """Convert the source, and return the report without the peak memory. Raises as `prepare`."""
    started = time.perf_counter()
    # The receipt's streams count edges and rows while the steps below read them.
    receipt, graph = Receipt.of(with_tables(source, options), options)
    plan = _plan(graph, out, options)
    with _begin(graph, out, options) as writer:
        _log_plan(graph, plan)
        graph = split_source(graph, options, budget_bytes=plan.free_bytes, progress=progress)
        order, order_seconds = _find_order(graph, writer.scratch, plan, options, progress)
        # Edges, labels and splits get their new ids here. Feature rows are reordered when they are written.
        if order is not None:
            graph = renumbered(graph, order)
            writer.nodes(graph.labelled).original_ids(order.original_ids)
        relations = plan_relations(graph, options)
        edges: dict[Relation, CscReport] = {}
        for each in relations:
            edges[each.relation] = write_edges(
                FeaturedEdges(
                    edges=receipt.counted(each.relation, each.source.edges, budget_bytes=plan.budget_bytes),
                    features=each.source.edge_features,
                    dtype=options.stored_edge_dtype,
                    num_passes=options.num_parts,
                ),
                writer.edges(each.relation),
                ends=each.ends,
                rules=each.rules,
                budget_bytes=plan.free_bytes,
                scratch=writer.scratch,
                progress=_named(progress, graph, relation_text(each.relation)),
            )
        links = write_tables(
            planned_tables(graph, list(edges), options, new_ids=None if order is None else order.new_ids),
            writer,
            budget_bytes=plan.free_bytes,
            progress=progress,
        )
        edges_done = time.perf_counter()
        _FeatureWriter(graph, order, writer, plan, options, progress).write()
        features_done = time.perf_counter()
        _write_keys(graph, order, writer, plan, progress)
        write_tasks(graph, writer, new_ids=None if order is None else order.new_ids)
        labelled = writer.nodes(graph.labelled)
        labelled.labels(graph.labels)
        writer.annotate(**_label_entry(graph))
        labelled.splits(train=graph.splits.train, valid=graph.splits.valid, test=graph.splits.test)
        lines = receipt.lines(edges)
        writer.annotate(receipt=lines)
    reports = {
        relation_text(each.relation): _relation_report(each, edges[each.relation]) for each in relations
    }
    has_edge_features = any(each.edge_feature_dim for each in reports.values())
    return PrepareReport(
        path=out,
        kind=graph.kind,
        node_types={nodes.name: _type_report(nodes, plan) for nodes in graph.nodes},
        relations=reports,
        labelled=graph.labelled,
        edge_feature_dtype=options.stored_edge_dtype if has_edge_features else None,
        feature_dtype=options.stored_dtype,
        order=options.order,
        seconds=time.perf_counter() - started,
        order_seconds=order_seconds,
        edge_seconds=edges_done - started - order_seconds,
        feature_seconds=features_done - edges_done,
        dataset_bytes=bytes_on_disk(out, has_holes=options.num_parts > 1),
        spilled_bytes=sum(sort.spilled_bytes for sort in edges.values()),
        budget_bytes=plan.budget_bytes,
        links=links,
        tables={each.name: f"{len(each.nodes):,} rows of {each.node_type}" for each in graph.tables},
        receipt=lines,
    )


def _write_keys(
    source: GraphSource,
    order: NodeOrder | None,
    writer: DatasetWriter,
    plan: PreparePlan,
    progress: PrepareProgress,
) -> None:
    """Write the keys of all types with keys, in the order of the source."""
    for nodes in source.nodes:
        if nodes.keys is None:
            continue
        steps = _named(progress, source, nodes.name)
        steps.advance("writing keys", 0, nodes.num_nodes, "keys")
        write_keys(
            writer.nodes(nodes.name).keys(nodes.keys.kind),
            nodes.keys.chunks(plan.keys[nodes.name].chunk_keys),
            num_bytes=nodes.keys.num_bytes,
            folder=writer.scratch,
            budget_bytes=plan.keys[nodes.name].sort_bytes,
            new_ids=None if order is None else order.new_ids,
        )
        steps.advance("writing keys", nodes.num_nodes, nodes.num_nodes, "keys")


def _begin(source: GraphSource, out: Path, options: PrepareOptions) -> DatasetWriter:
    """Return the writer for the dataset, with its schema and the metadata for its commit record."""
    relations = plan_relations(source, options)
    metadata: dict[str, Any] = {"source": source.origin, "options": _recorded(source, relations, options)}
    metadata |= _encoder_entry(source)
    if not source.has_names:
        metadata["has_self_loops"] = options.self_loops
    return DatasetWriter(
        out,
        schema=source.schema([each.relation for each in relations]),
        name=source.name,
        num_classes=source.num_classes,
        overwrite=options.overwrite,
        part=options.ranges,
        metadata=metadata,
    )


def _label_entry(source: GraphSource) -> dict[str, Any]:
    """Return the commit record's entry about the labels. Classes without names have none, as in earlier versions."""
    if source.labels.ndim == 1 and not source.label_names:
        return {}
    names = {"names": list(source.label_names)} if source.label_names else {}
    return {LABELS_ENTRY: {"kind": label_kind_of(source.labels), **names}}


def _encoder_entry(source: GraphSource) -> dict[str, Any]:
    """Return the commit record's entry about the encoders of columns, by node type and by relation."""
    encoders = {nodes.name: nodes.encoders for nodes in source.nodes}
    encoders |= {relation_text(each.relation): each.encoders for each in source.relations}
    documents = {name: each.to_json() for name, each in encoders.items() if each is not None}
    return {METADATA_KEY: documents} if documents else {}


def _recorded(
    source: GraphSource, relations: Sequence[PlannedRelation], options: PrepareOptions
) -> dict[str, object]:
    """Return the options for the commit record, with the list of symmetrized relations."""
    rules: dict[str, object] = asdict(options.rules)
    if source.has_names:
        rules["symmetrize"] = [relation_text(each.relation) for each in relations if each.rules.symmetrize]
        rules["add_reverse"] = options.add_reverse
    return rules | {
        "dtype": options.stored_dtype,
        "order": options.order,
        **({"missing": options.missing} if options.missing else {}),
        **recorded_dtype(options, *(each.source.edge_features for each in relations)),
        **({"reverse": ["=".join(pair) for pair in options.reverse]} if options.reverse else {}),
        **options.recorded_split,
    }


def _log_plan(source: GraphSource, plan: PreparePlan) -> None:
    """Log the planned memory and disk."""
    # If a file does not store its number of edges, the plan assumes that edges take the whole memory budget.
    is_counted = all(each.edges.num_edges is not None for each in source.relations)
    _LOG.info(
        "preparing %s: at most %s of memory%s, %s on disk and %s of temporary files",
        source.origin,
        format_bytes(plan.memory_bytes),
        "" if is_counted else " (as much as its edges take: they are not counted yet)",
        format_bytes(plan.dataset_bytes),
        format_bytes(plan.scratch_bytes),
    )


def _find_order(
    source: GraphSource, scratch: Path, plan: PreparePlan, options: PrepareOptions, progress: PrepareProgress
) -> tuple[NodeOrder | None, float]:
    """Return the node order (None for the source's order), and the seconds to find it."""
    if options.order == "none":
        return None, 0.0
    started = time.perf_counter()
    # Only graphs of one type and one relation can have another order.
    (relation,) = plan_relations(source, options)
    order = find_order(
        relation.source.edges,
        relation.ends,
        options.order,
        rules=relation.rules,
        budget_bytes=plan.free_bytes,
        max_edges=plan.chunk_edges,
        scratch=scratch,
        progress=progress,
    )
    return order, time.perf_counter() - started


def _type_report(nodes: NodeSource, plan: PreparePlan) -> TypeReport:
    """Return the report on one node type."""
    return TypeReport(
        num_nodes=nodes.num_nodes,
        feature_dim=plan.rows[nodes.name].dim if nodes.name in plan.rows else 0,
        is_derived=isinstance(nodes.features, MeanOf),
    )


def _relation_report(each: PlannedRelation, sort: CscReport) -> RelationReport:
    """Return the report on one relation. ``sort`` has its numbers of edges."""
    rows = each.source.edge_features
    return RelationReport(
        num_edges=sort.num_edges,
        edges_read=sort.edges_read,
        has_edge_times=each.source.edges.has_times,
        edge_feature_dim=0 if rows is None else rows.dim,
    )


def _named(progress: PrepareProgress, source: GraphSource, name: str) -> PrepareProgress:
    """Return the progress that prefixes each step with ``name``, or ``progress`` itself for a graph of one type."""
    return NamedProgress(progress, name) if source.has_names else progress


class _FeatureWriter:
    """Writes all types' features. Given features come first, because derived features are means over stored rows.

    With ``options.ranges``, the dataset gets only a part of each matrix's rows. Then a mean cannot read all its rows
    from the dataset, and streams them again from the source. A later mean may be over such means, so the sorted edges
    of all means stay on disk until the end.
    """

    def __init__(
        self,
        source: GraphSource,
        order: NodeOrder | None,
        writer: DatasetWriter,
        plan: PreparePlan,
        options: PrepareOptions,
        progress: PrepareProgress,
    ) -> None:
        self._source = source
        self._order = order
        self._writer = writer
        self._plan = plan
        self._dtype = options.stored_dtype
        self._num_parts = options.num_parts
        self._progress = progress
        self._stored: dict[str, AnyColumn] = {}  # by type: a way to read the finished features again

    def write(self) -> None:
        """Write all features."""
        for nodes in self._source.nodes:
            if nodes.given is not None:
                self._append(nodes, "writing features", self._rows(nodes, nodes.given), nodes.given)
        with ExitStack() as graphs:
            for nodes, other in derivation_order(self._source):
                self._derive(nodes, self._stored[other], graphs)
                # With all rows in the dataset, later means read them there, and do not need these edges again.
                if self._num_parts == 1:
                    graphs.close()

    def _rows(self, nodes: NodeSource, features: FeatureStream) -> Iterator[NDArray[np.generic]]:
        """Yield a type's feature rows in node order, chunk by chunk."""
        shares = self._plan.rows[nodes.name]  # the type's part of the memory budget
        moves = NodeOrder.of_rows(nodes.row_ids, self._order)
        if moves is None:
            return features.chunks(shares.chunk_rows)
        return ordered_rows(
            features,
            moves,
            dtype=self._dtype,
            chunk_rows=shares.chunk_rows,
            range_rows=shares.range_rows,
            num_passes=self._num_parts,
            scratch=self._writer.scratch,
            progress=_named(self._progress, self._source, nodes.name),
        )

    def _derive(self, nodes: NodeSource, column: AnyColumn, graphs: ExitStack) -> None:
        """Write a type's derived features: sort the edges of its mean, and average the rows of ``column``.

        ``graphs`` takes over the sorted edges on disk, and removes them when it closes.
        """
        edges, ends = averaged_edges(self._source, nodes)
        folder = self._writer.scratch / f"mean-{len(self._stored)}"
        folder.mkdir()
        graph = graphs.enter_context(ScratchCsc(folder=folder, ends=ends))
        num_edges = graph.fill(
            edges,
            rules=EdgeRules(),
            budget_bytes=self._plan.free_bytes,
            progress=NamedProgress(self._progress, f"neighbours of {nodes.name}"),
        )
        plan = plan_means(
            num_rows=nodes.num_nodes,
            num_edges=num_edges,
            dim=column.dim,
            source_row_bytes=column.row_bytes,
            budget_bytes=self._plan.mean_bytes,
        )
        rows = MeanRows(graph=graph, column=column, plan=plan).stream()
        self._append(nodes, "averaging features", rows.chunks(self._plan.rows[nodes.name].chunk_rows), rows)

    def _append(
        self, nodes: NodeSource, step: str, chunks: Iterator[NDArray[np.generic]], features: FeatureStream
    ) -> None:
        """Write ``chunks`` as a type's features, and keep a way to read the rows again for means over them."""
        dim, done = features.dim, 0
        row_bytes = dim * features.dtype.itemsize
        progress = _named(self._progress, self._source, nodes.name)
        with self._writer.nodes(nodes.name).features(dim, self._dtype) as column:
            for chunk in chunks:
                column.append(chunk)
                done += chunk.shape[0]
                progress.advance(step, done * row_bytes, nodes.num_nodes * row_bytes, "bytes")
        self._stored[nodes.name] = (
            stored_column(column, dtype=self._dtype, num_rows=nodes.num_nodes, dim=dim)
            if self._num_parts == 1
            else StreamedColumn(features=features, dtype=self._dtype)
        )
