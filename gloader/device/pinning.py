"""Pinning memory where it is, in pieces, so that a GPU reads features that were loaded without it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from gloader.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

logger = logging.getLogger("gloader")

_PAGE_BYTES: Final = 4096
CHUNK_BYTES: Final = (
    1 << 30
)  # a call pins every page it is given before it returns: smaller ones can be interrupted


class CudaRuntime(Protocol):
    """The two calls of the CUDA runtime that pinning needs; ``torch.cuda.cudart()`` has them."""

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int, /) -> Any:  # noqa: N802 - CUDA's name
        """Pin memory; returns 0, or what went wrong."""
        ...

    def cudaHostUnregister(self, address: int, /) -> Any:  # noqa: N802 - CUDA's name
        """Undo that."""
        ...


class PinnedArray:
    """An array that is pinned in place until `close`. Made by `pin_in_place`."""

    def __init__(self, array: NDArray[Any], runtime: CudaRuntime, starts: list[int]) -> None:
        self._array: NDArray[Any] = array
        self._runtime = runtime
        self._starts = starts

    @property
    def array(self) -> NDArray[Any]:
        """The memory."""
        return self._array

    def close(self) -> None:
        """Unpin it. Idempotent."""
        starts, self._starts = self._starts, []
        for start in starts:
            self._runtime.cudaHostUnregister(start)


def pin_in_place(
    array: NDArray[Any], runtime: CudaRuntime, *, chunk_bytes: int = CHUNK_BYTES
) -> PinnedArray | None:
    """Pin ``array`` piece by piece; undo it all and return None where the system does not let it.

    That the features stay in ordinary memory is no error: they are then gathered into pinned buffers first. The log
    says why.

    Parameters
    ----------
    array : C-contiguous; kept alive by what is returned
    chunk_bytes : of one piece, a multiple of the page size
    """
    pinned = PinnedArray(array, runtime, [])
    for start, num_bytes in _pieces(array.ctypes.data, array.nbytes, chunk_bytes):
        status = int(runtime.cudaHostRegister(start, num_bytes, 0))
        if status != 0:
            pinned.close()
            logger.warning(
                "%s of features cannot be pinned where they are (CUDA error %d; is the limit of locked memory, ulimit "
                "-l, too low?): each batch is gathered into pinned buffers instead",
                format_bytes(array.nbytes),
                status,
            )
            return None
        pinned._starts.append(start)  # noqa: SLF001 - built here
    return pinned


def _pieces(address: int, num_bytes: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield address and length of pieces that meet at page borders: no page may be pinned twice."""
    end = address + num_bytes
    start = address
    while start < end:
        stop = min((start + chunk_bytes) // _PAGE_BYTES * _PAGE_BYTES, end)
        yield start, stop - start
        start = stop
