"""Rows of a state during a propagation: in memory, or in a folder on the SSD.

On the SSD, all rows of a matrix are one sequence of values, cut into *blocks* of 1,024 values. A `FeatureStore` holds
the blocks. So the reads of any range of rows are few and large, whatever the width of a row. Every page is verified,
and the store's commit record shows that the matrix is complete. `StateRows` gives rows of either kind, or input rows,
to passes.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final, Protocol, Self

import numpy as np

from gloader.convert.read_ahead import ITEMS_AT_A_TIME, read_ahead
from gloader.core.dtypes import STORED_DTYPES
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.feature_store import FeatureWriter
from gloader.ssd_store.os_io import REAL_OS
from gloader.ssd_store.write.feature_column import cast_rows
from gloader.training.propagation.hop_pass import RowRing, empty_rows

if TYPE_CHECKING:
    from collections.abc import Generator
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


class HeldMatrix:
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


class StoredMatrix:
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


class StateRows:
    """A state's rows as passes take them.

    Parameters
    ----------
    rows : the rows
    chunk_rows : rows of a read
    owned : whether `close` closes the rows
    """

    def __init__(self, rows: RowInput, chunk_rows: int, *, owned: bool = True) -> None:
        self.rows = rows
        self.width = rows.width
        self.bytes_read = 0  # bytes of rows that were read, of a file or of an input
        self._chunk_rows = chunk_rows
        self._owned = owned
        self._ring = RowRing(rows.width, ITEMS_AT_A_TIME)

    def chunks(self, into: Matrix | None = None) -> Generator[tuple[int, Matrix]]:
        """Yield all rows in consecutive chunks, each with its first row; see `chunk`. ``into`` receives read rows."""
        num_rows, step = self.rows.num_rows, self._chunk_rows
        spans = ((start, min(start + step, num_rows)) for start in range(0, num_rows, step))
        parts = (
            (start, self.chunk(start, stop, None if into is None else into[start:stop]))
            for start, stop in spans
        )
        with read_ahead(parts, name="propagate-rows", is_on=not isinstance(self.rows, HeldMatrix)) as ahead:
            yield from ahead

    def chunk(self, start: int, stop: int, out: Matrix | None = None) -> Matrix:
        """Return rows ``start`` to ``stop``: a view if they are held, else in ``out``.

        Without ``out`` they are valid until `ITEMS_AT_A_TIME` later calls.
        """
        if isinstance(self.rows, HeldMatrix):
            return self.rows.array[start:stop]
        if out is None:
            out = self._ring.take(stop - start)
        before = getattr(self.rows, "bytes_read", 0)
        self.rows.read(start, stop, out)
        # An input that does not count its bytes has float32 rows.
        self.bytes_read += getattr(self.rows, "bytes_read", out.nbytes + before) - before
        return out

    def table(self, scale: Matrix | None, *, may_change: bool) -> Matrix:
        """Return all rows, times ``scale`` (N,), in memory.

        Parameters
        ----------
        scale : a factor for each row, or None
        may_change : whether held rows may be scaled in place, because this is their last use
        """
        held = self.rows.array if isinstance(self.rows, HeldMatrix) else None
        if held is not None and scale is None:
            return held
        table = held if may_change and self._owned else None
        if table is None:
            table = empty_rows(self.rows.num_rows, self.width)
        with closing(self.chunks(into=table)) as chunks:
            for start, chunk in chunks:
                if scale is not None:
                    stop = start + len(chunk)
                    np.multiply(chunk, scale[start:stop, None], out=table[start:stop])
        return table

    def scaled(self, scale: Matrix | None) -> _Scaled:
        """Return the rows, times ``scale`` (N,), for reading in order."""
        return _Scaled(self, scale)

    def close(self) -> None:
        """Close the rows. Idempotent."""
        if isinstance(self.rows, HeldMatrix | CutRows | StoredMatrix) and self._owned:
            self.rows.close()


class _Scaled:
    """Rows times factors, for `scatter`."""

    def __init__(self, source: StateRows, scale: Matrix | None) -> None:
        self.width = source.width
        self._source = source
        self._scale = scale
        self._ring = RowRing(source.width, ITEMS_AT_A_TIME)

    def part(self, start: int, stop: int) -> Matrix:
        """Return rows ``start`` to ``stop``."""
        rows = self._source.chunk(start, stop)
        if self._scale is None:
            return rows
        # Held rows are not the caller's to change.
        out = self._ring.take(stop - start) if isinstance(self._source.rows, HeldMatrix) else rows
        return np.multiply(rows, self._scale[start:stop, None], out=out)


class CutRows:
    """The columns of a slab, read from the file of all cut rows. Owns the open file until `close`.

    The file has chunks of ``per_cut`` rows. Each chunk has the slabs one after another, and each slab its rows.

    Parameters
    ----------
    values : the file's values
    columns : the slab
    per_cut : rows of a chunk
    """

    def __init__(self, values: StoredMatrix, columns: slice, per_cut: int) -> None:
        self.num_rows = values.num_rows
        self.width = columns.stop - columns.start
        self._values = values
        self._first = columns.start
        self._per_cut = per_cut

    @property
    def bytes_read(self) -> int:
        """Bytes that left the device."""
        return self._values.bytes_read

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Read rows ``start`` to ``stop`` into ``out``."""
        row = start
        while row < stop:
            begin = row // self._per_cut * self._per_cut
            count = min(self._per_cut, self.num_rows - begin)
            end = min(begin + count, stop)
            first = begin * self._values.width + count * self._first + (row - begin) * self.width
            self._values.read_values(first, out[row - start : end - start].reshape(-1))
            row = end

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._values.close()
