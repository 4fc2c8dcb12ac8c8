"""Rates of devices in the cost model: seconds of a read by its size, and corrections learnt in the run. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

# Bytes of the reads whose rates are measured. Reads of the last size, in file order, run at the sequential rate.
SMALL_BYTES: Final = 4096
MEDIUM_BYTES: Final = 16384
WIDE_BYTES: Final = 65536
SEQUENTIAL_BYTES: Final = 256 * 1024

# The rates that reads are known by.
SizeClass: TypeAlias = Literal["small", "medium", "wide", "in_order"]
_RATE_OF: Final[dict[int, SizeClass]] = {
    SMALL_BYTES: "small",
    MEDIUM_BYTES: "medium",
    WIDE_BYTES: "wide",
    SEQUENTIAL_BYTES: "in_order",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTimes:
    """Seconds that the device needs for a read among many, by its size.

    Some devices take the time of a request and that of its bytes, some the longer of the two: between the sizes that
    were measured, a read takes what those on either side lead to, which is right for both. Sizes that were not measured
    (0) are taken to cost the request and the bytes.
    """

    small_per_s: float  # of 4 KiB, at random
    medium_per_s: float  # of 16 KiB, at random; 0: not measured
    wide_per_s: float  # of 64 KiB, at random; 0: not measured
    bytes_per_s: float  # in file order

    def seconds(self, size: float) -> float:
        """Return the seconds of one read of ``size`` bytes; nothing is read in less than a page."""
        points = _points(self)
        for number, (high, _) in enumerate(points[1:]):
            if size <= high:
                return _between(points, number, max(size, points[0][0]))
        return points[-1][1] * size / SEQUENTIAL_BYTES

    def shares(self, size: float) -> dict[SizeClass, float]:
        """Return which parts of the seconds of a read of ``size`` bytes follow from which of the rates.

        Of "small", "medium" and "wide" reads, and of those "in_order"; they add up to 1.
        """
        points = _points(self)
        for (low, before), (high, after) in pairwise(points):
            if size <= high:
                above = max(size - low, 0) / (high - low)
                far = above * after / (before * (1 - above) + after * above)
                found = {_RATE_OF[low]: 1 - far, _RATE_OF[high]: far}
                return {name: share for name, share in found.items() if share > 0}
        return {"in_order": 1.0}

    def gap_bytes(self, read_bytes: float, *, most: int) -> int:
        """Return the longest hole between two reads of ``read_bytes`` that is read in less time than a request more.

        In whole pages, 0 where the device is bound by bytes: wide rows are then read alone.

        Parameters
        ----------
        read_bytes : of either read, pages included
        most : more is never read through
        """
        apart, best = 2 * self.seconds(read_bytes), 0
        for gap in range(SMALL_BYTES, most + 1, SMALL_BYTES):
            if self.seconds(2 * read_bytes + gap) <= apart:
                best = gap
        return best

    def sweep_gap_bytes(self, *, most: int) -> int:
        """Return the longest hole that a sweep reads through: what passes in file order in the time of a request.

        Parameters
        ----------
        most : more is never read through
        """
        gap = self.bytes_per_s * self.seconds(SMALL_BYTES) - SMALL_BYTES
        return int(math.ceil(min(max(gap, 0.0), most)) // SMALL_BYTES * SMALL_BYTES)


@lru_cache(maxsize=64)  # asked for again and again while memory is shared out
def _points(times: ReadTimes) -> tuple[tuple[int, float], ...]:
    """Return sizes and their seconds: larger reads take no less time, and no more for a byte."""
    last, before = SMALL_BYTES, 1 / times.small_per_s
    found = [(last, before)]
    for size, rate in (
        (MEDIUM_BYTES, times.medium_per_s),
        (WIDE_BYTES, times.wide_per_s),
        (SEQUENTIAL_BYTES, 0.0),
    ):
        if size == WIDE_BYTES and not rate:
            continue
        both = before + (size - last) / times.bytes_per_s
        measured = 1 / rate if rate else both
        seconds = size / times.bytes_per_s if size == SEQUENTIAL_BYTES else measured
        before, last = min(max(seconds, before), before * size / last), size
        found.append((last, before))
    return tuple(found)


def _between(points: tuple[tuple[int, float], ...], number: int, size: float) -> float:
    """Return the seconds of a read whose size is between two points: those before and behind them, drawn on.

    Where the line bends between the two, it is where both meet; it is no higher than straight from one to the other,
    which it is where nothing was measured before them.
    """
    (low, before), (high, after) = points[number : number + 2]
    straight = before + (after - before) * (size - low) / (high - low)
    if number == 0:
        return straight
    earlier, earlier_s = points[number - 1]
    # Behind the last point a read takes the time of its bytes.
    later, later_s = points[number + 2] if number + 2 < len(points) else (2 * high, 2 * after)
    rising, falling = (before - earlier_s) / (low - earlier), (later_s - after) / (later - high)
    return min(straight, max(before + rising * (size - low), after - falling * (high - size)))


Strategy: TypeAlias = Literal["direct", "staged", "packed"]
STRATEGIES: Final[tuple[Strategy, ...]] = ("direct", "staged", "packed")

# A larger error is an event, such as a device that hung for a second, not a wrong rate.
_FACTOR_LIMIT: Final = 3.0
_DAMPING: Final = 0.5  # of the logarithm of an error: half of it is believed
_SHARED: Final = 0.5  # of the logarithm of a factor: what it says about a strategy that was not observed
_FORGETTING: Final = 0.95  # of the logarithm of a factor, for each superbatch in which it was not observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured over predicted seconds of each strategy, learnt from the superbatches of the run so far."""

    direct: float = 1.0
    staged: float = 1.0
    packed: float = 1.0
    exchanged: float = 1.0  # of rows that come from several machines, however they are kept here
    observed: frozenset[Strategy] = frozenset()
    has_exchanged: bool = False  # `exchanged` was observed, too
    hidden_s: float = 0.0  # of the reads of a batch, that the loop computes meanwhile; 0: that is not known

    def factor(self, strategy: Strategy) -> float:
        """Return what the model's seconds of ``strategy`` are multiplied with."""
        return float(getattr(self, strategy))

    def after(
        self, strategy: Strategy, predicted_s: float, measured_s: float, *, factor: float | None = None
    ) -> Calibration:
        """Return the calibration with one more superbatch in it. Pure.

        Half of the error is believed: a single hiccup of the device does no harm, and three superbatches bring a
        prediction that was wrong by a factor of two to within 10%. Factors stay within a third and three.

        Parameters
        ----------
        strategy : the one that was used
        predicted_s, measured_s : seconds of the superbatch
        factor : of the `Choice`, if an earlier calibration than this one predicted; defaults to this one's
        """
        if not (_is_positive(predicted_s) and _is_positive(measured_s)):
            return self
        learnt = learn_factor(
            self.factor(strategy), predicted_s=predicted_s, measured_s=measured_s, made_with=factor
        )
        # A strategy that was never tried is taken to be half as wrong as this one: they share a device, but not
        # everything. One that was tried before is slowly forgiven, so that a bad moment does not rule it out for
        # the rest of the run.
        factors = self._others(learnt)
        factors[strategy] = learnt
        exchanged = self.exchanged**_FORGETTING if self.has_exchanged else learnt**_SHARED
        known = replace(self, exchanged=exchanged, observed=self.observed | {strategy})
        return replace(known, **factors)

    def after_exchange(self, predicted_s: float, measured_s: float, *, factor: float) -> Calibration:
        """Return the calibration with one more superbatch whose rows came from several machines. Pure.

        Own sweeps that were never tried are taken to be half as wrong: the disk is the same. An exchange that alone
        paid for a disk that is slower than it was measured would lose to them.

        Parameters
        ----------
        predicted_s, measured_s : seconds of the superbatch
        factor : that was in the prediction
        """
        learnt = learn_factor(
            self.exchanged, predicted_s=predicted_s, measured_s=measured_s, made_with=factor
        )
        return replace(replace(self, exchanged=learnt, has_exchanged=True), **self._others(learnt))

    def _others(self, learnt: float) -> dict[str, Any]:
        """Return the factors of the strategies, after one way of reading was learnt of."""
        return {
            other: self.factor(other) ** _FORGETTING if other in self.observed else learnt**_SHARED
            for other in STRATEGIES
        }


def learn_factor(
    factor: float, *, predicted_s: float, measured_s: float, made_with: float | None = None
) -> float:
    """Return the factor to predict with next, halfway to the one that would have been right. Pure.

    No error of more than a factor of three is believed, and seconds that are not positive teach nothing.

    Parameters
    ----------
    factor : the factor until now
    predicted_s, measured_s : seconds
    made_with : the factor in the prediction; defaults to ``factor``
    """
    if not (_is_positive(predicted_s) and _is_positive(measured_s)):
        return factor
    right = (factor if made_with is None else made_with) * _clamped(measured_s / predicted_s)
    # A mean of logarithms: twice as fast and twice as slow weigh the same.
    return _clamped(factor ** (1 - _DAMPING) * right**_DAMPING)


def _is_positive(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0


def _clamped(factor: float) -> float:
    return min(max(factor, 1 / _FACTOR_LIMIT), _FACTOR_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class IoRates:
    """What the devices under the features and under the spill folder do."""

    random_reads_per_s: float  # of 4 KiB, from the features
    read_bytes_per_s: float  # sequential, from the features
    write_bytes_per_s: float  # sequential, into the spill folder
    pack_read_bytes_per_s: float  # sequential, from the spill folder
    medium_reads_per_s: float = 0.0  # random, of 16 KiB, from the features; 0: not measured
    wide_reads_per_s: float = 0.0  # random, of 64 KiB, likewise
    is_one_device: bool = True  # the features and the spill folder share a device, and so its bandwidth
    latency_s: float = 0.0  # of one read of 4 KiB with nothing beside it; 0: not measured
    # That a sweep's thread copies to its batches while the device waits for it; 0: no time of the device.
    dealt_bytes_per_s: float = 0.0
    # Of one device: what it does of two loads at once, over what it would do of them in turns.
    mixed_writes: float = 1.0  # a sweep, and packs that are written
    mixed_reads: float = 1.0  # a sweep, and random reads
    is_assumed: bool = False  # those of a modest SSD: nothing was measured

    @property
    def times(self) -> ReadTimes:
        """How long reads of the features take by their size."""
        return ReadTimes(
            small_per_s=self.random_reads_per_s,
            medium_per_s=self.medium_reads_per_s,
            wide_per_s=self.wide_reads_per_s,
            bytes_per_s=self.read_bytes_per_s,
        )

    def corrected(self, calibration: Calibration) -> IoRates:
        """Return what the reads of the run so far say that these rates are now. Pure."""
        alone, swept = calibration.factor("direct"), calibration.factor("staged")
        return replace(
            self,
            random_reads_per_s=self.random_reads_per_s / alone,
            medium_reads_per_s=self.medium_reads_per_s / alone,
            wide_reads_per_s=self.wide_reads_per_s / alone,
            read_bytes_per_s=self.read_bytes_per_s / swept,
        )

    def read_seconds(self, requests: float, num_bytes: float, *, calls: float = 1.0) -> float:
        """Return the seconds of reading ``num_bytes`` of the features in ``requests`` about equal reads. Pure.

        Reads that are too few to keep the device busy take the time of one.

        Parameters
        ----------
        requests : reads, of all calls
        num_bytes : of all reads
        calls : in which they are made: none is begun before the one before it has ended
        """
        if not requests:
            return 0.0
        busy = requests * self.times.seconds(num_bytes / requests)
        return max(busy, self.latency_s * min(calls, requests))

    def packing_seconds(self, read_s: float, write_s: float) -> float:
        """Return the seconds of a sweep that writes what it reads, from those of either alone. Pure."""
        both_s = (read_s + write_s) / self.mixed_writes if self.is_one_device else 0.0
        # Where a device does both well at once, either still takes its own time.
        return max(read_s, write_s, both_s)

    def dealing_seconds(self, num_bytes: float) -> float:
        """Return the seconds for which the device waits while a sweep deals ``num_bytes`` of rows out. Pure."""
        return num_bytes / self.dealt_bytes_per_s if self.dealt_bytes_per_s else 0.0
