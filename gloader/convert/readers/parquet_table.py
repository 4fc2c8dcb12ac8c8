"""A Parquet file as a stream of numbers, one batch of rows at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from gloader.convert.readers.column_names import is_unnamed, twice_in
from gloader.core.malformed import MALFORMED, shown
from gloader.errors import GloaderError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gloader.convert.readers.tables import Columns, Number, TableError

# Numbers in memory at a time: 2 MB of two int64 columns, and large enough for pyarrow's own speed.
_BATCH_NUMBERS = 1 << 18
# Of a column, read at a time.
_BUFFER_BYTES = 1 << 16
_DAMAGED = (pa.ArrowException, OSError, *MALFORMED)


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file to be read in pieces; by itself pyarrow would hold all that it is going to read."""
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetTable:
    """The numeric columns of a Parquet file."""

    path: Path
    names: tuple[str, ...]
    num_rows: int
    kinds: tuple[str, ...] = ()  # of the columns, as `TableFile.kind` says them
    index: tuple[str, ...] = ()  # the columns that are the index of a pandas table
    row_ids: range | None = None  # such an index that counts and is no column; None: there is none
    has_names: bool = field(default=True, init=False)
    counts_columns: bool = field(default=False, init=False)

    @classmethod
    def open(cls, path: Path) -> ParquetTable:
        """Read the file's schema.

        Raises
        ------
        SourceError
            The file is not a Parquet file, or has two columns of one name.
        """
        try:
            with open_parquet(path) as file:
                schema, num_rows = file.schema_arrow, file.metadata.num_rows
                index, row_ids = _pandas_index(schema.pandas_metadata, num_rows)
        except _DAMAGED as error:
            raise SourceError(f"{path} is not a Parquet file, or is truncated: {error}") from error
        names = tuple(schema.names)
        twice = twice_in(names)
        if twice is not None:
            raise SourceError(f"{path} has the column {shown(twice)} twice; give each a name of its own")
        return cls(
            path=path,
            names=names,
            num_rows=num_rows,
            kinds=tuple(_kind(each) for each in schema.types),
            index=tuple(name for name in names if name in index or is_unnamed(name)),
            row_ids=row_ids,
        )

    def count_rows(self) -> int:
        """Return the number of rows."""
        return self.num_rows

    def kind(self, column: str) -> str:
        """Return what a column holds; see `TableFile.kind`."""
        return self.kinds[self.names.index(column)]

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Yield the named ``columns``; see `TableFile.read`. Only integer columns can be read as int64."""
        done = 0
        try:
            with open_parquet(self.path) as file:
                # Before the first row is read: a wrong type is a wrong column, not a wrong value.
                for name, number in columns.items():
                    self._check_type(name, file.schema_arrow.field(name).type, number, error)
                batch_rows = max(1, _BATCH_NUMBERS // len(columns))
                for batch in file.iter_batches(batch_size=batch_rows, columns=list(columns)):
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
        is_number = pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        is_fitting = pa.types.is_integer(kind) or (number not in {"int64", "time"} and is_number)
        is_fitting |= number == "time" and pa.types.is_floating(kind)
        if not is_fitting and not is_date:
            wanted = {"int64": "integers", "time": "seconds or timestamps"}.get(number, "numbers")
            raise error(f"{self.path}: column {name!r} has type {kind}; it must hold {wanted}")

    def _check_nulls(self, columns: dict[str, Any], done: int, error: TableError) -> None:
        for name, column in columns.items():
            if column.null_count:
                row = done + column.is_null().index(pa.scalar(value=True)).as_py()
                raise error(f"{self.path}: row {row}, column {name!r} is null; every row needs a value")


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_null(kind):
        return "empty"
    return "number" if pa.types.is_floating(kind) else str(kind).removeprefix("large_")


def _pandas_index(metadata: Any, num_rows: int) -> tuple[frozenset[str], range | None]:
    """Return the columns of the index that pandas wrote down, and one that is no column, if it does not count rows."""
    described = metadata.get("index_columns", []) if isinstance(metadata, dict) else []
    ranges = [each for each in described if isinstance(each, dict) and each.get("kind") == "range"]
    for each in ranges:
        found = range(int(each["start"]), int(each["stop"]), int(each["step"]))
        if len(found) == num_rows and found != range(num_rows):
            return frozenset(), found
    return frozenset(name for name in described if isinstance(name, str)), None
