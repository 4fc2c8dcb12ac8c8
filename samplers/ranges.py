"""The in-edges that the nodes of a batch may take: whole lists, or the part of a list before a time.

In a batch of seeds that ask at a time, a node is an *entry*: node v in the tree of seed t of a type of N nodes is the
entry t * N + v. Lists are sorted by time, so that an entry may take one range of a list, and picks in it as in a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.samplers import exclusion_kernels, graph_errors, pick_kernels, time_kernels
from gloader.samplers.exclusion import degrees_without

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.core.offsets import Offsets
    from gloader.samplers.exclusion import Excluded
    from gloader.samplers.graph import Topology
    from gloader.samplers.times import TimeRule
    from gloader.samplers.workspace import Picked, RelationSpace
    from gloader.types import IdArray, LocalArray


class AllEdges:
    """Whole lists, without the edges that are excluded: `EdgeRanges`.

    Parameters
    ----------
    graph : the topology
    excluded : edges that no hop takes; None: all may be taken
    """

    __slots__ = ("_excluded", "_graph", "_num_to_come", "_offsets", "_places")

    def __init__(self, graph: Topology, excluded: Excluded | None) -> None:
        self._graph = graph
        self._offsets: Offsets | None = None  # of the graph, which may make them anew whenever it is asked
        self._excluded = excluded
        self._num_to_come = (
            0 if excluded is None else len(excluded.nodes)
        )  # nodes whose degrees count these edges
        self._places: IdArray = np.full(
            self._num_to_come, -1, dtype=np.int64
        )  # local ids of the nodes; -1: none yet

    def fetch(self, space: RelationSpace, first: int, last: int) -> None:
        """Write the lists of the destinations ``first:last``."""
        graph = self._graph
        if self._offsets is None:
            self._offsets = graph.offsets
        bad = pick_kernels.fetch_degrees(
            self._offsets, graph.num_edges, space.nodes, first, last, space.starts, space.degrees
        )
        if bad >= 0:
            raise graph_errors.bad_degree(graph, int(space.nodes[bad]))
        if self._excluded is not None and self._num_to_come:
            space.places_of(self._excluded.nodes, self._places)
            self._num_to_come = exclusion_kernels.lower_degrees(
                self._excluded, self._places, first, last, space.degrees
            )

    def pass_over(self, _: RelationSpace, destinations: range, indptr: LocalArray, edge_ids: IdArray) -> None:
        """Turn picks among the edges that are left into positions."""
        if self._excluded is not None:
            first, last = destinations.start, destinations.stop
            exclusion_kernels.pass_over(self._excluded, self._places, first, last, indptr, edge_ids)

    def nodes(self, space: RelationSpace, destinations: range) -> IdArray:
        """Return the ids of ``destinations``: the batch knows nodes by them."""
        return space.nodes[destinations.start : destinations.stop]

    def found(
        self, _space: RelationSpace, _destinations: range, picked: Picked
    ) -> tuple[NDArray[Any], IdArray]:
        """Return the sources themselves."""
        return picked.sources_of(self._graph)

    def in_degrees(self, _: RelationSpace, nodes: IdArray) -> NDArray[np.float32] | None:
        """Return the in-edges of each of ``nodes`` that are not excluded; None: none is."""
        return degrees_without(self._excluded, self._graph, nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgesBefore:
    """The part of each list that the tree of the destination may take, for entries: `EdgeRanges`."""

    graph: Topology  # one without times gives all its edges at any time
    rule: TimeRule
    asked: IdArray  # (B,) the time of each tree
    excluded: IdArray  # (X,) ascending positions that no entry takes

    def fetch(self, space: RelationSpace, first: int, last: int) -> None:
        """Write the ranges of the entries ``first:last``."""
        graph = self.graph
        trees, nodes = np.divmod(space.nodes[first:last], graph.num_nodes)
        starts, degrees = space.starts[first:last], space.degrees[first:last]
        bad = pick_kernels.fetch_degrees(
            graph.offsets, graph.num_edges, nodes, 0, len(nodes), starts, degrees
        )
        if bad >= 0:
            raise graph_errors.bad_degree(graph, int(nodes[bad]))
        if graph.times is not None:
            self.rule.narrow(graph.times, self.asked[trees], starts, degrees)
        if len(self.excluded):
            time_kernels.lower_degrees(self.excluded, starts, degrees)

    def pass_over(
        self, space: RelationSpace, destinations: range, indptr: LocalArray, edge_ids: IdArray
    ) -> None:
        """Turn picks among the edges of a range that are left into positions."""
        if len(self.excluded):
            first, last = destinations.start, destinations.stop
            time_kernels.pass_over(self.excluded, space.starts, first, last, indptr, edge_ids)

    def nodes(self, space: RelationSpace, destinations: range) -> IdArray:
        """Return the node of each entry."""
        return space.nodes[destinations.start : destinations.stop] % self.graph.num_nodes

    def found(
        self, space: RelationSpace, destinations: range, picked: Picked
    ) -> tuple[NDArray[Any], IdArray]:
        """Return the entry of each source: in the tree of the destination."""
        graph, (values, places) = self.graph, picked.sources_of(self.graph)
        entries = np.empty(len(places), dtype=np.int64)
        rows = (picked.indptr, space.nodes, destinations.start, graph.num_nodes, graph.num_sources)
        bad = time_kernels.enter_trees(values, places, *rows, entries)
        if bad >= 0:
            raise picked.bad_source(graph, self.nodes(space, destinations), bad, int(values[places[bad]]))
        return entries, np.arange(len(places), dtype=np.int64)

    def in_degrees(self, space: RelationSpace, nodes: IdArray) -> NDArray[np.float32]:
        """Return the size of the range of each entry, also of those that draw nothing: a model may look at all."""
        space.fetch(range(len(nodes)))
        return space.degrees[: len(nodes)].astype(np.float32)
