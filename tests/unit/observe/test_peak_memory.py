"""The anonymous memory that this process takes."""

import mmap
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from gloader.errors import BudgetError
from gloader.observe import peak_memory
from gloader.observe.peak_memory import PeakMemory, anonymous_bytes

MB = 1_000_000


@pytest.mark.reliability("J11")
def test_a_peak_that_is_over_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests of this process may have held more when it was taken.
    monkeypatch.setattr(peak_memory, "bare_bytes", lambda: MB)
    with PeakMemory() as peak:
        before = anonymous_bytes()
        # Mapped by itself, so that it is gone when it is closed, whatever the heap keeps.
        block = mmap.mmap(-1, 64 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        np.frombuffer(block, np.uint8)[:] = 1
        deadline = time.monotonic() + 5
        while peak._most < before + 60 * MB and time.monotonic() < deadline:  # the thread looks, not this one
            time.sleep(0.01)
        seen = peak._most
        block.close()
    assert seen >= before + 60 * MB
    assert anonymous_bytes() < seen
    assert peak.peak_bytes == seen - MB


@pytest.mark.reliability("J11")
@pytest.mark.parametrize(
    ("bare", "held", "first"),
    [
        ((150 * MB, True), 210 * MB, 60 * MB),
        ((150 * MB, True), 140 * MB, 0),
        ((150 * MB, False), 210 * MB, 0),
    ],
    ids=["of the program", "given back since", "torch was there"],
)
def test_what_a_program_held_before_is_not_of_the_run(
    bare: tuple[int, bool], held: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peak_memory, "_bare", lambda: bare)
    monkeypatch.setattr(peak_memory, "anonymous_bytes", lambda: held)
    assert peak_memory.first_bytes.__wrapped__() == first


@pytest.mark.reliability("J11")
def test_torch_that_is_there_already_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_memory, "anonymous_bytes", lambda: 210 * MB)
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert peak_memory._bare.__wrapped__() == (210 * MB, False)


@pytest.mark.reliability("J11")
def test_a_peak_that_another_thread_sees_meanwhile_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = PeakMemory()
    readings = iter([2 * 10**15, 3 * 10**15])

    def read() -> int:
        # While one thread reads, the other comes and goes.
        mine = next(readings)
        if mine == 2 * 10**15:
            peak._look()
        return mine

    monkeypatch.setattr(peak_memory, "anonymous_bytes", read)
    peak._look()
    assert peak._most == 3 * 10**15


def test_a_course_tells_of_its_own_stretch_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_memory, "bare_bytes", lambda: MB)
    held = [5 * MB]
    monkeypatch.setattr(peak_memory, "anonymous_bytes", lambda: held[0])
    peak = PeakMemory()
    assert set(peak.course()) == {4 * MB}
    peak.begin_course()
    held[0] = MB // 2
    assert set(peak.course()) == {0}  # less than an interpreter has is nothing
    assert peak.peak_bytes == 4 * MB


def test_a_system_that_does_not_tell_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_memory, "_STATUS", tmp_path / "status")
    assert anonymous_bytes() == 0


@pytest.mark.reliability("J11")
def test_freed_memory_is_given_back_near_the_bound_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    held, released = [0], []
    monkeypatch.setattr(peak_memory, "anonymous_bytes", lambda: held[0])

    def release() -> None:
        released.append(held[0])
        held[0] = 200_000_000

    peak = PeakMemory()
    peak._other_bytes = 0
    monkeypatch.setattr(peak_memory, "release_freed_memory", release)
    peak.keep_below(400_000_000)
    released.clear()
    for held[0] in (300_000_000, 380_000_000, 390_000_000):
        peak._relieve(peak._look())
    assert released == [380_000_000, 390_000_000]


@pytest.mark.reliability("S11")
def test_what_a_program_held_before_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with 5 GB of its own was asked for freed memory all the time."""
    held, released = [5_000_000_000], []
    monkeypatch.setattr(peak_memory, "anonymous_bytes", lambda: held[0])
    monkeypatch.setattr(peak_memory, "bare_bytes", lambda: 150_000_000)
    monkeypatch.setattr(peak_memory, "first_bytes", lambda: 50_000_000)
    peak = PeakMemory()
    monkeypatch.setattr(peak_memory, "release_freed_memory", lambda: released.append(held[0]))
    peak.keep_below(400_000_000)
    released.clear()
    for held[0] in (5_300_000_000, 5_340_000_000):
        peak._relieve(peak._look() - peak._other_bytes)
    assert released == [5_340_000_000]


@pytest.mark.reliability("J11")
def test_memory_that_is_in_use_is_not_asked_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    held, released = [0], []
    monkeypatch.setattr(peak_memory, "anonymous_bytes", lambda: held[0])
    peak = PeakMemory()
    peak._other_bytes = 0
    monkeypatch.setattr(peak_memory, "release_freed_memory", lambda: released.append(held[0]))
    peak.keep_below(400_000_000)
    released.clear()
    for held[0] in (380_000_000, 381_000_000, 391_000_000, 392_000_000):
        peak._relieve(peak._look())
    assert released == [380_000_000, 391_000_000]


@pytest.mark.reliability("J11")
@pytest.mark.parametrize(("left", "is_over"), [(399_000_000, False), (420_000_000, True)])
def test_memory_in_use_above_the_bound_ends_the_run_with_a_larger_budget(
    monkeypatch: pytest.MonkeyPatch, left: int, is_over: bool
) -> None:
    held = [0]
    monkeypatch.setattr(peak_memory, "anonymous_bytes", lambda: held[0])
    monkeypatch.setattr(peak_memory, "release_freed_memory", lambda: held.__setitem__(0, min(held[0], left)))
    peak = PeakMemory()
    peak._other_bytes = 0
    peak.keep_below(400_000_000, budget_bytes=800_000_000)
    held[0] = 430_000_000
    peak._relieve(peak._look())
    if not is_over:
        peak.require_below()
        return
    with pytest.raises(BudgetError, match=r'420 MB, and 400 MB were planned.*memory_budget="890MB" or more'):
        peak.require_below()
    # The compiler's memory is none of the run's: the next one is without.
    monkeypatch.setattr(peak_memory, "_compile_seconds", lambda: 1e9)
    peak.require_below()


@pytest.mark.reliability("J11")
def test_what_the_program_held_before_the_run_is_not_the_run_s(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [30_000_000]
    monkeypatch.setattr(peak_memory, "anonymous_bytes", lambda: held[0])
    monkeypatch.setattr(peak_memory, "bare_bytes", lambda: 0)
    monkeypatch.setattr(peak_memory, "first_bytes", lambda: 0)
    monkeypatch.setattr(peak_memory, "release_freed_memory", lambda: None)
    peak = PeakMemory()
    peak.keep_below(400_000_000)
    for held[0], is_over in ((425_000_000, False), (435_000_000, True)):
        peak._relieve(peak._look())
        with pytest.raises(BudgetError) if is_over else nullcontext():
            peak.require_below()
