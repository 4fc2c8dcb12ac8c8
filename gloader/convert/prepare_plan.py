"""Plans of a conversion: the memory and the disk that it takes, known before it starts.

`plan_prepare` is for a source of one type, `plan_hetero` for a typed one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.csc.external_csc import edge_columns, plan_csc
from gloader.convert.csc.spill import NO_COLUMNS, EdgeColumns, record_dtype
from gloader.convert.derived import (
    averaged_edges,
    derivation_depth,
    derivation_order,
    feature_dims,
    plan_means,
)
from gloader.convert.edge_rows import NO_EDGE_ROWS, EdgeRowPlan, most_edges, plan_edge_rows
from gloader.convert.links.link_tables import split_edges
from gloader.convert.links.write_tables import link_sizes
from gloader.convert.node_order import ORDER_NODE_BYTES, ranges_per_pass, spill_dtype
from gloader.convert.options import EdgeRules
from gloader.convert.receipt import marked_bytes
from gloader.convert.source import MeanOf
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.convert.csc.edge_rules import PlannedRelation
    from gloader.convert.csc.external_csc import CscPlan
    from gloader.convert.links.write_tables import LinkSizes
    from gloader.convert.options import PrepareOptions
    from gloader.convert.source import HeteroSource, NodeSource, Source


DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
# The buffers of the array writers, and of the files that are read.
WRITER_BYTES = 24 << 20
# Bytes of feature rows read at a time: as many as are read ahead of it, and written behind it.
CHUNK_BYTES = 4 << 20
# Copies of a feature chunk alive at once: as read, as float32, as stored. Rows that change places add one.
CHUNK_COPIES = 3
_PAGE_BYTES = 4096
# A checksum of each page, beside every array.
_CHECKSUM_BYTES = 8
# Files that rows are dealt out to when they are put in another order; all are written in turns.
_MAX_RANGES = 4096
# Sorting the original ids of a range: an id, its position, and a copy of either.
_ROW_SORT_BYTES = 24
# Bytes per node that the checks of labels and splits take.
CHECK_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparePlan:
    """Memory and disk that a conversion takes, and the shares of its parts."""

    budget_bytes: int
    memory_bytes: int  # at most, of what the conversion allocates
    edge_budget_bytes: int  # of which the edge sort may take so much
    chunk_edges: int  # edges read at a time
    chunk_rows: int  # feature rows at a time
    range_rows: int  # feature rows put in order at a time
    dataset_bytes: int  # on disk, at the end; without the edges where their number is not known
    scratch_bytes: int  # on disk, at most, while it runs


def plan_prepare(source: Source, options: PrepareOptions, *, budget_bytes: int) -> PreparePlan:
    """Divide a memory budget between the parts of a conversion, and count the bytes on disk. Pure.

    Parameters
    ----------
    source : its sizes count; nothing is read
    options : of the conversion; their own budget is not looked at
    budget_bytes : memory that the conversion stays within

    Raises
    ------
    BudgetError
        The O(N) arrays and the smallest useful buffers do not fit; says needed and allowed.
    ConfigError
        The feature dtype cannot be stored, or the order of the nodes is unknown.
    """
    if options.order not in ORDER_NODE_BYTES:
        raise ConfigError(
            f"nodes cannot be put in order {options.order!r}; allowed: {', '.join(ORDER_NODE_BYTES)}"
        )
    check_stored_dtype(options.stored_dtype)
    check_stored_dtype(options.stored_edge_dtype)
    resident = _resident_bytes(source, options)
    row_bytes = source.features.dim * max(4, source.features.dtype.itemsize)
    is_ordered = options.order != "none" or source.row_ids is not None
    copies = CHUNK_COPIES + is_ordered
    least_rows = copies * row_bytes * (2 if is_ordered else 1)
    if resident + least_rows > budget_bytes:
        raise BudgetError(
            f"preparing {source.origin} needs {format_bytes(resident)} for arrays of one entry per node and for write "
            f"buffers, and {format_bytes(least_rows)} per feature row; the memory budget allows "
            f"{format_bytes(budget_bytes)}. Raise --memory-budget"
        )
    free = budget_bytes - resident
    sort = plan_csc(
        EdgeEnds.of(source.num_nodes),
        source.edges.num_edges,
        columns=_columns(source, options),
        rules=options.rules,
        budget_bytes=free,
    )
    edge_rows = _edge_rows(source, options, budget_bytes=free)
    links = link_sizes(
        source.links,
        split_edges(source, options),
        num_nodes=source.num_nodes,
        budget_bytes=free,
    )
    # Edges are done before link tables begin, and these before features, so that each has the whole. Rows that change
    # places share it between the chunk that is read and the range that is put in order.
    for_chunks = free // 2 if is_ordered else free
    chunk_rows = max(1, min(CHUNK_BYTES, for_chunks // copies) // max(1, row_bytes))
    range_rows, range_bytes = source.num_nodes, 0
    if is_ordered:
        width = ordered_row_bytes(source.features.dim, options)
        range_rows = ordered_range_rows(source.num_nodes, width, free - for_chunks)
        range_bytes = range_rows * width
    return PreparePlan(
        budget_bytes=budget_bytes,
        memory_bytes=resident
        + max(
            sort.peak_bytes,
            edge_rows.memory_bytes,
            links.memory_bytes,
            copies * chunk_rows * row_bytes + range_bytes,
        ),
        edge_budget_bytes=free,
        chunk_edges=sort.chunk_edges,
        chunk_rows=chunk_rows,
        range_rows=range_rows,
        dataset_bytes=_dataset_bytes(source, options, links),
        scratch_bytes=max(
            _edge_scratch_bytes(source, options, held_bytes=sort.held_bytes) + edge_rows.number_bytes,
            edge_rows.scratch_bytes,
            links.scratch_bytes,
            ordered_scratch_bytes(source.num_nodes, source.features.dim, options, range_rows),
        ),
    )


def check_stored_dtype(dtype: str) -> None:
    """Refuse a dtype that features cannot be stored in, with a ConfigError. Pure."""
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"features cannot be stored as {dtype!r}; allowed: {', '.join(DTYPE_BYTES)}")


def stored_feature_bytes(num_rows: int, dim: int, dtype: str, *, num_parts: int = 1) -> int:
    """Return the bytes of (``num_rows``, ``dim``) features as they are stored, scales included. Pure.

    Parameters
    ----------
    num_rows, dim, dtype : of the matrix
    num_parts : of which one is written: the largest; scales, and checksums of all pages, are in each
    """
    row_bytes = dim * DTYPE_BYTES[dtype]
    if num_parts == 1:
        return num_rows * (row_bytes + 4 * (dtype == "int8"))
    # The pages at both ends are shared with other parts.
    part = -(-num_rows // num_parts) * row_bytes + 2 * _PAGE_BYTES
    return part + num_rows * 4 * (dtype == "int8") + num_rows * row_bytes // _PAGE_BYTES * _CHECKSUM_BYTES


def ordered_row_bytes(dim: int, options: PrepareOptions) -> int:
    """Return the bytes of memory per row of a range that is put in order, with the sort of its original ids. Pure."""
    return dim * spill_dtype(options.stored_dtype).itemsize + _ROW_SORT_BYTES


def ordered_range_rows(num_rows: int, row_bytes: int, budget_bytes: int) -> int:
    """Return how many rows are put in order at a time; raises BudgetError where too few would be. Pure."""
    least = -(-num_rows // _MAX_RANGES)
    if least * row_bytes > budget_bytes:
        raise BudgetError(
            f"putting {num_rows} feature rows in another order takes at least "
            f"{format_bytes(2 * least * row_bytes)}; the memory budget leaves {format_bytes(2 * budget_bytes)} for it. "
            "Raise --memory-budget"
        )
    return min(num_rows, budget_bytes // row_bytes)


def ordered_scratch_bytes(num_rows: int, dim: int, options: PrepareOptions, range_rows: int) -> int:
    """Return the bytes on disk of rows that wait to be put in order: those of one pass over the source. Pure."""
    if range_rows >= num_rows:
        return 0
    held = range_rows * ranges_per_pass(-(-num_rows // range_rows), options.num_parts)
    return min(held, num_rows) * dim * spill_dtype(options.stored_dtype).itemsize


def on_disk(array_bytes: int, *, num_arrays: int) -> int:
    """Return the bytes that arrays take on disk at most, with their headers and checksums. Pure."""
    # Headers, last pages and the commit record: a few pages for each array and for its checksums.
    return array_bytes + array_bytes // _PAGE_BYTES * _CHECKSUM_BYTES + 4 * num_arrays * _PAGE_BYTES


def _resident_bytes(source: Source, options: PrepareOptions) -> int:
    """Bytes of memory that are taken from the start to the end."""
    per_node = CHECK_BYTES + ORDER_NODE_BYTES[options.order]
    arrays = source.resident_bytes + source.labels.nbytes + source.splits.num_bytes
    return arrays + per_node * source.num_nodes + WRITER_BYTES


def _max_edges(source: Source, options: PrepareOptions) -> int:
    return most_edges(source.edges.num_edges or 0, options.rules, source.num_nodes)


def _columns(source: Source, options: PrepareOptions) -> EdgeColumns:
    rows = source.edge_features
    return edge_columns(source.edges, options.rules, num_rows=None if rows is None else rows.num_rows)


def _edge_rows(source: Source, options: PrepareOptions, *, budget_bytes: int) -> EdgeRowPlan:
    rows = source.edge_features
    if rows is None:
        return NO_EDGE_ROWS
    return plan_edge_rows(
        rows,
        most_edges(rows.num_rows, options.rules, source.num_nodes),
        dtype=options.stored_edge_dtype,
        rules=options.rules,
        budget_bytes=budget_bytes,
        where=source.origin,
        num_passes=options.num_parts,
    )


def _edge_feature_bytes(source: Source, options: PrepareOptions) -> int:
    rows = source.edge_features
    if rows is None:
        return 0
    num_edges = most_edges(rows.num_rows, options.rules, source.num_nodes)
    return stored_feature_bytes(num_edges, rows.dim, options.stored_edge_dtype, num_parts=options.num_parts)


def _edge_bytes(source: Source) -> int:
    """Bytes of an edge as it is stored, without features."""
    columns = 4 * source.edges.has_weights + 8 * source.edges.has_times
    return (4 if source.num_nodes < 2**31 else 8) + columns


def _dataset_bytes(source: Source, options: PrepareOptions, links: LinkSizes) -> int:
    num_nodes, dim = source.num_nodes, source.features.dim
    features = stored_feature_bytes(num_nodes, dim, options.stored_dtype, num_parts=options.num_parts)
    edges = _max_edges(source, options) * _edge_bytes(source)
    # An offset and a label per node, int64 each; in another order also the id of the source.
    per_node = 16 if options.order == "none" else 24
    arrays = features + edges + per_node * num_nodes + source.splits.num_bytes
    columns = (source.edge_features is not None) * 2 + source.edges.has_times + links.num_arrays
    edge_features = _edge_feature_bytes(source, options)
    return on_disk(arrays + edge_features + links.dataset_bytes, num_arrays=10 + columns)


def _edge_scratch_bytes(source: Source, options: PrepareOptions, *, held_bytes: int) -> int:
    record = record_dtype(num_sources=source.num_nodes, columns=_columns(source, options)).itemsize
    spill = _max_edges(source, options) * record
    merged = _max_edges(source, options) * _edge_bytes(source) if options.rules.merges else 0
    # Communities are found on a sorted topology of their own.
    first_sort = 0
    if options.order == "community":
        index_bytes = 4 if source.num_nodes < 2**31 else 8
        first_sort = _max_edges(source, options) * index_bytes + 8 * (source.num_nodes + 1)
    return (spill if spill > held_bytes else 0) + merged + first_sort


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
    resident = _typed_resident_bytes(source, budget_bytes)
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
    edge_rows = [_typed_edge_rows(source, each, options, budget_bytes=free) for each in relations]
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
        dataset_bytes=_typed_dataset_bytes(source, relations, dims, options, links),
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


def _typed_resident_bytes(source: HeteroSource, budget_bytes: int) -> int:
    """Bytes of memory that are taken from the start to the end."""
    labels = source.labels.nbytes + source.splits.num_bytes + CHECK_BYTES * source.labels.shape[0]
    marks = marked_bytes(sum(nodes.num_nodes for nodes in source.nodes), budget_bytes)
    return source.resident_bytes + labels + marks + WRITER_BYTES


def _sort(each: PlannedRelation, *, budget_bytes: int) -> CscPlan:
    edges = each.source.edges
    return plan_csc(
        each.ends,
        edges.num_edges,
        columns=_typed_columns(each),
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


def _typed_columns(each: PlannedRelation) -> EdgeColumns:
    rows = each.source.edge_features
    return edge_columns(each.source.edges, each.rules, num_rows=None if rows is None else rows.num_rows)


def _typed_max_edges(each: PlannedRelation) -> int:
    return most_edges(each.source.edges.num_edges or 0, each.rules, each.ends.num_nodes)


def _typed_edge_rows(
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


def _typed_edge_feature_bytes(each: PlannedRelation, options: PrepareOptions) -> int:
    rows = each.source.edge_features
    if rows is None:
        return 0
    num_edges = most_edges(rows.num_rows, each.rules, each.ends.num_nodes)
    return stored_feature_bytes(num_edges, rows.dim, options.stored_edge_dtype, num_parts=options.num_parts)


def _typed_edge_bytes(each: PlannedRelation) -> int:
    """Bytes of an edge as it is stored, without features."""
    columns = 4 * each.source.edges.has_weights + 8 * each.source.edges.has_times
    return (4 if each.ends.num_sources < 2**31 else 8) + columns


def _typed_dataset_bytes(
    source: HeteroSource,
    relations: Sequence[PlannedRelation],
    dims: Mapping[str, int],
    options: PrepareOptions,
    links: LinkSizes,
) -> int:
    edges = sum(
        _typed_max_edges(each) * _typed_edge_bytes(each) + 8 * (each.ends.num_nodes + 1) for each in relations
    )
    features = sum(
        stored_feature_bytes(
            nodes.num_nodes, dims[nodes.name], options.stored_dtype, num_parts=options.num_parts
        )
        for nodes in source.nodes
        if nodes.name in dims
    )
    features += sum(_typed_edge_feature_bytes(each, options) for each in relations)
    columns = sum(
        2 * (each.source.edge_features is not None) + each.source.edges.has_times for each in relations
    )
    labels = source.labels.nbytes + source.splits.num_bytes
    num_arrays = 4 + 2 * len(source.nodes) + 3 * len(relations) + columns + links.num_arrays
    return on_disk(edges + features + labels + links.dataset_bytes, num_arrays=num_arrays)


def _scratch_bytes(each: PlannedRelation, sort: CscPlan) -> int:
    record = record_dtype(num_sources=each.ends.num_sources, columns=_typed_columns(each)).itemsize
    spill = _typed_max_edges(each) * record
    merged = _typed_max_edges(each) * _typed_edge_bytes(each) if each.rules.merges else 0
    return (spill if spill > sort.held_bytes else 0) + merged
