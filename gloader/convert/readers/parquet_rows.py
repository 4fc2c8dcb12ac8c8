"""A column of lists of numbers in a Parquet file, all of one length: a row of features in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gloader.core.malformed import MALFORMED
from gloader.errors import GloaderError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_DAMAGED = (pa.ArrowException, OSError, *MALFORMED)
# Numbers in memory at a time.
_BATCH_NUMBERS = 1 << 18


def is_list_column(path: Path, column: str) -> bool:
    """Whether ``column`` of the Parquet file at ``path`` holds lists; raises SourceError where it cannot be read."""
    try:
        with pq.ParquetFile(path) as file:
            return _is_list(file.schema_arrow.field(column).type)
    except _DAMAGED as failure:
        raise SourceError(f"{path} is truncated or corrupt: {failure}") from failure


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetRows:
    """The lists of numbers of one column as float32 rows, each as long as the first."""

    path: Path
    column: str
    num_rows: int
    dim: int

    @classmethod
    def open(cls, path: Path, column: str) -> ParquetRows:
        """Read the type of the column and its first list.

        Raises
        ------
        SourceError
            The column holds no lists of numbers, or the file is truncated or corrupt.
        """
        try:
            with pq.ParquetFile(path) as file:
                kind = file.schema_arrow.field(column).type
                values = kind.value_type if _is_list(kind) else kind
                if not _is_list(kind) or not (pa.types.is_integer(values) or pa.types.is_floating(values)):
                    raise SourceError(
                        f"{path}: column {column!r} has type {kind}; it must hold lists of numbers"
                    )
                first = next(file.iter_batches(batch_size=1, columns=[column]), None)
                head = None if first is None or not first.num_rows else first.column(0)[0].as_py()
                return cls(path=path, column=column, num_rows=file.metadata.num_rows, dim=len(head or [0]))
        except GloaderError:
            raise
        except _DAMAGED as failure:
            raise SourceError(f"{path} is truncated or corrupt: {failure}") from failure

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks."""
        return np.dtype(np.float32)

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``.

        Raises
        ------
        ShapeError
            A list has another length than the first, or is missing; names the row.
        SourceError
            A number is missing, or the file is truncated or corrupt.
        """
        done = 0
        size = max(1, min(max_rows, _BATCH_NUMBERS // self.dim))
        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(batch_size=size, columns=[self.column]):
                    yield self._rows(batch.column(0), done)
                    done += batch.num_rows
        except GloaderError:
            raise
        except _DAMAGED as failure:
            raise SourceError(f"{self.path} is truncated or corrupt: {failure}") from failure

    def _rows(self, lists: Any, done: int) -> NDArray[np.generic]:
        lengths = lists.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != self.dim)
        if wrong.size:
            length = int(lengths[wrong[0]])
            said = "no list" if length < 0 else f"a list of {length}"
            raise ShapeError(
                f"{self.path}: row {done + int(wrong[0])} has {said} in column {self.column!r}; row 0 has one of "
                f"{self.dim}, and every row has as many"
            )
        values = lists.flatten()
        if values.null_count:
            row = done + values.is_null().index(pa.scalar(value=True)).as_py() // self.dim
            raise SourceError(
                f"{self.path}: row {row} has a null in column {self.column!r}; every entry is a number"
            )
        return np.ascontiguousarray(values.to_numpy(zero_copy_only=False), np.float32).reshape(-1, self.dim)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
