"""The rows of link tables, as streams over arrays and over files (Parquet, CSV and npy).

A link table lists pairs of nodes whose edges a model predicts. A row has a source, a destination, and optionally a
label, a time, and k *negatives*: destinations without an edge from the source. `array_tables` makes link tables from
arrays, and `edge_table` from files. Both return a `LinkSource`, whose rows are a `LinkStream` that is read in chunks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.links.edge_parts import edge_rows
from gloader.convert.readers.column_names import LABEL_NAMES, NEGATIVE_NAMES, TIME_NAMES, named_column
from gloader.convert.readers.edge_columns import check_time_dtype, to_seconds
from gloader.convert.readers.file_streams import pair_file_edges
from gloader.convert.readers.node_arrays import check_id_dtype, to_ids
from gloader.convert.readers.npy_file import NpyFile
from gloader.convert.readers.open_table import open_table, plain_suffix
from gloader.convert.readers.table_streams import TableEdges, find_ends, regroup
from gloader.convert.source import LinkChunk, LinkSource, LinkStream
from gloader.core.malformed import shown
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError, GraphError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from gloader.convert.readers.table_streams import ColumnNotes, Number, NumberTable
    from gloader.types import IdArray


def array_rows(
    src: NDArray[Any],
    dst: NDArray[Any],
    *,
    where: str,
    label: NDArray[Any] | None = None,
    time: NDArray[Any] | None = None,
    negatives: NDArray[Any] | None = None,
) -> LinkStream:
    """Return a link table's rows over arrays. Ids may have any integer dtype, and are widened chunk by chunk.

    Parameters
    ----------
    src, dst : (n,) integers
    where : the file or array, for messages
    label : (n,) or (n, 1) numbers, or None
    time : (n,) or (n, 1) times for `to_seconds`, or None
    negatives : (n, k) integers with k >= 1, or None

    Raises
    ------
    ShapeError
        An array does not have one entry per row.
    GraphError
        Ids are not native integers.
    SourceError
        Labels are not numbers, or times are not whole seconds.
    """
    for array in (src, dst):
        check_id_dtype(array.dtype, where)
    if src.ndim != 1 or src.shape != dst.shape:
        raise ShapeError(f"{where} has sources of shape {src.shape} and destinations of shape {dst.shape}")
    labels, times = _column(label, "labels", src, where), _column(time, "times", src, where)
    if labels is not None and labels.dtype.kind not in "iufb":
        raise SourceError(f"{where}: labels have dtype {labels.dtype}; they must be numbers")
    if times is not None:
        check_time_dtype(times.dtype, f"{where}: times")
    if negatives is not None:
        check_id_dtype(negatives.dtype, f"{where}: negatives")
        if negatives.ndim != 2 or negatives.shape[0] != src.shape[0] or negatives.shape[1] < 1:
            raise ShapeError(
                f"{where}: negatives have shape {negatives.shape} for {src.shape[0]} rows; they must be (n, k), "
                "with k of at least 1"
            )
    label_dtype = None if labels is None else "float32" if labels.dtype.kind == "f" else "int64"

    # Missing columns are empty arrays, so that their streams end at the start.
    label_values = np.empty(0) if labels is None else labels
    negative_ids = np.empty((0, 1), np.int64) if negatives is None else negatives

    def parts(column: NDArray[Any], max_rows: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the column's parts, each with the number of its first row."""
        for start in range(0, len(column), max_rows):
            yield start, column[start : start + max_rows]

    def chunks(max_rows: int) -> Iterator[LinkChunk]:
        for start, ids in parts(src, max_rows):
            part = slice(start, start + max_rows)
            yield LinkChunk(
                src=to_ids(ids, first=start, where=where),
                dst=to_ids(dst[part], first=start, where=where),
                time=None if times is None else to_seconds(times[part], first=start, where=where),
            )

    def negative_rows(max_rows: int) -> Iterator[IdArray]:
        for start, rows in parts(negative_ids, max_rows):
            yield to_ids(rows, first=start * rows.shape[1], where=f"{where}: negatives")

    return LinkStream(
        chunks=chunks,
        num_rows=len(src),
        has_times=times is not None,
        label_dtype=label_dtype,
        labels=lambda max_rows: (
            np.ascontiguousarray(part, label_dtype) for _, part in parts(label_values, max_rows)
        ),
        negatives_per_row=0 if negatives is None else int(negatives.shape[1]),
        negatives=negative_rows,
    )


def _column(array: NDArray[Any] | None, what: str, src: NDArray[Any], where: str) -> NDArray[Any] | None:
    """Return ``array`` if it has one number per row of ``src``. A second dimension with one column is dropped.

    ``what`` and ``where`` name the array in the ShapeError for another shape.
    """
    if array is None:
        return None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != src.shape:
        raise ShapeError(
            f"{where}: {what} have shape {array.shape} for {src.shape[0]} rows; one is needed for each"
        )
    return array


# Keys of the mapping that a user gives for a link table.
_COLUMNS = ("labels", "times", "negatives")
_KEYS = ("edge_index", *_COLUMNS, "relation", "reverse", "free")


def array_tables(links: Mapping[str, Mapping[str, Any]]) -> tuple[LinkSource, ...]:
    """Return the link tables over a user's arrays, which are not copied.

    Parameters
    ----------
    links : tables by name, each with "edge_index" (2, n), and optional "labels" (n,), "times" (n,), "negatives"
        (n, k), "relation" and "reverse". With "free", the graph need not have the relation

    Raises
    ------
    ConfigError
        A table lacks its edges, or has an unknown key.
    ShapeError, GraphError, SourceError
        An array has the wrong shape or dtype.
    """
    return tuple(_table(name, table) for name, table in links.items())


def _table(name: str, table: Mapping[str, Any]) -> LinkSource:
    """Return one of the tables of `array_tables`."""
    where = f"links[{shown(name)}]"
    unknown = [key for key in table if key not in _KEYS]
    if unknown or "edge_index" not in table:
        problem = f"the key {shown(unknown[0])}" if unknown else "no edge_index"
        raise ConfigError(
            f"{where} has {problem}; it takes {', '.join(_KEYS)}, of which edge_index must be there"
        )
    pairs = np.asanyarray(table["edge_index"])
    if pairs.ndim != 2 or pairs.shape[0] != 2:
        cure = ", as .T makes it" if pairs.shape[1:] == (2,) else ""
        raise ShapeError(f"{where} has edge_index of shape {pairs.shape}; it must be (2, n){cure}")
    labels, times, negatives = (
        None if table.get(key) is None else np.asanyarray(table[key]) for key in _COLUMNS
    )
    relation, reverse = (
        each if each is None or isinstance(each, str) else relation_text(each)
        for each in (table.get("relation"), table.get("reverse"))
    )
    return LinkSource(
        name=name,
        rows=array_rows(pairs[0], pairs[1], where=where, label=labels, time=times, negatives=negatives),
        where=where,
        relation=relation,
        reverse=reverse,
        is_free=bool(table.get("free")),
    )


def edge_table(text: str, notes: ColumnNotes) -> LinkSource:
    """Return the link table for ``NAME=FILE`` or ``NAME@RELATION=FILE``.

    FILE is a Parquet or CSV file, or a .npy (2, n) or (n, 2). A table has the columns src and dst, and optional label
    and time. Parquet may also have negatives, a list of destinations per row.

    Parameters
    ----------
    text : the text, as the user wrote it
    notes : receives the receipt's line on the file's columns

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
    if plain_suffix(path) == ".npy":
        rows = edge_rows(pair_file_edges(NpyFile.open(path), prefers_rows=None))
    else:
        rows = table_rows(open_table(path), name, notes)
    return LinkSource(name=name, rows=rows, where=str(path), relation=relation or None)


def edge_table_file(text: str) -> Path:
    """Return the file in the text of an edge table; see `edge_table`. Pure."""
    return Path(text.partition("=")[2]).expanduser()


def table_rows(table: NumberTable, name: str, notes: ColumnNotes) -> LinkStream:
    """Return a link table's rows from a CSV or Parquet file.

    Columns are found by name. Without names, a table with two columns has src and dst.

    Parameters
    ----------
    table : the file's table
    name : the link table's name
    notes : receives lines on the columns for the receipt, the record of the data that a conversion found and used

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
    others = [name for name in names if name not in (src, dst)]
    # The columns' names, each None if the table has no such column. ``lists`` has a list of negatives in each row.
    label, time, lists = (
        named_column(others, usual, what=f"the {what} of {table.path}")
        for usual, what in (
            (LABEL_NAMES, "labels"),
            (TIME_NAMES, "times"),
            (NEGATIVE_NAMES, "negatives"),
        )
    )
    num_rows = table.num_rows
    if num_rows is not None:  # a file that also stores the columns' types
        label_dtype = None if label is None else _label_dtype(table, label)
    elif lists is not None:
        raise SourceError(
            f"{table.path} has the column {lists!r}; negatives are lists, which Parquet and Arrow files hold"
        )
    else:
        num_rows, label_dtype = _scan(table, src, label)
    roles = {label: "the label", time: "the time", lists: "the negatives"}
    texts = [f"{column} is {role}" for column, role in roles.items() if column is not None]
    texts = [f"{src} and {dst} of {table.path.name}", *texts]
    notes.add(f"links {name}: {', '.join(texts)}", table, [src, dst, label, time, lists])
    where = f"{table.path}, column {lists!r}"

    def labels(max_rows: int) -> Iterator[NDArray[np.generic]]:
        number: Number = "int64" if label_dtype == "int64" else "float32"
        # Without labels, no column is read, and the stream is empty.
        columns = {} if label is None else {label: number}
        for (column,) in regroup(table.read(columns, error=SourceError), max_rows) if columns else ():
            yield np.ascontiguousarray(column, label_dtype)

    def negatives(max_rows: int) -> Iterator[IdArray]:
        columns: dict[str, Number] = {} if lists is None else {lists: "int64"}
        first = 0
        for (rows,) in regroup(table.read(columns, error=GraphError), max_rows) if columns else ():
            # Lists with one entry come as a flat array.
            yield to_ids(rows.reshape(-1), first=first, where=where).reshape(len(rows), -1)
            first += rows.size

    edges = TableEdges(table=table, src=src, dst=dst, time=time, num_edges=num_rows).stream()
    return replace(
        edge_rows(edges),
        are_edges=False,
        label_dtype=label_dtype,
        labels=labels,
        negatives_per_row=0 if lists is None else table.width(lists),
        negatives=negatives,
    )


def _scan(table: NumberTable, src: str, label: str | None) -> tuple[int, str | None]:
    """Read a CSV file, and return its number of rows and its labels' dtype, None without labels.

    ``src`` and ``label`` are columns. The dtype is int64 if all labels are whole numbers, else float32.
    """
    count, is_whole = 0, True
    for (column,) in table.read({src if label is None else label: "float64"}, error=SourceError):
        count += column.shape[0]
        is_whole &= bool((np.floor(column) == column).all())
    return count, None if label is None else "int64" if is_whole else "float32"


def _label_dtype(table: NumberTable, label: str) -> str:
    """Return the dtype in which a file with types stores the column ``label``."""
    return "int64" if table.kind(label) == "integer" else "float32"
