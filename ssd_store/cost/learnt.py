"""What runs have learnt of a device: a small table of how much longer accesses took than its probe said. Pure.

Of each run the table keeps a median for each kind of access, the newest runs first. What a loader is told is a weighted
median over them, in which a newer run counts for more and the probe for as much as two superbatches: a run on a machine
that was busy with other work moves it little, a device that has changed is followed within a few runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

from gloader.ssd_store.cost.read_times import MEDIUM_BYTES, SMALL_BYTES, WIDE_BYTES, ReadTimes

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
