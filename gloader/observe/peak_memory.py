"""The most anonymous memory that a run takes above a bare ``import torch``: what a memory budget promises to bound."""

from __future__ import annotations

import ctypes
import resource
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gloader.core.signals import uninterrupted
from gloader.observe.memory_course import MemoryCourse

if TYPE_CHECKING:
    from types import TracebackType

_STATUS = Path("/proc/self/status")
# Shared memory of no file counts too: rings and rows that ranks share. Mapped files do not, the system takes them back.
_COUNTED = ("RssAnon:", "RssShmem:")
_EVERY_S = 0.02  # a reading takes 50 us
# Of an interpreter with numpy, which torch's import finds loaded here.
_INTERPRETER_BYTES = 14_000_000


def anonymous_bytes() -> int:
    """Return the anonymous memory that this process has now; 0 where the system does not tell."""
    try:
        lines = _STATUS.read_text("ascii", errors="replace").splitlines()
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


@cache
def bare_bytes() -> int:
    """Return the anonymous memory that an interpreter with torch has, as the first call finds it.

    Imports torch, to see what that takes. Where the program has done so before, what it held then counts as bare.
    """
    if "torch" in sys.modules:
        return anonymous_bytes()
    # What was freed before, as after preparing a dataset, would be taken again by torch and not show.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
    before = anonymous_bytes()
    import torch  # noqa: F401 - for what it takes

    return anonymous_bytes() - before + _INTERPRETER_BYTES


class PeakMemory:
    """Watches the anonymous memory of the process inside the block, from a thread."""

    def __init__(self) -> None:
        self._bare = bare_bytes()
        self._most = anonymous_bytes()
        self.begin_course()
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gloader-memory", daemon=True)

    @property
    def peak_bytes(self) -> int:
        """Most bytes so far, above a bare ``import torch``; never negative."""
        self._look()
        return max(0, self._most - self._bare)

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
        while not self._ended.wait(_EVERY_S):
            self._look()

    def _look(self) -> None:
        now = anonymous_bytes()
        # Of two threads that look, the one that looked first may be the last to say so.
        with self._turn:
            self._most = max(self._most, now)
            began, course = self._course
            course.add(max(0.0, time.perf_counter() - began), now)
