"""Writers of the tables with rows to predict: link tables, whose rows are edges, and task tables, whose rows are nodes.

The writer of a dataset makes them. The arrays of a table are streamed in order, each through its own writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from gloader.dataset.link_record import (
    LINK_DTYPES,
    LINK_LABELS,
    NEGATIVES,
    PAIR_WIDTH,
    PAIRS,
    TIMES,
    count_in_graph,
    link_error,
    wrong_rows,
)
from gloader.dataset.schema import LinkRecord
from gloader.dataset.task_record import (
    ROW_LABELS,
    ROW_NODES,
    ROW_TIMES,
    ROW_WEIGHTS,
    task_error,
    wrong_columns,
)
from gloader.errors import ShapeError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.dataset.schema import TaskRecord
    from gloader.ssd_store.write.array_writer import ArrayWriter
    from gloader.ssd_store.write.new_directory import NewDirectory
    from gloader.types import Relation


class PairsWriter:
    """Writes a link table's pairs in chunks, and counts those with an edge in the graph. Made by `LinkTableWriter`.

    Parameters
    ----------
    writer : the array's writer
    """

    def __init__(self, writer: ArrayWriter) -> None:
        self._writer = writer
        self.in_graph = 0  # rows so far whose edge is in the graph

    @property
    def rows_written(self) -> int:
        """Rows appended so far."""
        return self._writer.rows_written

    @property
    def path(self) -> Path:
        """The file's path before the commit. The file is complete once the writer is closed."""
        return self._writer.path

    def append(self, chunk: NDArray[Any]) -> None:
        """Append rows (n, 4) int64: source, destination, position, reverse position. -1 means no position.

        Raises
        ------
        ShapeError, StoreWriteError
            As `ArrayWriter.append`.
        """
        self._writer.append(chunk)
        self.in_graph += count_in_graph(chunk)

    def close(self) -> None:
        """Complete the array; see `ArrayWriter.close`. Idempotent."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, error, trace)


class LinkTableWriter:
    """Writes one link table. Arrays are streamed in order through the returned writers. Made by a dataset's writer.

    Parameters
    ----------
    directory : the dataset's new directory, inside its ``with`` block
    name : the table's name
    relation : the edges' relation
    reverse : the reverse relation, or None
    """

    def __init__(
        self, directory: NewDirectory, name: str, *, relation: Relation, reverse: Relation | None
    ) -> None:
        self.name = name
        self._directory = directory
        self._relation = relation
        self._reverse = reverse
        self._shapes: dict[str, tuple[int, ...]] = {}  # shapes of the started arrays, by plain name
        self._pairs: PairsWriter | None = None

    @property
    def record(self) -> LinkRecord:
        """The table's entry in the commit record, from the rows written so far."""
        in_graph = 0 if self._pairs is None else self._pairs.in_graph
        return LinkRecord(name=self.name, relation=self._relation, reverse=self._reverse, in_graph=in_graph)

    def pairs(self, num_rows: int) -> PairsWriter:
        """Return the writer for the (n, 4) int64 pairs: source, destination, position and reverse position.

        Node ids begin at 0 in each type. A position is an index into the edges of the relation, or of the reverse
        relation. -1 means that the edge does not exist.

        Raises
        ------
        ShapeError, StoreWriteError
            As `NewDirectory.array`. ShapeError also if an earlier array has another number of rows.
        """
        self._pairs = PairsWriter(self._array(PAIRS, "int64", (num_rows, PAIR_WIDTH)))
        return self._pairs

    def labels(self, num_rows: int, dtype: str) -> ArrayWriter:
        """Return the writer for the (n,) labels, ``dtype`` int64 or float32. Raises as `pairs`."""
        return self._array(LINK_LABELS, dtype, (num_rows,))

    def times(self, num_rows: int) -> ArrayWriter:
        """Return the writer for the (n,) int64 times in seconds. Raises as `pairs`."""
        return self._array(TIMES, "int64", (num_rows,))

    def negatives(self, num_rows: int, k: int, dtype: str) -> ArrayWriter:
        """Return the writer for the (n, k) negative destinations, ``dtype`` int32 or int64. Raises as `pairs`."""
        return self._array(NEGATIVES, dtype, (num_rows, k))

    def check_complete(self) -> None:
        """Raise ShapeError if there are no pairs."""
        if PAIRS not in self._shapes:
            raise ShapeError(link_error(self.name, f"its {PAIRS} were not written"))

    def _array(self, name: str, dtype: str, shape: tuple[int, ...]) -> ArrayWriter:
        """Start array ``name``, after a check of its dtype, and of its number of rows against earlier arrays."""
        if dtype not in LINK_DTYPES[name]:
            allowed = " or ".join(LINK_DTYPES[name])
            raise ShapeError(link_error(self.name, f"{name} cannot be {dtype}; they must be {allowed}"))
        shapes = {**self._shapes, name: shape}
        num_rows = shapes.get(PAIRS, shape)[0]
        for array_name, array_shape in shapes.items():
            if (message := wrong_rows(array_name, array_shape, num_rows)) is not None:
                raise ShapeError(link_error(self.name, message))
        writer = self._directory.array(f"{self.record.folder}{name}", dtype=dtype, shape=shape)
        self._shapes = shapes
        return writer


class TaskTableWriter:
    """Writes one task table. Arrays are streamed in order through the returned writers. Made by a dataset's writer.

    Parameters
    ----------
    directory : the dataset's new directory, inside its ``with`` block
    record : the table's entry in the commit record
    """

    def __init__(self, directory: NewDirectory, record: TaskRecord) -> None:
        self.record = record
        self._directory = directory
        self._shapes: dict[str, tuple[int, ...]] = {}  # shapes of the started arrays, by plain name

    def nodes(self, num_rows: int) -> ArrayWriter:
        """Return the writer for the (n,) int64 nodes of the rows; ids begin at 0 in each type.

        Raises
        ------
        ShapeError, StoreWriteError
            As `NewDirectory.array`. ShapeError also if an earlier array has another number of rows.
        """
        return self._array(ROW_NODES, "int64", (num_rows,))

    def times(self, num_rows: int) -> ArrayWriter:
        """Return the writer for the (n,) int64 times in seconds. Raises as `nodes`."""
        return self._array(ROW_TIMES, "int64", (num_rows,))

    def labels(self, num_rows: int) -> ArrayWriter:
        """Return the writer for the labels of the table's kind: (n,) int64 classes, or (n, k) float32 values.

        An unknown class is -1, an unknown value is NaN. Raises as `nodes`; ShapeError also for a table without labels.
        """
        if not self.record.has_label_values:
            return self._array(ROW_LABELS, "int64", (num_rows,))
        return self._array(ROW_LABELS, "float32", (num_rows, self.record.num_classes))

    def weights(self, num_rows: int) -> ArrayWriter:
        """Return the writer for the (n,) float32 weights, which are at least 0. Raises as `nodes`."""
        return self._array(ROW_WEIGHTS, "float32", (num_rows,))

    def check_complete(self) -> None:
        """Raise ShapeError if there are no nodes, or no labels although the table has a kind of labels."""
        for name in (ROW_NODES, *([] if self.record.label_kind is None else [ROW_LABELS])):
            if name not in self._shapes:
                raise ShapeError(task_error(self.record.name, f"its {name} were not written"))

    def _array(self, name: str, dtype: str, shape: tuple[int, ...]) -> ArrayWriter:
        """Start array ``name``, after a check of its number of rows against earlier arrays."""
        if dtype not in self.record.dtypes(name):
            raise ShapeError(
                task_error(self.record.name, f"{name} cannot be written; no kind of {name} was given")
            )
        shapes = {**self._shapes, name: shape}
        if (message := wrong_columns(self.record, shapes)) is not None:
            raise ShapeError(message)
        writer = self._directory.array(f"{self.record.folder}{name}", dtype=dtype, shape=shape)
        self._shapes = shapes
        return writer
