"""What is in a spilled record and where: header pages, data pages, and the checksums of both. Pure."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from gloader.errors import FormatError, ShapeError
from gloader.ssd_store.checksum import PAGE_BYTES, num_pages_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

SpillKey: TypeAlias = str | tuple[int, int]  # a name, or (superbatch, batch)

MAGIC: Final = b"GLSPILL\x01"
_PREFIX_BYTES: Final = len(MAGIC) + 8  # the length of the JSON text follows, little-endian
_ARRAY_ALIGNMENT: Final = 64  # a cache line; also fits every dtype
_DTYPE: Final = re.compile(r"[<>|][biufc]\d{1,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """One array of a record."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int  # in the data pages

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLayout:
    """Where everything of a record goes."""

    header: bytes  # whole pages
    arrays: tuple[StoredArray, ...]
    num_pages: int  # header and data

    @property
    def num_bytes(self) -> int:
        """Bytes of the file."""
        return record_file_bytes(self.num_pages)


def describe_key(key: SpillKey) -> str:
    """Return the key as messages name it. Pure."""
    return (
        f"spill record {key!r}" if isinstance(key, str) else f"spill of superbatch {key[0]}, batch {key[1]}"
    )


def plan_record(key: SpillKey, arrays: Mapping[str, NDArray[Any]]) -> RecordLayout:
    """Lay out a record. Pure.

    Raises
    ------
    ShapeError
        An array is not a numpy array of numbers or truth values.
    """
    stored: list[StoredArray] = []
    end = 0
    for name, array in arrays.items():
        kind = getattr(getattr(array, "dtype", None), "str", type(array).__name__)
        if not _DTYPE.fullmatch(kind):
            raise ShapeError(
                f"{describe_key(key)}: array {name!r} is of kind {kind}; a record holds numpy arrays of numbers "
                "or booleans: convert it"
            )
        start = -(-end // _ARRAY_ALIGNMENT) * _ARRAY_ALIGNMENT
        stored.append(StoredArray(name=name, dtype=array.dtype, shape=array.shape, offset=start))
        end = start + array.nbytes
    header = _header(key, stored)
    num_pages = len(header) // PAGE_BYTES + num_pages_of(end)
    return RecordLayout(header=header, arrays=tuple(stored), num_pages=num_pages)


def parse_header(data: NDArray[np.uint8]) -> tuple[SpillKey, int, tuple[StoredArray, ...]]:
    """Read the header of a record whose header and data pages are ``data``. Pure.

    Returns
    -------
    The key, the byte at which the data starts, and the arrays, all of which lie within ``data``

    Raises
    ------
    FormatError
        It is not a header that `plan_record` makes; nothing was allocated.
    """
    text_bytes = int.from_bytes(data[len(MAGIC) : _PREFIX_BYTES].tobytes(), "little")
    start = num_pages_of(_PREFIX_BYTES + text_bytes) * PAGE_BYTES
    if data[: len(MAGIC)].tobytes() != MAGIC or start > data.size:
        raise FormatError(f"not a spill record: it starts with {data[:_PREFIX_BYTES].tobytes()!r}")
    try:
        members = json.loads(data[_PREFIX_BYTES : _PREFIX_BYTES + text_bytes].tobytes())
        arrays = tuple(_stored_array(members["arrays"][name], name) for name in members["arrays"])
        key = _parse_key(members["key"])
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise FormatError(f"the header of a spill record is malformed: {error}") from error
    for array in arrays:
        if array.offset + array.num_bytes > data.size - start:
            raise FormatError(f"array {array.name!r} of a spill record ends behind its data: {array}")
    return key, start, arrays


def record_file_bytes(num_pages: int) -> int:
    """Return the bytes of a record with ``num_pages`` of header and data: those and their checksums. Pure."""
    return (num_pages + num_pages_of(num_pages * 8)) * PAGE_BYTES


def _header(key: SpillKey, arrays: list[StoredArray]) -> bytes:
    members = {
        "key": key if isinstance(key, str) else [int(number) for number in key],
        "arrays": {
            array.name: {"dtype": array.dtype.str, "shape": array.shape, "offset": array.offset}
            for array in arrays
        },
    }
    text = json.dumps(members).encode("ascii")
    data = MAGIC + len(text).to_bytes(8, "little") + text
    return data.ljust(num_pages_of(len(data)) * PAGE_BYTES, b"\0")


def _stored_array(members: dict[str, Any], name: str) -> StoredArray:
    dtype, shape, offset = members["dtype"], members["shape"], members["offset"]
    numbers = [offset, *shape]
    if not all(type(number) is int and 0 <= number < 2**62 for number in numbers):
        raise ValueError(f"array {name!r} has shape {shape} at byte {offset}")
    if not _DTYPE.fullmatch(dtype):
        raise ValueError(f"array {name!r} has dtype {dtype!r}")
    return StoredArray(name=name, dtype=np.dtype(dtype), shape=tuple(shape), offset=offset)


def _parse_key(key: object) -> SpillKey:
    if isinstance(key, str):
        return key
    if isinstance(key, list) and len(key) == 2 and all(type(number) is int for number in key):
        return key[0], key[1]
    raise ValueError(f"its key is {key!r}")
