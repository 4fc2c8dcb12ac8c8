"""Plan of a conversion of a typed source: the memory and the disk that it takes, known before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.convert.csc.edge_spill import NO_COLUMNS, EdgeColumns, record_dtype
from gloader.convert.csc.external_csc import edge_columns, plan_csc
from gloader.convert.derive.derived import (
    averaged_edges,
    derivation_depth,
    derivation_order,
    feature_dims,
)
from gloader.convert.derive.mean_plan import plan_means
from gloader.convert.edge_rows_plan import NO_EDGE_ROWS, EdgeRowPlan, most_edges, plan_edge_rows
from gloader.convert.hetero_source import MeanOf
from gloader.convert.links.sizes import link_sizes
from gloader.convert.links.tables import split_edges
from gloader.convert.options import EdgeRules
from gloader.convert.prepare_plan import (
    CHECK_BYTES,
    CHUNK_BYTES,
    CHUNK_COPIES,
    WRITER_BYTES,
    check_stored_dtype,
    on_disk,
    ordered_range_rows,
    ordered_row_bytes,
    ordered_scratch_bytes,
    stored_feature_bytes,
)
from gloader.convert.receipt import marked_bytes
from gloader.core.units import format_bytes
from gloader.errors import BudgetError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.convert.csc.external_csc import CscPlan
    from gloader.convert.hetero_source import HeteroSource, NodeSource
    from gloader.convert.links.sizes import LinkSizes
    from gloader.convert.options import PrepareOptions
    from gloader.convert.relation_rules import PlannedRelation

# Edges per row where a source does not say their number; as the sort takes it.
_USUAL_DEGREE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroPlan:
    """Memory and disk that a conversion takes, and the shares of its parts."""

    budget_bytes: int
    memory_bytes: int  # at most, of what the conversion allocates
    free_bytes: int  # for each sort, each feature matrix and each mean: they run one after another
    chunk_rows: Mapping[str, int]  # feature rows at a time, of the types that have features
    range_rows: Mapping[str, int]  # feature rows put in order at a time, of those whose rows are joined by id
    dims: Mapping[str, int]  # their columns
    dataset_bytes: int  # on disk, at the end; without the edges whose number is not known
    scratch_bytes: int  # on disk, at most, while it runs


def plan_hetero(
    source: HeteroSource,
    relations: Sequence[PlannedRelation],
    options: PrepareOptions,
    *,
    budget_bytes: int,
) -> HeteroPlan:
    """Divide a memory budget between the parts of a conversion, and count the bytes on disk. Pure.

    Parameters
    ----------
    source : checked; its sizes count, nothing is read
    relations : of the dataset
    options : of the conversion; their own budget is not looked at
    budget_bytes : memory that the conversion stays within

    Raises
    ------
    BudgetError
        The arrays of one entry per labelled node and the smallest useful buffers do not fit; says needed and allowed.
    ConfigError
        The feature dtype cannot be stored.
    """
    check_stored_dtype(options.stored_dtype)
    check_stored_dtype(options.stored_edge_dtype)
    dims = feature_dims(source)
    resident = _resident_bytes(source, budget_bytes)
    least = [_copies(nodes) * (1 + _is_joined(nodes)) * _row_bytes(nodes, dims) for nodes in source.nodes]
    widest = max(least, default=0)
    if resident + widest > budget_bytes:
        raise BudgetError(
            f"preparing {source.origin} needs {format_bytes(resident)} for labels, splits and write buffers, and "
            f"{format_bytes(widest)} per feature row; the memory budget allows {format_bytes(budget_bytes)}. Raise "
            "--memory-budget"
        )
    free = budget_bytes - resident
    sorts = [_sort(each, budget_bytes=free) for each in relations]
    # Rows that change places share the memory between the chunk that is read and the range that is put in order.
    chunks = {
        nodes.name: max(
            1,
            min(CHUNK_BYTES, free // (2 if _is_joined(nodes) else 1) // _copies(nodes))
            // _row_bytes(nodes, dims),
        )
        for nodes in source.nodes
        if nodes.features is not None
    }
    widths = {
        nodes.name: ordered_row_bytes(dims[nodes.name], options)
        for nodes in source.nodes
        if _is_joined(nodes)
    }
    ranges = {
        name: ordered_range_rows(source.num_nodes_of(name), width, free - free // 2)
        for name, width in widths.items()
    }
    edge_rows = [_edge_rows(source, each, options, budget_bytes=free) for each in relations]
    peaks = [sort.peak_bytes for sort in sorts]
    peaks += [rows.memory_bytes for rows in edge_rows]
    peaks += [
        _copies(nodes) * chunks[nodes.name] * _row_bytes(nodes, dims)
        + ranges.get(nodes.name, 0) * widths.get(nodes.name, 0)
        for nodes in source.nodes
        if nodes.name in chunks
    ]
    links = link_sizes(
        source.links,
        split_edges(source, options),
        num_nodes=max((nodes.num_nodes for nodes in source.nodes), default=0),
        budget_bytes=free,
    )
    means = [
        _plan_mean(source, nodes, dims, budget_bytes=free, num_shares=mean_shares(source, options))
        for nodes, _ in derivation_order(source)
    ]
    mean_disk = [disk for _, disk in means]
    if (
        options.num_parts > 1
    ):  # means are made again where others average them, so that all edges stay until the end
        mean_disk = [sum(mean_disk)]
    scratch = [
        max(_scratch_bytes(each, sort) + rows.number_bytes, rows.scratch_bytes)
        for each, sort, rows in zip(relations, sorts, edge_rows, strict=True)
    ]
    scratch += [
        ordered_scratch_bytes(source.num_nodes_of(name), dims[name], options, rows)
        for name, rows in ranges.items()
    ]
    return HeteroPlan(
        budget_bytes=budget_bytes,
        memory_bytes=resident
        + max([*peaks, links.memory_bytes, *(memory for memory, _ in means)], default=0),
        free_bytes=free,
        chunk_rows=chunks,
        range_rows=ranges,
        dims=dims,
        dataset_bytes=_dataset_bytes(source, relations, dims, options, links),
        scratch_bytes=max([*scratch, links.scratch_bytes, *mean_disk], default=0),
    )


def mean_shares(source: HeteroSource, options: PrepareOptions) -> int:
    """Return how many means share the memory: those that are made again while another averages them. Pure."""
    return max(1, derivation_depth(source)) if options.num_parts > 1 else 1


def _is_joined(nodes: NodeSource) -> bool:
    return nodes.row_ids is not None


def _copies(nodes: NodeSource) -> int:
    """Copies of a feature chunk alive at once; rows that change places add one."""
    return CHUNK_COPIES + _is_joined(nodes)


def _row_bytes(nodes: NodeSource, dims: Mapping[str, int]) -> int:
    """Bytes of a row as it is read, or as float32 where that is more."""
    if nodes.features is None:
        return 0
    width = 4 if isinstance(nodes.features, MeanOf) else max(4, nodes.features.dtype.itemsize)
    return dims[nodes.name] * width


def _resident_bytes(source: HeteroSource, budget_bytes: int) -> int:
    """Bytes of memory that are taken from the start to the end."""
    labels = source.labels.nbytes + source.splits.num_bytes + CHECK_BYTES * source.labels.shape[0]
    marks = marked_bytes(sum(nodes.num_nodes for nodes in source.nodes), budget_bytes)
    return source.resident_bytes + labels + marks + WRITER_BYTES


def _sort(each: PlannedRelation, *, budget_bytes: int) -> CscPlan:
    edges = each.source.edges
    return plan_csc(
        each.ends,
        edges.num_edges,
        columns=_columns(each),
        rules=each.rules,
        budget_bytes=budget_bytes,
    )


def _plan_mean(
    source: HeteroSource,
    nodes: NodeSource,
    dims: Mapping[str, int],
    *,
    budget_bytes: int,
    num_shares: int,
) -> tuple[int, int]:
    """Return the bytes of memory, and of disk, that deriving the features of a type takes."""
    edges, ends = averaged_edges(source, nodes)
    count = _USUAL_DEGREE * nodes.num_nodes if edges.num_edges is None else edges.num_edges
    sort = plan_csc(ends, edges.num_edges, columns=NO_COLUMNS, rules=EdgeRules(), budget_bytes=budget_bytes)
    dim = dims[nodes.name]
    means = plan_means(
        num_rows=nodes.num_nodes,
        num_edges=count,
        dim=dim,
        source_row_bytes=4 * dim,
        budget_bytes=budget_bytes // num_shares,
    )
    record = record_dtype(num_sources=ends.num_sources, columns=NO_COLUMNS).itemsize
    return max(sort.peak_bytes, num_shares * means.memory_bytes), 8 * ends.num_nodes + count * 2 * record


def _columns(each: PlannedRelation) -> EdgeColumns:
    rows = each.source.edge_features
    return edge_columns(each.source.edges, each.rules, num_rows=None if rows is None else rows.num_rows)


def _max_edges(each: PlannedRelation) -> int:
    return most_edges(each.source.edges.num_edges or 0, each.rules, each.ends.num_nodes)


def _edge_rows(
    source: HeteroSource, each: PlannedRelation, options: PrepareOptions, *, budget_bytes: int
) -> EdgeRowPlan:
    rows = each.source.edge_features
    if rows is None:
        return NO_EDGE_ROWS
    return plan_edge_rows(
        rows,
        most_edges(rows.num_rows, each.rules, each.ends.num_nodes),
        dtype=options.stored_edge_dtype,
        rules=each.rules,
        budget_bytes=budget_bytes,
        where=source.where(each.source),
        num_passes=options.num_parts,
    )


def _edge_feature_bytes(each: PlannedRelation, options: PrepareOptions) -> int:
    rows = each.source.edge_features
    if rows is None:
        return 0
    num_edges = most_edges(rows.num_rows, each.rules, each.ends.num_nodes)
    return stored_feature_bytes(num_edges, rows.dim, options.stored_edge_dtype, num_parts=options.num_parts)


def _edge_bytes(each: PlannedRelation) -> int:
    """Bytes of an edge as it is stored, without features."""
    columns = 4 * each.source.edges.has_weights + 8 * each.source.edges.has_times
    return (4 if each.ends.num_sources < 2**31 else 8) + columns


def _dataset_bytes(
    source: HeteroSource,
    relations: Sequence[PlannedRelation],
    dims: Mapping[str, int],
    options: PrepareOptions,
    links: LinkSizes,
) -> int:
    edges = sum(_max_edges(each) * _edge_bytes(each) + 8 * (each.ends.num_nodes + 1) for each in relations)
    features = sum(
        stored_feature_bytes(
            nodes.num_nodes, dims[nodes.name], options.stored_dtype, num_parts=options.num_parts
        )
        for nodes in source.nodes
        if nodes.name in dims
    )
    features += sum(_edge_feature_bytes(each, options) for each in relations)
    columns = sum(
        2 * (each.source.edge_features is not None) + each.source.edges.has_times for each in relations
    )
    labels = source.labels.nbytes + source.splits.num_bytes
    num_arrays = 4 + 2 * len(source.nodes) + 3 * len(relations) + columns + links.num_arrays
    return on_disk(edges + features + labels + links.dataset_bytes, num_arrays=num_arrays)


def _scratch_bytes(each: PlannedRelation, sort: CscPlan) -> int:
    record = record_dtype(num_sources=each.ends.num_sources, columns=_columns(each)).itemsize
    spill = _max_edges(each) * record
    merged = _max_edges(each) * _edge_bytes(each) if each.rules.merges else 0
    return (spill if spill > sort.held_bytes else 0) + merged
