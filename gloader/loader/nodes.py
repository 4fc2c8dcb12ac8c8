"""What the loaders of nodes are: `Loader` and `HeteroLoader`."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from gloader.core.draws import DrawnSeeds
from gloader.errors import ConfigError
from gloader.loader.base import BatchLoader
from gloader.loader.signature import with_settings
from gloader.pipeline.positions import SeedLabels
from gloader.pipeline.seed_order import SeedPlan, labels_beside_order, order_seeds
from gloader.types import HeteroReadyBatch, ReadyBatch

if TYPE_CHECKING:
    import inspect
    from typing import Unpack

    from gloader.config import LoaderSettings, OptionalKeywords
    from gloader.core.fanouts import FanoutsLike
    from gloader.dataset import Dataset
    from gloader.distributed.agree import Membership
    from gloader.pipeline.device_room import DryRun
    from gloader.pipeline.positions import LabelledSeeds
    from gloader.pipeline.typed_seeds import SeedsLike
    from gloader.types import BatchId, IdArray

B = TypeVar("B", ReadyBatch, HeteroReadyBatch)


class NodeLoader(BatchLoader[B]):
    """A loader whose seeds are nodes; `Loader` and `HeteroLoader` say what it is given.

    Parameters and errors are said there.
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
        """Build a loader of ``settings``.

        Parameters
        ----------
        dataset : what to sample from
        settings : everything else; errors as of the constructor
        seeds, times, device_dry_run : see the constructor
        """
        return cls(dataset, seeds=seeds, times=times, device_dry_run=device_dry_run, **settings.keywords())

    @property
    def seeds(self) -> IdArray:
        """(n,) int64 the seeds of an epoch, in no particular order."""
        return self._labels.order.seeds

    def seed_positions(self, batch: BatchId) -> IdArray:
        """Return (B,) where in `seeds` those of a batch stand, in its order; where they are drawn, with repeats."""
        return self._labels.order.drawn_positions(batch)

    @staticmethod
    @abstractmethod
    def _check(dataset: Dataset, settings: LoaderSettings) -> None:
        """Refuse a dataset, or settings, that this loader is not for."""

    @staticmethod
    @abstractmethod
    def _seeds_of(dataset: Dataset, seeds: SeedsLike | None) -> IdArray:
        """Return the seeds (n,) of an epoch, which the caller gave as ``seeds``, or left out."""

    @staticmethod
    @abstractmethod
    def _labels_of(dataset: Dataset, seeds: IdArray) -> LabelledSeeds:
        """Return the labels of what `_seeds_of` returned."""

    def _plan_seeds(self, dataset: Dataset, settings: LoaderSettings, membership: Membership) -> SeedPlan:
        self._check(dataset, settings)
        seeds, times = self._given
        del self._given  # the order has them from here on
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
        return SeedPlan(order=order, labels=self._labels, is_typed=self._is_typed)


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
