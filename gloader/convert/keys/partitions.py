"""Keys for which memory has no room: partitions on disk, each resolved alone in memory (a grace hash join).

A *partition* has the records of all keys whose hashes begin with the same bits, in order of arrival. `Partitions`
collects records in memory and spills them, a file for each partition. `resolve` then reads one partition after the
other. A hash table in memory gives each used key its node, and the ids go to the partition's file of ids. The key of a
node that the source does not list *makes* a node. Made nodes are numbered by first appearance over all partitions: each
partition has the positions of its first appearances in ascending order, and these lists are merged.

The join is that of Kitsuregawa, Tanaka and Moto-oka: "Application of hash to data base machine and its architecture"
(New Generation Computing 1, 1983), with the part in memory of DeWitt et al. (SIGMOD'84).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.convert.csc.spill import Spill, TemporaryArray
from gloader.convert.keys.key_file import KeyFile, keys_in_turn
from gloader.convert.keys.key_table import KeyRecords, KeyTable, WrongKey
from gloader.convert.keys.numbering_kernels import (
    DROPPED,
    LEFT,
    find_records,
    sort_staged,
    stage_left,
    take_turns,
)
from gloader.core.aligned_memory import mapped_bytes
from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.plan.too_small import rounded_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gloader.core.keys import KeyChunk
    from gloader.types import IdArray

_MIN_PARTITIONS, _MAX_PARTITIONS = 32, 1024  # each partition is a file that is opened for each write
_WRITE_BYTES: Final = 32 * 2**10  # least bytes per write to a partition, where memory allows it
# Bytes per word of staged records: the word twice, in order of arrival and by partition, and the number of a partition.
_STAGED_BYTES: Final = 8 + 8 + 2
_MERGED_BYTES: Final = 64  # bytes per position while lists of positions are merged
_SLOT_BYTES: Final = 24  # most bytes for the slots of a key in a table that has just grown
_MADE: Final = 2**46  # the first id of a made node while its number is only known within its partition


class Partitions:
    """Records on disk by partition, and their nodes. Owns files in ``folder`` until ``close()``.

    Parameters
    ----------
    folder : an existing folder
    name : the beginning of the files' names
    memory_bytes : memory for staged records
    cut : bits of each hash to cut off, for tests
    """

    def __init__(self, folder: Path, name: str, *, memory_bytes: int, cut: int) -> None:
        num_words = memory_bytes // _STAGED_BYTES
        most = max(num_words * 8 // _WRITE_BYTES, 1)
        self.num_partitions = min(max(1 << (most.bit_length() - 1), _MIN_PARTITIONS), _MAX_PARTITIONS)
        self.num_made = 0
        self.counts = np.zeros(self.num_partitions, np.int64)  # used keys in each partition
        self._given_counts = np.zeros(self.num_partitions, np.int64)
        self._shift = 64 - (self.num_partitions.bit_length() - 1)
        self._folder, self._name, self._cut = folder, name, cut
        self._spill = Spill(
            folder=folder, name=f"{name}-part", dtype=np.dtype(np.uint64), num_buckets=self.num_partitions
        )
        self._staged = mapped_bytes(num_words * 8, touch=False).view(np.uint64)[:num_words]
        self._grouped = mapped_bytes(num_words * 8, touch=False).view(np.uint64)[:num_words]
        self._staged_in = mapped_bytes(num_words * 2, touch=False).view(np.uint16)[:num_words]
        self._state = np.zeros(2, np.int64)  # words and records that are staged
        self._ids = [self._array(f"ids-{p:05d}", np.int64) for p in range(self.num_partitions)]
        self._owners = self._array("owners", np.uint16)
        self._made = [KeyFile(folder, f"{name}-made-{p:05d}") for p in range(self.num_partitions)]

    @property
    def spilled_bytes(self) -> int:
        """Bytes of records in files."""
        return self._spill.spilled_bytes

    def add_left(self, block: KeyRecords, *, num_given: int) -> None:
        """Add the block's records whose id is LEFT, and replace their ids by -2 - p for partition p.

        Raises
        ------
        StoreWriteError
            The disk refuses.
        """
        first = 0
        while True:
            first = stage_left(
                block.records, block.places, block.hashes, first, block.num_records, self._shift, num_given,
                block.ids, self._staged, self._staged_in, self.counts, self._given_counts, self._state,
            )  # fmt: skip
            if first == block.num_records:
                return
            self._flush()

    def resolve(
        self,
        *,
        memory_bytes: int,
        block_bytes: int,
        missing: int,
        num_given: int,
        made_base: int,
        stream_starts: IdArray,
    ) -> tuple[WrongKey | None, WrongKey | None, IdArray]:
        """Find the node of each used key.

        Parameters
        ----------
        memory_bytes, block_bytes : memory for the keys of a partition, and for a block of records
        missing : MAKE or DROP, for used keys without a given node
        num_given : number of given nodes
        made_base : id of the first made node
        stream_starts : (S,) position of the first key of each stream

        Returns
        -------
        The first given node whose key another node has, the first used key that was dropped, and the number of dropped
        keys of each stream (S,). The first two are None if there is none

        Raises
        ------
        BudgetError
            The keys of a partition do not fit in memory. The message has a sufficient budget.
        StoreWriteError
            The disk refuses, or a file ends early.
        """
        self._flush()
        self._staged = self._grouped = np.empty(0, np.uint64)
        self._staged_in = np.empty(0, np.uint16)
        resolver = _Resolver(
            block_bytes=block_bytes, missing=missing, num_given=num_given, starts=stream_starts
        )
        made_counts = np.zeros(self.num_partitions, np.int64)
        firsts = [self._array(f"firsts-{p:05d}", np.int64) for p in range(self.num_partitions)]
        ranks = [self._array(f"ranks-{p:05d}", np.int64) for p in range(self.num_partitions)]
        try:
            for p in range(self.num_partitions):
                # The memory of the last table is free before the next one takes its own.
                table = KeyTable(max_bytes=memory_bytes, num_given=num_given, made_base=_MADE, cut=self._cut)
                self._resolve_one(p, table, resolver, firsts[p])
                made_counts[p] = table.num_made
                del table
                self._spill.drop(p)
            self.num_made = int(made_counts.sum())
            if self.num_made:
                self._rank(firsts, made_counts, made_base, ranks, memory_bytes)
                for p in np.flatnonzero(made_counts).tolist():
                    self._rename(p, ranks[p].read(0, int(made_counts[p])), block_bytes // 64)
        finally:
            for array in (*firsts, *ranks):
                array.remove()
        return resolver.twice, resolver.dangling, resolver.dropped

    def ids_in_turn(self, order: IdArray, cursor: IdArray) -> IdArray:
        """Return ``order`` (n,) with the next id of partition p in place of each -2 - p.

        ``cursor`` (P,) has the place of each partition's next id, and is advanced. Raises StoreWriteError if a file
        ends early.
        """
        owners = LEFT - order
        counts = np.bincount(owners[owners >= 0], minlength=self.num_partitions)
        parts = [
            self._ids[p].read(int(cursor[p]), int(cursor[p] + counts[p])) for p in range(self.num_partitions)
        ]
        cursor += counts
        take_turns(owners, np.concatenate(parts), np.cumsum(counts) - counts, order)
        return order

    def made_keys(self, max_keys: int) -> Iterator[KeyChunk]:
        """Yield the keys of made nodes in order of their ids. Raises as `keys_in_turn`."""
        return keys_in_turn(self._made, self._owners.pieces(self.num_made, max_keys))

    @property
    def made_bytes(self) -> int:
        """Bytes of the keys of made nodes."""
        return sum(file.num_bytes for file in self._made)

    def close(self) -> None:
        """Remove the files. Idempotent."""
        self._spill.close()
        self._owners.remove()
        for array in self._ids:
            array.remove()
        for file in self._made:
            file.remove()

    def _array(self, name: str, dtype: type) -> TemporaryArray:
        return TemporaryArray(path=self._folder / f"{self._name}-{name}", dtype=np.dtype(dtype))

    def _flush(self) -> None:
        """Write the staged records to their partitions."""
        num_words = np.empty(self.num_partitions, np.int64)
        sort_staged(self._staged, self._staged_in, int(self._state[1]), num_words, self._grouped)
        self._spill.append(self._grouped[: self._state[0]], num_words)
        self._state[:] = 0

    def _resolve_one(self, p: int, table: KeyTable, resolver: _Resolver, firsts: TemporaryArray) -> None:
        """Write the ids of partition ``p``'s used keys, and its made keys with the positions of their firsts."""
        given_left, given_words = int(self._given_counts[p]), 0
        for block in resolver.blocks(self._spill, p, self._cut):
            if resolver.place(table, block) < block.num_records:
                raise self._too_small(p)
            made_at = table.taken_firsts(block)
            if len(made_at):
                firsts.append(made_at)
            num_given = min(given_left, block.num_records)
            given_left -= num_given
            given_words += int(block.places[num_given])
            if num_given < block.num_records:
                self._ids[p].append(block.ids[num_given : block.num_records])
        # The given nodes of a partition come first, also in the table.
        self._made[p].append(table.records[given_words:])

    def _rank(
        self,
        firsts: Sequence[TemporaryArray],
        counts: IdArray,
        made_base: int,
        ranks: Sequence[TemporaryArray],
        memory_bytes: int,
    ) -> None:
        """Merge the lists of positions. Write each made node's id to its partition's ``ranks``, and its owner."""
        step = max(1, memory_bytes // _MERGED_BYTES // self.num_partitions)  # positions per piece
        held = [firsts[p].read(0, min(step, int(counts[p]))) for p in range(self.num_partitions)]
        done = np.array([len(piece) for piece in held])  # positions read from each list
        next_id = made_base
        while any(len(piece) for piece in held):
            # All positions up to the limit are in memory: the smallest last one of a piece whose list continues.
            limits = [piece[-1] for piece, now, count in zip(held, done, counts, strict=True) if now < count]
            limit = min(limits, default=np.iinfo(np.int64).max)
            taken = [int(np.searchsorted(piece, limit, side="right")) for piece in held]
            ready = np.concatenate([piece[:stop] for piece, stop in zip(held, taken, strict=True)])
            owners = np.repeat(np.arange(self.num_partitions, dtype=np.uint16), taken)
            order = np.argsort(ready)
            ids = np.empty_like(ready)
            ids[order] = np.arange(next_id, next_id + len(ready))
            next_id += len(ready)
            self._owners.append(owners[order])
            start = 0
            for p, stop in enumerate(taken):
                if stop:
                    ranks[p].append(ids[start : start + stop])
                    start += stop
                # Every short piece is filled up, not only an empty one: the shortest sets the next limit.
                if len(held[p]) - stop <= step // 2:
                    until = min(int(counts[p]), int(done[p]) + step - (len(held[p]) - stop))
                    held[p] = np.concatenate([held[p][stop:], firsts[p].read(int(done[p]), until)])
                    done[p] = until
                else:
                    held[p] = held[p][stop:]

    def _rename(self, p: int, ranks: IdArray, max_ids: int) -> None:
        """Replace the numbers of made nodes within partition ``p`` by their ids ``ranks``."""
        count = int(self.counts[p])
        renamed = self._array("renamed", np.int64)
        try:
            for ids in self._ids[p].pieces(count, max(max_ids, 1)):
                is_made = ids >= _MADE
                ids[is_made] = ranks[ids[is_made] - _MADE]
                renamed.append(ids)
            renamed.path.replace(self._ids[p].path)
        finally:
            renamed.remove()

    def _too_small(self, p: int) -> BudgetError:
        """Return the error for a partition whose keys do not fit in memory."""
        # Enough for the partition if all its records were different keys.
        num_records = int(self.counts[p] + self._given_counts[p])
        enough = 2 * (8 * int(self._spill.counts[p]) + _SLOT_BYTES * num_records)
        return BudgetError(
            f"one of {self.num_partitions} groups of keys, with {num_records} keys, does not fit in the memory for "
            f"keys; {format_bytes(rounded_up(enough))} for keys are enough. Raise --memory-budget"
        )


class _Resolver:
    """Reads the records of partitions in blocks, and keeps what is wrong with them."""

    def __init__(self, *, block_bytes: int, missing: int, num_given: int, starts: IdArray) -> None:
        self.twice: WrongKey | None = None
        self.dangling: WrongKey | None = None
        self.dropped = np.zeros(len(starts), np.int64)
        self._block = KeyRecords.of_bytes(block_bytes)
        self._buffer = self._block.records
        self._missing, self._num_given, self._starts = missing, num_given, starts

    def blocks(self, spill: Spill, p: int, cut: int) -> Iterator[KeyRecords]:
        """Yield the records of partition ``p`` in order. The next block overwrites the last one."""
        buffer, block, filled = self._buffer, self._block, 0
        # Half of the buffer is for the record that a piece cuts off: no record is longer.
        for piece in spill.pieces(p, len(buffer) // 2):
            buffer[filled : filled + len(piece)] = piece
            start, filled = 0, filled + len(piece)
            while True:
                block.records = buffer[start:filled]
                block.num_records = find_records(block.records, cut, block.places, block.hashes)
                if not block.num_records:
                    break
                yield block
                start += int(block.places[block.num_records])
            buffer[: filled - start] = buffer[start:filled].copy()
            filled -= start

    def place(self, table: KeyTable, block: KeyRecords) -> int:
        """Look up a block's records, and keep the first wrong ones. Returns as `KeyTable.place`."""
        stop = table.place(block, 0, missing=self._missing)
        self.twice = first_wrong(self.twice, table.taken_twice(block))
        self.dangling = first_wrong(self.dangling, table.taken_dangling(block))
        is_dropped = block.ids[: block.num_records] == DROPPED
        if is_dropped.any():
            positions = block.records[block.places[: block.num_records][is_dropped]] >> np.uint64(16)
            streams = np.searchsorted(self._starts, positions.astype(np.int64), side="right") - 1
            self.dropped += np.bincount(streams, minlength=len(self._starts))
        return stop


def first_wrong(one: WrongKey | None, other: WrongKey | None) -> WrongKey | None:
    """Return the wrong key with the lower position. Pure."""
    if one is None or other is None:
        return other if one is None else one
    return one if one.position <= other.position else other
