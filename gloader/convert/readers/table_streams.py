"""Tables of numbers in files of any format, and the edge and feature streams over them.

`NumberTable` is the interface for CSV and Parquet files (`open_table`). `TableEdges` and `table_features` make a
source's streams from its columns. A stream yields edges or rows in chunks, and can be read several times. `ColumnNotes`
collects a line on each file's columns and their roles for the receipt, the record of the data that a conversion found
and used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gloader.convert.readers.checked_rows import to_weights
from gloader.convert.readers.column_names import (
    KNOWN_ENDS,
    LISTS,
    WEIGHT_NAMES,
    end_columns,
    end_pairs,
    is_unnamed,
    listed,
    named_column,
)
from gloader.convert.readers.edge_columns import to_seconds
from gloader.convert.readers.node_arrays import to_ids
from gloader.convert.source import EdgeChunk, EdgeStream, FeatureStream
from gloader.core.malformed import shown
from gloader.core.rounding import as_float32, is_rounded, of_rounding
from gloader.dataset.column_values import Place, plain_column
from gloader.errors import FeatureValueError, GraphError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from gloader.types import IdArray

    # True for the fields of a first row that is a header.
    HeaderRule: TypeAlias = Callable[[Sequence[str]], bool]


# The type in which a column is read. "time" means any form of times in a file, which `to_seconds` converts.
Number: TypeAlias = Literal["int64", "float32", "float64", "time"]
# The class of the error for a bad value.
TableError: TypeAlias = type[GraphError] | type[SourceError]
# Equally long arrays, one for each requested column.
Columns: TypeAlias = tuple[NDArray[Any], ...]

# Kinds of columns that can be read as numbers.
NUMBER_KINDS: Final = frozenset({"integer", "number", "bool", "empty"})


class NumberTable(Protocol):
    """Named columns of numbers, read as a stream. Every call starts again at the first row."""

    @property
    def path(self) -> Path:
        """The file."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, or c0, c1, ... if the file has no names."""
        ...

    @property
    def has_names(self) -> bool:
        """True if the file has the names."""
        ...

    @property
    def index(self) -> tuple[str, ...]:
        """Columns that number the rows, such as a pandas index. They are never features or ends of edges."""
        ...

    @property
    def row_ids(self) -> range | None:
        """The rows' node ids if pandas stored its index as a range, not as a column. None means no range, or 0..N-1."""
        ...

    @property
    def counts_columns(self) -> bool:
        """True if the first row is 0, 1, 2 and so on. It is data, or pandas' header for columns without names."""
        ...

    @property
    def remark(self) -> str:
        """The receipt's remark on the format, such as "Matrix Market, ids from 1", or an empty text."""
        ...

    @property
    def num_rows(self) -> int | None:
        """Number of rows, or None if unknown until they are read."""
        ...

    def count_rows(self) -> int:
        """Return the number of rows. If the file does not store it, the rows are read. Raises SourceError."""
        ...

    def kind(self, column: str) -> str:
        """Return a column's kind: integer, number, bool, empty, "list of 3", or another such as string.

        A text file's kinds come from its first rows. "empty" means that these have no values.
        """
        ...

    def width(self, column: str) -> int:
        """Return the number of numbers per row in a column: 1, or the length of its lists."""
        ...

    def reading_bytes(self, columns: Iterable[str]) -> int:
        """Return the bytes of memory for reading ``columns``, in addition to the arrays that `read` yields."""
        ...

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Yield the named columns as arrays (n,), or (n, width) for lists. Dtypes may be wider than requested.

        A missing float is NaN.

        Parameters
        ----------
        columns : the type in which each column is read, by name
        error : class of the error for a bad value

        Raises
        ------
        error
            A whole number is missing, or a value is not such a number. The message names file, row and value.
        ShapeError
            A list has another length than the first.
        SourceError
            The file is truncated or corrupt.
        """
        ...

    def arrow_type(self, column: str) -> pa.DataType:
        """Return pyarrow's type for a column in `read_arrow`. In a text file, every column has the type string.

        Raises SourceError if the files of a table have types for the column that no common type holds.
        """
        ...

    def read_arrow(self, columns: Sequence[str], *, error: TableError) -> Iterator[pa.RecordBatch]:
        """Yield the named columns with their stored values, in batches. Every call starts at the first row.

        A text file's fields come as the exact text between two separators, without the quotes. An empty field is null.
        A column that is stored as numbers into a dictionary comes as the dictionary's values.

        Parameters
        ----------
        columns : names of the columns, which are the batches' columns in this order
        error : class of the error for a bad row

        Raises
        ------
        error
            A row of a text file has another number of fields than the header, or is not UTF-8.
        SourceError
            The file is truncated or corrupt.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEdges:
    """The columns of an edge table, with one edge per row."""

    table: NumberTable
    src: str  # the column of sources
    dst: str  # the column of destinations
    weight: str | None = None  # the column of weights, if any
    time: str | None = None  # the column of times, if any
    num_edges: int | None = None  # None means unknown until the rows are read

    @classmethod
    def open(
        cls,
        table: NumberTable,
        *,
        src: str | None = None,
        dst: str | None = None,
        weight: str | None = None,
        num_edges: int | None = None,
        keys: str = "--src COLUMN --dst COLUMN",
    ) -> TableEdges:
        """Find the columns of the ends and the weight by name. Without a header, they are the first three columns.

        Parameters
        ----------
        table : the edge table
        src, dst, weight : columns, or None to find them by name
        num_edges : number of rows if another file has it, or None for the table's own number
        keys : the options that name columns, for messages

        Raises
        ------
        SourceError
            There are fewer than two columns. Or the known names match no ends, several ends or several weights. Or an
            end is named as the weight. The message lists the columns.
        """
        names = table.names
        if len(names) < 2 and names:
            only = f", {shown(names[0])}" if table.has_names else ""
            raise SourceError(
                f"{table.path} has one column{only}; an edge list has source, destination, perhaps "
                "weight, in text separated by commas, tabs, semicolons, bars or blanks"
            )
        ends = find_ends(table, src, dst, keys=keys)
        if weight in ends:
            raise SourceError(end_used_twice(table, str(weight), "weights"))
        if weight is None and table.has_names:
            others = [name for name in names if name not in ends]
            weight = named_column(others, WEIGHT_NAMES, what=f"the weights of {table.path}")
        # A named third column may be anything, such as a time. An unnamed third column is the weight if it has numbers.
        elif weight is None and len(names) == 3 and names[2] not in ends:
            weight = names[2] if table.kind(names[2]) in NUMBER_KINDS - {"empty"} else None
        if weight is not None and not is_number(table, weight):
            raise SourceError(
                f"{table.path}: column {weight!r} holds {table.kind(weight)}s; weights are numbers. Write numbers, or "
                "give the column another name"
            )
        count = table.num_rows if num_edges is None else num_edges
        return cls(table=table, src=ends[0], dst=ends[1], weight=weight, num_edges=count)

    def stream(self) -> EdgeStream:
        """Return the edges as a stream. Pure."""
        columns = self.columns()
        names = self.table.names
        return EdgeStream(
            chunks=self._chunks,
            num_edges=self.num_edges,
            has_weights=self.weight is not None,
            has_times=self.time is not None,
            columns=tuple(name for name in names if name not in (self.src, self.dst)),
            reading_bytes=self.table.reading_bytes(columns) if names else 0,
        )

    def _chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in chunks of ``max_edges``; the values are checked here."""
        if not self.table.names:
            return
        first, columns = 0, self.columns()
        for arrays in regroup(self.table.read(columns, error=GraphError), max_edges):
            yield self.chunk(dict(zip(columns, arrays, strict=True)), first)
            first += arrays[0].shape[0]

    def chunk(
        self,
        by_name: Mapping[str | None, NDArray[Any]],
        first: int,
        ends: tuple[IdArray | None, IdArray | None] = (None, None),
    ) -> EdgeChunk:
        """Return the edges of consecutive rows, after a check of their values. Pure.

        Parameters
        ----------
        by_name : the values (n,) of the columns that were read
        first : the number of the first row, for messages
        ends : ids (n,) of sources and of destinations; None for an end whose column has ids

        Raises
        ------
        GraphError, SourceError
            As `to_ids`, `to_weights` and `to_seconds`.
        """
        src, dst = (
            to_ids(by_name[name], first=first, where=self._where(name)) if ids is None else ids
            for name, ids in zip((self.src, self.dst), ends, strict=True)
        )
        weight, time = by_name.get(self.weight), by_name.get(self.time)
        return EdgeChunk(
            src=src,
            dst=dst,
            weight=None
            if weight is None
            else to_weights(weight, first=first, where=self._where(self.weight)),
            time=None if time is None else to_seconds(time, first=first, where=self._where(self.time)),
        )

    def columns(self, has_keys: tuple[bool, bool] = (False, False)) -> dict[str, Number]:
        """Return the columns to read, with the type in which each is read. Pure.

        ``has_keys`` is True for the source or the destination column if it has keys, which are read elsewhere.
        """
        ends = zip((self.src, self.dst), has_keys, strict=True)
        columns: dict[str, Number] = {name: "int64" for name, is_key in ends if not is_key}
        if self.weight is not None:
            columns[self.weight] = "float64"
        if self.time is not None:
            columns[self.time] = "time"
        return columns

    def _where(self, column: str | None) -> str:
        """Return the file and the column, for messages."""
        return f"{self.table.path}, column {column!r}"


def table_features(
    table: NumberTable, num_rows: int, columns: tuple[str, ...] | None = None, *, may_round: bool = False
) -> FeatureStream:
    """Return a table's feature rows as float32, one row per node or edge, one column per feature. Pure.

    The stream's ``chunks`` raises FeatureValueError if a number is too large for float32, or if float32 would round a
    whole number.

    Parameters
    ----------
    table : the table of features
    num_rows : N, or E
    columns : the columns to read, or None for all columns
    may_round : round whole numbers that float32 cannot hold, instead of an error. Without it, the stream's ``rounded``
        is the stream with it
    """
    chosen = table.names if columns is None else columns
    widths = {name: table.width(name) for name in chosen}

    def floats() -> Iterator[Columns]:
        """Yield the columns in the file's batches, as float32."""
        first = 0
        # The numbers are read as float64, so that rounding to float32 is detected.
        for arrays in table.read(dict.fromkeys(chosen, "float64"), error=SourceError):
            yield tuple(
                _float32(table, name, column, first, may_round=may_round)
                for name, column in zip(chosen, arrays, strict=True)
            )
            first += arrays[0].shape[0]

    return FeatureStream(
        chunks=lambda max_rows: map(np.column_stack, regroup(floats(), max_rows)),
        num_rows=num_rows,
        dim=sum(widths.values()),
        dtype=np.dtype(np.float32),
        names=tuple(
            name if width == 1 else f"{name}[{number}]"
            for name, width in widths.items()
            for number in range(width)
        ),
        where=str(table.path),
        rounded=None if may_round else table_features(table, num_rows, columns, may_round=True),
        reading_bytes=table.reading_bytes(chosen),
    )


def _float32(
    table: NumberTable, name: str, column: NDArray[Any], first: int, *, may_round: bool
) -> NDArray[np.float32]:
    """Return a column as float32. Raise FeatureValueError for a value that `table_features` refuses.

    ``first`` is the number of the column's first row, for messages.
    """
    narrow = as_float32(column)
    if column.dtype.itemsize < 4 or column.dtype == np.float32 or not column.size:
        return narrow
    is_beyond = np.isinf(narrow) & np.isfinite(column)
    is_bad = is_beyond
    if not may_round:
        is_bad = is_beyond | is_rounded(column)
        if column.dtype.kind == "f" and table.kind(name) == "integer":
            # These whole numbers were read from text as float64, which has already rounded those beyond 2**53.
            is_bad |= np.abs(column) > 2**53
    if is_bad.any():
        index = np.unravel_index(int(is_bad.argmax()), is_bad.shape)
        value = column[index] if is_beyond[index] or abs(column[index]) < 1 else int(column[index])
        place = f"{table.path}: row {first + int(index[0])}, column {shown(name)} is {value}"
        if is_beyond[index]:
            raise FeatureValueError(f"{place}, which is beyond float32; scale the features")
        option = "--dtype float32 (of edges --edge-dtype), in Python dtype='float32'"
        raise FeatureValueError(place + of_rounding(value, option))
    return narrow


def regroup(chunks: Iterable[Columns], max_rows: int) -> Iterator[Columns]:
    """Yield the rows of ``chunks`` in order, in groups of ``max_rows``. The last group may be shorter.

    Every chunk and every group is a tuple of equally long arrays, one for each column. Two groups are in memory at the
    same time.
    """
    held: list[Columns] = []
    count = 0
    for chunk in chunks:
        start, length = 0, chunk[0].shape[0]
        while start < length:
            stop = min(length, start + max_rows - count)
            held.append(tuple(column[start:stop] for column in chunk))
            count += stop - start
            start = stop
            if count == max_rows:
                yield _joined(held)
                held, count = [], 0
    if held:
        yield _joined(held)


def _joined(pieces: list[Columns]) -> Columns:
    """Return the rows of all pieces, one array for each column. A single piece is not copied."""
    return (
        pieces[0]
        if len(pieces) == 1
        else tuple(np.concatenate(column) for column in zip(*pieces, strict=True))
    )


def counted_batches(
    table: NumberTable, columns: Sequence[str], num_rows: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches of `NumberTable.read_arrow`, each with the number of its first row.

    Raises
    ------
    ShapeError
        The table has other than ``num_rows`` rows.
    SourceError
        The file is malformed, truncated or corrupt.
    """
    first = 0
    for batch in table.read_arrow(columns, error=SourceError):
        if first + batch.num_rows > num_rows:
            raise ShapeError(f"{table.path} has more than the {num_rows} rows that are expected")
        yield first, batch
        first += batch.num_rows
    if first != num_rows:
        raise ShapeError(f"{table.path} has {first} rows, and {num_rows} are expected")


def placed_columns(
    table: NumberTable, columns: Sequence[str], num_rows: int
) -> Iterator[tuple[tuple[Any, Place], ...]]:
    """Yield pyarrow's array and its place for each of the ``columns``, batch by batch. Raises as `counted_batches`."""
    where = str(table.path)
    for first, batch in counted_batches(table, columns, num_rows):
        yield tuple(
            (plain_column(array), Place(where=where, column=name, first=first, error=SourceError))
            for name, array in zip(columns, batch.columns, strict=True)
        )


def is_number(table: NumberTable, column: str) -> bool:
    """True if a column's kind can be read as numbers. Pure."""
    return table.kind(column) in NUMBER_KINDS


def is_feature(table: NumberTable, column: str) -> bool:
    """True if a column can be features: numbers, or lists of numbers. Pure."""
    return is_number(table, column) or table.kind(column).startswith(LISTS)


def find_ends(
    table: NumberTable, src: str | None = None, dst: str | None = None, *, keys: str
) -> tuple[str, str]:
    """Return an edge table's columns of sources and destinations. Pure.

    Parameters
    ----------
    table : the edge table
    src, dst : requested columns. By default, they are found by name, or are the first two without a header
    keys : the options that name columns, for messages

    Raises
    ------
    SourceError
        The known names match no ends, or several. The message lists the columns.
    """
    names, path = table.names, table.path
    for key, column in (("src", src), ("dst", dst)):
        if column is not None and column not in names:
            raise SourceError(f"{key} is {shown(column)}; the columns of {path} are {listed(names)}")
    # The columns that may be ends. An empty file has no columns. It counts as a table with the columns c0 and c1.
    named = [name for name in names if not is_unnamed(name)] if table.has_names else [*names, "c0", "c1"][:2]
    if not table.has_names or (len(named) == 2 and (src is None) != (dst is None)):
        # If a request names one of two columns, the other end is the other column.
        first = src or next(name for name in named if name != dst)
        return first, dst or next(name for name in named if name != first)
    if src is None and dst is None:
        pairs = end_pairs(named)
    else:
        firsts = [src] if src is not None else end_columns(named, is_source=True)
        lasts = [dst] if dst is not None else end_columns(named, is_source=False)
        pairs = [(first, last) for first in firsts for last in lasts if first != last]
    if len(pairs) == 1:
        return pairs[0]
    problem = (
        f"several may be the ends of edges, {_listed(pairs)}" if pairs else "none are known as ends of edges"
    )
    raise SourceError(
        f"{path} has the columns {listed(names)}: {problem}. Known names are {KNOWN_ENDS}; name others with {keys}"
    )


def end_used_twice(table: NumberTable, column: str, what: str) -> str:
    """Return the error for an end of edges that is also named as ``what``, "weights" or "times". Pure."""
    return (
        f"{table.path}: column {shown(column)} is an end of the edges, and is named as their {what}; the columns are "
        f"{listed(table.names)}: name another for the {what}, or leave it out"
    )


def _listed(pairs: list[tuple[str, str]]) -> str:
    """Return the first pairs of columns, for messages."""
    return " or ".join(f"{listed([first])} and {listed([last])}" for first, last in pairs[:3])


@dataclass(frozen=True, slots=True)
class ColumnNotes:
    """Notes for the receipt on the columns of a source's files: their roles, and the unused columns."""

    lines: list[str] = field(default_factory=list)  # one line per file, with its columns' roles
    _used: set[tuple[Path, str]] = field(default_factory=set)  # used columns, by file and name
    _texts: dict[tuple[Path, str], str] = field(default_factory=dict)  # each column's text, by file and name

    @property
    def unused(self) -> tuple[str, ...]:
        """The unused columns, each with its kind and its file."""
        return tuple(text for column, text in self._texts.items() if column not in self._used)

    def add(self, line: str, table: NumberTable, used: Iterable[str | None]) -> None:
        """Add a line on ``table``'s columns, and mark the columns in ``used``."""
        self.lines.append(line)
        self._used.update((table.path, name) for name in used if name is not None)
        for name in table.names:
            # The text includes the name that flags take, such as c0 for the first column without a name.
            text = name if table.has_names else f"{column_text(table, name)}, {name}"
            self._texts[table.path, name] = f"{text} ({table.kind(name)}) of {table.path.name}"


def column_text(table: NumberTable, name: str) -> str:
    """Return a column's name, or its number from 1 if columns have no names. Pure."""
    return name if table.has_names else f"column {table.names.index(name) + 1}"
