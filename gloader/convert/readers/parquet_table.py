"""A Parquet file as a stream of numbers, one batch of rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from gloader.core.malformed import MALFORMED
from gloader.errors import GloaderError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gloader.convert.readers.tables import Columns, Number, TableError

# Rows in memory at a time: 2 MB of two int64 columns, and large enough for pyarrow's own speed.
_BATCH_ROWS = 1 << 17
_DAMAGED = (pa.ArrowException, OSError, *MALFORMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetTable:
    """The numeric columns of a Parquet file."""

    path: Path
    names: tuple[str, ...]
    num_rows: int

    @classmethod
    def open(cls, path: Path) -> ParquetTable:
        """Read the file's schema.

        Raises
        ------
        SourceError
            The file is not a Parquet file.
        """
        try:
            with pq.ParquetFile(path) as file:
                return cls(path=path, names=tuple(file.schema_arrow.names), num_rows=file.metadata.num_rows)
        except _DAMAGED as error:
            raise SourceError(f"{path} is not a Parquet file, or is truncated: {error}") from error

    @property
    def has_names(self) -> bool:
        """Always."""
        return True

    def is_integer(self, column: str) -> bool:
        """Whether a column holds integers; raises as `open`."""
        try:
            with pq.ParquetFile(self.path) as file:
                return bool(pa.types.is_integer(file.schema_arrow.field(column).type))
        except _DAMAGED as error:
            raise SourceError(f"{self.path} is truncated or corrupt: {error}") from error

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Yield the named ``columns``; see `TableFile.read`. Only integer columns can be read as int64."""
        done = 0
        try:
            with pq.ParquetFile(self.path) as file:
                # Before the first row is read: a wrong type is a wrong column, not a wrong value.
                for name, number in columns.items():
                    self._check_type(name, file.schema_arrow.field(name).type, number, error)
                for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(columns)):
                    arrays = {name: batch.column(name) for name in columns}
                    self._check_nulls(arrays, done, error)
                    yield tuple(array.to_numpy(zero_copy_only=False) for array in arrays.values())
                    done += batch.num_rows
        except GloaderError:
            raise
        except _DAMAGED as failure:
            raise SourceError(f"{self.path} is truncated or corrupt: {failure}") from failure

    def _check_type(self, name: str, kind: pa.DataType, number: Number, error: TableError) -> None:
        is_date = number == "time" and (pa.types.is_timestamp(kind) or pa.types.is_date(kind))
        is_fitting = pa.types.is_integer(kind) or (number != "int64" and pa.types.is_floating(kind))
        if not is_fitting and not is_date:
            wanted = {"int64": "integers", "time": "seconds or timestamps"}.get(number, "numbers")
            raise error(f"{self.path}: column {name!r} has type {kind}; it must hold {wanted}")

    def _check_nulls(self, columns: dict[str, Any], done: int, error: TableError) -> None:
        for name, column in columns.items():
            if column.null_count:
                row = done + column.is_null().index(pa.scalar(value=True)).as_py()
                raise error(f"{self.path}: row {row}, column {name!r} is null; every row needs a value")
