"""Arrays that lie anywhere in a file: what they are, and their values, which are read when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gloader.convert.readers.npy_file import raising_source_errors
from gloader.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


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
