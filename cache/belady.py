"""The inspector: Belady's MIN with bypass, batch by batch, in time proportional to the accesses.

The inspector turns a superbatch's trace (the unique node ids of each of its batches) into a cache plan. An access is
one row that one batch needs. A row's next use is the next batch that needs it. Bypass means that a row is read for its
batch without entering the cache. `plan_belady` checks its arguments, and `_Planner` makes the passes over the batches,
whose loops are in `belady_kernels`. `BeladyPlanner` calls it for one superbatch after another.

L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966.
For superbatches with sampled mini-batches: Y. Park et al., "Ginex", VLDB'22, section 4.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache import belady_kernels as kernels
from gloader.cache.actions import MAX_CAPACITY
from gloader.cache.cache_plan import CachePlan, initial_content
from gloader.cache.next_use import DEVICE, NOTHING, PlannerTable
from gloader.cache.trace import NO_ROWS, BatchReader
from gloader.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.types import IdArray


_NO_LEVELS: Final = np.empty(0, dtype=np.uint8)  # no hotness: all rows without a known next use are alike
NUM_LEVELS: Final = 256  # hotness levels, the values of uint8


def plan_belady(
    accesses: Sequence[NDArray[np.integer]],
    *,
    capacity: int,
    resident: IdArray = NO_ROWS,
    lookahead: Sequence[NDArray[np.integer]] = (),
    hotness: NDArray[np.uint8] | None = None,
    device_resident: IdArray = NO_ROWS,
    table: PlannerTable | None = None,
) -> CachePlan:
    """Plan the host cache with the fewest possible misses over ``accesses`` and the look-ahead (the next superbatch).

    A batch needs all of its rows at the same time. After each batch the cache keeps the C rows with the nearest next
    use, among the rows that it held and the rows that the batch read. Rows without a known next use leave first, the
    coldest before the others. A row that would be evicted before its next use never enters.

    Takes O(A + C) time for A accesses. Takes 4 bytes per access, 12 bytes per slot, 24 bytes per access in the largest
    batch, and a `PlannerTable`. A `Trace` is decoded batch by batch, again in each pass. Pure, apart from ``table``.

    Parameters
    ----------
    accesses : a `Trace`, or S arrays of unique node ids, int32 or int64, in execution order. If several GPUs' ranks
        share a host cache, their batches are interleaved in this order.
    capacity : C, the cache's slots; 0 caches nothing
    resident : (<= C,) row in each slot, -1 if empty: the last plan's `CachePlan.resident_after`
    lookahead : the next superbatch's trace, whose uses are known
    hotness : (N,) uint8 from `hotness_levels`, which ranks rows without a known next use. None means equal ranks.
    device_resident : ids whose rows are on the device; they are neither hits nor misses
    table : the node table of an earlier call on the same graph, which saves its allocation. None makes a new one.

    Raises
    ------
    PlanError
        An id is negative or not below the table's number of nodes, or repeats within a batch or within ``resident``. An
        argument has the wrong shape, dtype or range.
    """
    if not 0 <= capacity <= MAX_CAPACITY:
        raise PlanError(f"capacity is {capacity}; it must be in 0..{MAX_CAPACITY} slots")
    content = initial_content(resident, capacity)
    window = BatchReader(accesses, "accesses")
    beyond = BatchReader(lookahead, "lookahead")
    device = BatchReader([device_resident], "device_resident").read(0).astype(np.int64, copy=False)
    if table is None:
        table = _new_table(window, beyond, content, device)
    levels = _NO_LEVELS if hotness is None else _checked_levels(hotness)
    planner = _Planner(table, content, levels, num_batches=len(window), horizon=len(window) + len(beyond))
    with np.errstate(over="ignore"):  # hashes wrap around: numpy warns if numba's compiler is disabled
        return planner.plan(window, beyond, device)


def hotness_levels(counts: NDArray[np.integer] | NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return the rank of each node's access count (N,) in 256 logarithmic levels, larger for hotter. Pure."""
    # Counts follow a power law, so linear levels would separate only the few hottest rows.
    logs = np.log1p(np.asarray(counts, dtype=np.float64))
    top = logs.max(initial=0.0)
    if top <= 0:
        return np.zeros(len(logs), dtype=np.uint8)
    return np.ceil(logs * ((NUM_LEVELS - 1) / top)).astype(np.uint8)


class _Planner:
    """The state during one `plan_belady` call.

    The horizon is the number of batches in the window (the planned batches) and the look-ahead. Bucket t below the
    horizon stands for the rows whose next use is batch t. The buckets from the horizon on stand for rows without a
    known next use, one for each hotness level, the hottest first.

    Every access pushes its row as an entry on the bucket of the row's next use. Entries that would still be cached are
    live. When more than C entries are live, the furthest bucket drops its oldest entry. So each bucket drops its first
    entries, and their number determines the rows that are kept. The planner stores these numbers, but no bucket.

    Parameters
    ----------
    table : each node's next use and later its slot
    content : (C,) row in each slot, -1 if empty; changed to the content after the plan
    levels : (N,) hotness levels, or empty
    num_batches : S, batches in the window
    horizon : batches in the window and the look-ahead
    """

    def __init__(
        self,
        table: PlannerTable,
        content: IdArray,
        levels: NDArray[np.uint8],
        *,
        num_batches: int,
        horizon: int,
    ) -> None:
        self._table = table
        self._content = content
        self._levels = levels
        self._num_batches = num_batches
        self._horizon = horizon
        num_buckets = horizon + (NUM_LEVELS if len(levels) else 1)
        self._live = np.zeros(num_buckets, dtype=np.int64)  # live entries in each bucket
        self._dropped = np.zeros(num_buckets, dtype=np.int64)  # dropped entries of each bucket

    def plan(
        self,
        window: BatchReader,
        beyond: BatchReader,
        device: IdArray,
    ) -> CachePlan:
        """Run three passes: link (backwards), count and assign (both forwards).

        The first pass writes each access's bucket into ``actions``. The second pass counts the entries that each
        bucket drops. The third pass turns the buckets into actions. ``beyond`` reads the look-ahead, and ``device``
        has the ids whose rows are on the device.
        """
        offsets = np.concatenate([[0], np.cumsum(window.lengths)])
        actions = np.empty(int(offsets[-1]), dtype=np.int32)
        parts = [actions[start:stop] for start, stop in pairwise(offsets)]
        # The first pass goes backwards over the look-ahead and then the window, so that at each access the table holds
        # the node's next use. Rows on the device are marked before, so that no access links them.
        self._table.begin(self._horizon)
        self._table.put(device, DEVICE)
        for batch in reversed(range(len(beyond))):
            self._link(beyond.read(batch), self._num_batches + batch, kernels.NO_ACTIONS)
        for batch in reversed(range(len(window))):
            self._link(window.read(batch), batch, parts[batch])
        hits, lengths = self._count(parts)
        misses, admissions = self._assign(window, parts, hits, lengths)
        # The device marks would outlive the plan, because nothing else clears the table.
        self._table.put(device, NOTHING)
        self._table.end(self._horizon)
        return CachePlan(
            capacity=len(self._content),
            accesses=window.batches,
            offsets=offsets,
            actions=actions,
            hits=hits,
            misses=misses,
            admissions=admissions,
            resident_after=self._content,
        )

    def _link(self, nodes: NDArray[np.integer], batch: int, buckets: NDArray[np.int32]) -> None:
        """Write the bucket of each access in ``batch``, and make ``batch`` the next use of its nodes.

        ``buckets`` (U,) is empty for a batch of the look-ahead, whose accesses get no action.
        """
        table = self._table
        table.reserve(len(nodes))
        added, bad = kernels.link(
            nodes, table.keys, table.values, table.base, batch, self._horizon, self._levels, buckets
        )
        if bad >= 0:
            name = (
                f"accesses[{batch}]"
                if batch < self._num_batches
                else f"lookahead[{batch - self._num_batches}]"
            )
            node = int(nodes[bad])
            limit = table.num_nodes
            if node < 0 or (limit is not None and node >= limit):
                raise PlanError(f"{name} holds node {node} at position {bad}; ids are {table.valid_ids}")
            raise PlanError(
                f"{name} holds node {node} twice, again at position {bad}; ids of a batch are unique"
            )
        table.num_keys += added

    def _count(self, parts: list[NDArray[np.int32]]) -> tuple[IdArray, IdArray]:
        """Count each bucket's dropped entries in ``_dropped``.

        Returns each batch's hits, and its accesses to rows that are not on the device, both (S,).
        """
        table = self._table
        hits = np.zeros(len(parts), dtype=np.int64)
        lengths = np.zeros(len(parts), dtype=np.int64)
        total = kernels.push_resident(
            self._content, table.keys, table.values, table.base, self._horizon, self._levels, self._live
        )
        if total < 0:
            raise PlanError(f"resident holds a row that is not in 0..{table.num_nodes}-1")
        # ``far`` is the furthest batch that needs a resident row. No later batch's bucket is occupied yet.
        occupied = np.flatnonzero(self._live[: self._horizon])
        far = int(occupied[-1]) if len(occupied) else 0
        for batch, buckets in enumerate(parts):
            # Entries that are still live in this batch's bucket are its hits.
            hits[batch] = self._live[batch]
            total -= hits[batch]
            self._live[batch] = 0
            far, total, lengths[batch] = kernels.push_and_drop(
                buckets, self._live, self._dropped, self._horizon, far, total, len(self._content)
            )
        return hits, lengths

    def _assign(
        self,
        window: BatchReader,
        parts: list[NDArray[np.int32]],
        hits: IdArray,
        lengths: IdArray,
    ) -> tuple[IdArray, IdArray]:
        """Turn ``parts`` from buckets into actions in place. Return each batch's misses and admissions, both (S,).

        ``hits`` and ``lengths`` are the results of `_count`.
        """
        table = self._table
        # The counts of live entries are no longer needed. This array now counts the entries of each bucket that the
        # pass has visited. The first ``_dropped`` entries of a bucket are dropped, all later ones are kept.
        ranks = self._live
        ranks[:] = 0
        free = np.empty(len(self._content), dtype=np.int32)
        scratch = np.empty((2, int(window.lengths.max(initial=0))), dtype=np.int32)
        admissions = np.zeros(len(parts), dtype=np.int64)
        num_free = kernels.keep_resident(
            self._content,
            table.keys,
            table.values,
            table.base,
            self._horizon,
            self._levels,
            ranks,
            self._dropped,
            free,
        )
        for batch, actions in enumerate(parts):
            num_hits, admissions[batch], num_free = kernels.assign(
                window.read(batch),
                actions,
                table.keys,
                table.values,
                ranks,
                self._dropped,
                free,
                num_free,
                self._content,
                scratch,
            )
            if num_free < 0 or num_hits != hits[batch]:
                raise PlanError(
                    f"batch {batch} has {num_hits} hits, and {hits[batch]} were counted: a row is resident in two "
                    "slots. Pass resident_after of the previous plan, unchanged"
                )
        return lengths - hits, admissions


def _checked_levels(hotness: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return ``hotness`` as a contiguous array. Raise PlanError unless it is one-dimensional uint8."""
    if hotness.ndim != 1 or hotness.dtype != np.uint8:
        raise PlanError(
            f"hotness has shape {hotness.shape} and dtype {hotness.dtype}; pass hotness_levels(counts)"
        )
    return np.ascontiguousarray(hotness)


def _new_table(window: BatchReader, beyond: BatchReader, content: IdArray, device: IdArray) -> PlannerTable:
    """Return a table for all ids in the arguments."""
    highest = max(
        window.highest(), beyond.highest(), int(content.max(initial=-1)), int(device.max(initial=-1))
    )
    num_ids = window.num_accesses + beyond.num_accesses + len(content) + len(device)
    return PlannerTable.for_trace(highest + 1, num_ids)
