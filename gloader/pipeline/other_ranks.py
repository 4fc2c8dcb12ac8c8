"""Protocols for other ranks: the devices on this machine, and the disks of other machines.

A rank is a training process with one device. One rank of each machine loads for all of the machine's ranks; it serves
them. The pipeline uses these protocols and does not import `gloader.distributed`, which implements them.

- `OtherDevices` stands for the devices of the ranks that this rank serves. All devices hold the same feature rows.
- `OtherMachines` stands for the machines that send each other missing rows (the exchange). An `ExchangeTier` belongs to
  a loader, and a `RowExchange` to one of its runs.
- A table is the feature rows of a node type or of a relation.
- A collective call is made by all machines together, and waits for all of them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from gloader.cache import DeviceCachePlan, SlotCache
    from gloader.core.signals import Cancellation
    from gloader.device import Device, DeviceTier
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.ssd_store import FeatureStore, RamFeatures
    from gloader.ssd_store.cost.io_rates import Calibration, IoRates
    from gloader.ssd_store.cost.strategy import Choice, MissCounts
    from gloader.ssd_store.sweep.supply import ArrivingRows
    from gloader.types import AnyBatch, BatchId, FeatureSource, IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFeatures:
    """One table's features in memory, and the device tier, which may read them there."""

    source: RamFeatures  # all rows, for the gather
    tier: DeviceTier  # the rows that the device holds, or reads from host memory itself

    @property
    def is_reached(self) -> bool:
        """True if the device reads the features in place."""
        return self.tier.features is not None

    def out_of_reach(self) -> LoadedFeatures:
        """Return the same features for a device that does not read them in place."""
        return LoadedFeatures(source=self.source, tier=self.tier.out_of_reach())


class OtherDevices(Protocol):
    """The devices of the ranks that this rank serves; all of them hold the same rows.

    Each method returns a context manager. In its ``with`` block this rank's device does the same work as the other
    devices do at that time.
    """

    @property
    def are_asynchronous(self) -> bool:
        """True if all devices are asynchronous, so that rows keep their storage format; set after `trying_step`."""
        ...

    def trying_step(self, largest: AnyBatch | None) -> AbstractContextManager[list[int]]:
        """Return a list of each device's room for rows, in bytes; the block adds the room of this rank's device.

        Parameters
        ----------
        largest : the batch with the most nodes, for a trial step of the model; None skips the trial
        """
        ...

    def holding(self, plan: DeviceCachePlan, *, as_stored: bool, table: int) -> AbstractContextManager[None]:
        """Make every other device hold the rows of ``plan``; the block does so on this rank.

        Parameters
        ----------
        plan : the rows to hold
        as_stored : whether the host sends all other rows in their storage format, which the devices widen to float32
        table : number of the table
        """
        ...

    def sharing_features(
        self, device: Device, num_bytes: int, *, table: int
    ) -> AbstractContextManager[SharedFeatures]:
        """Share memory for all features. The block fills it, or its own memory, and sets ``is_reached`` for ``device``.

        Parameters
        ----------
        device : this rank's device
        num_bytes : size of the features
        table : number of the table
        """
        ...


@dataclass(slots=True, kw_only=True)
class SharedFeatures:
    """Memory for features, which either all devices read in place, or none."""

    memory: NDArray[np.uint8] | None = None  # None means that each rank has its own memory
    is_reached: bool = True  # whether this rank's device reads it; after the block, whether all devices do


class NoOtherDevices:
    """A rank that loads for itself only."""

    are_asynchronous = True  # there is no other device

    @contextmanager
    def trying_step(self, largest: AnyBatch | None) -> Iterator[list[int]]:  # noqa: ARG002 - the protocol's parameter
        """Return an empty list."""
        yield []

    @contextmanager
    def holding(self, plan: DeviceCachePlan, *, as_stored: bool, table: int) -> Iterator[None]:  # noqa: ARG002 - the protocol's parameters
        """Do nothing."""
        yield

    @contextmanager
    def sharing_features(self, device: Device, num_bytes: int, *, table: int) -> Iterator[SharedFeatures]:  # noqa: ARG002 - the protocol's parameters
        """Return no memory."""
        yield SharedFeatures()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A machine's plan to read a table's missing rows by itself, sent to the other machines."""

    counts: MissCounts  # the missing rows
    own: Choice  # the read method if the machine reads all of its rows itself
    forced: str  # a requested strategy, or "auto"
    sweep_gap_bytes: int  # the longest hole that a sweep reads through
    rates: IoRates  # of the machine's disks
    calibration: Calibration  # corrections of the cost model's seconds
    staging_bytes: int  # memory for the missing rows
    spill_bytes: int  # disk space for the missing rows


class RowExchange(Protocol):
    """A run's part in the exchanges of all machines, one exchange per superbatch. For the staging thread."""

    def choose(
        self, superbatch: int, offers: Sequence[Offer], *, cancellation: Cancellation
    ) -> tuple[Choice, ...]:
        """Return the choice for each table; all machines agree whether rows are exchanged.

        Parameters
        ----------
        superbatch : the superbatch's number in the run, the same on all machines
        offers : this machine's offer for each table

        Raises
        ------
        RankError
            A machine is gone, does not respond, or is at another superbatch; the error names its rank.
        BudgetError
            Rows must come from other machines, and neither memory nor disk has room for them.
        ChannelClosedError
            The work was cancelled.
        """
        ...

    def fetch(
        self, table: int, rows: IdArray, *, cancellation: Cancellation
    ) -> AbstractContextManager[ArrivingRows]:
        """Begin to exchange rows; all machines call this for the same table.

        Parameters
        ----------
        table : number of the table
        rows : (K,) rows that this machine needs, ascending; may be empty

        Raises
        ------
        MachineLeftError
            Another machine's loop has ended. Unless `is_needed`, rows are read locally from then on.
        RankError
            A machine is gone, does not respond or failed; the error names its rank.
        ChannelClosedError
            The work was cancelled.
        """
        ...

    @property
    def is_needed(self) -> bool:
        """True if this machine lacks rows and cannot read without the others."""
        ...

    @property
    def bytes_read(self) -> int:
        """Bytes that this machine's disk has read for all machines."""
        ...

    def close(self, error: BaseException | None = None) -> None:
        """Leave the exchange and notify the other machines, with ``error`` if given. Idempotent."""
        ...


class ExchangeTier(Protocol):
    """A loader's part in the exchange between machines, kept across runs."""

    def begin(self, position: BatchId, caches: Sequence[SlotCache]) -> RowExchange:
        """Return this machine's part in a run; the first call connects to the other machines.

        Parameters
        ----------
        position : the run's first batch, the same on all machines
        caches : each table's cache; cached rows need not be read from the disk
        """
        ...

    def filling(self, table: int, store: FeatureStore) -> AbstractContextManager[FeatureSource]:
        """Return the source that fills a table's caches. Collective.

        Parameters
        ----------
        table : number of the table
        store : the rows on this machine
        """
        ...

    def explain(self) -> str:
        """Return lines with the machines and their row ranges."""
        ...

    def explain_run(self) -> str:
        """Return a line with the exchanged bytes and the last choice; "" before the first choice."""
        ...


class OtherMachines(Protocol):
    """The machines of a launch; each machine opens a loader at the same time."""

    @property
    def must_exchange(self) -> bool:
        """True if machines store different rows or an exchange is required."""
        ...

    def memory_bytes(self, budget_bytes: int) -> int:
        """Return the part of the budget for exchanges, in bytes."""
        ...

    def agree_on_superbatch(self, plan: MemoryPlan, *, num_ranks: int) -> int:
        """Return the superbatch size in batches, with the most steps that fit on every machine; 0 without an exchange.

        Collective.

        Parameters
        ----------
        plan : this machine's memory plan
        num_ranks : this machine's ranks; each has one batch in a step

        Raises
        ------
        ConfigError
            Rows must be exchanged, and a machine does not read its rows from the SSD.
        """
        ...

    def exchange(self, stores: Sequence[FeatureStore]) -> ExchangeTier:
        """Return the exchange of the rows in ``stores``, one store per table."""
        ...
