"""Rows of link tables: in arrays, which may be memory-mapped, and in files (Parquet, CSV and npy)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.links.edge_parts import EdgeRows
from gloader.convert.readers.column_names import LABEL_NAMES, NEGATIVE_NAMES, TIME_NAMES, named_column
from gloader.convert.readers.file_streams import PairEdges
from gloader.convert.readers.node_arrays import check_id_dtype, to_ids
from gloader.convert.readers.npy_file import NpyFile
from gloader.convert.readers.open_table import open_table, plain_suffix
from gloader.convert.readers.parquet_table import ParquetTable
from gloader.convert.readers.table_streams import find_ends, regroup
from gloader.convert.readers.timed_edges import check_time_dtype, to_seconds
from gloader.convert.source import LinkChunk, LinkSource
from gloader.core.malformed import shown
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError, GraphError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from gloader.convert.readers.table_streams import Number, Table, Told
    from gloader.convert.source import LinkStream
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRows:
    """The rows of a link table over arrays of ids of any integer dtype, which are widened chunk by chunk."""

    src: NDArray[Any]  # (n,)
    dst: NDArray[Any]  # (n,)
    where: str  # what holds them, for messages
    label: NDArray[Any] | None = None  # (n,)
    time: NDArray[Any] | None = None  # (n,)
    given: NDArray[Any] | None = None  # (n, k) negatives

    @classmethod
    def of(
        cls,
        src: NDArray[Any],
        dst: NDArray[Any],
        *,
        where: str,
        label: NDArray[Any] | None = None,
        time: NDArray[Any] | None = None,
        negatives: NDArray[Any] | None = None,
    ) -> ArrayRows:
        """Check the arrays' shapes and dtypes.

        Parameters
        ----------
        src, dst : (n,) integers
        where : what holds them, for messages
        label : (n,) or (n, 1) numbers; None: there are none
        time : (n,) or (n, 1) seconds, as `to_seconds` takes them; None: there are none
        negatives : (n, k) integers, k of at least 1; None: there are none

        Raises
        ------
        ShapeError
            An array is not one of each row.
        GraphError
            Ids are no native integers.
        SourceError
            Labels are no numbers, or times are no whole seconds.
        """
        for array in (src, dst):
            check_id_dtype(array.dtype, where)
        if src.ndim != 1 or src.shape != dst.shape:
            raise ShapeError(
                f"{where} has sources of shape {src.shape} and destinations of shape {dst.shape}"
            )
        label, time = _column(label, "labels", src, where), _column(time, "times", src, where)
        if label is not None and label.dtype.kind not in "iufb":
            raise SourceError(f"{where}: labels have dtype {label.dtype}; they must be numbers")
        if time is not None:
            check_time_dtype(time.dtype, f"{where}: times")
        if negatives is not None:
            check_id_dtype(negatives.dtype, f"{where}: negatives")
            if negatives.ndim != 2 or negatives.shape[0] != src.shape[0] or negatives.shape[1] < 1:
                raise ShapeError(
                    f"{where}: negatives have shape {negatives.shape} for {src.shape[0]} rows; they must be (n, k), "
                    "with k of at least 1"
                )
        return cls(src=src, dst=dst, where=where, label=label, time=time, given=negatives)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.src.shape[0])

    @property
    def has_times(self) -> bool:
        """True if every chunk carries times."""
        return self.time is not None

    @property
    def label_dtype(self) -> str | None:
        """The dtype of the labels, int64 or float32; None: there are none."""
        if self.label is None:
            return None
        return "float32" if self.label.dtype.kind == "f" else "int64"

    @property
    def negatives_per_row(self) -> int:
        """Destinations given as wrong ones for each row; 0: none."""
        return 0 if self.given is None else int(self.given.shape[1])

    def chunks(self, max_rows: int) -> Iterator[LinkChunk]:
        """Yield the rows in order, at most ``max_rows`` at a time."""
        for start in range(0, self.num_rows, max_rows):
            part = slice(start, start + max_rows)
            yield LinkChunk(
                src=to_ids(self.src[part], first=start, where=self.where),
                dst=to_ids(self.dst[part], first=start, where=self.where),
                time=None
                if self.time is None
                else to_seconds(self.time[part], first=start, where=self.where),
            )

    def labels(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield the labels in order, (n,) of ``label_dtype``; nothing where there are none."""
        if self.label is not None:
            for start in range(0, self.num_rows, max_rows):
                yield np.ascontiguousarray(self.label[start : start + max_rows], self.label_dtype)

    def negatives(self, max_rows: int) -> Iterator[IdArray]:
        """Yield the given negatives in order, (n, k); nothing where there are none."""
        if self.given is not None:
            for start in range(0, self.num_rows, max_rows):
                rows = self.given[start : start + max_rows]
                yield to_ids(rows, first=start * rows.shape[1], where=f"{self.where}: negatives")


def _column(array: NDArray[Any] | None, what: str, src: NDArray[Any], where: str) -> NDArray[Any] | None:
    """Return an array of a number for each row, without a second dimension of one column."""
    if array is None:
        return None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != src.shape:
        raise ShapeError(
            f"{where}: {what} have shape {array.shape} for {src.shape[0]} rows; one is needed for each"
        )
    return array


_COLUMNS = ("labels", "times", "negatives")
_KEYS = ("edge_index", *_COLUMNS, "relation", "reverse")


def array_tables(links: Mapping[str, Mapping[str, Any]]) -> tuple[LinkSource, ...]:
    """Return the link tables over arrays, which are shared.

    Parameters
    ----------
    links : by name, each with "edge_index" (2, n), and perhaps "labels" (n,), "times" (n,), "negatives" (n, k),
        "relation" and "reverse"

    Raises
    ------
    ConfigError
        A table lacks its edges, or has a key that is not known.
    ShapeError, GraphError, SourceError
        An array has the wrong shape or dtype.
    """
    return tuple(_table(name, table) for name, table in links.items())


def _table(name: str, table: Mapping[str, Any]) -> LinkSource:
    where = f"links[{shown(name)}]"
    unknown = [key for key in table if key not in _KEYS]
    if unknown or "edge_index" not in table:
        said = f"the key {shown(unknown[0])}" if unknown else "no edge_index"
        raise ConfigError(
            f"{where} has {said}; it takes {', '.join(_KEYS)}, of which edge_index must be there"
        )
    pairs = np.asanyarray(table["edge_index"])
    if pairs.ndim != 2 or pairs.shape[0] != 2:
        cure = ", as .T makes it" if pairs.shape[1:] == (2,) else ""
        raise ShapeError(f"{where} has edge_index of shape {pairs.shape}; it must be (2, n){cure}")
    labels, times, negatives = (
        None if table.get(key) is None else np.asanyarray(table[key]) for key in _COLUMNS
    )
    named = {key: table.get(key) for key in ("relation", "reverse")}
    return LinkSource(
        name=name,
        rows=ArrayRows.of(pairs[0], pairs[1], where=where, label=labels, time=times, negatives=negatives),
        where=where,
        **{
            key: each if each is None or isinstance(each, str) else relation_text(each)
            for key, each in named.items()
        },
    )


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

    table: Table
    num_rows: int
    src: str  # column
    dst: str  # column
    label: str | None = None  # column
    label_dtype: str | None = None
    time: str | None = None  # column
    lists: str | None = None  # column of negatives

    @classmethod
    def open(cls, table: Table) -> TableRows:
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
        """True if every chunk carries times."""
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


def _scan(table: Table, src: str, label: str | None) -> tuple[int, str | None]:
    """Return the rows of a CSV file, and the dtype of its labels: text says neither without being read."""
    count, is_whole = 0, True
    for (column,) in table.read({src if label is None else label: "float64"}, error=SourceError):
        count += column.shape[0]
        is_whole &= bool((np.floor(column) == column).all())
    return count, None if label is None else "int64" if is_whole else "float32"


def _label_dtype(table: Table, label: str) -> str:
    return "int64" if table.kind(label) == "integer" else "float32"
