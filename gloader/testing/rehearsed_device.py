"""A software device whose streams run as late as CUDA allows, so that a missing wait gives wrong values.

It replaces a GPU in tests of the pipeline. It never sleeps and has no randomness. Its terms are those of CUDA:

- A stream is a queue of work that runs in order. There are a sending stream and a computing stream.
- A mark is CUDA's event: a point in a stream's work for which others can wait.
- A block is memory of the device, or host memory that the device reads. Its user holds a lease, an array over the same
  bytes. The memory counts as returned when the lease is dropped.

A copy, upload or gather runs only when a host thread waits for a later mark. So a host buffer that is rewritten too
early has its new content by then, and a stream that computes without waiting finds no rows yet. Released memory is
overwritten as early as CUDA may overwrite it. Host memory is overwritten as soon as it is returned. Device memory is
overwritten in the order of the stream that made it, and after the work of other streams that were recorded as its
users. `OverwritingRing` overwrites returned host buffers of the pipeline. The device's clock adds up given durations.
"""

from __future__ import annotations

import math
import queue
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
import torch

from gloader.device.cuda import pack, pack_offsets, unpack
from gloader.device.row_table import gather_rows
from gloader.pipeline.buffers import BufferRing, RowMatrix
from gloader.types import OnDemand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.device.row_table import RowParts


# Two bytes of a value that no batch has: NaN in all floats but float64, and huge as an id.
_POISON: Final = np.uint16(0x7FC0)


def poison(memory: NDArray[Any]) -> None:
    """Overwrite contiguous ``memory`` with values that no batch has."""
    flat = memory.reshape(-1).view(np.uint8)
    even = len(flat) // 2 * 2
    flat[:even].view(np.uint16)[:] = _POISON
    flat[even:] = 0xC0


@dataclass(slots=True, eq=False)
class StreamWork:
    """A pending operation on a stream."""

    run: Callable[[], None]  # does the work on the host
    # Addresses of the blocks that the operation reads or writes
    touches: frozenset[int] = frozenset()
    seconds: float = 0.0  # the operation's duration by the device's clock
    since_s: float = 0.0  # time at which the host gave the operation to the stream
    is_wait: bool = False  # True if the stream waits for another stream's mark
    is_early: bool = False  # True if it takes no time and runs as soon as earlier work is done


class Stream:
    """Ordered work that runs only on demand. Not thread-safe: the device holds its lock during every call."""

    def __init__(self) -> None:
        self.work: deque[StreamWork] = deque()  # pending operations, the earliest first
        self.now_s = 0.0  # the stream's time by the device's clock

    def run_until(self, mark: RehearsedMark) -> None:
        """Run the earliest work until ``mark`` is reached."""
        while not mark.reached:
            self._run_next()

    def run_all(self) -> None:
        """Run all work."""
        while self.work:
            self._run_next()

    def overwrite(self, block: MemoryBlock) -> None:
        """Overwrite the block after the last pending wait and the last pending work that touches it.

        CUDA's allocator may give the memory to a next user at this point of the stream.
        """
        position = 0
        for number, work in enumerate(self.work, start=1):
            if work.is_wait or block.address in work.touches:
                position = number
        self.work.insert(position, StreamWork(partial(poison, block.memory), is_early=True))
        self.run_early()

    def _run_next(self) -> None:
        """Run the earliest work, and the work after it that takes no time."""
        work = self.work.popleft()
        self.now_s = max(self.now_s, work.since_s) + work.seconds
        work.run()
        self.run_early()

    def run_early(self) -> None:
        """Run work that takes no time and has no earlier work."""
        while self.work and self.work[0].is_early:
            self.work.popleft().run()


@dataclass(slots=True, eq=False)
class MemoryBlock:
    """Device memory, or host memory that the device reads. Work refers to the memory; users hold a lease on it."""

    memory: NDArray[np.uint8]
    num_bytes: int  # requested bytes; ``memory`` may be longer
    stream: Stream | None = None  # the stream that made it; None for the host's own work
    is_host: bool = False  # True for host memory
    is_open: bool = True  # False after unpinning, when the device may not read it
    streams: set[Stream] = field(default_factory=set)  # streams that were recorded as its users

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return int(self.memory.ctypes.data)

    def holds(self, address: int) -> bool:
        """Return whether ``address`` lies in the block."""
        return self.address <= address < self.address + self.memory.nbytes


T = TypeVar("T")


class RehearsedMark:
    """A point in a stream's work, like CUDA's event. It is reached after a wait for it or for a later mark."""

    def __init__(self, device: RehearsedDevice, stream: Stream | None) -> None:
        self._device = device
        self._stream = stream
        self.reached = False
        self.at_s = 0.0  # the device's time at which the mark was reached

    def is_reached(self) -> bool:
        """Return whether a wait has made the device reach the mark."""
        return self.reached

    def wait(self) -> None:
        """Make the device reach the mark."""
        self._device.reach(self)

    def precede(self, tensors: Iterable[torch.Tensor]) -> None:
        """Make this thread's stream wait for the mark, and protect the memory of ``tensors`` until then."""
        self._device.precede(self, tensors)

    def seconds_since(self, other: RehearsedMark) -> float:
        """Return the device's seconds between ``other`` and this mark, both reached."""
        assert self.reached  # noqa: S101 - CUDA raises here too
        assert other.reached  # noqa: S101
        return self.at_s - other.at_s

    def come(self, stream: Stream) -> None:
        """Record that ``stream`` has reached the mark."""
        self.reached = True
        self.at_s = stream.now_s

    @property
    def stream(self) -> Stream | None:
        """The mark's stream. None for the host's own work."""
        return self._stream


class RehearsedPin:
    """Host memory that the device reads in place. Reads after `close` find it overwritten."""

    def __init__(self, device: RehearsedDevice, array: NDArray[Any]) -> None:
        self._device = device
        self._array = array

    @property
    def array(self) -> NDArray[Any]:
        """The pinned memory."""
        return self._array

    def close(self) -> None:
        """Unpin the memory. Idempotent."""
        self._device.unpin(self._array)


class RehearsedDevice:
    """A `Device` that is late wherever CUDA may be late. Thread-safe.

    A training loop that computes with torch computes on the host, so each of its waits blocks, like a loop that prints
    its loss at every step. A loop that only launches work, and runs ahead of it, uses `computing` with `launch`.

    Parameters
    ----------
    reads_in_place : whether `pin` pins features in host memory, so that gathers read them there
    num_bytes : size of the device memory
    send_s : seconds of every copy, upload and gather, by the device's clock
    """

    def __init__(
        self, *, reads_in_place: bool = False, num_bytes: int = 1 << 30, send_s: float = 0.0
    ) -> None:
        self._reads_in_place = reads_in_place
        self._num_bytes = num_bytes
        self._send_s = send_s
        self._lock = threading.RLock()
        self._sending = Stream()
        self._computing = Stream()
        self._thread_state = threading.local()  # each thread's current stream, and its time in seconds
        self._blocks: dict[int, MemoryBlock] = {}  # by address
        # Returned blocks. The callback of a dropped lease puts them here. It may run in any thread at any point, so it
        # must not take the lock.
        self._returned: queue.SimpleQueue[MemoryBlock] = queue.SimpleQueue()
        self._leases: dict[int, weakref.ref[NDArray[np.uint8]]] = {}  # leases in use, by the block's address
        self._held: list[MemoryBlock] = []  # blocks of device memory that are not reused yet
        self._error: BaseException | None = None  # the first error, which every later wait raises again
        self.most_blocks = 0  # largest number of blocks held at the same time
        self.most_bytes = 0  # largest number of bytes held at the same time
        self.faults: list[str] = []  # illegal accesses, in CUDA's terms

    @property
    def place(self) -> torch.device:
        """The torch device of the tensors: the CPU."""
        return torch.device("cpu")

    @property
    def is_asynchronous(self) -> bool:
        """True: work runs later than the call."""
        return True

    @property
    def num_blocks(self) -> int:
        """Number of held blocks of device memory."""
        with self._settled():
            return len(self._held)

    @property
    def num_pinned(self) -> int:
        """Number of pinned arrays."""
        with self._settled():
            # Host memory without a lease is pinned memory; `host_buffer` gives a lease.
            return sum(
                block.is_host and address not in self._leases for address, block in self._blocks.items()
            )

    def host_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return memory that is overwritten as soon as it is dropped."""
        return self._allocate(num_bytes, None, is_host=True)[:num_bytes]

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an unwritten tensor in device memory of this thread's current stream."""
        num_bytes = math.prod(shape) * dtype.itemsize
        lease = self._allocate(num_bytes, self._current())
        return torch.from_numpy(lease)[:num_bytes].view(dtype).view(shape)

    def free_bytes(self) -> int:
        """Return the bytes of free memory."""
        self.finish()
        return self._num_bytes - self._bytes_held()

    def most_bytes_of(self, step: Callable[[], object]) -> int:
        """Run ``step`` and return the largest number of bytes that it holds at once."""
        self.finish()
        before = self.most_bytes = self._bytes_held()
        step()
        self.finish()
        return self.most_bytes - before

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Give this thread's work to the sending stream."""
        with self._using_stream(self._sending):
            yield

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Run this thread's kernels at once, on the host: sampling is not delayed."""
        with self._using_stream(None):
            yield

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Give this thread's launched work to the computing stream, which is late too."""
        with self._using_stream(self._computing):
            yield

    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Copy ``arrays`` to the device later, in one copy. They are packed into separate host memory at once."""
        offsets = pack_offsets(arrays)
        packed = np.empty(offsets[-1], dtype=np.uint8)
        pack(arrays, offsets, packed)
        block = self.empty((offsets[-1],), torch.uint8)
        self._enqueue(lambda out: out.copy_(torch.from_numpy(packed)), (block,), self._send_s)
        return unpack(block, arrays, offsets)

    def copy(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Copy ``rows`` to ``out`` later. Pageable memory, which the device cannot read, is copied to a block now."""
        if self._block_of(rows) is None:
            rows = self.empty(tuple(rows.shape), rows.dtype).copy_(rows)
        self._enqueue(lambda source, to: to.copy_(source), (rows, out), self._send_s)

    def gather(self, ids: torch.Tensor, parts: RowParts, out: torch.Tensor) -> None:
        """Gather the rows ``ids`` from ``parts`` into ``out`` later."""
        host = parts.host
        if host is not None and self._block_of(host.rows) is None:
            # The memory is pageable: the copy is complete on return, like the copy of the kernel's twin.
            rows = self.empty(tuple(host.rows.shape), host.rows.dtype)
            parts = replace(parts, host=replace(host, rows=rows.copy_(host.rows)))
        self._enqueue(
            lambda nodes, there, x: gather_rows(nodes, there, out=x), (ids, parts, out), self._send_s
        )

    def mark(self) -> RehearsedMark:
        """Return a mark after all work sent so far."""
        return self._mark_on(self._sending)

    def mark_computing(self) -> RehearsedMark:
        """Return a mark after this thread's launched work so far. It is reached at once if the host computes."""
        return self._mark_on(self._current())

    def pin(self, array: NDArray[Any]) -> RehearsedPin | None:
        """Pin ``array`` if features are read in place; otherwise return None."""
        return self.pin_memory(array) if self._reads_in_place else None

    def pin_memory(self, array: NDArray[Any]) -> RehearsedPin:
        """Pin ``array``, so that the device can read it later, in place."""
        memory = array.reshape(-1).view(np.uint8)
        with self._settled():
            self._blocks[array.ctypes.data] = MemoryBlock(memory, array.nbytes, is_host=True)
        return RehearsedPin(self, array)

    def unpin(self, array: NDArray[Any]) -> None:
        """Forbid the device to read ``array``. Idempotent."""
        with self._settled():
            if (block := self._blocks.pop(array.ctypes.data, None)) is not None:
                block.is_open = False

    def launch(self, work: Callable[..., object], *arguments: object, seconds: float = 0.0) -> None:
        """Run ``work`` on this thread's stream: later within `computing`, otherwise at once.

        Parameters
        ----------
        work : called with the arguments, in their state at that time; should hold no tensor of the device itself
        arguments : tensors, and dataclasses and tuples with tensors; read in place, without a reference to their leases
        seconds : the work's duration by the device's clock
        """
        self._enqueue(work, arguments, seconds)

    def finish(self) -> None:
        """Run all work given to the device, like `torch.cuda.synchronize`."""
        with self._running():
            self._sending.run_all()
            self._computing.run_all()

    def reach(self, mark: RehearsedMark) -> None:
        """Run all work before ``mark``."""
        with self._running():
            if mark.stream is not None:
                mark.stream.run_until(mark)
            self._thread_state.now_s = max(self._now_s(), mark.at_s)

    def precede(self, mark: RehearsedMark, tensors: Iterable[torch.Tensor]) -> None:
        """Make this thread's stream wait for ``mark``, and protect ``tensors``, see `RehearsedMark`."""
        stream = self._current()
        if stream is None:
            # The host computes: it waits, and no longer needs a tensor when it drops it.
            self.reach(mark)
            return

        def wait() -> None:
            if mark.stream is not None:
                mark.stream.run_until(mark)
            stream.now_s = max(stream.now_s, mark.at_s)

        with self._settled():
            stream.work.append(StreamWork(wait, is_wait=True, since_s=self._now_s()))
            for tensor in tensors:
                if (block := self._block_of(tensor)) is not None:
                    block.streams.add(stream)

    def _mark_on(self, stream: Stream | None) -> RehearsedMark:
        """Return a mark after the stream's work so far. It is reached at once without a stream."""
        mark = RehearsedMark(self, stream)
        with self._settled():
            if stream is None:
                mark.reached, mark.at_s = True, self._now_s()
            else:
                stream.work.append(StreamWork(partial(mark.come, stream), since_s=self._now_s()))
        return mark

    def _enqueue(self, work: Callable[..., object], arguments: tuple[object, ...], seconds: float) -> None:
        """Give ``work`` to this thread's stream, or run it now if the host computes."""
        stream = self._current()
        with self._settled():
            touches: set[int] = set()
            readers = [self._reader(argument, touches) for argument in arguments]
            if stream is None:
                work(*(read() for read in readers))
                self._thread_state.now_s = self._now_s() + seconds
                return
            stream.work.append(
                StreamWork(
                    lambda: _drop(work(*(read() for read in readers))),
                    touches=frozenset(touches),
                    seconds=seconds,
                    since_s=self._now_s(),
                )
            )

    def _reader(self, value: Any, touches: set[int]) -> Callable[[], Any]:
        """Return a function that returns ``value`` when the work runs. Adds the addresses of its blocks to ``touches``.

        The function refers to the memory and not to the tensors. So the memory of a tensor that its user drops too
        early is returned, as it would be on a GPU.
        """
        if isinstance(value, torch.Tensor):
            return self._tensor_reader(value, touches)
        if isinstance(value, tuple):
            each = [self._reader(item, touches) for item in value]
            return lambda: tuple(read() for read in each)
        if is_dataclass(value) and not isinstance(value, type):
            kind = type(value)
            parts = {item.name: self._field_reader(value, item.name, touches) for item in fields(value)}
            return lambda: kind(**{name: read() for name, read in parts.items()})
        return lambda: value

    def _field_reader(self, value: Any, name: str, touches: set[int]) -> Callable[[], Any]:
        """Return a function that returns the field ``name`` of the dataclass ``value``, see `_reader`."""
        content = getattr(value, name)
        if isinstance(vars(type(value)).get(name), OnDemand):
            # The thread that requested the tensor copied it into its own stream's memory. The work keeps this copy.
            return lambda: content
        return self._reader(content, touches)

    def _tensor_reader(self, tensor: torch.Tensor, touches: set[int]) -> Callable[[], torch.Tensor]:
        """Return a function that returns ``tensor`` over its block's memory, see `_reader`."""
        shape, dtype = tuple(tensor.shape), tensor.dtype
        if not tensor.numel():
            return lambda: torch.empty(shape, dtype=dtype)
        block = self._block_of(tensor)
        if block is None:
            # torch owns this memory. On the sending stream it is a feature table, which must still exist when the work
            # runs, so only a weak reference is kept. Elsewhere it is the test's own tensor, which is kept alive.
            held = weakref.ref(tensor) if self._current() is self._sending else lambda: tensor
            return lambda: cast("torch.Tensor", held()) if held() is not None else self._fault(shape, dtype)
        touches.add(block.address)
        start = tensor.data_ptr() - block.address
        flat = torch.from_numpy(block.memory[start : start + tensor.nbytes])
        view = flat.view(dtype).view(shape)
        return lambda: view if block.is_open else self._fault(shape, dtype)

    def _fault(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Record an illegal access, and return overwritten memory instead of the tensor."""
        self.faults.append(f"memory of {shape} {dtype} was gone")
        memory = np.empty(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
        poison(memory)
        return torch.from_numpy(memory).view(dtype).view(shape)

    def _block_of(self, tensor: torch.Tensor) -> MemoryBlock | None:
        """Return the block that holds ``tensor``, or None if it is not memory of the device."""
        address = tensor.data_ptr()
        with self._lock:
            return next((block for block in self._blocks.values() if block.holds(address)), None)

    def _allocate(self, num_bytes: int, stream: Stream | None, *, is_host: bool = False) -> NDArray[np.uint8]:
        """Return a lease on a new block, whose memory is overwritten from the start."""
        memory = np.empty(-(-max(num_bytes, 1) // 16) * 16, dtype=np.uint8)  # rounded up to 16 bytes
        poison(memory)
        block = MemoryBlock(memory, num_bytes, stream, is_host)
        # A memoryview makes every view hold the lease instead of the memory behind it. See `BufferRing`.
        lease = np.frombuffer(memory.data, dtype=np.uint8, count=max(num_bytes, 1))
        with self._settled():
            if not is_host:
                if self._bytes_held() + num_bytes > self._num_bytes:
                    raise torch.cuda.OutOfMemoryError(f"the rehearsed device has no {num_bytes:,} B left")
                self._held.append(block)
                self.most_blocks = max(self.most_blocks, len(self._held))
                self.most_bytes = max(self.most_bytes, self._bytes_held())
            self._blocks[block.address] = block
            self._leases[block.address] = weakref.ref(lease, partial(self._returned.put, block))
        return lease

    def _bytes_held(self) -> int:
        return sum(block.num_bytes for block in self._held)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Keep the device's first error. Every later wait raises it again, as in CUDA."""
        with self._settled():
            if self._error is not None:
                raise RuntimeError(f"the rehearsed device failed before: {self._error!r}")
            try:
                yield
            except BaseException as error:
                self._error = error
                raise
            self._reclaim_returned()  # memory returned meanwhile

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Hold the lock inside the block, after the returned memory was taken back."""
        with self._lock:
            self._reclaim_returned()
            yield

    def _reclaim_returned(self) -> None:
        """Let CUDA's allocator reuse the returned memory, which overwrites it.

        Host memory is overwritten now. Device memory is overwritten in the order of its own stream, and only after all
        other streams that use it have done their present work.
        """
        while True:
            try:
                block = self._returned.get_nowait()
            except queue.Empty:
                return
            del self._blocks[block.address], self._leases[block.address]
            if block.is_host:
                poison(block.memory)
                continue
            others = block.streams - {block.stream}
            if not others:
                self._reuse(block)
            # CUDA's allocator records an event in each of these streams when the memory is returned.
            for stream in others:
                stream.work.append(
                    StreamWork(partial(self._release_from_stream, block, stream), is_early=True)
                )
                stream.run_early()

    def _release_from_stream(self, block: MemoryBlock, stream: Stream) -> None:
        """Record that ``stream`` no longer uses the block."""
        block.streams.discard(stream)
        if not block.streams - {block.stream}:
            self._reuse(block)

    def _reuse(self, block: MemoryBlock) -> None:
        """Let a next user overwrite the block: now for the host's own work, else in the order of its stream."""
        self._held.remove(block)
        if block.stream is None:
            poison(block.memory)
        else:
            block.stream.overwrite(block)

    def _current(self) -> Stream | None:
        """Return this thread's current stream. None means that the thread works on the host at once."""
        return getattr(self._thread_state, "stream", None)

    def _now_s(self) -> float:
        """Return this thread's time by the device's clock."""
        return float(getattr(self._thread_state, "now_s", 0.0))

    @contextmanager
    def _using_stream(self, stream: Stream | None) -> Iterator[None]:
        """Make ``stream`` this thread's current stream inside the block."""
        before = self._current()
        self._thread_state.stream = stream
        try:
            yield
        finally:
            self._thread_state.stream = before


def _drop(_result: object) -> None:
    """Return None, so that a stream keeps no result of its work."""


class OverwritingRing(BufferRing):
    """A ring that overwrites a returned buffer at once, as the next batch would a moment later."""

    def acquire(self, rows: Sequence[int]) -> tuple[RowMatrix, ...]:
        """Return a buffer, see `BufferRing.acquire`. It is overwritten when its user drops it."""
        matrices = super().acquire(rows)
        if not matrices:  # without tables there is no buffer
            return matrices
        # A matrix is a view of the lease, an array over the ring's memory. The lease is dropped with its last view.
        lease = cast("NDArray[np.uint8]", matrices[0].base)
        memory = cast("memoryview", lease.base)
        # This callback runs before the reference that returns the buffer: the newer of two runs first.
        address = int(lease.ctypes.data)
        self._watched[address] = weakref.ref(lease, partial(_overwrite, memory))
        return matrices

    @property
    def _watched(self) -> dict[int, Any]:
        """The weak references to lent buffers, by address."""
        return self.__dict__.setdefault("_watched_leases", {})


def _overwrite(memory: memoryview, _lease: object) -> None:
    """Overwrite a returned buffer. Callback of the weak reference to its lease."""
    poison(np.frombuffer(memory, dtype=np.uint8))
