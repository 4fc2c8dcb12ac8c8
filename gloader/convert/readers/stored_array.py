"""Arrays that lie anywhere in a file: what they are, and their values, which are read when they are asked for."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gloader.convert.readers.npy_file import raising_source_errors
from gloader.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_mapped: dict[Path, int] = {}  # files that were ever mapped, with their bytes then
_former: list[int | None] = []  # the handler of SIGBUS before this one


def tell_where_cut(path: Path) -> None:
    """From now on, end the process with a sentence where ``path``, about to be mapped, is cut while it is read.

    The system answers a read beyond the end with SIGBUS, which would end the process without a word. No exception can
    be raised from there.
    """
    _mapped[path] = path.stat().st_size
    _handle_sigbus()


def _handle_sigbus() -> None:
    # Each time: another library, such as faulthandler, may have taken the signal since.
    before = _set_handler(signal.SIGBUS, _handler())
    if before != ctypes.cast(_handler(), ctypes.c_void_p).value:
        _former[:] = [before]


@cache
def _handler() -> Any:
    # Python's own handlers run after the instruction that failed, which would be tried again for ever. The system calls
    # this one, so it has to stay: the cache keeps it.
    return ctypes.CFUNCTYPE(None, ctypes.c_int)(_end)


def _set_handler(number: int, handler: Any) -> int | None:
    """Have C code handle a signal; return the address of the handler before; None: the default."""
    # A library of its own: the type of what is returned is nobody else's.
    set_handler = ctypes.CDLL(None).signal
    set_handler.restype = ctypes.c_void_p
    return cast("int | None", set_handler(number, handler))


def _end(number: int) -> None:
    cut = [str(path) for path, size in _mapped.items() if not path.exists() or path.stat().st_size < size]
    if not cut:  # of some other mapping: as if this had not been called
        _set_handler(number, ctypes.c_void_p(_former[0]))
        return
    os.write(2, f"\nerror: {', '.join(cut)} became shorter while it was read; copy it again\n".encode())
    os._exit(1)


class MappedFile:
    """The bytes of a file, mapped once, when the first are asked for.

    Parameters
    ----------
    path : of the file
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes: NDArray[np.uint8] | None = None

    def part(self, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        """Return bytes without reading them.

        Raises
        ------
        SourceError
            The file cannot be mapped, or no longer has them.
        """
        if self._bytes is None:
            with raising_source_errors(str(self._path)):
                tell_where_cut(self._path)
                # Read-only: the system refuses writable mappings of more than it has memory.
                self._bytes = np.memmap(self._path, np.uint8, "r").view(np.ndarray)
        part = self._bytes[offset : offset + num_bytes]
        if len(part) < num_bytes:
            raise SourceError(f"{self._path} became shorter while it was read; copy it again")
        return part


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """An array in a file, row after row."""

    file: MappedFile
    offset: int  # of its first byte in the file, at any alignment
    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # of the stored elements: uint16 where they are bfloat16, which numpy does not have
    is_bfloat16: bool

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that `values` takes."""
        return 2 * self.num_bytes if self._is_loaded else 0

    def values(self) -> NDArray[Any]:
        """Return the values without reading them, in memory that need not be aligned; bfloat16 as float32.

        Single bfloat16 numbers are read and widened at once, rows of them when they are taken.
        """
        if self._is_loaded:
            return self.load()
        return cast("NDArray[Any]", _WidenedRows(self._mapped())) if self.is_bfloat16 else self._mapped()

    def load(self) -> NDArray[Any]:
        """Return the values in memory; bfloat16 as float32."""
        return _widened(self._mapped()) if self.is_bfloat16 else self._mapped().copy()

    @property
    def _is_loaded(self) -> bool:
        return self.is_bfloat16 and (len(self.shape) < 2 or prod(self.shape[1:]) == 1)

    def _mapped(self) -> NDArray[Any]:
        if self.num_bytes == 0:
            return np.empty(self.shape, self.dtype)
        return self.file.part(self.offset, self.num_bytes).view(self.dtype).reshape(self.shape)


class _WidenedRows:
    """Rows of bfloat16 numbers, given by their bits (N, F), which are float32 numbers where they are taken."""

    def __init__(self, bits: NDArray[Any]) -> None:
        self._bits = bits
        self.shape = bits.shape
        self.ndim = bits.ndim
        self.size = bits.size
        self.dtype = np.dtype(np.float32)
        self.nbytes = 4 * bits.size

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        return _widened(self._bits[rows])


def _widened(bits: NDArray[Any]) -> NDArray[np.float32]:
    # A bfloat16 is the upper half of a float32.
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
