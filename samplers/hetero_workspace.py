"""The scratch memory of a call that samples a graph of several types."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gloader.samplers.node_map import DenseMap, HashMap
from gloader.samplers.workspace import DENSE_LIMIT, Candidates, FoundNodes, Scratch, Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gloader.samplers.hetero_graph import HeteroGraph


class HeteroWorkspace:
    """The nodes found of each type, and for each relation a workspace over those of its two types.

    Parameters
    ----------
    graph : whose types and relations they are
    largest_fanout : of all hops and relations
    dense_limit : nodes from which on local ids of a type come from a hash table
    has_candidates : whether hops choose for all destinations together
    limits : of each type what its nodes in a batch are below; None: the nodes that there are
    """

    __slots__ = ("found", "relations")

    def __init__(
        self,
        graph: HeteroGraph,
        largest_fanout: int,
        *,
        dense_limit: int,
        has_candidates: bool,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        limits = graph.num_nodes if limits is None else limits
        maps = {name: DenseMap if count <= dense_limit else HashMap for name, count in limits.items()}
        found = {name: FoundNodes(maps[name](count), count) for name, count in limits.items()}
        # Of the types that edges come from; what a hop notes in them is void when the next one begins.
        candidates: dict[str, Candidates] = {}
        if has_candidates:
            sources = dict.fromkeys(source for source, _, _ in graph.relations)
            candidates = {name: Candidates(maps[name](graph.num_nodes[name])) for name in sources}
        scratch = Scratch(largest_fanout)
        self.found = tuple(found.values())  # of each type
        self.relations = tuple(
            Workspace(found[destination], found[source], scratch, candidates.get(source))
            for source, _, destination in graph.relations
        )


class HeteroWorkspacePool:
    """Lends each concurrent call a workspace of its own; it keeps as many as calls ever ran at once. Thread-safe.

    Parameters
    ----------
    graph, largest_fanout, dense_limit, has_candidates, limits : see `HeteroWorkspace`
    """

    def __init__(
        self,
        graph: HeteroGraph,
        largest_fanout: int,
        *,
        dense_limit: int = DENSE_LIMIT,
        has_candidates: bool = False,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self._graph = graph
        self._limits = limits
        self._largest_fanout = largest_fanout
        self._dense_limit = dense_limit
        self._has_candidates = has_candidates
        self._free: deque[HeteroWorkspace] = deque()

    @contextmanager
    def lend(self) -> Iterator[HeteroWorkspace]:
        """Lend a workspace for the length of a ``with`` block; one whose block raised is dropped."""
        try:
            workspace = self._free.pop()  # a deque's pop and append are atomic: no lock
        except IndexError:
            workspace = HeteroWorkspace(
                self._graph,
                self._largest_fanout,
                dense_limit=self._dense_limit,
                has_candidates=self._has_candidates,
                limits=self._limits,
            )
        # Not in a `finally`: a map that was interrupted, or met a damaged graph, is not to be used again.
        yield workspace
        self._free.append(workspace)
