"""The tables of a RelBench database as node types and relations: row i of a table is node i of its type.

`open_rows` opens a table, reads its times, and checks its primary keys. `foreign_key` counts the edges of a column of
foreign keys, and makes its two relations: ``f2p_COLUMN`` from the table to the parent, and ``p2f_COLUMN`` back. The
time of an edge u -> v is the time of row u. A relation from a table without times has no times, so that all of its
edges are allowed at any time. A foreign key is *dangling* if no row of the parent has it. It makes no edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.keys.values import key_chunk
from gloader.convert.readers.column_names import listed
from gloader.convert.readers.node_arrays import require_memory
from gloader.convert.readers.parquet_table import open_parquet_table
from gloader.convert.readers.table_streams import placed_columns, regroup
from gloader.convert.readers.typed_table import kept_rows
from gloader.convert.source import EdgeChunk, EdgeStream, NodeKeys, RelationSource
from gloader.core.keys import KEY_BYTES
from gloader.core.malformed import shown
from gloader.dataset.column_values import MICROSECONDS, times
from gloader.errors import SourceError
from gloader.types import NO_TIME

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from gloader.convert.readers.table_streams import NumberTable
    from gloader.convert.readers.typed_table import TypedTable
    from gloader.convert.sources.relbench_manifest import Database, TableEntry
    from gloader.core.keys import KeyChunk
    from gloader.dataset.column_values import Place
    from gloader.types import IdArray

# Bytes per row of a table while it is opened: its time, as read and among the kept rows, and the masks of rows.
_TIME_BYTES: Final = 8 + 8 + 4
# Bytes per row of a table whose keys are not 0..N-1: the keys in batches, as one array and in order, and their order.
_KEY_BYTES: Final = 4 * 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a table that are nodes."""

    entry: TableEntry
    table: NumberTable
    num_rows: int  # N
    # (N,) int64 seconds, rounded down, `NO_TIME` where missing; None without a column of times
    times: IdArray | None = None
    # (N,) the keys in ascending order, and (N,) their rows. None means that row i has the key i.
    keys: tuple[IdArray, IdArray] | None = None
    left_out: tuple[str, ...] = ()  # texts on rows that are no nodes: "3 rows of visits without a time"

    @property
    def held_bytes(self) -> int:
        """Bytes of the times and keys."""
        return (self.num_rows * 8) * ((self.times is not None) + 2 * (self.keys is not None))

    def find(self, keys: IdArray) -> IdArray:
        """Return the node (n,) with each of the ``keys`` (n,), -1 where there is none. Pure."""
        if self.keys is None:
            return np.where((keys >= 0) & (keys < self.num_rows), keys, -1)
        ordered, rows = self.keys
        if not self.num_rows:
            return np.full(len(keys), -1, np.int64)
        place = np.minimum(np.searchsorted(ordered, keys), self.num_rows - 1)
        return np.where(ordered[place] == keys, rows[place], -1)

    def node_keys(self) -> NodeKeys | None:
        """Return the keys of the nodes for the dataset, or None if they are the nodes' ids."""
        column = self.entry.key
        if self.keys is None or column is None:
            return None

        def chunks(max_keys: int) -> Iterator[KeyChunk]:
            first, where = 0, f"{self.table.path}, column {shown(column)}"
            for batch in self.table.read_arrow([column], error=SourceError):
                for start in range(0, batch.num_rows, max_keys):
                    part = batch.column(0).slice(start, max_keys)
                    yield key_chunk(part.cast("int64"), "int64", first_row=first + start, where=where)
                first += batch.num_rows

        return NodeKeys(kind="int64", num_bytes=KEY_BYTES["int64"] * self.num_rows, chunks=chunks)


def open_rows(database: Database, entry: TableEntry, *, keeps_later: bool, budget_bytes: int) -> Rows:
    """Open a table, with its times and keys.

    Without ``keeps_later``, rows after the test time and rows without a time are left out, as RelBench's ``get_db``
    does.

    Raises
    ------
    SourceError
        The file is missing or malformed, a column of the description is missing, a primary key is missing or occurs
        twice, or a value is no time or no whole number.
    BudgetError
        Times and keys take more than ``budget_bytes``.
    """
    path = database.folder / "db" / f"{entry.name}.parquet"
    table = open_parquet_table(path)
    for column in filter(None, (entry.key, entry.time, *entry.parents)):
        if column not in table.names:
            raise SourceError(
                f"{database.path}: {entry.name} has the column {shown(column)}; the columns of {path} are "
                f"{listed(table.names)}"
            )
    kept, seconds, left_out = table, None, {}
    if entry.time is not None:
        require_memory(_TIME_BYTES * table.num_rows, f"the times of {path}", budget_bytes)
        exact, is_missing = _times(table, entry.time)
        is_kept = np.ones(len(exact), np.bool_)
        if not keeps_later:
            is_later = exact > database.test_time
            is_kept = ~(is_later | is_missing)
            left_out = {"after the test time": is_later & ~is_missing, "without a time": is_missing}
        seconds = exact[is_kept]
        seconds //= MICROSECONDS
        seconds[is_missing[is_kept]] = NO_TIME
        kept = kept_rows(table, is_kept)
    return Rows(
        entry=entry,
        table=kept,
        num_rows=kept.num_rows,
        times=seconds,
        keys=None if entry.key is None else _keys(kept, entry.key, budget_bytes),
        left_out=tuple(
            f"{np.count_nonzero(each):,} rows of {entry.name} {why}"
            for why, each in left_out.items()
            if each.any()
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """A column of foreign keys, whose rows were counted."""

    child: Rows
    column: str
    parent: Rows
    num_edges: int  # rows with a foreign key of the parent
    note: str  # the receipt's text on rows that make no edge, empty if all make one

    def relations(self) -> tuple[RelationSource, RelationSource]:
        """Return the relation to the parent, and the one back."""
        child, parent, path = self.child.entry.name, self.parent.entry.name, self.child.table.path
        forth, back = (child, f"f2p_{self.column}", parent), (parent, f"p2f_{self.column}", child)
        return (
            RelationSource(
                relation=forth,
                edges=self._stream(is_back=False),
                edge_file=path,
                is_row_timed=self.child.times is not None,
            ),
            RelationSource(
                relation=back,
                edges=self._stream(is_back=True),
                edge_file=path,
                is_row_timed=self.parent.times is not None,
            ),
        )

    def _stream(self, *, is_back: bool) -> EdgeStream:
        """Return the edges from the table to the parent, or back."""
        row_times = (self.parent if is_back else self.child).times

        def chunks(max_edges: int) -> Iterator[EdgeChunk]:
            for rows, parents in regroup(_matches(self.child, self.column, self.parent), max_edges):
                src, dst = (parents, rows) if is_back else (rows, parents)
                yield EdgeChunk(src=src, dst=dst, time=None if row_times is None else row_times[src])

        return EdgeStream(
            chunks=chunks,
            num_edges=self.num_edges,
            has_times=row_times is not None,
            reading_bytes=self.child.table.reading_bytes([self.column]),
        )


def foreign_key(child: Rows, column: str, parent: Rows) -> ForeignKey:
    """Count the rows of a column of foreign keys: with a key of the parent, missing ones, and dangling ones.

    Raises SourceError for a value that is no whole number.
    """
    num_edges = num_missing = num_dangling = done = 0
    first = ""
    for keys, is_there in whole_numbers(child.table, column):
        is_dangling = is_there & (parent.find(keys) < 0)
        if not num_dangling and is_dangling.any():
            row = int(is_dangling.argmax())
            first = f"first {keys[row]} in row {done + row:,}"
        num_missing += int(np.count_nonzero(~is_there))
        num_dangling += int(np.count_nonzero(is_dangling))
        num_edges += int(np.count_nonzero(is_there & ~is_dangling))
        done += len(keys)
    texts = [f"{num_missing:,} without a key"] if num_missing else []
    texts += [f"{num_dangling:,} dangling, {first}"] if num_dangling else []
    note = f"{column} of {child.table.path.name}: {', '.join(texts)}" if texts else ""
    return ForeignKey(child=child, column=column, parent=parent, num_edges=num_edges, note=note)


def _matches(child: Rows, column: str, parent: Rows) -> Iterator[tuple[IdArray, IdArray]]:
    """Yield the rows with a foreign key of the parent, and the parent's node of each, batch by batch."""
    done = 0
    for keys, is_there in whole_numbers(child.table, column):
        nodes = np.where(is_there, parent.find(keys), -1)
        rows = np.flatnonzero(nodes >= 0)
        yield rows + done, nodes[rows]
        done += len(keys)


def whole_numbers(table: NumberTable, column: str) -> Iterator[tuple[IdArray, NDArray[np.bool_]]]:
    """Yield the keys in a column batch by batch, as `integers` returns them. Raises SourceError."""
    for ((array, place),) in placed_columns(table, [column], table.count_rows()):
        yield integers(array, place)


def integers(array: pa.Array[Any], place: Place) -> tuple[IdArray, NDArray[np.bool_]]:
    """Return keys (n,) as int64, 0 where missing, and a mask (n,) of those that are there. Pure.

    Floats count if they have no fraction, because pandas turns a column with missing integers into floats.

    Raises
    ------
    SourceError
        The column has another type, or a number has a fraction or is beyond int64. The message names the column.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise place.of_type(
            kind,
            "keys are whole numbers, in RelBench 0..N-1 in the order of the rows; its script byod/reindex_dataset.py "
            "writes such keys",
        )
    is_missing = pc.is_null(array, nan_is_null=True)
    try:
        # NaN has no integer, so it is null before the cast.
        numbers = pc.if_else(is_missing, pa.scalar(None, kind), array).cast(pa.int64()).fill_null(0)
    except pa.ArrowInvalid as failure:
        raise place.of_type(kind, f"keys are whole numbers: {failure}") from failure
    return numbers.to_numpy(zero_copy_only=False), ~is_missing.to_numpy(zero_copy_only=False)


def _times(table: TypedTable, column: str) -> tuple[IdArray, NDArray[np.bool_]]:
    """Return a column's times (n,) in microseconds since 1970, and a mask (n,) of missing ones."""
    exact, is_missing = np.empty(table.num_rows, np.int64), np.empty(table.num_rows, np.bool_)
    for ((array, place),) in placed_columns(table, [column], table.num_rows):
        read, part = times(array, place=place), slice(place.first, place.first + len(array))
        exact[part], is_missing[part] = read.values, read.is_missing
    return exact, is_missing


def _keys(table: TypedTable, column: str, budget_bytes: int) -> tuple[IdArray, IdArray] | None:
    """Return the primary keys in ascending order and their rows, or None if row i has the key i."""
    done, is_plain = 0, True
    for keys, is_there in whole_numbers(table, column):
        if not is_there.all():
            row = done + int((~is_there).argmax())
            raise SourceError(
                f"{table.path}: row {row}, column {shown(column)} is missing; every row has a primary key"
            )
        is_plain = is_plain and bool(np.array_equal(keys, np.arange(done, done + len(keys))))
        done += len(keys)
    if is_plain:
        return None
    require_memory(_KEY_BYTES * done, f"the primary keys of {table.path}", budget_bytes)
    values = np.concatenate([keys for keys, _ in whole_numbers(table, column)])
    order = np.argsort(values, kind="stable")
    values = values[order]
    twice = np.flatnonzero(values[1:] == values[:-1])
    if twice.size:
        first, second = order[twice[0]], order[twice[0] + 1]
        raise SourceError(
            f"{table.path}: rows {first} and {second} have the primary key {values[twice[0]]} in column "
            f"{shown(column)}; each row has a key of its own"
        )
    return values, order
