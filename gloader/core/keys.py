"""Keys of nodes as values: their kinds, chunks of keys, and the conversion from and to numpy arrays.

A *key* is the name of a node in a source: an integer, a text or a UUID. Keys of all kinds are bytes here: an integer
has 8 bytes in little-endian order, a UUID has 16 bytes, and a text is UTF-8. Two keys are equal if their bytes are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args
from uuid import UUID

import numpy as np

from gloader.core.key_kernels import hash_keys, interleave_keys, parse_uuids
from gloader.core.malformed import shown
from gloader.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.types import IdArray

KeyKind: TypeAlias = Literal["int64", "uint64", "text", "uuid"]
KEY_KINDS: Final[tuple[KeyKind, ...]] = get_args(KeyKind)
# Bytes of each key of a kind. Texts have any length.
KEY_BYTES: Final[dict[KeyKind, int]] = {"int64": 8, "uint64": 8, "uuid": 16}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyChunk:
    """n keys as bytes. Key i is ``data[starts[i] : starts[i + 1]]``."""

    data: NDArray[np.uint8]  # (B,)
    starts: IdArray  # (n + 1,) int64, ascending

    def __len__(self) -> int:
        """Return n."""
        return len(self.starts) - 1

    @property
    def num_bytes(self) -> int:
        """Bytes of the n keys."""
        return int(self.starts[-1] - self.starts[0])

    def key(self, index: int) -> bytes:
        """Return the bytes of the key ``index``."""
        return self.data[self.starts[index] : self.starts[index + 1]].tobytes()

    def hashes(self) -> NDArray[np.uint64]:
        """Return the 64-bit hash (n,) of each key. Pure."""
        hashes = np.empty(len(self), np.uint64)
        hash_keys(readonly(self.data), readonly(self.starts), hashes)
        return hashes


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view, so that kernels are compiled for one kind of array. Pure."""
    view = array.view()
    view.flags.writeable = False
    return view


def fixed_chunk(values: NDArray[Any]) -> KeyChunk:
    """Return the chunk of n keys of equal length: (n,) integers of 64 bits, or (n, 16) bytes. Pure."""
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    width = KEY_BYTES["uuid"] if values.ndim == 2 else values.dtype.itemsize
    return KeyChunk(data=data, starts=np.arange(0, len(data) + 1, width, dtype=np.int64))


def text_chunk(texts: Sequence[str]) -> KeyChunk:
    """Return the chunk of the texts' UTF-8 bytes. Pure."""
    encoded = [text.encode() for text in texts]
    starts = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=starts[1:])
    return KeyChunk(data=np.frombuffer(b"".join(encoded), np.uint8), starts=starts)


def interleaved(first: KeyChunk, second: KeyChunk) -> KeyChunk:
    """Return the keys of two chunks in turn: first[0], second[0], first[1], and so on. Pure.

    So the first appearance of a key goes row by row through a relation within one node type.

    Raises
    ------
    ShapeError
        The chunks have different numbers of keys.
    """
    if len(first) != len(second):
        raise ShapeError(
            f"two columns of keys have {len(first)} and {len(second)} rows; they must have as many"
        )
    data = np.empty(first.num_bytes + second.num_bytes, np.uint8)
    starts = np.empty(2 * len(first) + 1, np.int64)
    interleave_keys(
        readonly(first.data),
        readonly(first.starts),
        readonly(second.data),
        readonly(second.starts),
        data,
        starts,
    )
    return KeyChunk(data=data, starts=starts)


def key_text(key: bytes, kind: KeyKind) -> str:
    """Return a key as a message shows it. Pure."""
    if kind == "text":
        return shown(key.decode(errors="replace"))
    if kind == "uuid":
        return str(UUID(bytes=key))
    return str(int.from_bytes(key, "little", signed=kind == "int64"))


def key_values(chunk: KeyChunk, kind: KeyKind) -> NDArray[Any]:
    """Return the keys (n,): int64, uint64, or an object array of str, where a UUID has its canonical text. Pure."""
    if kind in ("int64", "uint64"):
        return chunk.data[chunk.starts[0] : chunk.starts[-1]].copy().view(kind)
    data, bounds = chunk.data[chunk.starts[0] : chunk.starts[-1]].tobytes(), chunk.starts - chunk.starts[0]
    values = np.empty(len(chunk), object)
    for i, (start, stop) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        values[i] = data[start:stop].decode() if kind == "text" else str(UUID(bytes=data[start:stop]))
    return values


def as_key_chunk(keys: Any, kind: KeyKind) -> KeyChunk:
    """Return keys that a user gives as a chunk of the given kind. Pure.

    Parameters
    ----------
    keys : (n,) array, list or other sequence of int, or of str; a UUID may be a `uuid.UUID` or its text
    kind : the kind of the dataset's keys

    Raises
    ------
    ShapeError
        The keys have another dimension, or one of them is not of the kind.
    """
    noun = {"text": "texts", "uuid": "UUIDs"}.get(kind, f"integers that {kind} holds")
    array = keys if isinstance(keys, np.ndarray) else _array(keys)
    if array.ndim != 1:
        raise ShapeError(f"keys must be one-dimensional, not of shape {array.shape}")
    if kind in ("int64", "uint64"):
        return fixed_chunk(_integers(array, kind, noun))
    texts = [str(key) if isinstance(key, UUID) and kind == "uuid" else key for key in array.tolist()]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ShapeError(f"keys are {noun} here; key {index} is {shown(text)}")
    chunk = text_chunk(texts)
    if kind == "text":
        return chunk
    uuids = np.empty((len(texts), KEY_BYTES["uuid"]), np.uint8)
    wrong = int(parse_uuids(readonly(chunk.data), readonly(chunk.starts), uuids))
    if wrong >= 0:
        raise ShapeError(f"keys are {noun} here; key {wrong} is {shown(texts[wrong])}")
    return fixed_chunk(uuids)


def _array(keys: Any) -> NDArray[Any]:
    """Return a sequence as an array whose elements keep their types."""
    if isinstance(keys, str | bytes):
        raise ShapeError(f"keys must be a sequence of keys, not the one text {shown(keys)}")
    items = list(keys)
    array = np.empty(len(items), object)
    array[:] = items
    return array


def _integers(array: NDArray[Any], kind: KeyKind, noun: str) -> NDArray[Any]:
    """Return integers as the 64-bit dtype ``kind``, or raise ShapeError."""
    limits = np.iinfo(kind)
    if array.dtype.kind in "iu":
        wrong = np.flatnonzero((array < 0) if kind == "uint64" else (array > limits.max))
    else:
        wrong = np.flatnonzero(
            [
                not isinstance(key, int | np.integer)
                or isinstance(key, bool)
                or not int(limits.min) <= int(key) <= int(limits.max)
                for key in array.tolist()
            ]
        )
    if len(wrong):
        raise ShapeError(f"keys are {noun} here; key {wrong[0]} is {shown(array.tolist()[wrong[0]])}")
    return array.astype(kind)
