"""Collective fan-outs: a node draws among its in-edges in all relations, as if they were one list.

A relation is an edge type. OGB's scripts join all types into one graph for such draws. Here each relation keeps its own
lists of in-edges. A node's in-edges in all relations are numbered, relation after relation, and a draw is such a
number. Afterwards the draws are dealt out: each draw goes to the relation that has the drawn edge. `HopFrame` uses
`CollectiveDraws` in place of a pick for each relation.
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
        """Draw a hop's edges. Return the picked edges by relation number.

        Relations without edges or without destinations are left out.

        Parameters
        ----------
        work : the batch so far
        batch_id, hop : the batch and the hop of the draws
        destinations : by type, the index range of the nodes that take edges, among the batch's nodes of this type
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
            space.fetch(destinations)  # writes each node's first in-edge (``starts``) and in-degree
        part = slice(destinations.start, destinations.stop)
        totals = spaces[0].degrees[part].copy()  # each node's in-degree over all relations
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
        """Draw for D nodes. A draw is a number among a node's in-edges in all relations.

        Parameters
        ----------
        nodes, degrees : (D,) node ids, and in-degrees over all relations
        batch_id, hop, key : as in `deal`
        bits : scratch of `pick_kernels.pick_uniform`

        Returns
        -------
        ``indptr`` (D + 1,), the index at which each node's draws begin, and the draws, with spare entries at the end.
        """
        fanout, num_dst = self._fanouts[hop], len(nodes)
        indptr = np.empty(num_dst + 1, dtype=np.int32)
        total = pick_kernels.count_uniform(degrees, 0, num_dst, fanout, self._replace, MAX_LOCAL, indptr)
        checked_total(total, hop, batch_id, self._fanouts)
        picked = np.empty(total + pick_kernels.SLACK, dtype=np.int64)
        # Each node's list begins at 0, so that the kernels return numbers within the list and no positions.
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
    """Write the draws that belong to one relation, as positions in the relation. Return their number.

    A node's draw d belongs to the relation if ``0 <= d - before < degree``.

    Parameters
    ----------
    picked, indptr : the draws of D nodes, and the index at which each node's draws begin
    before : (D,) number of each node's in-edges in earlier relations; increased by ``degrees``
    starts, degrees : (D,) each node's first position and in-degree in the relation
    relation_indptr : (D + 1,) output, the index in ``edge_ids`` at which each node's edges begin
    edge_ids : output. It has one entry more than there are draws, because the loop writes each draw and then decides
        whether it counts
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
