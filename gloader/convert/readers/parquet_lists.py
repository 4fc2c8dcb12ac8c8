"""A column of lists in a Parquet file, all of one length, as rows of whole numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gloader.core.malformed import MALFORMED
from gloader.errors import GloaderError, GraphError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gloader.types import IdArray

_DAMAGED = (pa.ArrowException, OSError, *MALFORMED)
# Numbers in memory at a time.
_BATCH_NUMBERS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetLists:
    """The lists of integers of one column; each has as many as the first."""

    path: Path
    column: str
    width: int

    @classmethod
    def open(cls, path: Path, column: str) -> ParquetLists:
        """Read the type of the column and its first list.

        Raises
        ------
        GraphError
            The column holds no lists of integers.
        ShapeError
            The first list is empty.
        SourceError
            The file is truncated or corrupt.
        """
        try:
            with pq.ParquetFile(path) as file:
                kind = file.schema_arrow.field(column).type
                is_list = (
                    pa.types.is_list(kind)
                    or pa.types.is_large_list(kind)
                    or pa.types.is_fixed_size_list(kind)
                )
                if not is_list or not pa.types.is_integer(kind.value_type):
                    raise GraphError(
                        f"{path}: column {column!r} has type {kind}; it must hold lists of node ids"
                    )
                first = next(file.iter_batches(batch_size=1, columns=[column]), None)
                width = 1 if first is None or not first.num_rows else len(first.column(0)[0])
        except GloaderError:
            raise
        except _DAMAGED as failure:
            raise SourceError(f"{path} is truncated or corrupt: {failure}") from failure
        if width < 1:
            raise ShapeError(
                f"{path}: row 0 has an empty list in column {column!r}; every row has the same number"
            )
        return cls(path=path, column=column, width=width)

    def chunks(self, max_rows: int) -> Iterator[IdArray]:
        """Yield the lists in order as (n, width) int64, n <= ``max_rows``.

        Raises
        ------
        ShapeError
            A list has another length than the first; names the row.
        GraphError
            A list or a number is missing.
        SourceError
            The file is truncated or corrupt.
        """
        done = 0
        size = max(1, min(max_rows, _BATCH_NUMBERS // self.width))
        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(batch_size=size, columns=[self.column]):
                    yield self._rows(batch.column(0), done)
                    done += batch.num_rows
        except GloaderError:
            raise
        except _DAMAGED as failure:
            raise SourceError(f"{self.path} is truncated or corrupt: {failure}") from failure

    def _rows(self, lists: Any, done: int) -> IdArray:
        lengths = np.array(
            [-1 if each is None else each for each in lists.value_lengths().to_pylist()], np.int64
        )
        wrong = np.flatnonzero(lengths != self.width)
        if wrong.size:
            said = "no list" if lengths[wrong[0]] < 0 else f"a list of {lengths[wrong[0]]}"
            raise ShapeError(
                f"{self.path}: row {done + int(wrong[0])} has {said} in column {self.column!r}; row 0 has "
                f"{self.width}, and every row has the same number"
            )
        values = lists.flatten()
        if values.null_count:
            raise GraphError(
                f"{self.path}: a list in column {self.column!r} has a null; every entry is a node id"
            )
        numbers = values.to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(numbers, np.int64).reshape(-1, self.width)
