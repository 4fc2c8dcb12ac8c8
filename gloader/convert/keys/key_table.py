"""Different keys in memory, each with its node id: a hash table within a bound of bytes.

`KeyTable` looks up the records of keys, and adds those that it lacks until its memory is full. The kernels in
`numbering_kernels` explain records, slots and the arena.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.convert.keys.numbering_kernels import (
    COUNT,
    DANGLING,
    MADE,
    NUM_FIELDS,
    NUM_FIRSTS,
    TWICE,
    TWICE_FIRST,
    USED,
    fill_slots,
    place_records,
)
from gloader.core.aligned_memory import mapped_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

_FIRST_SLOTS: Final = 64  # slots of a new table; a power of 2
_WORD_BYTES: Final = 8
_MOST_KEYS: Final = 2**31 - 1  # the ids of a table are written as int32


@dataclass(slots=True, kw_only=True, eq=False)
class KeyRecords:
    """Memory for a block of keys: records, their places and hashes, and what the table says of them."""

    records: NDArray[np.uint64]  # (W,)
    places: IdArray  # (K + 1,)
    hashes: NDArray[np.uint64]  # (K,)
    ids: IdArray  # (K,) the nodes' ids
    firsts: IdArray  # (K,) positions of keys that made a node
    num_records: int = 0

    @classmethod
    def of_bytes(cls, num_bytes: int) -> KeyRecords:
        """Return a block that takes at most ``num_bytes``."""
        # A third is for the words. A record with one word takes 16 bytes there, and 32 bytes in the other arrays.
        words = num_bytes // 3 // _WORD_BYTES
        count = words // 2
        return cls(
            records=np.empty(words, np.uint64),
            places=np.empty(count + 1, np.int64),
            hashes=np.empty(count, np.uint64),
            ids=np.empty(count, np.int64),
            firsts=np.empty(count, np.int64),
        )

    def key(self, index: int) -> bytes:
        """Return the bytes of the key of record ``index``."""
        place = int(self.places[index])
        length = int(self.records[place]) & 0xFFFF
        return self.records[place + 1 : int(self.places[index + 1])].tobytes()[:length]

    def position(self, index: int) -> int:
        """Return the position of record ``index``."""
        return int(self.records[int(self.places[index])]) >> 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongKey:
    """A key that is refused: a given node's key that another node has, or a used key without a node."""

    position: int  # of the record
    key: bytes
    first: int = -1  # the node that has the key already


class KeyTable:
    """Keys in memory with their node ids.

    Parameters
    ----------
    max_bytes : bound for the table's memory
    num_given, made_base : see `place_records`; may be set later
    cut : bits of each hash to cut off, for tests
    """

    def __init__(self, *, max_bytes: int, num_given: int = 0, made_base: int = 0, cut: int = 0) -> None:
        self.num_given, self.made_base = num_given, made_base
        self._max_bytes, self._cut = max_bytes, cut
        self._slots = np.zeros(_FIRST_SLOTS, np.uint64)
        # Pages of the arena take memory only when they are filled, so it never has to grow.
        self._arena = mapped_bytes(max_bytes, touch=False).view(np.uint64)
        self._state = np.zeros(NUM_FIELDS, np.int64)
        self._state[[TWICE, TWICE_FIRST, DANGLING]] = -1

    @property
    def num_bytes(self) -> int:
        """Bytes in use."""
        return int(self._slots.nbytes + self._state[USED] * _WORD_BYTES)

    @property
    def num_keys(self) -> int:
        """Number of keys."""
        return int(self._state[COUNT])

    @property
    def num_made(self) -> int:
        """Number of keys that are no given nodes."""
        return int(self._state[MADE])

    @property
    def records(self) -> NDArray[np.uint64]:
        """The records of all keys in order of arrival, with the ids in the headers."""
        return self._arena[: self._state[USED]]

    def place(self, block: KeyRecords, first: int, *, missing: int) -> int:
        """Look up and add the block's records from ``first`` on; see `place_records`.

        Returns
        -------
        The number of records, or the first record for which the table has no room
        """
        while True:
            max_keys = self._max_keys()
            first = place_records(
                block.records, block.places, block.hashes, first, block.num_records, self._slots, self._arena,
                (self._max_bytes - self._slots.nbytes) // _WORD_BYTES, max_keys, self.num_given, self.made_base,
                missing, block.ids, block.firsts, self._state,
            )  # fmt: skip
            # With fewer keys, the arena is full, and more slots would leave it less.
            if first == block.num_records or self.num_keys < max_keys or not self._grow():
                return first

    def taken_firsts(self, block: KeyRecords) -> IdArray:
        """Return the positions of the records that made a node since the last call."""
        count, self._state[NUM_FIRSTS] = int(self._state[NUM_FIRSTS]), 0
        return block.firsts[:count]

    def taken_twice(self, block: KeyRecords) -> WrongKey | None:
        """Return the first given node of the block whose key another node has, and forget it."""
        index, self._state[TWICE] = int(self._state[TWICE]), -1
        if index < 0:
            return None
        return WrongKey(
            position=block.position(index), key=block.key(index), first=int(self._state[TWICE_FIRST])
        )

    def taken_dangling(self, block: KeyRecords) -> WrongKey | None:
        """Return the first used key of the block that has no node, and forget it."""
        index, self._state[DANGLING] = int(self._state[DANGLING]), -1
        return None if index < 0 else WrongKey(position=block.position(index), key=block.key(index))

    def _max_keys(self) -> int:
        """Return the number of keys for which the slots are enough."""
        # In a fuller table, the search for a key's slot takes 11 ns instead of 6. That is for memory that is short.
        is_roomy = self._grown_bytes() <= self._max_bytes // 2
        return min(len(self._slots) * 3 // (8 if is_roomy else 4), _MOST_KEYS)

    def _grown_bytes(self) -> int:
        """Return the bytes in use with twice the slots."""
        return self.num_bytes + self._slots.nbytes

    def _grow(self) -> bool:
        """Make room for more keys in the slots, if memory allows it."""
        if self.num_keys < self._max_keys():  # the slots may be fuller now than before
            return True
        if self._grown_bytes() > self._max_bytes or self.num_keys == _MOST_KEYS:
            return False
        # The old slots are released first: the records in the arena are enough to fill the new ones.
        num_slots = 2 * len(self._slots)
        self._slots = np.zeros(0, np.uint64)
        self._slots = mapped_bytes(num_slots * _WORD_BYTES, touch=False).view(np.uint64)[:num_slots]
        fill_slots(self._arena, self._state[USED], self._cut, self._slots)
        return True
