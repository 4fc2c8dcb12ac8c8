"""Derived features: means over neighbours' feature rows, which the conversion computes out of core.

A node type may have no features of its own. A mean over a relation (an edge type) then gives each of its nodes the mean
of its neighbours' features. The nodes at the other end of the relation have the *source rows*, which are already
stored. `derivation_order` orders the types, as a mean may run over means. `plan_means` divides the memory: the rows to
compute are cut into blocks, and each block is summed in memory. `MeanRows` computes the means. A block's edges are
sorted by source, so that source rows are read in file order. A *stretch* is a group of nearby source rows, which is
read from its first row to its last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.csc.sorted_ranges import cut_ranges
from gloader.convert.source import FeatureStream, MeanOf, bare_edges, reversed_edges
from gloader.core.kernels import njit
from gloader.core.units import format_bytes
from gloader.dataset.schema import relation_text
from gloader.errors import BudgetError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.csc.external_csc import ScratchCsc
    from gloader.convert.source import EdgeStream, GraphSource, NodeSource, RelationSource
    from gloader.convert.stored_parts import AnyColumn, StoredColumnRows, StreamedRows
    from gloader.types import IdArray


def feature_dims(source: GraphSource) -> dict[str, int]:
    """Return the number of feature columns by node type. A mean has as many columns as the averaged features. Pure.

    Raises
    ------
    SourceError
        As `derivation_order`.
    """
    given = {nodes.name: nodes.given.dim for nodes in source.nodes if nodes.given is not None}
    for nodes, other in derivation_order(source):
        given[nodes.name] = given[other]
    return given


def derivation_order(source: GraphSource) -> list[tuple[NodeSource, str]]:
    """Return pairs of a type with derived features and the name of the type that is averaged. Pure.

    They are ordered so that the features of the averaged type are complete before they are needed.

    Raises
    ------
    SourceError
        A mean would run over a type without features, or over a relation that does not connect two different types.
    """
    # The types with complete features.
    has_rows = {nodes.name for nodes in source.nodes if nodes.given is not None}
    waiting = [nodes for nodes in source.nodes if isinstance(nodes.features, MeanOf)]
    order: list[tuple[NodeSource, str]] = []
    while waiting:
        ready = [nodes for nodes in waiting if _other_end(source, nodes) in has_rows]
        if not ready:
            first = waiting[0].name
            raise SourceError(
                f"{source.origin}: features of {first!r} are to be means over {_other_end(source, waiting[0])!r}, "
                "which has no features"
            )
        order += [(nodes, _other_end(source, nodes)) for nodes in ready]
        has_rows.update(nodes.name for nodes in ready)
        waiting = [nodes for nodes in waiting if nodes not in ready]
    return order


def derivation_depth(source: GraphSource) -> int:
    """Return the length of the longest chain of means over means, or 0 without derived features. Pure."""
    depths: dict[str, int] = {}
    for nodes, other in derivation_order(source):
        depths[nodes.name] = 1 + depths.get(other, 0)
    return max(depths.values(), default=0)


def averaged_edges(source: GraphSource, nodes: NodeSource) -> tuple[EdgeStream, EdgeEnds]:
    """Return the edges of a mean for the type ``nodes``, and the ranges of their ids. Pure.

    The derived nodes are the destinations, so the edges are reversed if these nodes are the relation's sources.

    Raises
    ------
    SourceError
        As `derivation_order`.
    """
    relation = _relation(source, nodes)
    other = source.num_nodes_of(_other_end(source, nodes))
    is_forward = relation.relation[2] == nodes.name
    edges = relation.edges if is_forward else reversed_edges(relation.edges)
    ends = EdgeEnds(
        num_nodes=nodes.num_nodes, num_sources=other, where=source.where(relation), has_names=True
    )
    return bare_edges(edges), ends


def _relation(source: GraphSource, nodes: NodeSource) -> RelationSource:
    """Return the relation that the features of ``nodes`` are averaged over. Raises as `derivation_order`."""
    if not isinstance(nodes.features, MeanOf):
        raise TypeError(f"the features of {nodes.name!r} are not derived")
    wanted = nodes.features.relation
    found = next((each for each in source.relations if each.relation == wanted), None)
    if found is None or found.relation[0] == found.relation[2] or nodes.name not in found.relation[::2]:
        raise SourceError(
            f"{source.origin}: features of {nodes.name!r} are to be means over {relation_text(wanted)}, which is no "
            "relation between it and another type"
        )
    return found


def _other_end(source: GraphSource, nodes: NodeSource) -> str:
    """Return the name of the type whose features are averaged for ``nodes``."""
    first, _, last = _relation(source, nodes).relation
    return first if last == nodes.name else last


@njit(cache=True, nogil=True)
def add_rows(rows: NDArray[np.float32], places: IdArray, targets: IdArray, sums: NDArray[np.float32]) -> None:
    """Add ``rows[places[e]]`` to ``sums[targets[e]]`` for each edge e, in order.

    Parameters
    ----------
    rows : (u, F) the source rows read
    places : (n,) each edge's row in ``rows``
    targets : (n,) each edge's row in ``sums``
    sums : (b, F) the block's sums, changed
    """
    for e in range(places.shape[0]):
        place, target = places[e], targets[e]
        for column in range(sums.shape[1]):
            sums[target, column] += rows[place, column]


# Bytes per edge of a block: its source id as read, and its entries in four arrays. These are the sort order, the sorted
# sources, their destinations, and the positions of the source rows among the rows that were read.
_EDGE_BYTES = 48
# Bytes per row of a block for its offset, its degree, and their copies.
_ROW_BYTES = 32
# Maximum bytes for a chunk of source rows: the stored rows, and the needed rows twice as float32.
_CHUNK_BYTES = 4 << 20
_MIN_EDGES = 4096  # least number of edges for which a block has memory


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanPlan:
    """Division of the memory budget among sums, edges and source rows."""

    block_rows: int  # limit for the rows of a block
    block_edges: int  # limit for the edges of a block; a row with more edges is summed in parts
    chunk_rows: int  # source rows per read
    memory_bytes: int  # peak memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """The source rows to read for a block's edges, and the block rows to add them to. Edges are sorted by source."""

    sources: IdArray  # (e,) source row of each edge, ascending
    targets: IdArray  # (e,) block row of each edge
    starts: IdArray  # (s,) first edge of each stretch


def plan_means(
    *, num_rows: int, num_edges: int, dim: int, source_row_bytes: int, budget_bytes: int
) -> MeanPlan:
    """Divide a memory budget so that as few blocks as possible cover all rows. Pure.

    Parameters
    ----------
    num_rows : rows to compute
    num_edges : edges of all rows
    dim : number of feature columns
    source_row_bytes : bytes of a stored source row
    budget_bytes : memory for the computation

    Raises
    ------
    BudgetError
        Not even a block of one row fits. The message gives needed and allowed bytes.
    """
    wide = source_row_bytes + 8 * dim  # bytes per row of a chunk
    chunk_rows = max(1, min(_CHUNK_BYTES, budget_bytes // 8) // wide)
    # A block gets memory for its sums, and for its rows' edges if each row has the mean number. The rest of the memory
    # serves blocks with more edges.
    row_bytes = 4 * dim + _ROW_BYTES
    free = budget_bytes - chunk_rows * wide
    needed = row_bytes + _MIN_EDGES * _EDGE_BYTES
    if free < needed:
        raise BudgetError(
            f"averaging rows of {dim} features needs at least {format_bytes(needed + chunk_rows * wide)}; the memory "
            f"budget leaves {format_bytes(budget_bytes)} for it. Raise --memory-budget"
        )
    edges_per_row = -(-num_edges // max(1, num_rows))
    rows = max(1, (free - _MIN_EDGES * _EDGE_BYTES) // (row_bytes + edges_per_row * _EDGE_BYTES))
    block_rows = max(1, min(num_rows, rows))
    block_edges = min(max(1, num_edges), (free - block_rows * row_bytes) // _EDGE_BYTES)
    memory = chunk_rows * wide + block_rows * row_bytes + block_edges * _EDGE_BYTES
    return MeanPlan(
        block_rows=block_rows,
        block_edges=max(1, block_edges),
        chunk_rows=chunk_rows,
        memory_bytes=memory,
    )


def plan_gather(indptr: IdArray, indices: NDArray[Any], *, first_entry: int, max_gap: int) -> Gather:
    """Sort a block's edges by the source rows that they need. Pure.

    Edges from the same source keep their order. So each row's sum runs in order of the sources, whatever the blocks
    are.

    Parameters
    ----------
    indptr : (n + 1,) offsets of the block's rows
    indices : (e,) sources of the block's edges from ``first_entry`` on; only a part of them if one row has too many
    first_entry : position of the edge ``indices[0]`` in the graph, counted as the offsets in ``indptr``
    max_gap : the longest gap in a stretch, in rows: unneeded rows between two needed rows
    """
    order = np.argsort(indices, kind="stable")
    sources = indices[order].astype(np.int64, copy=False)
    # Entry k belongs to the last row that begins at k or before.
    targets = np.searchsorted(indptr, order + first_entry, side="right") - 1
    breaks = np.flatnonzero(np.diff(sources) > max_gap + 1) + 1
    starts = np.concatenate([np.zeros(min(1, sources.shape[0]), np.int64), breaks])
    return Gather(sources=sources, targets=targets, starts=starts)


# Bytes of the longest gap in a stretch. To read the gap costs no more than to start a separate read.
_GAP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRows:
    """Means over stored rows. Each pass over ``stream()`` computes them again.

    A row without edges is 0. Sums are float32 and run in order of the sources. So a mean is the same, bit by bit, for
    every budget, except for rows with more edges than a block holds.
    """

    graph: ScratchCsc  # destinations are the computed rows, sources the rows of ``column``
    column: AnyColumn  # the stored features of the averaged type
    plan: MeanPlan

    def stream(self) -> FeatureStream:
        """Return the means as float32. Each chunk is valid until the next one."""
        return FeatureStream(
            chunks=self._chunks,
            num_rows=self.graph.num_nodes,
            dim=self.column.dim,
            dtype=np.dtype(np.float32),
        )

    def _chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield the means (n, F) in order, at most ``max_rows`` at a time. They are computed block by block."""
        sums = np.empty((min(self.plan.block_rows, self.graph.num_nodes), self.column.dim), np.float32)
        with self.column.open(self.plan.chunk_rows) as rows:
            for indptr in self._blocks():
                block = sums[: indptr.shape[0] - 1]
                self._sum(rows, indptr, block)
                for first in range(0, block.shape[0], max_rows):
                    yield block[first : first + max_rows]

    def _blocks(self) -> Iterator[IdArray]:
        """Yield the offsets (n + 1,) of each block: at most the planned rows and edges, or one row with more edges."""
        for first in range(0, self.graph.num_nodes, self.plan.block_rows):
            offsets = self.graph.offsets(first, min(self.graph.num_nodes, first + self.plan.block_rows))
            for start, stop in cut_ranges(np.diff(offsets), self.plan.block_edges):
                yield offsets[start : stop + 1]

    def _sum(
        self, rows: StoredColumnRows | StreamedRows, indptr: IdArray, block: NDArray[np.float32]
    ) -> None:
        """Fill ``block`` (n, F) with the means for the rows that ``indptr`` (n + 1,) bounds."""
        block[:] = 0
        max_gap = _GAP_BYTES // max(1, self.column.row_bytes)
        first, last = int(indptr[0]), int(indptr[-1])
        for low in range(first, last, self.plan.block_edges):
            part = self.graph.sources(low, min(last, low + self.plan.block_edges))
            self._add(rows, plan_gather(indptr, part, first_entry=low, max_gap=max_gap), block)
        degrees = np.maximum(np.diff(indptr), 1).astype(np.float32)  # at least 1: a row without edges stays 0
        block /= degrees[:, None]

    def _add(self, rows: StoredColumnRows | StreamedRows, gather: Gather, block: NDArray[np.float32]) -> None:
        """Read the source rows stretch by stretch, and add them to the block's sums."""
        ends = np.append(gather.starts[1:], gather.sources.shape[0])
        for low, high in zip(gather.starts.tolist(), ends.tolist(), strict=True):
            sources = gather.sources[low:high]
            # A long stretch is read in chunks, in ascending order.
            for start in range(int(sources[0]), int(sources[-1]) + 1, self.plan.chunk_rows):
                stop = min(start + self.plan.chunk_rows, int(sources[-1]) + 1)
                # The chunk's edges begin..end-1 of the stretch. A chunk without edges is not read.
                begin, end = np.searchsorted(sources, [start, stop]).tolist()
                if begin < end:
                    needed, places = np.unique(sources[begin:end], return_inverse=True)
                    source_rows = rows.read(start, stop, needed - start)
                    add_rows(source_rows, places, gather.targets[low + begin : low + end], block)
