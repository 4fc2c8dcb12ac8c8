"""Lookup of edges by their ends, in the destinations' lists; and pairs of nodes without an edge.

Link prediction uses this module: `are_edges` shows which drawn pairs are edges, and `edges_between` lists edges that a
batch must exclude. `free_destinations` and `FreePairs` list pairs without an edge ("free" pairs). They are the slow way
to negatives, for nodes whose random draws nearly always hit an edge.

A node's list is the sources of its in-edges. Lists are read in portions, which bounds the memory if they are on the
SSD. A query is a pair of a source and a destination; queries are sorted so that each list is read once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.offsets import offsets_of
from gloader.samplers import link_kernels
from gloader.samplers.graph_errors import bad_degree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.samplers.graph import Topology
    from gloader.types import IdArray


# Maxima that bound the memory to a few times 8 MB.
_MOST_EDGES: Final = 1 << 20  # edges per portion
_MOST_NODES: Final = 1 << 20  # nodes per request in a pass over all lists


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPortion:
    """G consecutive lists of sources, for kernels. The first and the last list may be only a part."""

    first: int  # number of the portion's first list among the requested lists
    values: NDArray[Any]  # an array with the lists' sources
    starts: IdArray  # (G,) the index in ``values`` at which each list begins
    degrees: IdArray  # (G,) each list's length
    origins: IdArray  # (G,) the position in the graph at which each list begins


def list_portions(graph: Topology, nodes: IdArray) -> Iterator[ListPortion]:
    """Yield the in-edges of ``nodes`` (M,) in order. A batch's nodes nearly always fit one portion.

    Raises
    ------
    GraphError
        A node's in-edges do not lie within the graph's edges.
    """
    starts = offsets_of(graph.offsets, nodes)
    degrees = offsets_of(graph.offsets, nodes + 1) - starts
    wrong = (starts < 0) | (degrees < 0) | (starts + degrees > graph.num_edges)
    if wrong.any():
        raise bad_degree(graph, int(nodes[wrong][0]))
    # The requested edges are numbered 0, 1, ...; list i has the numbers begins[i]..ends[i] - 1.
    ends = np.cumsum(degrees)
    begins = ends - degrees
    # A portion is the edges low..high - 1. It may begin and end within a list: a list may be longer than a portion.
    for low in range(0, int(degrees.sum()), _MOST_EDGES):
        high = low + _MOST_EDGES
        first, last = np.searchsorted(ends, low, "right"), np.searchsorted(begins, high, "left")
        skipped = np.maximum(low - begins[first:last], 0)  # edges of each list in earlier portions
        part_starts = starts[first:last] + skipped
        part_degrees = np.minimum(ends[first:last], high) - begins[first:last] - skipped
        lists = graph.sources.lists(part_starts, part_degrees, 0, int(last - first))
        yield ListPortion(
            first=int(first),
            values=lists.values,
            starts=lists.starts,
            degrees=part_degrees,
            origins=part_starts,
        )


def all_portions(graph: Topology) -> Iterator[ListPortion]:
    """Yield the in-edges of all nodes, in order; a portion's ``first`` is a node's id. Raises as `list_portions`."""
    for low in range(0, graph.num_nodes, _MOST_NODES):
        nodes = np.arange(low, min(low + _MOST_NODES, graph.num_nodes))
        for portion in list_portions(graph, nodes):
            yield replace(portion, first=low + portion.first)


def lookup_bytes(graph: Topology) -> int:
    """Return the peak bytes that a portion holds in a lookup; 0 for edges in memory."""
    return graph.sources.list_bytes(min(_MOST_EDGES, graph.num_edges))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queries:
    """Pairs grouped by destination, so that each list is read once."""

    order: IdArray  # (M,) the pairs' indices in order of (destination, source)
    sources: IdArray  # (M,) the pairs' sources in this order
    destinations: IdArray  # (G,) the distinct destinations, ascending
    bounds: IdArray  # (G + 1,) the index in ``sources`` at which each destination's pairs begin

    @classmethod
    def of(cls, sources: IdArray, destinations: IdArray) -> _Queries:
        """Return the queries for pairs of ``sources`` (M,) and ``destinations`` (M,)."""
        order = np.lexsort((sources, destinations))
        ordered = destinations[order]
        is_first = np.empty(len(ordered), dtype=np.bool_)
        is_first[:1] = True
        np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
        firsts = np.flatnonzero(is_first)
        return cls(
            order=order,
            sources=sources[order],
            destinations=ordered[firsts],
            bounds=np.append(firsts, len(ordered)),
        )


def are_edges(graph: Topology, sources: IdArray, destinations: IdArray) -> NDArray[np.bool_]:
    """Return (M,) bool: True for each pair of ``sources`` (M,) and ``destinations`` (M,) that is an edge.

    Raises
    ------
    GraphError
        See `list_portions`.
    StoreError
        Edges on the SSD cannot be read, or fail their checksum.
    """
    queries = _Queries.of(sources, destinations)
    found = np.zeros(len(sources), dtype=np.bool_)
    for portion in list_portions(graph, queries.destinations):
        bounds = queries.bounds[portion.first : portion.first + len(portion.degrees) + 1]
        link_kernels.mark_edges(
            portion.values, portion.starts, portion.degrees, bounds, queries.sources, found
        )
    # The kernel marks only the first of equal pairs. The other equal pairs get the result of the first.
    is_repeat = np.zeros(len(sources), dtype=np.bool_)
    is_repeat[1:] = queries.sources[1:] == queries.sources[:-1]
    is_repeat[queries.bounds[:-1]] = False  # a new destination begins
    # For each query, the index of the first equal query.
    firsts = np.maximum.accumulate(np.where(is_repeat, 0, np.arange(len(sources))))
    result = np.empty_like(found)
    result[queries.order] = found[firsts]
    return result


def edges_between(graph: Topology, sources: IdArray, destinations: IdArray) -> IdArray:
    """Return the positions (X,) of all edges between ``sources`` (M,) and their ``destinations`` (M,), ascending.

    Each parallel edge has its own position; a repeated pair counts once. Raises as `are_edges`.
    """
    queries = _Queries.of(sources, destinations)
    parts = [np.empty(0, dtype=np.int64)]
    for portion in list_portions(graph, queries.destinations):
        bounds = queries.bounds[portion.first : portion.first + len(portion.degrees) + 1]
        lists = (portion.values, portion.starts, portion.degrees, portion.origins, bounds, queries.sources)
        part = np.empty(2 * len(sources), dtype=np.int64)  # nearly always enough: parallel edges are rare
        count = link_kernels.list_edges(*lists, part)
        if count > len(part):  # many parallel edges: repeat with room for all
            part = np.empty(count, dtype=np.int64)
            link_kernels.list_edges(*lists, part)
        parts.append(part[:count])
    # The destinations ascend, and so do the positions of their lists.
    return np.concatenate(parts)


# Maximum bytes of marks per group of sources, 64 MB. A mark is one byte for a source and a destination.
_MOST_BYTES: Final = 1 << 26


def free_destinations(
    graph: Topology, sources: IdArray, *, without_self: bool
) -> Iterator[tuple[int, IdArray]]:
    """Yield each source (S,) with the destinations to which it has no edge, ascending.

    The sources are handled in groups. Each group takes one pass over all edges.

    Parameters
    ----------
    graph : the topology
    sources : distinct, ascending
    without_self : True leaves out the source itself
    """
    group_size = max(_MOST_BYTES // graph.num_nodes, 1)
    for low in range(0, len(sources), group_size):
        part = sources[low : low + group_size]
        taken = np.zeros((len(part), graph.num_nodes), dtype=np.bool_)  # True for a destination with an edge
        if without_self:
            taken[np.arange(len(part)), part] = True
        for portion in all_portions(graph):
            link_kernels.mark_destinations(
                portion.values, portion.starts, portion.degrees, portion.first, part, taken
            )
        for source, row in zip(part.tolist(), taken, strict=True):
            yield source, np.flatnonzero(~row)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreePairs:
    """All pairs of a source and a destination without an edge, in order of destination, then of source."""

    graph: Topology
    ends: IdArray  # (N,) number of such pairs with this destination or an earlier one

    @classmethod
    def of(cls, graph: Topology) -> FreePairs:
        """Count the pairs without an edge; one pass reads all edges."""
        counts = np.zeros(graph.num_nodes, dtype=np.int64)  # distinct sources of each destination
        seen = np.full(graph.num_sources, -1, dtype=np.int64)  # scratch of the kernel
        for portion in all_portions(graph):
            link_kernels.count_sources(
                portion.values, portion.starts, portion.degrees, portion.first, seen, counts
            )
        return cls(graph=graph, ends=np.cumsum(graph.num_sources - counts))

    def __len__(self) -> int:
        """Return the number of pairs without an edge."""
        return int(self.ends[-1])

    def at(self, ranks: IdArray) -> tuple[IdArray, IdArray]:
        """Return the sources and destinations of the pairs with ``ranks`` (Q,), in 0..len-1."""
        destinations = np.searchsorted(self.ends, ranks, side="right")
        sources = np.empty_like(ranks)
        for node in np.unique(destinations):
            is_free = np.ones(self.graph.num_sources, dtype=np.bool_)
            for portion in list_portions(self.graph, node[None]):
                start = portion.starts[0]
                is_free[portion.values[start : start + portion.degrees[0]]] = False
            free = np.flatnonzero(is_free)
            of_node = destinations == node
            first_rank = self.ends[node] - len(free)  # rank of the first pair with this destination
            sources[of_node] = free[ranks[of_node] - first_rank]
        return sources, destinations
