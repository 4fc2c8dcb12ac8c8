"""A GPU as the compute device, and the pinned host memory that it copies from.

Pinned memory cannot be swapped out, so the GPU reads it without the CPU. A large array is pinned in place, in pieces.
Small arrays are packed into one pinned block, which one copy sends.

A stream is a queue of GPU work. `CudaDevice` has one stream for transfers and one for sampling; the model has its own.
An event marks a point in a stream. Streams wait for each other's events, so that the CPU need not wait. The link is the
connection between host and GPU. `open_device` makes a `CudaDevice`, and the pipeline's last stages use it.
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

    Offsets = tuple[int, ...]  # the result of `pack_offsets`


logger = logging.getLogger("gloader")

# Packed arrays start at multiples of this many bytes: the size of a vector load, and a multiple of every itemsize.
_ALIGN: Final = 16

# Maximum bytes per call that pins memory. Such a call cannot be interrupted, so smaller pieces keep Ctrl-C responsive.
CHUNK_BYTES: Final = 1 << 30
# A piece size beyond every address: the memory is pinned by one call, so that copies of any part are one copy.
ONE_PIECE: Final = 1 << 62


def pack_offsets(arrays: Sequence[NDArray[Any]]) -> Offsets:
    """Return the byte offset of each array in a block; the last entry is the block's size. Pure."""
    ends = np.cumsum([0, *(-(-array.nbytes // _ALIGN) * _ALIGN for array in arrays)])
    return tuple(ends.tolist())


def pack(arrays: Sequence[NDArray[Any]], offsets: Offsets, block: NDArray[np.uint8]) -> None:
    """Copy ``arrays`` into one block of bytes, so that one copy brings all arrays to the device.

    Parameters
    ----------
    arrays : arrays with any dtypes and shapes
    offsets : result of `pack_offsets`
    block : (n,) uint8 with n >= offsets[-1]; the bytes between arrays stay unchanged
    """
    for array, start in zip(arrays, offsets, strict=False):
        block[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def unpack(block: torch.Tensor, arrays: Sequence[NDArray[Any]], offsets: Offsets) -> tuple[torch.Tensor, ...]:
    """Return the tensors in a packed block, as views of the block. Pure.

    Parameters
    ----------
    block : (n,) uint8 with n >= offsets[-1], filled by `pack`, on any device
    arrays : the packed arrays; only their shapes and dtypes are used
    offsets : result of `pack_offsets`
    """
    return tuple(
        block[start : start + array.nbytes].view(getattr(torch, array.dtype.name)).view(array.shape)
        for array, start in zip(arrays, offsets, strict=False)
    )


class PinnedArray:
    """An array that is pinned in place until `close`. Made by `pin_in_place`.

    Until `close`, a global set keeps the array alive, so that the device never reads unmapped memory.

    Parameters
    ----------
    array : the memory
    runtime : the calls that pin and unpin
    """

    def __init__(self, array: NDArray[Any], runtime: CudaHostMemory) -> None:
        self._array: NDArray[Any] = array
        self._runtime = runtime
        self._process = os.getpid()
        self.starts: list[int] = []  # addresses of the pinned pieces

    @property
    def array(self) -> NDArray[Any]:
        """The pinned array."""
        return self._array

    def pin(self, start: int, num_bytes: int) -> Any:
        """Pin ``num_bytes`` from address ``start`` on. Return CUDA's error code, 0 for success."""
        _PINNED.add(self)
        # The start is recorded before the call, so that `close` unpins the piece even after a Ctrl-C, which is raised
        # when the call returns.
        self.starts.append(start)
        status = self._runtime.cudaHostRegister(start, num_bytes, 0)
        if int(status) != 0:
            self.starts.pop()
        return status

    def close(self) -> None:
        """Unpin the array. Idempotent. A forked child unpins nothing, because its parent owns the memory."""
        if os.getpid() == self._process:
            while self.starts:
                # The start is removed after the call. If a Ctrl-C comes in between, the next `close` repeats the call,
                # which CUDA then refuses without harm.
                self._runtime.cudaHostUnregister(self.starts[-1])
                self.starts.pop()
        _PINNED.discard(self)


_PINNED: Final[set[PinnedArray]] = set()  # all arrays that are pinned now


def _unpin_all() -> None:
    """Unpin all arrays that are still pinned at the end of the process."""
    for pinned in tuple(_PINNED):
        pinned.close()


# At the end of the process, finalizers run in the reverse order of their creation. This one is created before any
# loader's finalizer, so all loaders have stopped sending when it runs.
weakref.finalize(PinnedArray, _unpin_all)


def pin_in_place(
    array: NDArray[Any], runtime: CudaHostMemory, *, chunk_bytes: int = CHUNK_BYTES
) -> PinnedArray | None:
    """Pin ``array`` piece by piece. If the system refuses a piece, unpin the others and return None.

    A refusal is no error: the log gives the reason, and the rows are copied more slowly.

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
                    "%s of host memory cannot be pinned in place (CUDA error %d: %s): its rows are copied more slowly",
                    format_bytes(array.nbytes),
                    int(status),
                    runtime.cudaGetErrorString(status),
                )
                return None
        undo.pop_all()
    return pinned


def pinned_bytes(num_bytes: int, runtime: CudaHostMemory) -> NDArray[np.uint8] | None:
    """Return touched, pinned memory (num_bytes,) that starts on a page, or None if the system refuses.

    When the last view is freed, the memory is unpinned and then unmapped.
    """
    # A forked child does not inherit the memory. If both processes shared a page, the first of them to write would get
    # a copy of the page. With older Linux kernels, this could be the parent, and the device would read the old page.
    memory = mapped_bytes(num_bytes, inherited=False)
    pinned = pin_in_place(memory, runtime, chunk_bytes=ONE_PIECE)
    if pinned is None:
        return None
    # In numpy, a view of a view references the original array, not the view between them. ``lease`` is made from a
    # memoryview, so later views reference ``lease``, which lives as long as any of them; see `BufferRing.acquire`.
    lease = np.frombuffer(memory.data, dtype=np.uint8, count=num_bytes)
    # This finalizer does not run at exit, because a loader's threads may still send from the memory. `_unpin_all` runs
    # later, and unpins it.
    weakref.finalize(lease, close_in_finalizer, pinned.close).atexit = False
    return lease


def pieces(address: int, num_bytes: int, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """Yield the address and the length of each piece of a range, in order. Pure.

    Pieces end at addresses that are multiples of ``chunk_bytes``. So a part of a pinned array is cut at the same
    addresses as the full array. No page is pinned twice, and no copy crosses the border of a piece.

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


_WARM_UP_ROWS: Final = 16  # rows in the trial run of the gather kernel; see `gather_kernel`
_DEVICE_POINTER: Final = 3  # the driver's CU_POINTER_ATTRIBUTE_DEVICE_POINTER


class CudaMark:
    """A `Mark`: an event on one of the GPU's streams."""

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
        """Make this thread's current stream wait for the event.

        ``tensors`` are recorded as used by that stream, so that their memory is not reused too early.
        """
        stream = torch.cuda.current_stream(self._place)
        stream.wait_event(self._event)
        # The tensors were allocated on another stream. Without this record the allocator could reuse their memory as
        # soon as that stream no longer needs it.
        for tensor in tensors:
            tensor.record_stream(stream)

    def seconds_since(self, other: CudaMark) -> float:
        """Return the GPU's seconds from ``other`` to this event. Both are from `CudaDevice.mark_computing`."""
        with torch.cuda.device(self._place):
            return float(other._event.elapsed_time(self._event)) / 1e3


class CudaDevice:
    """One GPU, as a `Device`; `gloader.device.seam` describes the methods. Not yet measured on a GPU.

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
        # The sending stream has the same priority as the model's stream. Its kernels mostly wait for host memory, so
        # they must not delay the model's kernels.
        self._stream = torch.cuda.Stream(self._place)  # type: ignore[no-untyped-call]
        # Sampling has its own stream. On the sending stream, each hop would wait for the gathers that were sent before.
        self._sampling_stream = torch.cuda.Stream(self._place)  # type: ignore[no-untyped-call]
        self._host_memory = CudaHostMemory(self._place)
        self._registers = True  # True if `host_buffer` pins in place; False after the system refused once
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
        """Return page-aligned memory, pinned in place. With its last view, it is unpinned and unmapped.

        If the system refuses, the memory is pinned by torch, whose allocator may take and keep twice as much. If that
        fails too, the memory is not pinned.
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
        """Return the GPU's free bytes, after torch has released its unused memory."""
        with torch.cuda.device(self._place):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return int(torch.cuda.mem_get_info()[0])

    def most_bytes_of(self, step: Callable[[], object]) -> int:
        """Run ``step``. Return the bytes by which torch's reserved memory grew at its peak."""
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
        """Copy by the GPU's copy engine, parallel to the model's kernels."""
        # CUDA does not guarantee a copy across the border of two pinned pieces, which large features have.
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
        """True if the gather kernel runs on this GPU. A trial run decides, once per process."""
        return gather_kernel(self._place) is not None

    def mark_computing(self) -> CudaMark:
        """Return an event after all work that this thread's stream has received."""
        return self._mark_on(torch.cuda.current_stream(self._place), is_timed=True)

    def mark(self) -> CudaMark:
        """Return an event after all work that the sending stream has received."""
        return self._mark_on(self._stream)

    def _mark_on(self, stream: torch.cuda.Stream, *, is_timed: bool = False) -> CudaMark:
        """Record an event on ``stream``. Only between events with ``is_timed`` can the seconds be measured."""
        with torch.cuda.device(self._place):
            # Blocking events let a waiting thread sleep; otherwise it would poll and occupy a core.
            event = torch.cuda.Event(enable_timing=is_timed, blocking=True)  # type: ignore[no-untyped-call]
            event.record(stream)
        return CudaMark(event, self._place)

    def pin(self, array: NDArray[Any]) -> PinnedArray | None:
        """Pin ``array`` in place, so that the gather kernel can read it. Return None if pinning or the kernel fails."""
        if not self.can_launch:
            return None
        pinned = pin_in_place(array, self._host_memory)
        if pinned is not None and not self._host_memory.is_one_array(pinned.starts):
            logger.warning(
                "%s of features are not one array to %s, which cannot read them in place: the CPU gathers each batch "
                "into pinned buffers instead",
                format_bytes(array.nbytes),
                self._place,
            )
            pinned.close()
            return None
        return pinned


class CudaHostMemory:
    """The CUDA runtime's calls for pinned memory, made for one GPU.

    During each call, ``place`` is the thread's current GPU. Otherwise a thread without a current GPU would open a
    context on the first GPU, even if another rank owns that GPU. A context takes about 0.4 GB.

    Parameters
    ----------
    place : the GPU
    """

    def __init__(self, place: torch.device) -> None:
        self._place = place

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int, /) -> Any:  # noqa: N802 - CUDA's name
        """Pin memory. Return CUDA's error code, 0 for success.

        Parameters
        ----------
        address : the first byte's address
        num_bytes : bytes to pin
        flags : 0 for plain pinned memory
        """
        with torch.cuda.device(self._place):
            return self._noted(torch.cuda.cudart().cudaHostRegister(address, num_bytes, flags))  # type: ignore[no-untyped-call]

    def cudaHostUnregister(self, address: int, /) -> Any:  # noqa: N802 - CUDA's name
        """Unpin the memory that was pinned at ``address``. Return CUDA's error code, 0 for success."""
        with torch.cuda.device(self._place):
            return self._noted(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call]

    def cudaGetErrorString(self, status: Any, /) -> str:  # noqa: N802 - CUDA's name
        """Return the text of an error code of these calls."""
        return str(torch.cuda.cudart().cudaGetErrorString(status))  # type: ignore[no-untyped-call]

    def is_one_array(self, starts: Sequence[int]) -> bool:
        """Return True if memory pinned in pieces is one array to the GPU too.

        A kernel gets only the GPU's address of the array's first byte. On Linux with x86, the GPU's addresses equal the
        host's, so the pieces are consecutive. In general they are consecutive if all pieces' addresses differ from the
        host's by the same amount.

        Parameters
        ----------
        starts : the pieces' addresses on the host
        """
        with torch.cuda.device(self._place):
            shifts = {_device_address(start) - start for start in starts} if len(starts) > 1 else set()
        return len(shifts) <= 1

    def _noted(self, status: Any) -> Any:
        """Return ``status``, after an error was cleared from the runtime."""
        if int(status) != 0:
            # The runtime keeps its last error, and would raise it at the next, valid kernel. `ones` launches such a
            # kernel; `zeros` may not.
            with suppress(RuntimeError):
                torch.ones(1, device=self._place)
        return status


class _UploadBlocks:
    """Pinned blocks for copies of small arrays. A block is lent again after the GPU has read it. Thread-safe.

    A block that is too small for a copy is dropped, and replaced by a larger block. There are about as many blocks as
    copies in flight.
    """

    def __init__(self) -> None:
        # Each block, with a mark that the GPU reaches after it has read the block. `popleft` is atomic, so that no two
        # threads get the same block.
        self._sent: deque[tuple[CudaMark, NDArray[np.uint8]]] = deque()

    @contextmanager
    def lend(self, num_bytes: int, device: CudaDevice) -> Iterator[NDArray[np.uint8]]:
        """Lend memory (num_bytes,) for one copy, which the ``with`` block starts on this thread's stream."""
        block = self._take_read(num_bytes)
        if block is None:
            # A quarter is spare room, so that slightly larger batches can use the block.
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

    Triton may be installed and still be unable to launch. It needs a C compiler and Python's headers, which slim images
    lack. It also needs a GPU that is new enough.
    """
    try:
        from gloader.device.triton_kernels import launch_gather  # the import of Triton searches for a GPU

        with torch.cuda.device(place):
            rows = torch.arange(2 * _WARM_UP_ROWS, dtype=torch.float32, device=place).reshape(-1, 2)
            ids = torch.arange(_WARM_UP_ROWS, device=place).flip(0)
            out = torch.zeros_like(rows)
            launch_gather(ids, RowParts(table=RowTable(rows=rows), slot_of=None, host=None), out, None)
            if not torch.equal(out, rows.flip(0)):
                raise RuntimeError("it returned wrong rows")  # noqa: TRY301 - as any other failure
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
        memory: NDArray[np.uint8] = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    except RuntimeError as error:
        logger.warning(
            "buffers are not pinned, and copies from them are slower (%s)", str(error).splitlines()[0]
        )
        return warm_bytes(num_bytes)
    return memory


def _device_address(address: int) -> int:
    """Return the current GPU's address of pinned host memory, or 0 if the driver gives none."""
    device_address = ctypes.c_uint64(0)
    with suppress(OSError, AttributeError):  # no driver, or one without this function
        get_attribute = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
        if get_attribute(ctypes.byref(device_address), _DEVICE_POINTER, ctypes.c_uint64(address)) != 0:
            return 0
    return device_address.value
