"""A column of lists of numbers in a Parquet file, all of one length: a matrix, of ids or of features."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gloader.convert.readers.parquet_table import open_parquet
from gloader.core.malformed import MALFORMED
from gloader.errors import GloaderError, GraphError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.readers.tables import TableError

_DAMAGED = (pa.ArrowException, OSError, *MALFORMED)
# Numbers in memory at a time.
_BATCH_NUMBERS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """What the lists of a column hold."""

    dtype: np.dtype[np.generic]  # that they are returned as
    is_whole: bool  # floats are refused
    said: str  # of one, for messages
    error: TableError  # where they are something else


NODE_IDS: Final = Entries(dtype=np.dtype(np.int64), is_whole=True, said="node id", error=GraphError)
NUMBERS: Final = Entries(dtype=np.dtype(np.float32), is_whole=False, said="number", error=SourceError)


def is_list_column(path: Path, column: str) -> bool:
    """Whether ``column`` of the Parquet file at ``path`` holds lists; raises SourceError where it cannot be read."""
    with _reading(path) as file:
        return _is_list(file.schema_arrow.field(column).type)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetLists:
    """The lists of one column as rows, each as long as the first; a `FeatureStream`."""

    path: Path
    column: str
    entries: Entries
    num_rows: int
    dim: int

    @classmethod
    def open(cls, path: Path, column: str, entries: Entries) -> ParquetLists:
        """Read the type of the column and its first list.

        Raises
        ------
        GraphError, SourceError
            The column holds no lists of such ``entries``.
        ShapeError
            The first list is empty or missing.
        SourceError
            The file is truncated or corrupt.
        """
        with _reading(path) as file:
            kind = file.schema_arrow.field(column).type
            if not _is_list(kind) or not _holds(kind.value_type, entries):
                raise entries.error(
                    f"{path}: column {column!r} has type {kind}; it must hold lists of {entries.said}s"
                )
            first = next(file.iter_batches(batch_size=1, columns=[column]), None)
            head = [0] if first is None or not first.num_rows else first.column(0)[0].as_py()
            if not head:
                said = "no list" if head is None else "an empty list"
                raise ShapeError(
                    f"{path}: row 0 has {said} in column {column!r}; every row has the same number of {entries.said}s"
                )
            return cls(
                path=path, column=column, entries=entries, num_rows=file.metadata.num_rows, dim=len(head)
            )

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks."""
        return self.entries.dtype

    def chunks(self, max_rows: int) -> Iterator[NDArray[Any]]:
        """Yield the lists in order as (n, dim) arrays, n <= ``max_rows``.

        Raises
        ------
        ShapeError
            A list has another length than the first, or is missing; names the row.
        GraphError, SourceError
            An entry is missing; names the row.
        SourceError
            The file is truncated or corrupt.
        """
        done = 0
        size = max(1, min(max_rows, _BATCH_NUMBERS // self.dim))
        with _reading(self.path) as file:
            for batch in file.iter_batches(batch_size=size, columns=[self.column]):
                yield self._rows(batch.column(0), done)
                done += batch.num_rows

    def _rows(self, lists: Any, done: int) -> NDArray[np.generic]:
        lengths = lists.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != self.dim)
        if wrong.size:
            length = int(lengths[wrong[0]])
            said = "no list" if length < 0 else f"a list of {length}"
            raise ShapeError(
                f"{self.path}: row {done + int(wrong[0])} has {said} in column {self.column!r}; row 0 has "
                f"{self.dim}, and every row has the same number"
            )
        values = lists.flatten()
        if values.null_count:
            row = done + values.is_null().index(pa.scalar(value=True)).as_py() // self.dim
            raise self.entries.error(
                f"{self.path}: row {row} has a null in column {self.column!r}; every entry is a {self.entries.said}"
            )
        return np.ascontiguousarray(values.to_numpy(zero_copy_only=False), self.dtype).reshape(-1, self.dim)


@contextmanager
def _reading(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a file; what is raised while it is read says that it is damaged."""
    try:
        with open_parquet(path) as file:
            yield file
    except GloaderError:
        raise
    except _DAMAGED as failure:
        raise SourceError(f"{path} is truncated or corrupt: {failure}") from failure


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _holds(kind: pa.DataType, entries: Entries) -> bool:
    return bool(pa.types.is_integer(kind) or (not entries.is_whole and pa.types.is_floating(kind)))
