"""Protocols for other ranks: the devices on this machine, and the disks of other machines.

A rank is a training process with one device. One rank of each machine, the host, loads for all of the machine's ranks;
it serves the others. The pipeline uses these protocols and does not import `gloader.distributed`, which has the code.

- `OtherDevices` stands for the devices of the ranks that this rank serves. All devices hold the same feature rows.
- `TrainingRanks` stands for the ranks that train the same embeddings, each with its own batches.
- `OtherMachines` stands for the machines that send each other missing rows (the exchange). An `ExchangeTier` belongs to
  a loader, and a `RowExchange` to one of its runs. A run is a sequence of batches without interruption.
- A table is the feature rows of a node type or of a relation.
- The gather collects a batch's rows into one array. A device reads rows in place if it reads them from host memory
  without a gather. A device tier is the rows that a device holds in its own memory or reads in place.
- An asynchronous device, such as a GPU, works in parallel to the host.
- A superbatch is consecutive batches that are planned together. Its missing rows are the rows that no cache holds; the
  staging thread reads them ahead. A sweep reads rows in file order; a hole is bytes between two needed rows.
- A collective call is made by all machines together, and waits for all of them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from gloader.cache import DeviceCachePlan, SlotCache
    from gloader.core.signals import Cancellation
    from gloader.device import Device, DeviceTier
    from gloader.pipeline.embedding_rows import EmbeddingRows
    from gloader.pipeline.superbatch import BatchSlots
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.ssd_store import FeatureStore, RamFeatures
    from gloader.ssd_store.cost.io_rates import Calibration, IoRates
    from gloader.ssd_store.cost.strategy import Choice, MissCounts
    from gloader.ssd_store.sweep.supply import ArrivingRows
    from gloader.types import AnyBatch, BatchId, FeatureSource, IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFeatures:
    """One table's features in host memory, and this rank's device tier, which may read them in place."""

    source: RamFeatures  # all rows, for batches whose rows the host gathers
    tier: DeviceTier  # the rows that the device holds or reads in place

    @property
    def is_reached(self) -> bool:
        """True if the device reads the features in place."""
        return self.tier.features is not None

    def out_of_reach(self) -> LoadedFeatures:
        """Return the same features with a tier that does not read them in place."""
        return LoadedFeatures(source=self.source, tier=self.tier.out_of_reach())


class OtherDevices(Protocol):
    """The devices of the ranks that this rank serves; all of them hold the same rows.

    Each method returns a context manager. Its beginning asks the other ranks to do some work with their devices. In the
    ``with`` block the caller does the same work with this rank's device. The end of the block waits for the answers.
    """

    @property
    def are_asynchronous(self) -> bool:
        """True if all other devices are asynchronous, and so widen stored rows; set after `trying_step`."""
        ...

    def trying_step(self, largest: AnyBatch | None) -> AbstractContextManager[list[int]]:
        """Let each device measure its room for rows, in bytes; the block appends this rank's room to an empty list.

        After the block the list also has the rooms of the other devices.

        Parameters
        ----------
        largest : the batch with the most nodes, for a trial step of the model; None skips the trial
        """
        ...

    def holding(self, plan: DeviceCachePlan, *, as_stored: bool, table: int) -> AbstractContextManager[None]:
        """Make every other device hold the rows of ``plan``; the block does so for this rank's device.

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
        """Share host memory for all features of a table between the ranks.

        The caller's block loads the features into it, or into memory of this rank only if ``memory`` is None. The block
        also sets ``is_reached``: whether ``device`` reads them in place.

        Parameters
        ----------
        device : this rank's device
        num_bytes : size of the features
        table : number of the table
        """
        ...


@dataclass(slots=True, kw_only=True)
class SharedFeatures:
    """Memory for features. Either all devices read the features in place, or none does."""

    memory: NDArray[np.uint8] | None = None  # None means that it is not shared
    # In the block: whether this rank's device reads the features in place. After the block: whether all devices do.
    is_reached: bool = True


class NoOtherDevices:
    """A rank that loads for itself only."""

    are_asynchronous = True  # there is no other device for which this is false

    @contextmanager
    def trying_step(self, largest: AnyBatch | None) -> Iterator[list[int]]:  # noqa: ARG002 - the protocol's parameter
        """Yield an empty list, to which no other device adds its room."""
        yield []

    @contextmanager
    def holding(self, plan: DeviceCachePlan, *, as_stored: bool, table: int) -> Iterator[None]:  # noqa: ARG002 - the protocol's parameters
        """Do nothing."""
        yield

    @contextmanager
    def sharing_features(self, device: Device, num_bytes: int, *, table: int) -> Iterator[SharedFeatures]:  # noqa: ARG002 - the protocol's parameters
        """Yield no memory: nothing is shared."""
        yield SharedFeatures()


class TrainingRanks(Protocol):
    """The ranks of this machine, this one included, that train embeddings together: a step has a batch of each rank."""

    @property
    def num_ranks(self) -> int:
        """R."""
        ...

    def allocate(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return zeroed memory (num_bytes,) for the slots of the next embedding, which the other ranks read."""
        ...

    def stepping(self, rows: EmbeddingRows) -> Callable[[BatchSlots, torch.Tensor | None], None]:
        """Return the function that makes a step of the next embedding with the gradients of all ranks.

        The function has the parameters of `EmbeddingRows.step`, for this rank's batch.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One machine's figures on a table's missing rows in a superbatch.

    All machines choose the read method together, from all their offers.
    """

    counts: MissCounts  # the missing rows
    own: Choice  # the read method if the machine reads all of these rows itself
    forced: str  # the read method that the user requested, or "auto"
    sweep_gap_bytes: int  # the longest hole that a sweep reads together with its rows
    rates: IoRates  # of the machine's disks
    calibration: Calibration  # corrections of the cost model's seconds
    staging_bytes: int  # memory for the missing rows
    spill_bytes: int  # disk space for the missing rows


class RowExchange(Protocol):
    """The part of one machine in a run's exchanges, one for each superbatch. For the staging thread."""

    def choose(
        self, superbatch: int, offers: Sequence[Offer], *, cancellation: Cancellation
    ) -> tuple[Choice, ...]:
        """Return each table's read method; all machines agree for which tables they exchange rows.

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
        """Begin to exchange rows; the result has the rows as they arrive. All machines call this for the same table.

        Parameters
        ----------
        table : number of the table
        rows : (K,) rows that this machine needs, ascending; may be empty

        Raises
        ------
        MachineLeftError
            Another machine's loop has ended. If `is_needed` is False, this machine reads its rows itself from then on.
        RankError
            A machine is gone, does not respond or failed; the error names its rank.
        ChannelClosedError
            The work was cancelled.
        """
        ...

    @property
    def is_needed(self) -> bool:
        """True if machines store different rows, so that this machine cannot do without the others."""
        ...

    @property
    def bytes_read(self) -> int:
        """Bytes that this machine has read from its disk in exchanges, for all machines together."""
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
        """Return a superbatch's number of batches on this machine; 0 if no rows are exchanged. Collective.

        In a step each rank trains on one batch. Superbatches of all machines have the same number of steps: the largest
        number that every machine's memory plan allows.

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
