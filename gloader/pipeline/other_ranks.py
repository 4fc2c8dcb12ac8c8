"""Protocols towards other ranks: the devices of one machine, and the disks of other machines.

`OtherDevices` stands for the devices of the ranks that a rank loads for. `OtherMachines` stands for the machines that
send missing rows; `gloader.distributed.exchange` implements it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from gloader.cache import DeviceCachePlan
    from gloader.device import Device, DeviceTier
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.ssd_store import FeatureStore, RamFeatures
    from gloader.ssd_store.cost.io_rates import Calibration, IoRates
    from gloader.ssd_store.cost.strategy import Choice, MissCounts
    from gloader.ssd_store.sweep.supply import ArrivingRows
    from gloader.types import AnyBatch, BatchId, FeatureSource, IdArray


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFeatures:
    """All features, in memory, and the device tier, which may read them there."""

    source: RamFeatures
    tier: DeviceTier

    @property
    def is_reached(self) -> bool:
        """Whether the device reads them in place."""
        return self.tier.features is not None

    def out_of_reach(self) -> LoadedFeatures:
        """Return the same where the device does not read them in place, after it let go of them."""
        return LoadedFeatures(source=self.source, tier=self.tier.out_of_reach())


class OtherDevices(Protocol):
    """The devices of the ranks that this one loads for: all of them hold the same rows; see `gloader.distributed`."""

    @property
    def are_asynchronous(self) -> bool:
        """Whether all of them are, and so can be sent rows as they are stored; known after `agree_on_cache_bytes`."""
        ...

    def agree_on_cache_bytes(self, largest: AnyBatch | None, own: Callable[[], int]) -> int:
        """Return the bytes that every device has for cached rows; ``own`` finds those of this rank."""
        ...

    def hold_same_rows(
        self, plan: DeviceCachePlan, own: Callable[[], T], *, as_stored: bool, table: int = 0
    ) -> T:
        """Make every device hold the rows of ``plan``; ``own`` does so on this rank, and its result is returned.

        Parameters
        ----------
        plan : which rows
        own : holds them on this rank
        as_stored : the host brings the other rows as they are stored, and the devices widen them
        table : of those of the dataset
        """
        ...

    def reach_same_features(
        self,
        device: Device,
        num_bytes: int,
        own: Callable[[NDArray[np.uint8] | None], LoadedFeatures],
        *,
        table: int = 0,
    ) -> LoadedFeatures:
        """Have ``own`` load the features, to memory that it is given or to its own; every device reaches them or none.

        Parameters
        ----------
        device : of this rank
        num_bytes : of the features
        own : loads them and makes ``device`` reach them, if it can
        table : of those of the dataset
        """
        ...


class NoOtherDevices:
    """A rank that loads for itself alone."""

    are_asynchronous = True  # all none of them

    def agree_on_cache_bytes(self, largest: AnyBatch | None, own: Callable[[], int]) -> int:  # noqa: ARG002 - the seam's
        """Return what ``own`` finds."""
        return own()

    def hold_same_rows(
        self,
        plan: DeviceCachePlan,  # noqa: ARG002 - the seam's
        own: Callable[[], T],
        *,
        as_stored: bool,  # noqa: ARG002 - the seam's
        table: int = 0,  # noqa: ARG002 - the seam's
    ) -> T:
        """Return what ``own`` returns."""
        return own()

    def reach_same_features(
        self,
        device: Device,  # noqa: ARG002 - the seam's
        num_bytes: int,  # noqa: ARG002 - the seam's
        own: Callable[[NDArray[np.uint8] | None], LoadedFeatures],
        *,
        table: int = 0,  # noqa: ARG002 - the seam's
    ) -> LoadedFeatures:
        """Return what ``own`` returns, which finds memory by itself."""
        return own(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """How this machine would read what a superbatch misses of a table by itself, and what else it has to say."""

    counts: MissCounts
    own: Choice
    forced: str  # a strategy that was asked for by name, or "auto"
    sweep_gap_bytes: int  # the longest hole that a sweep reads through
    rates: IoRates
    calibration: Calibration
    staging_bytes: int  # memory and disk that the missing rows may take
    spill_bytes: int


class HeldByCache(Protocol):
    """Copies rows that a host cache holds, see `SlotCache.copy_held`."""

    def __call__(self, wanted: IdArray, out: NDArray[np.uint8], /) -> NDArray[np.bool_]:
        """Copy those of the ``wanted`` rows (M,), ascending, that are held into ``out`` (M, R); return which (M,)."""
        ...


class RowExchange(Protocol):
    """A run's part in the exchanges of all machines, one for each superbatch. For the thread that stages."""

    def choose(
        self, superbatch: int, offers: Sequence[Offer], *, is_cancelled: Callable[[], bool]
    ) -> tuple[Choice, ...]:
        """Return how the rows of each table come: the same everywhere as to whether from other machines.

        Parameters
        ----------
        superbatch : its number in the run, the same on all machines
        offers : of this machine, of each table
        is_cancelled : asked again and again while it waits; true ends it

        Raises
        ------
        RankError
            A machine is gone, does not answer, or is at another superbatch; names its rank.
        BudgetError
            Rows have to come from other machines, and neither memory nor disk has room for them.
        ChannelClosedError
            ``is_cancelled`` returned true.
        """
        ...

    def fetch(
        self, table: int, rows: IdArray, *, is_cancelled: Callable[[], bool]
    ) -> AbstractContextManager[ArrivingRows]:
        """Begin to exchange rows; all machines do, for the same table.

        Parameters
        ----------
        table : its number
        rows : (K,) that this machine wants, ascending; none is fine
        is_cancelled : asked again and again while it waits; true ends it

        Raises
        ------
        MachineLeftError
            The loop of another machine has ended. Without `is_needed` rows are read alone from then on.
        RankError
            A machine is gone, does not answer or failed; names its rank.
        ChannelClosedError
            ``is_cancelled`` returned true.
        """
        ...

    @property
    def is_needed(self) -> bool:
        """Whether this machine lacks rows, so that it cannot read alone."""
        ...

    @property
    def bytes_read(self) -> int:
        """Bytes that this machine's disk has read for all machines."""
        ...

    def close(self, error: BaseException | None = None) -> None:
        """Take part no more, and let the others know, with ``error`` where there is one. Idempotent."""
        ...


class ExchangeTier(Protocol):
    """What a loader keeps for its exchanges."""

    def begin(self, position: BatchId, caches: Sequence[HeldByCache]) -> RowExchange:
        """Return this machine's part in a run; connects when it is first used.

        Parameters
        ----------
        position : at which the run begins, on all machines
        caches : of each table: rows that need not be read from the disk
        """
        ...

    def filling(self, table: int, store: FeatureStore) -> AbstractContextManager[FeatureSource]:
        """Return the rows from which caches of a table are filled, on all machines now.

        Parameters
        ----------
        table : its number
        store : the rows that are here
        """
        ...

    def explain(self) -> str:
        """Say which machines there are, and what each reads."""
        ...

    def explain_run(self) -> str:
        """Say what came of it so far, and why the last choice was made; nothing where there was none."""
        ...


class OtherMachines(Protocol):
    """The machines of a launch, each of which has a loader that is being opened now."""

    @property
    def must_exchange(self) -> bool:
        """Whether no machine reads alone."""
        ...

    def memory_bytes(self, budget_bytes: int) -> int:
        """Return the bytes of the budget that exchanges take."""
        ...

    def agree_on_superbatch(self, plan: MemoryPlan, *, num_ranks: int) -> int:
        """Return the batches of superbatches of as many steps as every machine has memory for; 0: no exchange.

        Collective.

        Parameters
        ----------
        plan : of this machine
        num_ranks : of it, each of which has a batch in a step

        Raises
        ------
        ConfigError
            Rows have to be exchanged, and a machine does not read them from the SSD.
        """
        ...

    def exchange(self, stores: Sequence[FeatureStore]) -> ExchangeTier:
        """Return what exchanges the rows of ``stores``, of each table."""
        ...
