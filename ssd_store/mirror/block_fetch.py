"""Fetches of blocks of objects, many in flight at a time: the oldest first, repeated after a failure.

The window of requests grows by one for every round without trouble, and is halved after a failure.
"""

from __future__ import annotations

import errno
import itertools
import threading
import time
import zlib
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

from gloader.core.signals import SignalSafeCondition, thread_errors, uninterrupted
from gloader.core.thread_times import HelpAccount, own_account
from gloader.errors import ChannelClosedError, ChecksumError, StoreError, StoreReadError
from gloader.ssd_store.mirror.object_store import REQUEST_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from typing_extensions import Buffer

    from gloader.ssd_store.mirror.object_store import Limits, ObjectStore

    Alone = Callable[[Callable[[], bool]], AbstractContextManager[Buffer | None]]


@dataclass(slots=True, kw_only=True)
class FetchCounts:
    """What was asked of the store so far."""

    requests: int = 0
    retries: int = 0  # of them, those that repeat another
    bytes: int = 0  # that arrived, the damaged and repeated ones included
    limited_s: float = 0.0  # that requests waited for the limits
    paused_s: float = 0.0  # that they waited to be repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorStats:
    """Counts since the mirror was opened, and the blocks that are here now."""

    requests: int  # made to the store: for the record, for facts of objects, for blocks
    retries: int  # of them, those that repeated one that failed
    bytes: int  # that arrived
    waited_s: float  # that requests were held back: by the limits, or before they were repeated
    blocks_here: int
    blocks: int  # of all files
    evicted: int
    starved_s: float  # in which at least one reader waited for a block
    not_kept: int  # blocks that came and were not kept: they did not fit, or the disk refused them


class WaitClock:
    """Counts the seconds in which at least one thread waits. Thread-safe; a block that each waits in.

    Parameters
    ----------
    clock : seconds, as of `time.monotonic`
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting = 0
        self._since = 0.0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Of all waits so far, also of those under way."""
        with self._lock:
            return self._seconds + (self._clock() - self._since if self._waiting else 0.0)

    def __enter__(self) -> Self:
        with self._lock:
            if not self._waiting:
                self._since = self._clock()
            self._waiting += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._waiting -= 1
            if not self._waiting:
                self._seconds += self._clock() - self._since


FIRST_WIDTH: Final = 16


class Window:
    """Additive increase, multiplicative decrease, as TCP has it. Not thread-safe.

    Parameters
    ----------
    most : requests in flight at most, from 1
    first : at the beginning
    """

    __slots__ = ("_age", "_most", "_width")

    def __init__(self, most: int, *, first: int = FIRST_WIDTH) -> None:
        self._most = most
        self._width = float(min(first, most))
        self._age = 0  # how often it was halved

    @property
    def width(self) -> int:
        """Requests that may be in flight now."""
        return int(self._width)

    @property
    def age(self) -> int:
        """What a request notes when it is made, for `halve`."""
        return self._age

    def limit(self, most: int) -> int:
        """Have no more than ``most``, from 1, in flight from here on; return the limit, perhaps of before."""
        self._most = min(self._most, most)
        self._width = min(self._width, float(self._most))
        return self._most

    def widen(self) -> None:
        """Count a request that went well: a round of them, as many as are in flight, makes room for one more."""
        self._width = min(self._most, self._width + 1 / self._width)

    def halve(self, age: int) -> bool:
        """Halve the width for a request that was refused or too slow, once a round; return whether it was.

        Parameters
        ----------
        age : of the window when the request was made: those that were in flight together are one piece of news
        """
        if age != self._age:
            return False
        self._age += 1
        self._width = max(1.0, self._width / 2)
        return True


MAX_ATTEMPTS: Final = (
    10  # of a block; with the pauses between them, some 20 seconds in which a store answers nothing
)
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
SLOWER: Final = frozenset({errno.EBUSY, errno.ETIMEDOUT})  # what a store says that is asked too much
_REPEATED: Final = SLOWER | {errno.ECONNRESET, errno.EIO}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """A part of an object."""

    name: str
    number: int  # of the block within the object
    start: int  # byte
    length: int
    etag: str

    @property
    def text(self) -> str:
        """What to call it in messages."""
        return f"block {self.number} (bytes {self.start} to {self.start + self.length - 1})"


@dataclass(slots=True, kw_only=True, eq=False)
class Fetch:
    """A block that was asked for. Its fields are the fetcher's own, but for ``request`` and ``error``."""

    request: BlockRequest
    take: Callable[[Buffer], None]
    keep: Callable[[], None]
    alone: Alone
    rank: int  # the order in which blocks were asked for
    asked_by: HelpAccount = field(default_factory=own_account)  # of the thread that asked
    not_before: float = 0.0
    attempt: int = 0
    age: int = 0  # of the window when the request was made
    began: float | None = None  # when the request was made; None: it waits for its turn or for the limits
    is_done: bool = False
    error: StoreError | None = None


def may_repeat(error: StoreError, attempt: int) -> bool:
    """Return whether a block is asked for again whose last of ``attempt`` requests failed. Pure."""
    if isinstance(error, ChecksumError):
        return attempt == 1
    return isinstance(error, StoreReadError) and error.errno in _REPEATED and attempt < MAX_ATTEMPTS


def final_error(error: StoreError, request: BlockRequest, attempt: int, url: str) -> StoreError:
    """Return what to say of a block that is not asked for again. Pure."""
    if attempt == 1 or not isinstance(error, StoreReadError):
        return error
    text = f"{request.text} was given up after {attempt} requests, the last of which: {error.strerror}"
    return StoreReadError(error.errno, text, url)


def pause_s(request: BlockRequest, attempt: int) -> float:
    """Return the seconds to wait before a block is asked for again: doubled each time, spread by its address. Pure."""
    address = zlib.crc32(f"{request.name} {request.number} {attempt}".encode())
    return min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S) * (0.5 + address / 2**32)


_KEEPING: Final = 4  # threads that write what came, beside those that ask for more
_KEEPING_S: Final = 10.0  # for which they are waited for in the end: a disk may hang
_IDLE_S: Final = 1.0  # that a thread without work stays
_LOOK_S: Final = 0.05  # between two looks at `is_cancelled`
_LATE: Final = (
    1.5  # times the time-out of a request: then it is given up here, whatever the store's client does
)


@dataclass(slots=True, kw_only=True)
class _State:
    waiting: dict[int, Fetch] = field(default_factory=dict)  # by rank, so in order
    running: set[Fetch] = field(default_factory=set)
    threads: int = 0
    num_keeping: int = 0  # threads that hold no request
    is_closed: bool = False


class Fetcher:
    """Brings blocks of objects with as many requests in flight as the store bears. Thread-safe.

    Threads begin when there is work and end when there is none for a while, or at `close`.

    Parameters
    ----------
    objects : the store, one request a call
    limits : what the user allows
    most_requests : in flight, from 1; each holds a block in memory
    timeout_s : of one request: when half of it has gone by again, the request is given up and repeated
    """

    def __init__(
        self,
        objects: ObjectStore,
        *,
        limits: Limits,
        most_requests: int,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._objects = objects
        self.limits = limits
        self._timeout_s = timeout_s
        self._window = Window(most_requests)
        self._changed = SignalSafeCondition()
        self._state = _State()
        self._counts = FetchCounts()
        self._ranks = itertools.count()

    @property
    def width(self) -> int:
        """Requests that may be in flight now."""
        return self._window.width

    def limit(self, most_requests: int) -> int:
        """Make at most so many requests at a time from here on, from 1; return how many: it may be fewer already."""
        with self._changed.lock:
            return self._window.limit(most_requests)

    @property
    def counts(self) -> FetchCounts:
        """What was asked so far, a copy."""
        with self._changed.lock:
            return replace(self._counts)

    def ask(
        self,
        request: BlockRequest,
        take: Callable[[Buffer], None],
        keep: Callable[[], None] = lambda: None,
        alone: Alone = lambda _is_over: nullcontext(),
    ) -> Fetch:
        """Have a block brought; returns at once.

        Parameters
        ----------
        request : what to bring
        take : called with its bytes, on a thread of the fetcher; may raise `ChecksumError`, upon which the block is
            asked for once more, or another `StoreError`, which ends it
        keep : called behind it on the same thread, when whoever waits was told and another request is made already;
            while several do not return, fewer requests are made
        alone : makes a block of statements around `keep` and the request before it, while nobody else makes that one;
            it waits for whoever does until the function that it is given says that all is over, and has the bytes
            if they were brought meanwhile, else None

        Raises
        ------
        StoreError
            The fetcher is closed.
        ThreadStartError
            The system allows no more threads.
        """
        with self._changed.lock:
            if self._state.is_closed:
                raise self._closed_error()
            fetch = Fetch(request=request, take=take, keep=keep, alone=alone, rank=next(self._ranks))
            self._state.waiting[fetch.rank] = fetch
            self._add_thread()
            self._changed.notify_all()
        return fetch

    def wait(self, fetch: Fetch, *, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Wait until a block was taken.

        Raises
        ------
        StoreReadError
            It could not be brought; names the object, the bytes and the reason.
        ChecksumError, StoreError
            What ``take`` raised; or the fetcher was closed.
        ChannelClosedError
            ``is_cancelled`` returned true.
        """
        while not fetch.is_done:
            if is_cancelled():
                raise ChannelClosedError(f"waiting for {fetch.request.text} was cancelled")
            self._changed.when(lambda: fetch.is_done, lambda: None, _LOOK_S)
            self._give_up_late()
        if fetch.error is not None:
            raise fetch.error

    def forget(self, fetch: Fetch) -> bool:
        """Drop a block that nobody wants any more; return false, and do nothing, if its request was made already."""
        with self._changed.lock:
            if self._state.waiting.pop(fetch.rank, None) is None:
                return False
            self._end(fetch, StoreError(f"{self._url(fetch.request)}: {fetch.request.text} was given up"))
            return True

    def close(self) -> None:
        """Ask for nothing more; whoever waits is told. Idempotent.

        Requests in flight end by their own time-outs, on threads that hold nothing up; what is just being kept is
        waited for.
        """
        with self._changed.lock:
            self._state.is_closed = True
            for fetch in (*self._state.waiting.values(), *self._state.running):
                self._end(fetch, self._closed_error())
            self._state.waiting.clear()
            self._state.running.clear()
            self._changed.notify_all()
        self._changed.when(lambda: not self._state.num_keeping, lambda: None, _KEEPING_S)

    # --- under the lock ---

    def _closed_error(self) -> StoreError:
        return StoreError(f"{self._objects.url}: it is closed; open the dataset again")

    def _end(self, fetch: Fetch, error: StoreError | None) -> None:
        if not fetch.is_done:
            fetch.error = error
            fetch.is_done = True
        self._changed.notify_all()

    def _add_thread(self) -> None:
        state = self._state
        wanted = min(self._window.width, len(state.waiting) + len(state.running))
        wanted += min(state.num_keeping, _KEEPING)
        if state.threads >= wanted:
            return
        with thread_errors(), uninterrupted():
            threading.Thread(target=self._work, name=f"gloader-fetch-{state.threads}", daemon=True).start()
            state.threads += 1

    def _next(self) -> Fetch | None:
        """Return the oldest block whose turn it is, or None."""
        if len(self._state.running) >= self._window.width:
            return None
        now = time.monotonic()
        return next((fetch for fetch in self._state.waiting.values() if fetch.not_before <= now), None)

    def _pause_s(self) -> float:
        """Return for how long a thread may sleep: until a block may be repeated."""
        now = time.monotonic()
        times = [each.not_before - now for each in self._state.waiting.values() if each.not_before > now]
        return min([*times, _IDLE_S])

    # --- threads ---

    def _work(self) -> None:
        while True:
            with self._changed.lock:
                pause = self._pause_s()
            claimed = self._changed.when(lambda: self._state.is_closed or self._next(), self._claim, pause)
            if claimed is None:
                return
            if isinstance(claimed, Fetch) and not self._run(claimed):
                return

    def _claim(self) -> Fetch | bool | None:
        """Take the next block; true: there is none yet; None: this thread is not needed any more."""
        state = self._state
        fetch = self._next()
        if state.is_closed or (fetch is None and not state.waiting):
            state.threads -= 1
            return None
        if fetch is None:
            return True
        del state.waiting[fetch.rank]
        fetch.attempt += 1
        state.running.add(fetch)
        self._add_thread()
        return fetch

    def _run(self, fetch: Fetch) -> bool:
        """Bring the block of ``fetch``; return whether this thread still counts as one of the fetcher's."""
        attempt, request = fetch.attempt, fetch.request
        failure: StoreError | None = None
        with ExitStack() as held:
            try:
                with fetch.asked_by.charged():
                    data = held.enter_context(fetch.alone(lambda: self._state.is_closed))
                    data = self._request(fetch, is_again=attempt > 1) if data is None else data
                    if not fetch.is_done:
                        fetch.take(data)
            except StoreError as error:
                failure = error
            except BaseException as error:  # noqa: BLE001 - whatever a client raises: nobody may wait for ever
                text = f"{request.text} failed: {type(error).__name__}"
                failure = StoreReadError(errno.EIO, text, self._url(request))
            return self._settle(fetch, attempt, failure)

    def _request(self, fetch: Fetch, *, is_again: bool) -> Buffer:
        """Make the request of ``fetch`` when the limits allow it; return the bytes, as many as were asked for."""
        request = fetch.request
        with self._changed.lock:
            delay = self.limits.take(request.length)
            self._counts.limited_s += delay
        if delay:
            self._changed.when(lambda: self._state.is_closed, lambda: None, delay)
        with self._changed.lock:
            if self._state.is_closed:
                raise self._closed_error()
            fetch.age, fetch.began = self._window.age, time.monotonic()
            self._counts.requests += 1
            self._counts.retries += is_again
        data = self._objects.get(request.name, request.start, request.length, request.etag)
        num_bytes = memoryview(data).nbytes
        with self._changed.lock:
            self._counts.bytes += num_bytes
        if num_bytes != request.length:
            text = (
                f"{request.text} came with {num_bytes} bytes: the answer was cut, or is not of what was asked"
            )
            raise StoreReadError(errno.ECONNRESET, text, self._url(request))
        return data

    def _settle(self, fetch: Fetch, attempt: int, error: StoreError | None) -> bool:
        """Take the end of a request down, have it repeated where that may help; return false if it came too late."""
        with self._changed.lock:
            if fetch not in self._state.running or fetch.attempt != attempt:
                return False
            was_full = len(self._state.running) >= self._window.width
            self._state.running.discard(fetch)
            if isinstance(error, StoreReadError) and error.errno in SLOWER:
                self._window.halve(fetch.age)
            if error is not None:
                self._repeat_or_end(fetch, attempt, error)
                return True
            if was_full:  # a window that nobody fills would only grow
                self._window.widen()
            self._end(fetch, None)
            self._state.num_keeping += 1
            self._add_thread()
        try:
            fetch.keep()
        finally:
            with self._changed.lock:
                self._state.num_keeping -= 1
                self._changed.notify_all()
        return True

    def _repeat_or_end(self, fetch: Fetch, attempt: int, error: StoreError) -> None:
        if not may_repeat(error, attempt):
            self._end(fetch, final_error(error, fetch.request, attempt, self._url(fetch.request)))
            return
        pause = pause_s(fetch.request, attempt)
        self._counts.paused_s += pause
        fetch.not_before, fetch.began = time.monotonic() + pause, None
        # Back to its old place: whoever waits in file order waits for this one first.
        self._state.waiting[fetch.rank] = fetch
        self._state.waiting = dict(sorted(self._state.waiting.items()))
        self._changed.notify_all()

    def _give_up_late(self) -> None:
        """Have requests repeated that the store's client should have ended long ago."""
        limit = time.monotonic() - _LATE * self._timeout_s
        with self._changed.lock:
            late = [each for each in self._state.running if each.began is not None and each.began < limit]
            for fetch in late:
                # Its thread hangs, and counts no more; whatever it brings one day is dropped.
                self._state.threads -= 1
                text = f"{fetch.request.text} did not come within {self._timeout_s:g} s"
                error = StoreReadError(errno.ETIMEDOUT, text, self._url(fetch.request))
                self._settle(fetch, fetch.attempt, error)
                self._add_thread()

    def _url(self, request: BlockRequest) -> str:
        return f"{self._objects.url}/{request.name}"
