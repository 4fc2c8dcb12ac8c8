"""Community order: label propagation over a topology on disk puts the nodes of a community together.

Label propagation: Raghavan, Albert and Kumara, Phys. Rev. E 76, 2007. Nodes take the commonest label among their
in-neighbours, one after another in the order of their ids, until hardly any of them moves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numba import njit

from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.csc.scratch_csc import ScratchCsc, UnweightedEdges

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.csc.scratch_csc import CscPiece
    from gloader.convert.options import EdgeRules
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import Source
    from gloader.types import IdArray, LocalArray

# After five passes 95% of the nodes have their last label (Raghavan et al.); each further one reads all edges.
_MAX_PASSES = 8
# Settled: of so many nodes, at most one changed its label in a pass.
_SETTLED_NODES = 1000
# Edges in memory at a time: 16 MB of int32 ids.
_MAX_PIECE_EDGES = 1 << 22


def community_order(
    source: Source, *, rules: EdgeRules, budget_bytes: int, scratch: Path, progress: PrepareProgress
) -> IdArray:
    """Return the nodes (N,) community by community, the most used first.

    Communities come by falling mean out-degree, and so do the nodes of each, as cold rows beside a hot one are
    read for nothing. On a graph without communities this is the order by degree. The edges of ``source`` are
    read once and sorted on disk; the sorted ones are read at most ten times.

    Parameters
    ----------
    source : its edges are read once
    rules : what happens to the edges; given and added self loops do not count
    budget_bytes : memory for edges; arrays of one entry per node (at most 64 B) come on top
    scratch : an existing folder for temporary files; they are gone when this returns or raises
    progress : receives the steps

    Raises
    ------
    GraphError
        An id is out of range.
    StoreWriteError
        The disk refuses a temporary file.
    """
    ends = EdgeEnds.of(source.num_nodes, source.edge_origin)
    max_edges = max(1, min(_MAX_PIECE_EDGES, budget_bytes // 16))
    with ScratchCsc(folder=scratch, ends=ends) as graph:
        graph.fill(
            UnweightedEdges(edges=source.edges),
            rules=replace(rules, self_loops=False),
            budget_bytes=budget_bytes,
            progress=progress,
        )
        return order_of_communities(graph, max_edges=max_edges, progress=progress)


class InNeighbours(Protocol):
    """The in-neighbours of every node, in pieces, as often as needed."""

    @property
    def num_nodes(self) -> int:
        """N."""
        ...

    def pieces(self, max_edges: int, /) -> Iterator[CscPiece]:
        """Yield all nodes in order with their in-neighbours, about ``max_edges`` at a time."""
        ...


def order_of_communities(graph: InNeighbours, *, max_edges: int, progress: PrepareProgress) -> IdArray:
    """Return the nodes (N,) as `community_order` does, of a topology whose lists are there.

    Parameters
    ----------
    graph : read at most ten times
    max_edges : of a piece
    progress : receives the passes
    """
    labels, degrees = _propagate(graph, max_edges, progress)
    return _sorted_communities(labels, degrees)


def _propagate(
    graph: InNeighbours, max_edges: int, progress: PrepareProgress
) -> tuple[NDArray[Any], IdArray]:
    """Return the community (N,) and the out-degree (N,) of each node."""
    size = graph.num_nodes
    labels = np.arange(size, dtype=np.int32 if size < 2**31 else np.int64)
    votes = np.zeros(size, np.int32)
    has_sources = np.zeros(size, np.bool_)
    degrees = np.zeros(size, np.int64)
    for number in range(_MAX_PASSES):
        moved = 0
        for piece in graph.pieces(max_edges):
            # The first pass reads every edge anyway: degrees are counted on the way.
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
    """Return the nodes by falling mean degree of their community, its label, their own degree, and id."""
    size = labels.shape[0]
    # Every array here has N entries of 8 bytes: each is let go as soon as the next is made.
    members = np.bincount(labels, minlength=size)
    mean = np.bincount(labels, weights=degrees, minlength=size) / np.maximum(members, 1)
    del members
    by_mean = np.argsort(-mean, kind="stable")
    del mean
    rank = np.empty_like(labels)
    rank[by_mean] = np.arange(size, dtype=labels.dtype)
    del by_mean
    community_rank = rank[labels]
    del rank
    return np.lexsort((np.negative(degrees, out=degrees), community_rank))


@njit(cache=True, nogil=True)
def count_sources(
    first: int, indptr: IdArray, indices: NDArray[Any], degrees: IdArray, has_sources: NDArray[np.bool_]
) -> None:
    """Add the in-edges of nodes ``first``, ``first + 1``, ... to the out-degrees; mark the nodes that have any."""
    for i in range(indptr.shape[0] - 1):
        has_sources[first + i] = indptr[i + 1] > indptr[i]
    for e in range(indices.shape[0]):
        degrees[indices[e]] += 1


@njit(cache=True, nogil=True)
def move_nodes(
    first: int, indptr: IdArray, indices: NDArray[Any], labels: NDArray[Any], votes: LocalArray
) -> int:
    """Give each node the commonest label of its in-neighbours, in place; return how many changed theirs.

    Ties go to the label the node has, then to the one that comes first. ``votes`` (N,) is all zero before and
    after. ``indptr`` (n + 1,) bounds the in-neighbours of node ``first + i`` in ``indices``.
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
    """Give nodes without in-edges the label of the first node that gathers from them."""
    for i in range(indptr.shape[0] - 1):
        for e in range(indptr[i], indptr[i + 1]):
            source = indices[e]
            if not has_sources[source] and labels[source] == source:
                labels[source] = labels[first + i]
