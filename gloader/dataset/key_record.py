"""Rules for the arrays with the keys of a node type, and the check of their values.

A key is the name that a node has in the source: an integer, a text or a UUID (see `gloader.core.keys`). The arrays are:

- ``keys``: int64 or uint64 (N,), uint8 (N, 16) for UUIDs, or the UTF-8 bytes of all texts, uint8 (B,), one after the
  other, with ``keys.offsets`` int64 (N + 1,). They are in the order of the source.
- ``keys.hash``: uint64 (N,) hashes of the keys, ascending; ``keys.node``: int32 or int64 (N,), their nodes.
- ``keys.buckets``: int64 (2**b + 1,). The hashes that begin with the bits i are at ``buckets[i] : buckets[i + 1]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.keys import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gloader.core.keys import KeyKind
    from gloader.ssd_store.format.manifest import ArrayRecord

KEYS, OFFSETS, HASHES, NODES, BUCKETS = "keys", "keys.offsets", "keys.hash", "keys.node", "keys.buckets"
KEY_ARRAYS: Final = (KEYS, OFFSETS, HASHES, NODES, BUCKETS)
KEY_DTYPES: Final[dict[str, tuple[str, ...]]] = {
    KEYS: ("uint8", "int64", "uint64"),
    OFFSETS: ("int64",),
    HASHES: ("uint64",),
    NODES: ("int32", "int64"),
    BUCKETS: ("int64",),
}
# On average, a bucket has 128 to 255 keys, whose hashes take 1 to 2 KiB. So it is on one page of hashes, or on two.
BUCKET_KEYS: Final = 128
_MAX_BITS: Final = 40  # maximum number of bits that choose a bucket


def bucket_bits(num_nodes: int) -> int:
    """Return the number of bits of a hash that choose its bucket. Pure."""
    return max(num_nodes // BUCKET_KEYS, 1).bit_length() - 1


def kind_of(records: Mapping[str, ArrayRecord]) -> KeyKind | None:
    """Return the kind of a type's keys from its array records by plain name, or None without keys. Pure."""
    record = records.get(KEYS)
    if record is None:
        return None
    if record.dtype == "uint8":
        return "uuid" if len(record.shape) == 2 else "text"
    return "int64" if record.dtype == "int64" else "uint64"


def wrong_keys(records: Mapping[str, ArrayRecord], num_nodes: int) -> str | None:
    """Return a message about missing or contradicting arrays of keys, or None. Pure.

    Parameters
    ----------
    records : the type's array records by plain name
    num_nodes : N
    """
    present = [name for name in KEY_ARRAYS if name in records]
    if not present:
        return None
    kind = kind_of(records)
    needed = [name for name in KEY_ARRAYS if name != OFFSETS or kind == "text"]
    if present != needed:
        return f"nodes with keys need the arrays {', '.join(needed)}; there are {', '.join(present)}"
    for name in present:
        if records[name].dtype not in KEY_DTYPES[name]:
            allowed = " or ".join(KEY_DTYPES[name])
            return f"{records[name].name} has dtype {records[name].dtype}; it must be {allowed}"
    num_buckets = records[BUCKETS].shape[0] - 1
    if num_buckets & (num_buckets - 1) or not 1 <= num_buckets <= 2**_MAX_BITS:
        return f"{records[BUCKETS].name} has {num_buckets + 1} entries; it must have a power of 2 and 1 more"
    shapes: dict[str, tuple[int, ...]] = {
        OFFSETS: (num_nodes + 1,),
        HASHES: (num_nodes,),
        NODES: (num_nodes,),
        BUCKETS: (num_buckets + 1,),
        # Texts have any number of bytes.
        KEYS: {"text": records[KEYS].shape[:1], "uuid": (num_nodes, KEY_BYTES["uuid"])}.get(
            str(kind), (num_nodes,)
        ),
    }
    wrong = next((name for name in present if records[name].shape != shapes[name]), None)
    if wrong is None:
        return None
    shape = records[wrong].shape
    return f"shapes contradict each other: {records[wrong].name} {shape} with the keys of {num_nodes} nodes"


class AscendingCheck:
    """The check that offsets, buckets or hashes ascend. The values come in consecutive parts.

    Parameters
    ----------
    name : the array's plain name
    last : the last value of offsets or buckets, whose first value is 0. None allows any first and last value
    """

    def __init__(self, name: str, last: int | None) -> None:
        self._name, self._end = name, last
        self._count = 0  # values checked so far
        self._last: Any = None  # the last one of them

    def wrong(self, values: NDArray[Any]) -> str | None:
        """Check the next ``values`` (n,). Return a message about the first wrong one, or None."""
        first, self._count = self._count, self._count + len(values)
        if not len(values):
            return None
        if first == 0 and self._end is not None and values[0] != 0:
            return f"{self._name}[0] is {values[0]}; it must be 0"
        before = values[0] if self._last is None else self._last
        # The values are compared, not subtracted, because hashes are unsigned.
        falls = np.concatenate([values[:1] < before, values[1:] < values[:-1]])
        self._last = values[-1]
        if not falls.any():
            return None
        index = int(np.argmax(falls))
        above = values[index - 1] if index else before
        return f"{self._name}[{first + index}] = {values[index]} is smaller than {above} before it; it must ascend"

    def wrong_end(self) -> str | None:
        """Return a message about a wrong last value, or None."""
        if self._end is None or self._last == self._end:
            return None
        return f"{self._name}[{self._count - 1}], its end, is {self._last}; it must be {self._end}"
