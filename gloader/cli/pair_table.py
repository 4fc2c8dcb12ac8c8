"""Tables of pairs of nodes: `gloader infer --pairs FILE.csv` reads their keys, and writes scores beside them.

A key is the value that identifies a node in the source. Nodes without keys are identified by their ids in the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.keys.values import key_chunk
from gloader.convert.readers.open_table import is_table, open_table
from gloader.convert.readers.table_streams import find_ends
from gloader.core.keys import key_values
from gloader.core.malformed import shown
from gloader.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from gloader.convert.readers.table_streams import NumberTable
    from gloader.dataset.tables import NodeTable
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTable:
    """A table with a pair of nodes in each row: in two columns with known names, or in its only two columns."""

    table: NumberTable
    columns: tuple[str, str]  # the columns of sources and destinations

    @classmethod
    def open(cls, path: Path) -> PairTable | None:
        """Open the table at ``path``, or return None if it is no table by its name.

        Raises
        ------
        SourceError
            The file is missing or malformed, or it is unclear which columns have the ends.
        """
        if not is_table(path):
            return None
        table = open_table(path)
        if len(table.names) == 2:
            return cls(table=table, columns=(table.names[0], table.names[1]))
        return cls(
            table=table, columns=find_ends(table, keys="a header such as src,dst, or two columns alone")
        )

    def __str__(self) -> str:
        """Return the columns and the file."""
        return f"{self.columns[0]} and {self.columns[1]} of {self.table.path.name}"

    def ids(self, sources: NodeTable, destinations: NodeTable) -> IdArray:
        """Return the pairs (n, 2) by their ids in the dataset's source.

        Raises
        ------
        ConfigError
            A key is no node's.
        SourceError
            A key is missing or has the wrong form. The message names the row.
        """
        ends = zip((sources, destinations), self.columns, strict=True)
        return np.stack([self._ids(nodes, column) for nodes, column in ends], axis=1)

    def scored(self, scores: NDArray[np.float32]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table's two columns with their scores (n,) or (n, k)."""
        import pyarrow as pa

        columns = scores.reshape(len(scores), -1)
        names = ["score"] if columns.shape[1] == 1 else [f"score_{i}" for i in range(columns.shape[1])]
        done = 0
        for batch in self.table.read_arrow(self.columns, error=SourceError):
            part = columns[done : done + batch.num_rows]
            done += batch.num_rows
            arrays = [*batch.columns, *(pa.array(np.ascontiguousarray(column)) for column in part.T)]
            yield pa.RecordBatch.from_arrays(arrays, names=[*self.columns, *names])

    def _ids(self, nodes: NodeTable, column: str) -> IdArray:
        """Return the ids (n,) in the source of one column."""
        kind, done = nodes.key_kind, 0
        if kind is None:
            parts = [part[0] for part in self.table.read({column: "int64"}, error=SourceError)]
            return np.concatenate([np.empty(0, np.int64), *parts])
        found: list[Any] = [np.empty(0, np.int64)]
        where = f"--pairs {self.table.path}, column {column!r}"
        for batch in self.table.read_arrow([column], error=SourceError):
            keys = key_values(key_chunk(batch.column(0), kind, first_row=done, where=where), kind)
            ids = nodes.ids_of(keys, missing="-1")
            if (ids < 0).any():
                row = int((ids < 0).argmax())
                raise ConfigError(
                    f"{where}: row {done + row} has the key {shown(keys.tolist()[row])}, "
                    f"which no node of type {nodes.name!r} has"
                )
            found.append(ids if nodes.original_ids is None else nodes.original_ids[ids])
            done += len(keys)
        return np.concatenate(found)
