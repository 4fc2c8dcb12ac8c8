"""Sweep rules: they determine a hop's drawing nodes and their edges or lists, before an edge is read.

So one pass over the edges, in file order, can serve the hops of many batches: see docs/adr/0027.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gloader.core.ids import id_dtype
from gloader.samplers import distinct_kernels
from gloader.samplers.arguments import checked_seeds, require_distinct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.samplers.exclusion import Excluded
    from gloader.types import AnyBatch, AnySeeds, BatchId, IdArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frontier:
    """The drawing nodes of a batch in one hop. Node ids are int32 if N fits, else int64."""

    batch_id: BatchId
    hop: int  # 0 next to the seeds; L after the last hop, when no node draws
    nodes: NDArray[Any]  # (D,) ascending: the drawing nodes
    # (U,) ascending: all nodes so far; the same array as ``nodes`` in layered batches
    seen: NDArray[Any]
    excluded: Excluded | None = None  # forbidden edges; None without any

    @property
    def seen_arrays(self) -> tuple[NDArray[Any], ...]:
        """All nodes so far, for the only type."""
        return (self.seen,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeteroFrontier:
    """The drawing nodes in one hop by type, each as in `Frontier`; ids are within the type."""

    batch_id: BatchId
    hop: int
    nodes: tuple[NDArray[Any], ...]
    seen: tuple[NDArray[Any], ...]
    excluded: tuple[Excluded | None, ...] = ()  # by relation, as in `Frontier`; () without any

    @property
    def seen_arrays(self) -> tuple[NDArray[Any], ...]:
        """All nodes so far by type."""
        return self.seen

    def of(self, number: int, excluded: Excluded | None = None) -> Frontier:
        """Return the frontier of type ``number``, for a relation with these ``excluded`` edges."""
        return Frontier(
            batch_id=self.batch_id,
            hop=self.hop,
            nodes=self.nodes[number],
            seen=self.seen[number],
            excluded=excluded,
        )


class HopRule(Protocol):
    """The hops of a sampler without the reading of edges. Pure and thread-safe.

    A pass over the edges returns a *drawn* array for each frontier. For uniform picks it holds the (K,) sources at the
    hop's distinct positions, ascending by position; for other picks it holds the rule's own records. A `HeteroRule` has
    frontiers of several types, and a drawn array for each relation.
    """

    @property
    def num_hops(self) -> int:
        """L."""
        ...

    def begin(self, batch_id: BatchId, seeds: AnySeeds) -> Any:
        """Return the frontier of hop 0: the seeds (B,) in ascending order; raises as `Sampler.sample`."""
        ...

    def extend(self, frontier: Any, drawn: Any) -> Any:
        """Return the frontier of the next hop; at hop L its ``seen`` has every node in the batch.

        Raises
        ------
        GraphError
            A source is not a node of the graph.
        """
        ...


class SweptSampler(Protocol):
    """A sampler that can make its batches from the draws of edge passes. Thread-safe."""

    @property
    def rule(self) -> HopRule:
        """The sweep rule for its hops."""
        ...

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Any) -> AnyBatch:
        """Return the batch of `Sampler.sample`, bit for bit, from the drawn arrays of its L hops.

        Parameters
        ----------
        batch_id : the address of the batch
        seeds : as in `Sampler.sample`
        drawn : an array for each of the L hops, the one next to the seeds first
        """
        ...


def swept_nodes(
    rule: HopRule, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[Any]
) -> tuple[NDArray[Any], ...]:
    """Return a batch's nodes by type (U_t,), ascending, from the drawn arrays of its L hops. Pure.

    Parameters
    ----------
    rule : the sampler's rule
    batch_id, seeds, drawn : as in `SweptSampler.replay`
    """
    frontier = rule.begin(batch_id, seeds)
    for values in drawn:
        frontier = rule.extend(frontier, values)
    seen: tuple[NDArray[Any], ...] = frontier.seen_arrays
    return seen


def first_frontier(
    batch_id: BatchId,
    seeds: IdArray,
    num_nodes: int,
    *,
    noun: str = "seeds",
    excluded: Excluded | None = None,
) -> Frontier:
    """Return the frontier of hop 0: the seeds (B,) in ascending order; raises as `Sampler.sample`. Pure.

    Parameters
    ----------
    batch_id : the address of the batch
    seeds : (B,) node ids
    num_nodes : N
    noun : the name of the seeds in messages
    excluded : edges that no hop takes; None without any
    """
    nodes = np.sort(checked_seeds(seeds, num_nodes)).astype(id_dtype(num_nodes))
    if (nodes[1:] == nodes[:-1]).any():
        require_distinct(nodes, noun=noun)
    return Frontier(batch_id=batch_id, hop=0, nodes=nodes, seen=nodes, excluded=excluded)


def next_frontier(frontier: Frontier, sources: NDArray[Any], *, is_merged: bool) -> Frontier:
    """Return the frontier of the next hop; at hop L its ``seen`` has every node in the batch. Pure.

    Parameters
    ----------
    frontier : of a hop
    sources : (K,) the sources of the taken edges, in any order; they draw next
    is_merged : whether nodes that were seen before do not draw again
    """
    seen = frontier.seen
    found = sources.astype(seen.dtype)  # a copy in any case
    found.sort()
    union = np.empty(len(seen) + len(found), dtype=seen.dtype)
    num_new = distinct_kernels.merge_into(seen, found, union)
    # A frontier lives until its batch is done: spare memory is returned.
    union.resize(len(seen) + num_new, refcheck=False)
    nodes = found[:num_new].copy() if is_merged else union
    return Frontier(
        batch_id=frontier.batch_id,
        hop=frontier.hop + 1,
        nodes=nodes,
        seen=union,
        excluded=frontier.excluded,
    )
