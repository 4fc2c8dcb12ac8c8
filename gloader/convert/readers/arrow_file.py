"""Arrow IPC files and streams (``.arrow``, ``.feather`` of version 2, ``.ipc``) as tables.

`open_arrow_table` opens a file as a `TypedTable`. The file is memory-mapped. A record batch that is not compressed is a
view of the file, so that its size does not matter. A compressed batch is unpacked whole, and the memory for it is
counted in `ArrowBatches.reading_bytes`.

Such a file is a sequence of messages: a schema, dictionaries, and record batches with the rows. `message_sizes` reads
only the head of each message, so that the memory for a batch is known before pyarrow reads it. A head is a
*flatbuffer*: a table of fields at offsets that another table, the vtable, lists (Apache Arrow Columnar Format,
"Encapsulated message format").
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.ipc as paipc

from gloader.convert.readers.npy_file import MappedFile
from gloader.convert.readers.typed_table import TypedTable, naming_file
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

ARROW_MAGIC: Final = b"ARROW1"  # the first bytes of an IPC file; a stream has none
_FILE_HEAD_BYTES: Final = 8  # the magic and two bytes of padding
_CONTINUATION: Final = 0xFFFFFFFF  # the first four bytes of a message, since version 0.15
_DICTIONARY, _BATCH = 2, 3  # kinds of messages, in Arrow's Message.fbs
_BUFFER_ENTRY_BYTES: Final = 16  # an offset and a length, int64 each
# Positions of the fields in Arrow's flatbuffers: Message (kind, head, length of the body), RecordBatch (rows, buffers,
# compression) and DictionaryBatch (its record batch).
_KIND, _HEAD, _BODY_BYTES = 1, 2, 3
_ROWS, _BUFFERS, _COMPRESSION = 0, 2, 3
_DICTIONARY_ROWS: Final = 1
# First bytes of Feather's version 1, an older format.
_OLD_FEATHER: Final = b"FEA1"
_PROBLEM: Final = "is no Arrow file, or is truncated or corrupt"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSizes:
    """Rows and memory of a file's messages."""

    num_rows: int  # rows of all record batches
    unpacked_bytes: int  # memory for the largest compressed batch, unpacked; 0 if no batch is compressed
    dictionary_bytes: int  # memory for all dictionaries, unpacked


def message_sizes(content: Buffer, path: Path) -> MessageSizes:
    """Read the heads of all messages in a file. Pure, except that ``content`` may be a mapped file.

    Parameters
    ----------
    content : (B,) the file's bytes
    path : the file, for messages

    Raises
    ------
    SourceError
        The file is not an Arrow file or stream, or is truncated. The message names the byte.
    """
    data = memoryview(content)
    at = _FILE_HEAD_BYTES if bytes(data[: len(ARROW_MAGIC)]) == ARROW_MAGIC else 0
    num_rows = unpacked = dictionaries = 0
    try:
        while at + 4 <= len(data):
            start = at
            (size,) = struct.unpack_from("<I", data, at)
            at += 4
            if size == _CONTINUATION:
                (size,) = struct.unpack_from("<I", data, at)
                at += 4
            if size == 0:  # the end of the stream
                break
            message = _Table.root(data[at : at + size])
            body = at + size
            at = body + message.number(_BODY_BYTES, "<q")
            if not start < at <= len(data):
                raise SourceError(f"{path} is truncated: its message at byte {start} ends at byte {at}")
            kind = message.number(_KIND, "<B")
            if kind == _BATCH:
                batch = message.table(_HEAD)
                num_rows += batch.number(_ROWS, "<q")
                if batch.has(_COMPRESSION):
                    unpacked = max(unpacked, _unpacked_bytes(batch, data, body))
            elif kind == _DICTIONARY:
                entries = message.table(_HEAD).table(_DICTIONARY_ROWS)
                dictionaries += _unpacked_bytes(entries, data, body)
    except struct.error as error:
        raise SourceError(f"{path} is no Arrow file, or is truncated near byte {at}: {error}") from error
    return MessageSizes(num_rows=num_rows, unpacked_bytes=unpacked, dictionary_bytes=dictionaries)


def _unpacked_bytes(batch: _Table, data: memoryview, body: int) -> int:
    """Return the bytes of a batch's buffers after unpacking. ``body`` is the body's first byte in the file."""
    at, count = batch.vector(_BUFFERS)
    total = 0
    for number in range(count):
        offset, length = struct.unpack_from("<qq", batch.data, at + _BUFFER_ENTRY_BYTES * number)
        # A compressed buffer begins with its unpacked length. The length -1 means that it is stored as it is.
        unpacked = length
        if batch.has(_COMPRESSION) and length > 0:
            (unpacked,) = struct.unpack_from("<q", data, body + offset)
        total += length if unpacked < 0 else unpacked
    return total


@dataclass(frozen=True, slots=True)
class _Table:
    """A table in a flatbuffer."""

    data: memoryview  # the flatbuffer
    at: int  # the table's first byte

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        """Return the outermost table."""
        return cls(data, struct.unpack_from("<I", data)[0])

    def has(self, number: int) -> bool:
        """True if the table has field ``number``."""
        return self._field(number) > 0

    def number(self, number: int, form: str) -> int:
        """Return the number in a field; ``form`` is its type for `struct`. An absent field is 0."""
        at = self._field(number)
        return int(struct.unpack_from(form, self.data, at)[0]) if at else 0

    def table(self, number: int) -> _Table:
        """Return the table in a field. Raises struct.error if the field is absent."""
        return _Table(self.data, self._target(number))

    def vector(self, number: int) -> tuple[int, int]:
        """Return a vector's first byte and its length. An absent field is an empty vector."""
        if not self.has(number):
            return 0, 0
        at = self._target(number)
        return at + 4, struct.unpack_from("<I", self.data, at)[0]

    def _target(self, number: int) -> int:
        """Return the position that a field refers to."""
        at = self._field(number)
        if not at:
            raise struct.error(f"field {number} is absent")
        return at + int(struct.unpack_from("<I", self.data, at)[0])

    def _field(self, number: int) -> int:
        """Return the position of a field, or 0 if it is absent."""
        table = self.at - int(struct.unpack_from("<i", self.data, self.at)[0])
        # Python's `struct` would count a negative position from the end.
        if table < 0:
            raise struct.error("a position is negative")
        (size,) = struct.unpack_from("<H", self.data, table)
        entry = 4 + 2 * number
        offset = struct.unpack_from("<H", self.data, table + entry)[0] if entry < size else 0
        return self.at + offset if offset else 0
