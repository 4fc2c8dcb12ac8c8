"""The public loaders: `Loader` and `HeteroLoader` for nodes, `LinkLoader` for links.

Seeds are the nodes around which a batch is sampled: labelled nodes, or for a `LinkLoader` the ends of edges.
`gloader.loader.base` has the code that all loaders share. The classes here document the settings, make the seeds from
the constructor's arguments, and give typed access to the opened graph and features.
A typed loader has several node types, and its batches are mappings by type. A relation is an edge type.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from gloader.core.order import EpochOrder
from gloader.errors import ConfigError
from gloader.loader.base import BatchLoader, require_dataset, with_settings
from gloader.pipeline.row_task import RowTask
from gloader.pipeline.seeds import DEFAULT_NEGATIVES, EdgeSeeds, NodeSeeds
from gloader.types import HeteroReadyBatch, LinkBatch, ReadyBatch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from gloader.config import Exclude, OptionalKeywords
    from gloader.core.fanouts import FanoutsLike
    from gloader.core.negatives import Negatives
    from gloader.core.order import DrawnSeeds
    from gloader.dataset import Dataset
    from gloader.dataset.link_table import LinkTable
    from gloader.dataset.task_table import TaskTable
    from gloader.device import DeviceTier
    from gloader.loader.node_embedding import Embeddings
    from gloader.pipeline.link_task import LinkTask
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.seeds import SeedsLike
    from gloader.samplers import HeteroGraph, Topology
    from gloader.types import BatchId, FeatureSource, IdArray


B = TypeVar("B", ReadyBatch, HeteroReadyBatch)


class _OfNodes(BatchLoader[B]):
    """Base class of `Loader` and `HeteroLoader`, whose seeds are nodes."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        fanouts: FanoutsLike,
        batch_size: int,
        seeds: SeedsLike | DrawnSeeds | None = None,
        times: IdArray | None = None,
        table: str | None = None,
        embeddings: Embeddings | None = None,
        device_dry_run: DryRun | None = None,
        **keywords: Unpack[OptionalKeywords],
    ) -> None:
        given = self._seeds_of(seeds=seeds, times=times, table=table)
        if table is not None:
            require_dataset(dataset)
            rule: Any = dataset.task_table(table).time_settings
            keywords = {**keywords, **{name: rule[name] for name in rule if keywords.get(name) is None}}
        super().__init__(
            dataset,
            given,
            fanouts=fanouts,
            batch_size=batch_size,
            embeddings=embeddings,
            device_dry_run=device_dry_run,
            **keywords,
        )

    @property
    def seeds(self) -> IdArray:
        """(n,) int64 an epoch's seeds, in no particular order."""
        return self._node_order.seeds

    @property
    def may_repeat(self) -> bool:
        """True if a batch may draw a node more than once, as with `DrawnSeeds`; it has such a node once."""
        order, draws = self._node_order, self._node_order.draws
        return order.may_repeat or (
            draws is not None and (draws.replace or draws.num_draws > len(order.seeds))
        )

    def seed_positions(self, batch: BatchId) -> IdArray:
        """Return a batch's seeds as indices (B,) into `seeds`, in batch order. They may repeat with `DrawnSeeds`."""
        return self._node_order.drawn_positions(batch)

    @property
    def table(self) -> TaskTable | None:
        """The task table whose rows are the seeds, or None."""
        return self._plan.task.table if isinstance(self._plan.task, RowTask) else None

    @property
    def _node_order(self) -> EpochOrder:
        """The order of the seeds. Raises ConfigError if the seeds are rows of a table."""
        if not isinstance(self._order, EpochOrder):
            raise ConfigError(
                "the seeds of this loader are the rows of a table; each batch has their numbers, as row_ids"
            )
        return self._order


class Loader(_OfNodes[ReadyBatch]):
    """Yields one epoch's mini-batches per iteration; ``len()`` is the number of batches per epoch.

    Batches depend only on the dataset, the seeds, ``fanouts``, ``layout``, ``batch_size``, ``seed`` and ``world_size``.
    Threads, caches, the memory budget and the place of the features (memory or SSD) never change a bit in a batch.

    Iterating again starts the next epoch, also after a ``break``. Batches are made in stages (sample, read, gather,
    send), whose threads work ahead of the loop and continue across epochs. They end with a ``break``, an error,
    `close`, or when the loader is dropped. The feature store, the caches and the buffers stay open until `close` or
    the drop. A loader is also a context manager. Threads may share an iterator: each batch goes to one thread. A forked
    child may read `features` and plain values; everything else raises ForkError there.

    Parameters
    ----------
    dataset : the dataset to sample from
    fanouts : neighbours per node and hop; the first hop is next to the seeds, and -1 takes all
    batch_size : seeds per batch, on each rank
    seeds : (n,) node ids, or a boolean mask (num_nodes,); defaults to the dataset's training nodes
    times : (n,) int64 seconds, the query time of each seed; seeds with times may repeat; see ``time_strategy``
    table : name of a task table, such as "churn.train" (or "churn"), whose rows are the seeds in place of ``seeds`` and
        ``times``. Each row with a time has its own tree. If the table has times, ``time_strategy`` is "uniform" and
        ``time_bound`` is "<=" by default
    embeddings : a `gloader.NodeEmbedding` of the nodes, or its `gloader.NodeEmbedding.frozen` view. ``batch.x`` then
        has its columns behind the features, and ``batch.embedded`` has them alone
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

    _seeds_of: ClassVar = partial(NodeSeeds, have_types=False)

    @property
    def graph(self) -> Topology:
        """The topology, in memory (a `CscGraph`) or read page by page; usable until `close`."""
        return cast("Topology", self._held.tier.topology)  # only a typed loader has another

    @property
    def features(self) -> FeatureSource:
        """All N feature rows, in memory or on the SSD. They can be read until `close`, also while the stages run."""
        return self._held.tier.sources[0]

    @property
    def edge_features(self) -> FeatureSource | None:
        """All E edge feature rows, see `features`; None if batches have no edge features."""
        return next(iter(self._held.tier.sources[1:]), None)

    @property
    def device_tier(self) -> DeviceTier:
        """The rows and the topology that the device holds, and the host rows that it reads; usable until `close`."""
        return self._held.tier.device_tiers[0]


class HeteroLoader(_OfNodes[HeteroReadyBatch]):
    """Yields one epoch's mini-batches over a graph with several node types each time it is iterated over.

    Batches have every node type and every relation, perhaps empty. Epochs, threads, ranks, memory and reproducibility
    are as in `Loader`. A dataset with one type has the type "node".

    Parameters
    ----------
    dataset : the dataset to sample from
    fanouts : neighbours per node, relation and hop; the first hop is next to the seeds, and -1 takes all. Give one
        list for all relations, or a mapping from relations to lists. A relation is written as ("author", "writes",
        "paper") or "author:writes:paper", and "*" stands for all others. `gloader.collective` of a list counts the
        neighbours over all relations together
    batch_size : seeds per batch, on each rank
    seeds : (n,) ids of the labelled type, a mapping from types to ids, or a pair (type, ids). A mask of all nodes of
        a type may replace ids. Defaults to the training nodes
    times : (n,) int64 seconds, the query time of each seed, see `Loader`
    table : name of a task table, whose rows are the seeds, see `Loader`
    embeddings : a `gloader.NodeEmbedding` or a frozen view, or a mapping from node types to them, see `Loader`
    device_dry_run : runs one step of the model on a batch, see `Loader`
    keywords : the other fields of `gloader.config.LoaderSettings`, which explains each; sizes may be text ("8GB")

    Raises
    ------
    ConfigError, SeedError, BudgetError
        At construction, before anything large is allocated.
    RankError
        Another rank cannot build its loader.
    """

    _seeds_of: ClassVar = partial(NodeSeeds, have_types=True)

    @property
    def graph(self) -> HeteroGraph:
        """Each relation's topology, in memory or read page by page; usable until `close`."""
        return cast("HeteroGraph", self._held.tier.topology)  # only an untyped loader has another

    @property
    def features(self) -> Mapping[str, FeatureSource]:
        """All rows of each type and relation with features. They can be read until `close`, also while stages run."""
        return self._by_table(self._held.tier.sources)

    @property
    def device_tiers(self) -> Mapping[str, DeviceTier]:
        """The device tier for each type with features; usable until `close`."""
        return self._by_table(self._held.tier.device_tiers)


class LinkLoader(BatchLoader[LinkBatch]):
    """Yields one epoch's mini-batches over a set of edges, with drawn negatives.

    A batch has ``batch_size`` edges of the link table ``edges``, their negatives from ``negatives``, and the sampled
    neighbourhood of all ends. Epochs, threads, ranks, memory and reproducibility are as in `Loader`. A dataset of
    several types gives typed batches.

    Parameters
    ----------
    dataset : the dataset to sample from; ``gloader prepare --edge-split`` makes its link tables
    edges : name of the link table with the predicted edges
    fanouts : as in `Loader`, or in `HeteroLoader` for typed batches
    batch_size : edges of the table per batch, on each rank
    negatives : `gloader.Uniform`, `gloader.Binary`, `gloader.InBatch` or `gloader.Table`, or text such as "uniform:5".
        None adds no pairs, and the table's own labels are predicted
    exclude : the edges that no hop may take: the batch's predicted edges ("self"), these and their reverses
        ("reverse"), or "none". A node draws from its remaining edges as if it had only these
    exclude_duplicates : also exclude the edges parallel to an excluded edge
    typed : whether batches are typed, with mappings by node type and relation; defaults to True for a dataset with
        several types, and to False otherwise
    embeddings : a `gloader.NodeEmbedding` or a frozen view, or a mapping from node types to them, see `Loader`
    device_dry_run : runs one step of the model on a batch, see `Loader`
    keywords : the other fields of `gloader.config.LoaderSettings`, which explains each; sizes may be text ("8GB")

    Raises
    ------
    ConfigError, SeedError, BudgetError
        At construction, before anything large is allocated.
    RankError
        Another rank cannot build its loader.
    """

    _seeds_of: ClassVar = EdgeSeeds

    def __init__(  # noqa: PLR0913 - public settings, each a keyword
        self,
        dataset: Dataset,
        *,
        fanouts: FanoutsLike,
        batch_size: int,
        edges: str = "train",
        negatives: Negatives | str | None = DEFAULT_NEGATIVES,
        exclude: Exclude = "none",
        exclude_duplicates: bool = False,
        typed: bool | None = None,
        embeddings: Embeddings | None = None,
        device_dry_run: DryRun | None = None,
        **keywords: Unpack[OptionalKeywords],
    ) -> None:
        given = self._seeds_of(
            edges=edges,
            negatives=negatives,
            exclude=exclude,
            exclude_duplicates=exclude_duplicates,
            typed=typed,
        )
        super().__init__(
            dataset,
            given,
            fanouts=fanouts,
            batch_size=batch_size,
            embeddings=embeddings,
            device_dry_run=device_dry_run,
            **keywords,
        )

    @property
    def table(self) -> LinkTable:
        """The predicted edges."""
        return self._task.table

    @property
    def negatives(self) -> Negatives | None:
        """The setting for drawn negatives, or None."""
        return self._task.negatives

    @property
    def is_typed(self) -> bool:
        """True if batches have several types."""
        return self._plan.types.are_named

    @property
    def graph(self) -> Topology | HeteroGraph:
        """The topology, for typed batches per relation; usable until `close`."""
        return self._held.tier.topology

    @property
    def features(self) -> Mapping[str, FeatureSource]:
        """All rows of each node type and relation with features; usable until `close`."""
        return self._by_table(self._held.tier.sources)

    @property
    def device_tiers(self) -> Mapping[str, DeviceTier]:
        """The device tier for each node type and relation with features; usable until `close`."""
        return self._by_table(self._held.tier.device_tiers)

    @property
    def _task(self) -> LinkTask:
        """The links to predict, with their negatives and excluded edges."""
        return cast("LinkTask", self._plan.task)


# `help` and editors show every setting, although the constructors take ``**keywords``.
for _loader in (Loader, HeteroLoader, LinkLoader):
    _loader.__signature__ = with_settings(_loader.__init__)
