"""Samplers for graphs with several types, and their sweep rule.

A relation is an edge type, with a source type and a destination type. In each hop every relation extends the batch from
the nodes found before the hop. `HopFrame` does the sampling; these classes give its results their public form.

Edges on the SSD may be read in passes over the whole file (sweeps), each for many batches. A sweep rule determines
which edges a hop needs. The pass returns the hop's draws, such as the sources of these edges, and `replay` makes the
batch from the draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import ConfigError
from gloader.samplers.arguments import split_seeds
from gloader.samplers.exclusion import excluded_of_relations, seeds_of
from gloader.samplers.hops import HopFrame
from gloader.samplers.sweeping import HeteroFrontier, first_frontier, next_frontier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.config import Layout
    from gloader.samplers.collective import CollectiveDraws
    from gloader.samplers.exclusion import Excluded
    from gloader.samplers.graph import HeteroGraph
    from gloader.samplers.hops import HopDraws, RelationPick
    from gloader.samplers.labor import LaborSampler
    from gloader.samplers.layerwise import LayerSampler
    from gloader.samplers.list_rule import ListRule
    from gloader.samplers.merged import MergedHeteroBatch
    from gloader.samplers.neighbor import NeighborSampler
    from gloader.samplers.pick_rule import UniformPickRule
    from gloader.samplers.sweeping import Frontier
    from gloader.types import AnySeeds, BatchId, HeteroBatch


class RelationwiseSampler:
    """Samples hop after hop and relation after relation, see `HopFrame`; made by `make_hetero_sampler`.

    Pure and thread-safe; each concurrent call holds 4 bytes per node in every type (a hash table for large types),
    released with the sampler.

    Parameters
    ----------
    graph : the topology
    samplers : a sampler or a `RelationPick` for each relation; they differ only in graph and fan-outs
    num_hops, has_candidates, collective : as in `HopFrame`
    """

    def __init__(
        self,
        graph: HeteroGraph,
        samplers: Sequence[RelationPick | NeighborSampler | LaborSampler | LayerSampler],
        *,
        num_hops: int,
        has_candidates: bool = False,
        collective: CollectiveDraws | None = None,
    ) -> None:
        self.graph = graph
        self.samplers = tuple(samplers)
        self.num_hops = num_hops
        given: Sequence[Any] = samplers
        picks: list[RelationPick] = [getattr(sampler, "relation_pick", sampler) for sampler in given]
        self._frame = HopFrame(
            graph, picks, num_hops=num_hops, has_candidates=has_candidates, collective=collective
        )

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> HeteroBatch:
        """Sample layered blocks: every node found so far samples again in each hop, as in DGL. Thread-safe.

        Parameters
        ----------
        batch_id : the batch's epoch and index, part of the random key
        seeds : (B,) distinct nodes with any types, in one numbering, see `HopFrame.sample`

        Raises
        ------
        SeedError, ConfigError, GraphError
            See `HopFrame.sample`.
        """
        return self._frame.sample(batch_id, seeds).by_type()

    def sample_merged(self, batch_id: BatchId, seeds: AnySeeds, /) -> MergedHeteroBatch:
        """Sample merged hops: only the nodes found in one hop sample in the next, as in PyG. Thread-safe.

        Parameters and errors as in `sample`.
        """
        return self._frame.sample(batch_id, seeds, is_merged=True).by_type_merged()

    @property
    def rule(self) -> HeteroRule:
        """The sweep rule for layered hops.

        Raises
        ------
        ConfigError
            Draws are weighted with replacement, use LABOR with iterations, or are collective.
        """
        return self.rule_of("layered")

    def rule_of(self, layout: Layout) -> HeteroRule:
        """Return the sweep rule for a ``layout``; raises as `rule`."""
        frame = self._frame
        if frame.collective is not None:
            raise ConfigError(
                "fan-outs over all relations together draw among the edges of several relations, and a sweep reads one "
                "relation after another; use topology='ram' or 'direct', or a fan-out for each relation"
            )
        return HeteroRule(
            self.graph,
            [pick.rule_of(layout, relation=number) for number, pick in enumerate(frame.picks)],
            is_drawn=frame.is_drawn,
            is_merged=layout == "merged",
        )

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[HopDraws]) -> HeteroBatch:
        """Return the batch of `sample`, bit for bit, from the draws of edge passes. Thread-safe.

        Parameters
        ----------
        batch_id : the batch's epoch and index
        seeds : (B,) as in `sample`
        drawn : L hops, the hop next to the seeds first, with an array for each relation, see `HeteroRule`

        Raises
        ------
        ShapeError
            ``drawn`` has another number of hops or relations, or a relation has another number of distinct edges.
        SeedError, ConfigError, GraphError
            See `sample`.
        """
        return self._frame.sample(batch_id, seeds, drawn=drawn).by_type()

    def replay_merged(
        self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[HopDraws]
    ) -> MergedHeteroBatch:
        """Return the batch of `sample_merged`; parameters and errors as in `replay`."""
        return self._frame.sample(batch_id, seeds, is_merged=True, drawn=drawn).by_type_merged()


class MergedHeteroBlockSampler:
    """Samples as `RelationwiseSampler.sample_merged` does, and returns blocks, see `MergedHeteroBatch.to_blocks`.

    Pure and thread-safe, as the sampler is.
    """

    def __init__(self, sampler: RelationwiseSampler) -> None:
        self.sampler = sampler

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> HeteroBatch:
        """Sample around ``seeds`` (B,); parameters and errors as in `RelationwiseSampler.sample`."""
        return self.sampler.sample_merged(batch_id, seeds).to_blocks()

    def sample_merged(self, batch_id: BatchId, seeds: AnySeeds, /) -> MergedHeteroBatch:
        """Sample as `RelationwiseSampler.sample_merged`."""
        return self.sampler.sample_merged(batch_id, seeds)

    @property
    def rule(self) -> HeteroRule:
        """The sweep rule for merged hops; raises as `RelationwiseSampler.rule`."""
        return self.sampler.rule_of("merged")

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[HopDraws]) -> HeteroBatch:
        """Return the batch of `sample`; parameters and errors as in `RelationwiseSampler.replay`."""
        return self.sampler.replay_merged(batch_id, seeds, drawn).to_blocks()


class HeteroRule:
    """The sweep rule for a sampler with several relations. Pure and thread-safe.

    A frontier is the nodes that draw edges in one hop of one batch. Its draws are a tuple with an array for each
    relation, see `HopRule`. The array is empty for a relation whose entry in `parts` is None.

    Parameters
    ----------
    graph : the topology; the rule reads only its offsets
    rules : a rule for each relation
    is_drawn : by hop and relation, True if the hop can have edges in the relation
    is_merged : True if nodes draw only in the hop after their discovery
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
        number = {name: index for index, name in enumerate(graph.node_types)}
        self._sources = [number[source] for source, _, _ in graph.relations]
        self._destinations = [number[destination] for _, _, destination in graph.relations]

    @property
    def num_hops(self) -> int:
        """Number of hops."""
        return len(self._is_drawn)

    def begin(self, batch_id: BatchId, seeds: AnySeeds) -> HeteroFrontier:
        """Return hop 0's frontier from the seeds (B,), in one numbering; raises as `RelationwiseSampler.sample`."""
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
        """Return for each relation the frontier of its destination type; None if it draws no edges in this hop.

        Parameters
        ----------
        frontier : a frontier before hop L
        """
        excluded = frontier.excluded or (None,) * len(self.rules)
        return [
            frontier.of(number, of_relation) if is_drawn and len(frontier.nodes[number]) else None
            for is_drawn, number, of_relation in zip(
                self._is_drawn[frontier.hop], self._destinations, excluded, strict=True
            )
        ]

    def extend(self, frontier: HeteroFrontier, drawn: Sequence[NDArray[Any]]) -> HeteroFrontier:
        """Return the next hop's frontier; at hop L its ``seen`` has every node in the batch.

        Parameters
        ----------
        frontier : the current hop's frontier
        drawn : the frontier's draws by relation

        Raises
        ------
        GraphError
            A source is not a node of its type.
        """
        sources_by_type: list[list[NDArray[Any]]] = [[seen[:0]] for seen in frontier.seen]
        for rule, part, values, source in zip(
            self.rules, self.parts(frontier), drawn, self._sources, strict=True
        ):
            if part is not None:
                sources_by_type[source].append(rule.sources(part, values))
        return _joined(
            [
                next_frontier(frontier.of(number), np.concatenate(sources), is_merged=self._is_merged)
                for number, sources in enumerate(sources_by_type)
            ],
            frontier.excluded,
        )


def _joined(types: Sequence[Frontier], excluded: tuple[Excluded | None, ...]) -> HeteroFrontier:
    """Join a batch's frontiers from all ``types``; ``excluded`` is by relation."""
    return HeteroFrontier(
        batch_id=types[0].batch_id,
        hop=types[0].hop,
        nodes=tuple(frontier.nodes for frontier in types),
        seen=tuple(frontier.seen for frontier in types),
        excluded=excluded,
    )
