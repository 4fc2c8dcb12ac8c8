"""Link tables in files: Parquet, CSV and npy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.links.edge_parts import EdgeRows
from gloader.convert.links.link_source import LinkChunk, LinkSource
from gloader.convert.readers.column_names import LABEL_NAMES, NEGATIVE_NAMES, TIME_NAMES, named_column
from gloader.convert.readers.edge_times import to_seconds
from gloader.convert.readers.file_edges import PairEdges
from gloader.convert.readers.node_arrays import to_ids
from gloader.convert.readers.npy_file import NpyFile
from gloader.convert.readers.open_table import open_table, plain_suffix
from gloader.convert.readers.parquet_table import ParquetTable
from gloader.convert.readers.tables import find_ends, regroup
from gloader.errors import ConfigError, GraphError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.links.link_source import LinkStream
    from gloader.convert.readers.tables import Number, TableFile
    from gloader.convert.readers.told import Told
    from gloader.types import IdArray


def edge_table(text: str, told: Told) -> LinkSource:
    """Return the link table that ``NAME=FILE`` names, or ``NAME@RELATION=FILE``.

    FILE is Parquet or CSV with the columns src and dst, and perhaps label, time and (Parquet) negatives, a list of
    destinations for each row; or a .npy of shape (2, n) or (n, 2). ``told`` receives what the columns became.

    Raises
    ------
    ConfigError
        The text has another form.
    SourceError, ShapeError, GraphError
        The file is missing or malformed, or has no columns src and dst.
    """
    key, equals, file = text.partition("=")
    name, at, relation = key.partition("@")
    if not equals or not name or not file or (at and not relation):
        raise ConfigError(
            f"edge table {text!r}: write NAME=FILE, such as valid=valid.parquet, or NAME@RELATION=FILE"
        )
    path = Path(file).expanduser()
    rows = open_rows(path)
    if isinstance(rows, TableRows):
        rows.tell(name, told)
    return LinkSource(name=name, rows=rows, where=str(path), relation=relation or None)


def edge_table_file(text: str) -> Path:
    """Return the file of an edge table as `edge_table` takes it. Pure."""
    return Path(text.partition("=")[2]).expanduser()


def open_rows(path: Path) -> LinkStream:
    """Open the rows of a link table in a file; raises as `edge_table`."""
    if plain_suffix(path) == ".npy":
        return EdgeRows(edges=PairEdges.open(NpyFile.open(path), prefers_rows=None))
    return TableRows.open(open_table(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """The rows of a link table in a CSV or Parquet file."""

    table: TableFile
    num_rows: int
    src: str  # column
    dst: str  # column
    label: str | None = None  # column
    label_dtype: str | None = None
    time: str | None = None  # column
    lists: str | None = None  # column of negatives

    @classmethod
    def open(cls, table: TableFile) -> TableRows:
        """Find the columns by their names; without names, a table of two columns is taken as src and dst.

        Raises
        ------
        SourceError, GraphError, ShapeError
            As `edge_table`.
        """
        names = table.names
        if not table.has_names and len(names) != 2:
            raise SourceError(
                f"{table.path} has {len(names)} columns without names; an edge table has columns src and dst"
            )
        src, dst = find_ends(table, keys="a header of src and dst")
        left = [name for name in names if name not in (src, dst)]
        label, time, negatives = (
            named_column(left, wanted, what=f"the {what} of {table.path}")
            for wanted, what in (
                (LABEL_NAMES, "labels"),
                (TIME_NAMES, "times"),
                (NEGATIVE_NAMES, "negatives"),
            )
        )
        if not isinstance(table, ParquetTable):
            if negatives is not None:
                raise SourceError(
                    f"{table.path} has the column {negatives!r}; negatives are lists, which Parquet files hold"
                )
            num_rows, label_dtype = _scan(table, src, label)
        else:
            num_rows = table.num_rows or 0
            label_dtype = None if label is None else _label_dtype(table, label)
        return cls(
            table=table,
            num_rows=num_rows,
            src=src,
            dst=dst,
            label=label,
            label_dtype=label_dtype,
            time=time,
            lists=negatives,
        )

    def tell(self, name: str, told: Told) -> None:
        """Say what the columns of the link table ``name`` became."""
        roles = {self.label: "the label", self.time: "the time", self.lists: "the negatives"}
        others = [f"{column} is {role}" for column, role in roles.items() if column is not None]
        ends = ", ".join([f"{self.src} and {self.dst} of {self.table.path.name}", *others])
        told.say(f"links {name}: {ends}", self.table, [self.src, self.dst, self.label, self.time, self.lists])

    @property
    def has_times(self) -> bool:
        """Whether every chunk carries times."""
        return self.time is not None

    @property
    def negatives_per_row(self) -> int:
        """Destinations given as wrong ones for each row; 0: none."""
        return 0 if self.lists is None else self.table.width(self.lists)

    def chunks(self, max_rows: int) -> Iterator[LinkChunk]:
        """Yield the rows in order, at most ``max_rows`` at a time."""
        columns: dict[str, Number] = {self.src: "int64", self.dst: "int64"}
        if self.time is not None:
            columns[self.time] = "time"
        first = 0
        for src, dst, *time in regroup(self.table.read(columns, error=GraphError), max_rows):
            ids = [
                to_ids(each, first=first, where=f"{self.table.path}, column {name!r}")
                for name, each in ((self.src, src), (self.dst, dst))
            ]
            seconds = (
                to_seconds(time[0], first=first, where=f"{self.table.path}, column {self.time!r}")
                if time
                else None
            )
            yield LinkChunk(src=ids[0], dst=ids[1], time=seconds)
            first += len(src)

    def labels(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield the labels in order, (n,) of ``label_dtype``; nothing where there are none."""
        if self.label is None:
            return
        number: Number = "int64" if self.label_dtype == "int64" else "float32"
        for (column,) in regroup(self.table.read({self.label: number}, error=SourceError), max_rows):
            yield np.ascontiguousarray(column, self.label_dtype)

    def negatives(self, max_rows: int) -> Iterator[IdArray]:
        """Yield the given negatives in order, (n, k); nothing where there are none."""
        if self.lists is None:
            return
        where, first = f"{self.table.path}, column {self.lists!r}", 0
        for (rows,) in regroup(self.table.read({self.lists: "int64"}, error=GraphError), max_rows):
            # Of lists of one, the rows are flat.
            yield to_ids(rows.reshape(-1), first=first, where=where).reshape(len(rows), -1)
            first += rows.size


def _scan(table: TableFile, src: str, label: str | None) -> tuple[int, str | None]:
    """Return the rows of a CSV file, and the dtype of its labels: text says neither without being read."""
    count, is_whole = 0, True
    for (column,) in table.read({src if label is None else label: "float64"}, error=SourceError):
        count += column.shape[0]
        is_whole &= bool((np.floor(column) == column).all())
    return count, None if label is None else "int64" if is_whole else "float32"


def _label_dtype(table: TableFile, label: str) -> str:
    return "int64" if table.kind(label) == "integer" else "float32"
