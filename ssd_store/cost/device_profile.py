"""The profile of a storage device: the rates of its probe, and the lessons of later runs. Pure.

For each run the table keeps a median for each kind of access, the newest runs first. A loader gets a weighted median
over them, in which a newer run counts for more and the probe for as much as two superbatches: a run on a machine that
was busy with other work moves it little, a device that has changed is followed within a few runs.
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


# Reads of 4, 16 and 64 KiB and in file order, from the features; packs that are written, and read back; rows that a
# sweep deals out to its batches.
Access: TypeAlias = Literal["small", "medium", "wide", "in_order", "write", "pack_read", "dealt"]
ACCESSES: Final[tuple[Access, ...]] = get_args(Access)
OF_READS: Final[frozenset[Access]] = frozenset({"small", "medium", "wide", "in_order", "dealt"})
OF_SPILL: Final[frozenset[Access]] = frozenset({"write", "pack_read"})

# Larger ratios than a probe can be wrong by: one on a busy machine found a twelfth of what the disk did later.
RATIO_LIMIT: Final = 16.0
MOST_RUNS: Final = 16  # kept
_OLDEST_S: Final = 30 * 86_400.0  # after that the device may be another one, or full
_PROBE_COUNT: Final = 2.0  # superbatches that a probe counts for
_MOST_COUNTED: Final = 8.0  # superbatches of a run: a long one is no better
_FADING: Final = 0.8  # of the weight of the run that came after
_MOST_COUNT: Final = 1e9
_LEAST_SHARE: Final = 1e-6  # of the predicted seconds: what has less of them is not seen in what they took


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One thing that a superbatch did with the disk: what was predicted, of which accesses, and what it took."""

    predicted: Mapping[Access, float]  # seconds, by the rates of the probe
    measured_s: float  # of the device alone

    @property
    def ratio(self) -> float:
        """Measured over predicted seconds, within the limits; 0: nothing is known of it."""
        predicted = sum(self.predicted.values())
        if not (0 < predicted < math.inf and 0 < self.measured_s < math.inf):
            return 0.0
        return clamped(self.measured_s / predicted)


class Known(NamedTuple):
    """What one run says of one kind of access."""

    ratio: float  # median of measured over predicted seconds
    share: float  # of the predicted seconds that it was seen in: with little it may be others that took long
    times: float  # superbatches

    @property
    def weight(self) -> float:
        """How much it counts for."""
        return self.share * min(self.times, _MOST_COUNTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What one run says."""

    when: float  # seconds since 1970
    known: Mapping[Access, Known]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntRates:
    """The lessons of the last runs, the newest first."""

    lessons: tuple[Lesson, ...] = ()

    def after(self, lesson: Lesson) -> LearntRates:
        """Return the table with one more run in it. Pure."""
        newest_first = sorted((lesson, *self.lessons), key=lambda one: -one.when)
        return LearntRates(lessons=tuple(newest_first[:MOST_RUNS]))

    def at(self, now: float) -> LearntRates:
        """Return the table without what is too old. Pure."""
        return LearntRates(lessons=tuple(one for one in self.lessons if now - one.when <= _OLDEST_S))

    def ratio(self, access: Access) -> float:
        """Return by how much longer ``access`` takes than the probe says; 1: as long. Pure."""
        known = [lesson.known[access] for lesson in self.lessons if access in lesson.known]
        if not known:
            return 1.0
        found = [(one.ratio, one.weight * _FADING**age) for age, one in enumerate(known)]
        probe = _PROBE_COUNT * sum(one.share for one in known) / len(known)
        return weighted_median([(1.0, probe), *found])

    def correct(self, rates: IoRates) -> IoRates:
        """Return what ``rates`` of a probe really are. Pure."""
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
        """Return how long reads really take where a probe says ``times``. Pure.

        Shorter reads bring no more bytes in a second than longer ones: where a rate that was learnt says otherwise of
        one of which nothing was, that one gives way.
        """
        sizes: list[tuple[Access, float]] = [
            ("small", times.small_per_s * SMALL_BYTES),
            ("medium", times.medium_per_s * MEDIUM_BYTES),
            ("wide", times.wide_per_s * WIDE_BYTES),
            ("in_order", times.bytes_per_s),
        ]
        learnt = frozenset(access for lesson in self.lessons for access in lesson.known)
        corrected = {access: bytes_per_s / self.ratio(access) for access, bytes_per_s in sizes}
        found = _in_step(corrected, learnt) if learnt & corrected.keys() else corrected
        return ReadTimes(
            small_per_s=found["small"] / SMALL_BYTES,
            medium_per_s=found["medium"] / MEDIUM_BYTES,
            wide_per_s=found["wide"] / WIDE_BYTES,
            bytes_per_s=found["in_order"],
        )

    def only(self, accesses: Iterable[Access]) -> LearntRates:
        """Return the part of the table on ``accesses``. Pure."""
        kept = frozenset(accesses)
        return LearntRates(lessons=tuple(_some(lesson, kept) for lesson in self.lessons))

    def rebased(self, faster: Mapping[Access, float]) -> LearntRates:
        """Return the table for another probe, whose rates are ``faster`` than those of this one's by factors. Pure."""
        return LearntRates(lessons=tuple(rebased(lesson, faster) for lesson in self.lessons))


def lesson_of(observations: Sequence[Observation], *, when: float) -> Lesson:
    """Return what the observations of a run say together, in whatever order they came. Pure.

    What took several kinds of access at once tells of each as much as its share of the predicted seconds.
    """
    found: dict[Access, list[tuple[float, float]]] = defaultdict(list)
    for one in observations:
        ratio, total = one.ratio, sum(one.predicted.values())
        if ratio > 0:
            for access, seconds in one.predicted.items():
                if seconds > _LEAST_SHARE * total:
                    found[access].append((ratio, seconds / total))
    return Lesson(
        when=when,
        known={
            access: Known(
                ratio=weighted_median(ratios),
                share=sum(share for _, share in ratios) / len(ratios),
                times=len(ratios),
            )
            for access, ratios in found.items()
        },
    )


def rebased(lesson: Lesson, faster: Mapping[Access, float]) -> Lesson:
    """Return ``lesson`` for a probe whose rates are ``faster`` by factors than those of the one it speaks of. Pure."""
    known = {
        access: one._replace(ratio=clamped(one.ratio * faster.get(access, 1.0)))
        for access, one in lesson.known.items()
    }
    return Lesson(when=lesson.when, known=known)


def _in_step(bytes_per_s: Mapping[Access, float], learnt: Collection[Access]) -> dict[Access, float]:
    """Return the bytes per second of reads, the shortest first, with those that were not ``learnt`` between the others.

    Those that were not measured are 0, and stay so.
    """
    found = dict(bytes_per_s)
    measured = [access for access in found if found[access] > 0]
    for shorter, longer in reversed(list(pairwise(measured))):
        if shorter not in learnt:
            found[shorter] = min(found[shorter], found[longer])
    for shorter, longer in pairwise(measured):
        if longer not in learnt:
            found[longer] = max(found[longer], found[shorter])
    return found


def weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """Return the value that half of the weight lies on either side of; between two of them, their mean. Pure.

    Parameters
    ----------
    values : ratios above 0, and their weights
    """
    ordered = sorted(values)
    half = sum(weight for _, weight in ordered) / 2
    before = 0.0
    for position, (value, weight) in enumerate(ordered):
        before += weight
        if math.isclose(before, half, rel_tol=1e-9) and position + 1 < len(ordered):
            return math.sqrt(value * ordered[position + 1][0])
        if before > half:
            return value
    return ordered[-1][0]


def clamped(ratio: float) -> float:
    """Return ``ratio`` within what a probe can be wrong by. Pure."""
    return min(max(ratio, 1 / RATIO_LIMIT), RATIO_LIMIT)


def to_json(learnt: LearntRates) -> list[dict[str, Any]]:
    """Return the table as plain values. Pure."""
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
    """Return what `to_json` made.

    Raises
    ------
    ValueError, TypeError, KeyError
        It did not.
    """
    found = [_lesson_from(lesson) for lesson in lessons[:MOST_RUNS]]
    return LearntRates(lessons=tuple(sorted(found, key=lambda one: -one.when)))


def _lesson_from(lesson: Any) -> Lesson:
    known: dict[Access, Known] = {}
    for access in ACCESSES:
        if access in lesson:
            one = Known(*(float(number) for number in lesson[access]))
            if not (one.ratio == clamped(one.ratio) and 0 < one.share <= 1 and 1 <= one.times <= _MOST_COUNT):
                raise ValueError(f"{access}: nobody can have learnt {one}")
            known[access] = one
    when = float(lesson["when"])
    if not math.isfinite(when):
        raise ValueError(f"a lesson of the time {when}")
    return Lesson(when=when, known=known)


def _some(lesson: Lesson, kept: frozenset[Access]) -> Lesson:
    known = {access: one for access, one in lesson.known.items() if access in kept}
    return Lesson(when=lesson.when, known=known)


PROFILE_VERSION: Final = 3  # 1 held the rates of bursts; 2 knew neither latency nor what runs had learnt
# A probe that went wrong must not make every page a request of its own, or read everything in between.
MIN_GAP_BYTES, MAX_GAP_BYTES = 4096, 65536
DISAGREEMENT: Final = 1 / 3  # a rate this far off makes a remembered profile worthless
# Bytes in file order in the time of one at random, in reads of 4 KiB: 4 to 20 of SSDs, 61 of a cloud's volumes. Above
# it is a hard disk, or an SSD that was busy with other work while it was measured.
_MOST_SEQUENTIAL: Final = 100.0
_MAX_RATE: Final = 1e15  # bytes or requests a second
_AS_FAST: Final = 0.85  # of a rate that was measured before: less is no noise
_MIXED: Final = (1 / 16, 16.0)
# A queue holds what the device reads while its thread waits for a core: less would leave the device idle then, more
# would make everybody else's reads wait behind it.
_CORE_WAIT_S: Final = 0.004
_SHALLOWEST, _DEEPEST = 64, 1024

# The rate of each kind of access, in a profile.
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
    """The rates of one device as its probe found them, as one process can get them, and what runs made of them."""

    random_reads_per_s: float  # of 4 KiB
    read_bytes_per_s: float  # sequential
    write_bytes_per_s: float  # sequential; 0: only reads were measured
    queue_depth: int  # the smallest that reaches the random rate
    is_direct: bool  # False: measured through the page cache, good for nothing but proportions
    medium_reads_per_s: float = 0.0  # random, of `MEDIUM_BYTES`; 0: not measured
    wide_reads_per_s: float = 0.0  # random, of `WIDE_BYTES`; 0: not measured
    latency_s: float = 0.0  # of one read of 4 KiB with nothing beside it; 0: not measured
    mixed_writes: float = (
        1.0  # what it does of a sweep and of writes at once, over what it does of them in turns
    )
    mixed_reads: float = 1.0  # likewise of a sweep and random reads
    is_confirmed: bool = False  # reads were measured twice, with rates alike
    is_scratch: bool = False  # of a small new file, which a cache in front of the device may have held
    measured_at: float = 0.0  # seconds since 1970
    learnt: LearntRates = field(default_factory=LearntRates)

    @property
    def times(self) -> ReadTimes:
        """How long reads take by their size, as far as it is known by now."""
        probed = ReadTimes(
            small_per_s=self.random_reads_per_s,
            medium_per_s=self.medium_reads_per_s,
            wide_per_s=self.wide_reads_per_s,
            bytes_per_s=self.read_bytes_per_s,
        )
        return self.learnt.correct_times(probed)

    @property
    def sweep_gap_bytes(self) -> int:
        """Longest hole between two wanted pages that a sweep reads through."""
        return max(self.times.sweep_gap_bytes(most=MAX_GAP_BYTES), MIN_GAP_BYTES)

    def row_gap_bytes(self, row_bytes: int) -> int:
        """Return the longest hole between two wanted rows that a batch reads through. Pure."""
        return self.times.gap_bytes(mean_extent_bytes(row_bytes), most=MAX_GAP_BYTES)

    @property
    def ring_depth(self) -> int:
        """Reads to hold in flight: a power of two, and as many as keep the device busy while a thread has no core."""
        needed = self.times.small_per_s * (self.latency_s + _CORE_WAIT_S)
        enough = 1 << math.ceil(math.log2(max(needed, 1.0)))
        return min(max(enough, self.queue_depth, _SHALLOWEST), _DEEPEST)

    @property
    def is_complete(self) -> bool:
        """Whether every rate was measured."""
        return self.write_bytes_per_s > 0 and self.has_reads

    @property
    def has_reads(self) -> bool:
        """Whether the rates of all reads were measured."""
        return self.medium_reads_per_s > 0 and self.wide_reads_per_s > 0

    @property
    def is_doubtful(self) -> bool:
        """Whether no idle SSD has such rates, and nothing confirmed them: the device may have been busy meanwhile.

        Reads of more bytes do not come more often than those of fewer, and reads in file order bring about as many
        bytes as long ones at random.
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
        """Return whether a rate seen since is off by more than a third, so that this is worthless. Pure."""
        ratios = [random_reads_per_s / self.random_reads_per_s]
        if read_bytes_per_s is not None:
            ratios.append(read_bytes_per_s / self.read_bytes_per_s)
        return not all(1 - DISAGREEMENT <= ratio <= 1 / (1 - DISAGREEMENT) for ratio in ratios)

    def slowed(self, *, random_reads_per_s: float, read_bytes_per_s: float) -> DeviceProfile:
        """Return it with the rates of reads that were measured once more, where they have fallen by more than noise.

        Pure.
        """
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
        """Return ``probe`` with what was learnt of this device, of which a probe knows nothing. Pure."""
        return replace(probe, learnt=self.learnt.rebased(self.faster_in(probe)))

    def faster_in(self, probe: DeviceProfile) -> dict[Access, float]:
        """Return by how much faster than here each kind of access is in ``probe``, where both know it. Pure."""
        found: dict[Access, float] = {}
        for access, name in _FIELD_OF.items():
            before, after = float(getattr(self, name)), float(getattr(probe, name))
            if before > 0 and after > 0:
                found[access] = after / before
        return found

    def taught(self, lesson: Lesson) -> DeviceProfile:
        """Return it with what one more run has learnt. Pure."""
        return replace(self, learnt=self.learnt.after(lesson))

    def at(self, now: float) -> DeviceProfile:
        """Return it without what was learnt too long ago. Pure."""
        return replace(self, learnt=self.learnt.at(now))

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values. Pure."""
        plain = asdict(replace(self, learnt=LearntRates()))
        return {"version": PROFILE_VERSION, **plain, "learnt": to_json(self.learnt)}


def parse_profile(body: dict[str, Any]) -> DeviceProfile:
    """Return what `DeviceProfile.to_json` made.

    Raises
    ------
    ValueError, TypeError, KeyError, OverflowError
        It did not, or another version did.
    """
    if body["version"] != PROFILE_VERSION:
        raise ValueError(f"version {body['version']}")
    numbers = {
        one.name: float(body.get(one.name, 0.0) if one.name in _OPTIONAL else body[one.name])
        for one in fields(DeviceProfile)
        if one.name.endswith("_per_s")
    }
    depth = int(body["queue_depth"])
    # Wide enough for every device there is; a rate of 1e-300 makes times that no float holds.
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
    number = float(value)
    if not least <= number <= most:  # nor for NaN
        raise ValueError(f"{number} is not between {least} and {most}")
    return number
