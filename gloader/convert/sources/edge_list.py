"""The files of a graph of tables: feature rows, labels, splits, and the columns of edge tables.

The functions open the files one by one, for the sources ``edges:FILE`` and ``tables:DIR``. The parameter ``notes``
collects lines on the role of each column, for the *receipt*: the conversion's printed summary.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gloader.convert.node_order import JOINED_NODE_BYTES
from gloader.convert.options import NONE
from gloader.convert.readers.node_arrays import read_labels, read_split, to_labels
from gloader.convert.readers.node_tables import label_columns, node_features, node_labels
from gloader.convert.readers.npy_file import NpyFile, npz_members
from gloader.convert.readers.open_table import is_matrix, is_table, open_table, unknown_format
from gloader.convert.readers.table_streams import (
    ColumnNotes,
    TableEdges,
    column_text,
    end_used_twice,
    table_features,
)
from gloader.convert.source import EdgeStream, FeatureStream, Splits
from gloader.convert.sources.npy import open_feature_file
from gloader.core.malformed import shown
from gloader.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.convert.options import LabelsAs
    from gloader.types import IdArray


def open_node_features(
    path: Path, *, budget_bytes: int, notes: ColumnNotes, labels: Path | None = None
) -> tuple[FeatureStream, IdArray | None]:
    """Open a ``.npy`` (N, F), a ``.npz`` with a scipy CSR matrix, or a table with a row per node.

    Parameters
    ----------
    path : a file, or a folder of part files
    budget_bytes : memory for a sparse matrix's row offsets, or for ids
    notes : receives the receipt's lines on columns
    labels : the label file. It may be the feature file; then the column of labels is not a feature

    Returns
    -------
    features : the feature rows
    row_ids : (N,) the node of each row, or None if row i belongs to node i

    Raises
    ------
    SourceError, ShapeError, GraphError
        The file is missing or malformed, or the ids are not 0..N-1, each once.
    BudgetError
        Row offsets or ids take more than ``budget_bytes``.
    """
    if not is_table(path):
        if path.suffix not in {".npy", ".npz"}:
            raise SourceError(f"{path} is no .npy or .npz array: {unknown_format(path)}")
        return open_feature_file(path, budget_bytes=budget_bytes), None
    if is_matrix(path):
        raise SourceError(
            f"{path} is a sparse matrix of Matrix Market, which is read as edges; save sparse features with "
            "scipy.sparse.save_npz('features.npz', scipy.io.mmread(file).tocsr())"
        )
    has_labels = labels is not None and labels.expanduser().resolve() == path.resolve()
    return node_features(open_table(path), budget_bytes=budget_bytes, notes=notes, has_labels=has_labels)


def open_edge_features(path: Path, *, budget_bytes: int, notes: ColumnNotes) -> FeatureStream:
    """Open a file with one feature row per edge, in edge order. Raises as `open_node_features`."""
    rows, ids = open_node_features(path, budget_bytes=budget_bytes, notes=notes)
    if ids is not None:
        raise SourceError(
            f"{path} is not sorted by the ids of its rows; features of edges lie in the edges' order"
        )
    return rows


def count_labels(path: Path) -> int:
    """Return the number of rows of labels in a file, an array or a table. Raises as `read_label_file`."""
    if is_table(path):
        return open_table(path).count_rows()
    shape = NpyFile.open(path).shape
    return shape[0] if shape else 1


def read_label_file(
    path: Path, *, num_nodes: int, budget_bytes: int, notes: ColumnNotes, labels_as: LabelsAs | None = None
) -> NDArray[Any]:
    """Return the labels in a ``.npy`` or a table with a row per node: classes (N,) or values (N, k).

    Parameters
    ----------
    path : a file, or a folder of part files
    num_nodes : N
    budget_bytes : memory for the labels
    notes : receives the receipt's lines on columns
    labels_as : the user's choice of classes or values; see `to_labels`

    Raises
    ------
    SourceError, ShapeError, BudgetError
        As `read_labels` and `node_labels`.
    """
    if not is_table(path):
        return read_labels(
            NpyFile.open(path), num_nodes=num_nodes, budget_bytes=budget_bytes, labels_as=labels_as
        )
    if is_matrix(path):
        raise SourceError(f"{path} is a sparse matrix of Matrix Market; save the labels as a .npy array (N,)")
    values = node_labels(
        open_table(path), num_nodes=num_nodes, budget_bytes=budget_bytes, notes=notes, labels_as=labels_as
    )
    return to_labels(values, where=str(path), labels_as=labels_as)


def label_names(path: Path | None, labels: NDArray[Any]) -> tuple[str, ...]:
    """Return the names of the columns of ``labels`` (N, k) in a label file; empty for classes, arrays and None."""
    if path is None or labels.ndim == 1 or not is_table(path):
        return ()
    table = open_table(path)
    # A table without a header has numbers as names, which say nothing about labels.
    return tuple(label_columns(table, "values")) if table.has_names else ()


def read_split_files(path: Path, *, num_nodes: int, budget_bytes: int) -> Splits:
    """Return the splits train, valid (or val) and test in a ``.npz``, or in a folder of ``.npy`` files.

    Parameters
    ----------
    path : the archive or folder
    num_nodes : N
    budget_bytes : memory for each split

    Raises
    ------
    SourceError, ShapeError, GraphError, BudgetError
        As `read_split`. SourceError also if a split is missing.
    """
    parts = {name: _open_split(path, name) for name in ("train", "valid", "test")}
    return Splits(
        **{
            name: read_split(file, num_nodes=num_nodes, budget_bytes=budget_bytes)
            for name, file in parts.items()
        }
    )


def _open_split(path: Path, name: str) -> NpyFile:
    """Open the array with one part of the splits, in a folder or an archive."""
    aliases = (name, "val") if name == "valid" else (name,)
    if path.is_dir():
        found = next((path / f"{alias}.npy" for alias in aliases if (path / f"{alias}.npy").exists()), None)
        if found is None:
            raise SourceError(
                f"{path} holds no {name}.npy; a folder of splits has train.npy, valid.npy and test.npy"
            )
        return NpyFile.open(found)
    if is_table(path):
        raise SourceError(
            f"{path} is a table; splits are a .npz with arrays train, valid and test, or a folder of three .npy files"
        )
    members = npz_members(path)
    member = next((alias for alias in aliases if alias in members), None)
    if member is None:
        raise SourceError(f"{path} holds no array {name!r}; it holds {', '.join(members) or 'nothing'}")
    return NpyFile.open(path, member)


def reading_bytes(*streams: EdgeStream | FeatureStream | None) -> int:
    """Return the bytes of memory for reading a source's tables, one after another: the largest table's bytes."""
    return max((each.reading_bytes for each in streams if each is not None), default=0)


def held_bytes(features: FeatureStream | None, row_ids: IdArray | None = None) -> int:
    """Return the bytes of row offsets, ids and row order that features keep in memory all the time."""
    offsets = 0 if features is None else features.held_bytes
    return offsets + (0 if row_ids is None else JOINED_NODE_BYTES * row_ids.shape[0])


def edge_table_columns(
    edges: TableEdges,
    *,
    time: str | None,
    features: str | None,
    budget_bytes: int,
    notes: ColumnNotes,
    keys: tuple[str, str] = ("--edge-time", "--edge-features"),
) -> tuple[EdgeStream, FeatureStream | None]:
    """Return a table's edges with times as a stream, and the edge features; see `edge_table_parts`."""
    table_edges, rows = edge_table_parts(
        edges, time=time, features=features, budget_bytes=budget_bytes, notes=notes, keys=keys
    )
    return table_edges.stream(), rows


def edge_table_parts(
    edges: TableEdges,
    *,
    time: str | None,
    features: str | None,
    budget_bytes: int,
    notes: ColumnNotes,
    features_file: Path | None = None,
    keys: tuple[str, str] = ("--edge-time", "--edge-features"),
) -> tuple[TableEdges, FeatureStream | None]:
    """Return a table's edges with times, and the edge features.

    Parameters
    ----------
    edges : the table's edges
    time : the column of times. None or "none" means that edges get no times
    features : names of the table's feature columns, such as "amount,kind", with numbers or lists of numbers. If the
        table lacks these columns, it is a file with a row per edge. None or "none" means that edges get no features
    budget_bytes : memory for the row offsets of a feature file with a sparse matrix
    notes : receives the receipt's line on the table's columns
    features_file : path of the feature file. By default, ``features`` is the path
    keys : the names of the user's options for times and features, for messages

    Raises
    ------
    ConfigError
        There is no such column, and no such file. The message lists the columns.
    SourceError, ShapeError, GraphError
        The table or the file is malformed.
    """
    table = edges.table
    if time not in (None, NONE):
        if time not in table.names:
            raise ConfigError(_missing(keys[0], str(time), edges))
        if time in (edges.src, edges.dst):
            raise ConfigError(f"{keys[0]}: {end_used_twice(table, str(time), 'times')}")
        edges = replace(edges, time=time)
    names = () if features in (None, NONE) else tuple(dict.fromkeys(str(features).split(",")))
    if not table.has_names and {edges.weight} & {time, *names}:
        # In a table without names, the third column has the weights, unless the user names it as times or features.
        edges = replace(edges, weight=None)
    feature_columns = names if set(names) <= set(table.names) else ()
    _note_columns(edges, feature_columns, notes)
    if not names:
        return edges, None
    if not feature_columns:
        path = features_file or Path(str(features)).expanduser()
        if not path.is_file():
            raise ConfigError(
                _missing(keys[1], str(features), edges, what="column, and there is no such file")
            )
        return edges, open_edge_features(path, budget_bytes=budget_bytes, notes=notes)
    if edges.num_edges is None:
        # The conversion needs the number of feature rows before it sorts the edges, because the rows take disk space.
        edges = replace(edges, num_edges=table.count_rows())
    return edges, table_features(table, edges.num_edges or 0, names)


def _note_columns(edges: TableEdges, features: tuple[str, ...], notes: ColumnNotes) -> None:
    """Add the receipt's line on an edge table's columns, such as "edges: src and dst of e.csv, w is the weight"."""
    table = edges.table
    if not table.names:
        return
    roles = {edges.weight: "the weight", edges.time: "the time"}
    others = [f"{column_text(table, name)} is {role}" for name, role in roles.items() if name is not None]
    others += [f"{column_text(table, name)} is a feature" for name in features]
    if table.has_names:
        ends = f"{edges.src} and {edges.dst} of {table.path.name}"
        ends += f" ({table.remark})" if table.remark else ""
    else:
        numbers = [table.names.index(name) + 1 for name in (edges.src, edges.dst)]
        ends = f"columns {numbers[0]} and {numbers[1]} of {table.path.name} (no header)"
    used = [edges.src, edges.dst, edges.weight, edges.time, *features]
    notes.add(", ".join([f"edges: {ends}", *others]), table, used)


def _missing(key: str, name: str, edges: TableEdges, *, what: str = "column") -> str:
    """Return the message for an option ``key`` whose column ``name`` is missing."""
    columns = [column for column in edges.table.names if column not in (edges.src, edges.dst)]
    existing = ", ".join(columns) or "none besides its two ends"
    return f"{key} {shown(name)}: {edges.table.path} has no such {what}; it has {existing}"
