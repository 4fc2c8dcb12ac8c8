"""Rows for caches that are filled as a loader is opened, from whichever machine has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gloader.ssd_store import load_misses

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.distributed.exchange.exchange import Exchange
    from gloader.ssd_store import FeatureStore
    from gloader.types import IdArray, ReadStats


class ExchangedRows:
    """All rows of a table, of which this machine has a range: a `FeatureSource` within a ``with`` block.

    Each read is an exchange of all machines. Machines read as often as they like: at the end of the block one serves
    the others until all of them are there.

    Parameters
    ----------
    exchange : of the rows
    table : their number
    store : the range that is here
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
        wanted, position = np.unique(rows, return_inverse=True)
        self._agree(is_reading=True)
        with self._exchange.fetch(self._table, wanted, is_cancelled=_never) as arriving:
            held = load_misses(self._store, [wanted], is_cancelled=_never, arriving=arriving)
        try:
            place = np.arange(len(rows)) if at is None else at
            first = np.full(len(wanted), -1, np.int64)
            first[position] = place
            found = held.read_into(0, wanted, out, at=first)
        finally:
            held.close()
        # Of rows that were asked for twice, one place was written.
        again = first[position] != place
        out[place[again]] = out[first[position][again]]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._exchange.close(error)
            return
        nothing = np.empty(0, np.int64)
        while self._agree(is_reading=False):
            with self._exchange.fetch(self._table, nothing, is_cancelled=_never) as arriving:
                load_misses(self._store, [nothing], is_cancelled=_never, arriving=arriving).close()

    def _agree(self, *, is_reading: bool) -> bool:
        """Return whether any machine reads more."""
        return bool(self._exchange.agree(np.array([is_reading], np.float64), is_cancelled=_never).any())


def _never() -> bool:
    return False
