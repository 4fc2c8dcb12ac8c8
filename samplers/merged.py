"""Merged hops: every node of a batch draws once, in the hop after the one that found it, as in PyG."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from gloader.types import BatchId, Block, IdArray, Links, LocalArray, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBatch:
    """The topology of one mini-batch with the edges of all hops over one list of nodes, as PyG lays it out.

    Only nodes that a hop found first sample in the next hop. As nodes stand in the order in which they are found, the
    edges are one CSC graph, of which the hops up to any depth are a prefix.
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
        destinations = np.arange(len(self.indptr) - 1, dtype=np.int32)
        return np.stack([self.indices, np.repeat(destinations, np.diff(self.indptr))])

    def to_blocks(self) -> SampledBatch:
        """Return the batch as blocks for layered models, whose arrays are views of this one's.

        A block holds every edge that its destinations drew, each in its one hop: in a later layer they draw nothing new
        and are computed from the same neighbours again. So ``blocks[0]`` holds all edges, and a layered forward equals
        that of a model over ``edge_index``, whole or trimmed as PyG's `trim_to_layer` does.
        """
        # One more of the nodes than of the edges: those that the last hop found do not sample.
        num_nodes = tuple(accumulate(self.num_sampled_nodes))
        num_edges = tuple(accumulate(self.num_sampled_edges))
        blocks = [
            self._first_hops(num_dst=num_dst, num_src=num_src, num_edges=edges)
            for num_dst, num_src, edges in zip(num_nodes, num_nodes[1:], num_edges, strict=False)
        ]
        return SampledBatch(
            id=self.id,
            nodes=self.nodes,
            num_seeds=self.num_seeds,
            blocks=tuple(reversed(blocks)),
            links=self.links,
            trees=self.trees,
            in_degrees=self.in_degrees,
        )

    def _first_hops(self, *, num_dst: int, num_src: int, num_edges: int) -> Block:
        return Block(
            indptr=self.indptr[: num_dst + 1],
            indices=self.indices[:num_edges],
            edge_ids=self.edge_ids[:num_edges],
            num_src=num_src,
            num_dst=num_dst,
            edge_weight=None if self.edge_weight is None else self.edge_weight[:num_edges],
        )


def merge_hops(
    batch_id: BatchId,
    nodes: IdArray,
    hops: Sequence[Block],
    num_nodes: Sequence[int],
    *,
    links: Links | None = None,
    trees: LocalArray | None = None,
    in_degrees: NDArray[np.float32] | None = None,
) -> MergedBatch:
    """Join the hops of a batch; the destinations of hop l are the nodes ``num_nodes[l]:num_nodes[l + 1]``. Pure.

    Parameters
    ----------
    batch_id : the address of the batch
    nodes : (U,) int64, global ids in first-seen order
    hops : the L blocks, next to the seeds first, with fewer than 2**31 edges in all
    num_nodes : (L + 2,) 0, then the nodes known before each hop, then U
    links : what is predicted of the seeds
    trees : (U,) the seed of each node, where seeds share none
    in_degrees : (U,) of each node the in-edges that hops may take, where these are not all
    """
    joined = join_hops(hops, num_nodes)
    return MergedBatch(
        id=batch_id,
        nodes=nodes,
        num_seeds=num_nodes[1],
        indptr=joined.indptr,
        indices=joined.indices,
        edge_ids=joined.edge_ids,
        num_sampled_nodes=tuple(np.diff(num_nodes).tolist()),
        num_sampled_edges=joined.num_sampled_edges,
        edge_weight=joined.edge_weight,
        links=links,
        trees=trees,
        in_degrees=in_degrees,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedHops:
    """The edges of all hops of a batch as one CSC graph, of one relation; see `MergedBatch`."""

    indptr: LocalArray  # (D + 1,) of the nodes that sampled
    indices: LocalArray  # (num_edges,)
    edge_ids: IdArray  # (num_edges,)
    num_sampled_edges: tuple[int, ...]  # L
    edge_weight: NDArray[np.float32] | None  # (num_edges,)


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
