"""What a sampler of typed graphs is made of: one that samples the hops of one relation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gloader.config import Layout
    from gloader.samplers.graph import Topology
    from gloader.samplers.list_rule import ListRule
    from gloader.samplers.pick_rule import UniformPickRule
    from gloader.samplers.workspace import Workspace
    from gloader.types import BatchId, Block

HopDraws: TypeAlias = (
    "Sequence[NDArray[Any]]"  # what passes over the edges brought for a hop, of each relation
)


class RelationSampler(Protocol):
    """Samples the hops of one relation, as the samplers of graphs of one type do."""

    @property
    def graph(self) -> Topology:
        """The relation's edges."""
        ...

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Of the relation, hop next to the seeds first."""
        ...

    @property
    def has_edge_weight(self) -> bool:
        """Whether its blocks have weights."""
        ...

    @property
    def unable_to_exclude(self) -> str | None:
        """What it is called where it takes no excluded edges; None: it does."""
        ...

    def hop_key(self, batch_id: BatchId, hop: int, /) -> np.uint64:
        """Return the key of the draws of a hop, but for the relation."""
        ...

    def sample_hop(
        self,
        work: Workspace,
        batch_id: BatchId,
        hop: int,
        destinations: range,
        key: np.uint64,
        drawn: NDArray[Any] | None = None,
        /,
    ) -> Block:
        """Sample one hop, see `NeighborSampler.sample_hop`."""
        ...

    def rule_of(self, layout: Layout, *, relation: int = 0) -> UniformPickRule | ListRule:
        """Return what its hops want, see `NeighborSampler.rule_of`."""
        ...
