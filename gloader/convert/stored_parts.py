"""Parts of an unfinished dataset that a conversion reads back: feature rows and topology.

They are read before the commit, the last step, which makes the new dataset visible under its final name.

A type without features can get derived features: means over the stored rows of another type. `StoredColumn` opens the
stored files. With ``--ranges``, each machine's dataset has only a part of the rows. Then `StreamedColumn` reads the
source's rows again, and rounds them as the store does. Link tables, which are pairs of nodes to predict, need the
topology, which `StoredCsc` opens.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from gloader.convert.readers.npy_file import NpyFile, NpyReader
from gloader.core.dtypes import STORED_DTYPES
from gloader.ssd_store.write.feature_column import cast_rows, quantize_rows

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.convert.source import FeatureStream
    from gloader.dataset.writer import EdgeTableWriter
    from gloader.ssd_store.write.feature_column import FeatureColumnWriter
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredColumn:
    """One node type's stored feature files."""

    rows: Path  # the file with the rows (N, F)
    scales: Path | None  # the file with the float32 scales (N,) of int8 rows; None for other dtypes
    dtype: str  # float32, float16, bfloat16 or int8
    num_rows: int  # N
    dim: int  # F

    @property
    def row_bytes(self) -> int:
        """Bytes per row, scale included."""
        return stored_row_bytes(self.dim, self.dtype)

    def open(self, chunk_rows: int) -> StoredColumnRows:  # noqa: ARG002 - stored rows need no chunks
        """Return a reader. ``chunk_rows``, the maximum of ``stop - start`` in its reads, is not used here."""
        return StoredColumnRows(self)


class StoredColumnRows:
    """Reads a column's rows as float32. A context manager. Owns its open files until ``close()``. Not thread-safe."""

    def __init__(self, column: StoredColumn) -> None:
        self._column = column
        self._stack = ExitStack()
        self._rows: NpyReader = self._stack.enter_context(NpyFile.open(column.rows).reader())
        self._scales: NpyReader | None = None
        if column.scales is not None:
            self._scales = self._stack.enter_context(NpyFile.open(column.scales).reader())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._stack.close()

    def read(self, start: int, stop: int, row_offsets: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read rows ``start`` ... ``stop - 1``. Return the rows ``start + row_offsets`` (u,) as float32 (u, F).

        Raises
        ------
        SourceError
            The file ends early, or the system refuses.
        """
        dim = self._column.dim
        self._rows.seek(start * dim)
        stored = self._rows.take((stop - start) * dim).reshape(-1, dim)[row_offsets]
        scales = None
        if self._scales is not None:
            self._scales.seek(start)
            scales = self._scales.take(stop - start)[row_offsets]
        return widened(stored, scales, dtype=self._column.dtype)


def stored_row_bytes(dim: int, dtype: str) -> int:
    """Return the bytes per stored row with ``dim`` elements, scale included. Pure."""
    return STORED_DTYPES[dtype].row_bytes(dim)


def widened(
    stored: NDArray[Any], scales: NDArray[np.float32] | None = None, *, dtype: str
) -> NDArray[np.float32]:
    """Return stored rows (n, F) as float32. float32 rows are not copied. Pure.

    Parameters
    ----------
    stored : (n, F) elements as stored
    scales : (n,) scales for int8 rows
    dtype : the stored dtype
    """
    if dtype == "bfloat16":  # stored as uint16: the upper half of a float32
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    rows = stored.astype(np.float32, copy=False)
    if scales is not None:
        rows *= scales[:, None]
    return rows


def stored_column(writer: FeatureColumnWriter, *, dtype: str, num_rows: int, dim: int) -> StoredColumn:
    """Return the column from a closed `FeatureColumnWriter`.

    Parameters
    ----------
    writer : the closed writer
    dtype, num_rows, dim : the column's dtype and sizes
    """
    return StoredColumn(rows=writer.path, scales=writer.scale_path, dtype=dtype, num_rows=num_rows, dim=dim)


# A chunk of the stream has at most 1/_CHUNKS_PER_READ of a read's rows, so the chunk and its copies take less memory.
_CHUNKS_PER_READ = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedColumn:
    """One type's features, read again from the source, for a column that is only partly stored.

    The rows are rounded to the stored dtype, so that they equal stored rows.
    """

    features: FeatureStream  # the source's rows, before rounding
    dtype: str  # the stored dtype: float32, float16, bfloat16 or int8

    @property
    def dim(self) -> int:
        """F."""
        return self.features.dim

    @property
    def row_bytes(self) -> int:
        """Bytes per stored row, scale included."""
        return stored_row_bytes(self.dim, self.dtype)

    def open(self, chunk_rows: int) -> StreamedRows:
        """Return a reader. ``chunk_rows`` is the maximum of ``stop - start`` in its reads."""
        return StreamedRows(self, max(1, chunk_rows // _CHUNKS_PER_READ))


AnyColumn: TypeAlias = StoredColumn | StreamedColumn


class StreamedRows:
    """Reads a stream's rows as float32, with the store's rounding. A context manager. Not thread-safe.

    Reads in ascending order take one pass over the stream. A read of earlier rows begins another pass.

    Parameters
    ----------
    column : the streamed column
    max_rows : maximum rows per chunk of the stream, fewer than a read may have
    """

    def __init__(self, column: StreamedColumn, max_rows: int) -> None:
        self._column = column
        self._max_rows = max_rows
        # The current pass over the stream, or None before the first.
        self._chunks: Generator[NDArray[Any]] | None = None
        self._chunk: NDArray[Any] = np.empty((0, column.dim), np.float32)  # the current chunk (n, F)
        self._first = 0  # row number of the current chunk's first row

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

    def read(self, start: int, _stop: int, row_offsets: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows ``start + row_offsets`` (u,) as float32 (u, F), with the store's rounding.

        ``row_offsets`` must ascend. ``_stop`` is not used: it makes the arguments the same as in `StoredColumnRows`.
        """
        # The stream advances chunk by chunk. From each chunk, the requested rows are copied.
        rows = start + row_offsets
        out = np.empty((rows.shape[0], self._column.dim), np.float32)
        if self._chunks is None or start < self._first:
            self._begin()
        done = 0  # number of rows that are in ``out`` already
        while done < rows.shape[0]:
            past = self._first + self._chunk.shape[0]  # the first row after the current chunk
            stop = int(np.searchsorted(rows, past))  # rows[done:stop] are in the current chunk
            if done < stop:
                out[done:stop] = self._rounded(self._chunk[rows[done:stop] - self._first], int(rows[done]))
                done = stop
            if done < rows.shape[0]:
                self._first, self._chunk = past, next(self._begun())
        return out

    def _begin(self) -> None:
        """Start a pass over the stream, and load its first chunk."""
        self.close()
        # `close` needs a generator, because the iterator that ``chunks`` returns may have no ``close`` method.
        self._chunks = (chunk for chunk in self._column.features.chunks(self._max_rows))
        self._first, self._chunk = 0, next(self._begun())

    def _begun(self) -> Generator[NDArray[Any]]:
        """Return the chunks of the pass that `_begin` started."""
        assert self._chunks is not None  # noqa: S101 - begun by `read`
        return self._chunks

    def _rounded(self, rows: NDArray[Any], first_row: int) -> NDArray[np.float32]:
        """Return source rows (n, F) as the store would return them. ``first_row``, rows[0]'s number, is for errors."""
        dtype = self._column.dtype
        if STORED_DTYPES[dtype].has_scale:
            return widened(*quantize_rows(rows, first_row), dtype=dtype)
        return widened(cast_rows(rows, dtype, first_row), dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCsc:
    """A written topology: every destination's in-neighbours, in two files with all nodes and edges.

    Raises
    ------
    SourceError
        From every method: a file was truncated, or the system refuses.
    """

    indptr: NpyFile  # (N + 1,) offsets: the in-neighbours of node i are at positions indptr[i] ... indptr[i + 1] - 1
    indices: NpyFile  # (E,) the in-neighbours of node 0, then of node 1, and so on
    has_times: bool = False  # True if edges have times; then in-neighbours are in time order

    @classmethod
    def open(cls, indptr: Path, indices: Path, *, has_times: bool = False) -> StoredCsc:
        """Open the files of the two arrays."""
        return cls(indptr=NpyFile.open(indptr), indices=NpyFile.open(indices), has_times=has_times)

    @classmethod
    def of(cls, written: EdgeTableWriter) -> StoredCsc:
        """Open a relation's topology, which is written but not committed yet."""
        paths = written.paths
        return cls.open(paths["indptr"], paths["indices"], has_times="edge_time" in paths)

    @property
    def num_nodes(self) -> int:
        """N, the number of destinations. Sources of another type are not counted."""
        return self.indptr.size - 1

    def offsets(self, start: int, stop: int) -> IdArray:
        """Return the (stop - start + 1,) offsets for nodes ``start`` ... ``stop - 1``."""
        with self.indptr.reader(start=start) as reader:
            return np.ascontiguousarray(reader.take(stop - start + 1), np.int64)

    def sources(self, start: int, stop: int, max_edges: int) -> Iterator[NDArray[Any]]:
        """Yield the in-neighbours at positions ``start`` ... ``stop - 1``, in pieces of at most ``max_edges``."""
        return self.indices.flat(max_edges, start=start, stop=stop)
