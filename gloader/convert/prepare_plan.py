"""What a conversion will need, known before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.convert.csc.edge_spill import record_dtype
from gloader.convert.csc.external_csc import plan_csc
from gloader.convert.order.ordered_rows import spill_dtype
from gloader.convert.order.row_order import ORDER_NODE_BYTES
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError

if TYPE_CHECKING:
    from gloader.convert.options import PrepareOptions
    from gloader.convert.source import Source

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
_WRITER_BYTES = 24 << 20  # the buffers of the array writers
_CHUNK_BYTES = 16 << 20  # of feature rows as they come; larger gains nothing
_COPIES = 3  # of a feature chunk at once: as read, as float32, as stored; one more where rows change places
_PAGE_BYTES = 4096
_MAX_RANGES = 4096  # files that rows are dealt out to when they are put in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparePlan:
    """How much memory and disk a conversion takes, and how the memory is shared out."""

    budget_bytes: int
    memory_bytes: int  # at most, of what the conversion allocates
    edge_budget_bytes: int  # of which the edge sort may take so much
    chunk_edges: int  # edges read at a time
    chunk_rows: int  # feature rows at a time
    range_rows: int  # feature rows put in order at a time
    dataset_bytes: int  # on disk, at the end; without the edges where their number is not known
    scratch_bytes: int  # on disk, at most, while it runs


def plan_prepare(source: Source, options: PrepareOptions, *, budget_bytes: int) -> PreparePlan:
    """Share ``budget_bytes`` of memory out and count the bytes on disk. Pure.

    Raises
    ------
    BudgetError
        The O(N) arrays and the smallest useful buffers do not fit; says needed and allowed.
    ConfigError
        The feature dtype cannot be stored, or the order of the nodes is none we know.
    """
    if options.order not in ORDER_NODE_BYTES:
        raise ConfigError(
            f"nodes cannot be put in order {options.order!r}; allowed: {', '.join(ORDER_NODE_BYTES)}"
        )
    if options.dtype not in _DTYPE_BYTES:
        raise ConfigError(
            f"features cannot be stored as {options.dtype!r}; allowed: {', '.join(_DTYPE_BYTES)}"
        )
    splits = source.splits
    resident = source.resident_bytes + source.labels.nbytes + 2 * source.num_nodes
    resident += splits.train.nbytes + splits.valid.nbytes + splits.test.nbytes + _WRITER_BYTES
    resident += ORDER_NODE_BYTES[options.order] * source.num_nodes
    row_bytes = source.features.dim * max(4, source.features.dtype.itemsize)
    is_ordered = options.order != "none"
    copies = _COPIES + is_ordered  # of a feature chunk
    least_rows = copies * row_bytes * (2 if is_ordered else 1)
    if resident + least_rows > budget_bytes:
        raise BudgetError(
            f"preparing {source.origin} needs {format_bytes(resident)} for arrays of one entry per node and for write "
            f"buffers, and {format_bytes(least_rows)} per feature row; the memory budget allows "
            f"{format_bytes(budget_bytes)}. Raise --memory-budget"
        )
    free = budget_bytes - resident
    sort = plan_csc(
        source.num_nodes,
        source.edges.num_edges,
        has_weights=source.edges.has_weights,
        rules=options.rules,
        budget_bytes=free,
    )
    for_chunks = free // 2 if is_ordered else free
    chunk_rows = max(1, min(_CHUNK_BYTES, for_chunks // copies) // max(1, row_bytes))
    range_rows, range_bytes = source.num_nodes, 0
    if is_ordered:
        range_rows = _range_rows(source, options, free - for_chunks)
        range_bytes = range_rows * _ordered_row_bytes(source, options)
    return PreparePlan(
        budget_bytes=budget_bytes,
        memory_bytes=resident + max(sort.peak_bytes, copies * chunk_rows * row_bytes + range_bytes),
        edge_budget_bytes=free,
        chunk_edges=sort.chunk_edges,
        chunk_rows=chunk_rows,
        range_rows=range_rows,
        dataset_bytes=_dataset_bytes(source, options),
        scratch_bytes=max(
            _edge_scratch_bytes(source, options, held_bytes=sort.held_bytes),
            source.num_nodes * _spilled_row_bytes(source, options) if range_rows < source.num_nodes else 0,
        ),
    )


def _spilled_row_bytes(source: Source, options: PrepareOptions) -> int:
    return source.features.dim * spill_dtype(options.dtype).itemsize


def _ordered_row_bytes(source: Source, options: PrepareOptions) -> int:
    """Bytes of memory per row of a range that is being put in order, the sort of its original ids included."""
    return _spilled_row_bytes(source, options) + 24


def _range_rows(source: Source, options: PrepareOptions, budget_bytes: int) -> int:
    """Return how many rows are put in order at a time."""
    row_bytes = _ordered_row_bytes(source, options)
    least = -(-source.num_nodes // _MAX_RANGES)
    if least * row_bytes > budget_bytes:
        raise BudgetError(
            f"putting {source.num_nodes} feature rows in another order takes at least "
            f"{format_bytes(2 * least * row_bytes)}; the memory budget leaves {format_bytes(2 * budget_bytes)} for it. "
            "Raise --memory-budget"
        )
    return min(source.num_nodes, budget_bytes // row_bytes)


def _max_edges(source: Source, options: PrepareOptions) -> int:
    given = source.edges.num_edges or 0
    return given * (2 if options.symmetrize else 1) + source.num_nodes * options.self_loops


def _edge_bytes(source: Source) -> int:
    return (4 if source.num_nodes < 2**31 else 8) + 4 * source.edges.has_weights


def _dataset_bytes(source: Source, options: PrepareOptions) -> int:
    num_nodes, dim = source.num_nodes, source.features.dim
    features = num_nodes * (dim * _DTYPE_BYTES[options.dtype] + 4 * (options.dtype == "int8"))
    checksums = features // _PAGE_BYTES * 8
    splits = source.splits.train.nbytes + source.splits.valid.nbytes + source.splits.test.nbytes
    edges = _max_edges(source, options) * _edge_bytes(source)
    ids = 16 if options.order == "none" else 24
    return features + checksums + edges + ids * num_nodes + splits + 20 * _PAGE_BYTES


def _edge_scratch_bytes(source: Source, options: PrepareOptions, *, held_bytes: int) -> int:
    record = record_dtype(num_nodes=source.num_nodes, has_weights=source.edges.has_weights).itemsize
    spill = _max_edges(source, options) * record
    merged = _max_edges(source, options) * _edge_bytes(source) if options.rules.merges else 0
    first_sort = 0  # what an order is found on: gone before the edges are sorted for the dataset
    if options.order == "community":
        index_bytes = 4 if source.num_nodes < 2**31 else 8
        first_sort = _max_edges(source, options) * index_bytes + 8 * (source.num_nodes + 1)
    return (spill if spill > held_bytes else 0) + merged + first_sort
