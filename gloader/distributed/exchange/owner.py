"""The owner's side of an exchange: each round reads the requested rows once and sends them to all machines.

In an exchange each machine reads a range of a table's rows, its own range, for all W machines. The receiver's side, in
`gloader.distributed.exchange.receiver`, calls this file. First, `plan_sizes` bounds the rounds by the memory,
`plan_rounds` divides the requests into rounds, and `plan_arrivals` lays out the rows; all three are pure. Then, in each
round, `Owner` reads the union of the requested rows in one sweep, and copies each machine's part. A sweep reads rows in
the order of the file, in large reads.

- A bucket is a range of consecutive rows, in which machines count their requests.
- A round is consecutive buckets of each owner, so that no machine receives too many rows from one owner. There are Q
  rounds.
- A slice is the rows from one machine to one other machine in a round.
- A run is one owner's rows in one round as they arrive; each run begins with a new page of 4 KiB.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.aligned_memory import mapped_bytes
from gloader.core.kernels import njit
from gloader.core.numba_ops import copy_block, to_int
from gloader.errors import BudgetError, RankError
from gloader.ssd_store.format.checksum import PAGE_BYTES, checksum_pages
from gloader.ssd_store.sweep.sweeper import MAX_RING_BYTES, MIN_RING_BYTES, Sweeper
from gloader.ssd_store.sweep.wanted_rows import (
    ArrivalLayout,
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

    from gloader.core.signals import Cancellation
    from gloader.ssd_store.feature_store import FeatureStore
    from gloader.types import IdArray


LAG: Final = 2  # number of steps from a round's ids to its rows; the rows are read in the step between
SUM_BYTES: Final = 8  # bytes of a checksum, and of one word of ids
MAX_SLICE_BYTES: Final = 64 * 2**20  # maximum bytes of a slice: gloo fails with gigabytes
# Number of buckets in a full slice. A round ends at a bucket, so that a slice is at least 7/8 full.
_BUCKETS_A_SLICE: Final = 8
_RING_SHARE: Final = 8  # the memory for an exchange, divided by the bytes of the sweep's ring buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSizes:
    """The bounds of a round, the same on every machine."""

    num_hosts: int  # W
    row_bytes: int  # R
    id_bytes: int  # bytes of one row id in a message
    max_rows: int  # maximum rows of a slice
    ring_bytes: int  # ring buffer of the owner's sweep
    memory_bytes: int  # memory that an exchange with many full rounds takes on one machine

    @property
    def bucket_rows(self) -> int:
        """Number of consecutive rows in a bucket; requests are counted per bucket."""
        return max(1, self.max_rows // _BUCKETS_A_SLICE)

    def reply_bytes(self, num_rows: IdArray) -> IdArray:
        """Return the bytes for ``num_rows`` rows, in full pages, and their checksums. Pure."""
        return -(-num_rows * self.row_bytes // PAGE_BYTES) * (PAGE_BYTES + SUM_BYTES)

    def request_bytes(self, num_rows: IdArray) -> IdArray:
        """Return the bytes for ``num_rows`` row ids, in full words, and their digest. Pure."""
        return (-(-num_rows * self.id_bytes // SUM_BYTES) + (num_rows > 0)) * SUM_BYTES


def plan_sizes(
    memory_bytes: int, *, num_hosts: int, row_bytes: int, id_bytes: int, bit_bytes: int = 0
) -> RoundSizes:
    """Return the largest rounds that fit into the memory. Pure.

    Parameters
    ----------
    memory_bytes : a machine's memory for all exchange buffers
    num_hosts : W
    row_bytes : R
    id_bytes : bytes of one row id in a message
    bit_bytes : memory for the row and page bits with which an owner merges requests

    Raises
    ------
    BudgetError
        The memory is too small for one row per machine.
    """
    ring = min(MAX_RING_BYTES, max(MIN_RING_BYTES, memory_bytes // _RING_SHARE))
    sizes = RoundSizes(
        num_hosts=num_hosts,
        row_bytes=row_bytes,
        id_bytes=id_bytes,
        max_rows=0,
        ring_bytes=ring,
        memory_bytes=0,
    )

    def needed(max_rows: int) -> int:
        """Return the bytes of all buffers for slices of ``max_rows`` rows."""
        rows = np.array([max_rows])
        message = int(sizes.reply_bytes(rows)[0] + sizes.request_bytes(rows)[0])
        # 2 * row_bytes: a round's rows from the sweep and from the host cache. id_bytes + 1: their ids and the mask of
        # cached rows. 4 * message: the reply being sent, the next reply being read, the arrived reply being handed out,
        # and the next reply that arrives. 6 pages: each of these six buffers ends at a full page.
        return (
            ring
            + bit_bytes
            + num_hosts * (max_rows * (2 * row_bytes + id_bytes + 1) + 4 * message)
            + 6 * PAGE_BYTES
        )

    # Bisection: ``low`` rows fit, and ``high`` rows do not.
    low, high = 0, MAX_SLICE_BYTES // row_bytes + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= memory_bytes else (low, middle)
    if low == 0:
        raise BudgetError(
            f"an exchange of rows among {num_hosts} machines needs {needed(1)} bytes of buffers and {memory_bytes} are "
            "allowed; raise memory_budget"
        )
    return replace(sizes, max_rows=low, memory_bytes=needed(low))


def bucket_starts(lower: int, upper: int, bucket_rows: int) -> IdArray:
    """Return (B + 1,) each bucket's first row in an owner's range, then the range's end. Pure."""
    return np.append(np.arange(lower, upper, bucket_rows), upper).astype(np.int64)


def plan_rounds(counts: IdArray, max_rows: int) -> IdArray:
    """Return (Q + 1,) each round's first bucket, then the number of buckets. Pure.

    The plan has as few rounds as possible with at most ``max_rows`` for each machine. Without requests Q is 0.

    Parameters
    ----------
    counts : (W, B) requested rows per machine and bucket, each at most ``max_rows``
    max_rows : maximum rows to one machine in one round
    """
    cuts = np.empty(counts.shape[1] + 2, np.int64)
    return cuts[: _cut(np.ascontiguousarray(counts), max_rows, cuts)].copy()


@njit(cache=True, nogil=True)
def _cut(counts: NDArray[np.int64], max_rows: int, cuts: IdArray) -> int:
    """Write the rounds of `plan_rounds` into ``cuts``, and return their number plus 1.

    Buckets are added to a round until one machine's rows would exceed ``max_rows``; then a new round begins.
    """
    num_hosts, num_buckets = counts.shape
    held = np.zeros(num_hosts, np.int64)  # each machine's rows in the present round
    num_cuts, is_empty = np.int64(1), True
    cuts[0] = 0
    for bucket in range(num_buckets):
        is_full = False
        for host in range(num_hosts):
            is_full |= held[host] + counts[host, bucket] > max_rows
        if is_full:
            cuts[num_cuts] = bucket
            num_cuts += 1
            held[:] = 0
        for host in range(num_hosts):
            held[host] += counts[host, bucket]
            is_empty &= counts[host, bucket] == 0
    if is_empty:
        return 1
    cuts[num_cuts] = num_buckets
    return to_int(num_cuts + 1)


def plan_arrivals(rows: NDArray[Any], bounds: IdArray, row_bytes: int) -> ArrivalLayout:
    """Lay out arriving rows: round by round, and within a round owner by owner. Pure.

    Parameters
    ----------
    rows : (K,) ascending, without duplicates
    bounds : (W, Q + 1) ascending. Owner w sends rows[bounds[w, q]:bounds[w, q + 1]] in round q; the rows of owner
        w + 1 follow the rows of owner w
    row_bytes : R
    """
    # Arriving rows lie in slots of R bytes. A run begins at a slot whose first byte begins a page, and ``step`` is the
    # number of slots from one such slot to the next.
    run_rows = np.diff(bounds, axis=1).T.reshape(-1)  # (Q * W,) rows per run, in order of arrival
    step = PAGE_BYTES // math.gcd(PAGE_BYTES, row_bytes)
    run_slots = -(-run_rows // step) * step
    first = np.cumsum(run_slots) - run_slots
    num_slots = int(np.max(first + run_rows, initial=0, where=run_rows > 0))
    num_rounds, num_owners = bounds.shape[1] - 1, bounds.shape[0]
    return ArrivalLayout(
        rows=rows,
        bounds=np.append(bounds[:, :-1].reshape(-1), rows.shape[0]).astype(np.int64),
        first_slot=np.ascontiguousarray(first.reshape(num_rounds, num_owners).T.reshape(-1).astype(np.int64)),
        num_slots=num_slots,
        row_bytes=row_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnedRows:
    """A table's rows, and the range that each machine reads."""

    store: FeatureStore  # the rows on this machine's disk
    bounds: IdArray  # (W + 1,) host w reads the rows from bounds[w] to bounds[w + 1] - 1
    # Copies the cached rows among ascending ids (M,) into (M, R). Returns a mask (M,). Called from a thread.
    cached: Callable[[IdArray, NDArray[np.uint8]], NDArray[np.bool_]] | None = None


class Owner:
    """Serves one exchange's rounds. Owns a `Sweeper` with its file, and buffers, until `close`.

    Parameters
    ----------
    owned : the table's rows
    index : this host's index
    names : (W,) all hosts' names, for errors
    sizes : the rounds' bounds
    max_union : maximum number of distinct rows in a round
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
        # Rows from the disk. With the extra byte, a sweep never finds the buffer full.
        self._swept = mapped_bytes(max_union * stored.row_bytes + 1, touch=False)
        self._cached = mapped_bytes(0 if owned.cached is None else max_union * stored.row_bytes, touch=False)
        # One bit per page of the file: the pages to read. All bits are 0 between two rounds.
        self._pages = empty_bits(-(-stored.num_rows * stored.row_bytes // PAGE_BYTES))
        self._sweeper = Sweeper(stored, mapped_bytes(sizes.ring_bytes), file=owned.store.duplicate_file())
        self.bytes_read = 0  # bytes read from the disk

    def reply(
        self,
        requests: Sequence[NDArray[Any]],
        out: Sequence[NDArray[np.uint8]],
        sums: Sequence[NDArray[np.uint64]],
        keys: Sequence[int],
        *,
        cancellation: Cancellation,
    ) -> None:
        """Fill each machine's slice of a round: read the union of the requested rows, then copy each machine's rows.

        Parameters
        ----------
        requests : (W,) row ids that each machine requests, ascending
        out : (W,) full pages for each machine's rows, padded with zeros
        sums : (W,) receives the pages' checksums
        keys : (W,) each machine's first page number, for the checksums

        Raises
        ------
        RankError
            A machine requests rows that another machine reads.
        StoreError
            The rows cannot be read, or are damaged.
        ChannelClosedError
            The work was cancelled.
        """
        union = self._union(requests)
        is_held = np.zeros(union.shape[0], np.bool_)
        cached = self._cached[: union.shape[0] * self._stored.row_bytes]
        if self._owned.cached is not None and union.shape[0]:
            is_held = self._owned.cached(union.astype(np.int64), cached.reshape(-1, self._stored.row_bytes))
        self._sweep(union[~is_held], cancellation)
        for rows, part, part_sums, key in zip(requests, out, sums, keys, strict=True):
            num_bytes = rows.shape[0] * self._stored.row_bytes
            _copy_requested(rows, union, is_held, cached, self._swept, self._stored.row_bytes, part)
            part[num_bytes:] = 0
            if self._verify:
                checksum_pages(part, key, part_sums)

    def close(self) -> None:
        """Release everything. Idempotent."""
        self._sweeper.close()

    def _union(self, requests: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the union of the requested rows, ascending."""
        present = [rows for rows in requests if rows.shape[0]]
        for rows, name in zip(requests, self._names, strict=True):
            is_wrong = rows.shape[0] and (first_wrong(rows, self._upper) >= 0 or int(rows[0]) < self._lower)
            if is_wrong:
                raise RankError(
                    f"{name} requests rows that do not ascend, or are not in {self._lower}..{self._upper - 1}, the "
                    "range of this machine; use one version of gloader and one dataset on all machines"
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

    def _sweep(self, rows: NDArray[Any], cancellation: Cancellation) -> None:
        """Read ``rows``, ascending, from the disk into ``_swept``."""
        if rows.shape[0] == 0:
            return
        row_bytes = self._stored.row_bytes
        # The first page with a wanted row, and the page after the last one.
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
        cost = self._sweeper.to_memory(wanted, self._swept, cancellation=cancellation)
        self.bytes_read += cost.read.bytes_read
        self._pages[first // 64 : -(-past // 64)] = 0  # a word has the bits of 64 pages


@njit(cache=True, nogil=True)
def _mark(rows: NDArray[Any], low: int, bits: NDArray[np.uint64]) -> None:
    """Set the bits ``rows - low`` in ``bits``, which has 64 bits per word."""
    for i in range(rows.shape[0]):
        bit = np.int64(rows[i]) - low
        bits[bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)


@njit(cache=True, nogil=True)
def _copy_requested(
    requested: NDArray[Any],
    union: NDArray[Any],
    is_held: NDArray[np.bool_],
    held: NDArray[np.uint8],
    swept: NDArray[np.uint8],
    row_bytes: int,
    out: NDArray[np.uint8],
) -> None:
    """Copy the rows ``requested`` to ``out``, by a merge of ``requested`` and ``union``, which both ascend.

    ``held`` has room for each row of ``union``, and contains the rows with ``is_held``, from the host cache. ``swept``
    has only the other rows. In the loop, ``num_swept`` of them come before position ``at`` of ``union``.
    """
    at, num_swept = np.int64(0), np.int64(0)
    for i in range(requested.shape[0]):
        while union[at] < requested[i]:
            num_swept += 0 if is_held[at] else 1
            at += 1
        if is_held[at]:
            copy_block(out, i * row_bytes, held, at * row_bytes, row_bytes)
        else:
            copy_block(out, i * row_bytes, swept, num_swept * row_bytes, row_bytes)
