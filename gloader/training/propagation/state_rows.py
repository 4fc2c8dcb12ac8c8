"""Rows of a state during a propagation: in memory, or in a folder on the SSD.

On the SSD, all rows of a matrix are one sequence of values, cut into *blocks* of 1,024 values. A `FeatureStore` holds
the blocks. So the reads of any range of rows are few and large, whatever the width of a row. Every page is verified,
and the store's commit record shows that the matrix is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, Self

import numpy as np

from gloader.core.dtypes import STORED_DTYPES
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.feature_store import FeatureWriter
from gloader.ssd_store.os_io import REAL_OS
from gloader.ssd_store.write.feature_column import cast_rows

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.ssd_store.os_io import OsIO

    Matrix = NDArray[np.float32]

BLOCK: Final = 1024  # values of a block: whole pages in a dtype of 4 bytes, and few blocks per read


class RowInput(Protocol):
    """Rows that are read in order."""

    @property
    def num_rows(self) -> int:
        """N."""
        ...

    @property
    def width(self) -> int:
        """Number of columns."""
        ...

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Read rows ``start`` to ``stop`` into ``out`` (stop - start, width) float32."""
        ...


class HeldRows:
    """Rows in memory.

    Parameters
    ----------
    array : (N, w) float32, C-contiguous
    """

    def __init__(self, array: Matrix) -> None:
        self.array = array
        self.num_rows, self.width = array.shape

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Copy rows ``start`` to ``stop`` into ``out``."""
        out[:] = self.array[start:stop]

    def close(self) -> None:
        """Drop the array. Idempotent."""
        self.array = np.empty((0, self.width), dtype=np.float32)


def stored_blocks(num_rows: int, width: int) -> int:
    """Return the number of blocks of a matrix. Pure."""
    return -(-num_rows * width // BLOCK)


class StoredWriter:
    """Writes rows, in order, to a new folder; complete at the clean end of its ``with`` block.

    Parameters
    ----------
    path : the folder to create
    num_rows, width : shape of the matrix
    dtype : float32, float16 or bfloat16
    os_io : the system calls
    """

    def __init__(
        self, path: Path, *, num_rows: int, width: int, dtype: str = "float32", os_io: OsIO = REAL_OS
    ) -> None:
        self._dtype = dtype
        self._total = num_rows * width * STORED_DTYPES[dtype].stored.itemsize
        self._num_rows = 0  # rows so far
        self._rest = np.empty(
            0, dtype=STORED_DTYPES[dtype].stored
        )  # values of the block that is not full yet
        self._writer = FeatureWriter(
            path, num_rows=stored_blocks(num_rows, width), dim=BLOCK, dtype=dtype, os_io=os_io
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows on the SSD."""
        return self._total

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def append(self, chunk: Matrix) -> None:
        """Append the rows ``chunk`` (n, width).

        Raises
        ------
        FeatureValueError
            A value is too large for the dtype.
        StoreWriteError
            The device refuses.
        """
        values = cast_rows(chunk, self._dtype, self._num_rows).reshape(-1)
        self._num_rows += len(chunk)
        missing = -len(self._rest) % BLOCK
        if missing:
            head, values = values[:missing], values[missing:]
            self._rest = np.concatenate((self._rest, head))
            if len(self._rest) < BLOCK:
                return
            self._writer.append(self._rest.reshape(1, BLOCK))
        whole = len(values) // BLOCK * BLOCK
        self._writer.append(values[:whole].reshape(-1, BLOCK))
        self._rest = values[whole:].copy()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and len(self._rest):
            last = np.zeros((1, BLOCK), dtype=self._rest.dtype)
            last[0, : len(self._rest)] = self._rest
            self._writer.append(last)
        self._writer.__exit__(kind, error, trace)


class StoredRows:
    """Rows of a `StoredWriter`, open for reading. Owns the open store until `close`.

    Parameters
    ----------
    path : the folder
    num_rows, width : shape of the matrix
    ring_bytes : memory for reads
    os_io : the system calls
    """

    def __init__(
        self, path: Path, *, num_rows: int, width: int, ring_bytes: int, os_io: OsIO = REAL_OS
    ) -> None:
        self.num_rows = num_rows
        self.width = width
        self.bytes_read = 0  # bytes that left the device
        self._store = FeatureStore.open(path, ring_bytes=ring_bytes, os_io=os_io)
        self._aside = np.empty((1, BLOCK), dtype=np.float32)

    def read(self, start: int, stop: int, out: Matrix) -> None:  # noqa: ARG002 - ``out`` has the number of rows
        """Read rows ``start`` to ``stop`` into ``out``."""
        self.read_values(start * self.width, out.reshape(-1))

    def read_values(self, first: int, out: Matrix) -> None:
        """Read the values from number ``first`` on into ``out`` (n,)."""
        past = first + len(out)
        begin, end = -(-first // BLOCK), past // BLOCK  # the blocks of which all values are wanted
        if begin < end:
            whole = out[begin * BLOCK - first : end * BLOCK - first].reshape(-1, BLOCK)
            self.bytes_read += self._store.read_into(np.arange(begin, end), whole).bytes_read
        # Other blocks, at most the first and the last one, are read aside.
        for block in sorted({first // BLOCK, (past - 1) // BLOCK} - set(range(begin, end))):
            self.bytes_read += self._store.read_into(np.array([block]), self._aside).bytes_read
            low, high = max(first - block * BLOCK, 0), min(past - block * BLOCK, BLOCK)
            out[block * BLOCK + low - first : block * BLOCK + high - first] = self._aside[0, low:high]

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._store.close()
