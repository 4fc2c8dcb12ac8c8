"""Peak memory: the anonymous memory that a run takes above a bare ``import torch``, which a memory budget bounds.

`MemoryCourse` keeps the course of a process's memory in a few numbers, however long the run is.
"""

from __future__ import annotations

import ctypes
import resource
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from gloader.core.signals import uninterrupted
from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.plan.too_small import advice, rounded_up

if TYPE_CHECKING:
    from types import TracebackType


NUM_PARTS: Final = 16
_MAX_SLOTS: Final = 4 * NUM_PARTS
_FIRST_SLOT_S: Final = 0.02


class MemoryCourse:
    """The most bytes in each of equal parts of the time since it began. Not thread-safe.

    Readings fill slots of equal length. Where they would be too many, each two become one of twice the length.
    """

    def __init__(self) -> None:
        self._slots: list[int] = []
        self._slot_s = _FIRST_SLOT_S
        self._last: int | None = None

    def add(self, seconds: float, num_bytes: int) -> None:
        """Take a reading.

        Parameters
        ----------
        seconds : since the course began; not before those of an earlier reading
        num_bytes : at that moment
        """
        while seconds >= _MAX_SLOTS * self._slot_s:
            self._slots = [max(self._slots[i : i + 2]) for i in range(0, len(self._slots), 2)]
            self._slot_s *= 2
        place = int(seconds / self._slot_s)
        # Until somebody looks again, it is as it was.
        before = num_bytes if self._last is None else self._last
        self._slots += [before] * (place + 1 - len(self._slots))
        self._slots[-1] = max(self._slots[-1], num_bytes)
        self._last = num_bytes

    def parts(self) -> tuple[int, ...]:
        """Return the most bytes in each of `NUM_PARTS` equal parts; nothing without a reading."""
        count = len(self._slots)
        if not count:
            return ()
        # Of fewer slots than parts, some stand for several.
        bounds = [(i * count // NUM_PARTS, -(-(i + 1) * count // NUM_PARTS)) for i in range(NUM_PARTS)]
        return tuple(max(self._slots[first:end]) for first, end in bounds)


_STATUS = Path("/proc/self/status")
# Shared memory of no file counts too: rings and rows that ranks share. Mapped files do not, the system takes them back.
_COUNTED = ("RssAnon:", "RssShmem:")
_EVERY_S = 0.02  # a reading takes 50 us
_EVERY_NEAR_S = 0.004  # where a step could pass the bound between two readings
_NEAR = 3 / 4  # of a bound: where it is watched closely
# Below a bound, where freed memory is given back: a step takes up to 15 MB between two readings of a busy machine.
_ROOM_SHARE, _MIN_ROOM_BYTES = 16, 16 << 20
_LEAST_RELEASED = 64  # of a bound, how much more is held before the system is asked again
# Of an interpreter with numpy, which torch's import finds loaded here.
_INTERPRETER_BYTES = 14_000_000


def anonymous_bytes(status: Path | None = None) -> int:
    """Return the anonymous memory that a process has now, by default this one; 0 where the system does not tell."""
    try:
        lines = (status or _STATUS).read_text("ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(_COUNTED))


def peak_rss_bytes() -> int:
    """Return the most memory this process ever held, the pages of mapped files and libraries included.

    `getrusage` alone would count what the process that started this one held at that moment.
    """
    try:
        status = _STATUS.read_text("ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def release_freed_memory() -> None:
    """Give the pages of freed blocks back to the system; does nothing where the C library is not glibc.

    The C library keeps the memory of freed blocks for the next ones, and loses track where sizes differ from step to
    step: after some steps of a typed network, twice as much as is in use.
    """
    # Other C libraries have no such function.
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def bare_bytes() -> int:
    """Return the anonymous memory that an interpreter with torch has, as the first call finds it.

    Imports torch, to see what that takes. Where the program has done so before, what it held then counts as bare.
    """
    return _bare()[0]


@cache
def _bare() -> tuple[int, bool]:
    """Return the bytes of `bare_bytes`, and whether they are those of torch's import alone."""
    if "torch" in sys.modules:
        return anonymous_bytes(), False
    # What was freed before, as after preparing a dataset, would be taken again by torch and not show.
    release_freed_memory()
    before = anonymous_bytes()
    import torch  # noqa: F401 - for what it takes

    return anonymous_bytes() - before + _INTERPRETER_BYTES, True


@cache
def first_bytes() -> int:
    """Return what the process holds above a bare ``import torch``, as the first call finds it.

    0 where the program imported torch before gloader asked: what it held then counts as bare.
    """
    if not _bare()[1]:
        return 0
    release_freed_memory()
    return max(0, anonymous_bytes() - bare_bytes())


class PeakMemory:
    """Watches the anonymous memory of the process inside the block, from a thread, and keeps it below a bound."""

    def __init__(self) -> None:
        self._bare = bare_bytes()
        self._most = anonymous_bytes()
        self.begin_course()
        self._bound: int | None = None
        self._budget = 0
        self._is_near = False
        self._release_at = 0
        # Of the interpreter and torch, and of the program from before this run.
        self._beside = max(self._bare, self._most - first_bytes())
        self._passed = 0  # the most that was in use above the bound
        self._compiled_s = 0.0  # when the bound was set
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gloader-memory", daemon=True)

    @property
    def peak_bytes(self) -> int:
        """Most bytes so far, above a bare ``import torch``; never negative."""
        self._look()
        return max(0, self._most - self._bare)

    def keep_below(self, bound_bytes: int, *, budget_bytes: int | None = None) -> None:
        """From now on, give freed memory back to the system when the memory comes near a bound.

        Between the blocks of a heap lies what was freed, up to twice what is in use; the thread that watches has the
        system take it before the bound is reached. What is in use stays: that much has to be planned for.

        Parameters
        ----------
        bound_bytes : above a bare ``import torch``
        budget_bytes : of all ranks, which errors tell of; None: the bound
        """
        release_freed_memory()
        with self._turn:
            self._bound = bound_bytes
            self._budget = bound_bytes if budget_bytes is None else budget_bytes
            self._passed = 0
            self._compiled_s = _compile_seconds()
            self._release_at = _release_at(bound_bytes)

    def require_below(self) -> None:
        """Give freed memory back near the bound, as before a step; BudgetError where more than that was in use."""
        bound, budget_bytes = self._bound, self._budget
        if bound is None:
            return
        if self._is_near:
            # On a busy machine the thread may look too late.
            self._relieve(self._look() - self._beside)
        # A kernel that was compiled here after all takes 250 MB, which the next run does not: that is no reason to end
        # this one, and the last table tells of the peak.
        if self._passed <= bound or _compile_seconds() > self._compiled_s:
            return
        # Of each rank as much more as of this one.
        enough = rounded_up(
            budget_bytes * self._passed // bound + max(budget_bytes // _ROOM_SHARE, _MIN_ROOM_BYTES)
        )
        raise BudgetError(
            f"the run holds {format_bytes(self._passed)} where {format_bytes(bound)} were planned: more than the steps "
            f"that were tried before it began. {advice(enough)}, or use a smaller batch size or fan-out",
            short_bytes=enough - budget_bytes,
        )

    def begin_course(self) -> None:
        """Begin the stretch of time that `course` tells of; the peak stays."""
        # Both at once, for the thread that looks.
        self._course = (time.perf_counter(), MemoryCourse())

    def course(self) -> tuple[int, ...]:
        """Return the most bytes in equal parts of the time since `begin_course`, above a bare ``import torch``."""
        self._look()
        with self._turn:
            return tuple(max(0, num_bytes - self._bare) for num_bytes in self._course[1].parts())

    def __enter__(self) -> Self:
        with uninterrupted():
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with uninterrupted():
            self._ended.set()
            self._thread.join()

    def _watch(self) -> None:
        every = _EVERY_S
        while not self._ended.wait(every):
            own, bound = self._look() - self._beside, self._bound
            self._is_near = bound is not None and own >= _NEAR * bound
            every = _EVERY_NEAR_S if self._is_near else _EVERY_S
            self._relieve(own)

    def _relieve(self, own: int) -> None:
        """Give freed memory back where ``own`` bytes come near the bound."""
        bound = self._bound
        if bound is None or own < self._release_at:
            return
        release_freed_memory()
        # Where little comes back, more is in use than was thought: asked again halfway to the bound.
        left = anonymous_bytes() - self._beside
        self._release_at = max(_release_at(bound), (left + bound) // 2, left + bound // _LEAST_RELEASED)
        self._passed = max(self._passed, left)

    def _look(self) -> int:
        """Note the bytes that are held now, and return them."""
        now = anonymous_bytes()
        # Of two threads that look, the one that looked first may be the last to say so.
        with self._turn:
            self._most = max(self._most, now)
            began, course = self._course
            course.add(max(0.0, time.perf_counter() - began), now)
        return now


def _compile_seconds() -> float:
    # numba comes with it, which would count as part of the bare interpreter.
    from gloader.observe.compile_clock import compile_seconds

    return compile_seconds()


def _release_at(bound_bytes: int) -> int:
    """Return the bytes above which freed memory is given back. Pure."""
    return bound_bytes - max(bound_bytes // _ROOM_SHARE, _MIN_ROOM_BYTES)
