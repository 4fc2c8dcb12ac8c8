"""The plan of an exchange: buckets of an owner's rows, and the rounds in which it sends them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit

from gloader.core.numba_ops import to_int
from gloader.errors import BudgetError
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.sweep.arrivals import ArrivalLayout
from gloader.ssd_store.sweep.sweep import MAX_RING_BYTES, MIN_RING_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

LAG: Final = 2  # steps from the ids of a round to its rows: it is read while others are on their way
SUM_BYTES: Final = 8  # of a checksum, and of the words that ids fill
MAX_SLICE_BYTES: Final = 64 * 2**20  # to one machine in one round: gloo fails with messages of gigabytes
_BUCKETS_A_SLICE: Final = 8  # a round ends at a bucket, so that its slices are 7/8 full and more
_RING_SHARE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSizes:
    """What a round may take, the same on every machine."""

    num_hosts: int  # W
    row_bytes: int  # R
    id_bytes: int  # of a row id on the wire
    max_rows: int  # from one machine to one other
    ring_bytes: int  # of the owner's sweep
    memory_bytes: int  # what an exchange of many full rounds takes on a machine

    @property
    def bucket_rows(self) -> int:
        """Rows of an owner's range whose requests are counted together."""
        return max(1, self.max_rows // _BUCKETS_A_SLICE)

    def reply_bytes(self, num_rows: IdArray) -> IdArray:
        """Return the bytes of so many rows, in whole pages, and of the checksums behind them. Pure."""
        return -(-num_rows * self.row_bytes // PAGE_BYTES) * (PAGE_BYTES + SUM_BYTES)

    def request_bytes(self, num_rows: IdArray) -> IdArray:
        """Return the bytes of the ids of so many rows, in whole words, and of their digest. Pure."""
        return (-(-num_rows * self.id_bytes // SUM_BYTES) + (num_rows > 0)) * SUM_BYTES


def plan_sizes(
    memory_bytes: int, *, num_hosts: int, row_bytes: int, id_bytes: int, bit_bytes: int = 0
) -> RoundSizes:
    """Return the largest rounds that fit into the memory. Pure.

    Parameters
    ----------
    memory_bytes : of all buffers of an exchange on a machine
    num_hosts, row_bytes, id_bytes : W, R and the bytes of a row id
    bit_bytes : of the bits for rows and pages by which an owner merges what it is asked for

    Raises
    ------
    BudgetError
        It does not hold a row for each machine.
    """
    ring = min(MAX_RING_BYTES, max(MIN_RING_BYTES, memory_bytes // _RING_SHARE))

    def needed(max_rows: int) -> int:
        rows = np.array([max_rows])
        sizes = RoundSizes(
            num_hosts=num_hosts,
            row_bytes=row_bytes,
            id_bytes=id_bytes,
            max_rows=max_rows,
            ring_bytes=0,
            memory_bytes=0,
        )
        message = int(sizes.reply_bytes(rows)[0] + sizes.request_bytes(rows)[0])
        # The rows of a round as they are swept and as the host cache has them; what is sent, and what is read to be
        # sent next; what arrived, and what arrives while that is dealt out.
        return (
            ring
            + bit_bytes
            + num_hosts * (max_rows * (2 * row_bytes + id_bytes + 1) + 4 * message)
            + 6 * PAGE_BYTES
        )

    low, high = 0, MAX_SLICE_BYTES // row_bytes + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= memory_bytes else (low, middle)
    if low == 0:
        raise BudgetError(
            f"an exchange of rows among {num_hosts} machines needs {needed(1)} bytes of buffers and {memory_bytes} are "
            "allowed; raise memory_budget"
        )
    return RoundSizes(
        num_hosts=num_hosts,
        row_bytes=row_bytes,
        id_bytes=id_bytes,
        max_rows=low,
        ring_bytes=ring,
        memory_bytes=needed(low),
    )


def bucket_starts(lower: int, upper: int, bucket_rows: int) -> IdArray:
    """Return (B + 1,) the rows at which the buckets of an owner's range begin, and its end. Pure."""
    return np.append(np.arange(lower, upper, bucket_rows), upper).astype(np.int64)


def plan_rounds(counts: IdArray, max_rows: int) -> IdArray:
    """Return (Q + 1,) the buckets at which an owner's rounds begin, and the number of buckets. Pure.

    As few rounds as there can be in which no machine is sent more than ``max_rows``; none where nobody asks.

    Parameters
    ----------
    counts : (W, B) rows that each machine asks for in each bucket, each at most ``max_rows``
    max_rows : to one machine in one round
    """
    cuts = np.empty(counts.shape[1] + 2, np.int64)
    return cuts[: _cut(np.ascontiguousarray(counts), max_rows, cuts)].copy()


@njit(cache=True, nogil=True)
def _cut(counts: NDArray[np.int64], max_rows: int, cuts: IdArray) -> int:
    num_hosts, num_buckets = counts.shape
    held = np.zeros(num_hosts, np.int64)
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
    """Lay out rows that come round after round, and in a round owner after owner. Pure.

    Parameters
    ----------
    rows : (K,) ascending, none twice
    bounds : (W, Q + 1) ascending: owner w sends rows[bounds[w, q]:bounds[w, q + 1]] in round q, and what owner w + 1
        sends begins where that of w ends
    row_bytes : R
    """
    in_turn = np.diff(bounds, axis=1).T.reshape(-1)  # rows of each run, as they arrive
    # Slots whose first byte is the first of a page are this far apart.
    step = PAGE_BYTES // math.gcd(PAGE_BYTES, row_bytes)
    places = -(-in_turn // step) * step
    first = np.cumsum(places) - places
    num_slots = int(np.max(first + in_turn, initial=0, where=in_turn > 0))
    num_rounds, num_owners = bounds.shape[1] - 1, bounds.shape[0]
    return ArrivalLayout(
        rows=rows,
        bounds=np.append(bounds[:, :-1].reshape(-1), rows.shape[0]).astype(np.int64),
        first_slot=np.ascontiguousarray(first.reshape(num_rounds, num_owners).T.reshape(-1).astype(np.int64)),
        num_slots=num_slots,
        row_bytes=row_bytes,
    )
