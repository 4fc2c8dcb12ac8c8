"""Writers of the link tables of a new dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from gloader.dataset.link_record import (
    LABELS,
    LINK_DTYPES,
    METADATA_KEY,
    NEGATIVES,
    PAIR_WIDTH,
    PAIRS,
    TIMES,
    link_error,
    wrong_rows,
    wrong_table,
)
from gloader.dataset.link_values import count_in_graph
from gloader.dataset.schema import LinkRecord
from gloader.errors import GraphError, ShapeError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.dataset.schema import Schema
    from gloader.ssd_store.write.array_writer import ArrayWriter
    from gloader.ssd_store.write.new_directory import NewDirectory
    from gloader.types import Relation


class PairsWriter:
    """Takes the pairs of a link table in chunks, in order, and counts those in the graph. Made by `LinkTableWriter`.

    Parameters
    ----------
    writer : of the array
    """

    def __init__(self, writer: ArrayWriter) -> None:
        self._writer = writer
        self.in_graph = 0

    @property
    def rows_written(self) -> int:
        """Rows appended so far."""
        return self._writer.rows_written

    @property
    def path(self) -> Path:
        """The file, where it lies until the commit; whole once the writer is closed."""
        return self._writer.path

    def append(self, chunk: NDArray[Any]) -> None:
        """Append the rows ``chunk`` (n, 4) int64: source, destination, position, reverse position; -1: there is none.

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
    """Writes one link table, its arrays streamed in order through the returned writers. Made by a dataset's writer.

    Parameters
    ----------
    directory : of the dataset, entered
    name : of the table
    relation : whose edges they are
    reverse : whose edges lead back; None: none do
    """

    def __init__(
        self, directory: NewDirectory, name: str, *, relation: Relation, reverse: Relation | None
    ) -> None:
        self.name = name
        self._directory = directory
        self._relation = relation
        self._reverse = reverse
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._pairs: PairsWriter | None = None

    @property
    def record(self) -> LinkRecord:
        """What the commit record says of the table, as far as it was written."""
        in_graph = 0 if self._pairs is None else self._pairs.in_graph
        return LinkRecord(name=self.name, relation=self._relation, reverse=self._reverse, in_graph=in_graph)

    def pairs(self, num_rows: int) -> PairsWriter:
        """Return the writer of the (n, 4) int64 pairs: source, destination, position and reverse position.

        Ids count within their types; a position is that in the indices of the relation, of the reverse relation; -1:
        there is none.

        Raises
        ------
        ShapeError, StoreWriteError
            As `NewDirectory.array`; also another number of rows than an array before it has.
        """
        self._pairs = PairsWriter(self._array(PAIRS, "int64", (num_rows, PAIR_WIDTH)))
        return self._pairs

    def labels(self, num_rows: int, dtype: str) -> ArrayWriter:
        """Return the writer of the (n,) labels, ``dtype`` int64 or float32; raises as `pairs`."""
        return self._array(LABELS, dtype, (num_rows,))

    def times(self, num_rows: int) -> ArrayWriter:
        """Return the writer of the (n,) int64 times, in seconds; raises as `pairs`."""
        return self._array(TIMES, "int64", (num_rows,))

    def negatives(self, num_rows: int, k: int, dtype: str) -> ArrayWriter:
        """Return the writer of the (n, k) wrong destinations, ``dtype`` int32 or int64; raises as `pairs`."""
        return self._array(NEGATIVES, dtype, (num_rows, k))

    def check_complete(self) -> None:
        """Raise ShapeError if there are no pairs."""
        if PAIRS not in self._shapes:
            raise ShapeError(link_error(self.name, f"its {PAIRS} were not written"))

    def _array(self, name: str, dtype: str, shape: tuple[int, ...]) -> ArrayWriter:
        if dtype not in LINK_DTYPES[name]:
            allowed = " or ".join(LINK_DTYPES[name])
            raise ShapeError(link_error(self.name, f"{name} cannot be {dtype}; they must be {allowed}"))
        shapes = {**self._shapes, name: shape}
        num_rows = shapes.get(PAIRS, shape)[0]
        for each, its_shape in shapes.items():
            if (message := wrong_rows(each, its_shape, num_rows)) is not None:
                raise ShapeError(link_error(self.name, message))
        writer = self._directory.array(f"{self.record.folder}{name}", dtype=dtype, shape=shape)
        self._shapes = shapes
        return writer


class LinkTablesWriter:
    """Starts the link tables of a new dataset, and keeps what its commit record will say of them.

    Parameters
    ----------
    directory : entered
    schema : of the dataset
    """

    def __init__(self, directory: NewDirectory, schema: Schema) -> None:
        self._directory = directory
        self._schema = schema
        self._tables: dict[str, LinkTableWriter] = {}

    def start(self, name: str, *, relation: Relation, reverse: Relation | None) -> LinkTableWriter:
        """Return the writer of a new table.

        Raises
        ------
        GraphError
            The name cannot be a folder's or is taken, or there is no such relation; the reverse does not lead back.
        """
        wrong = wrong_table(name, relation, reverse, self._schema)
        taken = next((other for other in self._tables if other.casefold() == name.casefold()), None)
        # Some file systems do not tell upper from lower case: two such folders would be one there.
        if wrong is None and taken is not None:
            wrong = link_error(name, f"the dataset has the link table {taken!r} already")
        if wrong is not None:
            raise GraphError(wrong)
        self._tables[name] = LinkTableWriter(self._directory, name, relation=relation, reverse=reverse)
        return self._tables[name]

    def to_metadata(self) -> dict[str, Any]:
        """Return what the commit record says of the tables, by name; nothing where there is none.

        Raises
        ------
        ShapeError
            A table has no pairs.
        """
        for table in self._tables.values():
            table.check_complete()
        records = {name: table.record.to_metadata() for name, table in self._tables.items()}
        return {METADATA_KEY: records} if records else {}
