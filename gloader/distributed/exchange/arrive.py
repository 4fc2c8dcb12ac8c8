"""The receiver's side of an exchange: what arrived in rounds, given out page by page as a sweep asks for it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit

from gloader.core.aligned_memory import mapped_bytes
from gloader.distributed.exchange.rounds import LAG, SUM_BYTES
from gloader.errors import ChannelClosedError, ChecksumError
from gloader.ssd_store.format.checksum import FORMAT_VERSION, PAGE_BYTES, PAGE_WORDS, page_checksum_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_POLL_S: Final = 0.05
_NUM_BUFFERS: Final = 2  # one arrives while the other is dealt out


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where the pages of one owner's part of a round are."""

    owner: int
    step: int  # of the exchange that brings it
    at: int  # byte of that step's buffer; checksums lie behind the pages
    first_page: int  # of all that arrives
    num_pages: int
    key: int  # number of the first page, for its checksum


class Arrivals:
    """What arrives, in two buffers that take turns: a `SweepSource` on one side, filled from a thread on the other.

    Parameters
    ----------
    runs : those with rows, in the order of arrival
    names : (W,) of the owners, for errors
    num_bytes : of the largest step
    verify : whether there are checksums
    """

    def __init__(self, runs: Sequence[Run], *, names: Sequence[str], num_bytes: int, verify: bool) -> None:
        self._runs = runs
        self._names = names
        self._verify = verify
        self._buffers = [mapped_bytes(num_bytes, touch=False) for _ in range(_NUM_BUFFERS)]
        self._changed = threading.Condition()
        self._next = 0  # the run that is given out
        self._arrived = -1  # the last step
        self._error: BaseException | None = None
        self._is_over = False
        self.waited_s = 0.0  # that readers waited for what had not arrived

    def buffer(self, step: int, *, is_cancelled: Callable[[], bool]) -> NDArray[np.uint8]:
        """Return the buffer for what ``step`` brings, as soon as what it held before was given out.

        Raises
        ------
        ChannelClosedError
            ``is_cancelled`` returned true.
        """
        with self._changed:
            while not self._is_over and self._step_of_next() <= step - _NUM_BUFFERS:
                if is_cancelled():
                    raise ChannelClosedError("an exchange with other machines was cancelled")
                self._changed.wait(_POLL_S)
        return self._buffers[step % _NUM_BUFFERS]

    def publish(self, step: int) -> None:
        """Say that everything up to ``step`` has arrived."""
        with self._changed:
            self._arrived = step
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` wherever somebody reads."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def read(self, buffer: memoryview, offset: int, /, *, is_cancelled: Callable[[], bool]) -> None:
        """Fill ``buffer`` with the pages from ``offset`` on, as `SweepSource.read`; between runs they are empty.

        Raises
        ------
        ChecksumError
            A page is not what its owner sent.
        GloaderError
            The exchange failed.
        ChannelClosedError
            ``is_cancelled`` returned true.
        """
        out = np.frombuffer(buffer, np.uint8)
        base = page = offset // PAGE_BYTES
        end = base + out.shape[0] // PAGE_BYTES
        while page < end:
            run = self._runs[self._next] if self._next < len(self._runs) else None
            if run is not None and run.first_page + run.num_pages <= page:
                self._pass()
                continue
            start = end if run is None else min(max(run.first_page, page), end)
            out[(page - base) * PAGE_BYTES : (start - base) * PAGE_BYTES] = 0
            page = start
            if run is not None and page < end:
                self._wait_for(run.step, is_cancelled)
                count = min(run.first_page + run.num_pages, end) - page
                self._copy(
                    run, page - run.first_page, out[(page - base) * PAGE_BYTES :][: count * PAGE_BYTES]
                )
                page += count
        # At once and not when the next read comes: none may.
        if (
            self._next < len(self._runs)
            and self._runs[self._next].first_page + self._runs[self._next].num_pages <= page
        ):
            self._pass()

    def close(self) -> None:
        """Let go of what is not given out yet. Idempotent."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _step_of_next(self) -> int:
        return self._runs[self._next].step if self._next < len(self._runs) else np.iinfo(np.int64).max

    def _pass(self) -> None:
        with self._changed:
            self._next += 1
            self._changed.notify_all()

    def _wait_for(self, step: int, is_cancelled: Callable[[], bool]) -> None:
        started = time.perf_counter()
        with self._changed:
            while self._arrived < step:
                if self._error is not None:
                    raise self._error
                if is_cancelled() or self._is_over:
                    raise ChannelClosedError("rows from other machines are not waited for any more")
                self._changed.wait(_POLL_S)
        self.waited_s += time.perf_counter() - started

    def _copy(self, run: Run, first: int, out: NDArray[np.uint8]) -> None:
        """Copy pages of a run from number ``first`` on, and compare the copies with the owner's checksums."""
        held = self._buffers[run.step % _NUM_BUFFERS][run.at :]
        out[:] = held[first * PAGE_BYTES :][: out.shape[0]]
        if not self._verify:
            return
        sums = held[run.num_pages * PAGE_BYTES :][: run.num_pages * SUM_BYTES].view(np.uint64)[first:]
        with np.errstate(over="ignore"):  # interpreted checksums wrap around
            damaged = _first_damaged(out.view(np.uint64), sums, run.key + first)
        if damaged >= 0:
            raise ChecksumError(
                f"page {first + damaged} of {run.num_pages} that {self._names[run.owner]} sent in round "
                f"{run.step - LAG} does not match its checksum: it was damaged on its way; check the network and the "
                "memory of both machines, then start all ranks again from the last checkpoint"
            )


@njit(cache=True, nogil=True)
def _first_damaged(words: NDArray[np.uint64], sums: NDArray[np.uint64], key: int) -> int:
    """Return the first page of ``words`` that differs from its checksum, or -1."""
    for i in range(words.shape[0] // PAGE_WORDS):
        if page_checksum_at(words, i * PAGE_WORDS, key + i, np.int64(FORMAT_VERSION)) != sums[i]:
            return i
    return -1
