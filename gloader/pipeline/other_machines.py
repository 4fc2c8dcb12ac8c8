"""The seam to other machines, from whose disks missing rows may come; see `gloader.distributed.exchange`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from gloader.plan.memory_plan import MemoryPlan
    from gloader.ssd_store import FeatureStore
    from gloader.ssd_store.cost.calibration import Calibration
    from gloader.ssd_store.cost.miss_counts import MissCounts
    from gloader.ssd_store.cost.strategy import Choice, IoRates
    from gloader.ssd_store.sweep.arrivals import ArrivingRows
    from gloader.types import BatchId, FeatureSource, IdArray


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
