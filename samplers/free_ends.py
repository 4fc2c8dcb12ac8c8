"""Which pairs of nodes are not edges, counted over all lists: for strict negatives of graphs that are nearly full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.samplers import link_kernels
from gloader.samplers.edge_lookup import all_portions, list_portions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.samplers.graph import Topology
    from gloader.types import IdArray

_MOST_BYTES: Final = 1 << 26  # of the marks of some sources: a byte for each destination


def free_destinations(
    graph: Topology, sources: IdArray, *, without_self: bool
) -> Iterator[tuple[int, IdArray]]:
    """Yield each of ``sources`` (S,) with the destinations that no edge leads to from it, ascending.

    All edges are read once for some of them.

    Parameters
    ----------
    graph : whose edges are counted
    sources : distinct, ascending
    without_self : a source is no destination of itself
    """
    at_a_time = max(_MOST_BYTES // graph.num_nodes, 1)
    for low in range(0, len(sources), at_a_time):
        part = sources[low : low + at_a_time]
        taken = np.zeros((len(part), graph.num_nodes), dtype=np.bool_)
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
    """All pairs of a source and a destination that are not edges, by destination, then by source."""

    graph: Topology
    ends: IdArray  # (N,) how many there are of all destinations up to each

    @classmethod
    def of(cls, graph: Topology) -> FreePairs:
        """Count them: reads all edges once."""
        counts = np.zeros(graph.num_nodes, dtype=np.int64)
        seen = np.full(graph.num_sources, -1, dtype=np.int64)
        for portion in all_portions(graph):
            link_kernels.count_sources(
                portion.values, portion.starts, portion.degrees, portion.first, seen, counts
            )
        return cls(graph=graph, ends=np.cumsum(graph.num_sources - counts))

    def __len__(self) -> int:
        """Return how many there are."""
        return int(self.ends[-1])

    def at(self, ranks: IdArray) -> tuple[IdArray, IdArray]:
        """Return the sources and destinations of the pairs that have ``ranks`` (Q,), in 0..len-1."""
        destinations = np.searchsorted(self.ends, ranks, side="right")
        sources = np.empty_like(ranks)
        for node in np.unique(destinations):
            is_free = np.ones(self.graph.num_sources, dtype=np.bool_)
            for portion in list_portions(self.graph, node[None]):
                start = portion.starts[0]
                is_free[portion.values[start : start + portion.degrees[0]]] = False
            free = np.flatnonzero(is_free)
            here = destinations == node
            sources[here] = free[ranks[here] - (self.ends[node] - len(free))]
        return sources, destinations
