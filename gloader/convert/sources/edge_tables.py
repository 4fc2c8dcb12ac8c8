"""Tables whose rows are edges, with the columns that hold their times and features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.convert.readers.edge_names import NONE
from gloader.convert.readers.tables import TableFeatures
from gloader.convert.readers.told import column_text
from gloader.convert.sources.array_files import open_edge_features
from gloader.core.malformed import shown
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.convert.readers.tables import TableEdges
    from gloader.convert.readers.told import Told
    from gloader.convert.source import FeatureStream


def edge_table_columns(
    edges: TableEdges,
    *,
    time: str | None,
    features: str | None,
    budget_bytes: int,
    told: Told,
    features_file: Path | None = None,
    keys: tuple[str, str] = ("--edge-time", "--edge-features"),
) -> tuple[TableEdges, FeatureStream | None]:
    """Return the edges of a table with their times, and their features.

    Parameters
    ----------
    edges : of the table
    time : the column of the times; None or "none": they have none
    features : columns of numbers or of lists of them, such as "amount,kind", or a file with a row for each edge; None
        or "none": they have none
    budget_bytes : memory that the row offsets of a sparse matrix may take
    told : receives what the columns became
    features_file : where that file would lie; None: as ``features`` says
    keys : what asked for times and features, for messages

    Raises
    ------
    ConfigError
        There is no such column, and no such file; says which columns there are.
    SourceError, ShapeError, GraphError
        The table or the file is malformed.
    """
    table = edges.table
    if time not in (None, NONE):
        if time not in table.names:
            raise ConfigError(_missing(keys[0], str(time), edges))
        edges = replace(edges, time=time)
    names = () if features in (None, NONE) else tuple(dict.fromkeys(str(features).split(",")))
    if not table.has_names and {edges.weight} & {time, *names}:
        # Without names, the third column was taken for the weights.
        edges = replace(edges, weight=None)
    of_table = names if set(names) <= set(table.names) else ()
    _tell(edges, of_table, told)
    if not names:
        return edges, None
    if not of_table:
        path = features_file or Path(str(features)).expanduser()
        if not path.is_file():
            raise ConfigError(
                _missing(keys[1], str(features), edges, what="column, and there is no such file")
            )
        return edges, open_edge_features(path, budget_bytes=budget_bytes, told=told)
    if edges.num_edges is None:
        # How many edges there are is known before they are sorted, as the rows of features take disk.
        edges = replace(edges, known_edges=table.count_rows())
    return edges, TableFeatures(table=table, num_rows=edges.num_edges or 0, columns=names)


def _tell(edges: TableEdges, features: tuple[str, ...], told: Told) -> None:
    """Say what the columns of a table of edges became."""
    table = edges.table
    if not table.names:
        return
    roles = {edges.weight: "the weight", edges.time: "the time"}
    others = [f"{column_text(table, name)} is {role}" for name, role in roles.items() if name is not None]
    others += [f"{column_text(table, name)} is a feature" for name in features]
    if table.has_names:
        ends = f"{edges.src} and {edges.dst} of {table.path.name}"
    else:
        numbers = [table.names.index(name) + 1 for name in (edges.src, edges.dst)]
        ends = f"columns {numbers[0]} and {numbers[1]} of {table.path.name} (no header)"
    used = [edges.src, edges.dst, edges.weight, edges.time, *features]
    told.say(", ".join([f"edges: {ends}", *others]), table, used)


def _missing(key: str, name: str, edges: TableEdges, *, what: str = "column") -> str:
    left = [column for column in edges.table.names if column not in (edges.src, edges.dst)]
    there = ", ".join(left) or "none besides its two ends"
    return f"{key} {shown(name)}: {edges.table.path} has no such {what}; it has {there}"
