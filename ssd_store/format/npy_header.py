"""The header page of every array file: a plain ``.npy`` header, padded so that data starts at byte 4096."""

from __future__ import annotations

from typing import Final

import numpy as np

from gloader.errors import FormatError

DATA_OFFSET: Final = 4096
MAX_NDIM: Final = 4
MAX_DATA_BYTES: Final = 2**62

# Logical dtype -> how it is stored. bfloat16 has no numpy type, so its bits are stored as uint16.
STORED_DTYPES: Final[dict[str, str]] = {
    "bfloat16": "<u2",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "int8": "|i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "|u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
}
_MAGIC = b"\x93NUMPY\x01\x00"
_PREFIX_BYTES = len(_MAGIC) + 2


def stored_dtype(logical: str) -> np.dtype[np.generic]:
    """Return the numpy dtype in which elements of dtype ``logical`` lie on disk. Pure.

    Raises
    ------
    FormatError
        The dtype is not one that a store can hold.
    """
    try:
        return np.dtype(STORED_DTYPES[logical])
    except (KeyError, TypeError):
        raise FormatError(
            f"dtype {repr(logical)[:100]} cannot be stored; allowed: {', '.join(STORED_DTYPES)}"
        ) from None


def data_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of an array's elements, padding not included. Pure; exact for any size.

    Raises
    ------
    FormatError
        The dtype is unknown, a dimension is negative, or the size exceeds 2**62 bytes.
    """
    if len(shape) > MAX_NDIM:
        raise FormatError(
            f"shape {repr(shape)[:100]} has {len(shape)} dimensions; at most {MAX_NDIM} are allowed"
        )
    # Python ints: a product of huge lengths must not wrap before it is compared.
    total = stored_dtype(dtype).itemsize
    for length in shape:
        if not 0 <= length <= MAX_DATA_BYTES:
            raise FormatError(f"shape {shape} holds {length}; each length must lie in 0..2**62")
        total *= length
    if total > MAX_DATA_BYTES:
        raise FormatError(f"an array of shape {shape} and dtype {dtype} needs {total} bytes, above 2**62")
    return total


def file_bytes(num_bytes: int) -> int:
    """Return the size of the file that holds ``num_bytes`` of elements: header page and whole pages. Pure."""
    return DATA_OFFSET + -(-num_bytes // DATA_OFFSET) * DATA_OFFSET


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the 4096 bytes before the data: the only header that an array of this type may have. Pure.

    Raises
    ------
    FormatError
        As `data_bytes`.
    """
    data_bytes(dtype, shape)  # checks both
    # Written by hand: numpy's own header differs by version, and this one is compared byte by byte.
    lengths = ", ".join(str(int(length)) for length in shape) + ("," if len(shape) == 1 else "")
    text = f"{{'descr': '{STORED_DTYPES[dtype]}', 'fortran_order': False, 'shape': ({lengths}), }}"
    padded = text.ljust(DATA_OFFSET - _PREFIX_BYTES - 1) + "\n"
    return _MAGIC + len(padded).to_bytes(2, "little") + padded.encode("ascii")
