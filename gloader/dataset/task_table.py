"""A dataset's task tables: rows to predict, each a node, with optional times, labels and weights.

`TaskTable` describes a table from the commit record, without open files. `TaskTable.open` returns `OpenColumns`, which
read rows. A column is in memory if it fits, and otherwise its rows are read from the SSD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.core.near_names import near_attributes
from gloader.dataset.row_columns import OpenColumns
from gloader.dataset.task_record import ROW_TIMES, ROW_WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.config import IoMode
    from gloader.dataset.row_columns import RowArrays
    from gloader.dataset.schema import TaskRecord
    from gloader.dataset.values import LabelKind
    from gloader.ssd_store.format.format import ArrayRecord


@near_attributes
class TaskTable:
    """A task table. Thread-safe and read-only, without open files. Made by `Dataset`.

    Parameters
    ----------
    table : the table's entry in the commit record
    arrays : the table's arrays
    """

    def __init__(self, table: TaskRecord, arrays: RowArrays) -> None:
        self._table = table
        self._arrays = arrays

    def __repr__(self) -> str:
        """Return the table's name, node type and number of rows."""
        return f"TaskTable({self.name!r}, node_type={self.node_type!r}, num_rows={self.num_rows})"

    @property
    def arrays(self) -> Mapping[str, ArrayRecord]:
        """The array records, by plain name."""
        return self._arrays.records

    @property
    def name(self) -> str:
        """The table's name, such as "churn.train"."""
        return self._table.name

    @property
    def node_type(self) -> str:
        """The type of the rows' nodes."""
        return self._table.node_type

    @property
    def num_rows(self) -> int:
        """The number of rows to predict."""
        return self._arrays.num_rows

    @property
    def label_kind(self) -> LabelKind | None:
        """The kind of the labels: "classes" (int64), or "binary", "multilabel" or "values" (float32); or None."""
        return self._table.label_kind

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The names of the classes, or of the k label columns; None without names."""
        return self._table.label_names

    @property
    def num_classes(self) -> int:
        """Number of classes. For labels that are values, the number of columns k. 0 without labels."""
        return self._table.num_classes

    @property
    def label_width(self) -> int:
        """k, the number of label columns; 1 for classes, 0 without labels."""
        return self.num_classes if self._table.has_label_values else min(self.num_classes, 1)

    @property
    def has_times(self) -> bool:
        """True if each row has a time."""
        return ROW_TIMES in self.arrays

    @property
    def time_settings(self) -> dict[str, str]:
        """The settings with which a loader of these rows samples by default; none for a table without times.

        A row sees what is not later than itself, as in RelBench.
        """
        return {"time_strategy": "uniform", "time_bound": "<="} if self.has_times else {}

    @property
    def has_weights(self) -> bool:
        """True if each row has a weight."""
        return ROW_WEIGHTS in self.arrays

    @property
    def num_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(record.num_bytes for record in self.arrays.values())

    def open(self, *, max_bytes: int, io: IoMode = "auto") -> OpenColumns:
        """Open the table for reading rows in any order, until the reader is closed.

        Its columns are "nodes" (n,) int64, and where the table has them "times" (n,) int64 seconds, "labels" and
        "weights" (n,) float32. Labels are (n,) int64 classes, -1 where unknown, or (n, k) float32 values, NaN where
        unknown. In this order, columns are read into memory as far as they fit into ``max_bytes``, and verified once.
        Rows of the other columns are read, verified and checked on demand.

        Parameters
        ----------
        max_bytes : memory for columns
        io : the I/O mode for rows on disk

        Raises
        ------
        StoreOpenError, IncompleteStoreError, TruncatedStoreError, StoreReadError, ChecksumError, FormatError
            As `OpenColumns`.
        ConfigError
            ``io`` is not available here.
        """
        return OpenColumns(self._arrays, max_bytes=max_bytes, io=io)
