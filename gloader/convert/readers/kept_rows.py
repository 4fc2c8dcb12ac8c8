"""A part of the rows of a file with stored types, as a table of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gloader.convert.readers.typed_table import TypedTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.readers.typed_table import BatchFile


def kept_rows(table: TypedTable, is_kept: NDArray[np.bool_]) -> TypedTable:
    """Return the rows of a table that the mask ``is_kept`` (n,) selects, as a table."""
    if is_kept.all():
        return table
    count = int(np.count_nonzero(is_kept))
    return TypedTable.over(_KeptRows(file=table.file, is_kept=is_kept, num_rows=count))


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptRows:
    """A file without the rows that a mask leaves out, as a `BatchFile`."""

    file: BatchFile
    is_kept: NDArray[np.bool_]  # (rows of the file,)
    num_rows: int  # selected rows

    @property
    def path(self) -> Path:
        """The file."""
        return self.file.path

    @property
    def schema(self) -> pa.Schema:
        """The columns' names and types, without remarks on the file's own rows."""
        return self.file.schema.remove_metadata()

    def batches(self, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the named columns of the selected rows; see `BatchFile.batches`."""
        first = 0
        for batch in self.file.batches(columns, max_rows):
            chosen = self.is_kept[first : first + batch.num_rows]
            first += batch.num_rows
            if chosen.any():
                yield batch if chosen.all() else batch.filter(pa.array(chosen))

    def reading_bytes(self, num_columns: int) -> int:
        """Return the bytes for reading; see `BatchFile.reading_bytes`."""
        return self.file.reading_bytes(num_columns)
