"""Fetches of object blocks, many in flight at the same time: the oldest first, repeated after a failure.

A block is a range of an object's bytes, such as 8 MiB. `Fetcher` fetches blocks in threads for a mirror, the local copy
of a dataset in an object store. `Window` limits the number of requests in flight: the window grows by one for every
round of requests without a failure, and is halved if the store is overloaded. `MirrorStats` and `FetchCounts` are the
counts that a run reports.
"""

from __future__ import annotations

import errno
import itertools
import threading
import zlib
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Final, Self

from gloader.core.signals import NEVER, Cancellation, SignalSafeCondition, thread_errors, uninterrupted
from gloader.core.thread_times import HelpAccount, own_account
from gloader.errors import ChecksumError, StoreError, StoreReadError
from gloader.ssd_store.mirror.object_store import REQUEST_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from typing_extensions import Buffer

    from gloader.ssd_store.mirror.object_store import Limits, ObjectStore

    # Returns a context that excludes other fetches of a block; see `Fetcher.ask`.
    Alone = Callable[[Callable[[], bool]], AbstractContextManager[Buffer | None]]


@dataclass(slots=True, kw_only=True)
class FetchCounts:
    """Counts of requests to the store so far."""

    requests: int = 0
    retries: int = 0  # repeated requests
    bytes: int = 0  # received bytes, including damaged and repeated blocks
    limited_s: float = 0.0  # time that requests waited for the limits
    paused_s: float = 0.0  # time that requests waited before a retry


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorStats:
    """Counts since the mirror was opened, and the blocks stored now."""

    requests: int  # requests to the store: for the record, for facts about objects, for blocks
    retries: int  # repeated requests
    bytes: int  # received bytes
    waited_s: float  # time that requests were delayed, by the limits or before a retry
    blocks_here: int  # blocks that are stored on this disk
    blocks: int  # blocks in all files
    evicted: int  # blocks removed from this disk to make room
    starved_s: float  # time in which at least one reader waited for a block
    not_kept: int  # fetched blocks that were not kept: no room, or a disk error


class WaitClock:
    """Counts the seconds in which at least one thread waits. Thread-safe; a context manager around each wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._since = 0.0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Seconds in all waits so far, including the current wait."""
        with self._lock:
            return self._seconds + (monotonic() - self._since if self._waiting else 0.0)

    def __enter__(self) -> Self:
        with self._lock:
            if not self._waiting:
                self._since = monotonic()
            self._waiting += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._waiting -= 1
            if not self._waiting:
                self._seconds += monotonic() - self._since


FIRST_WIDTH: Final = 16  # requests in flight at the beginning


class Window:
    """The allowed number of requests in flight: additive increase, multiplicative decrease, as in TCP.

    Not thread-safe.

    Parameters
    ----------
    most : maximum number of requests in flight, from 1
    first : number of requests in flight at the beginning
    """

    __slots__ = ("_age", "_most", "_width")

    def __init__(self, most: int, *, first: int = FIRST_WIDTH) -> None:
        self._most = most
        self._width = float(min(first, most))
        self._age = 0  # number of halvings

    @property
    def width(self) -> int:
        """Number of requests that may be in flight now."""
        return int(self._width)

    @property
    def age(self) -> int:
        """The number of halvings. A request records it, for `halve`."""
        return self._age

    def limit(self, most: int) -> int:
        """Limit the requests in flight to ``most``, from 1. Return the limit, perhaps an earlier, lower limit."""
        self._most = min(self._most, most)
        self._width = min(self._width, float(self._most))
        return self._most

    def widen(self) -> None:
        """Count a successful request. A round, which is as many requests as the width, adds one to the width."""
        self._width = min(self._most, self._width + 1 / self._width)

    def halve(self, age: int) -> bool:
        """Halve the width after a request that was refused or too slow, once per round; return True if halved.

        Parameters
        ----------
        age : the window's age when the request was made; requests in flight at the same time count once
        """
        if age != self._age:
            return False
        self._age += 1
        self._width = max(1.0, self._width / 2)
        return True


# Attempts for one block. With the pauses between them, a store may fail to answer for about 20 seconds.
MAX_ATTEMPTS: Final = 10
_FIRST_PAUSE_S: Final = 0.1  # pause before the second attempt; doubled before each further attempt
_LONGEST_PAUSE_S: Final = 5.0
# Errors of an overloaded store, which halve the window.
SLOWER: Final = frozenset({errno.EBUSY, errno.ETIMEDOUT})
_REPEATED: Final = SLOWER | {errno.ECONNRESET, errno.EIO}  # errors after which a block is requested again


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """A block to fetch: a part of an object."""

    name: str  # the object's name
    number: int  # the block's number within the object
    start: int  # the block's first byte in the object
    length: int  # bytes
    etag: str  # the expected content of the object

    @property
    def text(self) -> str:
        """The block's name in messages."""
        return f"block {self.number} (bytes {self.start} to {self.start + self.length - 1})"


@dataclass(slots=True, kw_only=True, eq=False)
class BlockFetch:
    """A requested block. Only ``request`` and ``error`` are public; the fetcher owns the other fields."""

    request: BlockRequest
    take: Callable[[Buffer], None]  # `take`, `keep` and `alone` as in `Fetcher.ask`
    keep: Callable[[], None]
    alone: Alone
    rank: int  # order of the requests
    asked_by: HelpAccount = field(default_factory=own_account)  # the requesting thread's account of core time
    not_before: float = 0.0  # clock time before which the block is not requested again
    attempt: int = 0  # requests made so far
    age: int = 0  # the window's age when the request was made
    began: float | None = None  # start of the request; None while it waits for its turn or the limits
    is_done: bool = False  # the block was taken, or the fetch has failed
    error: StoreError | None = None  # the final error


def may_repeat(error: StoreError, attempt: int) -> bool:
    """Return True if a block is requested again after ``attempt`` failed requests. Pure."""
    if isinstance(error, ChecksumError):  # damage on the way does not recur; damage in the store does
        return attempt == 1
    return isinstance(error, StoreReadError) and error.errno in _REPEATED and attempt < MAX_ATTEMPTS


def final_error(error: StoreError, request: BlockRequest, attempt: int, url: str) -> StoreError:
    """Return the final error for a block whose last request ended with ``error``. It names all attempts. Pure."""
    if attempt == 1 or not isinstance(error, StoreReadError):
        return error
    text = f"{request.text} was given up after {attempt} requests, the last of which: {error.strerror}"
    return StoreReadError(error.errno, text, url)


def pause_s(request: BlockRequest, attempt: int) -> float:
    """Return the seconds before a block is requested again, after ``attempt`` failed requests. Pure.

    The pause doubles each time. A factor from 0.5 to 1.5, a hash of the block's address, spreads blocks that failed
    together.
    """
    spread = zlib.crc32(f"{request.name} {request.number} {attempt}".encode())
    return min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S) * (0.5 + spread / 2**32)


# Threads that may write received blocks to the disk, in addition to the requesting threads.
_KEEPING: Final = 4
_KEEPING_S: Final = 10.0  # longest wait for these threads at the end, because a disk may hang
_IDLE_S: Final = 1.0  # lifetime of a thread without work
_LOOK_S: Final = 0.05  # pause between two checks for a cancellation
# Multiple of the time-out after which a request counts as failed, even if the store's client still waits.
_LATE: Final = 1.5


@dataclass(slots=True, kw_only=True)
class _State:
    """The fetcher's state, protected by its lock."""

    # Fetches without a request, by rank, in order.
    waiting: dict[int, BlockFetch] = field(default_factory=dict)
    running: set[BlockFetch] = field(default_factory=set)  # fetches whose request is in flight
    threads: int = 0
    num_keeping: int = 0  # threads that write a received block instead of making a request
    is_closed: bool = False


class Fetcher:
    """Fetches object blocks with as many requests in flight as the store sustains. Thread-safe.

    `ask` puts a block into ``waiting``. A thread claims the oldest waiting block, requests it, passes the bytes to
    ``take``, which verifies them, and then calls ``keep``, which writes them to the disk. A failed block returns to its
    place in ``waiting``. Threads start when there is work. They end after a while without work, or at `close`.

    Parameters
    ----------
    objects : the store, with one request per call
    limits : the user's limits
    most_requests : maximum number of requests in flight, from 1; each holds a block in memory
    timeout_s : time-out for one request; a request that takes 1.5 times as long counts as failed, and is repeated
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
        """Number of requests that may be in flight now."""
        return self._window.width

    def limit(self, most_requests: int) -> int:
        """Limit the requests in flight, from 1. Return the limit, perhaps the store's own lower limit."""
        with self._changed.lock:
            return self._window.limit(most_requests)

    @property
    def counts(self) -> FetchCounts:
        """A copy of the counts so far."""
        with self._changed.lock:
            return replace(self._counts)

    def ask(
        self,
        request: BlockRequest,
        take: Callable[[Buffer], None],
        keep: Callable[[], None] = lambda: None,
        alone: Alone = lambda _is_over: nullcontext(),
    ) -> BlockFetch:
        """Request a block and return at once.

        Parameters
        ----------
        request : the block to fetch
        take : called with the block's bytes, on one of the fetcher's threads. After a `ChecksumError` the block is
            requested once more; another `StoreError` ends the fetch.
        keep : called next, on the same thread, after the waiting thread was woken. While more than four such calls
            run, they take threads from the requests.
        alone : returns a context that excludes other processes' fetches of the block, from the request until the end of
            ``keep``. The context first waits until no other process fetches the block, or until the function passed
            to ``alone`` returns True. The context's value is the block's bytes if another process has fetched them
            meanwhile, else None.

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
            fetch = BlockFetch(request=request, take=take, keep=keep, alone=alone, rank=next(self._ranks))
            self._state.waiting[fetch.rank] = fetch
            self._add_thread()
            self._changed.notify_all()
        return fetch

    def wait(self, fetch: BlockFetch, *, cancellation: Cancellation = NEVER) -> None:
        """Wait until a block was taken.

        Raises
        ------
        StoreReadError
            The fetch failed; the message names the object, the bytes and the reason.
        ChecksumError, StoreError
            ``take`` raised the error, or the fetcher was closed.
        ChannelClosedError
            The work was cancelled.
        """
        while not fetch.is_done:
            cancellation.raise_if_set(f"waiting for {fetch.request.text}")
            self._changed.when(lambda: fetch.is_done, lambda: None, _LOOK_S)
            self._give_up_late()
        if fetch.error is not None:
            raise fetch.error

    def forget(self, fetch: BlockFetch) -> bool:
        """Cancel a block that is no longer needed. Return False, without effect, if its request was already made."""
        with self._changed.lock:
            if self._state.waiting.pop(fetch.rank, None) is None:
                return False
            self._end(fetch, StoreError(f"{self._url(fetch.request)}: {fetch.request.text} was given up"))
            return True

    def close(self) -> None:
        """Make no more requests, and wake all waiting threads with an error. Idempotent.

        Requests in flight end by their own time-outs, on threads that block no other thread. The call waits for running
        calls to ``keep``.
        """
        with self._changed.lock:
            self._state.is_closed = True
            for fetch in (*self._state.waiting.values(), *self._state.running):
                self._end(fetch, self._closed_error())
            self._state.waiting.clear()
            self._state.running.clear()
            self._changed.notify_all()
        self._changed.when(lambda: not self._state.num_keeping, lambda: None, _KEEPING_S)

    # --- the caller holds the lock ---

    def _closed_error(self) -> StoreError:
        return StoreError(f"{self._objects.url}: it is closed; open the dataset again")

    def _end(self, fetch: BlockFetch, error: StoreError | None) -> None:
        """End a fetch, with an error or None, and wake its waiting threads. Has no effect on an ended fetch."""
        if not fetch.is_done:
            fetch.error = error
            fetch.is_done = True
        self._changed.notify_all()

    def _add_thread(self) -> None:
        """Start one more thread if there are fewer than the work needs: one per request, and a few for `keep`."""
        state = self._state
        wanted = min(self._window.width, len(state.waiting) + len(state.running))
        wanted += min(state.num_keeping, _KEEPING)
        if state.threads >= wanted:
            return
        with thread_errors(), uninterrupted():
            threading.Thread(target=self._work, name=f"gloader-fetch-{state.threads}", daemon=True).start()
            state.threads += 1

    def _next(self) -> BlockFetch | None:
        """Return the oldest block that may be requested now, or None."""
        if len(self._state.running) >= self._window.width:
            return None
        now = monotonic()
        return next((fetch for fetch in self._state.waiting.values() if fetch.not_before <= now), None)

    def _pause_s(self) -> float:
        """Return the seconds that a thread may sleep: until a block may be requested again."""
        now = monotonic()
        times = [each.not_before - now for each in self._state.waiting.values() if each.not_before > now]
        return min([*times, _IDLE_S])

    # --- threads ---

    def _work(self) -> None:
        """Claim and run blocks until there is no work; the target of each of the fetcher's threads."""
        while True:
            with self._changed.lock:
                pause = self._pause_s()
            # `_claim` is called when a block may be requested, at the close, or after the pause.
            claimed = self._changed.when(lambda: self._state.is_closed or self._next(), self._claim, pause)
            if claimed is None:
                return
            # After a request that took too long, this thread is no longer counted, and must end.
            if isinstance(claimed, BlockFetch) and not self._run(claimed):
                return

    def _claim(self) -> BlockFetch | bool | None:
        """Take the next block. Return True if there is none yet, None if this thread is no longer needed."""
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

    def _run(self, fetch: BlockFetch) -> bool:
        """Fetch the block. Return True if this thread still counts among the fetcher's threads."""
        attempt, request = fetch.attempt, fetch.request
        failure: StoreError | None = None
        # The stack holds the context from ``alone`` until the end of ``keep``, which `_settle` calls.
        with ExitStack() as held:
            try:
                with fetch.asked_by.charged():
                    data = held.enter_context(fetch.alone(lambda: self._state.is_closed))
                    data = self._request(fetch, is_again=attempt > 1) if data is None else data
                    if not fetch.is_done:
                        fetch.take(data)
            except StoreError as error:
                failure = error
            except BaseException as error:  # noqa: BLE001 - any client error must end the wait
                text = f"{request.text} failed: {type(error).__name__}"
                failure = StoreReadError(errno.EIO, text, self._url(request))
            return self._settle(fetch, attempt, failure)

    def _request(self, fetch: BlockFetch, *, is_again: bool) -> Buffer:
        """Make the fetch's request when the limits allow it, and return exactly the requested bytes."""
        request = fetch.request
        with self._changed.lock:
            delay = self.limits.take(request.length)
            self._counts.limited_s += delay
        if delay:
            self._changed.when(lambda: self._state.is_closed, lambda: None, delay)
        with self._changed.lock:
            if self._state.is_closed:
                raise self._closed_error()
            fetch.age, fetch.began = self._window.age, monotonic()
            self._counts.requests += 1
            self._counts.retries += is_again
        data = self._objects.get(request.name, request.start, request.length, request.etag)
        num_bytes = memoryview(data).nbytes
        with self._changed.lock:
            self._counts.bytes += num_bytes
        if num_bytes != request.length:
            text = f"{request.text} arrived with {num_bytes} bytes: the answer was cut, or belongs to another request"
            raise StoreReadError(errno.ECONNRESET, text, self._url(request))
        return data

    def _settle(self, fetch: BlockFetch, attempt: int, error: StoreError | None) -> bool:
        """Record the end of a request. Repeat a failed request if this may help.

        Return False if the request was already ended, because it took too long or the fetcher was closed. The request's
        thread then no longer counts among the fetcher's threads.
        """
        with self._changed.lock:
            # `_give_up_late` or `close` has already ended this attempt.
            if fetch not in self._state.running or fetch.attempt != attempt:
                return False
            was_full = len(self._state.running) >= self._window.width
            self._state.running.discard(fetch)
            if isinstance(error, StoreReadError) and error.errno in SLOWER:
                self._window.halve(fetch.age)
            if error is not None:
                self._repeat_or_end(fetch, attempt, error)
                return True
            if was_full:  # a window that was not full shows nothing about the store's limit
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

    def _repeat_or_end(self, fetch: BlockFetch, attempt: int, error: StoreError) -> None:
        """Put a failed block back into ``waiting``, or end its fetch. The caller holds the lock."""
        if not may_repeat(error, attempt):
            self._end(fetch, final_error(error, fetch.request, attempt, self._url(fetch.request)))
            return
        pause = pause_s(fetch.request, attempt)
        self._counts.paused_s += pause
        fetch.not_before, fetch.began = monotonic() + pause, None
        # The block returns to its old place, because a reader in file order waits for the oldest block.
        self._state.waiting[fetch.rank] = fetch
        self._state.waiting = dict(sorted(self._state.waiting.items()))
        self._changed.notify_all()

    def _give_up_late(self) -> None:
        """Count requests as failed, and repeat them, if the store's client should have ended them long ago."""
        limit = monotonic() - _LATE * self._timeout_s
        with self._changed.lock:
            late = [each for each in self._state.running if each.began is not None and each.began < limit]
            for fetch in late:
                # The request's thread hangs and is no longer counted. A late result is dropped.
                self._state.threads -= 1
                text = f"{fetch.request.text} did not arrive within {self._timeout_s:g} s"
                error = StoreReadError(errno.ETIMEDOUT, text, self._url(fetch.request))
                self._settle(fetch, fetch.attempt, error)
                self._add_thread()

    def _url(self, request: BlockRequest) -> str:
        return f"{self._objects.url}/{request.name}"
