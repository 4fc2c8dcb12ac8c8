"""The loader of links: mini-batches whose seeds are the ends of edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from gloader.core.fanouts import checked_hops
from gloader.core.negatives import Uniform
from gloader.errors import ConfigError
from gloader.loader.base import BatchLoader, require_dataset
from gloader.loader.signature import with_settings
from gloader.pipeline.link_task import LinkTask
from gloader.pipeline.positions import NoLabels
from gloader.pipeline.seed_order import SeedPlan, order_rows
from gloader.samplers.arguments import resolve_fanouts
from gloader.types import LinkBatch

if TYPE_CHECKING:
    import inspect
    from collections.abc import Mapping
    from typing import Unpack

    from gloader.config import Exclude, LoaderSettings, OptionalKeywords
    from gloader.core.fanouts import FanoutsLike
    from gloader.core.negatives import Negatives
    from gloader.dataset import Dataset
    from gloader.dataset.link_table import LinkTable
    from gloader.device import DeviceTier
    from gloader.distributed.agree import Membership
    from gloader.pipeline.device_room import DryRun
    from gloader.samplers import HeteroGraph, Topology
    from gloader.types import FeatureSource

_DEFAULT_NEGATIVES = Uniform(1)


class LinkLoader(BatchLoader[LinkBatch]):
    """Yields the mini-batches of one epoch over a set of edges, with negatives drawn beside them.

    A batch has ``batch_size`` edges of the link table ``edges``, what ``negatives`` draws beside them, and the sampled
    neighbourhood of the ends of all of these. All that `Loader` says of epochs, threads, ranks, memory and
    reproducibility holds here. Of a dataset of several types a batch is typed.

    Parameters
    ----------
    dataset : what to sample from; its link tables are made by ``gloader prepare --edge-split``, or given to it
    edges : name of the link table whose rows are predicted
    fanouts : as of `Loader`, or of `HeteroLoader`
    batch_size : edges of the table per batch (of this rank)
    negatives : `gloader.Uniform`, `gloader.Binary`, `gloader.InBatch` or `gloader.Table`, or text such as "uniform:5";
        None: no pairs beside those of the table, whose own labels are predicted
    exclude : which edges no hop of the batch may take: the predicted ones ("self"), their reverses too ("reverse"), or
        "none"; a node draws among the others as if they were all
    exclude_duplicates : leave out the edges parallel to an excluded one as well
    typed : yield typed batches; defaults to whether the dataset is of several types
    device_dry_run : does one step of the model on a batch, see `Loader`
    keywords : the other fields of `gloader.config.LoaderSettings`, where each is explained; sizes may be text ("8GB")

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
        """Build a loader of ``settings``; the other parameters, and errors, are those of the constructor."""
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
        """The edges that are predicted."""
        return self._task.table

    @property
    def negatives(self) -> Negatives | None:
        """What is drawn beside them."""
        return self._task.negatives

    @property
    def is_typed(self) -> bool:
        """Whether batches are of several types."""
        return self._is_typed

    @property
    def graph(self) -> Topology | HeteroGraph:
        """The topology, of typed batches that of each relation; usable until `close`."""
        return self._held.tier.topology

    @property
    def features(self) -> Mapping[str, FeatureSource]:
        """All rows of each node type, and of each relation, that has features; usable until `close`."""
        tier = self._held.tier
        return dict(zip(tier.table_names, tier.sources, strict=True))

    @property
    def device_tiers(self) -> Mapping[str, DeviceTier]:
        """What the device holds of these; usable until `close`."""
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
        return SeedPlan(order=order, labels=NoLabels(), is_typed=self._is_typed, links=task)


LinkLoader.__signature__ = with_settings(LinkLoader.__init__)
