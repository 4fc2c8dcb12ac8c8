"""Columns of keys: the kind that all key columns of a node type share, and their values as chunks of bytes.

A key column is a column of a table that names nodes. All key columns of a node type must have the same kind, so that
equal names are equal bytes. A text file has no types, so its columns adapt to the typed columns of other files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.key_kernels import parse_integers, parse_uuids
from gloader.core.keys import KEY_BYTES, KeyChunk, KeyKind, fixed_chunk, interleaved, readonly
from gloader.core.malformed import shown
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pyarrow as pa

__all__ = ["KEY_BYTES", "KeyChunk", "KeyKind", "interleaved", "key_chunk", "key_kind"]

_ASCII: Final = 128  # the number of ASCII characters, which are one byte each in UTF-8
_NOUNS: Final[dict[KeyKind, str]] = {
    "int64": "integers",
    "uint64": "integers of at least 0",
    "text": "texts",
    "uuid": "UUIDs",
}


def key_kind(
    columns: Sequence[tuple[str, pa.DataType]], *, text_places: Collection[str] = frozenset()
) -> KeyKind:
    """Return the kind of the keys of one node type. Pure.

    Parameters
    ----------
    columns : the place and the type of each key column, such as ("users.parquet: column id", pa.int64())
    text_places : the places that are in text files. Their type is only text, so they adapt to the other columns. If all
        columns are in text files, keys are texts: "007" and "7" are two keys

    Raises
    ------
    SourceError
        A column has a type that no key has, or two columns have different kinds. The message has the places.
    """
    typed = [
        (place, arrow_type, _kind_of(place, arrow_type))
        for place, arrow_type in columns
        if place not in text_places
    ]
    if not typed:
        return "text"
    first_place, first_type, kind = typed[0]
    for place, arrow_type, other in typed[1:]:
        if {kind, other} == {"int64", "uint64"}:
            # A number is the same key in both, and a negative one is refused with its row.
            kind = "uint64"
        elif other != kind:
            raise SourceError(
                f"{first_place} has keys of type {first_type} ({_NOUNS[kind]}), and {place} has keys of type "
                f"{arrow_type} ({_NOUNS[other]}); both name nodes of one type, so both must have one type: cast one of "
                f'them, in Python table.set_column(i, "NAME", table["NAME"].cast("{_cast(kind)}"))'
            )
    return kind


def key_chunk(column: pa.Array[Any], kind: KeyKind, *, first_row: int, where: str) -> KeyChunk:
    """Return the keys of a column as bytes. Texts are not copied. Pure.

    Parameters
    ----------
    column : (n,) keys; texts become numbers or UUIDs if ``kind`` asks for them
    kind : the result of `key_kind`
    first_row : number of the first row in the table, for messages
    where : the column's place, for messages

    Raises
    ------
    SourceError
        A key is null, or not of the kind. The message has the row and the value.
    """
    import pyarrow as pa

    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if isinstance(column, pa.ExtensionArray):  # such as arrow.uuid
        column = column.storage
    if column.null_count:
        row = first_row + int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise SourceError(
            f"{where}: row {row} has no key; every row needs one: leave such rows out, or give them keys"
        )
    if pa.types.is_integer(column.type):
        return _integer_chunk(column, kind, first_row, where)
    if pa.types.is_fixed_size_binary(column.type):
        data = _bytes_of(column.buffers()[1])
        start = column.offset * KEY_BYTES["uuid"]
        return fixed_chunk(
            data[start : start + len(column) * KEY_BYTES["uuid"]].reshape(-1, KEY_BYTES["uuid"])
        )
    return _as_kind(_text_chunk(column, first_row, where), kind, first_row, where)


def _kind_of(place: str, arrow_type: pa.DataType) -> KeyKind:
    """Return the kind of a typed column, or raise SourceError."""
    import pyarrow as pa

    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    # In a release before 18, pyarrow has no type of UUIDs.
    storage = getattr(arrow_type, "storage_type", arrow_type)
    if pa.types.is_uint64(storage):
        return "uint64"
    if pa.types.is_integer(storage):
        return "int64"
    is_view = getattr(pa.types, "is_string_view", lambda _: False)
    if pa.types.is_string(storage) or pa.types.is_large_string(storage) or is_view(storage):
        return "text"
    if pa.types.is_fixed_size_binary(storage) and storage.byte_width == KEY_BYTES["uuid"]:
        return "uuid"
    whole = ' ("int64", if all keys are whole numbers)' if pa.types.is_floating(storage) else ""
    raise SourceError(
        f"{place} has type {arrow_type}, which no key has: keys are integers, texts, or UUIDs (16 bytes); write the "
        f'column as one of these, in Python with .cast("string"){whole}'
    )


def _cast(kind: KeyKind) -> str:
    """Return the name of the arrow type to cast a column to."""
    return {"text": "string", "uuid": "string"}.get(kind, kind)


def _integer_chunk(column: pa.Array[Any], kind: KeyKind, first_row: int, where: str) -> KeyChunk:
    """Return the keys of a column of integers."""
    values: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
    if kind == "uint64" and values.dtype.kind == "i":
        wrong = np.flatnonzero(values < 0)
        if len(wrong):
            raise SourceError(
                f"{where}: row {first_row + int(wrong[0])} has the key {values[wrong[0]]}, and another file has keys "
                "of type uint64, which has no negative numbers: write the keys as int64 in both"
            )
    # Any number that is in both types has the same bits in both.
    return fixed_chunk(values.astype(np.uint64 if kind == "uint64" else np.int64, copy=False))


def _text_chunk(column: pa.Array[Any], first_row: int, where: str) -> KeyChunk:
    """Return the keys of a column of texts, without a copy of the bytes."""
    import pyarrow as pa

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):  # a string view
        column = column.cast(pa.large_string())
    _, offsets, data = column.buffers()
    if not len(column):
        return KeyChunk(data=np.empty(0, np.uint8), starts=np.zeros(1, np.int64))
    width = np.int64 if pa.types.is_large_string(column.type) else np.int32
    starts = _bytes_of(offsets).view(width)[column.offset : column.offset + len(column) + 1]
    chunk = KeyChunk(data=_bytes_of(data), starts=starts.astype(np.int64, copy=width is np.int32))
    if _is_ascii(chunk):
        return chunk
    try:
        column.validate(full=True)  # files of other programs may have any bytes and places
    except pa.ArrowInvalid:
        for i in range(len(chunk)):
            try:
                chunk.key(i).decode()
            except UnicodeDecodeError as error:
                raise SourceError(
                    f"{where}: row {first_row + i} has the bytes {shown(chunk.key(i))}, which are no UTF-8 text: "
                    "write the keys as UTF-8"
                ) from error
        raise
    return chunk


def _is_ascii(chunk: KeyChunk) -> bool:
    """Return True if all bytes of the keys are ASCII, and all places are right. Pure."""
    starts, data = chunk.starts, chunk.data
    if starts[0] < 0 or starts[-1] > len(data) or (starts[1:] < starts[:-1]).any():
        return False
    return int(data[starts[0] : starts[-1]].max(initial=0)) < _ASCII


def _as_kind(texts: KeyChunk, kind: KeyKind, first_row: int, where: str) -> KeyChunk:
    """Return keys from texts, or raise SourceError for the first text that is no key of the kind."""
    if kind == "text":
        return texts
    data, starts = readonly(texts.data), readonly(texts.starts)
    if kind == "uuid":
        uuids = np.empty((len(texts), KEY_BYTES[kind]), np.uint8)
        wrong, chunk = int(parse_uuids(data, starts, uuids)), fixed_chunk(uuids)
        rule = "a UUID has 8-4-4-4-12 hexadecimal digits"
    else:
        numbers = np.empty(len(texts), np.uint64)
        wrong, chunk = int(parse_integers(data, starts, kind == "int64", numbers)), fixed_chunk(numbers)
        rule = f"{kind} keys are whole numbers in their shortest form, such as 7 and not 007, +7 or 7.0"
    if wrong >= 0:
        text = shown(texts.key(wrong).decode(errors="replace"))
        raise SourceError(
            f"{where}: row {first_row + wrong} has the key {text}, and another file has {_NOUNS[kind]} as keys; {rule}"
            ". Write the keys as texts in both, or in one form in both"
        )
    return chunk


def _bytes_of(buffer: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of an arrow buffer, which is None if there are none, without a copy."""
    return np.frombuffer(b"" if buffer is None else buffer, np.uint8)
