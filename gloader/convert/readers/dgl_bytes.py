"""The values that a file of `dgl.save_graphs` is made of, each checked against the bytes that are there."""

from __future__ import annotations

import struct
from math import prod
from typing import IO, TYPE_CHECKING

import numpy as np

from gloader.convert.readers.stored_array import MappedFile, StoredArray
from gloader.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

_ARRAY_MAGIC = 0xDD5E40F096B4A13F
_CPU = 1
# An element by the code of its kind, as of DLPack, and its bits; bits stand for a bfloat16.
_DTYPES = {
    **{(0, bits): f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"<f{bits // 8}" for bits in (16, 32, 64)},
    (4, 16): "<u2",
    **{(5, bits): f"<c{bits // 8}" for bits in (64, 128)},
    (6, 8): "|b1",
}
_BFLOAT = 4
_MAX_NDIM = 32
# Longer names, and more of them, are nobody's: the memory that they may take is bounded by these.
_MAX_NAME_BYTES = 4096
_MAX_ENTRIES = 1 << 14


class DglBytes:
    """The values of a file, taken in order. Not thread-safe; the file is its caller's.

    Parameters
    ----------
    file : open for reading
    path : of it, for messages
    num_bytes : that it has

    Raises
    ------
    SourceError
        From every method: the file ends early, or holds something else; names the file, the byte and what was wrong.
    """

    def __init__(self, file: IO[bytes], path: Path, num_bytes: int) -> None:
        self._file = file
        self._path = path
        self._mapped = MappedFile(path)
        self.num_bytes = num_bytes
        self.position = 0

    def damaged(self, at: int, reason: str) -> SourceError:
        """Return the error that says what is wrong at byte ``at``."""
        return SourceError(
            f"{self._path} is damaged at byte {at}: {reason}; copy it again, or save it again with dgl.save_graphs"
        )

    def skip_to(self, position: int) -> None:
        """Go on at byte ``position``."""
        if not self.position <= position <= self.num_bytes:
            raise self.damaged(self.position, f"it goes on at byte {position} of {self.num_bytes}")
        self.position = position

    def whole(self, what: str, *, is_signed: bool = False, num_bytes: int = 8) -> int:
        """Return the next whole number, called ``what`` in messages."""
        return int.from_bytes(self._take(num_bytes, what), "little", signed=is_signed)

    def magic(self, magic: int, what: str) -> None:
        """Refuse anything but ``magic``, which ``what`` begins with."""
        at, found = self.position, self.whole(f"the signature of {what}")
        if found != magic:
            raise self.damaged(at, f"the signature of {what} is {found:#x}, not {magic:#x}")

    def count(self, what: str) -> int:
        """Return how many entries of at least 8 bytes follow."""
        at, count = self.position, self.whole(f"the number of {what}")
        if count > min(_MAX_ENTRIES, (self.num_bytes - self.position) // 8):
            left = self.num_bytes - self.position
            raise self.damaged(
                at,
                f"the number of {what} is {count}; {left} bytes are left, and at most {_MAX_ENTRIES} are read",
            )
        return count

    def wholes(self, what: str) -> list[int]:
        """Return a list of whole numbers."""
        return [self.whole(what, is_signed=True) for _ in range(self.count(what))]

    def text(self, what: str) -> str:
        """Return a name."""
        at, length = self.position, self.whole(f"the length of {what}")
        if length > _MAX_NAME_BYTES:
            raise self.damaged(at, f"{what} has {length} bytes; at most {_MAX_NAME_BYTES} are read")
        data = self._take(length, what)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.damaged(at, f"{what} is no text: {data[:40]!r}") from None

    def texts(self, what: str) -> list[str]:
        """Return a list of names."""
        return [self.text(f"the name of {what} {number}") for number in range(self.count(what))]

    def columns(self, what: str) -> dict[str, StoredArray]:
        """Return arrays by their names."""
        found: dict[str, StoredArray] = {}
        for number in range(self.count(what)):
            at, name = self.position, self.text(f"the name of array {number} of {what}")
            if name in found:
                raise self.damaged(at, f"{name!r} is twice among the {what}")
            found[name] = self.array(f"{name!r} of {what}")
        return found

    def array(self, what: str) -> StoredArray:
        """Return the next array, whose elements are skipped."""
        self.magic(_ARRAY_MAGIC, what)
        self.whole(f"the reserved bytes of {what}")
        start = self.position
        device, _, ndim, kind, bits, lanes = struct.unpack("<iiiBBH", self._take(16, f"the dtype of {what}"))
        name = _DTYPES.get((kind, bits))
        if device != _CPU or lanes != 1 or name is None:
            raise self.damaged(
                start,
                f"{what} is on device {device} of dtype code {kind}, {bits} bits and {lanes} lanes, which none has",
            )
        if not 0 <= ndim <= _MAX_NDIM:
            raise self.damaged(start, f"{what} has {ndim} dimensions")
        shape = tuple(self.whole(f"the shape of {what}", is_signed=True) for _ in range(ndim))
        dtype, said = np.dtype(name), self.whole(f"the size of {what}", is_signed=True)
        # numpy counts the bytes of an empty array as if no dimension was 0.
        if min(shape, default=0) < 0 or prod(size or 1 for size in shape) * dtype.itemsize >= 2**62:
            raise self.damaged(start, f"{what} has shape {shape}")
        found = StoredArray(
            file=self._mapped, offset=self.position, shape=shape, dtype=dtype, is_bfloat16=kind == _BFLOAT
        )
        if said != found.num_bytes:
            raise self.damaged(start, f"{what} has {said} bytes for shape {shape} and dtype {dtype}")
        if said > self.num_bytes - self.position:
            raise self.damaged(
                start, f"{what} has {said} bytes, of which {self.num_bytes - self.position} are there"
            )
        self.position += said
        return found

    def _take(self, count: int, what: str) -> bytes:
        self._file.seek(self.position)
        data = self._file.read(count)
        if len(data) < count:
            raise self.damaged(self.position, f"it ends within {what}")
        self.position += count
        return data
