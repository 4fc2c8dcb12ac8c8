"""Arrow IPC files and streams (``.arrow``, ``.feather`` of version 2, ``.ipc``) as tables.

`open_arrow_table` opens a file as a `TypedTable`. The file is memory-mapped. A record batch that is not compressed is a
view of the file, so that its size does not matter. A compressed batch is unpacked whole; its memory is known from the
file's messages and counted in `ArrowBatches.reading_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.ipc as paipc

from gloader.convert.readers.arrow_messages import ARROW_MAGIC, message_sizes
from gloader.convert.readers.npy_file import MappedFile
from gloader.convert.readers.typed_table import TypedTable, naming_file
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# First bytes of Feather's version 1, an older format.
_OLD_FEATHER = b"FEA1"
_PROBLEM = "is no Arrow file, or is truncated or corrupt"


def open_arrow_table(path: Path) -> TypedTable:
    """Open an Arrow file or stream as a table. Only the heads of its messages and the first lists are read.

    Raises
    ------
    SourceError
        The file is not an Arrow file, is truncated, or two columns share a name.
    """
    with naming_file(path, _PROBLEM):
        return TypedTable.over(open_arrow_batches(path))


def open_arrow_batches(path: Path) -> ArrowBatches:
    """Open an Arrow file or stream as its batches. Raises as `open_arrow_table`, except for names."""
    with naming_file(path, _PROBLEM):
        num_bytes = path.stat().st_size
        content: Any = MappedFile(path).part(0, num_bytes) if num_bytes else b""
        if bytes(content[:4]) == _OLD_FEATHER:
            raise SourceError(
                f"{path} is a Feather file of version 1; pandas.read_feather(file).to_parquet('table.parquet')"
            )
        sizes = message_sizes(content, path)
        is_stream = bytes(content[: len(ARROW_MAGIC)]) != ARROW_MAGIC
        return ArrowBatches(
            path=path,
            stored=path,
            schema=_reader(content, is_stream=is_stream, columns=None).schema,
            num_rows=sizes.num_rows,
            unpacked_bytes=sizes.unpacked_bytes + sizes.dictionary_bytes,
            is_stream=is_stream,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowBatches:
    """An Arrow file or stream, as a `BatchFile`."""

    path: Path  # the file's name for messages
    stored: Path  # the file
    schema: pa.Schema
    num_rows: int
    unpacked_bytes: int  # memory for dictionaries and the largest compressed batch
    is_stream: bool  # True for the stream format, which has no list of batches at its end

    def batches(self, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the named columns in batches; see `BatchFile.batches`."""
        with naming_file(self.path, _PROBLEM):
            content = MappedFile(self.stored).part(0, self.stored.stat().st_size)
            numbers = [self.schema.get_field_index(name) for name in columns]
            reader = _reader(content, is_stream=self.is_stream, columns=numbers)
            for batch in reader if self.is_stream else _batches_of(reader):
                for first in range(0, batch.num_rows, max_rows):
                    part = batch.slice(first, max_rows)
                    # A damaged file may have offsets beyond its buffers, and reading there ends the process.
                    part.validate(full=True)
                    yield part

    def reading_bytes(self, num_columns: int) -> int:
        """Return the memory for dictionaries and for unpacking the largest batch, of any columns."""
        del num_columns
        return self.unpacked_bytes


def _reader(content: Any, *, is_stream: bool, columns: list[int] | None) -> Any:
    """Return pyarrow's reader of a file's bytes, for the columns with these numbers, or for all."""
    source = pa.py_buffer(content)
    options = paipc.IpcReadOptions(included_fields=columns, use_threads=False)
    opened = paipc.open_stream if is_stream else paipc.open_file
    return opened(source, options=options)


def _batches_of(reader: Any) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a file one after another."""
    return map(reader.get_batch, range(reader.num_record_batches))
