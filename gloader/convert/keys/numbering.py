"""Node ids for the keys of a node type, out of core: keys in, ids 0..N-1 out, in the same order.

`Numbering` first takes the keys of the type's node file, if there is one: node i has the key of row i. Then it takes
the streams of keys of the edge files. `resolve` finds the node of each key. After it, `ids` reads the nodes of a stream
as often as needed, and `keys` reads the keys of all nodes. The ids are exact: keys are compared by their bytes. They
depend on neither the budget nor the lengths of the chunks.

Keys are looked up in a hash table in memory while it fits in its share of the budget. After that, the table is kept as
it is, and keys that it lacks go to `Partitions` on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

import numpy as np

from gloader.convert.csc.spill import TemporaryArray
from gloader.convert.keys.key_file import KeyFile, keys_in_order
from gloader.convert.keys.key_table import KeyRecords, KeyTable, WrongKey
from gloader.convert.keys.numbering_kernels import (
    DROP,
    DROPPED,
    LEAVE,
    LEFT,
    MAKE,
    MAX_KEY_BYTES,
    MAX_NUMBER,
    pack_keys,
)
from gloader.convert.keys.partitions import Partitions, first_wrong
from gloader.core.keys import key_text, readonly
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, SourceError
from gloader.plan.too_small import rounded_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from gloader.core.keys import KeyChunk, KeyKind
    from gloader.types import IdArray

Dangling: TypeAlias = Literal["error", "drop", "node"]
# The shares of the budget: the table, staged records, and a block of keys that is looked up at a time. The last eighth
# is for the pieces of files.
_TABLE_SHARE, _STAGE_SHARE, _BLOCK_SHARE = 2, 4, 8
_READ_IDS: Final = 1024  # ids of each partition that are read at a time, on average
MIN_BUDGET_BYTES: Final = 64 * 2**10  # a smaller budget would have no room for a hundred keys
# A larger block would leave the processor's cache. It holds two keys of any length.
_MAX_BLOCK_BYTES: Final = 3 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberingReport:
    """The result of a numbering."""

    num_nodes: int  # N, of both kinds
    num_given: int  # nodes of the node file; their ids come first
    num_made: int  # nodes that were made for keys of the streams, in order of first appearance
    dropped: tuple[int, ...]  # keys of each stream without a node
    key_bytes: int  # bytes of the keys of all nodes
    spilled_bytes: int  # bytes of keys that went to disk, because memory had no room


@dataclass(slots=True, kw_only=True, eq=False)
class KeyStream:
    """The keys of an edge file, in order. Made by `Numbering.open_stream`, and ended by ``close()``."""

    where: tuple[str, ...]  # the places that the keys come from in turn
    start: int  # position of the first key
    order: TemporaryArray  # each key's id in the table, or -2 - p for the next id of partition p
    numbering: Numbering
    cursor: IdArray | None = (
        None  # (P,) each partition's number of keys before the stream; None without partitions
    )
    num_keys: int = 0
    dropped: int = 0  # keys without a node that were found so far
    is_open: bool = True

    def append(self, chunk: KeyChunk) -> None:
        """Add the next keys.

        Raises
        ------
        SourceError
            A key has no node (with ``dangling="error"``), or is too long. The error may also come from `resolve`.
        BudgetError
            The budget has no room for a key.
        StoreWriteError
            The disk refuses.
        """
        if not self.is_open:
            raise ValueError("keys were appended to a stream after its close")
        self.numbering.look_up(self, chunk)

    def close(self) -> None:
        """End the stream. Idempotent."""
        self.is_open = False


class Numbering:
    """Gives the keys of a node type their node ids. A context manager. Owns files in ``folder`` until ``close()``.

    Call `add_nodes` at most once, and first. Then fill one stream after the other, and call `resolve`. Without
    `add_nodes`, every key makes a node, in order of first appearance over the streams.

    Parameters
    ----------
    node_type : the type's name, for messages and the files' names
    kind : the kind of the keys
    folder : an existing folder. All files are named ``keys-TYPE-*``
    budget_bytes : bound for the memory of the numbering. Chunks that are given or returned are not counted
    dangling : what a key of a stream becomes that no node of `add_nodes` has: "error" refuses it, "drop" gives it the
        id -1, and "node" makes a node behind the given ones
    hash_bits : number of bits of the hashes, fewer in tests

    Raises
    ------
    BudgetError
        The budget is below 64 KiB.
    """

    def __init__(
        self,
        node_type: str,
        kind: KeyKind,
        *,
        folder: Path,
        budget_bytes: int,
        dangling: Dangling = "error",
        hash_bits: int = 64,
    ) -> None:
        if budget_bytes < MIN_BUDGET_BYTES:
            least = format_bytes(rounded_up(MIN_BUDGET_BYTES))
            raise BudgetError(
                f"numbering the keys of type {node_type!r} takes at least {least}; the memory budget leaves "
                f"{format_bytes(budget_bytes)} for it. Raise --memory-budget",
                short_bytes=MIN_BUDGET_BYTES - budget_bytes,
            )
        self.node_type, self.kind, self.dangling = node_type, kind, dangling
        self._folder, self._name = folder, f"keys-{node_type}"
        self._budget, self._cut = budget_bytes, 64 - hash_bits
        self._block_bytes = min(budget_bytes // _BLOCK_SHARE, _MAX_BLOCK_BYTES)
        self._block: KeyRecords | None = KeyRecords.of_bytes(self._block_bytes)
        self._table: KeyTable | None = KeyTable(max_bytes=budget_bytes // _TABLE_SHARE, cut=self._cut)
        self._partitions: Partitions | None = None
        self._head = KeyFile(folder, f"{self._name}-head")  # keys of the nodes that no partition made
        self._streams: list[KeyStream] = []
        self._nodes_where: str | None = None
        self._num_given, self._position = 0, 0  # given nodes, and the position of the next key
        self._twice: WrongKey | None = None
        self._report: NumberingReport | None = None

    def add_nodes(self, chunks: Iterable[KeyChunk], *, where: str) -> None:
        """Take the keys of the node file: row i is node i.

        Parameters
        ----------
        chunks : the keys in the order of the file
        where : the file, for messages

        Raises
        ------
        SourceError
            Two rows have the same key. The message has both rows. The error may also come from `resolve`.
        BudgetError, StoreWriteError
            As `KeyStream.append`.
        """
        if self._nodes_where is not None or self._streams:
            raise ValueError("the nodes of a numbering are added once, and before its streams")
        self._nodes_where = where
        table = self._tables()
        table.num_given = MAX_NUMBER  # the number of nodes is known only at the end
        for chunk in chunks:
            for block in self._blocks(chunk, (where,), start=0):
                self._place(block, MAKE)
                if self._partitions is not None:
                    left = np.flatnonzero(block.ids[: block.num_records] <= LEFT)
                    if len(left):
                        # Once the table is full it has none of the later nodes, so these are the end of the block.
                        self._head.append(
                            block.records[block.places[left[0]] : block.places[block.num_records]]
                        )
        self._num_given = table.num_given = table.made_base = self._position
        if self._partitions is None:
            self._refuse_twice()

    def open_stream(self, where: str | tuple[str, ...]) -> KeyStream:
        """Start the next stream, and return it. The last one must be closed.

        Parameters
        ----------
        where : the place of the keys, for messages. With m places, key i is from place i mod m and row i // m, as in
            the result of `interleaved`
        """
        if self._report is not None or (self._streams and self._streams[-1].is_open):
            raise ValueError("a stream of keys is opened before `resolve`, and after the last one was closed")
        path = self._folder / f"{self._name}-order-{len(self._streams)}"
        stream = KeyStream(
            where=(where,) if isinstance(where, str) else where,
            start=self._position,
            order=TemporaryArray(path=path, dtype=np.dtype(np.int32)),
            numbering=self,
            cursor=None if self._partitions is None else self._partitions.counts.copy(),
        )
        self._streams.append(stream)
        return stream

    def look_up(self, stream: KeyStream, chunk: KeyChunk) -> None:
        """Add a stream's next keys; see `KeyStream.append`, which calls this."""
        for block in self._blocks(chunk, stream.where, start=stream.start):
            dangling = self._place(block, self._missing)
            if dangling is not None and self.dangling == "error":
                raise self._dangling_error(dangling)
            ids = block.ids[: block.num_records]
            if self._missing == DROP:
                stream.dropped += int(np.count_nonzero(ids == DROPPED))
            stream.order.append(ids)
            stream.num_keys += block.num_records

    def resolve(self) -> NumberingReport:
        """Find the nodes of all keys, and release the memory. The result of the first call is returned again.

        Raises
        ------
        SourceError
            A node's key is another node's, or a key of a stream has no node and ``dangling`` is "error". The message
            has file, row and key.
        BudgetError
            The keys of a partition do not fit in memory. The message has a sufficient budget.
        StoreWriteError
            The disk refuses.
        """
        if self._report is not None:
            return self._report
        table = self._tables()
        num_made = table.num_made
        if self._partitions is None:
            self._head.append(table.records)
        # What follows takes the memory of the table and of the block.
        self._table, self._block = None, None
        del table
        dropped = np.array([stream.dropped for stream in self._streams], np.int64)
        if self._partitions is not None:
            made_base = self._num_given + num_made
            twice, dangling, more = self._partitions.resolve(
                memory_bytes=self._budget // _TABLE_SHARE,
                block_bytes=self._block_bytes,
                missing=self._missing,
                num_given=self._num_given,
                made_base=made_base,
                stream_starts=np.array([stream.start for stream in self._streams], np.int64),
            )
            self._twice = first_wrong(self._twice, twice)
            self._refuse_twice()
            if dangling is not None and self.dangling == "error":
                raise self._dangling_error(dangling)
            dropped += more
            num_made += self._partitions.num_made
        partitions = self._partitions
        self._report = NumberingReport(
            num_nodes=self._num_given + num_made,
            num_given=self._num_given,
            num_made=num_made,
            dropped=tuple(dropped.tolist()),
            key_bytes=self._head.num_bytes + (0 if partitions is None else partitions.made_bytes),
            spilled_bytes=0 if partitions is None else partitions.spilled_bytes,
        )
        return self._report

    def ids(self, stream: KeyStream, max_ids: int) -> Iterator[IdArray]:
        """Yield the ids (n,) int64 of a stream's keys in order, at most ``max_ids`` at a time. -1 is a dropped key.

        It may be called again. It takes 32 bytes for each of the ``max_ids``, or half of the budget if that is more.

        Raises
        ------
        StoreWriteError
            A file ends early.
        """
        self._require_resolved()
        cursor = stream.cursor
        if self._partitions is not None:
            cursor = np.zeros(self._partitions.num_partitions, np.int64) if cursor is None else cursor.copy()
        # Each partition's file is opened for each piece, so a piece has many ids of each partition.
        read = max_ids
        if self._partitions is not None:
            read = max(max_ids, min(self._partitions.num_partitions * _READ_IDS, self._budget // 64))
        for order in stream.order.pieces(stream.num_keys, read):
            ids = order.astype(np.int64)
            del order
            if self._partitions is not None and cursor is not None and ids.min() <= LEFT:
                ids = self._partitions.ids_in_turn(ids, cursor)
            for start in range(0, len(ids), max_ids):
                yield ids[start : start + max_ids]

    def keys(self, max_keys: int) -> Iterator[KeyChunk]:
        """Yield the keys of all nodes in order of their ids, at most ``max_keys`` at a time. Raises as `ids`."""
        self._require_resolved()
        yield from keys_in_order(self._head, max_keys)
        if self._partitions is not None and self._partitions.num_made:
            yield from self._partitions.made_keys(max_keys)

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory now: up to the budget before `resolve`, and only places in files after it."""
        table = 0 if self._table is None else self._budget
        cursors = sum(0 if stream.cursor is None else stream.cursor.nbytes for stream in self._streams)
        return table + cursors

    def close(self) -> None:
        """Release the memory, and remove the files. Idempotent."""
        self._table, self._block = None, None
        self._head.remove()
        for stream in self._streams:
            stream.close()
            stream.order.remove()
        if self._partitions is not None:
            self._partitions.close()

    def __enter__(self) -> Self:
        """Return the numbering."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the numbering."""
        self.close()

    @property
    def _missing(self) -> int:
        """The treatment of a key of a stream that has no node yet: MAKE or DROP."""
        return MAKE if self._nodes_where is None or self.dangling == "node" else DROP

    def _tables(self) -> KeyTable:
        """Return the table. Raises ValueError after `resolve` or `close`."""
        if self._table is None:
            raise ValueError("a numbering takes no more keys after `resolve` or `close`")
        return self._table

    def _require_resolved(self) -> None:
        if self._report is None:
            raise ValueError("the ids of a numbering are known after `resolve`")

    def _blocks(self, chunk: KeyChunk, where: tuple[str, ...], *, start: int) -> Iterator[KeyRecords]:
        """Yield the keys as blocks of records. ``start`` is the position of the first key of ``where``."""
        self._tables()
        block, first = self._block, 0
        if block is None:
            return
        data, starts = readonly(chunk.data), readonly(chunk.starts)
        # Half of a block must hold any record: see `Partitions.resolve`.
        half = len(block.records) // 2
        while first < len(chunk):
            count = pack_keys(
                data, starts, first, self._position, self._cut,
                block.records[:half], block.places, block.hashes,
            )  # fmt: skip
            if count <= 0:
                index = first if count == 0 else -1 - count
                raise self._no_room(len(chunk.key(index)), where, self._position + index - first - start)
            block.num_records = count
            yield block
            first += count
            self._position += count

    def _place(self, block: KeyRecords, missing: int) -> WrongKey | None:
        """Look up and add a block's keys. Return the first one that was dropped."""
        table, first = self._tables(), 0
        while True:
            first = table.place(block, first, missing=missing if self._partitions is None else LEAVE)
            if first == block.num_records:
                break
            # The table is full. From here on, its keys are only looked up.
            self._head.append(table.records)
            self._partitions = Partitions(
                self._folder, self._name, memory_bytes=self._budget // _STAGE_SHARE, cut=self._cut
            )
        table.taken_firsts(block)
        self._twice = first_wrong(self._twice, table.taken_twice(block))
        dangling = table.taken_dangling(block)
        if self._partitions is not None:
            self._partitions.add_left(block, num_given=table.num_given)
        return dangling

    def _no_room(self, num_bytes: int, where: tuple[str, ...], index: int) -> SourceError | BudgetError:
        """Return the error for a key that is too long. ``index`` is its number among the keys of ``where``."""
        place = f"{where[index % len(where)]}: row {index // len(where)} has a key of {num_bytes} bytes"
        if num_bytes > MAX_KEY_BYTES:
            return SourceError(f"{place}; a key has at most {MAX_KEY_BYTES} bytes: write shorter keys")
        # A record takes at most half of a block's words, and these take a third of its bytes.
        enough = 3 * _BLOCK_SHARE * 16 * (num_bytes // 8 + 3)
        return BudgetError(
            f"{place}, for which the memory for keys, {format_bytes(self._budget)}, has no room; "
            f"{format_bytes(rounded_up(enough))} for keys are enough. Raise --memory-budget",
            short_bytes=enough - self._budget,
        )

    def _refuse_twice(self) -> None:
        """Raise SourceError if two given nodes have the same key."""
        if self._twice is not None:
            raise SourceError(
                f"{self._nodes_where}: rows {self._twice.first} and {self._twice.position} both have the key "
                f"{key_text(self._twice.key, self.kind)}; each node of type {self.node_type!r} has a key of its own: "
                "leave one of the rows out"
            )

    def _dangling_error(self, wrong: WrongKey) -> SourceError:
        """Return the error for a key of a stream that has no node."""
        stream = next(each for each in reversed(self._streams) if each.start <= wrong.position)
        row, turn = divmod(wrong.position - stream.start, len(stream.where))
        return SourceError(
            f"{stream.where[turn]}: row {row} has the key {key_text(wrong.key, self.kind)}, which no row of "
            f"{self._nodes_where} has; add the node, or say what becomes of such rows with `dangling: drop` (they are "
            "left out) or, without `tables`, `dangling: node` (each such key makes a node)"
        )
