"""Sweep rules: a rule determines which nodes draw in each hop, and which edges an edge pass must read for them.

An edge pass (a sweep) reads all edges once, in file order, and serves the hops of many batches: see docs/adr/0027. A
frontier is the nodes that draw edges in one hop of one batch. For each frontier the pass returns a drawn array with the
data that the hop needs from the edges, such as their sources. The rule makes the next frontier from this array, and so
on to the last hop. In the end the sampler's `replay` makes the batch from all drawn arrays.

This module has the protocols of rules and samplers, the frontiers, and the functions that all rules share.
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
    """A batch's drawing nodes in one hop. Node ids are int32 if N fits, else int64."""

    batch_id: BatchId
    hop: int  # 0 next to the seeds; L after the last hop, when no node draws
    nodes: NDArray[Any]  # (D,) ascending: the drawing nodes
    # (U,) ascending: all nodes so far. In layered batches all of them draw: ``nodes`` is the same array.
    seen: NDArray[Any]
    excluded: Excluded | None = None  # edges that no hop takes; None if all edges are allowed

    @property
    def seen_arrays(self) -> tuple[NDArray[Any], ...]:
        """All nodes so far, for the only type."""
        return (self.seen,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeteroFrontier:
    """The drawing nodes in one hop by type, each as in `Frontier`; ids are within the type."""

    batch_id: BatchId
    hop: int  # as in `Frontier`
    nodes: tuple[NDArray[Any], ...]  # by type
    seen: tuple[NDArray[Any], ...]  # by type
    excluded: tuple[Excluded | None, ...] = ()  # by relation, see `Frontier`; () if all edges are allowed

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
    """A sampler's hops without the reading of edges. Pure and thread-safe.

    A pass over the edges returns a *drawn* array for each frontier. For uniform picks the array holds the sources of
    the hop's distinct edges, ascending by the edge's position. For other picks the array holds the rule's own records.
    A `HeteroRule` has frontiers with several types, and a drawn array for each relation.
    """

    @property
    def num_hops(self) -> int:
        """Number of hops."""
        ...

    def begin(self, batch_id: BatchId, seeds: AnySeeds) -> Any:
        """Return hop 0's frontier: the seeds (B,) in ascending order; raises as `Sampler.sample`."""
        ...

    def extend(self, frontier: Any, drawn: Any) -> Any:
        """Return the next hop's frontier; at hop L its ``seen`` has every node in the batch.

        Raises
        ------
        GraphError
            A source is not a graph node.
        """
        ...


class SweptSampler(Protocol):
    """A sampler that can make its batches from the draws of edge passes. Thread-safe."""

    @property
    def rule(self) -> HopRule:
        """The sweep rule for the sampler's hops."""
        ...

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Any) -> AnyBatch:
        """Return the batch of `Sampler.sample`, bit for bit, from the drawn arrays of its L hops.

        Parameters
        ----------
        batch_id : the batch's epoch and index
        seeds : as in `Sampler.sample`
        drawn : an array for each of the L hops, the hop next to the seeds first
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
    """Return hop 0's frontier: the seeds (B,) in ascending order; raises as `Sampler.sample`. Pure.

    Parameters
    ----------
    batch_id : the batch's epoch and index
    seeds : (B,) node ids
    num_nodes : N
    noun : the seeds' name in messages
    excluded : edges that no hop takes; None without such edges
    """
    nodes = np.sort(checked_seeds(seeds, num_nodes)).astype(id_dtype(num_nodes))
    if (nodes[1:] == nodes[:-1]).any():
        require_distinct(nodes, noun=noun)
    return Frontier(batch_id=batch_id, hop=0, nodes=nodes, seen=nodes, excluded=excluded)


def next_frontier(frontier: Frontier, sources: NDArray[Any], *, is_merged: bool) -> Frontier:
    """Return the next hop's frontier; at hop L its ``seen`` has every node in the batch. Pure.

    Parameters
    ----------
    frontier : the current hop's frontier
    sources : (n,) the taken edges' sources, in any order; they draw next
    is_merged : True if nodes seen before do not draw again; False (layered) if they do
    """
    seen = frontier.seen
    drawn = sources.astype(seen.dtype)  # always a copy
    drawn.sort()
    union = np.empty(len(seen) + len(drawn), dtype=seen.dtype)
    # The call also moves the new nodes to the front of ``drawn``.
    num_new = distinct_kernels.merge_into(seen, drawn, union)
    # A frontier lives until its batch is done, so spare memory is returned.
    union.resize(len(seen) + num_new, refcheck=False)
    nodes = drawn[:num_new].copy() if is_merged else union
    return Frontier(
        batch_id=frontier.batch_id,
        hop=frontier.hop + 1,
        nodes=nodes,
        seen=union,
        excluded=frontier.excluded,
    )
