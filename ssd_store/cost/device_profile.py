"""A storage device's profile: its probe's rates, and the lessons of later runs. Pure.

A probe measures a device for a few seconds; the result is a `DeviceProfile`. A superbatch is a number of batches that
are planned together. Later runs compare the time that their superbatches took with the time that the probe's rates
predict:

- An `Observation` is one superbatch: predicted seconds for each kind of access, and the measured seconds.
- A `Lesson` is one run: for each kind of access the median ratio of measured to predicted seconds (a `Known`).
- `LearntRates` are the lessons of the last runs, the newest first.

A loader corrects the probe's rates by the weighted median of the lessons. A newer run counts for more, and the probe
for as much as two superbatches. A run on a busy machine changes the median little, and a few runs are enough to follow
a changed device.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

from gloader.ssd_store.cost.io_rates import MEDIUM_BYTES, SMALL_BYTES, WIDE_BYTES, ReadTimes
from gloader.ssd_store.read.extents import ALIGNMENT, mean_extent_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gloader.ssd_store.cost.io_rates import IoRates


# Kinds of access: feature reads of 4, 16 and 64 KiB ("small", "medium", "wide") and in file order; pack writes, and
# reads of packs; copies of rows from a sweep to its batches ("dealt"). A pack is a batch's rows on disk; a sweep reads
# the file once, in order.
Access: TypeAlias = Literal["small", "medium", "wide", "in_order", "write", "pack_read", "dealt"]
ACCESSES: Final[tuple[Access, ...]] = get_args(Access)
# The accesses to the device that holds the features, and to the device that holds the packs.
OF_READS: Final[frozenset[Access]] = frozenset({"small", "medium", "wide", "in_order", "dealt"})
OF_SPILL: Final[frozenset[Access]] = frozenset({"write", "pack_read"})

# Largest ratio of a lesson. No probe errs by more: a probe on a busy machine found a twelfth of the disk's later rate.
RATIO_LIMIT: Final = 16.0
MOST_RUNS: Final = 16  # lessons to keep
# Age of the oldest lesson; an older one may describe a changed or fuller device.
_OLDEST_S: Final = 30 * 86_400.0
_PROBE_COUNT: Final = 2.0  # the probe's weight, in superbatches
_MOST_COUNTED: Final = 8.0  # maximum number of superbatches that count in a run; more add no precision
_FADING: Final = 0.8  # a run's weight relative to the next newer run, so that old runs count less
_MOST_COUNT: Final = 1e9  # maximum number of superbatches in a lesson from a file; a larger number is damage
_LEAST_SHARE: Final = 1e-6  # an access with a smaller share of the predicted seconds has no visible effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One superbatch's disk use: predicted seconds by kind of access, and measured seconds."""

    predicted: Mapping[Access, float]  # seconds at the probe's rates
    measured_s: float  # seconds in which the superbatch used the device

    @property
    def ratio(self) -> float:
        """Measured over predicted seconds, limited by `RATIO_LIMIT`; 0 if unknown."""
        predicted = sum(self.predicted.values())
        if not (0 < predicted < math.inf and 0 < self.measured_s < math.inf):
            return 0.0
        return clamped(self.measured_s / predicted)


class Known(NamedTuple):
    """One run's result for one kind of access."""

    ratio: float  # median of measured over predicted seconds
    # Mean share of the predicted seconds. With a small share, other accesses may be the slow ones.
    share: float
    times: float  # number of superbatches

    @property
    def weight(self) -> float:
        """Weight in the median over the runs."""
        return self.share * min(self.times, _MOST_COUNTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One run's results."""

    when: float  # seconds since 1970
    known: Mapping[Access, Known]  # the kinds of access that the run observed


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntRates:
    """The last runs' lessons, the newest first."""

    lessons: tuple[Lesson, ...] = ()

    def after(self, lesson: Lesson) -> LearntRates:
        """Return the table with one more run's lesson. Pure."""
        newest_first = sorted((lesson, *self.lessons), key=lambda each: -each.when)
        return LearntRates(lessons=tuple(newest_first[:MOST_RUNS]))

    def at(self, now: float) -> LearntRates:
        """Return the table without outdated lessons. Pure."""
        return LearntRates(lessons=tuple(each for each in self.lessons if now - each.when <= _OLDEST_S))

    def ratio(self, access: Access) -> float:
        """Return the factor by which ``access`` takes longer than the probe predicts. Pure."""
        known = [lesson.known[access] for lesson in self.lessons if access in lesson.known]
        if not known:
            return 1.0
        weighted = [(run.ratio, run.weight * _FADING**age) for age, run in enumerate(known)]
        probe_weight = _PROBE_COUNT * sum(run.share for run in known) / len(known)
        return weighted_median([(1.0, probe_weight), *weighted])

    def correct(self, rates: IoRates) -> IoRates:
        """Return a probe's ``rates`` corrected by the lessons. Pure."""
        times = self.correct_times(rates.times)
        return replace(
            rates,
            random_reads_per_s=times.small_per_s,
            medium_reads_per_s=times.medium_per_s,
            wide_reads_per_s=times.wide_per_s,
            read_bytes_per_s=times.bytes_per_s,
            write_bytes_per_s=rates.write_bytes_per_s / self.ratio("write"),
            pack_read_bytes_per_s=rates.pack_read_bytes_per_s / self.ratio("pack_read"),
            dealt_bytes_per_s=rates.dealt_bytes_per_s / self.ratio("dealt"),
        )

    def correct_times(self, times: ReadTimes) -> ReadTimes:
        """Return a probe's read ``times`` corrected by the lessons. Pure.

        Shorter reads never have more bytes per second than longer reads. If a learnt rate contradicts a rate without a
        lesson, the rate without a lesson is adjusted.
        """
        sizes: list[tuple[Access, float]] = [
            ("small", times.small_per_s * SMALL_BYTES),
            ("medium", times.medium_per_s * MEDIUM_BYTES),
            ("wide", times.wide_per_s * WIDE_BYTES),
            ("in_order", times.bytes_per_s),
        ]
        learnt = frozenset(access for lesson in self.lessons for access in lesson.known)
        corrected = {access: bytes_per_s / self.ratio(access) for access, bytes_per_s in sizes}
        rates = _consistent(corrected, learnt) if learnt & corrected.keys() else corrected
        return ReadTimes(
            small_per_s=rates["small"] / SMALL_BYTES,
            medium_per_s=rates["medium"] / MEDIUM_BYTES,
            wide_per_s=rates["wide"] / WIDE_BYTES,
            bytes_per_s=rates["in_order"],
        )

    def only(self, accesses: Iterable[Access]) -> LearntRates:
        """Return the lessons about ``accesses`` only. Pure."""
        kept = frozenset(accesses)
        return LearntRates(lessons=tuple(_some(lesson, kept) for lesson in self.lessons))

    def rebased(self, faster: Mapping[Access, float]) -> LearntRates:
        """Return the lessons relative to another probe, whose rates are ``faster`` by these factors. Pure."""
        return LearntRates(lessons=tuple(rebased(lesson, faster) for lesson in self.lessons))


def lesson_of(observations: Sequence[Observation], *, when: float) -> Lesson:
    """Return a run's combined lesson from its observations, in any order. Pure.

    An observation with several kinds of access counts for each kind by its share of the predicted seconds.
    """
    weighted: dict[Access, list[tuple[float, float]]] = defaultdict(list)  # ratios and shares
    for observation in observations:
        ratio, total = observation.ratio, sum(observation.predicted.values())
        if ratio > 0:
            for access, seconds in observation.predicted.items():
                if seconds > _LEAST_SHARE * total:
                    weighted[access].append((ratio, seconds / total))
    return Lesson(
        when=when,
        known={
            access: Known(
                ratio=weighted_median(ratios),
                share=sum(share for _, share in ratios) / len(ratios),
                times=len(ratios),
            )
            for access, ratios in weighted.items()
        },
    )


def rebased(lesson: Lesson, faster: Mapping[Access, float]) -> Lesson:
    """Return ``lesson`` relative to another probe, whose rates are ``faster`` by these factors. Pure."""
    known = {
        access: run._replace(ratio=clamped(run.ratio * faster.get(access, 1.0)))
        for access, run in lesson.known.items()
    }
    return Lesson(when=lesson.when, known=known)


def _consistent(bytes_per_s: Mapping[Access, float], learnt: Collection[Access]) -> dict[Access, float]:
    """Return the rates with longer reads at least as fast as shorter reads; rates without a lesson are adjusted. Pure.

    Parameters
    ----------
    bytes_per_s : rates by read size, the shortest first; unmeasured rates are 0 and stay 0
    learnt : accesses with a lesson
    """
    rates = dict(bytes_per_s)
    measured = [access for access in rates if rates[access] > 0]
    for shorter, longer in reversed(list(pairwise(measured))):
        if shorter not in learnt:
            rates[shorter] = min(rates[shorter], rates[longer])
    for shorter, longer in pairwise(measured):
        if longer not in learnt:
            rates[longer] = max(rates[longer], rates[shorter])
    return rates


def weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """Return the weighted median, the value with half of the weight on either side. Pure.

    If half of the weight ends exactly between two values, the result is their geometric mean.

    Parameters
    ----------
    values : ratios above 0, and their weights
    """
    ordered = sorted(values)
    half = sum(weight for _, weight in ordered) / 2
    weight_so_far = 0.0
    for position, (value, weight) in enumerate(ordered):
        weight_so_far += weight
        if math.isclose(weight_so_far, half, rel_tol=1e-9) and position + 1 < len(ordered):
            return math.sqrt(value * ordered[position + 1][0])
        if weight_so_far > half:
            return value
    return ordered[-1][0]


def clamped(ratio: float) -> float:
    """Return ``ratio`` limited to 1/16..16, a probe's possible error. Pure."""
    return min(max(ratio, 1 / RATIO_LIMIT), RATIO_LIMIT)


def to_json(learnt: LearntRates) -> list[dict[str, Any]]:
    """Return the lessons as plain values. Pure."""
    return [
        {
            "when": round(lesson.when),
            **{
                access: [float(f"{number:.4g}") for number in known] for access, known in lesson.known.items()
            },
        }
        for lesson in learnt.lessons
    ]


def from_json(lessons: Any) -> LearntRates:
    """Return the lessons from the result of `to_json`.

    Raises
    ------
    ValueError, TypeError, KeyError
        ``lessons`` is no result of `to_json`.
    """
    parsed = [_lesson_from(lesson) for lesson in lessons[:MOST_RUNS]]
    return LearntRates(lessons=tuple(sorted(parsed, key=lambda lesson: -lesson.when)))


def _lesson_from(lesson: Any) -> Lesson:
    """Return one lesson from its plain values; raises as `from_json`."""
    known: dict[Access, Known] = {}
    for access in ACCESSES:
        if access in lesson:
            run = Known(*(float(number) for number in lesson[access]))
            if not (run.ratio == clamped(run.ratio) and 0 < run.share <= 1 and 1 <= run.times <= _MOST_COUNT):
                raise ValueError(f"{access}: {run} is out of range for a lesson")
            known[access] = run
    when = float(lesson["when"])
    if not math.isfinite(when):
        raise ValueError(f"the lesson's time is {when}, which is not finite")
    return Lesson(when=when, known=known)


def _some(lesson: Lesson, kept: frozenset[Access]) -> Lesson:
    """Return ``lesson`` with only the accesses in ``kept``."""
    known = {access: run for access, run in lesson.known.items() if access in kept}
    return Lesson(when=lesson.when, known=known)


PROFILE_VERSION: Final = 3  # version 1 held burst rates; version 2 lacked latency and lessons
# Limits of the longest hole that a sweep bridges: a wrong probe must not make every page a separate request, or bridge
# every hole.
MIN_GAP_BYTES, MAX_GAP_BYTES = 4096, 65536
DISAGREEMENT: Final = 1 / 3  # error of a rate that makes a remembered profile invalid
# Maximum ratio of the bytes per second in file order to those of random reads of 4 KiB. The ratio is 4 to 20 for SSDs
# and 61 for a cloud's volumes. Above this limit the device is a hard disk, or an SSD that was busy at the measurement.
_MOST_SEQUENTIAL: Final = 100.0
_MAX_RATE: Final = 1e15  # bytes or requests per second
_AS_FAST: Final = 0.85  # relative to an earlier rate; a lower rate is more than noise
_MIXED: Final = (1 / 16, 16.0)  # limits of `mixed_writes` and `mixed_reads` that are read from a file
# Seconds that a thread waits for a core; the queue must hold work for the device until then. With less work the device
# would become idle; with more work all other users' reads would wait behind it.
_CORE_WAIT_S: Final = 0.004
_SHALLOWEST, _DEEPEST = 64, 1024  # limits of `ring_depth`

# The rate in a profile for each kind of access.
_FIELD_OF: Final[Mapping[Access, str]] = {
    "small": "random_reads_per_s",
    "medium": "medium_reads_per_s",
    "wide": "wide_reads_per_s",
    "in_order": "read_bytes_per_s",
    "write": "write_bytes_per_s",
    "pack_read": "read_bytes_per_s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """One device's rates from its probe, as one process can reach them, with the runs' lessons."""

    random_reads_per_s: float  # random reads of 4 KiB
    read_bytes_per_s: float  # sequential reads
    write_bytes_per_s: float  # sequential writes; 0 if only reads were measured
    queue_depth: int  # the smallest depth that reaches the random rate
    is_direct: bool  # False if measured through the page cache: only proportions of rates are then meaningful
    medium_reads_per_s: float = 0.0  # random reads of `MEDIUM_BYTES`; 0 if not measured
    wide_reads_per_s: float = 0.0  # random reads of `WIDE_BYTES`; 0 if not measured
    latency_s: float = 0.0  # one read of 4 KiB without other load; 0 if not measured
    # Combined rate of a sweep and parallel writes, relative to running them one after the other; 1 means no gain.
    mixed_writes: float = 1.0
    mixed_reads: float = 1.0  # the same for a sweep and parallel random reads
    is_confirmed: bool = False  # two measurements of the reads agreed
    is_scratch: bool = False  # measured on a small new file, which the device's cache may have held
    measured_at: float = 0.0  # seconds since 1970
    learnt: LearntRates = field(default_factory=LearntRates)

    @property
    def times(self) -> ReadTimes:
        """Seconds per read, by size, with the lessons so far."""
        probed = ReadTimes(
            small_per_s=self.random_reads_per_s,
            medium_per_s=self.medium_reads_per_s,
            wide_per_s=self.wide_reads_per_s,
            bytes_per_s=self.read_bytes_per_s,
        )
        return self.learnt.correct_times(probed)

    @property
    def sweep_gap_bytes(self) -> int:
        """Longest hole in bytes between two needed pages that a sweep reads along, in place of a second request."""
        return max(self.times.sweep_gap_bytes(most=MAX_GAP_BYTES), MIN_GAP_BYTES)

    def row_gap_bytes(self, row_bytes: int) -> int:
        """Return the longest hole in bytes between two needed rows that one read of a batch covers. Pure."""
        return self.times.gap_bytes(mean_extent_bytes(row_bytes), most=MAX_GAP_BYTES)

    @property
    def ring_depth(self) -> int:
        """Reads in flight: a power of two, enough to keep the device busy while a thread waits for a core."""
        needed = self.times.small_per_s * (self.latency_s + _CORE_WAIT_S)
        enough = 1 << math.ceil(math.log2(max(needed, 1.0)))
        return min(max(enough, self.queue_depth, _SHALLOWEST), _DEEPEST)

    @property
    def is_complete(self) -> bool:
        """True if every rate was measured."""
        return self.write_bytes_per_s > 0 and self.has_reads

    @property
    def has_reads(self) -> bool:
        """True if all read rates were measured."""
        return self.medium_reads_per_s > 0 and self.wide_reads_per_s > 0

    @property
    def is_doubtful(self) -> bool:
        """True for rates that no idle SSD has, if no second probe confirmed them: the device may have been busy.

        Longer reads cannot be more frequent than shorter reads. Reads in file order have about as many bytes as long
        random reads.
        """
        small, medium, wide = self.random_reads_per_s, self.medium_reads_per_s, self.wide_reads_per_s
        in_order = self.read_bytes_per_s / WIDE_BYTES
        most = 1 / (1 - DISAGREEMENT)
        is_odd = (
            medium > most * small
            or wide > most * medium
            or wide > most * in_order
            or self.read_bytes_per_s > _MOST_SEQUENTIAL * ALIGNMENT * small
        )
        return is_odd and self.has_reads and not self.is_confirmed

    def disagrees_with(self, *, random_reads_per_s: float, read_bytes_per_s: float | None = None) -> bool:
        """Return True if a later rate is off by more than a third, so that this profile is invalid. Pure."""
        ratios = [random_reads_per_s / self.random_reads_per_s]
        if read_bytes_per_s is not None:
            ratios.append(read_bytes_per_s / self.read_bytes_per_s)
        return not all(1 - DISAGREEMENT <= ratio <= 1 / (1 - DISAGREEMENT) for ratio in ratios)

    def slowed(self, *, random_reads_per_s: float, read_bytes_per_s: float) -> DeviceProfile:
        """Return the profile with newly measured rates, if they have fallen by more than noise. Pure."""
        random = random_reads_per_s / self.random_reads_per_s
        in_order = read_bytes_per_s / self.read_bytes_per_s
        random, in_order = (ratio if ratio < _AS_FAST else 1.0 for ratio in (random, in_order))
        return replace(
            self,
            random_reads_per_s=self.random_reads_per_s * random,
            medium_reads_per_s=self.medium_reads_per_s * random,
            wide_reads_per_s=self.wide_reads_per_s * random,
            read_bytes_per_s=self.read_bytes_per_s * in_order,
        )

    def measured_again(self, probe: DeviceProfile) -> DeviceProfile:
        """Return ``probe`` with the lessons about this device. Pure."""
        return replace(probe, learnt=self.learnt.rebased(self.faster_in(probe)))

    def faster_in(self, probe: DeviceProfile) -> dict[Access, float]:
        """Return the factors by which ``probe`` is faster, for each kind of access that both have measured. Pure."""
        factors: dict[Access, float] = {}
        for access, name in _FIELD_OF.items():
            before, after = float(getattr(self, name)), float(getattr(probe, name))
            if before > 0 and after > 0:
                factors[access] = after / before
        return factors

    def taught(self, lesson: Lesson) -> DeviceProfile:
        """Return the profile with one more run's lesson. Pure."""
        return replace(self, learnt=self.learnt.after(lesson))

    def at(self, now: float) -> DeviceProfile:
        """Return the profile without outdated lessons. Pure."""
        return replace(self, learnt=self.learnt.at(now))

    def to_json(self) -> dict[str, Any]:
        """Return the profile as plain values. Pure."""
        plain = asdict(replace(self, learnt=LearntRates()))
        return {"version": PROFILE_VERSION, **plain, "learnt": to_json(self.learnt)}


def parse_profile(body: dict[str, Any]) -> DeviceProfile:
    """Return the profile from the result of `DeviceProfile.to_json`.

    Raises
    ------
    ValueError, TypeError, KeyError, OverflowError
        ``body`` is no result of `to_json`, or has another version.
    """
    if body["version"] != PROFILE_VERSION:
        raise ValueError(f"version {body['version']}")
    numbers = {
        rate.name: float(body.get(rate.name, 0.0) if rate.name in _OPTIONAL else body[rate.name])
        for rate in fields(DeviceProfile)
        if rate.name.endswith("_per_s")
    }
    depth = int(body["queue_depth"])
    # The limits include every existing device. A rate of 1e-300 would give times beyond float64.
    needed = all(1 <= numbers[name] <= _MAX_RATE for name in ("random_reads_per_s", "read_bytes_per_s"))
    is_possible = needed and all(rate == 0 or 1 <= rate <= _MAX_RATE for rate in numbers.values())
    if not is_possible or not 1 <= depth <= 4096:
        raise ValueError(f"rates {numbers}, queue depth {depth}")
    return DeviceProfile(
        **numbers,
        queue_depth=depth,
        is_direct=bool(body["is_direct"]),
        latency_s=_within(body.get("latency_s", 0.0), 0.0, 1.0),
        mixed_writes=_within(body.get("mixed_writes", 1.0), *_MIXED),
        mixed_reads=_within(body.get("mixed_reads", 1.0), *_MIXED),
        is_confirmed=bool(body.get("is_confirmed", False)),
        is_scratch=bool(body.get("is_scratch", False)),
        measured_at=_within(body.get("measured_at", 0.0), 0.0, _MAX_RATE),
        learnt=from_json(body.get("learnt", [])),
    )


_OPTIONAL: Final = frozenset({"medium_reads_per_s", "wide_reads_per_s"})


def _within(value: Any, least: float, most: float) -> float:
    """Return ``value`` as a float; ValueError if it is not between ``least`` and ``most``."""
    number = float(value)
    if not least <= number <= most:  # true for NaN as well
        raise ValueError(f"{number} is not between {least} and {most}")
    return number
