"""Node orders for a dataset, and the renumbering of edges, labels, splits and feature rows.

`find_order` returns a `NodeOrder`. Nodes keep the source's order, or are sorted by falling out-degree, or by community.
Communities come from label propagation over a topology on disk (Raghavan, Albert and Kumara, Phys. Rev. E 76, 2007).
Each pass over the edges visits all nodes in id order. A node takes the most common label among its in-neighbours. The
passes end when hardly any node changes its label. `renumbered` then gives edges, labels and splits their new ids.

`ordered_rows` reorders the feature rows of nodes, and of edges (`edge_rows`), out of core. A row's *place* is its row
number in the new order. A *range* is a group of consecutive places whose rows fit into memory. First, the source is
read once, and each row goes to the temporary file of its range. Then, each file is loaded, and its rows are put in
order. A file has its rows in source order, so it needs no row ids. If only a part of the rows is stored, the source is
read in several passes, and each pass handles only a part of the ranges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gloader.convert.csc.edge_rules import EdgeEnds, check_chunk, chunks_after_rules
from gloader.convert.csc.external_csc import ScratchCsc
from gloader.convert.csc.spill import Spill
from gloader.convert.source import Splits, bare_edges, changed_edges
from gloader.core.dtypes import STORED_DTYPES
from gloader.core.kernels import njit
from gloader.errors import ShapeError
from gloader.ssd_store.write.feature_column import cast_rows, check_finite_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.csc.external_csc import CscPiece
    from gloader.convert.options import EdgeRules, OrderName
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import EdgeChunk, EdgeStream, FeatureStream, GraphSource
    from gloader.types import IdArray, LocalArray


# Maximum number of label propagation passes. After five, 95% of the nodes have their final label (Raghavan et al.), and
# each further pass reads all edges.
_MAX_PASSES = 8
# Label propagation ends when at most one node in this many changed its label.
_SETTLED_NODES = 1000
# Maximum number of edges per `CscPiece`, the unit in which a sorted topology is read: 16 MiB of int32 ids.
_MAX_PIECE_EDGES = 1 << 22


def community_order(
    edges: EdgeStream,
    ends: EdgeEnds,
    *,
    rules: EdgeRules,
    budget_bytes: int,
    scratch: Path,
    progress: PrepareProgress,
) -> IdArray:
    """Return all node ids (N,), community by community.

    Communities are in order of falling mean out-degree, and a community's nodes in order of falling out-degree. Nodes
    with a high out-degree are sampled often. Their feature rows are adjacent on disk, so a read fetches few rows that
    are rarely used. If every node is its own community, this is the order by degree. The edges are read once and sorted
    on disk. Up to eight passes, and a last one for nodes without in-edges, then read the sorted edges.

    Parameters
    ----------
    edges : the edges, read once
    ends : the edges' nodes, of one type
    rules : changes to the edges; self loops are ignored
    budget_bytes : memory for edges, without the arrays with one entry per node (at most 64 B per node)
    scratch : an existing folder for temporary files, which are removed at the end
    progress : receives the steps

    Raises
    ------
    GraphError
        An id is out of range.
    StoreWriteError
        The disk refuses a temporary file.
    """
    # An id takes at most 8 bytes, so a piece takes up to half of the budget.
    max_edges = max(1, min(_MAX_PIECE_EDGES, budget_bytes // 16))
    with ScratchCsc(folder=scratch, ends=ends) as graph:
        graph.fill(
            bare_edges(edges),
            rules=replace(rules, self_loops=False),
            budget_bytes=budget_bytes,
            progress=progress,
        )
        return order_of_communities(graph, max_edges=max_edges, progress=progress)


class InNeighbours(Protocol):
    """A topology sorted by destination, which can be read several times."""

    @property
    def num_nodes(self) -> int:
        """N, the number of nodes."""
        ...

    def pieces(self, max_edges: int, /) -> Iterator[CscPiece]:
        """Yield all nodes in id order with their in-neighbours. A piece has at most ``max_edges`` edges."""
        ...


def order_of_communities(graph: InNeighbours, *, max_edges: int, progress: PrepareProgress) -> IdArray:
    """Return the order (N,) of `community_order`, for a sorted topology.

    Parameters
    ----------
    graph : the topology, read at most nine times
    max_edges : edges per piece
    progress : receives the number of finished passes
    """
    labels, degrees = _propagate(graph, max_edges, progress)
    return _sorted_communities(labels, degrees)


def _propagate(
    graph: InNeighbours, max_edges: int, progress: PrepareProgress
) -> tuple[NDArray[Any], IdArray]:
    """Return each node's community (N,) and out-degree (N,).

    Each node starts with its own id as its label. A community is the nodes with the same label at the end. After the
    passes, nodes without in-edges still have their own label, and take the label of an out-neighbour.
    """
    size = graph.num_nodes
    labels = np.arange(size, dtype=np.int32 if size < 2**31 else np.int64)
    votes = np.zeros(size, np.int32)
    has_sources = np.zeros(size, np.bool_)
    degrees = np.zeros(size, np.int64)
    for number in range(_MAX_PASSES):
        moved = 0
        for piece in graph.pieces(max_edges):
            # The first pass also counts the degrees.
            if number == 0:
                count_sources(piece.first, piece.indptr, piece.indices, degrees, has_sources)
            moved += move_nodes(piece.first, piece.indptr, piece.indices, labels, votes)
        progress.advance("finding communities", number + 1, _MAX_PASSES, "passes")
        if moved * _SETTLED_NODES <= size:
            break
    for piece in graph.pieces(max_edges):
        adopt_sources(piece.first, piece.indptr, piece.indices, has_sources, labels)
    return labels, degrees


def _sorted_communities(labels: NDArray[Any], degrees: IdArray) -> IdArray:
    """Return the nodes sorted by their community's mean degree (falling), its label, their degree (falling), and id."""
    size = labels.shape[0]
    # Arrays have N entries of up to 8 bytes, so each is deleted as soon as possible.
    members = np.bincount(labels, minlength=size)
    mean = np.bincount(labels, weights=degrees, minlength=size) / np.maximum(members, 1)
    del members
    by_mean = np.argsort(-mean, kind="stable")
    del mean
    rank = np.empty_like(labels)  # each label's place in the order of communities
    rank[by_mean] = np.arange(size, dtype=labels.dtype)
    del by_mean
    community_rank = rank[labels]
    del rank
    return np.lexsort((np.negative(degrees, out=degrees), community_rank))


@njit(cache=True, nogil=True)
def count_sources(
    first: int, indptr: IdArray, indices: NDArray[Any], degrees: IdArray, has_sources: NDArray[np.bool_]
) -> None:
    """Count the edges of one piece for their sources, and mark the nodes with in-edges, in place.

    Parameters
    ----------
    first : the piece's first node
    indptr : (n + 1,) bounds of the in-neighbours of node ``first + i`` in ``indices``
    indices : (e,) sources
    degrees : (N,) out-degrees, increased
    has_sources : (N,) set to True for the piece's nodes with in-edges
    """
    for i in range(indptr.shape[0] - 1):
        has_sources[first + i] = indptr[i + 1] > indptr[i]
    for e in range(indices.shape[0]):
        degrees[indices[e]] += 1


@njit(cache=True, nogil=True)
def move_nodes(
    first: int, indptr: IdArray, indices: NDArray[Any], labels: NDArray[Any], votes: LocalArray
) -> int:
    """Give each node its in-neighbours' most common label, in place. Return the number of changed labels.

    In a tie, the node's current label wins, and then the label that comes first in ``indices``. Self loops do not
    vote. Each node counts its votes, takes the winner, and clears the votes again.

    Parameters
    ----------
    first : the piece's first node
    indptr : (n + 1,) bounds of the in-neighbours of node ``first + i`` in ``indices``
    indices : (e,) sources
    labels : (N,) all nodes' labels, changed
    votes : (N,) int32 votes by label, all zero before and after
    """
    moved = 0
    for i in range(indptr.shape[0] - 1):
        node = first + i
        for e in range(indptr[i], indptr[i + 1]):
            if indices[e] != node:
                votes[labels[indices[e]]] += 1
        best = labels[node]
        most = votes[best]
        for e in range(indptr[i], indptr[i + 1]):
            label = labels[indices[e]]
            if votes[label] > most:
                best, most = label, votes[label]
        for e in range(indptr[i], indptr[i + 1]):
            votes[labels[indices[e]]] = 0
        if best != labels[node]:
            labels[node] = best
            moved += 1
    return moved


@njit(cache=True, nogil=True)
def adopt_sources(
    first: int, indptr: IdArray, indices: NDArray[Any], has_sources: NDArray[np.bool_], labels: NDArray[Any]
) -> None:
    """Give each node without in-edges an out-neighbour's label, in place, unless its label has changed before.

    Parameters are those of `count_sources` and `move_nodes`; ``has_sources`` is only read.
    """
    for i in range(indptr.shape[0] - 1):
        for e in range(indptr[i], indptr[i + 1]):
            source = indices[e]
            if not has_sources[source] and labels[source] == source:
                labels[source] = labels[first + i]


# Bytes per node for rows that are joined by id: the id, the row's place, and the inverse order.
JOINED_NODE_BYTES = 24
# Peak bytes per node to find and hold an order, by the order's name.
ORDER_NODE_BYTES: dict[OrderName, int] = {"none": 0, "degree": 32, "community": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrder:
    """A node numbering and its inverse. Also the `RowMoves` of feature rows, each of which has exactly one place."""

    new_ids: IdArray  # (N,) by original id
    original_ids: IdArray  # (N,) by new id

    @classmethod
    def of(cls, original_ids: IdArray) -> NodeOrder:
        """Return the order with the permutation ``original_ids`` (N,) and its inverse. Pure."""
        new_ids = np.empty_like(original_ids)
        new_ids[original_ids] = np.arange(original_ids.shape[0], dtype=np.int64)
        return cls(new_ids=new_ids, original_ids=original_ids)

    @classmethod
    def of_rows(cls, row_ids: IdArray | None, order: NodeOrder | None) -> NodeOrder | None:
        """Return the order of stored feature rows, or None if they keep their order. Pure.

        Parameters
        ----------
        row_ids : (N,) each row's node, by source id; None means that row i belongs to node i
        order : the node order; None means that nodes keep their ids
        """
        if row_ids is None:
            return order
        places = row_ids if order is None else order.new_ids[row_ids]
        return cls(new_ids=places, original_ids=cls.of(places).new_ids)

    @property
    def num_rows(self) -> int:
        """N, the number of nodes or rows."""
        return int(self.new_ids.shape[0])

    def targets(self, first: int, stop: int) -> tuple[None, IdArray]:
        """Return the places of rows ``first`` ... ``stop - 1``. Pure.

        Returns
        -------
        rows : the row of each place, ascending and counted from ``first``. Always None here, which means that each row
            has exactly one place
        places : (n,) the places, in order of the rows
        """
        return None, self.new_ids[first:stop]

    def arrivals(self, first: int, stop: int) -> IdArray:
        """Return places ``first`` ... ``stop - 1``, in the source order of their rows, counted from ``first``. Pure."""
        # The place p gets the row ``original_ids[p]``. A sort of these ids gives the source order.
        return np.argsort(self.original_ids[first:stop])


def find_order(
    edges: EdgeStream,
    ends: EdgeEnds,
    name: OrderName,
    *,
    rules: EdgeRules,
    budget_bytes: int,
    max_edges: int,
    scratch: Path,
    progress: PrepareProgress,
) -> NodeOrder | None:
    """Find the order of stored nodes. Return None for the source's order.

    ``degree`` sorts the nodes by falling out-degree, and counts every parallel edge. For ``community``, see
    `community_order`. The order does not depend on the budget, with one exception. For the order by community, only the
    first in-edges of a node count if not all of them fit into the budget.

    Parameters
    ----------
    edges : the edges, read once unless ``name`` is "none"
    ends : the edges' nodes, of one type
    name : the order's name
    rules : changes to the edges before they are counted
    budget_bytes : memory for edges, without the arrays with one entry per node (`ORDER_NODE_BYTES`)
    max_edges : edges per chunk
    scratch : an existing folder for temporary files, which are removed at the end
    progress : receives the steps

    Raises
    ------
    GraphError
        An id is out of range, or a weight is negative or not finite.
    StoreWriteError
        The disk refuses a temporary file.
    """
    if name == "none":
        return None
    if name == "community":
        return NodeOrder.of(
            community_order(
                edges, ends, rules=rules, budget_bytes=budget_bytes, scratch=scratch, progress=progress
            )
        )
    degrees = _out_degrees(edges, ends, rules=rules, max_edges=max_edges, progress=progress)
    return NodeOrder.of(by_falling_degree(degrees))


def by_falling_degree(degrees: IdArray) -> IdArray:
    """Return the nodes (N,) by falling degree, then by id. ``degrees`` (N,) is overwritten."""
    # The stable sort of negated degrees keeps nodes with equal degrees in id order. In place, it needs no copy.
    np.negative(degrees, out=degrees)
    return np.argsort(degrees, kind="stable")


def _out_degrees(
    edges: EdgeStream, ends: EdgeEnds, *, rules: EdgeRules, max_edges: int, progress: PrepareProgress
) -> IdArray:
    """Return each node's out-degree (N,) after the rules, from one pass over the edges."""
    degrees = np.zeros(ends.num_nodes, np.int64)
    done = 0
    for count, chunk in chunks_after_rules(edges, ends=ends, rules=rules, max_edges=max_edges):
        count_nodes(chunk.src, degrees)
        done += count
        progress.advance("counting neighbours", done, edges.num_edges, "edges")
    return degrees


@njit(cache=True, nogil=True)
def count_nodes(nodes: IdArray, counts: IdArray) -> None:
    """Add the number of occurrences of each node v in the checked ``nodes`` to ``counts[v]``."""
    for i in range(nodes.shape[0]):
        counts[nodes[i]] += 1


def renumbered_edges(edges: EdgeStream, new_ids: IdArray, where: str) -> EdgeStream:
    """Return edges with new node ids. Pure.

    ``chunks`` raises GraphError if an id is out of range, or a weight is negative or not finite. The message has source
    ids.

    Parameters
    ----------
    edges : the edges with source ids
    new_ids : (N,) new id by source id
    where : the source, for messages
    """
    ends = EdgeEnds.of(new_ids.shape[0], where)

    def change(chunk: EdgeChunk, first: int) -> EdgeChunk:
        # The check comes first, because a bad id would read past the end of the table, or wrap around.
        check_chunk(chunk, ends=ends, first=first)
        return replace(chunk, src=new_ids[chunk.src], dst=new_ids[chunk.dst])

    # Old and new ids are in memory together: three copies instead of two. So chunks have 2/3 of the requested size.
    return changed_edges(edges, change, part=(2, 3))


def renumbered(source: GraphSource, order: NodeOrder) -> GraphSource:
    """Return a one-type graph with renumbered edges, labels and splits. Features are unchanged. Pure."""
    splits = source.splits
    return replace(
        source,
        relations=tuple(
            replace(
                each,
                edges=renumbered_edges(each.edges, order.new_ids, source.where(each)),
            )
            for each in source.relations
        ),
        labels=np.ascontiguousarray(source.labels[order.original_ids]),
        splits=Splits(
            train=order.new_ids[splits.train],
            valid=order.new_ids[splits.valid],
            test=order.new_ids[splits.test],
        ),
    )


# Bytes per read of a range's file.
_PIECE_BYTES = 4 << 20
# Maximum number of ranges. Each range has one temporary file.
MAX_RANGES = 4096
# Bytes per row for the sort in `RowMoves.arrivals`: an id, its position, and a copy of each.
ROW_SORT_BYTES = 24


class RowMoves(Protocol):
    """The places of a source's rows in the new order. A row may have one place, several, or none.

    `NodeOrder` implements it for the features of nodes, `EdgeMoves` for the features of edges.
    """

    @property
    def num_rows(self) -> int:
        """Number of places. A place without a row gets zeros."""
        ...

    def targets(self, first: int, stop: int) -> tuple[IdArray | None, IdArray]:
        """Return the places of rows ``first`` ... ``stop - 1``; see `NodeOrder.targets`.

        Each pass over the source calls this once per chunk, from the first row to the last.
        """
        ...

    def arrivals(self, first: int, stop: int) -> IdArray:
        """Return places ``first`` ... ``stop - 1``, in the source order of their rows, counted from ``first``.

        Places without a row are left out.
        """
        ...


def ordered_rows(  # noqa: PLR0913 - rows, places, and limits
    features: FeatureStream,
    order: RowMoves,
    *,
    dtype: str,
    chunk_rows: int,
    range_rows: int,
    num_passes: int = 1,
    scratch: Path,
    progress: PrepareProgress,
    step: str = "ordering features",
) -> Iterator[NDArray[Any]]:
    """Yield feature rows in the order of their new places, in arrays of ``range_rows``.

    If all places fit into one range, the rows are put in order in memory. Otherwise, each pass reads the source, writes
    the rows of its ranges to one file per range, and then loads and sorts these files one after another. Each array is
    valid only until the next one.

    Parameters
    ----------
    features : (N, F) rows in source order, read ``num_passes`` times, or once if one range has all places
    order : the rows' new places
    dtype : the stored dtype; rows are cast to it here, except to int8
    chunk_rows : rows per chunk
    range_rows : places per range, all in memory at the same time
    num_passes : number of passes over the source; each pass writes only the rows of its own ranges to files
    scratch : an existing folder for temporary files
    progress : receives the step
    step : the step's name

    Raises
    ------
    ShapeError
        The stream has fewer or more rows than it announced.
    FeatureValueError
        A value cannot be stored. The error has the source row.
    StoreWriteError
        The disk refuses a temporary file.
    """
    num_places = order.num_rows
    ranges = range(0, num_places, range_rows)
    out = np.zeros((min(range_rows, num_places), features.dim), spill_dtype(dtype))
    source = _MovedRows(features=features, order=order, dtype=dtype, chunk_rows=chunk_rows)
    if len(ranges) == 1:
        for moved, places, done in source.read():
            out[places] = moved
            progress.advance(step, done, source.num_rows, "rows")
        yield out
        return
    spill = Spill(
        folder=scratch,
        name="rows",
        dtype=out.dtype,
        row_shape=(features.dim,),
        num_buckets=len(ranges),
    )
    with spill:
        # There is at least one pass, so that an announced number of 0 rows is checked too.
        passes = _ranges_by_pass(len(ranges), num_passes) or [range(0)]
        for number, chosen in enumerate(passes):
            for moved, places, done in source.read():
                range_of = places // range_rows
                if len(chosen) < len(ranges):  # other passes write the other ranges
                    is_chosen = (range_of >= chosen.start) & (range_of < chosen.stop)
                    moved, range_of = moved[is_chosen], range_of[is_chosen]  # noqa: PLW2901 - of this pass
                spill.deal_out(moved, range_of)
                read = number * source.num_rows + done
                progress.advance(step, read, len(passes) * source.num_rows, "rows")
            for each in chosen:
                first = ranges[each]
                # The rows of a file are in the order of ``arrival``, the places that get them.
                part = out[: min(range_rows, num_places - first)]
                arrival = order.arrivals(first, first + part.shape[0])
                if arrival.shape[0] < part.shape[0]:  # some places have no row, and get zeros
                    part[:] = 0
                filled = 0
                for piece in spill.pieces(each, max(1, _PIECE_BYTES // max(1, features.dim * out.itemsize))):
                    part[arrival[filled : filled + piece.shape[0]]] = piece
                    filled += piece.shape[0]
                spill.drop(each)
                yield part


def ranges_per_pass(num_ranges: int, num_passes: int) -> int:
    """Return the number of row ranges in a pass, which are on disk together. Pure."""
    return max(1, -(-num_ranges // num_passes))


def _ranges_by_pass(num_ranges: int, num_passes: int) -> list[range]:
    """Return for each pass the numbers of its ranges. Pure."""
    size = ranges_per_pass(num_ranges, num_passes)
    return [range(first, min(first + size, num_ranges)) for first in range(0, num_ranges, size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MovedRows:
    """A source's rows with their new places. The fields are parameters of `ordered_rows`."""

    features: FeatureStream
    order: RowMoves
    dtype: str
    chunk_rows: int

    @property
    def num_rows(self) -> int:
        return self.features.num_rows

    def read(self) -> Iterator[tuple[NDArray[Any], IdArray, int]]:
        """Read the source once. Yield rows (n, F), their places (n,), and the number of rows read so far."""
        num_rows, done = self.num_rows, 0
        for chunk in self.features.chunks(self.chunk_rows):
            if done + chunk.shape[0] > num_rows:
                raise ShapeError(f"the features have more rows than the {num_rows} that were announced")
            rows = _cast(chunk, self.dtype, done)
            which, places = self.order.targets(done, done + rows.shape[0])
            done += rows.shape[0]
            yield rows if which is None else rows[which], places, done
        if done < num_rows:
            raise ShapeError(f"the features end after {done} of {num_rows} rows: row {done} is missing")


def spill_dtype(dtype: str) -> np.dtype[Any]:
    """Return the dtype of rows in temporary files: the stored ``dtype``, but float32 for int8. Pure.

    The writer computes an int8 row's scale, so it needs the original values.
    """
    element = STORED_DTYPES[dtype]
    return STORED_DTYPES["float32"].stored if element.has_scale else element.stored


def _cast(chunk: NDArray[Any], dtype: str, first_row: int) -> NDArray[Any]:
    """Return rows in the dtype of `spill_dtype`. The cast comes before the reordering, so messages name source rows."""
    if not STORED_DTYPES[dtype].has_scale:
        return cast_rows(chunk, dtype, first_row)
    # The writer makes int8 from float32. Here, only the values that it would refuse are checked.
    check_finite_rows(chunk, first_row)
    return cast_rows(chunk, "float32", first_row)
