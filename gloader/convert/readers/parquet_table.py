"""A Parquet file as a table of numbers and number lists, read batch by batch.

`open_parquet_table` opens the file as a `TypedTable`. A Parquet file consists of row groups, and a row group has pages
for each column. `ParquetBatches` unpacks a few pages at a time, so that memory does not depend on the file's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from gloader.convert.readers.typed_table import TypedTable, naming_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

# Read buffer per column, in bytes.
_BUFFER_BYTES = 1 << 16
# Number of row groups at the file's start. The largest of them gives the size of a group.
_FIRST_GROUPS = 8
# Bytes of memory per column during reading: a page, its dictionary and the packed page, of 1 MiB each.
_PAGE_BYTES = 3 << 20


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file for reading in pieces. By default, pyarrow would buffer all requested columns."""
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES)


def open_parquet_table(path: Path) -> TypedTable:
    """Open a Parquet file as a table. Only its schema and the first lists are read.

    Raises
    ------
    SourceError
        The file is not a Parquet file, or two columns share a name.
    """
    with naming_file(path, "is not a Parquet file, or is truncated"):
        with open_parquet(path) as file:
            batches = ParquetBatches(
                path=path,
                schema=file.schema_arrow,
                num_rows=file.metadata.num_rows,
                group_bytes=_group_bytes(file),
            )
        return TypedTable.over(batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetBatches:
    """A Parquet file, as a `BatchFile`."""

    path: Path
    schema: pa.Schema
    num_rows: int
    group_bytes: int  # unpacked bytes of a row group

    def batches(self, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the named columns in batches; see `BatchFile.batches`."""
        with naming_file(self.path, "is truncated or corrupt"), open_parquet(self.path) as file:
            yield from file.iter_batches(batch_size=max_rows, columns=list(columns), use_threads=False)

    def reading_bytes(self, num_columns: int) -> int:
        """Return the memory for a packed and an unpacked page per column."""
        return min(_PAGE_BYTES * num_columns, 2 * self.group_bytes)


def _group_bytes(file: pq.ParquetFile) -> int:
    """Return the unpacked bytes in the largest of the first row groups."""
    metadata = file.metadata
    # The size is read per group, because reading a damaged column's metadata would crash pyarrow.
    groups = (metadata.row_group(each) for each in range(min(metadata.num_row_groups, _FIRST_GROUPS)))
    return max([0, *(each.total_byte_size for each in groups)])
