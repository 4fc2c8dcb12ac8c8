"""The merged layout, as in PyG: every node in a batch draws once, in the hop after its discovery.

In the layered layout, as in DGL, each hop is a block in which every node found so far draws again. In the merged layout
all hops form one CSC graph. Its first rows belong to the first hops. So the blocks that layered models need are views
of prefixes of this graph (`to_blocks`). `HopFrame`'s results use `join_hops` to make the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from gloader.types import BatchId, Block, HeteroBatch, IdArray, Links, LocalArray, Relation, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedHops:
    """A relation's edges from all hops in a batch, as one CSC graph. The fields are as in `MergedBatch`."""

    indptr: LocalArray  # (D + 1,) for the D nodes of the destination type that sampled
    indices: LocalArray  # (num_edges,) the edges' sources as local ids
    edge_ids: IdArray  # (num_edges,) positions in the relation's ``indices``
    num_sampled_edges: tuple[int, ...]  # (L,) edges in each hop
    edge_weight: NDArray[np.float32] | None  # (num_edges,) see `MergedBatch`


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBatch:
    """One mini-batch's topology in PyG's layout: all hops' edges over one list of nodes.

    In a hop only the nodes from the previous hop sample, and the list has the nodes in the order of discovery. So the
    edges form one CSC graph, and the hops up to any depth are a prefix of this graph.
    """

    id: BatchId
    nodes: IdArray  # (U,) global ids, unique, in first-seen order; nodes[:num_seeds] are the seeds
    num_seeds: int
    indptr: LocalArray  # (D + 1,) for the D nodes that sampled: all except the last hop's new nodes
    indices: LocalArray  # (num_edges,) the edges' sources as local ids, hop after hop
    edge_ids: IdArray  # (num_edges,) positions in the graph's ``indices``
    num_sampled_nodes: tuple[int, ...]  # (L + 1,) the seeds, then each hop's new nodes
    num_sampled_edges: tuple[int, ...]  # (L,) edges in each hop
    # (num_edges,) number of graph edges that each sampled edge represents; None if all count the same
    edge_weight: NDArray[np.float32] | None = None
    links: Links | None = None  # see `SampledBatch`
    trees: LocalArray | None = None  # see `SampledBatch`
    in_degrees: NDArray[np.float32] | None = None  # see `SampledBatch`

    @property
    def edge_index(self) -> LocalArray:
        """(2, num_edges) local ids of sources and destinations, hop after hop; a new array for each call."""
        return _edge_index(self)

    def to_blocks(self) -> SampledBatch:
        """Return the batch as blocks for layered models; the blocks' arrays are views of this batch's arrays.

        A node draws its edges in one hop, and a block holds all edges that its destinations drew. A node that is a
        destination in several blocks has the same edges in each. So ``blocks[0]`` holds all edges. A layered forward
        pass equals a model over ``edge_index``, with or without PyG's `trim_to_layer`.
        """
        num_nodes = tuple(accumulate(self.num_sampled_nodes))
        blocks = _first_hops(self, num_nodes, num_nodes[1:])
        return SampledBatch(
            id=self.id,
            nodes=self.nodes,
            num_seeds=self.num_seeds,
            blocks=tuple(reversed(blocks)),
            links=self.links,
            trees=self.trees,
            in_degrees=self.in_degrees,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedHeteroBatch:
    """One mini-batch's topology in PyG's layout, with one CSC graph for each relation.

    Each relation works as in `MergedBatch`: only new nodes sample in the next hop. Every type and relation is present,
    perhaps empty, in the graph's order.
    """

    id: BatchId
    nodes: Mapping[str, IdArray]  # (U_t,) ids within the type, unique, in first-seen order; seeds first
    num_seeds: Mapping[str, int]  # by type
    edges: Mapping[Relation, JoinedHops]  # the edges of all hops by relation
    num_sampled_nodes: Mapping[str, tuple[int, ...]]  # (L + 1,) the seeds, then each hop's new nodes
    links: Links | None = None  # see `SampledBatch`
    trees: Mapping[str, LocalArray] | None = None  # by type, see `SampledBatch`

    @property
    def num_sampled_edges(self) -> dict[Relation, tuple[int, ...]]:
        """Number of edges by relation in each of the L hops."""
        return {relation: edges.num_sampled_edges for relation, edges in self.edges.items()}

    def edge_index(self, relation: Relation) -> LocalArray:
        """Return (2, num_edges) local ids of sources and destinations, hop after hop, as a new array."""
        return _edge_index(self.edges[relation])

    def to_blocks(self) -> HeteroBatch:
        """Return the batch as blocks for layered models; the blocks' arrays are views of this batch's arrays.

        A block holds every edge that its destinations drew, each in one hop, as in `MergedBatch.to_blocks`.
        """
        # By type: the number of nodes before the first hop, and after each hop.
        known = {name: tuple(accumulate(counts)) for name, counts in self.num_sampled_nodes.items()}
        num_hops = len(next(iter(known.values()))) - 1
        prefixes = {
            relation: _first_hops(edges, known[relation[2]], known[relation[0]][1:])
            for relation, edges in self.edges.items()
        }
        blocks = [
            {relation: of_relation[hop] for relation, of_relation in prefixes.items()}
            for hop in range(num_hops)
        ]
        return HeteroBatch(
            id=self.id,
            nodes=self.nodes,
            num_seeds=self.num_seeds,
            blocks=tuple(reversed(blocks)),
            links=self.links,
            trees=self.trees,
        )


def join_hops(hops: Sequence[Block], num_nodes: Sequence[int]) -> JoinedHops:
    """Join a batch's hops; hop l has the destinations ``num_nodes[l]:num_nodes[l + 1]``. Pure.

    Parameters
    ----------
    hops : L blocks, the one next to the seeds first, with fewer than 2**31 edges in total
    num_nodes : (>= L + 1,) 0, then the number of destination-type nodes before each hop
    """
    # The hops' destinations are consecutive in the list of nodes. So each hop's ``indptr`` is copied to the entries
    # of its destinations, increased by the number of edges in earlier hops.
    indptr = np.zeros(num_nodes[len(hops)] + 1, dtype=np.int32)
    counts = tuple(hop.num_edges for hop in hops)
    if not any(counts):  # a relation without edges costs nothing
        return JoinedHops(
            indptr=indptr,
            indices=hops[0].indices,
            edge_ids=hops[0].edge_ids,
            num_sampled_edges=counts,
            edge_weight=hops[0].edge_weight,
        )
    num_edges = 0
    for first, hop in zip(num_nodes, hops, strict=False):
        np.add(hop.indptr[1:], np.int32(num_edges), out=indptr[first + 1 : first + hop.num_dst + 1])
        num_edges += hop.num_edges
    weights = [hop.edge_weight for hop in hops if hop.edge_weight is not None]
    return JoinedHops(
        indptr=indptr,
        indices=np.concatenate([hop.indices for hop in hops]),
        edge_ids=np.concatenate([hop.edge_ids for hop in hops]),
        num_sampled_edges=counts,
        edge_weight=np.concatenate(weights) if weights else None,
    )


def _edge_index(edges: MergedBatch | JoinedHops) -> LocalArray:
    """Return the local ids of sources and destinations, (2, num_edges)."""
    destinations = np.arange(len(edges.indptr) - 1, dtype=np.int32)
    return np.stack([edges.indices, np.repeat(destinations, np.diff(edges.indptr))])


def _first_hops(
    edges: MergedBatch | JoinedHops, num_dst: Sequence[int], num_src: Sequence[int]
) -> list[Block]:
    """Return L blocks, which hold the first 1, 2, ... L hops, as views of ``edges``.

    ``num_dst`` and ``num_src`` (>= L,) are the blocks' numbers of destinations and sources.
    """
    totals = accumulate(edges.num_sampled_edges)
    return [
        Block(
            indptr=edges.indptr[: destinations + 1],
            indices=edges.indices[:total],
            edge_ids=edges.edge_ids[:total],
            num_src=sources,
            num_dst=destinations,
            edge_weight=None if edges.edge_weight is None else edges.edge_weight[:total],
        )
        for total, destinations, sources in zip(totals, num_dst, num_src, strict=False)
    ]
