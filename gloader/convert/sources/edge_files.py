"""The edges of one relation in a ``graph.yaml``: a table or an array, with weights, times and features.

`open_edge_files` opens any of these files as a stream of plain node ids. `open_edge_table` opens a table, whose ends
may also be keys. The parameter ``notes`` collects lines on the role of each column, for the *receipt*: the conversion's
printed summary.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gloader.convert.readers.column_names import listed
from gloader.convert.readers.edge_columns import file_column, timed_edges
from gloader.convert.readers.file_streams import pair_file_edges
from gloader.convert.readers.npy_file import NpyFile
from gloader.convert.readers.open_table import is_text_table
from gloader.convert.readers.table_streams import NUMBER_KINDS, TableEdges
from gloader.convert.sources.edge_list import edge_table_parts, open_edge_features
from gloader.core.malformed import shown
from gloader.dataset.column_values import is_text
from gloader.errors import ConfigError, GraphError, ShapeError, SourceError

if TYPE_CHECKING:
    from gloader.convert.options import EdgeNames
    from gloader.convert.readers.table_streams import ColumnNotes, NumberTable
    from gloader.convert.source import EdgeStream, FeatureStream
    from gloader.convert.sources.graph_yaml import EdgeEntry


def open_edge_files(
    entry: EdgeEntry, *, where: str, names: EdgeNames, budget_bytes: int, notes: ColumnNotes
) -> tuple[EdgeStream, FeatureStream | None]:
    """Open a relation's edges, and its edge features or None.

    The edges are a table with one row per edge, or a ``.npy`` array (E, 2) or (2, E).

    Parameters
    ----------
    entry : the relation's file and columns
    where : the description's path and key, for messages
    names : the user's columns of times and features, for tables whose entry names none
    budget_bytes : memory for the row offsets of edge features in a sparse matrix
    notes : collects the receipt's lines on the columns of this file

    Raises
    ------
    SourceError, ShapeError, GraphError, ConfigError
        The file is missing or malformed, or has no such column. The message starts with ``where``.
    """
    try:
        if entry.is_table:
            edges, rows = open_edge_table(entry, names, budget_bytes, notes)
            refuse_keys(edges, str(entry.file), types=entry.types)
            return edges.stream(), rows
        return _open_array(entry, names, budget_bytes, notes)
    except (SourceError, ShapeError, GraphError, ConfigError) as error:
        raise type(error)(f"{where}: {error}") from error


def open_edge_table(
    entry: EdgeEntry, names: EdgeNames, budget_bytes: int, notes: ColumnNotes
) -> tuple[TableEdges, FeatureStream | None]:
    """Return the columns of a table of edges, and the edge features or None.

    The entry's columns precede the user's ``names``. Parameters and errors are those of `open_edge_files`.
    """
    table = entry.open()
    named = {"weight": entry.weight, "time": entry.time}
    for key, column in named.items():
        if column is not None and column not in table.names:
            raise SourceError(
                f"{key} is {shown(column)}; the columns of {entry.file} are {listed(table.names)}"
            )
    keys = "src: COLUMN, dst: COLUMN"  # for a message about missing ends: the keys to add in graph.yaml
    src, dst = entry.ends(table.names)
    edges = TableEdges.open(table, src=src, dst=dst, weight=entry.weight, keys=keys)
    # The flags --edge-time and --edge-features name columns for all tables. A table without the column of times, or
    # without one of the feature columns, gets no times or features from the flag.
    time = entry.time or names.pick_time(table.names, usual=())
    # If there is no flag, ``names.features`` is None, and so is ``common_features`` in any case.
    requested = set(str(names.features).split(","))
    common_features = names.features if requested <= set(table.names) else None
    features = entry.features or common_features
    return edge_table_parts(
        edges,
        # takes_times and takes_features are False if the user chose "none", which also overrules the entry.
        time=time if names.takes_times else None,
        features=features if names.takes_features else None,
        budget_bytes=budget_bytes,
        notes=notes,
        # The file that the entry names, if its ``features`` are no columns of the table.
        features_file=None if entry.features is None else entry.folder / entry.features,
        keys=("time", "features"),
    )


def _open_array(
    entry: EdgeEntry, names: EdgeNames, budget_bytes: int, notes: ColumnNotes
) -> tuple[EdgeStream, FeatureStream | None]:
    """Return the edges in a ``.npy`` array, with weights, times and features from the entry's other arrays."""
    if entry.src is not None or entry.dst is not None:
        raise SourceError(
            f"src and dst name columns, and {entry.file} is an array, (E, 2) or (2, E), without columns; leave them out"
        )
    weight = entry.open_array(entry.weight)
    # prefers_rows=None refuses a (2, 2) array, which could have an edge per row or per column.
    edges = pair_file_edges(NpyFile.open(entry.file), prefers_rows=None, weight=weight)
    if (times := entry.open_array(entry.time) if names.takes_times else None) is not None:
        edges = timed_edges(edges, file_column(times))
    if entry.features is None or not names.takes_features:
        return edges, None
    return edges, open_edge_features(entry.folder / entry.features, budget_bytes=budget_bytes, notes=notes)


def refuse_keys(edges: TableEdges, where: str, *, types: tuple[str, str] | None = None) -> None:
    """Raise GraphError if an end of edges is a column of texts, which are keys and no node ids.

    The message has a ``graph.yaml`` with the columns of the edges, ready to be completed.

    Parameters
    ----------
    edges : the edges
    where : the source or file, for messages
    types : the node types of the ends in a ``graph.yaml``, or None for ``edges:FILE``
    """
    table = edges.table
    for column in (edges.src, edges.dst):
        first = _first_text(table, column) if column in table.names else None
        if first is not None:
            break
    else:
        return
    source, destination = types or ("node", "node")
    nodes = ", ".join(
        f"{name}: {{file: NODES.csv, key: COLUMN, columns: [COLUMN, ...], labels: COLUMN}}"
        for name in dict.fromkeys((source, destination))
    )
    ends = f"src: {source}.{edges.src}, dst: {destination}.{edges.dst}"
    flags = (
        "name the table of nodes with --nodes FILE --node-key COLUMN --columns COLUMN,..., or give --keys, so that the "
        "edges' keys make the nodes; or "
    )
    # The error is one line on the screen, so the description is in YAML's form of one line.
    raise GraphError(
        f"{where}: column {shown(column)} holds texts such as {shown(first)}. Node ids are whole numbers from 0, and "
        f"texts are keys: {flags if types is None else ''}prepare a file graph.yaml with this line: "
        f"{{nodes: {{{nodes}}}, edges: {{to: {{file: {table.path.name}, {ends}}}}}}}"
    )


# Texts in a text file that may be numbers in another form, such as '0' in marks, or 0x1f. The reader judges them.
_NUMBER_LIKE = re.compile(r"[^A-Za-z]*|0[xX][0-9A-Fa-f]+")


def _first_text(table: NumberTable, column: str) -> str | None:
    """Return the first value of a column of texts, or None if the column may hold numbers."""
    if table.kind(column) in NUMBER_KINDS or not is_text(table.arrow_type(column)):
        return None
    for batch in table.read_arrow([column], error=SourceError):
        first = str(batch.column(0)[0].as_py())
        return None if is_text_table(table) and _NUMBER_LIKE.fullmatch(first) else first
    return None
