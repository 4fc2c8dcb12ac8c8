"""Rules of sweeps: which nodes of a batch draw in a hop, and which edges they want, before an edge is read.

A hop knows the positions of the edges that it takes before it reads one of them, or at least whose lists it looks at.
So the hops of many batches can be served by one pass over the edges, in file order: see docs/adr/0027.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gloader.core.ids import id_dtype
from gloader.samplers import distinct_kernels
from gloader.samplers.arguments import checked_seeds, require_distinct, split_seeds
from gloader.samplers.exclusion import excluded_of_relations, seeds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.samplers.exclusion import Excluded
    from gloader.samplers.graph import HeteroGraph
    from gloader.types import AnyBatch, AnySeeds, BatchId, IdArray, IdPortions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frontier:
    """The nodes of a batch that draw in one hop. Node ids are int32 where N fits, else int64."""

    batch_id: BatchId
    hop: int  # 0 next to the seeds; L: all hops are done, and no node draws
    nodes: NDArray[Any]  # (D,) ascending: those that draw
    # (U,) ascending: all nodes of the batch so far; the same array as ``nodes`` in layered batches
    seen: NDArray[Any]
    excluded: Excluded | None = None  # edges that it does not take; None: none

    @property
    def seen_arrays(self) -> tuple[NDArray[Any], ...]:
        """All nodes so far, of the only type."""
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

    @property
    def unable_to_exclude(self) -> str | None:
        """The name of a sampler that cannot exclude edges, for messages; None: it can."""
        ...

    def extend(self, frontier: Frontier, drawn: NDArray[Any]) -> Frontier:
        """Return the frontier of the next hop; that of hop L has in ``seen`` every node of the batch.

        Raises
        ------
        GraphError
            A source is no node of the graph.
        """
        ...

    def sources(self, frontier: Frontier, drawn: NDArray[Any]) -> NDArray[Any]:
        """Return the sources (K,) of the edges that ``frontier`` takes; raises as `extend`."""
        ...


class AnyHopRule(Protocol):
    """A `HopRule`, or a `HeteroRule` with frontiers of several types and a drawn array for each relation."""

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
        """The rule of sweeps for its hops."""
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
    """Return the nodes of each type (U_t,) of a batch, ascending, from the drawn arrays of its L hops. Pure.

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
    noun : what the user knows them as
    excluded : edges that no hop takes; None: none
    """
    nodes = np.sort(checked_seeds(seeds, num_nodes)).astype(id_dtype(num_nodes))
    if (nodes[1:] == nodes[:-1]).any():
        require_distinct(nodes, noun=noun)
    return Frontier(batch_id=batch_id, hop=0, nodes=nodes, seen=nodes, excluded=excluded)


def next_frontier(frontier: Frontier, sources: NDArray[Any], *, is_merged: bool) -> Frontier:
    """Return the frontier of the next hop; that of hop L has in ``seen`` every node of the batch. Pure.

    Parameters
    ----------
    frontier : of a hop
    sources : (K,) nodes of the graph, of which those that it takes draw next, in any order
    is_merged : whether those that were seen before do not draw again
    """
    seen = frontier.seen
    found = sources.astype(seen.dtype)  # a copy in any case
    found.sort()
    union = np.empty(len(seen) + len(found), dtype=seen.dtype)
    num_new = distinct_kernels.merge_into(seen, found, union)
    # A frontier is kept until its batch is done: nothing is to be left of what was reserved.
    union.resize(len(seen) + num_new, refcheck=False)
    nodes = found[:num_new].copy() if is_merged else union
    return Frontier(
        batch_id=frontier.batch_id,
        hop=frontier.hop + 1,
        nodes=nodes,
        seen=union,
        excluded=frontier.excluded,
    )


class HeteroRule:
    """The hops of a sampler of several relations, apart from the reading of edges. Pure and thread-safe.

    What a pass brought for a frontier is a tuple with a drawn array for each relation, see `HopRule`; where `parts` has
    none, an empty array.

    Parameters
    ----------
    graph : the topology, of which only the offsets are read
    rules : of each relation
    is_drawn : of each hop, whether a relation can have edges in it at all
    is_merged : whether nodes draw in the hop after the one that found them alone
    """

    def __init__(
        self,
        graph: HeteroGraph,
        rules: Sequence[HopRule],
        *,
        is_drawn: Sequence[Sequence[bool]],
        is_merged: bool,
    ) -> None:
        self.rules = tuple(rules)
        self._graph = graph
        self._type_starts = graph.type_starts
        self._is_drawn = is_drawn
        self._is_merged = is_merged
        number = {name: at for at, name in enumerate(graph.node_types)}
        self._sources = [number[source] for source, _, _ in graph.relations]
        self._destinations = [number[destination] for _, _, destination in graph.relations]

    @property
    def num_hops(self) -> int:
        """L."""
        return len(self._is_drawn)

    def begin(self, batch_id: BatchId, seeds: AnySeeds) -> HeteroFrontier:
        """Return the frontier of hop 0: the seeds (B,), numbered through; raises as `RelationwiseSampler.sample`."""
        given = seeds_of(seeds)
        unable = [rule.unable_to_exclude for rule in self.rules]
        seeds_of_types = split_seeds(given.nodes, self._type_starts)
        excluded = excluded_of_relations(given.excluded, self._graph, unable, seeds_of_types)
        parts = zip(self._graph.num_nodes.items(), seeds_of_types, strict=True)
        return _joined(
            [
                first_frontier(batch_id, part, num_nodes, noun=f"seeds of type {name!r}")
                for (name, num_nodes), part in parts
            ],
            excluded,
        )

    def parts(self, frontier: HeteroFrontier) -> list[Frontier | None]:
        """Return the nodes that draw in each relation; None: no node draws, or there is no edge to take.

        Parameters
        ----------
        frontier : of a hop below L
        """
        excluded = frontier.excluded or (None,) * len(self.rules)
        return [
            frontier.of(number, of_relation) if is_drawn and len(frontier.nodes[number]) else None
            for is_drawn, number, of_relation in zip(
                self._is_drawn[frontier.hop], self._destinations, excluded, strict=True
            )
        ]

    def extend(self, frontier: HeteroFrontier, drawn: Sequence[NDArray[Any]]) -> HeteroFrontier:
        """Return the frontier of the next hop; that of hop L has in ``seen`` every node of the batch.

        Parameters
        ----------
        frontier : of a hop
        drawn : of each relation, what it took

        Raises
        ------
        GraphError
            A source is no node of its type.
        """
        found: list[list[NDArray[Any]]] = [[seen[:0]] for seen in frontier.seen]
        for rule, part, values, source in zip(
            self.rules, self.parts(frontier), drawn, self._sources, strict=True
        ):
            if part is not None:
                found[source].append(rule.sources(part, values))
        return _joined(
            [
                next_frontier(frontier.of(number), np.concatenate(sources), is_merged=self._is_merged)
                for number, sources in enumerate(found)
            ],
            frontier.excluded,
        )


def _joined(types: Sequence[Frontier], excluded: tuple[Excluded | None, ...]) -> HeteroFrontier:
    """Join the frontiers of the types of a batch; ``excluded`` of each relation."""
    return HeteroFrontier(
        batch_id=types[0].batch_id,
        hop=types[0].hop,
        nodes=tuple(frontier.nodes for frontier in types),
        seen=tuple(frontier.seen for frontier in types),
        excluded=excluded,
    )
