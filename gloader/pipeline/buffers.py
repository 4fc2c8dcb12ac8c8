"""The ring of host buffers for gathered batches.

A `BufferRing` has a fixed amount of memory in reusable buffers. The reading or gathering thread acquires a buffer for
each batch, and fills it with the batch's feature rows. The buffer returns to the ring after the device has copied it,
or after the training loop (the consumer) has dropped its arrays. `InterleavedRings` is used if one process gathers for
several ranks (training processes), each with a ring of its own.

- A table is the feature rows of a node type or of a relation; a buffer has one (rows, F) matrix for each table.
- A warm buffer has been written before, so that its memory pages exist. Fresh memory costs a page fault per page.
- A lease is the array that all views of a buffer hold. When the last view is freed, the lease is freed too, and the
  buffer returns.
- A ring lends its buffers if the loop itself receives them, without a copy to a device.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gloader.core.aligned_memory import warm_bytes
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ChannelClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

RowMatrix: TypeAlias = NDArray[Any]  # (rows, F), float32 or in the stored dtype

_FLOAT32: Final[np.dtype[Any]] = np.dtype(np.float32)  # default dtype of rows in a buffer
_CANCELLED: Final = "the buffer ring is cancelled"  # message of a ChannelClosedError
ALIGNMENT: Final = 64  # bytes, a cache line: each table's matrix in a buffer begins at a multiple
_UNBOUNDED: Final = 2**31  # more buffers than any run has


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """The form of a table's rows in a buffer."""

    dim: int  # F
    dtype: np.dtype[Any] = _FLOAT32  # float32, or the dtype in the file if the device converts the rows

    @property
    def num_bytes(self) -> int:
        """Bytes of one row."""
        return self.dim * self.dtype.itemsize


class BufferRing:
    """Reusable buffers with a (rows, F) matrix for each table. A buffer returns when its last array is freed.

    Fresh memory would take more time than the copy of the rows. So buffers stay warm, and grow only when a batch has
    more rows than any batch before. While the consumer keeps arrays alive, the ring makes further buffers, up to
    ``max_bytes`` in total. If the consumer holds all buffers and waits for another batch, no other thread can return a
    buffer. Then `acquire` raises after ``patience_s``. If the memory holds only one buffer, the loop's variable would
    keep the last batch and block the ring: `take_back` empties that batch. Thread-safe.

    Parameters
    ----------
    forms : the row form of each table
    rows : number of rows of each table in a new buffer, until a batch has more
    max_bytes : maximum bytes of all buffers
    patience_s : maximum wait, in seconds, of a consumer that holds every buffer
    allocate : returns a buffer with the given number of bytes

    Attributes
    ----------
    num_buffers : number of buffers that fit in ``max_bytes`` at their initial size
    """

    def __init__(
        self,
        *,
        forms: Sequence[RowForm],
        rows: Sequence[int],
        max_bytes: int,
        patience_s: float = 4.0,
        allocate: Callable[[int], NDArray[np.uint8]] = warm_bytes,
    ) -> None:
        self._allocate = allocate
        self.forms = tuple(forms)
        self._rows = tuple(max(count, 1) for count in rows)  # see `rows`
        self._largest = self._rows  # the row counts of the batch with the most bytes
        self._max_bytes = max_bytes
        num_bytes = self._num_bytes(self._rows)
        self.num_buffers = max(max_bytes // num_bytes, 1) if num_bytes else _UNBOUNDED
        self._total_bytes = 0  # of all buffers, free or not
        # SimpleQueue.put is safe inside a weakref callback, which may run in any thread at any point.
        self._free: queue.SimpleQueue[NDArray[np.uint8] | None] = queue.SimpleQueue()
        # Weak references to the leases, by the buffer's `id`. A weak reference must live to call its callback.
        self._leases: dict[int, weakref.ref[RowMatrix]] = {}
        self._is_cancelled = False  # see `cancel`
        self._counting = threading.Lock()  # guards `_on_their_way`
        self._patience_s = patience_s
        self._consumer_waits_since: float | None = None  # seconds of the monotonic clock
        self._lent: list[weakref.ref[torch.Tensor]] = []  # the last batch's features
        self._on_their_way: int | None = None  # buffers acquired and not yet lent; None without `lend`

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each table in a new buffer: the initial numbers, or the largest ones requested since."""
        return self._rows

    @property
    def max_bytes(self) -> int:
        """Maximum bytes of all buffers."""
        return self._max_bytes

    @property
    def has_one(self) -> bool:
        """True if the memory holds only one buffer."""
        return 2 * self._buffer_bytes() > self._max_bytes

    def lend(self, x: Sequence[torch.Tensor]) -> None:
        """Note the feature tensors (U, F) that the consumer receives, one per table, all in one buffer."""
        self._lent = [weakref.ref(features) for features in x]
        with self._counting:
            self._on_their_way = max((self._on_their_way or 0) - 1, 0)

    def take_back(self) -> None:
        """Empty the features that were lent last, if the memory holds only one buffer. Idempotent.

        A later use of the emptied features fails visibly: they have no rows, and autograd refuses a backward pass
        through them. If the consumer kept a view of the features, the view keeps the buffer, and the consumer's next
        wait raises an error that explains this.
        """
        if not self.has_one:  # a larger batch may change this later
            return
        lent, self._lent = self._lent, []
        for features in lent:
            x = features()
            if x is not None:
                with torch.no_grad():
                    x.set_(x.new_empty((0, x.shape[1])))  # type: ignore[call-overload]

    @contextmanager
    def consumer_waits(self) -> Iterator[None]:
        """Mark the time during which the consumer waits for a batch."""
        self.note_wait(is_waiting=True)
        try:
            yield
        finally:
            self.note_wait(is_waiting=False)

    def note_wait(self, *, is_waiting: bool) -> None:
        """Note that the consumer begins, continues or ends a wait for a batch."""
        if not is_waiting:
            self._consumer_waits_since = None
        elif self._consumer_waits_since is None:
            self._consumer_waits_since = time.monotonic()

    def acquire(self, rows: Sequence[int]) -> tuple[RowMatrix, ...]:
        """Return an uninitialised (rows, F) array for each table, all in one buffer.

        Waits for a free buffer if ``max_bytes`` is reached.

        Raises
        ------
        BudgetError
            One batch exceeds the ring, or the consumer holds every buffer and waits for another.
        ChannelClosedError
            The ring was cancelled.
        """
        if not self.forms:  # nothing is gathered, and only the channels bound the number of batches
            if self._is_cancelled:
                raise ChannelClosedError(_CANCELLED)
            return ()
        # New buffers have room for the largest batch so far, and need not be replaced soon.
        self._rows = tuple(map(max, self._rows, rows))
        self._largest = max(self._largest, tuple(rows), key=self._num_bytes)
        buffer = self._take(self._num_bytes(rows))
        with self._counting:
            if self._on_their_way is not None:
                self._on_their_way += 1
        # numpy shortens chains of views: a view of `buffer[:]` would hold `buffer` itself. A memoryview prevents this:
        # every later view holds `lease`, and the buffer returns when `lease` is freed.
        lease = np.frombuffer(buffer.data, dtype=np.uint8)
        # The callback is C code. `weakref.finalize` would run Python code when the consumer drops its batch. A Ctrl-C
        # in it would be printed and lost, and the buffer too. `put` ignores its second argument, the weak reference.
        self._leases[id(buffer)] = weakref.ref(lease, partial(self._free.put, buffer))
        return tuple(matrices_in(lease, self.forms, rows))

    def _num_bytes(self, rows: Sequence[int]) -> int:
        """Return a buffer's bytes for these row counts."""
        sizes = [count * form.num_bytes for form, count in zip(self.forms, rows, strict=True)]
        # Each matrix but the last is padded, so that the next one is aligned.
        return sum(map(_padded, sizes[:-1])) + sum(sizes[-1:])

    def _buffer_bytes(self) -> int:
        """Return the bytes of a new buffer.

        The largest row counts of two tables may come from two batches. A buffer for both maxima is larger than any
        batch needs, and is made only if the memory holds two.
        """
        num_bytes = self._num_bytes(self._rows)
        return num_bytes if 2 * num_bytes <= self._max_bytes else self._num_bytes(self._largest)

    def _take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return a buffer of at least ``num_bytes``: a free buffer, a new one, or the next that returns."""
        while not self._is_cancelled:
            try:
                buffer = self._free.get_nowait()
            except queue.Empty:
                grown = self._grow()
                buffer = self._wait_for_free() if grown is None else grown
            if buffer is None:  # a wake-up call of `cancel`
                continue
            self._leases.pop(id(buffer), None)
            if buffer.nbytes >= num_bytes:
                return buffer
            # The buffer is too small: it is dropped before a larger buffer takes its share of the memory.
            self._total_bytes -= buffer.nbytes
            buffer = None
        raise ChannelClosedError(_CANCELLED)

    def _wait_for_free(self) -> NDArray[np.uint8] | None:
        """Wait for a buffer to return; None after `cancel`. Raises BudgetError if the consumer holds every buffer."""
        began = time.monotonic()
        while True:
            try:
                return self._free.get(timeout=self._patience_s / 8)
            except queue.Empty:
                # The wait continues while a batch is on its way to the consumer, even if the disk is slow. This test
                # must come before the next one. The consumer first ends its wait and then lends the batch. In the other
                # order this thread could see the old wait, and then take back a batch that the loop has just received.
                if self._on_their_way:
                    continue
                # A consumer that does not wait computes, and will return a buffer.
                since = self._consumer_waits_since
                if since is None:
                    continue
                # Another attempt: at the consumer's request the memory may have had room for two buffers, so that the
                # batch was not taken back.
                self.take_back()
                if _since(since, began) > self._patience_s:
                    with suppress(queue.Empty):
                        return self._free.get_nowait()  # the buffer that was taken back
                    raise BudgetError(
                        f"all feature buffers ({format_bytes(self._max_bytes)}) are held by batches that "
                        "the loop keeps alive; clone what you keep (batch.x.clone()), drop old batches, "
                        "or raise the memory budget"
                    ) from None

    def _grow(self) -> NDArray[np.uint8] | None:
        """Return a new buffer; None if all buffers together would exceed ``max_bytes``."""
        num_bytes = self._buffer_bytes()
        if num_bytes > self._max_bytes:
            rows = " and ".join(
                f"{count:,} rows of {form.num_bytes:,} B"
                for form, count in zip(self.forms, self._largest, strict=True)
            )
            raise BudgetError(
                f"a batch needs a buffer of {format_bytes(num_bytes)} ({rows}), "
                f"the memory budget leaves {format_bytes(self._max_bytes)} for buffers; use a smaller batch size or "
                "fan-out, or raise the memory budget"
            )
        if self._total_bytes + num_bytes > self._max_bytes:
            return None
        self._total_bytes += num_bytes
        return self._allocate(num_bytes)

    def cancel(self) -> None:
        """End all waits for a buffer, and hand out none until `resume`. Idempotent."""
        self._is_cancelled = True
        self._free.put(None)

    def resume(self, *, is_lending: bool = False) -> None:
        """Hand out buffers again after `cancel`.

        Parameters
        ----------
        is_lending : whether the consumer receives the buffers themselves, and `lend` is called for each
        """
        self._is_cancelled = False
        self._on_their_way = 0 if is_lending else None


class InterleavedRings:
    """Hands out buffers from the ranks' rings in turn: a run's i-th batch is for rank i modulo their number.

    For one thread, which gathers the batches of all ranks.

    Parameters
    ----------
    rings : one for each rank; the first belongs to this process
    """

    def __init__(self, rings: Sequence[BufferRing]) -> None:
        self._rings = rings
        self._position = 0
        # Index of the ring that `acquire` waits for. It stays set after a cancelled wait, to explain a stall.
        self.blocked_on: int | None = None

    def acquire(self, rows: Sequence[int]) -> tuple[RowMatrix, ...]:
        """Wait for a free buffer, and return uninitialised (rows, F) arrays; errors as in `BufferRing.acquire`."""
        turn = self._position % len(self._rings)
        self.blocked_on = turn
        matrices = self._rings[turn].acquire(rows)
        self.blocked_on = None
        self._position += 1
        return matrices

    def consumer_waits(self) -> AbstractContextManager[None]:
        """Mark the time during which this process's consumer waits for a batch."""
        return self._rings[0].consumer_waits()

    def cancel(self) -> None:
        """End all waits for a buffer, and hand out none until `resume`. Idempotent."""
        for ring in self._rings:
            ring.cancel()

    def resume(self, *, is_lending: bool = False) -> None:
        """Hand out buffers again after `cancel`, the first rank first; ``is_lending`` as in `BufferRing.resume`."""
        self._position = 0
        self.blocked_on = None
        for ring in self._rings:
            ring.resume(is_lending=is_lending)


def matrices_in(
    memory: NDArray[np.uint8], forms: Sequence[RowForm], rows: Sequence[int]
) -> Iterator[RowMatrix]:
    """Yield each table's (rows, F) matrix as a view of a buffer, in order. Pure.

    Parameters
    ----------
    memory : the buffer
    forms : the row form of each table
    rows : rows of each table
    """
    first = 0
    for form, count in zip(forms, rows, strict=True):
        num_bytes = count * form.num_bytes
        yield memory[first : first + num_bytes].view(form.dtype).reshape(count, form.dim)
        first += _padded(num_bytes)


def _padded(num_bytes: int) -> int:
    """Return ``num_bytes``, rounded up to a multiple of `ALIGNMENT`."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _since(*moments: float) -> float:
    """Return the seconds since the last of ``moments``."""
    return time.monotonic() - max(moments)
