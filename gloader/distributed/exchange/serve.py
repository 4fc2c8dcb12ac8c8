"""The owner's side of an exchange: what all machines want in a round, read once, and each machine's part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from gloader.core.aligned_memory import mapped_bytes
from gloader.core.numba_ops import copy_block
from gloader.errors import RankError
from gloader.ssd_store.format.checksum import PAGE_BYTES, checksum_pages
from gloader.ssd_store.sweep.sweep import Sweeper
from gloader.ssd_store.sweep.wanted_rows import (
    WantedRows,
    count_bits,
    empty_bits,
    first_wrong,
    list_bits,
    mark_pages,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gloader.distributed.exchange.rounds import RoundSizes
    from gloader.ssd_store.read.reader import FeatureStore
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnedRows:
    """The rows of a table, and which machine reads which of them."""

    store: FeatureStore
    bounds: IdArray  # (W + 1,) host w reads the rows from bounds[w] to bounds[w + 1] - 1
    # Copies those of the rows (M,), ascending, that memory holds into (M, R), and says which, (M,). From a thread.
    cached: Callable[[IdArray, NDArray[np.uint8]], NDArray[np.bool_]] | None = None


class Owner:
    """Serves the rounds of one exchange. Owns a sweep's lane and buffers until `close`.

    Parameters
    ----------
    owned : the rows
    index : of this host
    names : (W,) of all hosts, for errors
    sizes : of a round
    max_union : rows of the largest round, at most
    verify : whether rows are sent with checksums
    """

    def __init__(
        self,
        owned: OwnedRows,
        *,
        index: int,
        names: Sequence[str],
        sizes: RoundSizes,
        max_union: int,
        verify: bool,
    ) -> None:
        self._owned = owned
        self._names = names
        self._verify = verify
        self._lower, self._upper = int(owned.bounds[index]), int(owned.bounds[index + 1])
        self._stored = stored = owned.store.stored_rows
        # A byte more than the rows: a sweep never finds it full.
        self._swept = mapped_bytes(max_union * stored.row_bytes + 1, touch=False)
        self._cached = mapped_bytes(0 if owned.cached is None else max_union * stored.row_bytes, touch=False)
        self._pages = empty_bits(-(-stored.num_rows * stored.row_bytes // PAGE_BYTES))
        self._sweeper = Sweeper(stored, mapped_bytes(sizes.ring_bytes), file=owned.store.duplicate_file())
        self.bytes_read = 0  # from the disk

    def reply(
        self,
        asked: Sequence[NDArray[Any]],
        out: Sequence[NDArray[np.uint8]],
        sums: Sequence[NDArray[np.uint64]],
        keys: Sequence[int],
        *,
        is_cancelled: Callable[[], bool],
    ) -> None:
        """Fill each machine's part of a round.

        Parameters
        ----------
        asked : (W,) row ids that each asks for, ascending
        out : (W,) whole pages for the rows of each, behind which there are zeros
        sums : (W,) receives the checksums of these pages
        keys : (W,) the numbers of their first pages, for the checksums
        is_cancelled : looked at every few milliseconds

        Raises
        ------
        RankError
            A machine asks for rows that are not this one's.
        StoreError
            The rows cannot be read, or are damaged.
        ChannelClosedError
            ``is_cancelled`` returned true.
        """
        union = self._union(asked)
        is_held = np.zeros(union.shape[0], np.bool_)
        cached = self._cached[: union.shape[0] * self._stored.row_bytes]
        if self._owned.cached is not None and union.shape[0]:
            is_held = self._owned.cached(union.astype(np.int64), cached.reshape(-1, self._stored.row_bytes))
        self._sweep(union[~is_held], is_cancelled)
        for rows, part, part_sums, key in zip(asked, out, sums, keys, strict=True):
            num_bytes = rows.shape[0] * self._stored.row_bytes
            _copy_asked(rows, union, is_held, cached, self._swept, self._stored.row_bytes, part)
            part[num_bytes:] = 0
            if self._verify:
                checksum_pages(part, key, part_sums)

    def close(self) -> None:
        """Release everything. Idempotent."""
        self._sweeper.close()

    def _union(self, asked: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the rows that any machine asks for, ascending."""
        present = [rows for rows in asked if rows.shape[0]]
        for rows, name in zip(asked, self._names, strict=True):
            is_wrong = rows.shape[0] and (first_wrong(rows, self._upper) >= 0 or int(rows[0]) < self._lower)
            if is_wrong:
                raise RankError(
                    f"{name} asks for rows that do not ascend within {self._lower}..{self._upper - 1}, which this "
                    "machine reads; use one version of gloader and one dataset on all machines"
                )
        if not present:
            return np.empty(0, np.int64)
        low = min(int(rows[0]) for rows in present)
        bits = empty_bits(max(int(rows[-1]) for rows in present) + 1 - low)
        for rows in present:
            _mark(rows, low, bits)
        union = np.empty(count_bits(bits), present[0].dtype)
        list_bits(bits, union)
        union += union.dtype.type(low)
        return union

    def _sweep(self, rows: NDArray[Any], is_cancelled: Callable[[], bool]) -> None:
        if rows.shape[0] == 0:
            return
        row_bytes = self._stored.row_bytes
        first, past = (
            int(rows[0]) * row_bytes // PAGE_BYTES,
            -(-(int(rows[-1]) + 1) * row_bytes // PAGE_BYTES),
        )
        mark_pages(rows, row_bytes, self._pages)
        wanted = WantedRows(
            ids=rows,
            bounds=np.array([0, rows.shape[0]]),
            pages=self._pages,
            num_pages=-(-self._stored.num_rows * row_bytes // PAGE_BYTES),
            digests=np.empty(0, np.uint64),
        )
        cost = self._sweeper.to_memory(wanted, self._swept, is_cancelled=is_cancelled)
        self.bytes_read += cost.read.bytes_read
        self._pages[first // 64 : -(-past // 64)] = 0


@njit(cache=True, nogil=True)
def _mark(rows: NDArray[Any], low: int, bits: NDArray[np.uint64]) -> None:
    """Set the bits ``rows - low``."""
    for i in range(rows.shape[0]):
        bit = np.int64(rows[i]) - low
        bits[bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)


@njit(cache=True, nogil=True)
def _copy_asked(
    asked: NDArray[Any],
    union: NDArray[Any],
    is_held: NDArray[np.bool_],
    held: NDArray[np.uint8],
    swept: NDArray[np.uint8],
    row_bytes: int,
    out: NDArray[np.uint8],
) -> None:
    """Copy the rows ``asked``, all of them in ``union``: those held lie at their place in it, the others in a row."""
    at, num_swept = np.int64(0), np.int64(0)
    for i in range(asked.shape[0]):
        while union[at] < asked[i]:
            num_swept += 0 if is_held[at] else 1
            at += 1
        if is_held[at]:
            copy_block(out, i * row_bytes, held, at * row_bytes, row_bytes)
        else:
            copy_block(out, i * row_bytes, swept, num_swept * row_bytes, row_bytes)
