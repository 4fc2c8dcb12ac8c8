"""The sweep rule for uniform picks: positions follow from degrees and hashes, before an edge is read.

An edge pass (a sweep) reads the edge file once, in file order, and serves the hops of many batches. A frontier is the
nodes, ascending, that take edges in one hop of one batch. A position is an edge's index in the graph. For a frontier,
the pass asks the rule in this order: the number of positions (`UniformPickRule.counts`), the pages of the edge file
that hold them (`mark`), and the positions themselves, in portions (`portions`). The pass returns the sources at the
distinct positions, and `extend` makes the next frontier from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.offsets import offset_at
from gloader.core.value_kernels import first_outside
from gloader.errors import ConfigError, ShapeError
from gloader.samplers import frontier_kernels, graph_errors
from gloader.samplers.arguments import MAX_LOCAL, checked_seeds
from gloader.samplers.exclusion import excluded_edges, join_excluded, seeds_of
from gloader.samplers.rng import layer_key, relation_key
from gloader.samplers.sweeping import first_frontier, next_frontier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.config import Layout
    from gloader.samplers.frontier_kernels import Picks
    from gloader.samplers.graph import Topology
    from gloader.samplers.sweeping import Frontier
    from gloader.types import AnySeeds, BatchId, IdArray


class UniformPickRule:
    """The `HopRule` for `NeighborSampler` without weights: degrees and hashes give its positions. Pure, thread-safe.

    Parameters
    ----------
    graph : the topology; the rule reads only its offsets
    fanouts : the sampler's checked fan-outs
    seed : the sampler's seed
    replace : draw with replacement
    layout : in "layered" all nodes so far draw in each hop, in "merged" only the new nodes
    relation : the relation's number in the graph, see `relation_key`
    """

    def __init__(
        self,
        graph: Topology,
        fanouts: tuple[int, ...],
        *,
        seed: int,
        replace: bool,
        layout: Layout,
        relation: int = 0,
    ) -> None:
        self._relation = relation
        self._graph = graph
        self._fanouts = fanouts
        self._seed = seed
        self._replace = replace
        self._is_merged = layout == "merged"

    @property
    def num_hops(self) -> int:
        """Number of hops."""
        return len(self._fanouts)

    @property
    def unable_to_exclude(self) -> None:
        """None, because this rule can exclude edges."""
        return None

    def begin(self, batch_id: BatchId, seeds: AnySeeds) -> Frontier:
        """Return hop 0's frontier: the seeds (B,) in ascending order; raises as `Sampler.sample`."""
        given = seeds_of(seeds)
        checked = checked_seeds(given.nodes, self._graph.num_nodes)
        excluded = excluded_edges(given.excluded, self._graph, checked)
        return first_frontier(batch_id, checked, self._graph.num_nodes, excluded=excluded)

    def extend(self, frontier: Frontier, drawn: NDArray[Any]) -> Frontier:
        """Return the next hop's frontier; at hop L its ``seen`` has every node in the batch.

        Parameters
        ----------
        frontier : the current hop's frontier
        drawn : (K,) the sources at the frontier's positions

        Raises
        ------
        GraphError
            A source is not a graph node.
        """
        return next_frontier(frontier, self.sources(frontier, drawn), is_merged=self._is_merged)

    def sources(self, frontier: Frontier, drawn: NDArray[Any]) -> NDArray[Any]:
        """Return the taken edges' sources (K,), which are ``drawn`` itself; for errors see `extend`."""
        # An empty array may be of another kind (writeable), for which the kernel would be compiled again.
        bad = first_outside(drawn, 0, self._graph.num_sources - 1) if len(drawn) else -1
        if bad >= 0:
            raise self._bad_source(frontier, bad, int(drawn[bad]))
        return drawn

    def counts(self, frontiers: Sequence[Frontier]) -> IdArray:
        """Return the number of distinct positions for each of O frontiers, (O,) int64.

        Raises
        ------
        ConfigError
            A frontier has 2**31 or more positions.
        GraphError
            A node's in-edges do not lie within the graph's edges.
        """
        return np.fromiter((self._count(frontier) for frontier in frontiers), np.int64, len(frontiers))

    def mark(self, frontier: Frontier, pages: NDArray[np.uint64], *, per_page: int) -> None:
        """Set the bits for the pages that hold the frontier's positions.

        Parameters
        ----------
        frontier : a hop's frontier
        pages : uint64, a bit for each page; written
        per_page : positions per page

        Raises
        ------
        GraphError
            A node's in-edges do not lie within the graph's edges.
        ShapeError
            There are fewer bits than pages.
        """
        if 64 * per_page * len(pages) < self._graph.num_edges:
            raise ShapeError(
                f"{64 * len(pages)} bits for the pages of {self._graph.num_edges} edges, {per_page} in a page; "
                "pass a bit for each page"
            )
        # The base-2 logarithm of a power of two, so that the kernel can shift; -1 makes it divide.
        shift = per_page.bit_length() - 1 if per_page & (per_page - 1) == 0 else -1
        with np.errstate(over="ignore"):  # interpreted hashes wrap around
            bad = frontier_kernels.mark_positions(
                self._picks([frontier]),
                frontier.nodes,
                self._fanouts[frontier.hop],
                self._key(frontier),
                pages,
                per_page,
                shift,
            )
        if bad >= 0:
            raise graph_errors.bad_degree(self._graph, int(frontier.nodes[bad]))

    def portions(self, frontiers: Sequence[Frontier]) -> _Portions:
        """Return the frontiers' positions as `IdPortions`."""
        keys = np.array([self._key(frontier) for frontier in frontiers], dtype=np.uint64)
        fanouts = [self._fanouts[frontier.hop] for frontier in frontiers]
        return _Portions(self._graph, self._picks(frontiers), frontiers, keys, fanouts)

    def _count(self, frontier: Frontier) -> int:
        """Return the number of a frontier's distinct positions; for errors see `counts`."""
        with np.errstate(over="ignore"):  # interpreted hashes wrap around
            count: int = frontier_kernels.count_positions(
                self._picks([frontier]), frontier.nodes, self._fanouts[frontier.hop], self._key(frontier)
            )
        if count < 0:
            raise graph_errors.bad_degree(self._graph, int(frontier.nodes[-1 - count]))
        if count > MAX_LOCAL:
            raise ConfigError(
                f"hop {frontier.hop} of {frontier.batch_id} would have 2**31 edges or more; lower the batch size or "
                f"fanouts={self._fanouts}"
            )
        return count

    def _key(self, frontier: Frontier) -> np.uint64:
        """Return the random key of the frontier's hop in this relation."""
        batch_id = frontier.batch_id
        key = layer_key(self._seed, batch_id.epoch, batch_id.index, frontier.hop)
        return relation_key(key, self._relation)

    def _picks(self, frontiers: Sequence[Frontier]) -> Picks:
        """Return the kernels' arguments for ``frontiers``, with new scratch memory."""
        largest = max((self._fanouts[frontier.hop] for frontier in frontiers), default=0)
        if not self._replace:
            # Without replacement a node that draws has more edges than draws, so the scratch may be smaller.
            largest = min(largest, self._graph.num_edges)
        return frontier_kernels.new_picks(
            self._graph.offsets,
            self._graph.num_edges,
            replace=self._replace,
            largest_fanout=largest,
            excluded=join_excluded([frontier.excluded for frontier in frontiers]),
        )

    def _bad_source(self, frontier: Frontier, rank: int, source: int) -> Exception:
        """Return the error for the drawn value at ``rank``, which is not a node.

        The positions are listed again up to ``rank``. A binary search then finds the node that has this position.
        """
        portions = self.portions([frontier])
        ids = np.empty((1, 1024), dtype=np.int64)
        taken, ends, has_more = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.bool_)
        before = 0  # positions in earlier portions
        while True:
            portions.fill(ids, taken, ends, has_more)
            if rank < before + ends[0] or not has_more[0]:
                break
            before += int(ends[0])
            taken[0] = ends[0]
        position = int(ids[0, rank - before])
        offsets = self._graph.offsets
        first, last = 0, len(frontier.nodes)  # the node's index is in first..last - 1
        while last - first > 1:
            middle = (first + last) // 2
            first, last = (
                (middle, last) if offset_at(offsets, frontier.nodes[middle]) <= position else (first, middle)
            )
        return graph_errors.bad_source(self._graph, int(frontier.nodes[first]), position, source)


class _Portions:
    """The positions of some frontiers: an `IdPortions` that keeps the frontiers alive. For one thread."""

    def __init__(
        self,
        graph: Topology,
        picks: Picks,
        frontiers: Sequence[Frontier],
        keys: NDArray[np.uint64],
        fanouts: Sequence[int],
    ) -> None:
        self._graph = graph
        self._picks = picks
        # The kernel reads the frontiers' nodes at their addresses, so they are contiguous and have one dtype.
        self._like = np.empty(0, dtype=frontiers[0].nodes.dtype if frontiers else np.int32)
        self._nodes = [np.ascontiguousarray(frontier.nodes, self._like.dtype) for frontier in frontiers]
        # By owner: the address of its nodes, their number, and the hop's fan-out, see `fill_portions`.
        self._frontiers = np.array(
            [
                (nodes.ctypes.data, len(nodes), fanout)
                for nodes, fanout in zip(self._nodes, fanouts, strict=True)
            ],
            dtype=np.int64,
        ).reshape(-1, 3)
        self._keys = keys
        self._cursors = np.zeros((len(frontiers), 2), dtype=np.int64)

    def fill(self, ids: IdArray, taken: IdArray, ends: IdArray, has_more: NDArray[np.bool_]) -> None:
        """Move the rest of every owner's portion to the front of its row, and append its next positions.

        Owner o has row o of ``ids`` for the positions of frontier o.

        Parameters
        ----------
        ids : (O, W) int64; the unused positions of owner o are ``ids[o, taken[o] : ends[o]]``; overwritten
        taken : (O,) int64, number of used columns; set to 0
        ends : (O,) int64, number of filled columns; updated
        has_more : (O,) bool, True if further positions did not fit; written

        Raises
        ------
        ShapeError
            The number of owners is wrong, or there is no room.
        GraphError
            A node's in-edges do not lie within the graph's edges.
        """
        if ids.shape[0] != len(self._nodes) or ids.shape[1] < 1:
            raise ShapeError(
                f"portions of shape {ids.shape}; there are {len(self._nodes)} owners, and a row must have a column"
            )
        with np.errstate(over="ignore"):  # interpreted hashes wrap around
            bad = frontier_kernels.fill_portions(
                self._picks,
                self._frontiers,
                self._like,
                self._keys,
                self._cursors,
                ids,
                taken,
                ends,
                has_more,
            )
        if bad >= 0:
            node = int(self._nodes[bad][self._cursors[bad, frontier_kernels.NODE]])
            raise graph_errors.bad_degree(self._graph, node)
