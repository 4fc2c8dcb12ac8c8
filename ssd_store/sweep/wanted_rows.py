"""The rows that a sweep brings to each batch, and the file's pages that hold these rows.

This is the step before a sweep: `collect_rows` lists each batch's missing rows in a `WantedRows`, and marks the pages
of 4 KiB that the sweep must read. Ids take four bytes each if the store allows.

Rows may come from other machines instead of the file. `ArrivalLayout` describes such rows as a virtual file:

- A run is a stretch of ascending rows that one machine sends in one round.
- A slot is a place with the bytes of one row. Slots are numbered in the order of arrival, and replace row ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.ids import as_ids, id_dtype
from gloader.core.kernels import njit
from gloader.core.numba_ops import to_int
from gloader.errors import PlanError, ShapeError
from gloader.ssd_store.format.checksum import extend_digest
from gloader.ssd_store.read.extents import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.core.signals import Cancellation
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WantedRows:
    """The missing rows of S batches, one list after another, and the pages that hold them."""

    # (K,) row ids, or slots of arriving rows; int32, or int64 if there are too many for int32
    ids: NDArray[Any]
    bounds: IdArray  # (S + 1,) each batch's start in `ids`
    pages: NDArray[np.uint64]  # one bit for each page in the (virtual) file, set for needed pages
    num_pages: int  # P
    digests: NDArray[np.uint64]  # (S,) digest over each batch's row ids, see `rows_digest`

    @property
    def counts(self) -> IdArray:
        """(S,) number of rows in each batch."""
        return np.diff(self.bounds)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrivalOrder:
    """The order in which runs of rows arrive. Reading a pack back needs only this part of an `ArrivalLayout`."""

    first_row: IdArray  # (Q,) first row of each run that is not empty, ascending
    run_order: IdArray  # (Q,) positions in `first_row`, in the order of arrival

    def begins(self, rows: NDArray[Any]) -> IdArray:
        """Return (Q + 1,) each run's start in ``rows``, which ascend and all arrive. Pure."""
        return np.append(np.searchsorted(rows, self.first_row), len(rows))

    def positions(self, rows: IdArray) -> IdArray:
        """Return the positions (M,) that put ``rows`` (M,) into the order of arrival. Pure.

        The rows ascend, and all of them arrive.
        """
        positions = np.empty(len(rows), np.int64)
        _list_positions(self.begins(rows), self.run_order, positions)
        return positions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrivalLayout:
    """The layout of arriving rows in runs and slots, as in the module's text.

    A run holds the rows of one owner, a machine, in one round. It begins on a page, so slots between two runs may be
    empty.
    """

    rows: NDArray[Any]  # (K,) int32 or int64, ascending, without repeats: all arriving rows
    bounds: IdArray  # (Q + 1,) ascending: run q is rows[bounds[q]:bounds[q + 1]], and may be empty
    first_slot: IdArray  # (Q,) each run's first slot; not ascending, because each owner sends in every round
    num_slots: int  # slots in all runs, with the empty slots between them
    row_bytes: int  # R

    @property
    def order(self) -> ArrivalOrder:
        """The order in which the runs arrive."""
        has_rows = np.diff(self.bounds) > 0
        return ArrivalOrder(
            first_row=self.rows[self.bounds[:-1][has_rows]].astype(np.int64),
            run_order=np.argsort(self.first_slot[has_rows], kind="stable"),
        )

    def slots(self, rows: IdArray) -> NDArray[Any]:
        """Return the ascending slots that hold ``rows``, in the order of arrival. Pure.

        Parameters
        ----------
        rows : (M,) int64, ascending, without repeats

        Returns
        -------
        (M,) int32, or int64 if there are too many slots for int32

        Raises
        ------
        PlanError
            A row does not arrive.
        """
        order = self.order
        begins, slots = order.begins(rows), np.empty(len(rows), id_dtype(self.num_slots))
        has_rows = np.diff(self.bounds) > 0  # by run
        missing = 0 if len(rows) else -1
        if len(order.run_order):
            begins[0] = 0  # rows before the first arriving row are searched in the first run, and not found
            missing = _list_slots(
                rows,
                begins,
                order.run_order,
                self.rows,
                self.bounds[:-1][has_rows],
                self.bounds[1:][has_rows],
                self.first_slot[has_rows],
                slots,
            )
        if missing >= 0:
            raise PlanError(
                f"row {int(rows[missing])} is missed and does not arrive from any machine; this is a bug of gloader, "
                "please report it"
            )
        return slots


def collect_rows(
    misses: Sequence[IdArray],
    *,
    num_rows: int,
    row_bytes: int,
    cancellation: Cancellation,
    layout: ArrivalLayout | None = None,
) -> WantedRows:
    """List each batch's rows, batch after batch, and mark the pages that hold them.

    Parameters
    ----------
    misses : S arrays with row ids, ascending, without repeats
    num_rows, row_bytes : the store's N and R
    cancellation : the order to end the work early
    layout : layout of rows that arrive in another order than the file's; the result then has the rows' slots

    Raises
    ------
    ShapeError
        A row is out of range, or rows do not ascend; names the batch.
    PlanError
        A row does not arrive.
    ChannelClosedError
        The work was cancelled.
    """
    num_ids = num_rows if layout is None else layout.num_slots
    num_pages = -(-num_ids * row_bytes // ALIGNMENT)
    ids = np.empty(0, id_dtype(num_ids))
    bounds = np.zeros(len(misses) + 1, np.int64)
    pages = empty_bits(num_pages)
    digests = np.empty(len(misses), np.uint64)
    for batch in range(len(misses)):
        cancellation.raise_if_set(f"collecting the missing rows of batch {batch}")
        # Each access to ``misses`` decodes the batch's list anew, so there is one access.
        rows = checked_rows(misses[batch], batch, num_rows)
        start, end = int(bounds[batch]), int(bounds[batch]) + rows.shape[0]
        # The system grows a large array in place, without a copy. The first size assumes batches of equal length.
        if end > ids.shape[0]:
            # (batch == 0) applies this first size only once.
            ids.resize(max(end, len(misses) * rows.shape[0] * (batch == 0)), refcheck=False)
        ids[start:end] = rows if layout is None else layout.slots(rows)
        bounds[batch + 1] = end
        mark_pages(ids[start:end], row_bytes, pages)
        digests[batch] = rows_digest(rows)
    ids.resize(int(bounds[-1]), refcheck=False)
    return WantedRows(ids=ids, bounds=bounds, pages=pages, num_pages=num_pages, digests=digests)


def collect_union(
    misses: Sequence[IdArray], *, num_rows: int, row_bytes: int, cancellation: Cancellation
) -> WantedRows:
    """Collect the rows that any batch misses, each once, as the rows of one batch; raises as `collect_rows`.

    Parameters
    ----------
    misses : S arrays with row ids, ascending, without repeats
    num_rows, row_bytes : the store's N and R
    """
    # A bitmap of rows sorts and merges in one pass, for any S. Each uint64 word has 64 bits, the lowest first.
    bits = empty_bits(num_rows)
    for batch in range(len(misses)):
        cancellation.raise_if_set(f"collecting the missing rows of batch {batch}")
        mark_rows(checked_rows(misses[batch], batch, num_rows), bits)
    ids = np.empty(count_bits(bits), id_dtype(num_rows))
    list_bits(bits, ids)
    num_pages = -(-num_rows * row_bytes // ALIGNMENT)
    pages = empty_bits(num_pages)
    mark_pages(ids, row_bytes, pages)
    return WantedRows(
        ids=ids,
        bounds=np.array([0, ids.shape[0]]),
        pages=pages,
        num_pages=num_pages,
        digests=np.empty(0, np.uint64),
    )


def empty_bits(count: int) -> NDArray[np.uint64]:
    """Return a set of ``count`` bits, all clear. Pure."""
    return np.zeros((count + 63) // 64, np.uint64)


def checked_rows(rows: IdArray, batch: int, num_rows: int) -> IdArray:
    """Return a batch's missing rows as contiguous int64. Pure.

    Parameters
    ----------
    rows : (M,) integers
    batch : the batch's number, for messages
    num_rows : N

    Raises
    ------
    ShapeError
        The rows are not ascending integers in range without repeats.
    """
    ids = as_ids(rows, noun=f"batch {batch}: missing rows", error=ShapeError)
    wrong = first_wrong(ids, num_rows)
    if wrong >= 0:
        raise ShapeError(
            f"batch {batch}: missing row {wrong} is {int(ids[wrong])}; rows must ascend, none twice, within "
            f"0..{num_rows - 1}"
        )
    return ids


def rows_digest(rows: IdArray) -> np.uint64:
    """Return a 64-bit digest of rows (M,) int64, which depends on their order. Pure."""
    with np.errstate(over="ignore"):  # interpreted hashes wrap around
        return np.uint64(extend_digest(np.uint64(rows.shape[0]), rows.view(np.uint64)))


@njit(cache=True, nogil=True)
def first_at_least(ids: NDArray[Any], begin: int, end: int, row: int) -> int:
    """Return the first position from ``begin`` on whose id is ``row`` or more, or ``end``; ids ascend.

    A galloping search: steps double until they pass the row, then a binary search ends it. Callers search ascending
    rows, so the next row is near.
    """
    step = np.int64(1)
    low, high = np.int64(begin), np.int64(begin)
    while high < end and ids[high] < row:
        low = high + 1
        high += step
        step *= 2
    high = min(high, np.int64(end))
    while low < high:
        middle = (low + high) // 2
        if ids[middle] < row:
            low = middle + 1
        else:
            high = middle
    return to_int(low)


@njit(cache=True, nogil=True)
def first_wrong(rows: IdArray, num_rows: int) -> int:
    """Return the first position at which a row does not ascend or lies outside 0..num_rows - 1, or -1."""
    previous = np.int64(-1)
    for i in range(rows.shape[0]):
        if rows[i] <= previous or rows[i] >= num_rows:
            return i
        previous = rows[i]
    return -1


@njit(cache=True, nogil=True)
def mark_pages(ids: NDArray[Any], row_bytes: int, pages: NDArray[np.uint64]) -> None:
    """Set the bits of all pages that hold a byte of the ascending rows ``ids``."""
    page = np.int64(0)
    for i in range(ids.shape[0]):
        first = np.int64(ids[i]) * row_bytes
        # Rows ascend, so a page is marked once, and a wide row marks all of its pages.
        page = max(page, first // ALIGNMENT)
        past = (first + row_bytes - 1) // ALIGNMENT + 1
        while page < past:
            pages[page >> 6] |= np.uint64(1) << np.uint64(page & 63)
            page += 1


@njit(cache=True, nogil=True)
def mark_rows(rows: IdArray, bits: NDArray[np.uint64]) -> None:
    """Set the bits at the positions ``rows``."""
    for row in rows:
        bits[row >> 6] |= np.uint64(1) << np.uint64(row & 63)


@njit(cache=True, nogil=True)
def count_bits(bits: NDArray[np.uint64]) -> int:
    """Return the number of set bits."""
    count = 0
    for word in bits:
        remaining = word
        while remaining != np.uint64(0):
            remaining &= remaining - np.uint64(1)  # clears the lowest set bit
            count += 1
    return count


@njit(cache=True, nogil=True)
def list_bits(bits: NDArray[np.uint64], out: NDArray[Any]) -> None:
    """Write the positions of the set bits to ``out``, ascending."""
    count = 0
    for i in range(bits.shape[0]):
        word = bits[i]
        bit = np.int64(0)
        while word != np.uint64(0):
            if word & np.uint64(1):
                out[count] = i * 64 + bit
                count += 1
            word >>= np.uint64(1)
            bit += 1


@njit(cache=True, nogil=True)
def next_bit(bits: NDArray[np.uint64], start: int, limit: int) -> int:
    """Return the first set bit in ``start`` to ``limit - 1``, or ``limit``."""
    bit = np.int64(start)
    while bit < limit:
        word = bits[bit >> 6] >> np.uint64(bit & 63)
        # With few misses holes are long, so a step skips the rest of a word.
        if word == np.uint64(0):
            bit = (bit | 63) + 1
            continue
        while not word & np.uint64(1):
            word >>= np.uint64(1)
            bit += 1
        break
    return to_int(min(bit, limit))


@njit(cache=True, nogil=True)
def _list_positions(begins: IdArray, run_order: IdArray, positions: IdArray) -> None:
    """Write the positions of all rows, run after run, in the order of arrival."""
    count = 0
    for run in run_order:
        for i in range(begins[run], begins[run + 1]):
            positions[count] = i
            count += 1


@njit(cache=True, nogil=True)
def _list_slots(
    rows: IdArray,
    begins: IdArray,
    run_order: IdArray,
    arriving: NDArray[Any],
    first: IdArray,
    past: IdArray,
    first_slot: IdArray,
    slots: NDArray[Any],
) -> int:
    """Write the slots for ``rows``, run after run. Return the position of a row that does not arrive, or -1.

    Parameters
    ----------
    rows : (M,) ascending
    begins : (Q + 1,) start of each run's rows in ``rows``
    run_order : (Q,) run numbers in the order of arrival
    arriving : (K,) all arriving rows, ascending
    first, past : (Q,) each run's begin and end in ``arriving``
    first_slot : (Q,) each run's first slot
    slots : (M,) written
    """
    count = 0
    for run in run_order:
        low, end = first[run], past[run]
        shift = first_slot[run] - first[run]
        for i in range(begins[run], begins[run + 1]):
            low = first_at_least(arriving, low, end, rows[i])
            if low == end or arriving[low] != rows[i]:
                return i
            slots[count] = low + shift
            count += 1
    return -1
