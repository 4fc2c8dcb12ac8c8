"""Feature rows of all machines for one reading host, for example in an evaluation; the other hosts serve.

Each machine stores a range of the rows, and takes part by one process, its host. One host reads rows of all ranges
with a `RowReader`; each other host calls `serve_rows`. `AllRows` presents a table of the reader as a `FeatureSource`.

All hosts make the same collective calls in one order. So each call begins with an announcement: the reading host
announces its next call, and the serving hosts join it. While the reading host computes, it announces a beat, a sign of
life, so that no wait times out. A piece is the rows that one exchange brought; the reader keeps the last piece in
memory, as the next reads may need more of its rows.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.core.signals import NEVER, Cancellation
from gloader.errors import LoaderClosedError, RankError
from gloader.ssd_store import load_misses
from gloader.ssd_store.read.columns import check_request
from gloader.types import ReadStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.distributed.exchange.exchange import Exchange
    from gloader.ssd_store import FeatureStore, MissSource
    from gloader.ssd_store.read.columns import RowRequest
    from gloader.types import IdArray

PIECE_BYTES: Final = 8 * 2**20  # maximum bytes of rows per exchange
_BEAT_S: Final = 1.0  # seconds between two beats of a computing reader
# Announcements of the next call: a serving host has none; the reading host sends a beat, reads rows, or ends.
_SERVES, _BEATS, _READS, _ENDS = range(4)


def serve_rows(exchange: Exchange, *, cancellation: Cancellation) -> None:
    """Serve the reading host until it has ended; closes ``exchange``.

    Parameters
    ----------
    exchange : the exchange of the rows, with the same tables on all hosts

    Raises
    ------
    RankError
        A host is gone, does not respond or failed; the error names it. Or no host reads.
    StoreError
        This machine's rows cannot be read, or are damaged; the other hosts are notified.
    ChannelClosedError
        The work was cancelled.
    """
    nothing = np.empty(0, np.int64)
    try:
        while True:
            call, table = _announced(exchange.agree(np.array([_SERVES, 0.0]), cancellation=cancellation))
            if call == _ENDS:
                exchange.close()
                return
            if call == _READS:
                with exchange.fetch(table, nothing, cancellation=cancellation):
                    pass  # the block ends when all hosts have their rows
    except BaseException as error:
        exchange.close(error)
        raise


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _FetchedRows:
    """The rows from one exchange."""

    table: int  # number of the table
    first: int  # the first row
    past: int  # the row after the last row
    is_run: bool  # whether these are consecutive rows: all rows from ``first`` to ``past - 1``
    held: MissSource  # the rows in memory

    def has(self, table: int, row: int) -> bool:
        """Return whether ``row`` and all rows up to ``past - 1`` are in this piece."""
        return self.is_run and table == self.table and self.first <= row < self.past


class RowReader:
    """The reading host: it reads its own rows from its disk, and all others by exchanges with the serving hosts.

    Owns ``exchange`` and a thread until the end of its ``with`` block, which notifies the other hosts.
    Thread-safe: reads from several threads take turns.

    Parameters
    ----------
    exchange : the exchange of the rows, with the same tables on all hosts
    stores : each table's rows on this host
    """

    def __init__(self, exchange: Exchange, stores: Sequence[FeatureStore]) -> None:
        self._exchange = exchange
        self._stores = stores
        self._ends = [-1] * len(stores)  # per table, the row after the last read row; -1 before any read
        self._piece: _FetchedRows | None = None
        self._turn = threading.Lock()
        self._is_over = threading.Event()
        self._failure: BaseException | None = None  # a beat's error, which the next read raises
        self._thread = threading.Thread(target=self._beat, name="gloader-beat", daemon=True)

    def read(self, table: int, request: RowRequest, out: NDArray[Any]) -> ReadStats:
        """Read a table's rows.

        Parameters
        ----------
        table : the table's number
        request : ascending rows, and their places in ``out``
        out : (K, F), in the stored dtype or float32

        Raises
        ------
        RankError
            A host is gone, does not respond or failed; the error names it.
        StoreError
            A row cannot be read, or is damaged.
        LoaderClosedError
            The block has ended.
        """
        store, rows = self._stores[table], request.rows
        position = request.position if request.position.shape[0] else np.arange(rows.shape[0])
        first, past = np.searchsorted(rows, store.held).tolist()
        # ``store.held`` is this host's range of rows, which need no other host.
        local = store.read_into(rows[first:past], out, at=position[first:past])
        if past > first:
            self._ends[table] = int(rows[past - 1]) + 1
        self._read_others(table, rows[:first], position[:first], out)
        self._read_others(table, rows[past:], position[past:], out)
        return ReadStats(rows=rows.shape[0], requests=local.requests, bytes_read=local.bytes_read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()  # ends the thread after its present beat
        self._thread.join()
        with self._turn:
            self._drop_piece()
        error = error or self._failure
        try:
            if error is None:
                self._announce(_ENDS, 0)
        finally:
            self._exchange.close(error)

    def _read_others(self, table: int, rows: IdArray, position: IdArray, out: NDArray[Any]) -> None:
        """Read rows of other machines into ``out``, piece by piece; ``position`` are their places in ``out``."""
        with self._turn:
            while rows.shape[0]:
                self._require_open()
                piece = self._piece
                if piece is None or not piece.has(table, int(rows[0])):
                    piece = self._piece = self._fetch(table, rows)
                count = int(np.searchsorted(rows, piece.past))
                piece.held.read_into(0, rows[:count], out, at=position[:count])
                self._ends[table] = int(rows[count - 1]) + 1
                rows, position = rows[count:], position[count:]

    def _fetch(self, table: int, rows: IdArray) -> _FetchedRows:
        """Return a piece with the first rows of ``rows``, and with the rows after them if the table is read in order.

        Even a small exchange takes milliseconds, and a reader that computes requests few rows per call. So a read in
        order fetches a piece of up to `PIECE_BYTES`, whose further rows serve the next calls.
        """
        self._drop_piece()  # frees its memory for the next piece
        store = self._stores[table]
        step = max(1, PIECE_BYTES // store.row_bytes)
        first = int(rows[0])
        distinct, past = np.unique(rows[:step]), int(rows[:step][-1]) + 1
        # The table is read in order if this read continues the last one, and its rows are consecutive. The piece ends
        # before this host's own range.
        if first == self._ends[table] and past - first == distinct.shape[0]:
            end = store.held[0] if first < store.held[0] else store.num_rows
            past = max(past, min(first + step, end))
            distinct = np.arange(first, past)
        self._announce(_READS, table)
        with self._exchange.fetch(table, distinct, cancellation=NEVER) as arriving:
            held = load_misses(store, [distinct], cancellation=NEVER, arriving=arriving)
        is_run = past - first == distinct.shape[0]
        return _FetchedRows(table=table, first=first, past=past, is_run=is_run, held=held)

    def _drop_piece(self) -> None:
        """Free the last piece's memory. The caller holds `_turn`."""
        piece, self._piece = self._piece, None
        if piece is not None:
            piece.held.close()

    def _require_open(self) -> None:
        """Raise the error of a failed beat, or LoaderClosedError after the end of the block."""
        if self._failure is not None:
            raise self._failure
        if self._is_over.is_set():
            raise LoaderClosedError(
                "rows of other machines were read after the machines had ended the exchange"
            )

    def _announce(self, call: int, table: int) -> None:
        """Announce the next call, one of `_BEATS`, `_READS` and `_ENDS`, to the serving hosts. Collective."""
        self._exchange.agree(np.array([call, table], np.float64), cancellation=NEVER)

    def _beat(self) -> None:
        """Announce a beat each second, until the ``with`` block ends."""
        while not self._is_over.wait(_BEAT_S):
            # A running read counts as a sign of life, and no other collective may run at the same time.
            if not self._turn.acquire(blocking=False):
                continue
            try:
                self._announce(_BEATS, 0)
            except BaseException as error:  # noqa: BLE001 - raised by the next read
                self._failure = error
                return
            finally:
                self._turn.release()


class AllRows:
    """All rows of a table, of which this host stores a range. A `FeatureSource` while ``reader`` is open.

    Parameters
    ----------
    table : the table's number
    store : the range on this host
    reader : returns the open reader, or raises
    """

    def __init__(self, table: int, store: FeatureStore, reader: Callable[[], RowReader]) -> None:
        self._table = table
        self._store = store
        self._reader = reader

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
        """Read ``rows`` into ``out``, as `FeatureSource.read_into`; raises as `RowReader.read`, and ShapeError."""
        request = check_request(rows, out, num_rows=self.num_rows, dim=self.dim, at=at)
        return self._reader().read(self._table, request.in_file_order(), out)


def _announced(announcements: NDArray[np.float64]) -> tuple[int, int]:
    """Return the reading host's next call, and the table, from all hosts' announcements (W, 2). Pure."""
    readers = announcements[announcements[:, 0] != _SERVES]
    if len(readers) != 1:
        raise RankError(
            f"{len(readers)} of {len(announcements)} machines read the rows of all machines, but exactly one must: end "
            "all ranks, and start them again with the same version of gloader"
        )
    return int(readers[0, 0]), int(readers[0, 1])
