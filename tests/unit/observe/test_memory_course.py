"""The most memory in equal parts of a stretch of time, against readings that are all kept."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.observe.peak_memory import _FIRST_SLOT_S, _MAX_SLOTS, NUM_PARTS, MemoryCourse

STEPS = st.lists(
    st.tuples(st.integers(0, 3_000), st.integers(0, 10**12)),  # milliseconds since the last one, bytes
    min_size=1,
    max_size=60,
)


def _course(readings: list[tuple[float, int]]) -> MemoryCourse:
    course = MemoryCourse()
    for seconds, num_bytes in readings:
        course.add(seconds, num_bytes)
    return course


def _oracle(readings: list[tuple[float, int]]) -> tuple[int, ...]:
    """Every reading is kept, and holds until the next; slots are made at the end, as long as the last one asks for."""
    slot_s = _FIRST_SLOT_S
    while readings[-1][0] >= _MAX_SLOTS * slot_s:
        slot_s *= 2
    count = int(readings[-1][0] / slot_s) + 1
    slots = []
    for slot in range(count):
        inside = [num_bytes for seconds, num_bytes in readings if int(seconds / slot_s) == slot]
        before = [num_bytes for seconds, num_bytes in readings if int(seconds / slot_s) < slot]
        slots.append(max([*inside, *before[-1:]], default=readings[0][1]))
    # A part touches every slot of which it has some time.
    return tuple(
        max(
            most
            for slot, most in enumerate(slots)
            if slot * NUM_PARTS < (part + 1) * count and (slot + 1) * NUM_PARTS > part * count
        )
        for part in range(NUM_PARTS)
    )


@given(STEPS)
def test_parts_are_those_of_all_readings(steps: list[tuple[int, int]]) -> None:
    times = accumulate(milliseconds / 1000 for milliseconds, _ in steps)
    readings = [(seconds, num_bytes) for seconds, (_, num_bytes) in zip(times, steps, strict=True)]
    assert _course(readings).parts() == _oracle(readings)


@pytest.mark.parametrize("seconds", [0.001, 1.0, 3_600.0, 1e6])
def test_however_long_it_is_it_takes_no_more_room(seconds: float) -> None:
    course = _course([(seconds * share / 1000, share) for share in range(1001)])
    assert len(course._slots) <= _MAX_SLOTS
    assert len(course.parts()) == NUM_PARTS
    assert course.parts()[-1] == 1000


def test_without_a_reading_there_are_no_parts() -> None:
    assert MemoryCourse().parts() == ()
