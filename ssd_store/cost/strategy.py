"""The cost model for I/O strategies: the fastest way to read a superbatch's missing rows. Pure.

A superbatch is S consecutive batches that are planned together. Its missing rows are the feature rows that no cache
holds. A sweep reads a file once, in order. There are three strategies to read the missing rows:

- "direct": batch by batch, with random reads;
- "staged": once, by a sweep in file order, into memory;
- "packed": once, by a sweep in file order, into a region on disk for each batch, which the batch reads back.

`count_misses` counts each strategy's requests and bytes exactly, `predict_seconds` turns them into seconds, and
`choose_strategy` takes the fastest strategy that fits its budget. `superbatch_sizes` returns the sizes S to try, and
`ramp` leads up to the chosen size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.kernels import njit
from gloader.core.units import format_bytes, format_seconds
from gloader.errors import BudgetError, ConfigError, PlanError, ShapeError
from gloader.ssd_store.cost.io_rates import STRATEGIES, Calibration, IoRates, Strategy
from gloader.ssd_store.read.extents import ALIGNMENT, NOWHERE, joins_read, min_extent_bytes, pages_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.types import IdArray


SMALLEST, LARGEST = 2, 512  # superbatch sizes to try, in batches


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperbatchSize:
    """The superbatch size S, with its reason."""

    num_batches: int
    reason: str


def superbatch_sizes(num_batches_total: int | None = None) -> tuple[int, ...]:
    """Return the superbatch sizes to try: powers of two, up to a size that holds the entire run. Pure.

    Parameters
    ----------
    num_batches_total : number of batches in the run; None if unknown
    """
    sizes = [SMALLEST]
    while sizes[-1] < LARGEST and (num_batches_total is None or sizes[-1] < num_batches_total):
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


def ramp(size: int, first: int = 1) -> Iterator[int]:
    """Yield the sizes of successive superbatches without end: 1, 2, 4, ..., S, S, S, ...

    Small sizes come first, so that the first batch need not wait until a large superbatch is sampled and planned.

    Parameters
    ----------
    size : S
    first : the first size, which is doubled up to S

    Raises
    ------
    ConfigError
        ``size`` is not positive.
    """
    if size < 1:
        raise ConfigError(f"a superbatch cannot have {size} batches; use at least 1")
    return _ramp(size, first)


def _ramp(size: int, first: int) -> Iterator[int]:
    """Yield the sizes of `ramp`, whose check must run at the call and not at the first size."""
    current = first
    while True:
        yield current
        current = min(2 * current, size)


_REQUESTS, _BYTES = 0, 1  # positions in the kernels' totals
_ID_BYTES = 4  # bytes of a row's id in memory
_WORD_BITS = 64  # bits in a word of the bitmap
# A power of two modulo 67 identifies its exponent: the 64 powers leave 64 different remainders. So `_BIT_OF` gives the
# position of a word's only set bit without a loop.
_POWER_HASH = np.uint64(67)
_BIT_OF = np.array([next((b for b in range(64) if (1 << b) % 67 == hash_), 0) for hash_ in range(67)])


@dataclass(frozen=True, slots=True, kw_only=True)
class MissCounts:
    """Requests and bytes for a superbatch's missing rows, with each strategy."""

    num_batches: int  # S
    rows: int  # number of missing rows, summed over the batches
    unique_rows: int  # number of distinct missing rows
    row_bytes: int  # R, as stored
    direct_requests: int  # reads if each batch is read separately
    direct_bytes: int
    sweep_requests: int  # reads in one sweep over the batches' distinct rows
    sweep_bytes: int
    pack_bytes: int  # the batches' regions on disk, with alignment

    @property
    def in_ram_bytes(self) -> int:
        """Memory bytes for every missing row once, with its id."""
        return self.unique_rows * (self.row_bytes + _ID_BYTES)

    @property
    def room_bytes(self) -> dict[Strategy, int]:
        """Bytes of memory, or of disk for packs, that each strategy needs."""
        return {"direct": 0, "staged": self.in_ram_bytes, "packed": self.pack_bytes}

    @property
    def moved_bytes(self) -> dict[Strategy, int]:
        """Bytes that the disk reads and writes, by strategy."""
        return {
            "direct": self.direct_bytes,
            "staged": self.sweep_bytes,
            "packed": self.sweep_bytes + 2 * self.pack_bytes,
        }


def count_misses(
    misses: Sequence[IdArray],
    *,
    num_rows: int,
    row_bytes: int,
    data_offset: int,
    gap_bytes: int,
    sweep_gap_bytes: int,
    max_extent_bytes: int,
) -> MissCounts:
    """Count the reads that `plan_extents` would plan for each batch and for their union, without planning them.

    The union is the set of rows that any batch misses. The function takes each batch once, in order, and keeps no
    batch: the union is a bitmap with ``num_rows`` bits.

    Parameters
    ----------
    misses : S arrays (M_b,) of int64
        Each batch's row ids, strictly ascending.
    num_rows, row_bytes, data_offset : int
        N, R and row 0's offset in the feature file.
    gap_bytes, sweep_gap_bytes : int
        Longest hole that a batch's reads and the pass over the union bridge.
    max_extent_bytes : int
        Longest read.

    Raises
    ------
    ConfigError
        A size is negative or too small.
    ShapeError
        A batch is not a one-dimensional int64 array.
    PlanError
        A batch is not ascending, or contains a row outside the file.
    """
    _require_sizes(num_rows, row_bytes, data_offset, gap_bytes, sweep_gap_bytes, max_extent_bytes)
    # The bitmap has one bit per row: 12 MB for 100 million rows, however many rows are missing.
    bitmap = np.zeros(-(-num_rows // _WORD_BITS), np.uint64)
    direct, sweep = np.zeros(2, np.int64), np.zeros(2, np.int64)
    rows = pack = num_batches = 0
    for batch, missing in enumerate(misses):
        ids = _checked(missing, batch)
        bad = _count_batch(ids, num_rows, row_bytes, data_offset, gap_bytes, max_extent_bytes, bitmap, direct)
        if bad >= 0:
            raise PlanError(
                f"missing row {ids[bad]} at position {bad} of batch {batch} is out of order or of range: rows must "
                f"ascend from 0 to {num_rows - 1}; this is a bug of gloader, please report it"
            )
        rows += ids.shape[0]
        pack += -(-ids.shape[0] * row_bytes // ALIGNMENT) * ALIGNMENT
        num_batches += 1
    unique = _count_union(bitmap, row_bytes, data_offset, sweep_gap_bytes, max_extent_bytes, sweep)
    return MissCounts(
        num_batches=num_batches,
        rows=rows,
        unique_rows=int(unique),
        row_bytes=row_bytes,
        direct_requests=int(direct[_REQUESTS]),
        direct_bytes=int(direct[_BYTES]),
        sweep_requests=int(sweep[_REQUESTS]),
        sweep_bytes=int(sweep[_BYTES]),
        pack_bytes=pack,
    )


def _require_sizes(
    num_rows: int, row_bytes: int, data_offset: int, gap_bytes: int, sweep_gap_bytes: int, longest: int
) -> None:
    if num_rows < 0 or row_bytes < 1 or data_offset < 0 or gap_bytes < 0 or sweep_gap_bytes < 0:
        raise ConfigError(
            f"num_rows={num_rows}, data_offset={data_offset}, gap_bytes={gap_bytes} and "
            f"sweep_gap_bytes={sweep_gap_bytes} must be >= 0, row_bytes={row_bytes} must be >= 1"
        )
    if longest < min_extent_bytes(row_bytes):
        raise ConfigError(
            f"max_extent_bytes={longest} cannot hold one row of {row_bytes} bytes: "
            f"at least {min_extent_bytes(row_bytes)}"
        )


def _checked(missing: IdArray, batch: int) -> IdArray:
    """Return a batch's missing rows in the form for kernels, or raise `ShapeError`."""
    if missing.ndim != 1 or missing.dtype != np.int64:
        raise ShapeError(
            f"the missing rows of batch {batch} must be a one-dimensional int64 array, got {missing.dtype} of "
            f"shape {missing.shape}"
        )
    # For numba a read-only or strided array is another type, which needs another compilation.
    return np.require(missing, requirements=("C", "W"))


@njit(cache=True, nogil=True)
def _count_batch(
    rows: IdArray,
    num_rows: int,
    row_bytes: int,
    data_offset: int,
    max_gap: int,
    max_length: int,
    bitmap: NDArray[np.uint64],
    totals: IdArray,
) -> int:
    """Add a batch's reads to ``totals`` and its rows to ``bitmap``; return the position of a bad row, or -1.

    ``start`` and ``stop`` are the begin and end of the current read. A row's pages join it, or begin the next read.

    Parameters
    ----------
    rows : (M,) row ids, ascending
    num_rows, row_bytes, data_offset : N, R and row 0's offset in the file
    max_gap, max_length : longest hole that a read bridges, and longest read, in bytes
    bitmap : one bit per row of the store, set for rows that a batch misses
    totals : (2,) requests and bytes, incremented
    """
    requests, num_bytes = 0, np.int64(0)
    start, stop = NOWHERE, NOWHERE
    previous = np.int64(-1)
    for i in range(rows.shape[0]):
        row = rows[i]
        # The check precedes the write: a kernel that writes out of bounds damages memory silently.
        if row <= previous or row >= num_rows:
            return i
        previous = row
        bitmap[row >> 6] |= np.uint64(1) << np.uint64(row & 63)
        page, page_end = pages_of(data_offset + row * row_bytes, row_bytes)
        if joins_read(start, stop, page, page_end, max_gap, max_length):
            stop = max(stop, page_end)
            continue
        num_bytes += stop - start
        start, stop = max(page, stop), page_end
        requests += 1
    totals[_REQUESTS] += requests
    totals[_BYTES] += num_bytes + stop - start
    return -1


@njit(cache=True, nogil=True)
def _count_union(
    bitmap: NDArray[np.uint64],
    row_bytes: int,
    data_offset: int,
    max_gap: int,
    max_length: int,
    totals: IdArray,
) -> int:
    """Write the number of reads and bytes for the rows in ``bitmap`` to ``totals``; return the number of rows."""
    unique, requests, num_bytes = 0, 0, np.int64(0)
    start, stop = NOWHERE, NOWHERE
    for word in range(bitmap.shape[0]):
        left = bitmap[word]
        while left != np.uint64(0):
            # Separate the word's lowest bit from its other bits.
            rest = left & (left - np.uint64(1))
            row = word * _WORD_BITS + _BIT_OF[np.int64((left ^ rest) % _POWER_HASH)]
            left = rest
            unique += 1
            page, page_end = pages_of(data_offset + row * row_bytes, row_bytes)
            if joins_read(start, stop, page, page_end, max_gap, max_length):
                stop = max(stop, page_end)
                continue
            num_bytes += stop - start
            start, stop = max(page, stop), page_end
            requests += 1
    totals[_REQUESTS] = requests
    totals[_BYTES] = num_bytes + stop - start
    return unique


# Factor by which a pack must be faster than the other strategies, because it writes to the disk and wears it.
PACK_GAIN: Final = 1.15
# Reads count as hidden if they take at most this share of the loop's computing time. The rest is a reserve for errors
# of the prediction, which later superbatches correct.
HIDDEN_SHARE: Final = 0.9
MOVED_GAIN: Final = 1.25  # factor by which a slower, hidden strategy must move fewer bytes than the fastest


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The strategy for a superbatch's missing rows, with its reason."""

    strategy: Strategy
    predicted: Mapping[Strategy, float]  # seconds to retrieve the entire superbatch, by strategy
    reason: str
    # The calibration's factor (measured over predicted) in the prediction for ``strategy``.
    factor: float = 1.0
    # Predicted disk reads for the entire superbatch, including packs that are read back.
    read_bytes: int = 0
    is_exchanged: bool = False  # each machine reads a range of the rows for all machines
    counts: MissCounts | None = None  # None for rows that come from other machines

    @property
    def text(self) -> str:
        """The strategy as text."""
        return f"{self.strategy}, exchanged" if self.is_exchanged else self.strategy

    @property
    def predicted_s(self) -> float:
        """Seconds predicted for the chosen strategy."""
        return self.predicted[self.strategy]


def predict_seconds(
    counts: MissCounts, rates: IoRates, calibration: Calibration | None = None
) -> dict[Strategy, float]:
    """Return each strategy's predicted seconds for all rows of the superbatch. Pure.

    Parameters
    ----------
    counts : the superbatch's missing rows
    rates : the devices' rates
    calibration : calibration from earlier superbatches; defaults to no correction
    """
    known = calibration or Calibration()
    sweep = rates.read_seconds(counts.sweep_requests, counts.sweep_bytes)
    packing = rates.packing_seconds(sweep, counts.pack_bytes / rates.write_bytes_per_s)
    seconds: dict[Strategy, float] = {
        "direct": rates.read_seconds(counts.direct_requests, counts.direct_bytes, calls=counts.num_batches),
        "staged": sweep + rates.dealing_seconds(counts.unique_rows * counts.row_bytes),
        "packed": packing
        + rates.dealing_seconds(counts.pack_bytes)
        + counts.pack_bytes / rates.pack_read_bytes_per_s,
    }
    return {strategy: seconds[strategy] * known.factor(strategy) for strategy in STRATEGIES}


def choose_strategy(
    counts: MissCounts,
    rates: IoRates,
    *,
    memory_bytes: int,
    spill_bytes: int,
    forced: str | None = None,
    calibration: Calibration | None = None,
    is_whole: bool = True,
) -> Choice:
    """Choose the strategy for a superbatch's missing rows: the fastest strategy within its budgets. Pure.

    Packs write to the disk, and are only chosen if they gain 15% over the better of the other strategies. Strategies
    that take less time than the loop's computation do not delay the loop. Among these, the one that moves the fewest
    bytes is chosen, if it moves clearly fewer than the fastest.

    Parameters
    ----------
    counts : MissCounts
        Exact counts, from `count_misses`.
    rates : IoRates
        The devices' rates.
    memory_bytes, spill_bytes : int
        Memory and disk for this superbatch's rows.
    forced : str, optional
        The strategy to take, whatever its time; None or "auto" choose.
    calibration : Calibration, optional
        The calibration from earlier superbatches.
    is_whole : bool
        True if the entire file is on the disk. Otherwise a mirror fetches missing parts in blocks of megabytes. With
        "direct" each batch would fetch nearly all blocks for its rows, so "direct" is only taken if nothing else fits.

    Raises
    ------
    ConfigError
        ``forced`` is not a strategy.
    BudgetError
        The forced strategy exceeds its memory or disk; the message has needed and allowed bytes.
    """
    known = calibration or Calibration()
    predicted = predict_seconds(counts, rates, known)
    room: dict[Strategy, int] = {"direct": 0, "staged": memory_bytes, "packed": spill_bytes}
    # A requested strategy is used, or the call fails: another strategy would spoil the user's comparison.
    if forced is not None and forced != "auto":
        strategy = _parse_strategy(forced)
        _require_room(strategy, counts, room[strategy])
        return _chosen(strategy, counts, predicted, known, "asked for by io_strategy")
    if counts.rows == 0:
        return _chosen("direct", counts, predicted, known, "no row is missing")
    # The order matters: a pack writes, so it must beat the best strategy that does not write.
    strategy = "direct"
    allowed = [way for way in STRATEGIES if counts.room_bytes[way] <= room[way]]
    compared = predicted if is_whole else predicted | {"direct": math.inf}
    if "staged" in allowed and compared["staged"] < compared["direct"]:
        strategy = "staged"
    if "packed" in allowed and compared["packed"] * PACK_GAIN <= compared[strategy]:
        strategy = "packed"
    fastest, strategy = strategy, _least_moved(strategy, allowed, counts, compared, known)
    reason = _reason(strategy, counts, compared, room, is_fastest=strategy == fastest)
    return _chosen(strategy, counts, predicted, known, reason)


def _least_moved(
    fastest: Strategy,
    allowed: list[Strategy],
    counts: MissCounts,
    seconds: Mapping[Strategy, float],
    known: Calibration,
) -> Strategy:
    """Return ``fastest``, or a strategy that moves clearly less and is also hidden behind the computation."""
    hidden_s = HIDDEN_SHARE * known.hidden_s * counts.num_batches
    if seconds[fastest] > hidden_s:
        return fastest
    moved = counts.moved_bytes
    least = min((way for way in allowed if seconds[way] <= hidden_s), key=lambda way: moved[way])
    return least if MOVED_GAIN * moved[least] <= moved[fastest] else fastest


def _chosen(
    strategy: Strategy,
    counts: MissCounts,
    predicted: Mapping[Strategy, float],
    known: Calibration,
    reason: str,
) -> Choice:
    """Return the choice of ``strategy``, with the bytes that it reads."""
    written_bytes = counts.pack_bytes if strategy == "packed" else 0
    return Choice(
        strategy=strategy,
        predicted=predicted,
        reason=reason,
        factor=known.factor(strategy),
        read_bytes=counts.moved_bytes[strategy] - written_bytes,
        counts=counts,
    )


def _parse_strategy(name: str) -> Strategy:
    """Return ``name`` as a strategy; ConfigError if it is unknown."""
    for strategy in STRATEGIES:
        if name == strategy:
            return strategy
    raise ConfigError(f"io_strategy={name!r} is unknown; choose one of auto, {', '.join(STRATEGIES)}")


def _require_room(strategy: Strategy, counts: MissCounts, allowed: int) -> None:
    """Raise BudgetError if the strategy needs more than ``allowed`` bytes of memory or disk."""
    needed = counts.room_bytes[strategy]
    if needed > allowed:
        what, rows, budget = "disk", counts.rows, "spill_budget"
        if strategy == "staged":
            what, rows, budget = "memory", counts.unique_rows, "memory_budget"
        raise BudgetError(
            f"io_strategy={strategy!r} needs {needed} bytes ({format_bytes(needed)}) of {what} for the {rows:,} "
            f"missing rows of {counts.num_batches} batches, and {allowed} ({format_bytes(allowed)}) are allowed; raise "
            f"{budget}, use smaller superbatches, or io_strategy='auto'"
        )


def _reason(
    strategy: Strategy,
    counts: MissCounts,
    predicted: Mapping[Strategy, float],
    room: Mapping[Strategy, int],
    *,
    is_fastest: bool,
) -> str:
    """Return text with the reason for ``strategy`` and against the others. Pure."""
    parts = [f"{strategy} takes {_seconds_text(predicted[strategy])}"]
    for other in STRATEGIES:
        if other == strategy:
            continue
        takes = f"{other} {_seconds_text(predicted[other])}"
        needed, allowed = counts.room_bytes[other], room[other]
        if needed > allowed:
            what = "memory" if other == "staged" else "disk"
            takes += f" (needs {format_bytes(needed)} of {what}, {format_bytes(allowed)} allowed)"
        elif predicted[other] < predicted[strategy]:
            moved = counts.moved_bytes
            takes += (
                f" (gains less than {PACK_GAIN - 1:.0%})"
                if is_fastest
                else f" (moves {format_bytes(moved[other])} instead of {format_bytes(moved[strategy])}, and the loop "
                "computes longer than either takes)"
            )
        parts.append(takes)
    return ", ".join(parts)


def _seconds_text(seconds: float) -> str:
    """Return the seconds as text. Infinity means "direct" over a mirror, see `choose_strategy`."""
    return "brings nearly all blocks for each batch" if math.isinf(seconds) else format_seconds(seconds)
