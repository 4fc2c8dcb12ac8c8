"""Plan of a conversion: the memory and the disk that it takes, known before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.csc.edge_spill import EdgeColumns, record_dtype
from gloader.convert.csc.external_csc import edge_columns, plan_csc
from gloader.convert.edge_rows_plan import NO_EDGE_ROWS, EdgeRowPlan, most_edges, plan_edge_rows
from gloader.convert.links.sizes import link_sizes
from gloader.convert.links.tables import split_edges
from gloader.convert.order.ordered_rows import ranges_per_pass, spill_dtype
from gloader.convert.order.row_order import ORDER_NODE_BYTES
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError

if TYPE_CHECKING:
    from gloader.convert.links.sizes import LinkSizes
    from gloader.convert.options import PrepareOptions
    from gloader.convert.source import Source

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
