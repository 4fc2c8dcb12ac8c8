"""The loader of a graph of several node types and relations."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gloader.loader.nodes import NodeLoader
from gloader.pipeline.typed_seeds import labels_of_numbered, number_seeds
from gloader.samplers.arguments import resolve_fanouts
from gloader.types import HeteroReadyBatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.config import LoaderSettings
    from gloader.dataset import Dataset
    from gloader.device import DeviceTier
    from gloader.pipeline.positions import LabelledSeeds
    from gloader.pipeline.typed_seeds import SeedsLike
    from gloader.samplers import HeteroGraph
    from gloader.types import FeatureSource, IdArray


class HeteroLoader(NodeLoader[HeteroReadyBatch]):
    """Yields the mini-batches of one epoch of a graph of several node types each time it is iterated over.

    Batches have every node type and every relation, perhaps empty. All that `Loader` says of epochs, threads, ranks,
    memory and reproducibility holds here. A dataset of one type is one of the type "node".

    Parameters
    ----------
    dataset : what to sample from
    fanouts : neighbours per node, relation and hop, the hop next to the seeds first, -1 takes all: one list for all
        relations; a mapping from relations, as ("author", "writes", "paper") or "author:writes:paper", to lists, in
        which "*" stands for all others; or `gloader.collective` of a list, for so many of all relations together
    batch_size : seeds per batch (of this rank)
    seeds : (n,) ids of the labelled type, a mapping from types to ids, or a pair (type, ids); or masks of all nodes of
        the types in the place of ids. Defaults to the training nodes
    times : (n,) int64 seconds at which each seed asks, see `Loader`
    device_dry_run : does one step of the model on a batch, see `Loader`
    keywords : the other fields of `gloader.config.LoaderSettings`, where each is explained; sizes may be text ("8GB")

    Raises
    ------
    ConfigError, SeedError, BudgetError
        At construction, before anything large is allocated.
    RankError
        Another rank cannot build its loader.
    """

    _is_typed = True

    @property
    def graph(self) -> HeteroGraph:
        """The topology of each relation, in memory or read page by page; usable until `close`."""
        return cast("HeteroGraph", self._held.tier.topology)  # a typed loader's is no other

    @property
    def features(self) -> Mapping[str, FeatureSource]:
        """All rows of each type, and of each relation, that has features; usable beside the stages, until `close`."""
        tier = self._held.tier
        return dict(zip(tier.table_names, tier.sources, strict=True))

    @property
    def device_tiers(self) -> Mapping[str, DeviceTier]:
        """What the device holds of the features of each type that has them; usable until `close`."""
        tier = self._held.tier
        return dict(zip(tier.table_names, tier.device_tiers, strict=True))

    @staticmethod
    def _check(dataset: Dataset, settings: LoaderSettings) -> None:
        resolve_fanouts(settings.sampling.fanouts, dataset.relations)

    @staticmethod
    def _seeds_of(dataset: Dataset, seeds: SeedsLike | None) -> IdArray:
        return number_seeds(dataset, seeds)

    @staticmethod
    def _labels_of(dataset: Dataset, seeds: IdArray) -> LabelledSeeds:
        return labels_of_numbered(dataset, seeds)
