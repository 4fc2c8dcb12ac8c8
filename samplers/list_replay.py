"""Batches of samplers that look at whole lists, made of the records that a sweep brought."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import GraphError
from gloader.samplers import list_kernels
from gloader.samplers.hops import checked_total, taken_block

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.samplers.list_rule import ListRule
    from gloader.samplers.workspace import Workspace
    from gloader.types import BatchId, Block, IdArray, LocalArray


def replay_hop(
    rule: ListRule, work: Workspace, batch_id: BatchId, hop: int, destinations: range, drawn: NDArray[Any]
) -> Block:
    """Return the block of a hop as the sampler in memory makes it, but for `LaborSampler.normalize`.

    Parameters
    ----------
    rule : of the sampler
    work : the batch so far, with the degrees of its nodes; what the hop found is appended to its nodes
    batch_id, hop : the address
    destinations : positions in the nodes of the batch so far, up to their end
    drawn : the records of the hop, flat

    Raises
    ------
    GraphError
        The records are not those of these nodes, or a source is no node.
    ConfigError
        There are 2**31 edges or more.
    """
    here = slice(destinations.start, destinations.stop)
    records = drawn.reshape(-1, rule.record_words)
    places = records[:, 0].copy()
    begins, counts = _find_records(rule, work, batch_id, hop, here, places)
    num_edges = checked_total(int(counts.sum()), hop, batch_id, rule.fanouts)
    indptr = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=indptr[1:])
    taken = np.empty(num_edges, dtype=np.int64)
    edge_ids = np.empty(num_edges, dtype=np.int64)
    list_kernels.place_records(places, begins, work.starts[here], indptr, taken, edge_ids)
    sources = records[:, 1].copy()
    sources.flags.writeable = False  # as those of a graph, so that relabelling is compiled for one kind
    return taken_block(
        rule.graph,
        work,
        destinations,
        indptr,
        edge_ids,
        sources=(sources, taken),
        edge_weight=_edge_weight(rule, rule.fanouts[hop], work.degrees[here], indptr, records[taken, -1]),
    )


def _find_records(
    rule: ListRule, work: Workspace, batch_id: BatchId, hop: int, here: slice, places: NDArray[Any]
) -> tuple[IdArray, IdArray]:
    """Return where the records of each destination begin, and how many edges it takes."""
    num_dst = here.stop - here.start
    begins, counts = np.zeros(num_dst, dtype=np.int64), np.zeros(num_dst, dtype=np.int64)
    if rule.fanouts[hop] == 0:
        return begins, counts
    # Records are of nodes in ascending order, a batch has its nodes in the order in which they were found.
    order = np.argsort(work.nodes[here])
    found = np.empty((2, num_dst), dtype=np.int64)
    if not list_kernels.find_records(places, work.degrees[here][order], found[0], found[1]):
        raise GraphError(
            f"hop {hop} of {batch_id}: {len(places)} records are not those of its {num_dst} nodes: they belong to "
            "another batch, or to a sampler with another seed or other fan-outs"
        )
    begins[order], counts[order] = found
    return begins, counts


def _edge_weight(
    rule: ListRule, fanout: int, degrees: IdArray, indptr: LocalArray, last_words: NDArray[Any]
) -> NDArray[np.float32] | None:
    """Return how many edges of the graph each edge of a hop stands for; ``last_words`` are those of their records."""
    counts = np.diff(indptr)
    takes_all = np.full(len(degrees), True) if fanout < 0 else degrees <= fanout
    if not rule.is_weighted:
        # Of a fan-out of 0 no edge is taken; the chance of any would be 0.
        chances = np.where(takes_all, 1.0, max(fanout, 1) / np.maximum(degrees, 1))
        return np.repeat((1.0 / chances).astype(np.float32), counts)
    if not rule.has_importance:
        return None
    # Nodes that take all edges of positive weight have a chance of 1; how many there are is known only now.
    certain = np.repeat((degrees / np.maximum(counts, 1)).astype(np.float32), counts)
    chosen = last_words.view(np.float32 if last_words.itemsize == 4 else np.float64).astype(np.float32)
    return np.where(np.repeat(takes_all, counts), certain, chosen)
