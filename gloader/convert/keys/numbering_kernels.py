"""Kernels (compiled functions) that give keys their numbers: records of keys, a hash table, and spilled records.

Callers check the arrays. Kernels do not. A key's *record* is its words (see `gloader.core.key_kernels`) after a
*header* word: the key's length in bytes in the low 16 bits, and a number above them. The number is the key's *position*
in the input, or the node's id in the *arena*, the array with one record for each different key.

The hash table has open addressing with linear probing. A *slot* is one word: 0 if it is empty, otherwise the place of
a record in the arena plus 1 in the low 40 bits, and 24 bits of the key's hash, the *tag*. A tag saves most comparisons
of different keys. Equal tags decide nothing: the bytes are compared.

A *partition* has the records whose hashes begin with the same bits. Its records are resolved together, in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.hashing import mix64
from gloader.core.kernels import njit
from gloader.core.key_kernels import first_hash, key_word
from gloader.core.numba_ops import copy_block, prefetch, to_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

    Words = NDArray[np.uint64]

MAX_KEY_BYTES: Final = 2**16 - 1  # the header's 16 bits hold the length
MAX_NUMBER: Final = 2**48 - 1  # the header's other bits hold a position or an id
_LENGTH = np.uint64(MAX_KEY_BYTES)
_ID_SHIFT = np.uint64(16)
_PLACE = np.uint64(2**40 - 1)  # the bits of a slot that hold a record's place
_TAG = np.uint64(2**24 - 1)
# The tag comes from the middle of the hash: the low bits choose the slot, and the high bits choose the partition.
_TAG_SHIFT, _PLACE_BITS = np.uint64(32), np.uint64(40)
_WORD = np.uint64(8)  # bytes in a word
_ONE = np.uint64(1)

# The values of `place_records` for a key without a node id.
DROPPED: Final = -1
LEFT: Final = -2  # -2 - p in the order of a stream stands for the next record of partition p
# What `place_records` does with a key that the table lacks.
MAKE, DROP, LEAVE = range(3)
# The fields of the state of `place_records`.
USED, COUNT, MADE, TWICE, TWICE_FIRST, DANGLING, NUM_FIRSTS = range(7)
NUM_FIELDS: Final = 7

# Records that are looked up together, and the records between a record and the slot, or the arena's record, that is
# fetched for a later one, as measured.
_GROUP, _SLOTS_AHEAD, _RECORDS_AHEAD = 1024, 64, 32


@njit(cache=True, nogil=True, inline="always")
def cut_hash(value: np.uint64, cut: int) -> np.uint64:
    """Return a hash with ``2**(64 - cut)`` different values, for tests of equal hashes. Pure."""
    return mix64(value >> np.uint64(cut)) if cut > 0 else value


@njit(cache=True, nogil=True)
def pack_keys(
    data: NDArray[np.uint8],
    starts: IdArray,
    first: int,
    position: int,
    cut: int,
    records: Words,
    places: IdArray,
    hashes: Words,
) -> int:
    """Write the records of the keys from ``first`` on, as far as the arrays hold them. Return their number.

    Parameters
    ----------
    data, starts : a chunk of keys
    first : the first key
    position : the first key's position, for the headers
    cut : for `cut_hash`
    records : (W,) receives the records
    places : (K + 1,) receives the records' places
    hashes : (K,) receives the keys' hashes

    Returns
    -------
    The number of records, which is 0 if the first one does not fit; or -1 - i if key i is too long
    """
    used, count = 0, 0
    for i in range(first, starts.shape[0] - 1):
        at, stop = np.uint64(starts[i]), np.uint64(starts[i + 1])
        length = stop - at
        if length > _LENGTH:
            return -1 - i
        words = to_int((length + np.uint64(7)) >> np.uint64(3))
        if count == hashes.shape[0] or used + 1 + words > records.shape[0]:
            break
        places[count] = used
        records[used] = length | (np.uint64(position + i - first) << _ID_SHIFT)
        used += 1
        value = first_hash(length)
        for _ in range(words):
            word = key_word(data, at, min(at + _WORD, stop))
            records[used] = word
            value = mix64(value ^ word)
            used += 1
            at += _WORD
        hashes[count] = cut_hash(value, cut)
        count += 1
    places[count] = used
    return count


@njit(cache=True, nogil=True)
def find_records(words: Words, cut: int, places: IdArray, hashes: Words) -> int:
    """Find the complete records in ``words``, which begins with a record. Return their number.

    ``places`` (K + 1,) receives the records' places and their end, and ``hashes`` (K,) the keys' hashes.
    """
    at, count = 0, 0
    while at < words.shape[0] and count < hashes.shape[0]:
        length = words[at] & _LENGTH
        num_words = to_int((length + np.uint64(7)) >> np.uint64(3))
        if at + 1 + num_words > words.shape[0]:
            break
        places[count] = at
        value = first_hash(length)
        for k in range(num_words):
            value = mix64(value ^ words[at + 1 + k])
        hashes[count] = cut_hash(value, cut)
        at += 1 + num_words
        count += 1
    places[count] = at
    return count


@njit(cache=True, nogil=True, inline="always")
def find_slot(records: Words, place: np.uint64, value: np.uint64, slots: Words, arena: Words) -> np.uint64:
    """Return the slot of the key of the record at ``place``, or the empty slot where the key belongs. Pure.

    ``value`` is the key's hash.
    """
    mask = np.uint64(slots.shape[0] - 1)
    length = records[place] & _LENGTH
    words = (length + np.uint64(7)) >> np.uint64(3)
    tag = ((value >> _TAG_SHIFT) & _TAG) << _PLACE_BITS
    slot = value & mask
    while slots[slot] != 0:
        entry = slots[slot]
        known = (entry & _PLACE) - _ONE
        if (entry & ~_PLACE) == tag and (arena[known] & _LENGTH) == length:
            k = _ONE
            while k <= words and arena[known + k] == records[place + k]:
                k += _ONE
            if k > words:
                break
        slot = (slot + _ONE) & mask
    return slot


@njit(cache=True, nogil=True, inline="always")
def slot_entry(value: np.uint64, place: int) -> np.uint64:
    """Return what a slot holds for a record at ``place`` of the arena, whose key has the hash ``value``. Pure."""
    return (((value >> _TAG_SHIFT) & _TAG) << _PLACE_BITS) | np.uint64(place + 1)


@njit(cache=True, nogil=True, inline="always")
def is_other(entry: np.uint64, value: np.uint64) -> bool:
    """Return True if the slot ``entry`` has a key, and its tag is not that of the hash ``value``. Pure."""
    return (entry != 0) & (((entry >> _PLACE_BITS) ^ (value >> _TAG_SHIFT)) & _TAG != 0)


@njit(cache=True, nogil=True)
def find_known(
    records: Words,
    places: IdArray,
    hashes: Words,
    first: int,
    stop: int,
    slots: Words,
    arena: Words,
    entries: Words,
    waiting: IdArray,
    ids: IdArray,
) -> int:
    """Write the ids of the records ``first`` ... ``stop - 1`` to ``ids``, as far as the table has them.

    No branch depends on a key that the table has, and no step of a loop waits for the one before. So the processor
    fetches many slots and records at a time.

    Parameters
    ----------
    records, places, hashes, slots, arena, ids : as in `place_records`
    entries : memory for ``stop - first`` slots
    waiting : (stop - first,) receives the numbers of the records without an id, less ``first``, in ascending order. A
        key that the table has is among them if another key with the same tag comes first

    Returns
    -------
    The number of records without an id
    """
    mask = np.uint64(slots.shape[0] - 1)
    count = 0
    for j in range(stop - first):
        if first + j + _SLOTS_AHEAD < hashes.shape[0]:
            prefetch(slots, to_int(hashes[first + j + _SLOTS_AHEAD] & mask))
        value = hashes[first + j]
        entry = slots[value & mask]
        entries[j] = entry
        waiting[count] = j
        count += is_other(entry, value)
    step = np.uint64(0)
    while count > 0:
        step += _ONE
        left = 0
        for k in range(count):
            j = waiting[k]
            value = hashes[first + j]
            entry = slots[(value + step) & mask]
            entries[j] = entry
            waiting[left] = j
            left += is_other(entry, value)
        count = left
    for j in range(stop - first):
        if j + _RECORDS_AHEAD < stop - first:
            # A short key's record is in at most two cache lines.
            prefetch(arena, to_int(entries[j + _RECORDS_AHEAD] & _PLACE) - 1)
            prefetch(arena, to_int(entries[j + _RECORDS_AHEAD] & _PLACE) + 1)
        # An empty slot stands for the arena's first record, which is then taken as different.
        is_empty = np.uint64(entries[j] == 0)
        known = (entries[j] & _PLACE) + is_empty - _ONE
        place = np.uint64(places[first + j])
        header, length = arena[known], records[place] & _LENGTH
        difference = is_empty | ((header & _LENGTH) ^ length)
        if difference == 0:
            for k in range(_ONE, _ONE + ((length + np.uint64(7)) >> np.uint64(3))):
                difference |= arena[known + k] ^ records[place + k]
        ids[first + j] = to_int(header >> _ID_SHIFT)
        waiting[count] = j
        count += difference != 0
    return count


@njit(cache=True, nogil=True)
def place_records(
    records: Words,
    places: IdArray,
    hashes: Words,
    first: int,
    stop: int,
    slots: Words,
    arena: Words,
    arena_words: int,
    max_count: int,
    num_given: int,
    made_base: int,
    missing: int,
    ids: IdArray,
    firsts: IdArray,
    state: IdArray,
) -> int:
    """Look up the records ``first`` ... ``stop - 1`` in the table, and add those that it lacks.

    A record whose position is below ``num_given`` is a given node: its position is its id. Other records are uses of
    keys. What happens if the table lacks a used key is ``missing``: MAKE adds a node, DROP gives the id DROPPED, and
    LEAVE gives LEFT, also to given nodes.

    Parameters
    ----------
    records, places, hashes : the records
    slots : (S,) the table; S is a power of 2
    arena : the records of the keys in the table
    arena_words, max_count : number of words of ``arena``, and of keys, that may be used
    num_given : number of given nodes, which have the lowest positions
    made_base : id of the first made node
    ids : receives each record's id, DROPPED or LEFT
    firsts : receives the positions of the records that made a node, from ``state[NUM_FIRSTS]`` on
    state : (NUM_FIELDS,) words in the arena; its keys; made nodes; the first given record whose key has another node,
        and this node; the first dropped record; length of ``firsts``. A record is -1 if there is none

    Returns
    -------
    ``stop``, or the first record for which slots or arena have no room
    """
    entries, waiting = np.empty(_GROUP, np.uint64), np.empty(_GROUP, np.int64)
    for begin in range(first, stop, _GROUP):
        end = min(begin + _GROUP, stop)
        count = find_known(records, places, hashes, begin, end, slots, arena, entries, waiting, ids)
        if to_int(records[places[begin]] >> _ID_SHIFT) < num_given:
            count = end - begin
            waiting[:count] = np.arange(count)  # a given node must have no id
        for k in range(count):
            i = begin + waiting[k]
            place = np.uint64(places[i])
            length = records[place] & _LENGTH
            position = to_int(records[place] >> _ID_SHIFT)
            words = (length + np.uint64(7)) >> np.uint64(3)
            slot = find_slot(records, place, hashes[i], slots, arena)
            is_given = position < num_given
            if slots[slot] != 0:
                ids[i] = to_int(arena[(slots[slot] & _PLACE) - _ONE] >> _ID_SHIFT)
                if is_given and state[TWICE] < 0:
                    state[TWICE] = i
                    state[TWICE_FIRST] = ids[i]
                continue
            if missing == LEAVE:
                ids[i] = LEFT
                continue
            if missing == DROP and not is_given:
                ids[i] = DROPPED
                if state[DANGLING] < 0:
                    state[DANGLING] = i
                continue
            used = state[USED]
            if state[COUNT] >= max_count or used + 1 + to_int(words) > arena_words:
                return i
            number = position if is_given else made_base + state[MADE]
            arena[used] = length | (np.uint64(number) << _ID_SHIFT)
            for word in range(1, to_int(words) + 1):
                arena[used + word] = records[place + np.uint64(word)]
            slots[slot] = slot_entry(hashes[i], used)
            state[USED] = used + 1 + to_int(words)
            state[COUNT] += 1
            ids[i] = number
            if not is_given:
                state[MADE] += 1
                firsts[state[NUM_FIRSTS]] = position
                state[NUM_FIRSTS] += 1
    return stop


@njit(cache=True, nogil=True)
def fill_slots(arena: Words, used: int, cut: int, slots: Words) -> None:
    """Enter the records in the first ``used`` words of the arena in the empty table ``slots``."""
    mask = np.uint64(slots.shape[0] - 1)
    places, hashes = np.empty(_GROUP + 1, np.int64), np.empty(_GROUP, np.uint64)
    at = 0
    while at < used:
        count = find_records(arena[at:used], cut, places, hashes)
        for i in range(count):
            if i + _SLOTS_AHEAD < count:
                prefetch(slots, to_int(hashes[i + _SLOTS_AHEAD] & mask))
            slot = hashes[i] & mask
            while slots[slot] != 0:
                slot = (slot + _ONE) & mask
            slots[slot] = slot_entry(hashes[i], at + places[i])
        at += places[count]


@njit(cache=True, nogil=True)
def stage_left(
    records: Words,
    places: IdArray,
    hashes: Words,
    first: int,
    stop: int,
    shift: int,
    num_given: int,
    ids: IdArray,
    staged: Words,
    partitions: NDArray[np.uint16],
    counts: IdArray,
    given_counts: IdArray,
    state: IdArray,
) -> int:
    """Copy the records with the id LEFT behind the staged records. Their ids become -2 - p, for partition p.

    Parameters
    ----------
    records, places, hashes : the records
    first, stop : the first record, and the last plus one
    shift : a hash shifted to the right by it is the number of the partition
    num_given : records with a lower position are given nodes
    ids : their ids, changed
    staged : (W,) words of the staged records, filled further
    partitions : (W,) receives the staged records' partitions
    counts, given_counts : (P,) numbers of used keys and of given nodes in each partition, increased
    state : (2,) words and records that are staged

    Returns
    -------
    ``stop``, or the first record for which there is no room
    """
    for i in range(first, stop):
        if ids[i] != LEFT:
            continue
        words = places[i + 1] - places[i]
        if state[0] + words > staged.shape[0]:
            return i
        partition = to_int(hashes[i] >> np.uint64(shift))
        for k in range(words):
            staged[state[0] + k] = records[places[i] + k]
        partitions[state[1]] = partition
        if to_int(records[places[i]] >> _ID_SHIFT) < num_given:
            given_counts[partition] += 1
        else:
            counts[partition] += 1
        state[0] += words
        state[1] += 1
        ids[i] = LEFT - partition
    return stop


@njit(cache=True, nogil=True)
def sort_staged(
    staged: Words,
    partitions: NDArray[np.uint16],
    num_records: int,
    num_words: IdArray,
    grouped: Words,
) -> None:
    """Group the staged records by partition, in arrival order.

    ``num_words`` (P,) receives the number of words in each partition, and ``grouped`` receives the records.
    """
    num_words[:] = 0
    at = 0
    for i in range(num_records):
        words = 1 + to_int(((staged[at] & _LENGTH) + np.uint64(7)) >> np.uint64(3))
        num_words[partitions[i]] += words
        at += words
    cursor = np.cumsum(num_words) - num_words
    at = 0
    for i in range(num_records):
        words = 1 + to_int(((staged[at] & _LENGTH) + np.uint64(7)) >> np.uint64(3))
        to = cursor[partitions[i]]
        for k in range(words):
            grouped[to + k] = staged[at + k]
        cursor[partitions[i]] = to + words
        at += words


@njit(cache=True, nogil=True)
def strip_headers(words: Words, lengths: NDArray[np.uint16], bare: Words) -> tuple[int, int, int]:
    """Write lengths and words of the complete records in ``words`` without their headers.

    Returns
    -------
    The numbers of records, of words read, and of words written
    """
    at, count, written = 0, 0, 0
    while at < words.shape[0] and count < lengths.shape[0]:
        length = words[at] & _LENGTH
        num_words = to_int((length + np.uint64(7)) >> np.uint64(3))
        if at + 1 + num_words > words.shape[0]:
            break
        lengths[count] = length
        for k in range(num_words):
            bare[written + k] = words[at + 1 + k]
        written += num_words
        at += 1 + num_words
        count += 1
    return count, at, written


@njit(cache=True, nogil=True)
def unpack_keys(
    bare: NDArray[np.uint8], lengths: NDArray[np.uint16], data: NDArray[np.uint8], starts: IdArray
) -> None:
    """Write the bytes of keys without their padding to ``data``, and their places to ``starts`` (n + 1,).

    ``bare`` has the bytes of the keys' words.
    """
    at = to_int(0)
    for i in range(lengths.shape[0]):
        length = to_int(lengths[i])
        starts[i + 1] = starts[i] + length
        copy_block(data, starts[i], bare, at, length)
        at += (length + 7) // 8 * 8


@njit(cache=True, nogil=True)
def take_turns(owners: IdArray, values: IdArray, cursor: IdArray, out: IdArray) -> None:
    """Fill each element of ``out`` whose owner p is at least 0 with the next value of owner p.

    ``cursor`` (P,) has the place in ``values`` of each owner's next value, and is advanced.
    """
    for i in range(owners.shape[0]):
        owner = owners[i]
        if owner >= 0:
            out[i] = values[cursor[owner]]
            cursor[owner] += 1


@njit(cache=True, nogil=True)
def take_keys_in_turn(
    owners: NDArray[np.uint16],
    lengths: NDArray[np.uint16],
    words: Words,
    cursor: IdArray,
    word_cursor: IdArray,
    out_lengths: NDArray[np.uint16],
    out_words: Words,
) -> None:
    """Write the next key of each owner in turn.

    Parameters
    ----------
    owners : (n,) the owner of each key
    lengths, words : the owners' keys, one owner after the other
    cursor, word_cursor : (P,) places of each owner's next key in them, advanced
    out_lengths, out_words : receive the keys
    """
    at = 0
    for i in range(owners.shape[0]):
        owner = owners[i]
        length = lengths[cursor[owner]]
        num_words = (to_int(length) + 7) >> 3
        out_lengths[i] = length
        for k in range(num_words):
            out_words[at + k] = words[word_cursor[owner] + k]
        at += num_words
        cursor[owner] += 1
        word_cursor[owner] += num_words
