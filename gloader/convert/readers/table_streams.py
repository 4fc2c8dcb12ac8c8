"""Edges and feature rows out of tables, as streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.readers.file_edges import with_inverse
from gloader.convert.readers.ids import to_ids
from gloader.convert.readers.regroup import regroup
from gloader.convert.source import EdgeChunk
from gloader.errors import GraphError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.readers.regroup import Columns
    from gloader.convert.readers.table import Number, Table

_SOURCE_NAMES = ("src", "source", "from", "u", "row")
_DESTINATION_NAMES = ("dst", "target", "destination", "to", "v", "col")
_WEIGHT_NAMES = ("weight", "edge_weight", "w")
_FEATURE: Number = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEdges:
    """The edges of a table: a row is an edge."""

    table: Table
    src: str  # column
    dst: str  # column
    weight: str | None = None  # column
    known_edges: int | None = None  # rows, where something else than the table tells
    add_inverse: bool = False  # the reverse of each edge right behind it, as OGB does

    @classmethod
    def open(cls, table: Table, *, known_edges: int | None = None, add_inverse: bool = False) -> TableEdges:
        """Find the columns by their names (src, dst, weight and the like), or else take the first two or three.

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
        src, dst = _named(names, _SOURCE_NAMES), _named(names, _DESTINATION_NAMES)
        weight = _named(names, _WEIGHT_NAMES)
        if src is None or dst is None:
            src, dst = names[:2] if names else ("c0", "c1")
            if not table.has_names and len(names) == 3:
                weight = names[2]
        return cls(
            table=table, src=src, dst=dst, weight=weight, known_edges=known_edges, add_inverse=add_inverse
        )

    @property
    def num_edges(self) -> int | None:
        """Number of edges, or None where only reading tells."""
        given = self.table.num_rows if self.known_edges is None else self.known_edges
        return given if given is None or not self.add_inverse else 2 * given

    @property
    def has_weights(self) -> bool:
        """Whether every chunk carries weights."""
        return self.weight is not None

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time."""
        if not self.table.names:
            return
        first = 0
        for src, dst, *weight in regroup(self._read(), max(1, max_edges // (1 + self.add_inverse))):
            chunk = EdgeChunk(
                src=to_ids(src, first=first, where=f"{self.table.path}, column {self.src!r}"),
                dst=to_ids(dst, first=first, where=f"{self.table.path}, column {self.dst!r}"),
                weight=np.ascontiguousarray(weight[0], np.float32) if weight else None,
            )
            first += src.shape[0]
            yield with_inverse(chunk) if self.add_inverse else chunk

    def _read(self) -> Iterator[Columns]:
        columns: dict[str, Number] = {self.src: "int64", self.dst: "int64"}
        if self.weight is not None:
            columns[self.weight] = "float32"
        return self.table.read(columns, error=GraphError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFeatures:
    """The feature rows of a table: a row is a node, a column is a feature."""

    table: Table
    num_rows: int

    @property
    def dim(self) -> int:
        """F."""
        return len(self.table.names)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks."""
        return np.dtype(np.float32)

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``."""
        for columns in regroup(self._read(), max_rows):
            yield np.column_stack(columns).astype(np.float32, copy=False)

    def _read(self) -> Iterator[Columns]:
        return self.table.read(dict.fromkeys(self.table.names, _FEATURE), error=SourceError)


def _named(names: tuple[str, ...], wanted: tuple[str, ...]) -> str | None:
    by_lower = {name.lower(): name for name in names}
    return next((by_lower[name] for name in wanted if name in by_lower), None)
