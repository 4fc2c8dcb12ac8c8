"""Miss-ratio curves: the exact miss count for every cache size, from one pass over a trace.

An access is one row that a batch needs. A row's next use is the next batch that needs it. MIN is Belady's policy, which
evicts the row with the furthest next use. The stack distance of an access is the number of different rows used since
the row's last access. A curve is made of straight lines; a corner is a capacity at which the slope changes.

The curves need the whole trace (the unique node ids of each batch); ``gloader analyze`` draws them. The memory plan has
only the first batches: `measure_reuse` measures these, and `cache_outlook` predicts from the resulting `ReuseProfile`
how many rows a cache of any size misses per batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache import belady_kernels
from gloader.cache.next_use import PlannerTable
from gloader.cache.trace import BatchReader
from gloader.core.kernels import njit
from gloader.core.numba_ops import prefetch, to_int
from gloader.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.cache.planner import PlannerName
    from gloader.types import IdArray


# `_stack_distances` stores a bit per access: 64 bits per word, 256 per block (base-2 logarithms here). The prefix sums
# have one entry per block (four words), so at most four words are counted one by one.
_WORD_BITS: Final = 6
_BLOCK_BITS: Final = 8
_AHEAD: Final = 24  # accesses between the prefetch of an entry and its read
# Masks and shifts of `_popcount`.
_ONE, _TWO, _FOUR, _TOP_BYTE = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(56)
_ODD_BITS, _ODD_PAIRS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_ODD_HALVES, _EVERY_BYTE = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
_ALL_BITS = np.uint64(2**64 - 1)
_NO_LEVELS = np.empty(0, dtype=np.uint8)  # no hotness levels, for the planner's kernel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MissCurve:
    """The misses at every capacity: exact for whole numbers of slots, and linear between two corners."""

    capacities: IdArray  # (K,) slots at the corners, ascending; the first capacity is 0
    misses: IdArray  # (K,) misses at these capacities; the last value holds for every larger capacity
    num_accesses: int  # accesses in the trace

    def misses_at(self, capacities: IdArray) -> IdArray:
        """Return the misses at ``capacities`` (M,) as (M,) int64. Pure."""
        slots = np.minimum(np.asarray(capacities, dtype=np.int64), self.capacities[-1])
        # Each value lies between the corners ``left`` and ``right``.
        right = np.searchsorted(self.capacities, slots)
        left = np.maximum(right - 1, 0)
        run = np.maximum(self.capacities[right] - self.capacities[left], 1)
        per_slot = (self.misses[left] - self.misses[right]) // run
        return np.asarray(self.misses[right] + per_slot * (self.capacities[right] - slots), dtype=np.int64)


def next_use_counts(accesses: Sequence[NDArray[np.integer]], num_nodes: int) -> IdArray:
    """Count, for each pair of batches (b, t), the accesses in b whose next use is in t. O(A + T^2). Pure.

    A is the number of accesses, and T the number of batches. MIN's hits follow from these counts alone, because rows
    with the same next use are interchangeable.

    Parameters
    ----------
    accesses : T arrays of unique ids, int32 or int64, in 0..num_nodes-1
    num_nodes : N, the number of nodes

    Returns
    -------
    (T, T) int64, zero on and below the diagonal

    Raises
    ------
    PlanError
        An id is out of range or repeats within a batch.
    """
    num_batches = len(accesses)
    # The smallest table is used, because a few batches in a large graph do not justify an array for all nodes.
    table = PlannerTable.smallest(num_nodes, BatchReader(accesses, "accesses").num_accesses)
    table.begin(num_batches)
    counts = np.zeros((num_batches, num_batches), dtype=np.int64)
    for batch in reversed(range(num_batches)):
        nodes = np.ascontiguousarray(accesses[batch])
        buckets = np.empty(len(nodes), dtype=np.int32)
        with np.errstate(over="ignore"):  # hashes wrap around: numpy warns if numba's compiler is disabled
            table.reserve(len(nodes))
            added, bad = belady_kernels.link(
                nodes, table.keys, table.values, table.base, batch, num_batches, _NO_LEVELS, buckets
            )
        table.num_keys += added
        # `link` checks the upper bound only in a direct table. A hash table accepts every id.
        if bad < 0 and table.num_nodes is None and nodes.max(initial=-1) >= num_nodes:
            bad = int(np.argmax(nodes >= num_nodes))
        if bad >= 0:
            raise PlanError(
                f"accesses[{batch}] holds node {int(nodes[bad])} at position {bad}: out of 0..{num_nodes - 1}, or twice"
            )
        # The last bucket, ``num_batches``, has the accesses without a next use.
        counts[batch] = np.bincount(buckets, minlength=num_batches + 1)[:num_batches]
    return counts


def belady_curve(counts: IdArray, num_accesses: int) -> MissCurve:
    """Return MIN's misses with bypass at every capacity, from an empty cache. Pure.

    An interval lasts from one use of a row to the next. With C slots, the hits are the largest number of intervals of
    which at most C overlap. This number is the value of a flow with C units (Carlisle and Lloyd, "On the k-coloring of
    intervals", 1995). The value is concave in C. One more slot gains at most one hit per batch, so the curve has at
    most T corners. The search of Eisner and Severance (JACM 23(4), 1976) finds each corner by a few evaluations in
    O(T^2).

    Parameters
    ----------
    counts : (T, T) int64, result of `next_use_counts`
    num_accesses : accesses in the trace
    """
    hits: dict[int, int] = {}

    def evaluate(capacity: int) -> int:
        """Return the hits at ``capacity``, counted once per capacity."""
        if capacity not in hits:
            hits[capacity] = int(_count_hits(counts, capacity))
        return hits[capacity]

    corners = {0}
    pending = [(0, int(_largest_useful(counts)))]
    while pending:
        low, high = pending.pop()
        corners.add(high)
        if high - low <= 1:
            continue
        # Hits are concave: if the tangent at one end meets the other end, there is no corner in between. Otherwise the
        # tangents of both ends meet between them, and the search continues on both sides of that place.
        rise = evaluate(low + 1) - evaluate(low)
        if evaluate(low) + rise * (high - low) == evaluate(high):
            continue
        fall = evaluate(high) - evaluate(high - 1)
        meet = (evaluate(high) - fall * high - evaluate(low) + rise * low) // (rise - fall)
        middle = min(max(meet, low + 1), high - 1)
        pending += [(low, middle), (middle, high)]
    capacities = np.array(sorted(corners), dtype=np.int64)
    misses = num_accesses - np.array([evaluate(int(c)) for c in capacities], dtype=np.int64)
    return _without_straight_corners(capacities, misses, num_accesses)


def add_curves(curves: Sequence[MissCurve]) -> MissCurve:
    """Return the sum of ``curves``: traces that run one after another, each from an empty cache. Pure."""
    capacities = np.unique(np.concatenate([[0], *(curve.capacities for curve in curves)])).astype(np.int64)
    misses = sum((curve.misses_at(capacities) for curve in curves), np.zeros(len(capacities), dtype=np.int64))
    return _without_straight_corners(capacities, misses, sum(curve.num_accesses for curve in curves))


def lru_curve(accesses: Sequence[NDArray[np.integer]], num_nodes: int) -> MissCurve:
    """Return LRU's misses at every capacity by stack distances. O(A + T A / 256). Pure.

    R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970. A batch's
    hits are decided before any of its rows enters. Its rows are then the most recent ones, in their order.

    Parameters
    ----------
    accesses : T arrays of unique ids in 0..num_nodes-1
    num_nodes : N, the number of nodes

    Raises
    ------
    PlanError
        An id is out of range.
    """
    for batch, nodes in enumerate(accesses):
        if len(nodes) and (nodes.min() < 0 or nodes.max() >= num_nodes):
            raise PlanError(f"accesses[{batch}] holds a node that is not in 0..{num_nodes - 1}")
    num_accesses = sum(len(nodes) for nodes in accesses)
    last = np.full(num_nodes, -1, dtype=np.int64)
    newest = np.zeros((num_accesses >> _BLOCK_BITS) + 1 << _BLOCK_BITS - _WORD_BITS, dtype=np.uint64)
    distances = np.zeros(num_nodes + 1, dtype=np.int64)
    start = 0
    with np.errstate(over="ignore"):  # interpreted bit counts wrap around
        for nodes in accesses:
            _stack_distances(np.ascontiguousarray(nodes), start, last, newest, distances)
            start += len(nodes)
    return _curve_of_gains(distances[:num_nodes], num_accesses)


def static_curve(order: IdArray, frequencies: IdArray) -> MissCurve:
    """Return the misses for a static cache with the first C rows in ``order``. Pure.

    Parameters
    ----------
    order : (K,) distinct node ids in caching order
    frequencies : (N,) each node's accesses in the trace
    """
    return _curve_of_gains(frequencies[order], int(frequencies.sum()))


def _curve_of_gains(gains: IdArray, num_accesses: int) -> MissCurve:
    """Return the curve in which slot i saves ``gains[i]`` misses, for ``gains`` (K,)."""
    misses = num_accesses - np.concatenate([[0], np.cumsum(gains)]).astype(np.int64)
    return _without_straight_corners(np.arange(len(misses), dtype=np.int64), misses, num_accesses)


def _without_straight_corners(capacities: IdArray, misses: IdArray, num_accesses: int) -> MissCurve:
    """Return the curve through these points (K,), without points at which the slope does not change."""
    run, fall = np.diff(capacities), np.diff(misses)
    # Cross products replace slopes, because they need no rounding. The last corner stays, because the curve is flat
    # beyond it.
    is_straight = fall[:-1] * run[1:] == fall[1:] * run[:-1]
    kept = np.concatenate([[True], ~is_straight, [True]])[: len(capacities)]
    return MissCurve(capacities=capacities[kept], misses=misses[kept], num_accesses=num_accesses)


@njit(cache=True, nogil=True)
def _count_hits(counts: IdArray, capacity: int) -> int:
    """Return MIN's hits with bypass, from the counts of `next_use_counts` (T, T).

    ``live[t]`` counts the cached rows whose next use is in batch t. After each batch, rows with the furthest next use
    leave until at most ``capacity`` rows remain.
    """
    num_batches = counts.shape[0]
    live = np.zeros(num_batches, dtype=np.int64)
    total, hits = 0, 0
    for batch in range(num_batches):
        hits += live[batch]
        total -= live[batch]
        live[batch] = 0
        for later in range(batch + 1, num_batches):
            live[later] += counts[batch, later]
            total += counts[batch, later]
        far = num_batches - 1
        while total > capacity:
            while live[far] == 0:
                far -= 1
            excess = min(total - capacity, live[far])
            live[far] -= excess
            total -= excess
    return hits


@njit(cache=True, nogil=True)
def _largest_useful(counts: IdArray) -> int:
    """Return the largest number of rows with a next use at any time: more slots gain nothing."""
    num_batches = counts.shape[0]
    live = np.zeros(num_batches, dtype=np.int64)
    total, most = 0, 0
    for batch in range(num_batches):
        total -= live[batch]
        for later in range(batch + 1, num_batches):
            live[later] += counts[batch, later]
            total += counts[batch, later]
        most = max(most, total)
    return most


@njit(cache=True, nogil=True)
def _popcount(word: np.uint64) -> int:
    """Return the number of bits that are set in ``word``."""
    word = word - ((word >> _ONE) & _ODD_BITS)
    word = (word & _ODD_PAIRS) + ((word >> _TWO) & _ODD_PAIRS)
    word = (word + (word >> _FOUR)) & _ODD_HALVES
    return to_int((word * _EVERY_BYTE) >> _TOP_BYTE)


@njit(cache=True, nogil=True)
def _stack_distances(
    nodes: NDArray[np.integer], start: int, last: IdArray, newest: NDArray[np.uint64], distances: IdArray
) -> None:
    """Add the stack distances for the batch at ``start`` in the trace, and make its rows the most recent.

    ``last`` (N,) is the number of each node's last access, -1 if none. ``newest`` has a bit for each access so far,
    which is set if the access is the last one of its node. An access's distance is the number of bits set after its
    node's last access: all set bits less the set bits up to that access. The prefix sums ``before`` give the set bits
    before each block. All distances in a batch are taken before a bit changes, so the same prefix sums serve the whole
    batch. ``distances[d]`` counts the accesses with distance d.
    """
    num_blocks = (start >> _BLOCK_BITS) + 1
    before = np.empty(num_blocks, dtype=np.int64)
    total = 0
    for block in range(num_blocks):
        before[block] = total
        for word in range(block << 2, (block + 1) << 2):
            total += _popcount(newest[word])
    fetch_end = nodes.shape[0] - _AHEAD
    for position in range(nodes.shape[0]):
        if position < fetch_end:
            prefetch(last, np.int64(nodes[position + _AHEAD]))
        access = last[nodes[position]]
        if access >= 0:
            word = access >> _WORD_BITS
            older = before[access >> _BLOCK_BITS]
            for whole in range(access >> _BLOCK_BITS << 2, word):
                older += _popcount(newest[whole])
            older += _popcount(newest[word] & (_ALL_BITS >> np.uint64(63 - (access & 63))))
            distances[total - older] += 1
    for position in range(nodes.shape[0]):
        if position < fetch_end:
            prefetch(last, np.int64(nodes[position + _AHEAD]))
        node = nodes[position]
        access = last[node]
        if access >= 0:
            newest[access >> _WORD_BITS] &= ~(_ONE << np.uint64(access & 63))
        access = start + position
        last[node] = access
        newest[access >> _WORD_BITS] |= _ONE << np.uint64(access & 63)


# Largest reuse distance in a profile, in batches. It covers Belady's look-ahead of a superbatch and a half with 512
# batches, and some more.
_HORIZON: Final = 1024
_MOST: Final = 1.0 - 1e-6  # largest probability in the model


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReuseProfile:
    """The next uses of a batch's rows. A reuse distance is the number of batches until the next use."""

    rows: float  # U, mean number of rows per batch
    num_nodes: int  # N
    # (D,) a batch's mean number of rows whose next use is 1, 2, ... D batches later. The other rows are used still
    # later or never.
    next_uses: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CacheOutlook:
    """A batch's misses in the long run, for every cache size. A larger cache never has more misses."""

    profile: ReuseProfile  # the profile behind the prediction
    capacities: NDArray[np.float64]  # (K,) slots, ascending; values between them are interpolated
    hits: NDArray[np.float64]  # (K,) hits per batch at these capacities
    distances: NDArray[np.float64]  # (K,) largest reuse distance, in batches, of the hits at these capacities

    def misses(self, capacity: int) -> float:
        """Return the mean number of rows per batch that a cache with ``capacity`` slots misses. Pure."""
        return max(self.profile.rows - float(np.interp(capacity, self.capacities, self.hits)), 0.0)

    def distinct_misses(self, capacity: int, num_batches: int) -> float:
        """Return the number of distinct rows that ``num_batches`` consecutive batches together miss. Pure."""
        later = self.profile.next_uses[: num_batches - 1]
        distance = np.arange(1, len(later) + 1)
        nearest = float(np.interp(capacity, self.capacities, self.distances))
        # A row with several misses in these batches counts only once, with its last miss.
        missed = np.clip(distance - nearest, 0.0, 1.0)
        again = float(((num_batches - distance) * missed * later).sum())
        each = self.misses(capacity)
        return min(max(num_batches * each - again, each), float(self.profile.num_nodes))


def measure_reuse(batches: Sequence[IdArray], num_nodes: int) -> ReuseProfile:
    """Measure row reuse in a few consecutive ``batches``, and extrapolate it to later batches. Pure.

    In the model, each node is in a batch with its own probability, independently for each batch. Three batches give
    three moments of these probabilities: one batch's rows, the rows that two batches share, and the rows that three
    share. A beta distribution with these moments gives the number of rows whose next use is after any number of
    batches. On R-MAT its error is a few percent.

    Parameters
    ----------
    batches : each batch's unique ids. Reuse is measured from two batches on, and all three moments from three on.
    num_nodes : N, the number of nodes

    Raises
    ------
    PlanError
        An id is out of range or repeats within a batch.
    """
    rows = float(np.mean([len(batch) for batch in batches])) if batches else 0.0
    counts = next_use_counts(batches, num_nodes) if len(batches) > 1 else np.zeros((1, 1), np.int64)
    measured = [float(np.mean(np.diagonal(counts, distance))) for distance in range(1, len(batches))]
    next_uses = np.zeros(_HORIZON)
    next_uses[: len(measured)] = measured
    if rows > 0 and measured and measured[0] > 0:
        _extrapolate(next_uses, rows, measured)
    # The estimates for later batches may exceed the remaining rows, so they are bounded.
    room = np.maximum(rows - np.concatenate([[0.0], np.cumsum(next_uses)[:-1]]), 0.0)
    return ReuseProfile(rows=rows, num_nodes=num_nodes, next_uses=np.minimum(next_uses, room))


def _extrapolate(next_uses: NDArray[np.float64], rows: float, measured: list[float]) -> None:
    """Write ``next_uses`` (D,) beyond the ``measured`` distances, by the model of `measure_reuse`.

    ``rows`` is a batch's mean number of rows. ``measured`` has the mean next uses at the distances 1, 2, ...
    """
    first = min(measured[0] / rows, _MOST)  # share of a batch's rows that are also in the next batch
    # Share of the rows in two batches that are also in a third one. ``measured[1]`` counts the rows in the first and
    # the third batch that are not in the second.
    second = min(max(1 - measured[1] / measured[0], first), _MOST) if len(measured) > 1 else first
    # The beta distribution with these moments has parameters a and b; ``total`` is a + b, and ``other`` is b. They give
    # the ratio between consecutive entries. If all nodes are alike, ``spread`` is 0 up to rounding (1e-9), and the
    # ratio is constant.
    spread = second - first
    total = max(1 + first - 2 * second, 0.0) / spread if spread > 1e-9 else 0.0
    other = total - (first * (total + 1) - 1)
    for distance in range(len(measured), len(next_uses)):
        ratio = (other + distance - 1) / (total + distance + 1) if spread > 1e-9 else 1 - first
        next_uses[distance] = next_uses[distance - 1] * min(max(ratio, 0.0), 1.0)


def cache_outlook(
    profile: ReuseProfile, policy: PlannerName, *, num_batches: int, is_reset: bool = False
) -> CacheOutlook:
    """Return the misses for every cache size in the long run. Pure.

    Belady's policy keeps the rows with the nearest next use: all rows below some reuse distance, each for that many
    batches. The policy sees its superbatch and the next one. The other policies are modelled as LRU, which keeps a row
    until as many other rows were used as the cache has slots.

    Parameters
    ----------
    profile : the batches' reuse profile
    policy : the cache's policy
    num_batches : S, batches per superbatch
    is_reset : True if each superbatch starts from an empty cache and has no look-ahead
    """
    distances = np.arange(1, len(profile.next_uses) + 1, dtype=np.float64)
    uses = profile.next_uses
    if policy == "none":
        uses = uses[:0]
    elif is_reset:
        # A use d batches later is in the same superbatch, before the reset, for S - d of the S batches.
        uses = uses * np.maximum(1 - distances / num_batches, 0.0)
    elif policy == "belady":
        # A batch in the middle of its superbatch has known uses up to the end of the next one: 1.5 S batches later.
        uses = uses * np.clip(1.5 * num_batches + 0.5 - distances, 0.0, 1.0)
    # ``hits[d]``: hits per batch if every row with a reuse distance up to d is a hit. ``held[d]``: slots for this.
    hits = np.concatenate([[0.0], np.cumsum(uses)])
    if policy == "belady":
        held = np.concatenate([[0.0], np.cumsum(distances[: len(uses)] * uses)])
    else:
        held = np.concatenate([[0.0], np.cumsum(profile.rows - hits[:-1])])
    # The points of the curve: capacities below one slot per node, each larger than the one before.
    inside = (held < profile.num_nodes) & (np.concatenate([[1.0], np.diff(held)]) > 0)
    # The curve ends at a slot for each node. Spare slots then hold rows without a known use, so nothing is missed,
    # except by a policy that drops these rows.
    is_blind = (is_reset or policy == "none") and bool(inside.any())
    last = hits[inside][-1] if is_blind else profile.rows
    return CacheOutlook(
        profile=profile,
        capacities=np.append(held[inside], float(profile.num_nodes)),
        hits=np.append(hits[inside], last),
        distances=np.append(
            np.arange(len(held), dtype=np.float64)[inside], float(max(int(np.count_nonzero(inside)) - 1, 0))
        ),
    )
