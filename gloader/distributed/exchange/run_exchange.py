"""A loader's exchanges: for each superbatch, all machines decide together and then exchange rows.

The stage step of the pipeline (`gloader.pipeline.stage`) uses this file through the protocols in
`gloader.pipeline.other_ranks`. `LaunchMachines` connects an opening loader with the machines of a launch. `Exchanges`
belongs to a loader, and `RunExchange` to one of its runs. `ExchangedRows` fills caches.

- A launch is the machines that train together; each takes part by its host, the rank that loads.
- A superbatch is a number of consecutive batches, whose feature rows are read together. A run is a sequence of
  superbatches from one position on.
- A sweep reads rows in the order of the file. In a common sweep, each machine reads a range of the rows that all
  machines need, and sends each machine its rows. In an own sweep, a machine reads all of its rows itself.
- An offer is a machine's numbers for the decision: its missing rows, its rates, and the time of its own sweep.
- A part (`Launch.parts`) is the range of rows that a machine stores; without parts, every machine stores all rows.
"""

from __future__ import annotations

import math
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.core.ids import copy_bounds, host_bounds
from gloader.core.signals import NEVER, Cancellation
from gloader.core.units import format_bytes
from gloader.distributed.exchange.exchange import Exchange, ExchangeStats
from gloader.distributed.exchange.owner import OwnedRows
from gloader.distributed.exchange.transport import gather
from gloader.errors import BudgetError, ConfigError, MachineLeftError, RankError
from gloader.ssd_store import load_misses
from gloader.ssd_store.cost.exchange_cost import OwnPart, choose_exchange, place_received
from gloader.ssd_store.cost.strategy import Choice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.cache import SlotCache
    from gloader.dataset.tables import FeatureRows
    from gloader.distributed.exchange.host_group import Launch
    from gloader.pipeline.other_ranks import Offer
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.ssd_store import FeatureStore
    from gloader.ssd_store.cost.exchange_cost import ExchangeChoice, ReceivedAs
    from gloader.ssd_store.sweep.supply import ArrivingRows
    from gloader.types import BatchId, FeatureSource, IdArray, ReadStats


class ExchangedRows:
    """All rows of a table, of which this machine stores a range. A `FeatureSource` within a ``with`` block.

    Each read is an exchange among all machines. Machines may read different numbers of times: at the end of its block,
    a machine serves the others until all have ended their blocks.

    Parameters
    ----------
    exchange : the exchange of the rows
    table : the table's number
    store : the range that this machine stores
    """

    def __init__(self, exchange: Exchange, table: int, store: FeatureStore) -> None:
        self._exchange = exchange
        self._table = table
        self._store = store

    @property
    def num_rows(self) -> int:
        """N."""
        return self._store.num_rows

    @property
    def dim(self) -> int:
        """F."""
        return self._store.dim

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of a stored element."""
        return self._store.dtype

    def read_into(self, rows: IdArray, out: NDArray[Any], /, *, at: IdArray | None = None) -> ReadStats:
        """Read ``rows`` into ``out`` as `FeatureSource.read_into`; collective, errors as `Exchange.fetch`."""
        distinct, distinct_index = np.unique(rows, return_inverse=True)
        self._agree(is_reading=True)
        with self._exchange.fetch(self._table, distinct, cancellation=NEVER) as arriving:
            held = load_misses(self._store, [distinct], cancellation=NEVER, arriving=arriving)
        try:
            place = np.arange(len(rows)) if at is None else at
            # For each distinct row, the one index of ``out`` that it is read to.
            written = np.full(len(distinct), -1, np.int64)
            written[distinct_index] = place
            stats = held.read_into(0, distinct, out, at=written)
        finally:
            held.close()
        # A repeated row was read to one of its places only; it is copied from there to its other places.
        is_repeat = written[distinct_index] != place
        out[place[is_repeat]] = out[written[distinct_index][is_repeat]]
        return stats

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._exchange.close(error)
            return
        # Serve the other machines until none reads any more.
        nothing = np.empty(0, np.int64)
        while self._agree(is_reading=False):
            with self._exchange.fetch(self._table, nothing, cancellation=NEVER) as arriving:
                load_misses(self._store, [nothing], cancellation=NEVER, arriving=arriving).close()

    def _agree(self, *, is_reading: bool) -> bool:
        """Return whether any machine reads now. Collective."""
        return bool(self._exchange.agree(np.array([is_reading], np.float64), cancellation=NEVER).any())


# Names of the first numbers of each agreement, the position of the run and the superbatch's number in it. They must be
# equal on all machines.
_POSITION_NAMES: Final = ("epoch", "batch", "superbatch")
# Number of values per table in each agreement: the ratio of measured to predicted seconds of common sweeps, and the
# fields of an `OwnPart`.
_NUMBERS_PER_TABLE: Final = 1 + len(fields(OwnPart))


@dataclass(slots=True, kw_only=True)
class ExchangeCounts:
    """Counters of a loader's exchanges so far."""

    shared: int = 0  # number of common sweeps, counted per superbatch and table
    alone: int = 0  # number of own sweeps, per superbatch and table
    reason: str = ""  # reason for the last choice
    network: str = ""  # measured rate and latency
    stats: ExchangeStats = field(default_factory=ExchangeStats)  # counters of the last run


class Exchanges:
    """A loader's part in exchanges, kept across runs: an `ExchangeTier`.

    Parameters
    ----------
    launch : the machines
    tables : the exchanged tables, with the row range that each machine reads
    memory_bytes : memory for the buffers of an exchange
    """

    def __init__(self, launch: Launch, tables: Sequence[OwnedRows], *, memory_bytes: int) -> None:
        self._launch = launch
        self._tables = tables
        self._memory_bytes = memory_bytes
        self.counts = ExchangeCounts()

    def begin(self, position: BatchId, caches: Sequence[SlotCache]) -> RunExchange:
        """Return this machine's part in a run that starts at ``position`` on all machines, as `ExchangeTier.begin`."""
        tables = [
            replace(table, cached=cache.copy_held) for table, cache in zip(self._tables, caches, strict=True)
        ]
        return RunExchange(
            self._launch, self._connect(tables), tables, position, self.counts, round_bytes=self._memory_bytes
        )

    def connect(self) -> Exchange:
        """Return an exchange that reads no host cache; the caller closes it. All machines call this together."""
        return self._connect(self._tables)

    def filling(self, table: int, store: FeatureStore) -> AbstractContextManager[FeatureSource]:
        """Return the source that fills the caches of ``table``: ``store``, or an exchange if it lacks rows.

        All machines call this together.
        """
        return self._filling(table, store) if self._launch.parts else nullcontext(store)

    def explain(self) -> str:
        """Return lines with the machines and their row ranges."""
        launch = self._launch
        stored = "a range of the rows on each" if launch.parts else "all rows on each"
        sweeps = "common sweeps" if launch.must_exchange else "own sweeps or a common one, as predicted"
        buffers = f"{format_bytes(self._memory_bytes)} of buffers"
        return f"exchange: {len(launch.hosts)} machines, {stored}; {sweeps}; {buffers}"

    def explain_run(self) -> str:
        """Return a line with the results so far and the last choice; "" before the first choice."""
        counts = self.counts
        lines = [f"network between machines: {counts.network}"] if counts.network else []
        if counts.shared or counts.alone:
            moved = [format_bytes(size) for size in (counts.stats.bytes_sent, counts.stats.bytes_received)]
            lines.append(
                f"exchanges: {counts.shared} common sweeps, {counts.alone} own ones; {moved[0]} sent, {moved[1]} "
                "received"
            )
            lines.append(f"  the last: {counts.reason}")
        return "\n".join(lines)

    @contextmanager
    def _filling(self, table: int, store: FeatureStore) -> Iterator[FeatureSource]:
        """Open an exchange of its own for the block, in which all machines fill their caches."""
        exchange = self.connect()
        try:
            with ExchangedRows(exchange, table, store) as rows:
                yield rows
        finally:
            exchange.close()

    def _connect(self, tables: Sequence[OwnedRows]) -> Exchange:
        return Exchange(
            self._launch.connect(), tables, memory_bytes=self._memory_bytes, verify=self._launch.verify
        )


class RunExchange:
    """A machine's part in the exchanges of one run: a `RowExchange`. For the staging thread; owns ``exchange``.

    Parameters
    ----------
    launch : the machines
    exchange : the exchange of the rows
    tables : the exchanged rows
    position : the first batch of the run
    counts : counters to update
    round_bytes : approximate bytes that a machine sends or receives in a round
    """

    def __init__(
        self,
        launch: Launch,
        exchange: Exchange,
        tables: Sequence[OwnedRows],
        position: BatchId,
        counts: ExchangeCounts,
        *,
        round_bytes: int,
    ) -> None:
        self._launch = launch
        self._exchange = exchange
        self._tables = tables
        self._position = position
        self._counts = counts
        self._round_bytes = round_bytes
        self._is_alone = False  # another machine's loop has ended, so this machine reads its rows itself

    def choose(
        self, superbatch: int, offers: Sequence[Offer], *, cancellation: Cancellation
    ) -> tuple[Choice, ...]:
        """Return each table's choice between a common sweep and this machine's own reads, as `RowExchange.choose`."""
        if not self._is_alone:
            try:
                gathered = self._gather(superbatch, offers, cancellation)
                return tuple(self._chosen(number, offer, gathered) for number, offer in enumerate(offers))
            except MachineLeftError:
                # This machine stores all rows: superbatches after the other machine's end are read locally.
                if self.is_needed:
                    raise
                self._is_alone = True
        return tuple(offer.own for offer in offers)

    @contextmanager
    def fetch(self, table: int, rows: IdArray, *, cancellation: Cancellation) -> Iterator[ArrivingRows]:
        """Begin to exchange rows, as `RowExchange.fetch`."""
        if self._is_alone:
            raise MachineLeftError("another machine has left the run that all machines share")
        try:
            with self._exchange.fetch(table, rows, cancellation=cancellation) as arriving:
                yield arriving
        except MachineLeftError:
            self._is_alone = not self.is_needed
            raise

    @property
    def is_needed(self) -> bool:
        """True if this machine lacks rows and cannot read without the others."""
        return bool(self._launch.parts)

    @property
    def bytes_read(self) -> int:
        """Bytes that this machine's disk has read for all machines."""
        return self._exchange.stats.bytes_read

    def close(self, error: BaseException | None = None) -> None:
        """Leave the exchanges and notify the others. Idempotent."""
        self._exchange.close(error)

    def _gather(
        self, superbatch: int, offers: Sequence[Offer], cancellation: Cancellation
    ) -> NDArray[np.float64]:
        """Return (W, n) all machines' numbers for this superbatch. Collective.

        First come the numbers named by `_POSITION_NAMES`, then `_NUMBERS_PER_TABLE` numbers for each table.
        """
        if self._exchange.rates() is None:  # before the first call, which measures the network
            self._exchange.agree(np.empty(0), cancellation=cancellation)
        network = self._exchange.rates()
        if network is None:
            raise RankError("the network between the machines was not measured; this is a bug")
        rate = format_bytes(int(network.bytes_per_s))
        self._counts.network = f"{rate}/s, {network.latency_s * 1e6:.0f} us for a collective"
        numbers = [float(self._position.epoch), float(self._position.index), float(superbatch)]
        for offer in offers:
            part = OwnPart.of(
                offer.counts,
                offer.rates,
                network,
                gap_bytes=offer.sweep_gap_bytes,
                own_s=math.inf if self._launch.must_exchange else offer.own.predicted_s,
                received_as=_place_received(offer),
            )
            numbers += [offer.calibration.exchanged, *part.to_numbers()]
        return self._exchange.agree(np.array(numbers), cancellation=cancellation, same=_POSITION_NAMES)

    def _chosen(self, table: int, offer: Offer, gathered: NDArray[np.float64]) -> Choice:
        """Return a table's choice from all machines' numbers (W, n), and count it."""
        owned = self._tables[table]
        # All machines use the largest of their factors, so that they make the same choice.
        at = len(_POSITION_NAMES) + table * _NUMBERS_PER_TABLE
        factor = float(gathered[:, at].max())
        shared = choose_exchange(
            [OwnPart.from_numbers(row[at + 1 : at + _NUMBERS_PER_TABLE]) for row in gathered],
            num_rows=owned.store.num_rows,
            row_bytes=owned.store.row_bytes,
            shares=(np.diff(owned.bounds) / max(owned.store.num_rows, 1)).tolist(),
            round_bytes=self._round_bytes,
            factor=factor,
        )
        if self._launch.mode == "always" and not self._launch.parts:
            shared = replace(shared, reason="requested by exchange='always'")
        self._counts.reason, self._counts.stats = shared.reason, self._exchange.stats
        if not shared.is_shared:
            self._counts.alone += 1
            return offer.own
        self._counts.shared += 1
        return _exchanged(offer, shared, factor=factor)


def _place_received(offer: Offer) -> ReceivedAs | None:
    """Return the place of received rows: memory ("staged") or the disk ("packed"); None if neither has room."""
    return place_received(
        offer.counts,
        memory_bytes=offer.staging_bytes,
        spill_bytes=offer.spill_bytes,
        forced=offer.forced,
    )


def _exchanged(offer: Offer, shared: ExchangeChoice, *, factor: float) -> Choice:
    """Return a machine's choice for a common sweep: its place for the received rows, with the predicted seconds. Pure.

    Parameters
    ----------
    offer : this machine's offer
    shared : the choice of all machines
    factor : measured over predicted seconds of earlier common sweeps

    Raises
    ------
    BudgetError
        Neither memory nor disk has room for the received rows.
    """
    strategy = _place_received(offer)
    if strategy is None:
        raise BudgetError(
            f"the {offer.counts.unique_rows:,} rows that a superbatch misses come from other machines and need "
            f"{format_bytes(offer.counts.in_ram_bytes)} of memory or {format_bytes(offer.counts.pack_bytes)} of disk, "
            f"and {format_bytes(offer.staging_bytes)} and {format_bytes(offer.spill_bytes)} are allowed; raise "
            "memory_budget or spill_budget, or use smaller superbatches"
        )
    return Choice(
        strategy=strategy,
        predicted=dict(offer.own.predicted) | {strategy: shared.shared_s},
        reason=shared.reason,
        factor=factor,
        read_bytes=offer.counts.pack_bytes if strategy == "packed" else 0,
        is_exchanged=True,
    )


# Share of the memory budget for an exchange's buffers. It keeps disk and network busy, and the cache much larger.
_MEMORY_SHARE: Final = 1 / 16
_LEAST_BYTES, _MOST_BYTES = 8 * 2**20, 256 * 2**20  # bounds of the buffers' bytes


class LaunchMachines:
    """Opens a loader together with the other machines' loaders: an `OtherMachines`.

    Parameters
    ----------
    launch : the machines
    tables : the exchanged rows
    """

    def __init__(self, launch: Launch, tables: Sequence[FeatureRows]) -> None:
        self._launch = launch
        self._tables = tables
        self._memory_bytes = 0

    @property
    def must_exchange(self) -> bool:
        """True if machines store different rows or an exchange is required."""
        return self._launch.must_exchange

    def memory_bytes(self, budget_bytes: int) -> int:
        """Return the part of the budget for exchanges, in bytes."""
        self._memory_bytes = int(min(max(_MEMORY_SHARE * budget_bytes, _LEAST_BYTES), _MOST_BYTES))
        return self._memory_bytes

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
        RankError
            A machine is gone, or could not open its loader.
        """
        launch = self._launch
        group = launch.connect()
        error: BaseException | None = None
        try:
            steps = max(plan.superbatch.num_batches // num_ranks, 1)
            numbers = np.array([plan.features == "ssd", steps], np.float64)
            gathered = gather(group, numbers, cancellation=NEVER)
        except BaseException as raised:
            error = raised
            raise
        finally:
            group.close(error)
        if gathered[:, 0].all():
            return num_ranks * int(gathered[:, 1].min())
        if launch.must_exchange:
            held = sorted(name for name, reads in zip(launch.names, gathered[:, 0], strict=True) if not reads)
            holders = f"machine {held[0]} holds" if len(held) == 1 else f"machines {', '.join(held)} hold"
            raise ConfigError(
                f"{holders} the features in memory, but machines exchange rows only if all read them from the SSD: use "
                "features='ssd', or exchange='never' if every machine has all rows"
            )
        return 0

    def refuse(self, error: BaseException) -> None:
        """Report to the other machines, at their next collective, that this machine has no loader."""
        self._launch.connect().close(error)

    def exchange(self, stores: Sequence[FeatureStore]) -> Exchanges:
        """Return the exchange of the rows in ``stores``, one store per table."""
        parts, count = self._launch.parts, len(self._launch.hosts)
        tables = [
            OwnedRows(
                store=store,
                bounds=host_bounds(parts, rows.name) if parts else copy_bounds(store.num_rows, count),
            )
            for rows, store in zip(self._tables, stores, strict=True)
        ]
        return Exchanges(self._launch, tables, memory_bytes=self._memory_bytes)
