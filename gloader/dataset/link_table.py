"""A dataset's link tables: edges to predict, with optional labels, times and negative destinations.

`LinkTable` describes a table from the commit record, without open files. `LinkTable.open` returns `OpenLinks`, which
reads rows. A table has up to four columns: pairs, labels, times and negatives, see `gloader.dataset.link_record`. A
link loader opens a table and reads the rows of each batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from gloader.core.near_names import near_attributes
from gloader.dataset.link_record import LINK_LABELS, NEGATIVES, PAIRS, TIMES
from gloader.dataset.row_columns import OpenColumns
from gloader.types import LinkRows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from gloader.config import IoMode
    from gloader.dataset.row_columns import RowArrays
    from gloader.dataset.schema import LinkRecord
    from gloader.ssd_store.format.format import ArrayRecord
    from gloader.types import IdArray, Relation


class OpenLinks:
    """A link table that is open for reading, as the protocol `LinkReader`. Thread-safe. A forked child may read too.

    Owns its columns until `close`. A context manager. Made by `LinkTable.open`.

    Parameters
    ----------
    table : the table's entry in the commit record
    columns : the table's open columns
    num_rows : the number of edges to predict
    """

    def __init__(self, table: LinkRecord, columns: OpenColumns, *, num_rows: int) -> None:
        self._table = table
        self._columns = columns
        self.num_rows = num_rows

    @property
    def relation(self) -> Relation:
        """The edges' relation."""
        return self._table.relation

    @property
    def reverse_relation(self) -> Relation | None:
        """The reverse relation, or None."""
        return self._table.reverse

    @property
    def held_bytes(self) -> int:
        """Bytes in memory: columns, page checksums and the read buffer."""
        return self._columns.held_bytes

    def read(self, rows: IdArray, /) -> LinkRows:
        """Return the verified rows with the numbers ``rows`` (n,). Thread-safe. Raises as `OpenColumns.read`."""
        columns = self._columns.read(rows)
        sources, destinations, positions, reverses = np.ascontiguousarray(columns[PAIRS].T)
        return LinkRows(
            sources=sources,
            destinations=destinations,
            positions=positions,
            reverses=reverses,
            labels=columns.get(LINK_LABELS),
            times=columns.get(TIMES),
            negatives=columns[NEGATIVES].astype(np.int64) if NEGATIVES in columns else None,
        )

    def close(self) -> None:
        """Wait for running reads, and release everything. Idempotent."""
        self._columns.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@near_attributes
class LinkTable:
    """A link table. Thread-safe and read-only, without open files. Made by `Dataset`.

    Parameters
    ----------
    table : the table's entry in the commit record
    arrays : the table's arrays
    """

    def __init__(self, table: LinkRecord, arrays: RowArrays) -> None:
        self._table = table
        self._arrays = arrays

    def __repr__(self) -> str:
        """Return the table's name, relation and number of rows."""
        return f"LinkTable({self.name!r}, relation={':'.join(self.relation)!r}, num_rows={self.num_rows})"

    @property
    def arrays(self) -> Mapping[str, ArrayRecord]:
        """The array records, by plain name."""
        return self._arrays.records

    @property
    def name(self) -> str:
        """The table's name, such as "train"."""
        return self._table.name

    @property
    def relation(self) -> Relation:
        """The edges' relation."""
        return self._table.relation

    @property
    def reverse_relation(self) -> Relation | None:
        """The reverse relation, or None."""
        return self._table.reverse

    @property
    def num_rows(self) -> int:
        """The number of edges to predict."""
        return self.arrays[PAIRS].shape[0]

    @property
    def in_graph(self) -> int:
        """Number of rows whose edge is also in the graph. A batch may sample such an edge unless it is excluded."""
        return self._table.in_graph

    @property
    def has_labels(self) -> bool:
        """True if each row has a label."""
        return LINK_LABELS in self.arrays

    @property
    def label_dtype(self) -> str | None:
        """The labels' dtype, int64 or float32, or None without labels."""
        return self.arrays[LINK_LABELS].dtype if self.has_labels else None

    @property
    def has_times(self) -> bool:
        """True if each row has a time."""
        return TIMES in self.arrays

    @property
    def negatives_per_row(self) -> int:
        """The number of given negative destinations per row, or 0."""
        return self.arrays[NEGATIVES].shape[1] if NEGATIVES in self.arrays else 0

    @property
    def num_bytes(self) -> int:
        """Bytes of pairs, labels and times."""
        return sum(record.num_bytes for record in self.arrays.values()) - self.negative_bytes

    @property
    def negative_bytes(self) -> int:
        """Bytes for the given negative destinations."""
        return self.arrays[NEGATIVES].num_bytes if NEGATIVES in self.arrays else 0

    def open(self, *, max_bytes: int, io: IoMode = "auto") -> OpenLinks:
        """Open the table for reading rows in any order, until the reader is closed.

        Labels, times, pairs and negatives, in this order, are read into memory as far as they fit into ``max_bytes``,
        and verified once. For the other columns, only the page checksums are in memory. Their rows are read, verified
        and checked on demand. `OpenLinks.read` returns the same values in either case.

        Parameters
        ----------
        max_bytes : memory for columns
        io : the I/O mode for rows on disk

        Raises
        ------
        StoreOpenError, IncompleteStoreError, TruncatedStoreError, StoreReadError
            A file cannot be read, or does not have the recorded length. Or the dataset was replaced.
        ChecksumError, FormatError
            The bytes differ from the written bytes, or a value is invalid. The message names file, and page or row.
        ConfigError
            ``io`` is not available here.
        """
        columns = OpenColumns(self._arrays, max_bytes=max_bytes, io=io)
        return OpenLinks(self._table, columns, num_rows=self.num_rows)
