"""The loader of a graph of one node type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from gloader.core.fanouts import checked_hops
from gloader.errors import ConfigError, SeedError
from gloader.loader.nodes import NodeLoader
from gloader.pipeline.positions import LabelledSeeds
from gloader.pipeline.seed_order import checked_seeds
from gloader.types import ReadyBatch

if TYPE_CHECKING:
    from gloader.config import LoaderSettings
    from gloader.dataset import Dataset
    from gloader.device import DeviceTier
    from gloader.pipeline.typed_seeds import SeedsLike
    from gloader.samplers import Topology
    from gloader.types import FeatureSource, IdArray


class Loader(NodeLoader[ReadyBatch]):
    """Yields the mini-batches of one epoch each time it is iterated over; ``len()`` is the batches per epoch.

    Batches depend on the dataset, the seeds, ``fanouts``, ``layout``, ``batch_size``, ``seed`` and ``world_size``
    alone: threads, caches, the memory budget and where the features live never change a bit of them.

    Iterating again starts the next epoch, also after a ``break``. The stages run on over the end of an epoch, and end
    with a ``break``, an error, `close`, or when the loader is dropped. Owns their threads, the feature store, the
    caches and the buffers until then; also a context manager. Threads may share an iterator: each batch goes to one
    of them, whole. A forked child may read `features`, and what is only a value; all else raises ForkError there.

    Parameters
    ----------
    dataset : what to sample from
    fanouts : neighbours per node and hop, the hop next to the seeds first; -1 takes all
    batch_size : seeds per batch (of this rank)
    seeds : (n,) node ids, or a mask (num_nodes,) of booleans; defaults to the dataset's training nodes
    times : (n,) int64 seconds at which each of ``seeds`` asks, which then may repeat; see ``time_strategy``
    device_dry_run : does one step of the model on a batch, to see how much it takes of the device, see
        `gloader.device.dry_step`; None: ``device_cache="auto"`` takes half of what is free
    keywords : the other fields of `gloader.config.LoaderSettings`, where each is explained; sizes may be text ("8GB")

    Raises
    ------
    ConfigError, SeedError, BudgetError
        At construction, before anything large is allocated.
    RankError
        Another rank cannot build its loader.
    """

    _is_typed = False

    @property
    def graph(self) -> Topology:
        """The topology, in memory (a `CscGraph`) or read page by page; usable until `close`."""
        return cast("Topology", self._held.tier.topology)  # a typed loader's alone is another

    @property
    def features(self) -> FeatureSource:
        """All N feature rows, in memory where they are; usable beside the running stages, until `close`."""
        return self._held.tier.sources[0]

    @property
    def edge_features(self) -> FeatureSource | None:
        """All E rows of features of edges, as of `features`; None where batches have none."""
        return next(iter(self._held.tier.sources[1:]), None)

    @property
    def device_tier(self) -> DeviceTier:
        """What the device holds of features and topology, and reads in place; usable until `close`."""
        return self._held.tier.device_tiers[0]

    @staticmethod
    def _check(dataset: Dataset, settings: LoaderSettings) -> None:
        if dataset.kind == "hetero":
            raise ConfigError(
                f"{dataset.location} has {len(dataset.node_types)} node types ({', '.join(dataset.node_types)}); "
                "load it with gloader.HeteroLoader"
            )
        checked_hops(settings.sampling.fanouts)

    @staticmethod
    def _seeds_of(dataset: Dataset, seeds: SeedsLike | None) -> IdArray:
        if isinstance(seeds, Mapping) or (isinstance(seeds, tuple) and seeds and isinstance(seeds[0], str)):
            raise SeedError("seeds by node type are for gloader.HeteroLoader; pass the ids of the nodes")
        return dataset.train if seeds is None else checked_seeds(seeds, dataset.num_nodes)

    @staticmethod
    def _labels_of(dataset: Dataset, seeds: IdArray) -> LabelledSeeds:
        return LabelledSeeds(labels=dataset.labels_of(seeds))
