"""Feature rows of which a part alone was stored, made again from their stream, rounded as a store rounds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gloader.convert.derive.stored_rows import stored_row_bytes, widened
from gloader.ssd_store.write.cast import cast_rows, quantize_rows

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.convert.source import FeatureStream

# Of a stretch that is read: rows of the stream at a time, so that they and their copies take less memory than it.
_PART_OF_STRETCH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedColumn:
    """One type's features as they would be stored; a column whose files are not there whole."""

    features: FeatureStream
    dtype: str  # as stored: float32, float16, bfloat16 or int8

    @property
    def dim(self) -> int:
        """F."""
        return self.features.dim

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is stored, its scale included."""
        return stored_row_bytes(self.dim, self.dtype)

    def open(self, chunk_rows: int) -> StreamedRows:
        """Return the rows, of which at most ``chunk_rows`` will be read at a time."""
        return StreamedRows(self, max(1, chunk_rows // _PART_OF_STRETCH))


class StreamedRows:
    """The rows of a stream as float32, rounded as a store rounds them; a context manager. Not thread-safe.

    Stretches that ascend take one pass over the stream; one that lies before the last begins another.

    Parameters
    ----------
    column : what is streamed
    max_rows : of the stream at a time
    """

    def __init__(self, column: StreamedColumn, max_rows: int) -> None:
        self._column = column
        self._max_rows = max_rows
        self._chunks: Generator[NDArray[Any]] | None = None
        self._chunk: NDArray[Any] = np.empty((0, column.dim), np.float32)
        self._first = 0  # number of the first row of the chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the stream. Idempotent."""
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None

    def read(self, start: int, _stop: int, wanted: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows ``start + wanted`` (u,), ascending, as float32 (u, F), as they read back from a store."""
        rows = start + wanted
        out = np.empty((rows.shape[0], self._column.dim), np.float32)
        if self._chunks is None or start < self._first:
            self._begin()
        done = 0
        while done < rows.shape[0]:
            past = self._first + self._chunk.shape[0]
            stop = int(np.searchsorted(rows, past))
            if done < stop:
                out[done:stop] = self._rounded(self._chunk[rows[done:stop] - self._first], int(rows[done]))
                done = stop
            if done < rows.shape[0]:
                self._first, self._chunk = past, next(self._begun())
        return out

    def _begin(self) -> None:
        self.close()
        self._chunks = (chunk for chunk in self._column.features.chunks(self._max_rows))
        self._first, self._chunk = 0, next(self._begun())

    def _begun(self) -> Generator[NDArray[Any]]:
        assert self._chunks is not None  # noqa: S101 - begun by `read`
        return self._chunks

    def _rounded(self, rows: NDArray[Any], first_row: int) -> NDArray[np.float32]:
        dtype = self._column.dtype
        if dtype == "int8":
            return widened(*quantize_rows(rows, first_row), dtype=dtype)
        return widened(cast_rows(rows, dtype, first_row), dtype=dtype)
