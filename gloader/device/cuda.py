"""A GPU as the compute device, and the pinned host memory that it copies from.

Transfers have their own stream, and events replace waits. Small arrays are packed into one pinned block; large arrays
are pinned in place.
"""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gloader.core.aligned_memory import mapped_bytes, warm_bytes
from gloader.core.signals import close_in_finalizer
from gloader.core.units import format_bytes
from gloader.device.row_table import RowParts, RowTable, gather_rows
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.device.row_table import LaunchGather

    Offsets = tuple[int, ...]


logger = logging.getLogger("gloader")

# Packed arrays start at multiples of this size: a 16-byte vector load, and a multiple of every itemsize.
_ALIGN: Final = 16

_PAGE_BYTES: Final = 4096
# CUDA pins all pages of a call without interruption. Small pieces keep Ctrl-C responsive.
CHUNK_BYTES: Final = 1 << 30
# A piece size beyond every address, for memory without borders, in which copies of any length may start.
ONE_PIECE: Final = 1 << 62


def pack_offsets(arrays: Sequence[NDArray[Any]]) -> Offsets:
    """Return the offset of each array in a block, and the block's bytes. Pure."""
    ends = np.cumsum([0, *(-(-array.nbytes // _ALIGN) * _ALIGN for array in arrays)])
    return tuple(ends.tolist())


def pack(arrays: Sequence[NDArray[Any]], offsets: Offsets, block: NDArray[np.uint8]) -> None:
    """Copy ``arrays`` into one block of bytes, so that one copy brings all arrays to the device.

    Parameters
    ----------
    arrays : arrays with any dtypes and shapes
    offsets : result of `pack_offsets`
    block : (>= offsets[-1],) uint8; the bytes between arrays stay unchanged
    """
    for array, start in zip(arrays, offsets, strict=False):
        block[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def unpack(block: torch.Tensor, arrays: Sequence[NDArray[Any]], offsets: Offsets) -> tuple[torch.Tensor, ...]:
    """Return the tensors in a packed block, as views of it. Pure.

    Parameters
    ----------
    block : (>= offsets[-1],) uint8, filled by `pack`, on any device
    arrays : the packed arrays; only their shapes and dtypes count
    offsets : result of `pack_offsets`
    """
    return tuple(
        block[start : start + array.nbytes].view(getattr(torch, array.dtype.name)).view(array.shape)
        for array, start in zip(arrays, offsets, strict=False)
    )


class PinnedArray:
    """An array that is pinned in place until `close`. Made by `pin_in_place`.

    The process keeps the array alive until then. Otherwise the device could access unmapped memory.

    Parameters
    ----------
    array : the memory; kept alive
    runtime : the calls that pin and unpin
    """

    def __init__(self, array: NDArray[Any], runtime: CudaHostMemory) -> None:
        self._array: NDArray[Any] = array
        self._runtime = runtime
        self._process = os.getpid()
        self.starts: list[int] = []  # addresses of the pinned pieces

    @property
    def array(self) -> NDArray[Any]:
        """The memory."""
        return self._array

    def pin(self, start: int, num_bytes: int) -> Any:
        """Pin a piece; return 0 or CUDA's error."""
        _PINNED.add(self)
        # The start is recorded before the call, so that `close` unpins the piece even after a Ctrl-C, which is raised
        # when the call returns.
        self.starts.append(start)
        status = self._runtime.cudaHostRegister(start, num_bytes, 0)
        if int(status) != 0:
            self.starts.pop()
        return status

    def close(self) -> None:
        """Unpin the array. Idempotent. A forked child does nothing: the memory is its parent's."""
        if os.getpid() == self._process:
            while self.starts:
                # The start is removed after the call: a Ctrl-C in between repeats the call, which CUDA then refuses.
                self._runtime.cudaHostUnregister(self.starts[-1])
                self.starts.pop()
        _PINNED.discard(self)


_PINNED: Final[set[PinnedArray]] = set()


def _unpin_all() -> None:
    for pinned in tuple(_PINNED):
        pinned.close()


# At the end of the process, finalizers run in the reverse order of their creation. This finalizer is older than any
# loader's, so that no loader sends any more when it runs.
weakref.finalize(PinnedArray, _unpin_all)


def pin_in_place(
    array: NDArray[Any], runtime: CudaHostMemory, *, chunk_bytes: int = CHUNK_BYTES
) -> PinnedArray | None:
    """Pin ``array`` piece by piece. If the system refuses a piece, unpin the others and return None.

    A refusal is no error: the log gives the reason, and the rows take a slower path.

    Parameters
    ----------
    array : C-contiguous; the result keeps it alive
    runtime : the calls that pin and unpin
    chunk_bytes : see `pieces`
    """
    pinned = PinnedArray(array, runtime)
    with ExitStack() as undo:
        undo.callback(pinned.close)
        for start, num_bytes in pieces(array.ctypes.data, array.nbytes, chunk_bytes=chunk_bytes):
            status = pinned.pin(start, num_bytes)
            if int(status) != 0:
                logger.warning(
                    "%s of host memory cannot be pinned in place (CUDA error %d: %s): its rows take a slower way",
                    format_bytes(array.nbytes),
                    int(status),
                    runtime.cudaGetErrorString(status),
                )
                return None
        undo.pop_all()
    return pinned


def pinned_bytes(num_bytes: int, runtime: CudaHostMemory) -> NDArray[np.uint8] | None:
    """Return touched, pinned memory (num_bytes,) that starts on a page, or None if the system refuses.

    Exactly the pages of ``num_bytes`` are pinned. When the last view is freed, the memory is unpinned and then
    unmapped.
    """
    # A child does not inherit the memory: if it shared a page, the first process to write the page would get a copy.
    # With older kernels the device would then still read the pinned original.
    memory = mapped_bytes(num_bytes, inherited=False)
    pinned = pin_in_place(memory, runtime, chunk_bytes=ONE_PIECE)
    if pinned is None:
        return None
    # The memoryview makes every later view reference this array: see `BufferRing.acquire`.
    lease = np.frombuffer(memory.data, dtype=np.uint8, count=num_bytes)
    # At the end of the process `_unpin_all` unpins it, because a loader's threads may still send from here.
    weakref.finalize(lease, close_in_finalizer, pinned.close).atexit = False
    return lease


def pieces(address: int, num_bytes: int, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """Yield address and length of a range's pieces, in order. Pure.

    Borders are at multiples of ``chunk_bytes`` in the address, not in the range, so that a part of pinned memory has
    the same borders as all of it. No page is pinned twice, and no copy crosses a border.

    Parameters
    ----------
    address : address of the first byte
    num_bytes : length of the range
    chunk_bytes : maximum bytes of one piece, a multiple of the page size
    """
    start, end = address, address + num_bytes
    while start < end:
        stop = min((start // chunk_bytes + 1) * chunk_bytes, end)
        yield start, stop - start
        start = stop


_WARM_UP_ROWS: Final = 16
_DEVICE_POINTER: Final = 3  # CU_POINTER_ATTRIBUTE_DEVICE_POINTER


class CudaMark:
    """An event on the sending stream."""

    def __init__(self, event: torch.cuda.Event, place: torch.device) -> None:
        self._event = event
        self._place = place

    def is_reached(self) -> bool:
        """Return True if the device has reached the event."""
        with torch.cuda.device(self._place):
            return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait until the device has reached the event."""
        # A thread that has not used a GPU yet, such as a closing thread, has the first GPU as its current one.
        with torch.cuda.device(self._place):
            self._event.synchronize()

    def precede(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let this thread's stream wait for the event; ``tensors`` count as used by that stream."""
        stream = torch.cuda.current_stream(self._place)
        stream.wait_event(self._event)
        # The tensors were allocated on the sending stream. Without this record the allocator would reuse their memory
        # too early.
        for tensor in tensors:
            tensor.record_stream(stream)

    def seconds_since(self, other: CudaMark) -> float:
        """Return the device's seconds between two events of `CudaDevice.mark_computing`."""
        with torch.cuda.device(self._place):
            return float(other._event.elapsed_time(self._event)) / 1e3


class CudaDevice:
    """One GPU. Not yet measured on a GPU.

    Parameters
    ----------
    place : a CUDA device; without an index, the current device

    Raises
    ------
    ConfigError
        There is no such device.
    """

    def __init__(self, place: torch.device) -> None:
        if not torch.cuda.is_available():
            raise ConfigError(f"device={str(place)!r}: this torch finds no GPU; use device='cpu'")
        index = place.index if ":" in str(place) else torch.cuda.current_device()
        if not 0 <= index < torch.cuda.device_count():
            raise ConfigError(f"device={str(place)!r}: there are {torch.cuda.device_count()} GPUs")
        self._place = torch.device("cuda", index)
        # The stream has the model's priority: the sending kernels wait for host memory, and must not take precedence.
        self._stream = torch.cuda.Stream(self._place)  # type: ignore[no-untyped-call]
        # Sampling has its own stream: on the sending stream, a gather over the link would delay every later hop.
        self._sampling_stream = torch.cuda.Stream(self._place)  # type: ignore[no-untyped-call]
        self._host_memory = CudaHostMemory(self._place)
        self._registers = True  # until the system refuses a buffer
        self._uploads = _UploadBlocks()

    @property
    def place(self) -> torch.device:
        """The GPU, with its index."""
        return self._place

    @property
    def is_asynchronous(self) -> bool:
        """True: batches are sent while the model computes."""
        return True

    def host_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return page-aligned memory pinned in place; it is unpinned and unmapped with its last view.

        If the system refuses, torch pins other memory, which may take and keep twice as much. If that fails too, the
        memory is ordinary.
        """
        memory = pinned_bytes(num_bytes, self._host_memory) if self._registers else None
        if memory is None:
            self._registers = False  # one attempt is enough: the log has its line
            memory = _bytes_of_torch(num_bytes)
        return memory

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return device memory that belongs to this thread's current stream."""
        return torch.empty(shape, dtype=dtype, device=self._place)

    def free_bytes(self) -> int:
        """Return the free bytes, including the memory that torch keeps for later."""
        with torch.cuda.device(self._place):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return int(torch.cuda.mem_get_info()[0])

    def most_bytes_of(self, step: Callable[[], object]) -> int:
        """Run ``step`` and return its peak of device bytes reserved by torch."""
        with torch.cuda.device(self._place):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            # Reserved bytes count, not allocated bytes: memory that torch keeps for later is not free either.
            before = torch.cuda.memory_reserved()
            torch.cuda.reset_peak_memory_stats()
            step()
            torch.cuda.synchronize()
            most = torch.cuda.max_memory_reserved()
            torch.cuda.empty_cache()
        return max(most - before, 0)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Make the device and its sending stream current in this thread."""
        with torch.cuda.device(self._place), torch.cuda.stream(self._stream):
            yield

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Make the device and its sampling stream current in this thread."""
        with torch.cuda.device(self._place), torch.cuda.stream(self._sampling_stream):
            yield

    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Copy ``arrays`` to the device by one copy from pinned memory."""
        offsets = pack_offsets(arrays)
        with self._uploads.lend(offsets[-1], self) as block:
            pack(arrays, offsets, block)
            sent = torch.from_numpy(block).to(self._place, non_blocking=True)
        return unpack(sent, arrays, offsets)

    def copy(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Copy by the copy engine, parallel to the model's kernels."""
        # CUDA does not guarantee one copy across memory that was pinned by two calls, as large features are.
        source, target, size = rows.view(-1), out.view(-1), rows.element_size()
        first = rows.data_ptr()
        for start, num_bytes in pieces(first, rows.nbytes):
            part = slice((start - first) // size, (start - first + num_bytes) // size)
            target[part].copy_(source[part], non_blocking=True)

    def gather(self, ids: torch.Tensor, parts: RowParts, out: torch.Tensor) -> None:
        """Gather by one kernel, or by torch operations if the kernel cannot be launched."""
        gather_rows(ids, parts, out=out, launch=gather_kernel(self._place))

    @property
    def can_launch(self) -> bool:
        """True if the gather kernel runs here; tried once per process."""
        return gather_kernel(self._place) is not None

    def mark_computing(self) -> CudaMark:
        """Return an event after all work that this thread's stream has received."""
        return self._mark_on(torch.cuda.current_stream(self._place), is_timed=True)

    def mark(self) -> CudaMark:
        """Return an event after all work that the sending stream has received."""
        return self._mark_on(self._stream)

    def _mark_on(self, stream: torch.cuda.Stream, *, is_timed: bool = False) -> CudaMark:
        with torch.cuda.device(self._place):
            # Blocking events let a waiting thread sleep; otherwise it would poll and occupy a core.
            event = torch.cuda.Event(enable_timing=is_timed, blocking=True)  # type: ignore[no-untyped-call]
            event.record(stream)
        return CudaMark(event, self._place)

    def pin(self, array: NDArray[Any]) -> PinnedArray | None:
        """Pin ``array`` in place. Return None if that fails, or without the kernel that would read the array."""
        if not self.can_launch:
            return None
        pinned = pin_in_place(array, self._host_memory)
        if pinned is not None and not self._host_memory.is_one_array(pinned.starts):
            logger.warning(
                "%s of features do not lie in one piece for %s, which cannot read them in place: each batch is "
                "gathered into pinned buffers instead",
                format_bytes(array.nbytes),
                self._place,
            )
            pinned.close()
            return None
        return pinned


class CudaHostMemory:
    """The CUDA runtime's calls for pinned memory, made for one GPU.

    Each call makes its GPU the thread's current GPU. Otherwise a thread without a GPU would open a context on the first
    GPU, which takes about 0.4 GB there, even if another rank owns that GPU.

    Parameters
    ----------
    place : the GPU
    """

    def __init__(self, place: torch.device) -> None:
        self._place = place

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int, /) -> Any:  # noqa: N802 - CUDA's name
        """Pin memory; return 0 or CUDA's error.

        Parameters
        ----------
        address : the first byte's address
        num_bytes : bytes in one piece
        flags : 0 for plain pinned memory
        """
        with torch.cuda.device(self._place):
            return self._noted(torch.cuda.cudart().cudaHostRegister(address, num_bytes, flags))  # type: ignore[no-untyped-call]

    def cudaHostUnregister(self, address: int, /) -> Any:  # noqa: N802 - CUDA's name
        """Unpin the memory that begins at ``address``."""
        with torch.cuda.device(self._place):
            return self._noted(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call]

    def cudaGetErrorString(self, status: Any, /) -> str:  # noqa: N802 - CUDA's name
        """Return the text of an error code of these calls."""
        return str(torch.cuda.cudart().cudaGetErrorString(status))  # type: ignore[no-untyped-call]

    def is_one_array(self, starts: Sequence[int]) -> bool:
        """Return True if memory pinned in pieces is one array to the GPU too.

        Triton takes the GPU's address of an array's first byte. If it equals the host's address, as on Linux with x86,
        every piece follows the previous one. Otherwise, or if the driver gives no address, a piece may lie anywhere.

        Parameters
        ----------
        starts : addresses of the pieces
        """
        with torch.cuda.device(self._place):
            shifts = {_device_address(start) - start for start in starts} if len(starts) > 1 else set()
        return len(shifts) <= 1

    def _noted(self, status: Any) -> Any:
        if int(status) != 0:
            # The runtime keeps its last error, and would raise it at the next, valid kernel. `ones` launches such a
            # kernel; `zeros` may not.
            with suppress(RuntimeError):
                torch.ones(1, device=self._place)
        return status


class _UploadBlocks:
    """Pinned blocks for copies of small arrays. A block is lent again after the GPU has read it. Thread-safe.

    There are as many blocks as copies in flight, and each has the largest size so far.
    """

    def __init__(self) -> None:
        # A block is first removed in one step, so that no two threads get the same block.
        self._sent: deque[tuple[CudaMark, NDArray[np.uint8]]] = deque()

    @contextmanager
    def lend(self, num_bytes: int, device: CudaDevice) -> Iterator[NDArray[np.uint8]]:
        """Lend a block (num_bytes,) to a copy inside the ``with`` block, on this thread's stream."""
        block = self._take_read(num_bytes)
        if block is None:
            # The spare room is for slightly larger batches.
            block = device.host_buffer(max(num_bytes + num_bytes // 4, 1))
        try:
            yield block[:num_bytes]
        finally:
            self._sent.append((device.mark_computing(), block))

    def _take_read(self, num_bytes: int) -> NDArray[np.uint8] | None:
        """Return a block that the GPU has read, if it is large enough. Drop blocks that have become too small."""
        for _ in range(len(self._sent)):
            with suppress(IndexError):  # another thread took the last block
                mark, block = self._sent.popleft()
                if not mark.is_reached():
                    self._sent.append((mark, block))
                elif len(block) >= num_bytes:
                    return block
        return None


@cache
def gather_kernel(place: torch.device) -> LaunchGather | None:
    """Return the gather kernel; if its trial run on ``place`` fails, log the reason and return None.

    Triton may be installed and still be unable to launch: it needs a C compiler and Python's headers, which slim images
    lack, and a GPU that is new enough.
    """
    try:
        from gloader.device.triton_kernels import launch_gather  # the import of Triton searches for a GPU

        with torch.cuda.device(place):
            rows = torch.arange(2 * _WARM_UP_ROWS, dtype=torch.float32, device=place).reshape(-1, 2)
            ids = torch.arange(_WARM_UP_ROWS, device=place).flip(0)
            out = torch.zeros_like(rows)
            launch_gather(ids, RowParts(table=RowTable(rows=rows), slot_of=None, host=None), out, None)
            if not torch.equal(out, rows.flip(0)):
                raise RuntimeError("it brought other rows than were asked for")  # noqa: TRY301 - as any other failure
    except Exception as error:  # noqa: BLE001 - torch gathers after any failure
        reason = (str(error).splitlines() or [""])[0]
        logger.warning(
            "gloader's gather kernel does not run on %s (%s: %s): operations of torch gather instead, which is slower, "
            "and features are not read in place. It needs Triton (pip install triton), a C compiler and Python's "
            "headers (apt-get install gcc python3-dev), and a GPU that Triton knows",
            place,
            type(error).__name__,
            reason,
        )
        return None
    return launch_gather


def _bytes_of_torch(num_bytes: int) -> NDArray[np.uint8]:
    """Return memory pinned by torch, or ordinary memory if that fails."""
    try:
        found: NDArray[np.uint8] = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    except RuntimeError as error:
        logger.warning("buffers are not pinned, and copies from them slower (%s)", str(error).splitlines()[0])
        return warm_bytes(num_bytes)
    return found


def _device_address(address: int) -> int:
    """Return the current GPU's address of pinned host memory, or 0 if the driver gives none."""
    found = ctypes.c_uint64(0)
    with suppress(OSError, AttributeError):
        ask = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
        if ask(ctypes.byref(found), _DEVICE_POINTER, ctypes.c_uint64(address)) != 0:
            return 0
    return found.value
