"""The exchanges of a loader: in each run, for each superbatch, one choice of all machines and the rows that follow."""

from __future__ import annotations

import math
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.units import format_bytes
from gloader.distributed.exchange.exchange import Exchange, ExchangeStats
from gloader.distributed.exchange.filling import ExchangedRows
from gloader.errors import BudgetError, MachineLeftError, RankError
from gloader.ssd_store.cost.exchange import OwnPart, choose_exchange, place_received
from gloader.ssd_store.cost.strategy import Choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from gloader.distributed.exchange.launch import Launch
    from gloader.distributed.exchange.serve import OwnedRows
    from gloader.pipeline.other_machines import HeldByCache, Offer
    from gloader.ssd_store import FeatureStore
    from gloader.ssd_store.cost.exchange import ExchangeChoice, ReceivedAs
    from gloader.ssd_store.sweep.arrivals import ArrivingRows
    from gloader.types import BatchId, FeatureSource, IdArray

_WHERE: Final = ("epoch", "batch", "superbatch")  # the same on all machines
_NUMBERS: Final = 1 + len(
    fields(OwnPart)
)  # of a table: what common sweeps took over what was predicted, and its part


@dataclass(slots=True, kw_only=True)
class ExchangeCounts:
    """What the exchanges of a loader came to so far."""

    shared: int = 0  # superbatches of tables that were exchanged
    alone: int = 0
    reason: str = ""  # of the last choice
    network: str = ""  # as it was measured
    stats: ExchangeStats = field(default_factory=ExchangeStats)  # of the last run


class Exchanges:
    """What a loader keeps for its exchanges: an `ExchangeTier`.

    Parameters
    ----------
    launch : the machines
    tables : the rows that are exchanged, and who owns which
    memory_bytes : of the buffers of an exchange
    """

    def __init__(self, launch: Launch, tables: Sequence[OwnedRows], *, memory_bytes: int) -> None:
        self._launch = launch
        self._tables = tables
        self._memory_bytes = memory_bytes
        self.counts = ExchangeCounts()

    def begin(self, position: BatchId, caches: Sequence[HeldByCache]) -> RunExchange:
        """Return this machine's part in a run that begins at ``position`` everywhere; see `ExchangeTier.begin`."""
        tables = [replace(table, cached=cached) for table, cached in zip(self._tables, caches, strict=True)]
        return RunExchange(
            self._launch, self._connect(tables), tables, position, self.counts, round_bytes=self._memory_bytes
        )

    def connect(self) -> Exchange:
        """Return an exchange of the rows on the disks, for the caller to close: all machines make one now."""
        return self._connect(self._tables)

    def filling(self, table: int, store: FeatureStore) -> AbstractContextManager[FeatureSource]:
        """Return the rows from which caches of ``table`` are filled: all machines do that now."""
        return self._filling(table, store) if self._launch.parts else nullcontext(store)

    def explain(self) -> str:
        """Say which machines there are, and what each reads."""
        launch = self._launch
        held = "a range of the rows on each" if launch.parts else "all rows on each"
        how = "common sweeps" if launch.must_exchange else "own sweeps or a common one, as predicted"
        return f"exchange: {len(launch.hosts)} machines, {held}; {how}; {format_bytes(self._memory_bytes)} of buffers"

    def explain_run(self) -> str:
        """Say what came of it so far, and why the last choice was made; nothing where there was none."""
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
    """A run's part in the exchanges of all machines: a `RowExchange`. For the thread that stages; owns ``exchange``.

    Parameters
    ----------
    launch : the machines
    exchange : of the rows
    tables : those rows
    position : at which the run begins
    counts : what came of it
    round_bytes : that a machine sends or receives in a round, about
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
        self._is_alone = False  # another machine's loop has ended

    def choose(
        self, superbatch: int, offers: Sequence[Offer], *, is_cancelled: Callable[[], bool]
    ) -> tuple[Choice, ...]:
        """Return how the rows of each table come; see `RowExchange.choose`."""
        if not self._is_alone:
            try:
                gathered = self._gather(superbatch, offers, is_cancelled)
                return tuple(self._chosen(number, offer, gathered) for number, offer in enumerate(offers))
            except MachineLeftError:
                # With all rows here, what was prepared beyond the end of another machine's loop is read alone.
                if self.is_needed:
                    raise
                self._is_alone = True
        return tuple(offer.own for offer in offers)

    @contextmanager
    def fetch(self, table: int, rows: IdArray, *, is_cancelled: Callable[[], bool]) -> Iterator[ArrivingRows]:
        """Begin to exchange rows; see `RowExchange.fetch`."""
        if self._is_alone:
            raise MachineLeftError("another machine has left the run that all machines share")
        try:
            with self._exchange.fetch(table, rows, is_cancelled=is_cancelled) as arriving:
                yield arriving
        except MachineLeftError:
            self._is_alone = not self.is_needed
            raise

    @property
    def is_needed(self) -> bool:
        """Whether this machine lacks rows, so that it cannot read alone."""
        return bool(self._launch.parts)

    @property
    def bytes_read(self) -> int:
        """Bytes that this machine's disk has read for all machines."""
        return self._exchange.stats.bytes_read

    def close(self, error: BaseException | None = None) -> None:
        """Take part no more, and let the others know. Idempotent."""
        self._exchange.close(error)

    def _gather(
        self, superbatch: int, offers: Sequence[Offer], is_cancelled: Callable[[], bool]
    ) -> NDArray[np.float64]:
        """Return (W, n) what all machines say of this superbatch."""
        if self._exchange.rates() is None:  # nothing was said yet: this measures the network
            self._exchange.agree(np.empty(0), is_cancelled=is_cancelled)
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
                received_as=_place(offer),
            )
            numbers += [offer.calibration.exchanged, *part.to_numbers()]
        return self._exchange.agree(np.array(numbers), is_cancelled=is_cancelled, same=_WHERE)

    def _chosen(self, table: int, offer: Offer, gathered: NDArray[np.float64]) -> Choice:
        owned = self._tables[table]
        at = len(_WHERE) + table * _NUMBERS
        factor = float(gathered[:, at].max())
        shared = choose_exchange(
            [OwnPart.from_numbers(row[at + 1 : at + _NUMBERS]) for row in gathered],
            num_rows=owned.store.num_rows,
            row_bytes=owned.store.row_bytes,
            shares=(np.diff(owned.bounds) / max(owned.store.num_rows, 1)).tolist(),
            round_bytes=self._round_bytes,
            factor=factor,
        )
        if self._launch.mode == "always" and not self._launch.parts:
            shared = replace(shared, reason="asked for by exchange='always'")
        self._counts.reason, self._counts.stats = shared.reason, self._exchange.stats
        if not shared.is_shared:
            self._counts.alone += 1
            return offer.own
        self._counts.shared += 1
        return _exchanged(offer, shared, factor=factor)


def _place(offer: Offer) -> ReceivedAs | None:
    return place_received(
        offer.counts,
        memory_bytes=offer.staging_bytes,
        spill_bytes=offer.spill_bytes,
        forced=offer.forced,
    )


def _exchanged(offer: Offer, shared: ExchangeChoice, *, factor: float) -> Choice:
    """Return the choice of a machine that takes part in a common sweep. Pure."""
    strategy = _place(offer)
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
