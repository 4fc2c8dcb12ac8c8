"""Samplers of graphs of several types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gloader.errors import ConfigError
from gloader.samplers.hops import HopFrame
from gloader.samplers.sweeping import HeteroRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.config import Layout
    from gloader.samplers.collective import CollectiveDraws
    from gloader.samplers.graph import HeteroGraph
    from gloader.samplers.hops import HopDraws, RelationPick
    from gloader.samplers.labor import LaborSampler
    from gloader.samplers.layerwise import LayerSampler
    from gloader.samplers.merged import MergedHeteroBatch
    from gloader.samplers.neighbor import NeighborSampler
    from gloader.types import AnySeeds, BatchId, HeteroBatch


class RelationwiseSampler:
    """Samples hop after hop and relation after relation, see `HopFrame`; made by `make_hetero_sampler`.

    Pure and thread-safe; each concurrent call holds 4 bytes per node of every type (a hash table for large types),
    released with the sampler.

    Parameters
    ----------
    graph : the topology
    samplers : one for each relation, of as many hops, or its `RelationPick`; alike in everything but graph and fan-outs
    num_hops, has_candidates, collective : as of `HopFrame`
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
        batch_id : the address of the batch, part of the random key
        seeds : (B,) distinct nodes of any types, numbered through, see `HopFrame.sample`

        Raises
        ------
        SeedError, ConfigError, GraphError
            As of `HopFrame.sample`.
        """
        return self._frame.sample(batch_id, seeds).by_type()

    def sample_merged(self, batch_id: BatchId, seeds: AnySeeds, /) -> MergedHeteroBatch:
        """Sample merged hops: only the nodes found in one hop sample in the next, as in PyG. Thread-safe.

        Parameters and errors are those of `sample`.
        """
        return self._frame.sample(batch_id, seeds, is_merged=True).by_type_merged()

    @property
    def rule(self) -> HeteroRule:
        """The rule of sweeps for layered hops.

        Raises
        ------
        ConfigError
            It draws by weights with replacement, by LABOR with iterations, or from all relations together.
        """
        return self.rule_of("layered")

    def rule_of(self, layout: Layout) -> HeteroRule:
        """Return the rule of sweeps for hops of ``layout``; raises as `rule`."""
        frame = self._frame
        if frame.collective is not None:
            raise ConfigError(
                "fan-outs of all relations together are drawn before it is known in which relation an edge lies, and "
                "edges that are swept go by relation after relation; use topology='ram' or 'direct', or fan-outs of "
                "each relation"
            )
        return HeteroRule(
            self.graph,
            [pick.rule_of(layout, relation=number) for number, pick in enumerate(frame.picks)],
            is_drawn=frame.is_drawn,
            is_merged=layout == "merged",
        )

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[HopDraws]) -> HeteroBatch:
        """Return the batch that `sample` returns, bit for bit, from what passes over the edges brought. Thread-safe.

        Parameters
        ----------
        batch_id : the address of the batch
        seeds : (B,) as of `sample`
        drawn : for each of the L hops, next to the seeds first, an array for each relation, see `HeteroRule`

        Raises
        ------
        ShapeError
            A hop of a relation takes another number of distinct edges, or there are other numbers of hops or relations.
        SeedError, ConfigError, GraphError
            As of `sample`.
        """
        return self._frame.sample(batch_id, seeds, drawn=drawn).by_type()

    def replay_merged(
        self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[HopDraws]
    ) -> MergedHeteroBatch:
        """Return the batch that `sample_merged` returns; parameters and errors are those of `replay`."""
        return self._frame.sample(batch_id, seeds, is_merged=True, drawn=drawn).by_type_merged()


class MergedHeteroBlockSampler:
    """Samples as `RelationwiseSampler.sample_merged` and delivers blocks, see `MergedHeteroBatch.to_blocks`.

    Pure and thread-safe, as the sampler is.
    """

    def __init__(self, sampler: RelationwiseSampler) -> None:
        self.sampler = sampler

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> HeteroBatch:
        """Sample the neighbourhood of ``seeds`` (B,); parameters and errors as of `RelationwiseSampler.sample`."""
        return self.sampler.sample_merged(batch_id, seeds).to_blocks()

    def sample_merged(self, batch_id: BatchId, seeds: AnySeeds, /) -> MergedHeteroBatch:
        """Sample as `RelationwiseSampler.sample_merged`."""
        return self.sampler.sample_merged(batch_id, seeds)

    @property
    def rule(self) -> HeteroRule:
        """The rule of sweeps for merged hops; raises as `RelationwiseSampler.rule`."""
        return self.sampler.rule_of("merged")

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[HopDraws]) -> HeteroBatch:
        """Return the batch that `sample` returns; parameters and errors are those of `RelationwiseSampler.replay`."""
        return self.sampler.replay_merged(batch_id, seeds, drawn).to_blocks()
