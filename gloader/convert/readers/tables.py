"""Tables of numbers in files, whatever their format, and the edge and feature streams over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gloader.convert.readers.edge_times import to_seconds
from gloader.convert.readers.file_edges import with_inverse
from gloader.convert.readers.node_arrays import to_ids
from gloader.convert.source import EdgeChunk
from gloader.errors import GraphError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

# "time": whatever a file has of times, for `to_seconds`.
Number: TypeAlias = Literal["int64", "float32", "float64", "time"]
TableError: TypeAlias = type[GraphError] | type[SourceError]
Columns: TypeAlias = tuple[NDArray[Any], ...]

SOURCE_NAMES = ("src", "source", "from", "u", "row")
DESTINATION_NAMES = ("dst", "target", "destination", "to", "v", "col")
_WEIGHT_NAMES = ("weight", "edge_weight", "w")
_FEATURE: Number = "float32"


class TableFile(Protocol):
    """Named columns of numbers, read as a stream. Every call of a method starts again at the first row."""

    @property
    def path(self) -> Path:
        """The file."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names; c0, c1, ... where the file has none."""
        ...

    @property
    def has_names(self) -> bool:
        """Whether the names are the file's."""
        ...

    @property
    def num_rows(self) -> int | None:
        """Number of rows; None: unknown until they are read."""
        ...

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Yield the named ``columns`` as arrays of the dtypes given, some thousands of rows at a time.

        Raises
        ------
        error
            A value is missing or is no such number; names the file, the row and the value.
        SourceError
            The file is truncated or corrupt.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEdges:
    """The edges of a table: a row is an edge."""

    table: TableFile
    src: str  # column
    dst: str  # column
    weight: str | None = None  # column
    time: str | None = None  # column
    known_edges: int | None = None  # rows, where something else than the table tells
    add_inverse: bool = False  # the reverse of each edge right behind it, as OGB does

    @classmethod
    def open(
        cls, table: TableFile, *, known_edges: int | None = None, add_inverse: bool = False
    ) -> TableEdges:
        """Find the columns by their names (src, dst, weight and the like), or else take the first two or three.

        Parameters
        ----------
        table : its rows are the edges
        known_edges : number of rows where something else than the table tells; None: as the table says
        add_inverse : stream the reverse of each edge right behind it

        Raises
        ------
        SourceError
            There are fewer than two columns.
        """
        names = table.names
        if len(names) < 2 and names:
            raise SourceError(
                f"{table.path} has columns {', '.join(names)}; an edge list has source, destination, perhaps weight"
            )
        src, dst = named_column(names, SOURCE_NAMES), named_column(names, DESTINATION_NAMES)
        weight = named_column(names, _WEIGHT_NAMES)
        if src is None or dst is None:
            src, dst = names[:2] if names else ("c0", "c1")
            # A third column with a name of its own may be anything, such as a time.
            if not table.has_names and len(names) == 3:
                weight = names[2]
        return cls(
            table=table, src=src, dst=dst, weight=weight, known_edges=known_edges, add_inverse=add_inverse
        )

    @property
    def num_edges(self) -> int | None:
        """Number of edges; None: unknown until they are read."""
        given = self.table.num_rows if self.known_edges is None else self.known_edges
        return given if given is None or not self.add_inverse else 2 * given

    @property
    def has_weights(self) -> bool:
        """Whether every chunk carries weights."""
        return self.weight is not None

    @property
    def has_times(self) -> bool:
        """Whether every chunk carries times."""
        return self.time is not None

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time."""
        if not self.table.names:
            return
        first = 0
        # With the reverse edges a chunk is twice as large as what is read for it.
        num_read = max(1, max_edges // (1 + self.add_inverse))
        columns = self._columns()
        names = list(columns)
        for arrays in regroup(self.table.read(columns, error=GraphError), num_read):
            found = dict(zip(names, arrays, strict=True))
            chunk = EdgeChunk(
                src=to_ids(found[self.src], first=first, where=self._where(self.src)),
                dst=to_ids(found[self.dst], first=first, where=self._where(self.dst)),
                weight=None if self.weight is None else np.ascontiguousarray(found[self.weight], np.float32),
                time=(
                    None
                    if self.time is None
                    else to_seconds(found[self.time], first=first, where=self._where(self.time))
                ),
            )
            first += chunk.src.shape[0]
            yield with_inverse(chunk) if self.add_inverse else chunk

    def _columns(self) -> dict[str, Number]:
        columns: dict[str, Number] = {self.src: "int64", self.dst: "int64"}
        if self.weight is not None:
            columns[self.weight] = "float32"
        if self.time is not None:
            columns[self.time] = "time"
        return columns

    def _where(self, column: str) -> str:
        return f"{self.table.path}, column {column!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFeatures:
    """The feature rows of a table: a row is a node, or an edge, and a column is a feature."""

    table: TableFile
    num_rows: int
    columns: tuple[str, ...] | None = None  # None: all of them

    @property
    def dim(self) -> int:
        """F."""
        return len(self._names)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks."""
        return np.dtype(np.float32)

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``."""
        for columns in regroup(self._read(), max_rows):
            yield np.column_stack(columns).astype(np.float32, copy=False)

    @property
    def _names(self) -> tuple[str, ...]:
        return self.table.names if self.columns is None else self.columns

    def _read(self) -> Iterator[Columns]:
        return self.table.read(dict.fromkeys(self._names, _FEATURE), error=SourceError)


def regroup(chunks: Iterable[Columns], max_rows: int) -> Iterator[Columns]:
    """Yield the rows of ``chunks`` in order, ``max_rows`` at a time; the last group may be shorter.

    Every chunk is a tuple of as many arrays, all of the same length. Memory is two groups.
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
    return (
        pieces[0]
        if len(pieces) == 1
        else tuple(np.concatenate(column) for column in zip(*pieces, strict=True))
    )


def named_column(names: tuple[str, ...], wanted: tuple[str, ...]) -> str | None:
    """Return the first of ``names`` that is one of ``wanted``, in any case; None: there is none. Pure."""
    by_lower = {name.lower(): name for name in names}
    return next((by_lower[name] for name in wanted if name in by_lower), None)
