"""The messages in an Arrow IPC file or stream: how many rows they have, and how much memory a batch takes.

Such a file is a sequence of messages: a schema, dictionaries, and record batches with the rows. pyarrow reads a batch
whole, and unpacks it if it is compressed. `message_sizes` reads only the head of each message, which is a *flatbuffer*:
a table of fields at offsets that another table, the vtable, lists (Apache Arrow Columnar Format, "Encapsulated message
format"). So the memory for a batch is known before pyarrow reads it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.errors import SourceError

if TYPE_CHECKING:
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
