"""The edges of a relation in a table or an array of a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.convert.readers.column_names import listed
from gloader.convert.readers.edge_times import FileTimes, TimedEdges
from gloader.convert.readers.file_edges import PairEdges
from gloader.convert.readers.npy_file import NpyFile
from gloader.convert.readers.open_table import is_table, open_table
from gloader.convert.readers.tables import TableEdges
from gloader.convert.sources.array_files import open_edge_features
from gloader.convert.sources.edge_tables import edge_table_columns
from gloader.core.malformed import shown
from gloader.errors import ConfigError, GraphError, ShapeError, SourceError

if TYPE_CHECKING:
    from gloader.convert.readers.edge_names import EdgeNames
    from gloader.convert.readers.told import Told
    from gloader.convert.source import EdgeStream, FeatureStream
    from gloader.convert.sources.graph_yaml import EdgeEntry


def open_edge_table(
    entry: EdgeEntry, *, where: str, names: EdgeNames, budget_bytes: int, told: Told
) -> tuple[EdgeStream, FeatureStream | None]:
    """Open the edges of a relation, a table with a row per edge or a ``.npy`` (E, 2) or (2, E), and their features.

    Parameters
    ----------
    entry : file and columns
    where : what names them, for messages
    names : of columns of times and features, of tables whose entry names none and that have them
    budget_bytes : memory that the row offsets of a sparse matrix may take
    told : receives what the columns became

    Raises
    ------
    SourceError, ShapeError, GraphError, ConfigError
        The file is missing or malformed, or has no such column; starts with ``where``.
    """
    try:
        if is_table(entry.file):
            return _open_table(entry, names, budget_bytes, told)
        return _open_array(entry, names, budget_bytes, told)
    except (SourceError, ShapeError, GraphError, ConfigError) as error:
        raise type(error)(f"{where}: {error}") from error


def _open_table(
    entry: EdgeEntry, names: EdgeNames, budget_bytes: int, told: Told
) -> tuple[EdgeStream, FeatureStream | None]:
    table = open_table(entry.file)
    named = {"weight": entry.weight, "time": entry.time}
    for key, column in named.items():
        if column is not None and column not in table.names:
            raise SourceError(
                f"{key} is {shown(column)}; the columns of {entry.file} are {listed(table.names)}"
            )
    keys = "src: COLUMN, dst: COLUMN"
    edges = TableEdges.open(table, src=entry.src, dst=entry.dst, weight=entry.weight, keys=keys)
    wanted = set(str(names.features).split(","))
    asked = names.features if wanted <= set(table.names) else None
    return edge_table_columns(
        edges,
        time=(entry.time or names.pick_time(table.names, usual=())) if names.takes_times else None,
        features=(entry.features or asked) if names.takes_features else None,
        budget_bytes=budget_bytes,
        told=told,
        features_file=entry.features_file,
        keys=("time", "features"),
    )


def _open_array(
    entry: EdgeEntry, names: EdgeNames, budget_bytes: int, told: Told
) -> tuple[EdgeStream, FeatureStream | None]:
    if entry.src is not None or entry.dst is not None:
        raise SourceError(
            f"src and dst are columns, which {entry.file} has none of; a .npy is (E, 2) or (2, E)"
        )
    weight = None if entry.weight_file is None else NpyFile.open(entry.weight_file)
    edges: EdgeStream = PairEdges.open(NpyFile.open(entry.file), prefers_rows=None, weight=weight)
    if entry.time_file is not None and names.takes_times:
        edges = TimedEdges.of(edges, FileTimes(file=NpyFile.open(entry.time_file)))
    if entry.features_file is None or not names.takes_features:
        return edges, None
    return edges, open_edge_features(entry.features_file, budget_bytes=budget_bytes, told=told)
