"""What is known of a storage device: the rates of its probe, and what runs have learnt since. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

from gloader.ssd_store.cost.learnt import Access, LearntRates, from_json, to_json
from gloader.ssd_store.cost.read_times import WIDE_BYTES, ReadTimes
from gloader.ssd_store.read.extents import ALIGNMENT, mean_extent_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.ssd_store.cost.learnt import Lesson

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
