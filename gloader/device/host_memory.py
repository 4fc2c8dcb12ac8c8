"""Host memory that a GPU copies from: small arrays packed into one block, large ones pinned in place."""

from __future__ import annotations

import logging
import os
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import torch

from gloader.core.aligned_memory import mapped_bytes
from gloader.core.signals import close_in_finalizer
from gloader.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Offsets = tuple[int, ...]

logger = logging.getLogger("gloader")

# Packed arrays start at multiples of this: what a 16-byte vector load asks for, and a multiple of every itemsize.
_ALIGN: Final = 16

_PAGE_BYTES: Final = 4096
# The runtime pins every page of a call before it returns, and nothing interrupts it: pieces keep Ctrl-C working.
CHUNK_BYTES: Final = 1 << 30
# Beyond every address: no border, for memory that copies of any length start in.
ONE_PIECE: Final = 1 << 62

_TORCH: Final[dict[str, torch.dtype]] = {
    "int64": torch.int64,
    "int32": torch.int32,
    "float32": torch.float32,
    "float64": torch.float64,
}


def pack_offsets(arrays: Sequence[NDArray[Any]]) -> Offsets:
    """Return the byte at which each array starts in a block, and the bytes of the whole block. Pure."""
    ends = np.cumsum([0, *(-(-array.nbytes // _ALIGN) * _ALIGN for array in arrays)])
    return tuple(ends.tolist())


def pack(arrays: Sequence[NDArray[Any]], offsets: Offsets, block: NDArray[np.uint8]) -> None:
    """Copy ``arrays`` into one block of bytes, so that one copy brings all of them to the device.

    Parameters
    ----------
    arrays : any dtypes and shapes
    offsets : result of `pack_offsets`
    block : (>= offsets[-1],) uint8; the bytes between arrays stay as they are
    """
    for array, start in zip(arrays, offsets, strict=False):
        block[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def unpack(block: torch.Tensor, arrays: Sequence[NDArray[Any]], offsets: Offsets) -> tuple[torch.Tensor, ...]:
    """Return the tensors that a packed block holds, as views of it. Pure.

    Parameters
    ----------
    block : (>= offsets[-1],) uint8, filled by `pack`, on any device
    arrays : what was packed; only their shapes and dtypes count
    offsets : result of `pack_offsets`
    """
    return tuple(
        block[start : start + array.nbytes].view(_TORCH[array.dtype.name]).view(array.shape)
        for array, start in zip(arrays, offsets, strict=False)
    )


class CudaRuntime(Protocol):
    """The calls of the CUDA runtime that pinning needs; ``torch.cuda.cudart()`` has them."""

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int, /) -> Any:  # noqa: N802 - CUDA's name
        """Pin memory; return 0 or CUDA's error.

        Parameters
        ----------
        address : of the first byte
        num_bytes : of one piece
        flags : 0: plain pinned memory
        """
        ...

    def cudaHostUnregister(self, address: int, /) -> Any:  # noqa: N802 - CUDA's name
        """Unpin memory that was pinned from ``address`` on."""
        ...

    def cudaGetErrorString(self, status: Any, /) -> str:  # noqa: N802 - CUDA's name
        """Return what an error of these calls means."""
        ...


class PinnedArray:
    """An array that is pinned in place until `close`. Made by `pin_in_place`.

    Until then the process keeps it alive, for memory that was unmapped while it is pinned would be the device's still.

    Parameters
    ----------
    array : the memory; kept alive
    runtime : unpins it
    """

    def __init__(self, array: NDArray[Any], runtime: CudaRuntime) -> None:
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
        # Noted before it is done, so that `close` undoes it after a Ctrl-C too, which comes when the call returns.
        self.starts.append(start)
        status = self._runtime.cudaHostRegister(start, num_bytes, 0)
        if int(status) != 0:
            self.starts.pop()
        return status

    def close(self) -> None:
        """Unpin it. Idempotent; a forked child leaves it to its parent, whose memory it is."""
        if os.getpid() == self._process:
            while self.starts:
                # Forgotten after it is done: a Ctrl-C in between has it done twice, which the runtime refuses.
                self._runtime.cudaHostUnregister(self.starts[-1])
                self.starts.pop()
        _PINNED.discard(self)


_PINNED: Final[set[PinnedArray]] = set()


def _unpin_all() -> None:
    for pinned in tuple(_PINNED):
        pinned.close()


# Finalizers run in the order opposite to that in which they were made when the process ends. This one is older than
# any loader's, so that by then nobody sends any more.
weakref.finalize(PinnedArray, _unpin_all)


def pin_in_place(
    array: NDArray[Any], runtime: CudaRuntime, *, chunk_bytes: int = CHUNK_BYTES
) -> PinnedArray | None:
    """Pin ``array`` piece by piece. If the system refuses a piece, unpin the others and return None.

    A refusal is no error: the log says why, and the rows take another way.

    Parameters
    ----------
    array : C-contiguous; kept alive by what is returned
    runtime : pins and unpins
    chunk_bytes : as of `pieces`
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


def pinned_bytes(num_bytes: int, runtime: CudaRuntime) -> NDArray[np.uint8] | None:
    """Return touched memory (num_bytes,) that starts on a page and is pinned; None if the system refuses that.

    No more is pinned than was asked for, but for the rest of the last page. When its last view goes, it is unpinned,
    and then unmapped.
    """
    # Not inherited: the first who writes a page that a child shares gets a copy of it, and with older kernels the
    # device goes on reading the page that was pinned.
    memory = mapped_bytes(num_bytes, inherited=False)
    pinned = pin_in_place(memory, runtime, chunk_bytes=ONE_PIECE)
    if pinned is None:
        return None
    # Through a memoryview, so that every later view holds this one: see `BufferRing.acquire`.
    lease = np.frombuffer(memory.data, dtype=np.uint8, count=num_bytes)
    # When the process ends, `_unpin_all` does it: a loader's threads may still send from here.
    weakref.finalize(lease, close_in_finalizer, pinned.close).atexit = False
    return lease


def pieces(address: int, num_bytes: int, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """Yield address and length of the pieces of a range, in order. Pure.

    Borders are at multiples of ``chunk_bytes`` of the address, not of the range: a part of pinned memory is cut where
    the memory was. No page is pinned twice, and no copy goes over the border of two pieces.

    Parameters
    ----------
    address : of the first byte
    num_bytes : of the range
    chunk_bytes : most bytes of one piece, a multiple of the page size
    """
    start, end = address, address + num_bytes
    while start < end:
        stop = min((start // chunk_bytes + 1) * chunk_bytes, end)
        yield start, stop - start
        start = stop
