"""Collective fan-outs: a node draws among its in-edges in all relations, as if they were one list.

OGB's scripts join all types into one graph for this. Here each relation keeps its lists. A node's in-edges in all
relations are numbered, relation after relation, and a draw is such a number. Afterwards the draws are dealt out: each
draw goes to the relation that has the drawn edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.core.kernels import njit
from gloader.samplers import pick_kernels
from gloader.samplers.arguments import MAX_LOCAL, checked_total
from gloader.samplers.rng import relation_key
from gloader.samplers.workspace import Picked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.samplers.graph import HeteroGraph
    from gloader.samplers.workspace import Workspace
    from gloader.types import BatchId, IdArray, LocalArray


class CollectiveDraws:
    """Draws a hop's edges for all relations into a type together. Pure and thread-safe.

    A node's draws use the key of the first relation into its type, even if that relation has no edges.

    Parameters
    ----------
    graph : the topology
    fanouts : neighbours per node over all relations, hop next to the seeds first; 0 takes none, -1 takes all
    replace : draw with replacement
    """

    def __init__(self, graph: HeteroGraph, fanouts: tuple[int, ...], *, replace: bool) -> None:
        self._topologies = tuple(graph.relations.values())
        self._fanouts = fanouts
        self._replace = replace
        # By type, the numbers of the relations into the type.
        self._into = [
            [number for number, relation in enumerate(graph.relations) if relation[2] == name]
            for name in graph.num_nodes
        ]

    def deal(
        self,
        work: Workspace,
        batch_id: BatchId,
        hop: int,
        destinations: Sequence[range],
        key: np.uint64,
    ) -> Mapping[int, Picked]:
        """Return the picked edges by relation number.

        Relations without edges or without destinations are left out.

        Parameters
        ----------
        work : the batch so far
        batch_id, hop : the batch and the hop of the draws
        destinations : by type, an index range among the type's nodes
        key : the hop's random key

        Raises
        ------
        ConfigError
            The hop would have 2**31 edges into a type.
        GraphError
            A node's in-edges do not lie within the graph's edges.
        """
        dealt: dict[int, Picked] = {}
        if self._fanouts[hop] == 0:
            return dealt
        for of_type, numbers in zip(destinations, self._into, strict=True):
            with_edges = [number for number in numbers if self._topologies[number].num_edges]
            if of_type and with_edges:
                type_key = relation_key(key, numbers[0])
                self._deal_type(work, batch_id, hop, of_type, with_edges, type_key, dealt)
        return dealt

    def _deal_type(
        self,
        work: Workspace,
        batch_id: BatchId,
        hop: int,
        destinations: range,
        numbers: Sequence[int],
        key: np.uint64,
        dealt: dict[int, Picked],
    ) -> None:
        """Draw for the ``destinations`` of one type, and add the picked edges of its relations to ``dealt``."""
        spaces = [work.relations[number] for number in numbers]
        for space in spaces:
            space.fetch(destinations)
        part = slice(destinations.start, destinations.stop)
        totals = spaces[0].degrees[part].copy()
        for space in spaces[1:]:
            totals += space.degrees[part]
        indptr, picked = self._pick(spaces[0].nodes[part], totals, batch_id, hop, key, spaces[0].scratch.bits)
        # For each node, the number of its in-edges in earlier relations.
        before = np.zeros(len(destinations), dtype=np.int64)
        for number, space in zip(numbers, spaces, strict=True):
            space.scratch.reserve_edges(int(indptr[-1]) + 1)  # one spare entry
            relation_indptr = np.empty(len(destinations) + 1, dtype=np.int32)
            edges = space.scratch.edges
            num_edges = _deal(
                picked, indptr, before, space.starts[part], space.degrees[part], relation_indptr, edges
            )
            dealt[number] = Picked(relation_indptr, edges[:num_edges].copy())

    def _pick(
        self,
        nodes: IdArray,
        degrees: IdArray,
        batch_id: BatchId,
        hop: int,
        key: np.uint64,
        bits: np.ndarray[tuple[int], np.dtype[np.uint64]],
    ) -> tuple[LocalArray, IdArray]:
        """Return ``indptr`` (D + 1,) and the draws: for each node, numbers among its in-edges in all relations."""
        fanout, num_dst = self._fanouts[hop], len(nodes)
        indptr = np.empty(num_dst + 1, dtype=np.int32)
        total = pick_kernels.count_uniform(degrees, 0, num_dst, fanout, self._replace, MAX_LOCAL, indptr)
        checked_total(total, hop, batch_id, self._fanouts)
        picked = np.empty(total + pick_kernels.SLACK, dtype=np.int64)
        common = (nodes, np.zeros(num_dst, dtype=np.int64), degrees, 0, num_dst)
        if self._replace:
            pick_kernels.pick_with_replacement(*common, fanout < 0, key, indptr, picked)
        else:
            pick_kernels.pick_uniform(*common, key, indptr, picked, bits)
        return indptr, picked


@njit(cache=True, nogil=True)
def _deal(
    picked: IdArray,
    indptr: LocalArray,
    before: IdArray,
    starts: IdArray,
    degrees: IdArray,
    relation_indptr: LocalArray,
    edge_ids: IdArray,
) -> int:
    """Write one relation's edges among the draws as positions; return their number. Adds ``degrees`` to ``before``.

    ``before`` (D,) is the number of each node's in-edges in earlier relations. A node's draw d is in this relation if
    ``0 <= d - before < degree``. ``edge_ids`` has one entry more than there are
    draws, because an edge is written before it is known to count.
    """
    out = 0
    relation_indptr[0] = 0
    for i in range(before.shape[0]):
        for j in range(indptr[i], indptr[i + 1]):
            rank = picked[j] - before[i]
            edge_ids[out] = starts[i] + rank
            out += 0 <= rank < degrees[i]  # no branch, because a branch would be unpredictable
        relation_indptr[i + 1] = out
        before[i] += degrees[i]
    return out
