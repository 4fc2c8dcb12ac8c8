"""The merged layout, as in PyG: every node of a batch draws once, in the hop after the one that found it."""

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
    """The edges of one relation in all hops of a batch, as one CSC graph; see `MergedBatch`."""

    indptr: LocalArray  # (D + 1,) of the nodes that sampled
    indices: LocalArray  # (num_edges,)
    edge_ids: IdArray  # (num_edges,)
    num_sampled_edges: tuple[int, ...]  # L
    edge_weight: NDArray[np.float32] | None  # (num_edges,)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBatch:
    """The topology of one mini-batch with the edges of all hops over one list of nodes, as PyG lays it out.

    A hop lets only the nodes sample that the hop before found. Nodes stand in the order in which they are found, so
    that the edges are one CSC graph, and the hops up to any depth are a prefix of it.
    """

    id: BatchId
    nodes: IdArray  # (U,) global ids, unique, in first-seen order; nodes[:num_seeds] are the seeds
    num_seeds: int
    indptr: LocalArray  # (D + 1,) of the D nodes that sampled: all but those that the last hop found
    indices: LocalArray  # (num_edges,) sources, local ids; hop after hop
    edge_ids: IdArray  # (num_edges,) positions in the graph's ``indices``
    num_sampled_nodes: tuple[int, ...]  # L + 1: the seeds, then the new nodes of each hop
    num_sampled_edges: tuple[int, ...]  # L
    edge_weight: NDArray[np.float32] | None = (
        None  # (num_edges,) full-graph edges each stands for; None: all alike
    )
    links: Links | None = None  # as of `SampledBatch`
    trees: LocalArray | None = None  # as of `SampledBatch`
    in_degrees: NDArray[np.float32] | None = None  # as of `SampledBatch`

    @property
    def edge_index(self) -> LocalArray:
        """(2, num_edges) local ids of sources and destinations, hop after hop; made anew by each call."""
        return _edge_index(self)

    def to_blocks(self) -> SampledBatch:
        """Return the batch as blocks for layered models, whose arrays are views of this one's.

        A block holds every edge that its destinations drew, each in its one hop: in a later layer they draw nothing new
        and are computed from the same neighbours again. So ``blocks[0]`` holds all edges, and a layered forward equals
        that of a model over ``edge_index``, whole or trimmed as PyG's `trim_to_layer` does.
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
        """The number of edges of each relation in each of the L hops."""
        return {relation: edges.num_sampled_edges for relation, edges in self.edges.items()}

    def edge_index(self, relation: Relation) -> LocalArray:
        """Return (2, num_edges) local ids of sources and destinations, hop after hop; made anew by each call."""
        return _edge_index(self.edges[relation])

    def to_blocks(self) -> HeteroBatch:
        """Return the batch as blocks for layered models, whose arrays are views of this one's.

        As `MergedBatch.to_blocks`: a block holds every edge that its destinations drew, each in its one hop.
        """
        known = {name: tuple(accumulate(counts)) for name, counts in self.num_sampled_nodes.items()}
        num_hops = len(next(iter(known.values()))) - 1
        prefixes = {
            relation: _first_hops(edges, known[relation[2]], known[relation[0]][1:])
            for relation, edges in self.edges.items()
        }
        blocks = [{relation: of[hop] for relation, of in prefixes.items()} for hop in range(num_hops)]
        return HeteroBatch(
            id=self.id,
            nodes=self.nodes,
            num_seeds=self.num_seeds,
            blocks=tuple(reversed(blocks)),
            links=self.links,
            trees=self.trees,
        )


def join_hops(hops: Sequence[Block], num_nodes: Sequence[int]) -> JoinedHops:
    """Join the hops of a batch; the destinations of hop l are the nodes ``num_nodes[l]:num_nodes[l + 1]``. Pure.

    Parameters
    ----------
    hops : the L blocks, next to the seeds first, with fewer than 2**31 edges in all
    num_nodes : (>= L + 1,) 0, then the nodes of the destinations' type that were known before each hop
    """
    # The destinations of the hops follow one another in the list of nodes, so that joining their offsets is a shift.
    indptr = np.zeros(num_nodes[len(hops)] + 1, dtype=np.int32)
    counts = tuple(hop.num_edges for hop in hops)
    if not any(counts):  # nothing to join: a relation without edges is to cost nothing
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
    destinations = np.arange(len(edges.indptr) - 1, dtype=np.int32)
    return np.stack([edges.indices, np.repeat(destinations, np.diff(edges.indptr))])


def _first_hops(
    edges: MergedBatch | JoinedHops, num_dst: Sequence[int], num_src: Sequence[int]
) -> list[Block]:
    """Return a block for each depth, views of ``edges``; ``num_dst``, ``num_src`` (>= L,) are its nodes."""
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
