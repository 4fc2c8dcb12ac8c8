"""Peak memory: a run's anonymous memory above a bare ``import torch``, which a memory budget bounds.

Anonymous memory is memory without a file behind it, such as arrays. The system cannot free it, in contrast to pages of
mapped files. Bare memory is that of an interpreter which has only imported torch. `gloader.training` runs inside a
`PeakMemory` block: a thread reads the memory, and returns freed blocks to the system near a bound. A course is the
memory over time: `MemoryCourse` keeps it in a few numbers, for a run of any length.
"""

from __future__ import annotations

import ctypes
import resource
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Final, Self

from gloader.core.signals import uninterrupted
from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.plan.too_small import advice, rounded_up

NUM_PARTS: Final = 16  # number of parts in which a course is reported
_MAX_SLOTS: Final = 4 * NUM_PARTS  # maximum number of a course's time slots
_FIRST_SLOT_S: Final = 0.02  # first length of a slot, in seconds


class MemoryCourse:
    """The peak of the bytes in each of several equal time slots since the start. Not thread-safe.

    When the slots run out, every two neighbouring slots become one with twice the length.
    """

    def __init__(self) -> None:
        self._slots: list[int] = []  # peak bytes in each slot so far
        self._slot_s = _FIRST_SLOT_S  # length of a slot, in seconds
        self._last: int | None = None  # the last reading, in bytes

    def add(self, seconds: float, num_bytes: int) -> None:
        """Add a reading.

        Parameters
        ----------
        seconds : time since the course began, not before an earlier reading
        num_bytes : memory at that time
        """
        while seconds >= _MAX_SLOTS * self._slot_s:
            self._slots = [max(self._slots[i : i + 2]) for i in range(0, len(self._slots), 2)]
            self._slot_s *= 2
        slot = int(seconds / self._slot_s)
        # Memory counts as unchanged between two readings.
        before = num_bytes if self._last is None else self._last
        self._slots += [before] * (slot + 1 - len(self._slots))
        self._slots[-1] = max(self._slots[-1], num_bytes)
        self._last = num_bytes

    def parts(self) -> tuple[int, ...]:
        """Return the peak of the bytes in each of `NUM_PARTS` equal parts of the time. Empty without a reading."""
        count = len(self._slots)
        if not count:
            return ()
        # With fewer slots than parts, a slot stands for several parts. A part ends at a rounded-up slot.
        bounds = [(i * count // NUM_PARTS, -(-(i + 1) * count // NUM_PARTS)) for i in range(NUM_PARTS)]
        return tuple(max(self._slots[first:end]) for first, end in bounds)


_STATUS = Path("/proc/self/status")  # the kernel's figures on this process, one per line
# Lines of this file that count. Shared memory without a file also counts, such as rings and rows that ranks share.
# Mapped files do not count, because the system frees them.
_COUNTED = ("RssAnon:", "RssShmem:")
_EVERY_S = 0.02  # seconds between two readings; a reading takes 50 us
_EVERY_NEAR_S = 0.004  # the same near the bound, because a step could exceed the bound between two readings
_NEAR = 3 / 4  # share of the bound from which readings are frequent
# Distance from the bound at which freed memory is returned: one part in 16 of the bound, at least 16 MiB. A step takes
# up to 15 MB between two readings.
_ROOM_SHARE, _MIN_ROOM_BYTES = 16, 16 << 20
_LEAST_RELEASED = 64  # the memory must grow by one part in 64 of the bound before the next return
# Anonymous memory of the interpreter and numpy, in bytes. They are loaded before `_bare` imports torch.
_INTERPRETER_BYTES = 14_000_000


def anonymous_bytes(status: Path | None = None) -> int:
    """Return a process's anonymous bytes, by default this process's. 0 if the system does not report them."""
    try:
        lines = (status or _STATUS).read_text("ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(_COUNTED))


def peak_rss_bytes() -> int:
    """Return the process's peak resident memory in bytes, with mapped files and libraries.

    `getrusage` would also count the parent process's memory at the fork.
    """
    try:
        status = _STATUS.read_text("ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def release_freed_memory() -> None:
    """Return freed blocks' pages to the system. Without glibc nothing happens.

    The C library keeps freed blocks for later ones. If sizes change from step to step, its heap fragments: after some
    steps with a typed network it holds twice the memory in use.
    """
    # Other C libraries have no such function.
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library that this process uses."""
    return ctypes.CDLL(None)


def bare_bytes() -> int:
    """Return an interpreter's anonymous bytes with torch, measured by the first call.

    The call imports torch to measure its size. If the program imported torch before, all memory at that time counts as
    bare.
    """
    return _bare()[0]


@cache
def _bare() -> tuple[int, bool]:
    """Return `bare_bytes`' bytes, and True if they belong only to torch's import."""
    if "torch" in sys.modules:
        return anonymous_bytes(), False
    # Otherwise torch would reuse memory that was freed before, such as after preparing a dataset.
    release_freed_memory()
    before = anonymous_bytes()
    import torch  # noqa: F401 - for what it takes

    return anonymous_bytes() - before + _INTERPRETER_BYTES, True


@cache
def first_bytes() -> int:
    """Return the process's bytes above a bare ``import torch``, measured by the first call.

    The result is 0 if the program imported torch before, because all memory at that time counts as bare.
    """
    if not _bare()[1]:
        return 0
    release_freed_memory()
    return max(0, anonymous_bytes() - bare_bytes())


class PeakMemory:
    """Context manager whose thread watches the process's anonymous memory inside the block, and keeps it bounded."""

    def __init__(self) -> None:
        self._bare = bare_bytes()  # bytes of the interpreter and torch
        self._most = anonymous_bytes()  # peak so far, with the bare memory
        self.begin_course()
        self._bound: int | None = None  # bytes above `_other_bytes`
        self._budget = 0  # see `keep_below`
        self._is_near = False  # whether the last reading was near the bound
        self._release_at = 0  # bytes at which freed memory is returned
        # The interpreter, torch, and the program's memory from before this run.
        self._other_bytes = max(self._bare, self._most - first_bytes())
        self._passed = 0  # peak of the run's memory after a return of freed memory: what was really in use
        self._compiled_s = 0.0  # compile seconds when the bound was set
        self._turn = threading.Lock()  # held while a reading or a bound is recorded
        self._ended = threading.Event()  # set at the end of the block
        self._thread = threading.Thread(target=self._watch, name="gloader-memory", daemon=True)

    @property
    def peak_bytes(self) -> int:
        """Peak of the bytes so far, above a bare ``import torch``. Never negative."""
        self._look()
        return max(0, self._most - self._bare)

    def keep_below(self, bound_bytes: int, *, budget_bytes: int | None = None) -> None:
        """Begin to return freed memory to the system when the memory comes near a bound.

        Freed blocks in the heap hold up to twice the memory in use. The watching thread returns them to the system
        before the bound is reached. Memory in use stays, so it has to be planned for.

        Parameters
        ----------
        bound_bytes : bound above a bare ``import torch``
        budget_bytes : all ranks' budget, for error messages. None means the bound.
        """
        release_freed_memory()
        with self._turn:
            self._bound = bound_bytes
            self._budget = bound_bytes if budget_bytes is None else budget_bytes
            self._passed = 0
            self._compiled_s = _compile_seconds()
            self._release_at = _release_at(bound_bytes)

    def require_below(self) -> None:
        """Return freed memory near the bound, before a step. Raises BudgetError if more than the bound was in use."""
        bound, budget_bytes = self._bound, self._budget
        if bound is None:
            return
        if self._is_near:
            # On a busy machine the thread may read too late.
            self._relieve(self._look() - self._other_bytes)
        # An unexpected compilation takes 250 MB here. The next run does not compile, so this run continues. Its closing
        # table shows the peak.
        if self._passed <= bound or _compile_seconds() > self._compiled_s:
            return
        # Every rank needs the same additional share as this rank.
        enough = rounded_up(
            budget_bytes * self._passed // bound + max(budget_bytes // _ROOM_SHARE, _MIN_ROOM_BYTES)
        )
        raise BudgetError(
            f"the run holds {format_bytes(self._passed)}, and {format_bytes(bound)} were planned: its steps need more "
            f"than the steps measured before the run. {advice(enough)}, or use a smaller batch size or fan-out",
            short_bytes=enough - budget_bytes,
        )

    def begin_course(self) -> None:
        """Begin the time span of `course`. The peak stays."""
        # One assignment sets both, because the watching thread reads them.
        self._course = (time.perf_counter(), MemoryCourse())

    def course(self) -> tuple[int, ...]:
        """Return `MemoryCourse.parts` since `begin_course`, in bytes above a bare ``import torch``."""
        self._look()
        with self._turn:
            return tuple(max(0, num_bytes - self._bare) for num_bytes in self._course[1].parts())

    def __enter__(self) -> Self:
        with uninterrupted():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted():
            self._ended.set()
            self._thread.join()

    def _watch(self) -> None:
        """Read the memory again and again until the block ends. Runs on the watching thread."""
        every = _EVERY_S
        while not self._ended.wait(every):
            run_bytes, bound = self._look() - self._other_bytes, self._bound
            self._is_near = bound is not None and run_bytes >= _NEAR * bound
            every = _EVERY_NEAR_S if self._is_near else _EVERY_S
            self._relieve(run_bytes)

    def _relieve(self, run_bytes: int) -> None:
        """Return freed memory to the system if the run's ``run_bytes`` come near the bound."""
        bound = self._bound
        if bound is None or run_bytes < self._release_at:
            return
        release_freed_memory()
        # If little is returned, more is in use than planned. The next attempt is halfway to the bound.
        left = anonymous_bytes() - self._other_bytes
        self._release_at = max(_release_at(bound), (left + bound) // 2, left + bound // _LEAST_RELEASED)
        self._passed = max(self._passed, left)

    def _look(self) -> int:
        """Read the process's memory in bytes, record it and return it."""
        now = anonymous_bytes()
        # If two threads read at the same time, the first one may record last.
        with self._turn:
            self._most = max(self._most, now)
            began, course = self._course
            course.add(max(0.0, time.perf_counter() - began), now)
        return now


def _compile_seconds() -> float:
    """Return the seconds in which this process compiled kernels."""
    # An import at the top would load numba, which would count as part of the bare interpreter.
    from gloader.observe.compile_clock import compile_seconds

    return compile_seconds()


def _release_at(bound_bytes: int) -> int:
    """Return the bytes above which freed memory is returned to the system. Pure."""
    return bound_bytes - max(bound_bytes // _ROOM_SHARE, _MIN_ROOM_BYTES)
