"""The plan for a conversion's memory and disk, made before the conversion starts.

The conversion (`prepare`) calls `plan_prepare`, and refuses a source that does not fit. A conversion has several parts,
which run one after another. They are: each relation's sort, the link tables (edges to predict), each node type's
features, and derived features (means over neighbours). Labels and similar arrays stay in memory to the end. Each part
may use all the other memory of the budget, so the conversion's peak is that of the largest part. The same holds for the
temporary files. Rows that get another order are moved in ranges: groups of rows that fit into memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.convert.csc.edge_rules import plan_relations
from gloader.convert.csc.external_csc import edge_columns, plan_csc
from gloader.convert.csc.spill import NO_COLUMNS, record_dtype
from gloader.convert.derived import (
    averaged_edges,
    derivation_depth,
    derivation_order,
    feature_dims,
    plan_means,
)
from gloader.convert.edge_rows import NO_EDGE_ROWS, most_edges, plan_edge_rows
from gloader.convert.links.link_tables import split_edges
from gloader.convert.links.locate import SPILLED_ROW_BYTES, plan_locate
from gloader.convert.node_order import (
    MAX_RANGES,
    ORDER_NODE_BYTES,
    ROW_SORT_BYTES,
    ranges_per_pass,
    spill_dtype,
)
from gloader.convert.options import PARTS, EdgeRules
from gloader.convert.receipt import marked_bytes
from gloader.convert.task_tables import task_arrays, task_bytes
from gloader.core.dtypes import STORED_DTYPES, feature_dtype
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.convert.csc.edge_rules import PlannedRelation
    from gloader.convert.options import PrepareOptions
    from gloader.convert.source import AnySource, EdgeStream, GraphSource, LinkSource, NodeKeys, NodeSource


# Bytes for the array writers' and the source files' buffers.
WRITER_BYTES = 24 << 20
# Bytes per chunk of feature rows.
CHUNK_BYTES = 4 << 20
# Copies of a feature chunk in memory at the same time: as read, as float32, as stored. Reordered rows need one more.
CHUNK_COPIES = 3
_PAGE_BYTES = 4096  # bytes per page of a stored array; each page has a checksum
_CHECKSUM_BYTES = 8  # bytes per checksum
# Bytes per node for the checks of labels and splits.
CHECK_BYTES = 2
# Assumed edges per node if the source's number of edges is unknown. The sort uses the same number.
_USUAL_DEGREE = 32
_CHUNK_KEYS = 1 << 16  # maximum number of keys per chunk
# Bytes per key of a chunk: copies of the key, and its offset, hash and entry in the index with their copies.
_KEY_COPIES, _KEY_CHUNK_BYTES = 4, 128
# Bytes of memory for the sort of an index: per key if all keys are sorted at once, and the minimum.
_KEY_SORT_BYTES, _LEAST_SORT_BYTES = 160, 1 << 20
_PAIR_BYTES = 32  # bytes per row of a link table: source, destination, position and reverse position
_LABEL_BYTES = {None: 0, "float32": 4, "int64": 8}  # bytes per link label by dtype; None means no labels


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSizes:
    """Memory and disk for one part of a conversion."""

    memory_bytes: int = 0  # peak memory, without the arrays that are held from start to end
    # Disk bytes for the part's arrays in the dataset; unknown numbers of edges or rows count as 0.
    dataset_bytes: int = 0
    scratch_bytes: int = 0  # largest size of the temporary files
    num_arrays: int = 0  # number of the part's arrays in the dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShares:
    """One node type's shares of the memory for its feature rows."""

    dim: int  # number of feature columns
    chunk_rows: int  # rows per chunk
    range_rows: int  # rows per range while rows are reordered; all rows if they keep their places


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyShares:
    """One node type's shares of the memory for writing its keys."""

    chunk_keys: int  # keys per chunk
    sort_bytes: int  # bytes for the sort of the index


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparePlan:
    """A conversion's memory and disk, and its parts' shares."""

    budget_bytes: int  # the memory budget
    memory_bytes: int  # peak memory of the conversion's own arrays
    free_bytes: int  # memory for each part: the budget without the arrays that are held from start to end
    chunk_edges: int  # edges per chunk while the node order is found
    rows: Mapping[str, RowShares]  # shares by node type with features
    keys: Mapping[str, KeyShares]  # shares by node type with keys
    mean_bytes: int  # memory for each derived feature
    dataset_bytes: int  # bytes of the finished dataset; unknown numbers of edges count as 0
    scratch_bytes: int  # largest size of the temporary files


def plan_prepare(source: AnySource, options: PrepareOptions, *, budget_bytes: int) -> PreparePlan:
    """Divide a memory budget among a conversion's parts, and count the bytes on disk. Pure.

    Parameters
    ----------
    source : the checked source, whose sizes are used; no rows or edges are read
    options : the conversion's options, whose own budget is ignored
    budget_bytes : the memory budget

    Raises
    ------
    BudgetError
        The arrays with one entry per node and the smallest useful buffers do not fit. The message gives needed and
        allowed bytes.
    ConfigError
        A feature dtype cannot be stored, the node order is unknown, or an option does not fit the source.
    """
    if options.order not in ORDER_NODE_BYTES:
        raise ConfigError(
            f"nodes cannot be put in order {options.order!r}; allowed: {', '.join(ORDER_NODE_BYTES)}"
        )
    # The results are not used: the calls only raise ConfigError for an unknown dtype.
    feature_dtype(options.stored_dtype)
    feature_dtype(options.stored_edge_dtype)
    graph = source.graph()
    relations = plan_relations(graph, options)
    dims = feature_dims(graph)
    featured = [nodes for nodes in graph.nodes if nodes.name in dims]
    resident = _resident_bytes(graph, options, budget_bytes)
    least = max((_least_bytes(nodes, dims[nodes.name], options) for nodes in featured), default=0)
    if resident + least > budget_bytes:
        raise BudgetError(
            f"preparing {graph.origin} needs {format_bytes(resident)} for arrays of one entry per node and for write "
            f"buffers, and {format_bytes(least)} per feature row; the memory budget allows "
            f"{format_bytes(budget_bytes)}. Raise --memory-budget"
        )
    free = budget_bytes - resident
    rows = {
        nodes.name: _row_shares(nodes, dims[nodes.name], options, budget_bytes=free) for nodes in featured
    }
    keys = {
        nodes.name: _plan_keys(nodes.keys, nodes.num_nodes, budget_bytes=free)
        for nodes in graph.nodes
        if nodes.keys is not None
    }
    sorts = [_plan_edges(graph, each, options, budget_bytes=free) for each in relations]
    # If only a part of the rows is stored, a mean over another mean computes both at the same time. So the means of the
    # longest chain share the memory.
    num_shares = max(1, derivation_depth(graph)) if options.num_parts > 1 else 1
    parts = [sizes for _, sizes in sorts]
    parts += [_row_sizes(nodes, rows[nodes.name], options) for nodes in featured]
    parts += [sizes for _, sizes in keys.values()]
    parts.append(
        link_sizes(
            graph.links,
            split_edges(graph, options),
            num_nodes=max((nodes.num_nodes for nodes in graph.nodes), default=0),
            budget_bytes=free,
        )
    )
    parts += _mean_sizes(graph, dims, options, budget_bytes=free, num_shares=num_shares)
    num_bytes = sum(part.dataset_bytes for part in parts) + graph.labels.nbytes + graph.splits.num_bytes
    num_bytes += task_bytes(graph)
    num_arrays = sum(part.num_arrays for part in parts) + 4 + task_arrays(graph)  # 4: labels and three splits
    if options.order != "none":
        num_bytes, num_arrays = num_bytes + 8 * graph.labels.shape[0], num_arrays + 1  # the original ids
    return PreparePlan(
        budget_bytes=budget_bytes,
        memory_bytes=resident + max(part.memory_bytes for part in parts),
        free_bytes=free,
        chunk_edges=min((chunk_edges for chunk_edges, _ in sorts), default=1),
        rows=rows,
        keys={name: shares for name, (shares, _) in keys.items()},
        mean_bytes=free // num_shares,
        dataset_bytes=on_disk(num_bytes, num_arrays=num_arrays),
        scratch_bytes=max(part.scratch_bytes for part in parts),
    )


def stored_feature_bytes(num_rows: int, dim: int, dtype: str, *, num_parts: int = 1) -> int:
    """Return the bytes for stored features (``num_rows``, ``dim``), scales included. Pure.

    Parameters
    ----------
    num_rows, dim, dtype : the matrix's sizes and dtype
    num_parts : number of parts of the matrix. The dataset gets one part of the rows, but all scales and page checksums.
        The result is for the largest part
    """
    element = STORED_DTYPES[dtype]
    if num_parts == 1:
        return num_rows * element.row_bytes(dim)
    row_bytes = dim * element.stored.itemsize
    scale_bytes = element.row_bytes(dim) - row_bytes
    # The first and the last page are shared with other parts.
    part = -(-num_rows // num_parts) * row_bytes + 2 * _PAGE_BYTES
    return part + num_rows * scale_bytes + num_rows * row_bytes // _PAGE_BYTES * _CHECKSUM_BYTES


def ordered_row_bytes(dim: int, options: PrepareOptions) -> int:
    """Return the memory per row while a range is reordered, with the sort by original id. Pure."""
    return dim * spill_dtype(options.stored_dtype).itemsize + ROW_SORT_BYTES


def ordered_range_rows(num_rows: int, row_bytes: int, budget_bytes: int) -> int:
    """Return the number of rows per range of reordered rows. Raises BudgetError if too few fit. Pure.

    ``row_bytes`` is the result of `ordered_row_bytes`, and ``budget_bytes`` half of the memory for features.
    """
    # Each range has a temporary file, so the number of ranges is limited.
    least = -(-num_rows // MAX_RANGES)
    if least * row_bytes > budget_bytes:
        raise BudgetError(
            f"putting {num_rows} feature rows in another order takes at least "
            f"{format_bytes(2 * least * row_bytes)}; the memory budget leaves {format_bytes(2 * budget_bytes)} for it. "
            "Raise --memory-budget"
        )
    return min(num_rows, budget_bytes // row_bytes)


def ordered_scratch_bytes(num_rows: int, dim: int, options: PrepareOptions, range_rows: int) -> int:
    """Return the disk bytes for the rows that one pass over the source writes for reordering. Pure."""
    if range_rows >= num_rows:
        return 0
    held = range_rows * ranges_per_pass(-(-num_rows // range_rows), options.num_parts)
    return min(held, num_rows) * dim * spill_dtype(options.stored_dtype).itemsize


def on_disk(array_bytes: int, *, num_arrays: int) -> int:
    """Return an upper bound for the arrays' disk bytes, with headers and checksums. Pure."""
    # Headers, last pages and the commit record take a few pages for each array and for its checksums.
    return array_bytes + array_bytes // _PAGE_BYTES * _CHECKSUM_BYTES + 4 * num_arrays * _PAGE_BYTES


def link_sizes(
    links: Sequence[LinkSource], split: EdgeStream | None, *, num_nodes: int, budget_bytes: int
) -> PartSizes:
    """Return the memory and disk for link tables, which are written one after another. Pure.

    Parameters
    ----------
    links : the given tables
    split : the edges that an edge split divides among tables, or None
    num_nodes : nodes in the largest type
    budget_bytes : memory for each table

    Raises
    ------
    BudgetError
        The budget is too small. The message gives needed and allowed bytes.
    """
    rows = [each.rows.num_rows for each in links]
    disk = [_table_bytes(each, num_nodes) for each in links]
    num_arrays = 4 * len(links)  # pairs, labels, times and negatives, at most
    if split is not None:
        # The split's tables have as many rows as edges in all, and one table may have nearly all of them.
        rows.append(split.num_edges)
        disk.append((split.num_edges or 0) * (_PAIR_BYTES + 8 * split.has_times))
        num_arrays += 2 * len(PARTS)  # pairs and times
    plans = [plan_locate(num_nodes, budget_bytes=budget_bytes, num_rows=count) for count in rows]
    spilled = [(count or 0) * SPILLED_ROW_BYTES for count in rows]
    return PartSizes(
        memory_bytes=max((plan.memory_bytes for plan in plans), default=0),
        dataset_bytes=sum(disk),
        scratch_bytes=max(
            (size for size, plan in zip(spilled, plans, strict=True) if size > plan.held_bytes), default=0
        ),
        num_arrays=num_arrays,
    )


def _table_bytes(table: LinkSource, num_nodes: int) -> int:
    """Return the stored bytes of a link table, or 0 if its number of rows is unknown."""
    rows = table.rows
    negative_bytes = rows.negatives_per_row * (4 if num_nodes < 2**31 else 8)
    row_bytes = _PAIR_BYTES + _LABEL_BYTES[rows.label_dtype] + 8 * rows.has_times + negative_bytes
    return (rows.num_rows or 0) * row_bytes


def _resident_bytes(source: GraphSource, options: PrepareOptions, budget_bytes: int) -> int:
    """Return the bytes of memory that are held from start to end."""
    num_nodes = sum(nodes.num_nodes for nodes in source.nodes)
    # The check of labels ends before the receipt marks the nodes with edges, so only the larger memory counts.
    checked = CHECK_BYTES * source.labels.shape[0]
    per_node = (
        max(checked, marked_bytes(num_nodes, budget_bytes)) + ORDER_NODE_BYTES[options.order] * num_nodes
    )
    # `ORDER_NODE_BYTES` has 8 bytes for a reordered copy of a label. Labels of several columns take more.
    copied = max(0, source.labels.nbytes - 8 * source.labels.shape[0]) if options.order != "none" else 0
    held = source.resident_bytes + source.labels.nbytes + source.splits.num_bytes + copied
    return held + per_node + WRITER_BYTES


def _plan_edges(
    source: GraphSource, each: PlannedRelation, options: PrepareOptions, *, budget_bytes: int
) -> tuple[int, PartSizes]:
    """Return the edges per chunk, and the sizes for a relation's sort and edge features."""
    edges, features, ends, rules = each.source.edges, each.source.edge_features, each.ends, each.rules
    columns = edge_columns(edges, rules, num_rows=None if features is None else features.num_rows)
    sort = plan_csc(ends, edges.num_edges, columns=columns, rules=rules, budget_bytes=budget_bytes)
    most = most_edges(edges.num_edges or 0, rules, ends.num_nodes)  # edges after the rules, at most
    index_bytes = 4 if ends.num_sources < 2**31 else 8
    stored = most * (index_bytes + 4 * edges.has_weights + 8 * edges.has_times)
    spill = most * record_dtype(num_sources=ends.num_sources, columns=columns).itemsize
    # Merged edges wait in temporary files until their number is known.
    scratch = (spill if spill > sort.held_bytes else 0) + stored * rules.merges
    if options.order == "community":  # communities need another sorted copy of the topology
        scratch += most * index_bytes + 8 * (ends.num_nodes + 1)
    rows, row_bytes = NO_EDGE_ROWS, 0
    if features is not None:
        num_rows = most_edges(features.num_rows, rules, ends.num_nodes)
        rows = plan_edge_rows(
            features,
            num_rows,
            dtype=options.stored_edge_dtype,
            rules=rules,
            budget_bytes=budget_bytes,
            where=source.where(each.source),
            num_passes=options.num_parts,
        )
        row_bytes = stored_feature_bytes(
            num_rows, features.dim, options.stored_edge_dtype, num_parts=options.num_parts
        )
    return sort.chunk_edges, PartSizes(
        memory_bytes=max(sort.peak_bytes, rows.memory_bytes),
        dataset_bytes=stored + 8 * (ends.num_nodes + 1) + row_bytes,
        scratch_bytes=max(scratch + rows.number_bytes, rows.scratch_bytes),
        # Offsets, sources and perhaps weights; features with their scales; times.
        num_arrays=3 + 2 * (features is not None) + edges.has_times,
    )


def _is_moved(nodes: NodeSource, options: PrepareOptions) -> bool:
    """True if the feature rows are reordered."""
    return nodes.row_ids is not None or options.order != "none"


def _chunk_row_bytes(nodes: NodeSource, dim: int, options: PrepareOptions) -> int:
    """Return the bytes for all copies of a row, in its own dtype or in float32, whichever is wider.

    ``dim`` is the number of columns.
    """
    width = 4 if nodes.given is None else max(4, nodes.given.dtype.itemsize)
    return (CHUNK_COPIES + _is_moved(nodes, options)) * max(1, dim * width)


def _least_bytes(nodes: NodeSource, dim: int, options: PrepareOptions) -> int:
    """Return the least memory for a type's features: one row, and as much again for a range if rows are reordered."""
    return (1 + _is_moved(nodes, options)) * _chunk_row_bytes(nodes, dim, options)


def _row_shares(nodes: NodeSource, dim: int, options: PrepareOptions, *, budget_bytes: int) -> RowShares:
    """Divide the memory for a type's features between a chunk and a range. Raises BudgetError if it is too small."""
    # Reordered rows need memory for a chunk and for a range.
    for_chunks = budget_bytes // 2 if _is_moved(nodes, options) else budget_bytes
    copies = CHUNK_COPIES + _is_moved(nodes, options)
    row_bytes = _chunk_row_bytes(nodes, dim, options) // copies
    range_rows = nodes.num_nodes
    if _is_moved(nodes, options):
        width = ordered_row_bytes(dim, options)
        range_rows = ordered_range_rows(nodes.num_nodes, width, budget_bytes - for_chunks)
    chunk_rows = max(1, min(CHUNK_BYTES, for_chunks // copies) // row_bytes)
    return RowShares(dim=dim, chunk_rows=chunk_rows, range_rows=range_rows)


def _row_sizes(nodes: NodeSource, shares: RowShares, options: PrepareOptions) -> PartSizes:
    """Return the memory and disk for a type's features."""
    dim, num_rows, num_parts = shares.dim, nodes.num_nodes, options.num_parts
    memory, scratch = shares.chunk_rows * _chunk_row_bytes(nodes, dim, options), 0
    if _is_moved(nodes, options):
        memory += shares.range_rows * ordered_row_bytes(dim, options)
        scratch = ordered_scratch_bytes(num_rows, dim, options, shares.range_rows)
    return PartSizes(
        memory_bytes=memory,
        dataset_bytes=stored_feature_bytes(num_rows, dim, options.stored_dtype, num_parts=num_parts),
        scratch_bytes=scratch,
        num_arrays=2,  # features and scales
    )


def _plan_keys(keys: NodeKeys, count: int, *, budget_bytes: int) -> tuple[KeyShares, PartSizes]:
    """Divide the memory for writing a type's keys between a chunk and the sort of their index.

    ``count`` is N. Returns the shares, and the memory and disk for the keys and their index.
    """
    key_bytes = _KEY_COPIES * (keys.num_bytes // max(1, count)) + _KEY_CHUNK_BYTES
    chunk_keys = max(1, min(_CHUNK_KEYS, count, budget_bytes // 4 // key_bytes))
    sort_bytes = min(budget_bytes // 2, _LEAST_SORT_BYTES + _KEY_SORT_BYTES * count)
    # Each text has an offset, and each key a hash and a node. The buckets of the index take less than the hashes.
    return KeyShares(chunk_keys=chunk_keys, sort_bytes=sort_bytes), PartSizes(
        memory_bytes=chunk_keys * key_bytes + sort_bytes,
        dataset_bytes=keys.num_bytes + 8 * (count + 1) + 3 * 8 * count,
        scratch_bytes=16 * count,  # each hash with its node
        num_arrays=5,
    )


def _mean_sizes(
    source: GraphSource,
    dims: Mapping[str, int],
    options: PrepareOptions,
    *,
    budget_bytes: int,
    num_shares: int,
) -> list[PartSizes]:
    """Return the sizes for derived features. In a chain of means over means, ``num_shares`` means share the memory."""
    sizes = [
        _mean_size(source, nodes, dims[nodes.name], budget_bytes=budget_bytes, num_shares=num_shares)
        for nodes, _ in derivation_order(source)
    ]
    if options.num_parts == 1:
        return sizes
    # If only a part of the rows is stored, a mean over another mean computes the other again. So all edges stay on disk
    # until the end.
    return [
        PartSizes(
            memory_bytes=max((size.memory_bytes for size in sizes), default=0),
            scratch_bytes=sum(size.scratch_bytes for size in sizes),
        )
    ]


def _mean_size(
    source: GraphSource, nodes: NodeSource, dim: int, *, budget_bytes: int, num_shares: int
) -> PartSizes:
    """Return the memory and temporary files for a type's derived features; `_row_sizes` counts the stored rows."""
    edges, ends = averaged_edges(source, nodes)
    count = _USUAL_DEGREE * nodes.num_nodes if edges.num_edges is None else edges.num_edges
    sort = plan_csc(ends, edges.num_edges, columns=NO_COLUMNS, rules=EdgeRules(), budget_bytes=budget_bytes)
    means = plan_means(
        num_rows=nodes.num_nodes,
        num_edges=count,
        dim=dim,
        source_row_bytes=4 * dim,
        budget_bytes=budget_bytes // num_shares,
    )
    record = record_dtype(num_sources=ends.num_sources, columns=NO_COLUMNS).itemsize
    return PartSizes(
        memory_bytes=max(sort.peak_bytes, num_shares * means.memory_bytes),
        # The sorted edges stay on disk with their offsets, and while they are sorted, also as records.
        scratch_bytes=8 * ends.num_nodes + count * 2 * record,
    )
