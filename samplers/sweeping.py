"""What a sampler says of its batches before an edge is read: which nodes draw in a hop, and which edges they want.

A hop knows the positions of the edges that it takes before it reads one of them, or at least whose lists it looks at.
So the hops of many batches can be served by one pass over the edges, in file order: see docs/adr/0027.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.samplers.exclusion import Excluded
    from gloader.types import AnyBatch, AnySeeds, BatchId, IdArray, IdPortions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frontier:
    """The nodes of a batch that draw in one hop. Node ids are int32 where N fits, else int64."""

    batch_id: BatchId
    hop: int  # 0 next to the seeds; L: all hops are done, nobody draws
    nodes: NDArray[Any]  # (D,) ascending: those that draw
    # (U,) ascending: all nodes of the batch so far; the same array as ``nodes`` in layered batches
    seen: NDArray[Any]
    excluded: Excluded | None = None  # edges that it does not take; None: none

    @property
    def seen_arrays(self) -> tuple[NDArray[Any], ...]:
        """All nodes so far of each type: of the only one."""
        return (self.seen,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeteroFrontier:
    """The nodes of a batch of several types that draw in one hop: of each type as in `Frontier`, ids within it."""

    batch_id: BatchId
    hop: int
    nodes: tuple[NDArray[Any], ...]
    seen: tuple[NDArray[Any], ...]
    excluded: tuple[Excluded | None, ...] = ()  # of each relation as in `Frontier`; (): of none

    @property
    def seen_arrays(self) -> tuple[NDArray[Any], ...]:
        """All nodes so far of each type."""
        return self.seen

    def of(self, number: int, excluded: Excluded | None = None) -> Frontier:
        """Return the frontier of the type with that number, in a relation of which edges are ``excluded``."""
        return Frontier(
            batch_id=self.batch_id,
            hop=self.hop,
            nodes=self.nodes[number],
            seen=self.seen[number],
            excluded=excluded,
        )


class HopRule(Protocol):
    """The hops of a sampler, apart from the reading of edges. Pure and thread-safe.

    What a pass brought for a frontier is its *drawn* array: for uniform picks the (K,) sources at the distinct
    positions that the hop takes, ascending by position; for others the records that the rule itself asked for.
    """

    @property
    def num_hops(self) -> int:
        """L."""
        ...

    def begin(self, batch_id: BatchId, seeds: AnySeeds) -> Frontier:
        """Return the frontier of hop 0: the seeds (B,) in ascending order; raises as `Sampler.sample`."""
        ...

    def extend(self, frontier: Frontier, drawn: NDArray[Any]) -> Frontier:
        """Return the frontier of the next hop; that of hop L has in ``seen`` every node of the batch.

        Raises
        ------
        GraphError
            A source is no node of the graph.
        """
        ...


class AnyHopRule(Protocol):
    """A `HopRule`, or a `HeteroRule`: its frontiers are `HeteroFrontier`, and what is drawn an array per relation."""

    @property
    def num_hops(self) -> int:
        """L."""
        ...

    def begin(self, batch_id: BatchId, seeds: AnySeeds) -> Any:
        """Return the frontier of hop 0."""
        ...

    def extend(self, frontier: Any, drawn: Any) -> Any:
        """Return the frontier of the next hop."""
        ...


class SweptSampler(Protocol):
    """A sampler whose batches can be made of what passes over the edges brought. Thread-safe."""

    @property
    def rule(self) -> AnyHopRule:
        """What its hops want."""
        ...

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Any) -> AnyBatch:
        """Return the batch that `Sampler.sample` returns, bit for bit, from the drawn array of each of its L hops.

        Parameters
        ----------
        batch_id : the address of the batch
        seeds : as of `Sampler.sample`
        drawn : what the passes brought for each of the L hops, next to the seeds first
        """
        ...


class PickRule(HopRule, Protocol):
    """The rule of a sampler that knows the positions it takes from degrees and hashes alone."""

    def counts(self, frontiers: Sequence[Frontier]) -> IdArray:
        """Return (O,) how many distinct positions each of ``frontiers`` takes."""
        ...

    def mark(self, frontier: Frontier, pages: NDArray[Any], *, per_page: int) -> None:
        """Set the bits of the pages that hold the positions of ``frontier``.

        Parameters
        ----------
        frontier : whose positions
        pages : uint64, a bit for each page; written
        per_page : positions in a page
        """
        ...

    def portions(self, frontiers: Sequence[Frontier]) -> IdPortions:
        """Return the positions of ``frontiers``."""
        ...


def swept_nodes(
    rule: AnyHopRule, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[Any]
) -> tuple[NDArray[Any], ...]:
    """Return all nodes of a batch, of each type (U_t,) ascending, from what passes brought for its L hops. Pure.

    Parameters
    ----------
    rule : of the sampler
    batch_id, seeds, drawn : as of `SweptSampler.replay`
    """
    frontier = rule.begin(batch_id, seeds)
    for values in drawn:
        frontier = rule.extend(frontier, values)
    seen: tuple[NDArray[Any], ...] = frontier.seen_arrays
    return seen
