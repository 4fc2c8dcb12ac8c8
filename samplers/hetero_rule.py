"""What the hops of a typed batch want: the rule of each relation, over the nodes of each type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.samplers.arguments import split_seeds
from gloader.samplers.exclusion import excluded_of_relations, seeds_of
from gloader.samplers.frontiers import first_frontier, next_frontier
from gloader.samplers.sweeping import HeteroFrontier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.samplers.exclusion import Excluded
    from gloader.samplers.graph import HeteroGraph
    from gloader.samplers.list_rule import ListRule
    from gloader.samplers.pick_rule import UniformPickRule
    from gloader.samplers.sweeping import Frontier
    from gloader.types import AnySeeds, BatchId


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
        rules: Sequence[UniformPickRule | ListRule],
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
        """Return who draws in each relation; None: nobody, or there is nothing to take.

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
    """Return the frontier of a batch, of one of each type, with what is excluded of each relation."""
    return HeteroFrontier(
        batch_id=types[0].batch_id,
        hop=types[0].hop,
        nodes=tuple(frontier.nodes for frontier in types),
        seen=tuple(frontier.seen for frontier in types),
        excluded=excluded,
    )
