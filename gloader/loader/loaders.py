"""The public loaders: `Loader` and `HeteroLoader` of nodes, `LinkLoader` of links.

The seeds of `LinkLoader` are the ends of edges.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar, cast

from gloader.core.fanouts import checked_hops
from gloader.core.negatives import Uniform
from gloader.core.order import DrawnSeeds
from gloader.errors import ConfigError, SeedError
from gloader.loader.base import BatchLoader, require_dataset, with_settings
from gloader.pipeline.link_task import LinkTask
from gloader.pipeline.seeds import (
    LabelledSeeds,
    NoLabels,
    SeedLabels,
    SeedPlan,
    checked_seeds,
    labels_beside_order,
    labels_of_numbered,
    number_seeds,
    order_rows,
    order_seeds,
    types_of,
)
from gloader.samplers.arguments import resolve_fanouts
from gloader.types import HeteroReadyBatch, LinkBatch, ReadyBatch

if TYPE_CHECKING:
    import inspect
    from typing import Unpack

    from gloader.config import Exclude, LoaderSettings, OptionalKeywords
    from gloader.core.fanouts import FanoutsLike
    from gloader.core.negatives import Negatives
    from gloader.dataset import Dataset
    from gloader.dataset.link_table import LinkTable
    from gloader.device import DeviceTier
    from gloader.distributed.agree import Membership
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.seeds import SeedsLike
    from gloader.samplers import HeteroGraph, Topology
    from gloader.types import BatchId, FeatureSource, IdArray


B = TypeVar("B", ReadyBatch, HeteroReadyBatch)


class NodeLoader(BatchLoader[B]):
    """A loader whose seeds are nodes; see `Loader` and `HeteroLoader`.

    They document the parameters and errors.
    """

    __signature__: ClassVar[inspect.Signature]
    _is_typed: ClassVar[bool]  # whether batches have several types

    def __init__(
        self,
        dataset: Dataset,
        *,
        fanouts: FanoutsLike,
        batch_size: int,
        seeds: SeedsLike | DrawnSeeds | None = None,
        times: IdArray | None = None,
        device_dry_run: DryRun | None = None,
        **keywords: Unpack[OptionalKeywords],
    ) -> None:
        self._given = (seeds, times)
        super().__init__(
            dataset, fanouts=fanouts, batch_size=batch_size, device_dry_run=device_dry_run, **keywords
        )

    @classmethod
    def from_settings(
        cls,
        dataset: Dataset,
        settings: LoaderSettings,
        *,
        seeds: SeedsLike | DrawnSeeds | None = None,
        times: IdArray | None = None,
        device_dry_run: DryRun | None = None,
    ) -> Self:
        """Build a loader with ``settings``.

        Parameters
        ----------
        dataset : the dataset to sample from
        settings : everything else; errors as of the constructor
        seeds, times, device_dry_run : see the constructor
        """
        return cls(dataset, seeds=seeds, times=times, device_dry_run=device_dry_run, **settings.keywords())

    @property
    def seeds(self) -> IdArray:
        """(n,) int64 the seeds of an epoch, in no particular order."""
        return self._labels.order.seeds

    def seed_positions(self, batch: BatchId) -> IdArray:
        """Return (B,) the positions of a batch's seeds in `seeds`, in its order; for drawn seeds, with repeats."""
        return self._labels.order.drawn_positions(batch)

    @staticmethod
    @abstractmethod
    def _check(dataset: Dataset, settings: LoaderSettings) -> None:
        """Refuse a dataset, or settings, that this loader does not support."""

    @staticmethod
    @abstractmethod
    def _seeds_of(dataset: Dataset, seeds: SeedsLike | None) -> IdArray:
        """Return the seeds (n,) of an epoch from the argument ``seeds``, or its default."""

    @staticmethod
    @abstractmethod
    def _labels_of(dataset: Dataset, seeds: IdArray) -> LabelledSeeds:
        """Return the labels of the result of `_seeds_of`."""

    def _plan_seeds(self, dataset: Dataset, settings: LoaderSettings, membership: Membership) -> SeedPlan:
        self._check(dataset, settings)
        seeds, times = self._given
        del self._given  # the order holds them from here on
        _check_times(settings, has_times=times is not None)
        drawn = None
        if isinstance(seeds, DrawnSeeds):
            if times is not None:
                raise ConfigError("times are given: seeds may repeat as they are, and are not drawn")
            drawn, seeds = seeds, seeds.nodes
        order = order_seeds(
            dataset,
            settings.sampling,
            self._seeds_of(dataset, seeds),
            times=times,
            drawn=drawn,
            rank=membership.rank,
            world_size=membership.world_size,
        )
        labels = labels_beside_order(order, lambda: self._labels_of(dataset, order.seeds))
        self._labels = SeedLabels(order, labels)
        return SeedPlan(order=order, labels=self._labels, types=types_of(dataset, are_named=self._is_typed))


NodeLoader.__signature__ = with_settings(NodeLoader.__init__)


def _check_times(settings: LoaderSettings, *, has_times: bool) -> None:
    strategy = settings.sampling.time_strategy
    if has_times and strategy == "none":
        raise ConfigError(
            "times are given, and time_strategy is 'none'; say which edges before them a node may take: 'uniform' or "
            "'last'"
        )
    if strategy != "none" and not has_times:
        raise ConfigError(
            f"time_strategy={strategy!r} needs the time at which each seed asks: pass times=, one for each seed"
        )


class Loader(NodeLoader[ReadyBatch]):
    """Yields the mini-batches of one epoch each time it is iterated over; ``len()`` is the batches per epoch.

    Batches depend only on the dataset, the seeds, ``fanouts``, ``layout``, ``batch_size``, ``seed`` and ``world_size``.
    Threads, caches, the memory budget and the place of the features never change a bit of them.

    Iterating again starts the next epoch, also after a ``break``. The stages continue across epochs, and end
    with a ``break``, an error, `close`, or when the loader is dropped. Owns their threads, the feature store, the
    caches and the buffers until then; also a context manager. Threads may share an iterator: each batch goes to one
    of them, whole. A forked child may read `features` and plain values; all else raises ForkError there.

    Parameters
    ----------
    dataset : the dataset to sample from
    fanouts : neighbours per node and hop, the hop next to the seeds first; -1 takes all
    batch_size : seeds per batch (of this rank)
    seeds : (n,) node ids, or a mask (num_nodes,) of booleans; defaults to the dataset's training nodes
    times : (n,) int64 seconds, the query time of each of ``seeds``, which then may repeat; see ``time_strategy``
    device_dry_run : runs one step of the model on a batch, to measure its device memory, see
        `gloader.device.dry_step`. Without it, ``device_cache="auto"`` takes half of the free memory
    keywords : the other fields of `gloader.config.LoaderSettings`, which explains each; sizes may be text ("8GB")

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
        return cast("Topology", self._held.tier.topology)  # only a typed loader has another

    @property
    def features(self) -> FeatureSource:
        """All N feature rows, in memory if they are held there; usable beside the running stages, until `close`."""
        return self._held.tier.sources[0]

    @property
    def edge_features(self) -> FeatureSource | None:
        """All E rows of edge features, as of `features`; None if batches have none."""
        return next(iter(self._held.tier.sources[1:]), None)

    @property
    def device_tier(self) -> DeviceTier:
        """The device's tier: its features and topology, and rows that it reads in place; usable until `close`."""
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


class HeteroLoader(NodeLoader[HeteroReadyBatch]):
    """Yields the mini-batches of one epoch over a graph of several node types each time it is iterated over.

    Batches have every node type and every relation, perhaps empty. Epochs, threads, ranks, memory and reproducibility
    are as of `Loader`. A dataset of one type has the type "node".

    Parameters
    ----------
    dataset : the dataset to sample from
    fanouts : neighbours per node, relation and hop, the hop next to the seeds first, -1 takes all: one list for all
        relations; a mapping from relations, as ("author", "writes", "paper") or "author:writes:paper", to lists, in
        which "*" stands for all others; or `gloader.collective` of a list, for so many of all relations together
    batch_size : seeds per batch (of this rank)
    seeds : (n,) ids of the labelled type, a mapping from types to ids, or a pair (type, ids). A mask of all nodes of
        a type may replace ids. Defaults to the training nodes
    times : (n,) int64 seconds, the query time of each seed, see `Loader`
    device_dry_run : runs one step of the model on a batch, see `Loader`
    keywords : the other fields of `gloader.config.LoaderSettings`, which explains each; sizes may be text ("8GB")

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
        return cast("HeteroGraph", self._held.tier.topology)  # only an untyped loader has another

    @property
    def features(self) -> Mapping[str, FeatureSource]:
        """All rows of each type, and of each relation, with features; usable beside the stages, until `close`."""
        tier = self._held.tier
        return dict(zip(tier.table_names, tier.sources, strict=True))

    @property
    def device_tiers(self) -> Mapping[str, DeviceTier]:
        """The device's tier of each type with features; usable until `close`."""
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


_DEFAULT_NEGATIVES = Uniform(1)


class LinkLoader(BatchLoader[LinkBatch]):
    """Yields the mini-batches of one epoch over a set of edges, with drawn negatives.

    A batch has ``batch_size`` edges of the link table ``edges``, their negatives from ``negatives``, and the sampled
    neighbourhood of all ends. Epochs, threads, ranks, memory and reproducibility are as of `Loader`. For a dataset of
    several types a batch is typed.

    Parameters
    ----------
    dataset : the dataset to sample from; ``gloader prepare --edge-split`` makes its link tables
    edges : name of the link table with the predicted edges
    fanouts : as of `Loader`, or of `HeteroLoader`
    batch_size : edges of the table per batch (of this rank)
    negatives : `gloader.Uniform`, `gloader.Binary`, `gloader.InBatch` or `gloader.Table`, or text such as "uniform:5".
        None adds no pairs, and the table's own labels are predicted
    exclude : the edges that no hop of the batch may take: the predicted ones ("self"), their reverses too ("reverse"),
        or "none"; a node draws among the others as if they were all
    exclude_duplicates : leave out the edges parallel to an excluded one as well
    typed : yield typed batches; defaults to whether the dataset is of several types
    device_dry_run : runs one step of the model on a batch, see `Loader`
    keywords : the other fields of `gloader.config.LoaderSettings`, which explains each; sizes may be text ("8GB")

    Raises
    ------
    ConfigError, SeedError, BudgetError
        At construction, before anything large is allocated.
    RankError
        Another rank cannot build its loader.
    """

    __signature__: ClassVar[inspect.Signature]

    def __init__(  # noqa: PLR0913 - what a user of links says, each a keyword
        self,
        dataset: Dataset,
        *,
        fanouts: FanoutsLike,
        batch_size: int,
        edges: str = "train",
        negatives: Negatives | str | None = _DEFAULT_NEGATIVES,
        exclude: Exclude = "none",
        exclude_duplicates: bool = False,
        typed: bool | None = None,
        device_dry_run: DryRun | None = None,
        **keywords: Unpack[OptionalKeywords],
    ) -> None:
        self._edges = edges
        self._negatives = negatives
        self._exclude = exclude
        self._exclude_duplicates = exclude_duplicates
        require_dataset(dataset)
        self._is_typed = dataset.kind == "hetero" if typed is None else typed
        super().__init__(
            dataset, fanouts=fanouts, batch_size=batch_size, device_dry_run=device_dry_run, **keywords
        )

    @classmethod
    def from_settings(
        cls,
        dataset: Dataset,
        settings: LoaderSettings,
        *,
        edges: str = "train",
        negatives: Negatives | str | None = _DEFAULT_NEGATIVES,
        exclude: Exclude = "none",
        exclude_duplicates: bool = False,
        typed: bool | None = None,
        device_dry_run: DryRun | None = None,
    ) -> Self:
        """Build a loader with ``settings``; the other parameters, and errors, are those of the constructor."""
        return cls(
            dataset,
            edges=edges,
            negatives=negatives,
            exclude=exclude,
            exclude_duplicates=exclude_duplicates,
            typed=typed,
            device_dry_run=device_dry_run,
            **settings.keywords(),
        )

    @property
    def table(self) -> LinkTable:
        """The predicted edges."""
        return self._task.table

    @property
    def negatives(self) -> Negatives | None:
        """The sampler of negatives, or None."""
        return self._task.negatives

    @property
    def is_typed(self) -> bool:
        """True if batches have several types."""
        return self._is_typed

    @property
    def graph(self) -> Topology | HeteroGraph:
        """The topology, for typed batches of each relation; usable until `close`."""
        return self._held.tier.topology

    @property
    def features(self) -> Mapping[str, FeatureSource]:
        """All rows of each node type, and of each relation, with features; usable until `close`."""
        tier = self._held.tier
        return dict(zip(tier.table_names, tier.sources, strict=True))

    @property
    def device_tiers(self) -> Mapping[str, DeviceTier]:
        """The device's tier of each of these; usable until `close`."""
        tier = self._held.tier
        return dict(zip(tier.table_names, tier.device_tiers, strict=False))

    def _plan_seeds(self, dataset: Dataset, settings: LoaderSettings, membership: Membership) -> SeedPlan:
        if self._is_typed:
            resolve_fanouts(settings.sampling.fanouts, dataset.relations)
        elif dataset.kind == "hetero":
            raise ConfigError(f"{dataset.location} is of several types: typed=False is for a dataset of one")
        else:
            checked_hops(settings.sampling.fanouts)
        task = LinkTask.of(
            dataset,
            self._edges,
            negatives=self._negatives,
            exclude=self._exclude,
            duplicates=self._exclude_duplicates,
        )
        self._task = task
        if settings.sampling.time_strategy != "none" and not task.table.has_times:
            raise ConfigError(
                f"time_strategy={settings.sampling.time_strategy!r} needs the time of each edge, and the table "
                f"{self._edges!r} of {dataset.location} has none; prepare it from a source with a column of times"
            )
        order = order_rows(
            task.table.num_rows, settings.sampling, rank=membership.rank, world_size=membership.world_size
        )
        order.ready_epoch(0)
        types = types_of(dataset, are_named=self._is_typed)
        return SeedPlan(order=order, labels=NoLabels(), types=types, links=task)


LinkLoader.__signature__ = with_settings(LinkLoader.__init__)
