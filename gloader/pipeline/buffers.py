"""The ring of host buffers that batches are gathered into: warm, reused, bounded."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gloader.core.aligned_memory import warm_bytes
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ChannelClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

RowMatrix: TypeAlias = NDArray[Any]  # (rows, F), float32 or as stored

_FLOAT32: Final[np.dtype[Any]] = np.dtype(np.float32)
_CANCELLED: Final = "the buffer ring is cancelled"
ALIGNMENT: Final = 64  # bytes at which the matrix of another table begins in a buffer: that of cache lines
_UNBOUNDED: Final = 2**31  # more buffers than any run has


class Buffers(Protocol):
    """Where a stage gets the buffers of batches; `BufferRing`, or the rings of several ranks in turn."""

    def acquire(self, rows: Sequence[int]) -> tuple[RowMatrix, ...]:
        """Return uninitialised (rows, F) arrays, one for each table, in one buffer; wait for a free one."""
        ...

    def consumer_waits(self) -> AbstractContextManager[None]:
        """Mark the time during which the consumer waits for a batch."""
        ...

    def cancel(self) -> None:
        """Wake whoever waits for a buffer, and refuse to give any until `resume`. Idempotent."""
        ...

    def resume(self) -> None:
        """Give buffers again after `cancel`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """What a row of a table is in a buffer."""

    dim: int  # F
    dtype: np.dtype[Any] = _FLOAT32

    @property
    def num_bytes(self) -> int:
        """Bytes of a row."""
        return self.dim * self.dtype.itemsize


class BufferRing:
    """Reusable buffers with a (rows, F) matrix for each table; one comes back when the last array made from it is gone.

    Fresh allocation, not copying, bounds a gather in memory, so buffers stay warm and grow only when a
    batch has more rows than any before it. While the consumer keeps arrays alive, further buffers are
    made, up to ``max_bytes`` in all. When the consumer holds all of them and asks for more, that is an error
    after ``patience_s``, since nobody else could ever give one back. Where there is memory for one buffer alone, a
    loop, whose variable still names the last batch, could never go on: `take_back` empties that batch. Thread-safe.

    Parameters
    ----------
    forms : of the rows of each table
    rows : of each table, that a new buffer holds at first
    max_bytes : bytes of all buffers together
    patience_s : how long the consumer may wait while it holds every buffer
    allocate : makes a buffer of so many bytes

    Attributes
    ----------
    num_buffers : that there is memory for while no batch has more rows than a new buffer holds at first
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
        self._rows = tuple(max(count, 1) for count in rows)
        self._largest = self._rows  # of the batch that takes most bytes of all
        self._max_bytes = max_bytes
        num_bytes = self._num_bytes(self._rows)
        self.num_buffers = max(max_bytes // num_bytes, 1) if num_bytes else _UNBOUNDED
        self._total_bytes = 0
        # SimpleQueue.put is safe inside a weakref callback, which may run in any thread at any point.
        self._free: queue.SimpleQueue[NDArray[np.uint8] | None] = queue.SimpleQueue()
        # By the buffer's id. Kept, because a weak reference that is gone itself calls nothing.
        self._leases: dict[int, weakref.ref[RowMatrix]] = {}
        self._is_cancelled = False
        self._counting = threading.Lock()
        self._patience_s = patience_s
        self._consumer_waits_since: float | None = None
        self._lent: list[weakref.ref[torch.Tensor]] = []  # of the last batch, in a buffer of the ring
        self._on_their_way: int | None = None  # buffers that were acquired and not lent; None: nobody lends

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each table that a new buffer holds."""
        return self._rows

    @property
    def max_bytes(self) -> int:
        """Bytes of all buffers together."""
        return self._max_bytes

    @property
    def has_one(self) -> bool:
        """Whether there is memory for one buffer alone."""
        return 2 * self._buffer_bytes() > self._max_bytes

    def lend(self, x: Sequence[torch.Tensor]) -> None:
        """Note the features (U, F) of each table, in a buffer, that the consumer gets."""
        self._lent = [weakref.ref(features) for features in x]
        with self._counting:
            self._on_their_way = max((self._on_their_way or 0) - 1, 0)

    def take_back(self) -> None:
        """Empty the features that were lent last, where nothing else could be gathered meanwhile. Idempotent.

        What still uses them notices: they have no rows, and autograd refuses to go back through them. A view of them
        keeps the buffer, and the consumer is told so when it has waited long enough.
        """
        if not self.has_one:  # yet: a larger batch may come while this one is held
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
        """Note that the consumer begins, or goes on, or ends to wait for a batch."""
        if not is_waiting:
            self._consumer_waits_since = None
        elif self._consumer_waits_since is None:
            self._consumer_waits_since = time.monotonic()

    def acquire(self, rows: Sequence[int]) -> tuple[RowMatrix, ...]:
        """Return an uninitialised (rows, F) array for each table, all in one buffer.

        Waits for a free buffer where ``max_bytes`` is reached.

        Raises
        ------
        BudgetError
            One batch alone exceeds the ring, or the consumer holds every buffer and waits for another.
        ChannelClosedError
            The ring was cancelled.
        """
        if not self.forms:  # nothing is gathered: what bounds the batches under way are the channels
            if self._is_cancelled:
                raise ChannelClosedError(_CANCELLED)
            return ()
        # Buffers that are made from now on have room for the largest batch so far, and need not be replaced soon.
        self._rows = tuple(map(max, self._rows, rows))
        self._largest = max(self._largest, tuple(rows), key=self._num_bytes)
        buffer = self._take(self._num_bytes(rows))
        with self._counting:
            if self._on_their_way is not None:
                self._on_their_way += 1
        # Through a memoryview, because numpy makes a view of a view hold the owner of the memory instead of the
        # view between them: every later view then holds `lease`, and `lease` going is the buffer coming back.
        lease = np.frombuffer(buffer.data, dtype=np.uint8)
        # A callback in C alone: `weakref.finalize` runs Python code wherever the consumer drops its batch, and a Ctrl-C
        # that arrives there is printed and lost, with the buffer. `put` ignores its second argument, the reference.
        self._leases[id(buffer)] = weakref.ref(lease, partial(self._free.put, buffer))
        return tuple(matrices_in(lease, self.forms, rows))

    def _num_bytes(self, rows: Sequence[int]) -> int:
        """Return the bytes of a buffer with so many rows of each table."""
        sizes = [count * form.num_bytes for form, count in zip(self.forms, rows, strict=True)]
        return sum(map(_padded, sizes[:-1])) + sum(sizes[-1:])

    def _buffer_bytes(self) -> int:
        """Return the bytes of a new buffer.

        Most rows of one table may come with few of another: a buffer for the most of each is larger than any batch
        needs, and is made only where there is memory for two.
        """
        num_bytes = self._num_bytes(self._rows)
        return num_bytes if 2 * num_bytes <= self._max_bytes else self._num_bytes(self._largest)

    def _take(self, num_bytes: int) -> NDArray[np.uint8]:
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
            # Too small by now: it is dropped, before the larger one that its bytes go to is made.
            self._total_bytes -= buffer.nbytes
            buffer = None  # now, not when the larger one has been made
        raise ChannelClosedError(_CANCELLED)

    def _wait_for_free(self) -> NDArray[np.uint8] | None:
        began = time.monotonic()
        while True:
            try:
                return self._free.get(timeout=self._patience_s / 8)
            except queue.Empty:
                # Only while the consumer waits too: else it computes, and gives a buffer back when it is done.
                # Nor while another batch is on its way to it, however long a slow disk takes.
                since = self._consumer_waits_since
                if since is None or self._on_their_way:
                    continue
                # The loop asked before a batch came that leaves room for one buffer alone.
                self.take_back()
                if _since(since, began) > self._patience_s:
                    with suppress(queue.Empty):
                        return self._free.get_nowait()  # which was just taken back
                    raise BudgetError(
                        f"all feature buffers ({format_bytes(self._max_bytes)}) are held by batches that "
                        "the loop keeps alive; clone what you keep (batch.x.clone()), drop old batches, "
                        "or raise the memory budget"
                    ) from None

    def _grow(self) -> NDArray[np.uint8] | None:
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
        """Wake whoever waits for a buffer, and refuse to give any until `resume`. Idempotent."""
        self._is_cancelled = True
        self._free.put(None)

    def resume(self, *, is_lending: bool = False) -> None:
        """Give buffers again after `cancel`.

        Parameters
        ----------
        is_lending : the consumer gets the buffers themselves, and `lend` is told of each
        """
        self._is_cancelled = False
        self._on_their_way = 0 if is_lending else None


def matrices_in(
    memory: NDArray[np.uint8], forms: Sequence[RowForm], rows: Sequence[int]
) -> Iterator[RowMatrix]:
    """Yield the (rows, F) matrix of each table as a view of a buffer: one behind the other. Pure.

    Parameters
    ----------
    memory : the buffer
    forms : of the rows of each table
    rows : of each
    """
    first = 0
    for form, count in zip(forms, rows, strict=True):
        num_bytes = count * form.num_bytes
        yield memory[first : first + num_bytes].view(form.dtype).reshape(count, form.dim)
        first += _padded(num_bytes)


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _since(*moments: float) -> float:
    """Return the seconds since the last of ``moments``."""
    return time.monotonic() - max(moments)
