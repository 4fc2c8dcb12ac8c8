"""A run's exchanges with the other machines: agreed numbers, and rows from every machine's disk.

A run is a sequence of batches from one position on. Each machine takes part by one process, its host; there are W
hosts. All hosts make the same calls in the same order. At each call the hosts first exchange a card, a few numbers that
must be equal. `Exchange.agree` then exchanges numbers. `Exchange.fetch` exchanges feature rows: each host reads the
range of rows that it owns from its disk, and sends each host the rows that this host requested. A fetch moves the rows
in rounds, so that its buffers are bounded. `gloader.distributed.exchange.run_exchange` makes these calls.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.ids import id_dtype
from gloader.distributed.exchange.owner import plan_sizes
from gloader.distributed.exchange.receiver import RowFetch, plan_fetch
from gloader.distributed.exchange.transport import corrected, gather, measure_rates
from gloader.errors import ChannelClosedError, RankError, ShapeError
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.sweep.supply import ArrivingRows
from gloader.ssd_store.sweep.wanted_rows import first_wrong, rows_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.core.signals import Cancellation
    from gloader.distributed.exchange.owner import OwnedRows, RoundSizes
    from gloader.distributed.exchange.transport import Transport
    from gloader.ssd_store.cost.exchange_cost import NetworkRates

_VERSION: Final = 1  # version of the protocol between hosts
_RATES_S: Final = 0.2  # seconds of the network's measurement
# Number in a card that means a call of `agree`; a fetch has the table's number.
_AGREE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeStats:
    """The traffic of a run's exchanges so far."""

    fetches: int = 0  # calls of `Exchange.fetch`
    rounds: int = 0  # rounds of all fetches
    rows: int = 0  # rows that this host requested, in all fetches
    bytes_sent: int = 0  # bytes to other machines
    bytes_received: int = 0  # bytes from other machines
    bytes_read: int = 0  # bytes from this machine's disk, for all machines
    seconds: float = 0.0  # time in collectives
    exposed_s: float = 0.0  # time in which sweeps waited for rows


class Exchange:
    """The exchanges of one run, one after another. Owns ``transport`` until `close`.

    All hosts make the same calls in the same order; the first call connects them. After an error no call is valid.

    Parameters
    ----------
    transport : the connection to the other hosts
    tables : the exchanged tables with each host's row range, the same on all hosts
    memory_bytes : memory for all buffers; every host uses the smallest value of all hosts
    verify : whether arriving pages are compared with checksums; if one host compares them, all hosts send checksums
    rates_s : duration of the network's measurement at the start, in seconds
    """

    def __init__(
        self,
        transport: Transport,
        tables: Sequence[OwnedRows],
        *,
        memory_bytes: int,
        verify: bool = True,
        rates_s: float = _RATES_S,
    ) -> None:
        self._transport = transport
        self._tables = tuple(tables)
        self._memory_bytes = memory_bytes
        self._verify = verify
        self._rates_s = rates_s
        self._sizes: list[RoundSizes] = []  # each table's rounds; empty before the first call
        self._rates: NetworkRates | None = None
        self._num_calls = 0
        self._turn = threading.Lock()  # held during a call
        self.stats = ExchangeStats()

    def agree(
        self, numbers: NDArray[Any], *, cancellation: Cancellation, same: Sequence[str] = ()
    ) -> NDArray[np.float64]:
        """Return (W, n) the numbers of all hosts, in host order; collective.

        Parameters
        ----------
        numbers : (n,) converted to float64; n is the same on all hosts
        cancellation : ends the wait for the other hosts
        same : names of the first numbers, which must be equal on all hosts

        Raises
        ------
        MachineLeftError
            Another machine's loop has ended; a host with all rows may continue without exchanges.
        RankError
            A host is gone, does not respond, failed, or makes another call; the error names it.
        ChannelClosedError
            The work was cancelled.
        """
        with self._taking_part(_AGREE, len(numbers), cancellation):
            gathered = gather(self._transport, np.asarray(numbers, np.float64), cancellation=cancellation)
            self._require_same(gathered[:, : len(same)], same)
            return gathered

    @contextmanager
    def fetch(self, table: int, rows: NDArray[Any], *, cancellation: Cancellation) -> Iterator[ArrivingRows]:
        """Exchange a table's rows. In the ``with`` block they arrive, and this host serves the others. Collective.

        The block must read all pages. It ends when every host has its rows. An error ends the block early, and is
        reported to the other hosts.

        Parameters
        ----------
        table : number of the table
        rows : (K,) ids of the rows that this host needs, ascending and unique; may be empty
        cancellation : ends the wait for the other hosts

        Raises
        ------
        ShapeError
            A row is out of range, or the rows do not ascend.
        StoreError
            This machine's rows cannot be read, or are damaged.
        ChecksumError
            Bytes from another host were damaged in transfer; the error names the host.
        MachineLeftError, RankError, ChannelClosedError
            As in `agree`.
        """
        owned = self._tables[table]
        ids = np.ascontiguousarray(rows)
        if (wrong := first_wrong(ids, owned.store.num_rows)) >= 0:
            raise ShapeError(
                f"row {int(ids[wrong])} at {wrong} is not one of ascending rows within 0..{owned.store.num_rows - 1}"
            )
        with self._taking_part(table, 0, cancellation):
            plan = plan_fetch(
                self._transport, owned.bounds, self._sizes[table], ids, cancellation=cancellation
            )
            fetch = RowFetch(self._transport, owned, plan, verify=self._verify)
            try:
                yield ArrivingRows(layout=plan.layout, source=fetch.arrivals)
                fetch.wait(cancellation=cancellation)
            except BaseException as error:
                # The error is sent before `close` ends the thread; otherwise the others would receive a cancellation.
                self._end(error)
                raise
            finally:
                fetch.close()
                self._count(fetch, len(ids))

    def rates(self) -> NetworkRates | None:
        """Return the network's rates, measured at the start and in later exchanges; None before the first call."""
        return self._rates

    def close(self, error: BaseException | None = None) -> None:
        """Leave the exchanges and notify the others, with ``error`` if given. Idempotent."""
        self._transport.close(error)

    @contextmanager
    def _taking_part(self, call: int, size: int, cancellation: Cancellation) -> Iterator[None]:
        """Check that all hosts make the same call; leave the exchanges if the call fails.

        Parameters
        ----------
        call : `_AGREE`, or the number of a fetched table
        size : number of agreed values; 0 for a fetch
        """
        if not self._turn.acquire(blocking=False):
            raise RankError("rows are being exchanged: one exchange at a time")
        try:
            if not self._sizes:
                self._begin(cancellation)
            self._meet(call, size, cancellation)
            yield
        except BaseException as error:
            self._end(error)
            raise
        finally:
            self._turn.release()

    def _meet(self, call: int, size: int, cancellation: Cancellation) -> None:
        """Compare this call's card with the other hosts' cards; raise RankError if they differ. Collective."""
        card = np.array([self._num_calls, call, size], np.int64)
        self._num_calls += 1
        cards = gather(self._transport, card, cancellation=cancellation)
        if (cards != card).any():
            calls = ", ".join(
                f"{name} {_call_text(*numbers)}"
                for name, numbers in zip(self._transport.names, cards.tolist(), strict=True)
            )
            raise RankError(
                f"machines are at different points of the run: {calls}; give all ranks the same settings, and "
                "begin and leave loops on all of them together"
            )

    def _end(self, error: BaseException) -> None:
        """Close the transport after a failed call, and send the cause to the other hosts."""
        # A cancelled or interrupted host ends normally; every other cause is reported as an error.
        is_failure = isinstance(error, Exception) and not isinstance(error, ChannelClosedError)
        self._transport.close(error if is_failure else None)

    def _begin(self, cancellation: Cancellation) -> None:
        """Compare the hosts' facts about the tables, measure the network, and plan the rounds. Collective."""
        facts = [
            np.concatenate([[table.store.num_rows, table.store.row_bytes], table.bounds]).astype(np.int64)
            for table in self._tables
        ]
        # The digest's 64 bits are sent as an int64, like the other numbers of the card.
        digest = np.array([rows_digest(np.concatenate(facts))], np.uint64).view(np.int64)[0] if facts else 0
        card = np.array([_VERSION, digest, self._memory_bytes, int(self._verify)], np.int64)
        cards = gather(self._transport, card, cancellation=cancellation)
        for name, other in zip(self._transport.names, cards, strict=True):
            if (other[:2] != card[:2]).any():
                raise RankError(
                    f"{name} has other rows than {self._transport.names[self._transport.index]}, or another version of "
                    "gloader; use the same dataset and version on all machines"
                )
        self._verify = bool(cards[:, 3].any())
        self._rates = measure_rates(self._transport, seconds=self._rates_s, cancellation=cancellation)
        self._sizes = [
            plan_sizes(
                int(cards[:, 2].min()),
                num_hosts=len(self._transport.names),
                row_bytes=table.store.row_bytes,
                id_bytes=id_dtype(table.store.num_rows).itemsize,
                # The bits that merge requests: one for each row of the largest range, and one for each page of the
                # file.
                bit_bytes=(
                    int(np.diff(table.bounds).max())
                    + table.store.num_rows * table.store.row_bytes // PAGE_BYTES
                )
                // 8,
            )
            for table in self._tables
        ]

    def _require_same(self, gathered: NDArray[np.float64], names: Sequence[str]) -> None:
        """Raise RankError if a host's numbers differ; ``gathered`` (W, n) has a column for each of ``names``."""
        index = self._transport.index
        for host, numbers in enumerate(gathered):
            for name, theirs, ours in zip(names, numbers, gathered[index], strict=True):
                if theirs != ours:
                    raise RankError(
                        f"{self._transport.names[host]} is at {name} {theirs:g} and {self._transport.names[index]} "
                        f"at {name} {ours:g}; give all ranks the same settings, and begin and leave loops on all of "
                        "them together"
                    )

    def _count(self, fetch: RowFetch, num_rows: int) -> None:
        """Add the traffic of ``fetch`` to the statistics, and correct the network's rates by its measurements."""
        before = self.stats
        self.stats = replace(
            before,
            fetches=before.fetches + 1,
            rounds=before.rounds + fetch.num_rounds,
            rows=before.rows + num_rows,
            bytes_sent=before.bytes_sent + fetch.bytes_sent,
            bytes_received=before.bytes_received + sum(num_bytes for num_bytes, _ in fetch.steps),
            bytes_read=before.bytes_read + fetch.owner.bytes_read,
            seconds=before.seconds + sum(seconds for _, seconds in fetch.steps),
            exposed_s=before.exposed_s + fetch.arrivals.waited_s,
        )
        if self._rates is not None:
            self._rates = corrected(self._rates, fetch.steps)


def _call_text(number: int, call: int, size: int) -> str:
    """Return a card's three numbers as words, for the error. Pure."""
    return (
        f"agrees on {size} numbers in its call {number}"
        if call == _AGREE
        else f"fetches rows of table {call} in its call {number}"
    )
