"""Merged hops of a graph of several types: every node of a batch draws once in each relation, as in PyG."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from gloader.samplers.merged import JoinedHops, join_hops
from gloader.types import BatchId, Block, HeteroBatch, IdArray, Links, LocalArray, Relation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedHeteroBatch:
    """The topology of one mini-batch with the edges of all hops, one CSC graph for each relation, as PyG lays it out.

    As `MergedBatch`, for each relation: only nodes that a hop found first sample in the next hop. Every type and
    relation is there, perhaps empty, in the order of the graph.
    """

    id: BatchId
    nodes: Mapping[str, IdArray]  # (U_t,) ids within the type, unique, in first-seen order; seeds first
    num_seeds: Mapping[str, int]  # of each type
    edges: Mapping[Relation, JoinedHops]
    num_sampled_nodes: Mapping[str, tuple[int, ...]]  # L + 1: the seeds, then the new nodes of each hop
    links: Links | None = None  # as of `SampledBatch`
    trees: Mapping[str, LocalArray] | None = None  # as of `SampledBatch`, of each type

    @property
    def num_sampled_edges(self) -> dict[Relation, tuple[int, ...]]:
        """Of each relation the edges of each hop, L."""
        return {relation: edges.num_sampled_edges for relation, edges in self.edges.items()}

    def edge_index(self, relation: Relation) -> LocalArray:
        """Return (2, num_edges) local ids of sources and destinations, hop after hop; made anew by each call."""
        edges = self.edges[relation]
        destinations = np.arange(len(edges.indptr) - 1, dtype=np.int32)
        return np.stack([edges.indices, np.repeat(destinations, np.diff(edges.indptr))])

    def to_blocks(self) -> HeteroBatch:
        """Return the batch as blocks for layered models, whose arrays are views of this one's.

        As `MergedBatch.to_blocks`: a block holds every edge that its destinations drew, each in its one hop.
        """
        known = {name: tuple(accumulate(counts)) for name, counts in self.num_sampled_nodes.items()}
        num_hops = len(next(iter(known.values()))) - 1
        totals = {
            relation: (0, *accumulate(edges.num_sampled_edges)) for relation, edges in self.edges.items()
        }
        blocks = [
            {
                relation: _first_hops(
                    edges,
                    num_dst=known[relation[2]][hop],
                    num_src=known[relation[0]][hop + 1],
                    num_edges=totals[relation][hop + 1],
                )
                for relation, edges in self.edges.items()
            }
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


def merge_hetero_hops(
    batch_id: BatchId,
    nodes: Mapping[str, IdArray],
    relations: Sequence[Relation],
    hops: Sequence[Sequence[Block]],
    num_nodes: Mapping[str, Sequence[int]],
    *,
    links: Links | None = None,
    trees: Mapping[str, LocalArray] | None = None,
) -> MergedHeteroBatch:
    """Join the hops of a batch. Pure.

    Parameters
    ----------
    batch_id : the address of the batch
    nodes : of each type, ids within it in first-seen order
    relations : K, in order
    hops : of each of the L hops, next to the seeds first, the K blocks; fewer than 2**31 edges of each relation in all
    num_nodes : (L + 2,) of each type: 0, then the nodes known before each hop, then all
    links : what is predicted of the seeds
    trees : of each type (U_t,) the seed of each node, where seeds share none
    """
    return MergedHeteroBatch(
        id=batch_id,
        nodes=nodes,
        num_seeds={name: counts[1] for name, counts in num_nodes.items()},
        edges={
            relation: join_hops([blocks[number] for blocks in hops], num_nodes[relation[2]])
            for number, relation in enumerate(relations)
        },
        num_sampled_nodes={name: tuple(np.diff(counts).tolist()) for name, counts in num_nodes.items()},
        links=links,
        trees=trees,
    )


def _first_hops(edges: JoinedHops, *, num_dst: int, num_src: int, num_edges: int) -> Block:
    return Block(
        indptr=edges.indptr[: num_dst + 1],
        indices=edges.indices[:num_edges],
        edge_ids=edges.edge_ids[:num_edges],
        num_src=num_src,
        num_dst=num_dst,
        edge_weight=None if edges.edge_weight is None else edges.edge_weight[:num_edges],
    )
