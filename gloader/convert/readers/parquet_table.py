"""A Parquet file as a stream of numbers and number lists, batch by batch.

`ParquetTable` implements `NumberTable`, the interface through which edges, features and labels are read from tables.
`ParquetTable.open` reads the columns' types. A Parquet file consists of row groups, and a row group has pages for each
column. `ParquetTable.read` unpacks a few pages at a time, so that memory does not depend on the file's size.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from gloader.convert.readers.arrow_columns import FIRST_ROWS, ArrowColumns
from gloader.core.malformed import MALFORMED
from gloader.errors import GloaderError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gloader.convert.readers.table_streams import Columns, Number, TableError

# Read buffer per column, in bytes.
_BUFFER_BYTES = 1 << 16
# Number of row groups at the file's start. The largest of them gives the size of a group.
_FIRST_GROUPS = 8
# Bytes of memory per column during reading: a page, its dictionary and the packed page, of 1 MiB each.
_PAGE_BYTES = 3 << 20
# The errors of pyarrow for a damaged file.
_DAMAGED = (pa.ArrowException, OSError, *MALFORMED)


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file for reading in pieces. By default, pyarrow would buffer all requested columns."""
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetTable:
    """A Parquet file's columns with numbers or number lists."""

    path: Path
    columns: ArrowColumns
    num_rows: int
    group_bytes: int = 0  # unpacked bytes of a row group
    # A Parquet file always has the columns' names, and no header row.
    has_names: bool = field(default=True, init=False)
    counts_columns: bool = field(default=False, init=False)

    @classmethod
    def open(cls, path: Path) -> ParquetTable:
        """Read the file's schema.

        Raises
        ------
        SourceError
            The file is not a Parquet file, or two columns share a name.
        """
        try:
            with open_parquet(path) as file:
                num_rows = file.metadata.num_rows
                columns = ArrowColumns.of(
                    path,
                    file.schema_arrow,
                    num_rows=num_rows,
                    first_rows=lambda names: next(
                        file.iter_batches(batch_size=FIRST_ROWS, columns=names), None
                    ),
                )
                group_bytes = _group_bytes(file)
        except GloaderError:
            raise
        except _DAMAGED as error:
            raise SourceError(f"{path} is not a Parquet file, or is truncated: {error}") from error
        return cls(path=path, columns=columns, num_rows=num_rows, group_bytes=group_bytes)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return self.columns.names

    @property
    def index(self) -> tuple[str, ...]:
        """The columns of a pandas index."""
        return self.columns.index

    @property
    def row_ids(self) -> range | None:
        """A pandas index that is stored as a range instead of a column, or None."""
        return self.columns.row_ids

    def count_rows(self) -> int:
        """Return the number of rows."""
        return self.num_rows

    def kind(self, column: str) -> str:
        """Return a column's kind; see `NumberTable.kind`."""
        return self.columns.kind(column)

    def width(self, column: str) -> int:
        """Return a column's numbers per row: 1, or the length of its lists."""
        return self.columns.width(column)

    def reading_bytes(self, columns: Iterable[str]) -> int:
        """Return the memory to read ``columns``, without the results: a packed and an unpacked page per column."""
        return min(_PAGE_BYTES * sum(1 for _ in columns), 2 * self.group_bytes)

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Yield the named ``columns``; see `NumberTable.read`. Only integer columns can be read as int64."""
        with self._opened() as file:
            # Types are checked before the first row, because a wrong type is a wrong column, not a wrong value.
            self.columns.check_types(
                columns, error=error, batches=lambda names: file.iter_batches(columns=names)
            )
            yield from self.columns.read(self._batches(file, list(columns)), columns, error=error)

    def arrow_type(self, column: str) -> pa.DataType:
        """Return a column's type in the file; see `NumberTable.arrow_type`."""
        return self.columns.arrow_type(column)

    def read_arrow(self, columns: Sequence[str], *, error: TableError) -> Iterator[pa.RecordBatch]:
        """Yield the named ``columns`` as they are stored; see `NumberTable.read_arrow`."""
        del error  # a Parquet file cannot have a bad row
        with self._opened() as file:
            yield from self.columns.read_plain(self._batches(file, columns), columns)

    def _batches(self, file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Return pyarrow's batches of the named columns."""
        rows = self.columns.batch_rows(columns)
        batches: Iterator[pa.RecordBatch] = file.iter_batches(
            batch_size=rows, columns=list(columns), use_threads=False
        )
        return batches

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        """Open the file, and turn pyarrow's errors into a SourceError that names it."""
        try:
            with open_parquet(self.path) as file:
                yield file
        except GloaderError:
            raise
        except _DAMAGED as failure:
            raise SourceError(f"{self.path} is truncated or corrupt: {failure}") from failure


def _group_bytes(file: pq.ParquetFile) -> int:
    """Return the unpacked bytes in the largest of the first row groups."""
    metadata = file.metadata
    # The size is read per group, because reading a damaged column's metadata would crash pyarrow.
    groups = (metadata.row_group(each) for each in range(min(metadata.num_row_groups, _FIRST_GROUPS)))
    return max([0, *(each.total_byte_size for each in groups)])
