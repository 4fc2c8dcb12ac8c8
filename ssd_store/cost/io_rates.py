"""The cost model's device rates: seconds per read by size, with corrections learnt in the run. Pure.

`IoRates` are a device's rates for one loader, from its profile. `ReadTimes` turn them into the seconds of a read of any
size. A superbatch is a number of batches that are planned together. `Calibration` corrects the predictions during a
run: after each superbatch it compares the measured seconds with the predicted seconds.

There are three strategies to read a superbatch's missing rows, which no cache holds: "direct" (batch by batch),
"staged" (one sweep, a pass in file order, into memory) and "packed" (one sweep into a region on disk per batch, its
pack). Rows that come from other machines are "exchanged".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

# Sizes of the measured reads. Reads with the largest size, in file order, run at the sequential rate.
SMALL_BYTES: Final = 4096
MEDIUM_BYTES: Final = 16384
WIDE_BYTES: Final = 65536
SEQUENTIAL_BYTES: Final = 256 * 1024

# The kinds of read rates.
SizeClass: TypeAlias = Literal["small", "medium", "wide", "in_order"]
_RATE_OF: Final[dict[int, SizeClass]] = {
    SMALL_BYTES: "small",
    MEDIUM_BYTES: "medium",
    WIDE_BYTES: "wide",
    SEQUENTIAL_BYTES: "in_order",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTimes:
    """Seconds of one read among many, by its size.

    Some devices need a request's time plus its bytes' time: the seconds are a straight line over the size. Other
    devices need the longer of the two: the seconds are constant up to some size, and then rise. Between two measured
    sizes, the model takes the higher of two lines, each extrapolated from the measured sizes on its side. For a device
    of the first kind both lines are the straight line, and for the second kind they meet where the seconds begin to
    rise. If 16 KiB were not measured (0), such a read is assumed to cost the request plus the bytes. If 64 KiB were not
    measured, this size is left out.
    """

    small_per_s: float  # random reads of 4 KiB
    medium_per_s: float  # random reads of 16 KiB; 0 if not measured
    wide_per_s: float  # random reads of 64 KiB; 0 if not measured
    bytes_per_s: float  # reads in file order

    def seconds(self, size: float) -> float:
        """Return the seconds for one read with ``size`` bytes, at least a page."""
        points = _points(self)
        for number, (high, _) in enumerate(points[1:]):
            if size <= high:
                return _between(points, number, max(size, points[0][0]))
        return points[-1][1] * size / SEQUENTIAL_BYTES

    def shares(self, size: float) -> dict[SizeClass, float]:
        """Return each measured rate's share in the seconds for a read with ``size`` bytes. The shares add up to 1.

        With the shares, a run's wrong prediction is attributed to the rates that it was made from (see `device_rates`).
        """
        points = _points(self)
        for (low, low_s), (high, high_s) in pairwise(points):
            if size <= high:
                above = max(size - low, 0) / (high - low)  # position between the two measured sizes, 0 to 1
                high_share = above * high_s / (low_s * (1 - above) + high_s * above)
                shares = {_RATE_OF[low]: 1 - high_share, _RATE_OF[high]: high_share}
                return {name: share for name, share in shares.items() if share > 0}
        return {"in_order": 1.0}

    def gap_bytes(self, read_bytes: float, *, most: int) -> int:
        """Return the longest hole between two reads with ``read_bytes`` that takes less time than another request.

        A hole's length is a multiple of 4 KiB. The result is 0 if even the shortest hole takes longer than another
        request, as on a device whose bandwidth is the limit.

        Parameters
        ----------
        read_bytes : bytes per read, with its pages
        most : largest allowed hole
        """
        separate_s, best = 2 * self.seconds(read_bytes), 0
        for gap in range(SMALL_BYTES, most + 1, SMALL_BYTES):
            if self.seconds(2 * read_bytes + gap) <= separate_s:
                best = gap
        return best

    def sweep_gap_bytes(self, *, most: int) -> int:
        """Return the longest hole that a sweep bridges: the bytes read in file order during one request.

        Parameters
        ----------
        most : largest allowed hole
        """
        # One request reads 4 KiB itself, and these bytes are needed with or without the hole.
        gap = self.bytes_per_s * self.seconds(SMALL_BYTES) - SMALL_BYTES
        # Rounded up to a byte first: a rounding error in ``gap`` must not remove an entire page.
        return int(math.ceil(min(max(gap, 0.0), most)) // SMALL_BYTES * SMALL_BYTES)


@lru_cache(maxsize=64)  # the memory planner calls it very often
def _points(times: ReadTimes) -> tuple[tuple[int, float], ...]:
    """Return the measured sizes in bytes, each with the seconds of a read, ascending.

    A larger read takes at least as long, and no longer per byte; measurements that contradict this are corrected.
    """
    last_size, last_s = SMALL_BYTES, 1 / times.small_per_s
    points = [(last_size, last_s)]
    # The last size has the rate 0.0 only to fill the tuple: its seconds come from ``bytes_per_s``.
    for size, rate in (
        (MEDIUM_BYTES, times.medium_per_s),
        (WIDE_BYTES, times.wide_per_s),
        (SEQUENTIAL_BYTES, 0.0),
    ):
        if size == WIDE_BYTES and not rate:
            continue
        assumed_s = last_s + (size - last_size) / times.bytes_per_s  # the request plus the additional bytes
        measured_s = 1 / rate if rate else assumed_s
        seconds = size / times.bytes_per_s if size == SEQUENTIAL_BYTES else measured_s
        # At least the shorter read's seconds, and at most its seconds per byte.
        last_s, last_size = min(max(seconds, last_s), last_s * size / last_size), size
        points.append((last_size, last_s))
    return tuple(points)


def _between(points: tuple[tuple[int, float], ...], number: int, size: float) -> float:
    """Return the seconds for a read between two measured sizes, by extrapolation from both sides.

    One line goes through the two points up to the lower size, the other line through the two points from the higher
    size. The result is the higher of the two lines, but at most the straight line between the lower and the higher
    size. If no point precedes the lower size, the result is on the straight line.

    Parameters
    ----------
    points : the result of `_points`
    number : the index of the lower size in ``points``; the higher size is the next
    size : bytes per read, between these sizes
    """
    (low, before), (high, after) = points[number : number + 2]
    straight = before + (after - before) * (size - low) / (high - low)
    if number == 0:
        return straight
    earlier, earlier_s = points[number - 1]
    # Beyond the last point a read's time is proportional to its bytes.
    later, later_s = points[number + 2] if number + 2 < len(points) else (2 * high, 2 * after)
    slope_below, slope_above = (before - earlier_s) / (low - earlier), (later_s - after) / (later - high)
    return min(straight, max(before + slope_below * (size - low), after - slope_above * (high - size)))


Strategy: TypeAlias = Literal["direct", "staged", "packed"]
STRATEGIES: Final[tuple[Strategy, ...]] = ("direct", "staged", "packed")

# Largest factor. A larger error is an event, such as a stall of one second, not a wrong rate.
_FACTOR_LIMIT: Final = 3.0
# These constants apply to logarithms of errors and factors.
_DAMPING: Final = 0.5  # the corrected part of an error
_SHARED: Final = 0.5  # the part of a factor that applies to strategies without observations
_FORGETTING: Final = 0.95  # the part that remains after a superbatch without an observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured over predicted seconds for each strategy, learnt from the run's superbatches so far."""

    direct: float = 1.0  # factor on the model's seconds, as `staged` and `packed`
    staged: float = 1.0
    packed: float = 1.0
    exchanged: float = 1.0  # factor for exchanged rows, whether they stay in memory or go into packs
    observed: frozenset[Strategy] = frozenset()  # strategies with observations
    has_exchanged: bool = False  # `exchanged` has observations
    # Seconds of disk time per batch and table that the loop's computation hides; 0 if unknown. They are the loop's
    # computing seconds per step, divided by the numbers of tables and of ranks, which share the disk.
    hidden_s: float = 0.0

    def factor(self, strategy: Strategy) -> float:
        """Return the factor on the model's seconds for ``strategy``."""
        return float(getattr(self, strategy))

    def after(
        self, strategy: Strategy, predicted_s: float, measured_s: float, *, factor: float | None = None
    ) -> Calibration:
        """Return the calibration after one more superbatch. Pure.

        Half of the error is corrected. One slow moment on the device has little effect, and three superbatches bring
        a prediction that was wrong by a factor of two to within 10%. Factors stay between a third and three.

        Parameters
        ----------
        strategy : the superbatch's strategy
        predicted_s, measured_s : the superbatch's seconds
        factor : the factor that the prediction contains; defaults to this calibration's factor
        """
        if not (_is_positive(predicted_s) and _is_positive(measured_s)):
            return self
        learnt = learn_factor(
            self.factor(strategy), predicted_s=predicted_s, measured_s=measured_s, made_with=factor
        )
        # An untried strategy is assumed to be half as wrong as this strategy: they share a device, but not everything.
        # A strategy tried before loses its factor slowly, so that a bad moment does not exclude it for the rest of the
        # run.
        factors = self._others(learnt)
        factors[strategy] = learnt
        exchanged = self.exchanged**_FORGETTING if self.has_exchanged else learnt**_SHARED
        known = replace(self, exchanged=exchanged, observed=self.observed | {strategy})
        return replace(known, **factors)

    def after_exchange(self, predicted_s: float, measured_s: float, *, factor: float) -> Calibration:
        """Return the calibration after one more exchanged superbatch. Pure.

        Strategies without observations are assumed to be half as wrong, because the disk is the same. Otherwise a slow
        disk would only count against exchanges, and never against separate reads.

        Parameters
        ----------
        predicted_s, measured_s : the superbatch's seconds
        factor : the prediction's factor
        """
        learnt = learn_factor(
            self.exchanged, predicted_s=predicted_s, measured_s=measured_s, made_with=factor
        )
        return replace(replace(self, exchanged=learnt, has_exchanged=True), **self._others(learnt))

    def _others(self, learnt: float) -> dict[str, Any]:
        """Return the next factor of each strategy that was not observed this time. Pure.

        The keys are all strategies; `after` replaces the observed strategy's entry. ``learnt`` is the factor of the
        observed strategy or of the exchange.
        """
        return {
            other: self.factor(other) ** _FORGETTING if other in self.observed else learnt**_SHARED
            for other in STRATEGIES
        }


def learn_factor(
    factor: float, *, predicted_s: float, measured_s: float, made_with: float | None = None
) -> float:
    """Return the factor for the next prediction, halfway to the correct factor. Pure.

    Errors beyond a factor of three are limited, and seconds that are not positive change nothing.

    Parameters
    ----------
    factor : the factor until now
    predicted_s, measured_s : predicted and measured seconds
    made_with : the factor in the prediction; defaults to ``factor``
    """
    if not (_is_positive(predicted_s) and _is_positive(measured_s)):
        return factor
    correct = (factor if made_with is None else made_with) * _clamped(measured_s / predicted_s)
    # The mean of logarithms treats twice as fast and twice as slow alike.
    return _clamped(factor ** (1 - _DAMPING) * correct**_DAMPING)


def _is_positive(seconds: float) -> bool:
    """Return whether ``seconds`` is a finite number above 0."""
    return math.isfinite(seconds) and seconds > 0


def _clamped(factor: float) -> float:
    """Return ``factor`` limited to a third..three."""
    return min(max(factor, 1 / _FACTOR_LIMIT), _FACTOR_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class IoRates:
    """Rates of the devices that hold the features and the spill folder."""

    random_reads_per_s: float  # random feature reads of 4 KiB
    read_bytes_per_s: float  # sequential feature reads
    write_bytes_per_s: float  # sequential writes to the spill folder
    pack_read_bytes_per_s: float  # sequential reads from the spill folder
    medium_reads_per_s: float = 0.0  # random feature reads of 16 KiB; 0 if not measured
    wide_reads_per_s: float = 0.0  # random feature reads of 64 KiB; 0 if not measured
    is_one_device: bool = True  # the features and the spill folder share a device and its bandwidth
    latency_s: float = 0.0  # one 4 KiB read without other load; 0 if not measured
    # Rate at which a sweep's thread copies rows to its batches while the device waits; 0 if it costs no device time.
    dealt_bytes_per_s: float = 0.0
    # On one device: combined rate of two parallel loads, relative to taking turns.
    mixed_writes: float = 1.0  # a sweep in parallel with pack writes
    mixed_reads: float = 1.0  # a sweep in parallel with random reads
    is_assumed: bool = False  # assumed rates of a modest SSD, without a measurement

    @property
    def times(self) -> ReadTimes:
        """Seconds per feature read, by size."""
        return ReadTimes(
            small_per_s=self.random_reads_per_s,
            medium_per_s=self.medium_reads_per_s,
            wide_per_s=self.wide_reads_per_s,
            bytes_per_s=self.read_bytes_per_s,
        )

    def corrected(self, calibration: Calibration) -> IoRates:
        """Return the rates corrected by the run's reads so far. Pure."""
        # "direct" makes random reads, and "staged" reads in file order. "packed" also writes, so that its factor is not
        # one of the reads alone.
        random, in_order = calibration.factor("direct"), calibration.factor("staged")
        return replace(
            self,
            random_reads_per_s=self.random_reads_per_s / random,
            medium_reads_per_s=self.medium_reads_per_s / random,
            wide_reads_per_s=self.wide_reads_per_s / random,
            read_bytes_per_s=self.read_bytes_per_s / in_order,
        )

    def read_seconds(self, requests: float, num_bytes: float, *, calls: float = 1.0) -> float:
        """Return the seconds for reading ``num_bytes`` from the features in ``requests`` equally large reads. Pure.

        A call with any read takes at least the latency of one read, even if its reads cannot keep the device busy.

        Parameters
        ----------
        requests : reads in all calls
        num_bytes : bytes in all reads
        calls : number of calls, one after another
        """
        if not requests:
            return 0.0
        busy = requests * self.times.seconds(num_bytes / requests)
        return max(busy, self.latency_s * min(calls, requests))

    def packing_seconds(self, read_s: float, write_s: float) -> float:
        """Return the seconds for a sweep that also writes, from the seconds of each load run separately. Pure."""
        both_s = (read_s + write_s) / self.mixed_writes if self.is_one_device else 0.0
        # Neither load takes less time than run separately, even on a device that does both well in parallel.
        return max(read_s, write_s, both_s)

    def dealing_seconds(self, num_bytes: float) -> float:
        """Return the seconds that the device waits while a sweep deals out ``num_bytes`` of rows. Pure."""
        return num_bytes / self.dealt_bytes_per_s if self.dealt_bytes_per_s else 0.0
