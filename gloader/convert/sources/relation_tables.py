"""The edges of a relation in a table or an array of a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.convert.readers.file_edges import PairEdges
from gloader.convert.readers.npy_file import NpyFile
from gloader.convert.readers.open_table import is_table, open_table
from gloader.convert.readers.tables import TableEdges
from gloader.core.malformed import shown
from gloader.errors import GraphError, ShapeError, SourceError

if TYPE_CHECKING:
    from gloader.convert.source import EdgeStream
    from gloader.convert.sources.graph_yaml import EdgeEntry


def open_edge_table(entry: EdgeEntry, *, where: str) -> EdgeStream:
    """Open the edges of a relation: a table with a row per edge, or a ``.npy`` (E, 2) or (2, E).

    Parameters
    ----------
    entry : file and columns
    where : what names them, for messages

    Raises
    ------
    SourceError, ShapeError, GraphError
        The file is missing or malformed, or has no such column; starts with ``where``.
    """
    try:
        return _open_table(entry) if is_table(entry.file) else _open_array(entry)
    except (SourceError, ShapeError, GraphError) as error:
        raise type(error)(f"{where}: {error}") from error


def _open_table(entry: EdgeEntry) -> EdgeStream:
    table = open_table(entry.file)
    named = {"src": entry.src, "dst": entry.dst, "weight": entry.weight}
    for key, column in named.items():
        if column is not None and column not in table.names:
            raise SourceError(
                f"{key} is {shown(column)}; the columns of {entry.file} are {', '.join(table.names) or 'none'}"
            )
    found = TableEdges.open(table)
    return TableEdges(
        table=table,
        src=entry.src or found.src,
        dst=entry.dst or found.dst,
        weight=entry.weight or found.weight,
    )


def _open_array(entry: EdgeEntry) -> EdgeStream:
    if entry.src is not None or entry.dst is not None:
        raise SourceError(
            f"src and dst are columns, which {entry.file} has none of; a .npy is (E, 2) or (2, E)"
        )
    weight = None if entry.weight_file is None else NpyFile.open(entry.weight_file)
    return PairEdges.open(NpyFile.open(entry.file), prefers_rows=True, weight=weight)
