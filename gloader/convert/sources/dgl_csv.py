"""The source ``dglcsv:DIR``: a folder of CSV files in the layout of DGL's ``CSVDataset``, described by ``meta.yaml``.

The description lists a file for each node type, and one for each relation (DGL's user guide, "Loading data from CSV
files"). A node's row has its id, and perhaps ``feat``, ``label`` and the masks ``train_mask``, ``val_mask`` and
``test_mask``. An edge's row has its two ends, and perhaps ``feat`` and a weight. A cell of ``feat`` is a number, or
several numbers with commas between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pac

from gloader.convert.readers.attributes import DGL_NAMES
from gloader.convert.readers.column_names import listed
from gloader.convert.readers.csv_table import CsvTable
from gloader.convert.readers.node_arrays import (
    count_classes,
    no_labels,
    random_splits,
    require_node_memory,
    to_labels,
)
from gloader.convert.readers.node_tables import read_ids
from gloader.convert.readers.table_streams import ColumnNotes, TableEdges, regroup
from gloader.convert.source import (
    FeatureStream,
    GraphSource,
    NodeSource,
    RelationSource,
    Source,
    Splits,
    only_labelled,
)
from gloader.convert.sources.edge_list import edge_table_columns, held_bytes, reading_bytes
from gloader.core.malformed import read_yaml_mapping, shown
from gloader.errors import ShapeError, SourceError
from gloader.types import EDGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.convert.options import SourceOptions
    from gloader.convert.readers.table_streams import Columns
    from gloader.convert.source import AnySource
    from gloader.types import IdArray, Relation


_META: Final = "meta.yaml"
_MASKS: Final = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
_GRAPH_ID: Final = "graph_id"
# DGL's names for the type and the relation of a graph of one type.
_ONE_TYPE, _ONE_RELATION = "_V", ("_V", "_E", "_V")
_ITEM_BRACKETS: Final = "[]() "  # characters around the numbers in a cell


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeFile:
    """A node type's file."""

    name: str  # the node type
    key: str  # the column of ids
    table: CsvTable
    num_nodes: int
    row_ids: IdArray | None  # (N,) each row's node; None means that row i belongs to node i
    features: str | None  # the column of features
    label: str | None  # the column of labels


def open_dgl_csv(argument: str, options: SourceOptions) -> AnySource:
    """Open ``dglcsv:argument``, a folder with a ``meta.yaml``.

    Raises
    ------
    SourceError
        The description or a file is missing or malformed, ids are not 0..N-1, there are several graphs, or not exactly
        one node type has labels.
    ShapeError, GraphError
        A column has the wrong kind of values.
    BudgetError
        Arrays with an entry per node take more than the memory budget.
    """
    folder = Path(argument).expanduser()
    meta = _read_meta(folder)
    notes = ColumnNotes()
    nodes = {
        each.name: each for each in (_node_file(folder, entry, meta, options) for entry in meta["node_data"])
    }
    labelled = only_labelled(
        [each.name for each in nodes.values() if each.label is not None],
        otherwise=None if options.needs_labels else next(iter(nodes)),
        where=str(folder),
    )
    labels, splits = _task(nodes[labelled], options)
    features = {each.name: _features(each) for each in nodes.values()}
    relations = tuple(_relation(folder, entry, meta, nodes, options, notes) for entry in meta["edge_data"])
    for each in nodes.values():
        masks = [mask for mask in _MASKS.values() if each.name == labelled and mask in each.table.names]
        _note(each, masks, notes)
    resident = sum(held_bytes(None, each.row_ids) for each in nodes.values()) + reading_bytes(
        *(each.edges for each in relations), *features.values()
    )
    is_typed = [each.relation for each in relations] != [EDGE]
    common: dict[str, Any] = {
        "name": str(meta["dataset_name"]),
        "origin": f"dglcsv:{argument}",
        "num_classes": count_classes(labels),
        "labels": labels,
        "splits": splits,
        "resident_bytes": resident,
        "column_notes": tuple(notes.lines),
        "unused": notes.unused,
    }
    if is_typed:
        return GraphSource(
            nodes=tuple(
                NodeSource(
                    name=each.name,
                    num_nodes=each.num_nodes,
                    features=features[each.name],
                    row_ids=None if features[each.name] is None else each.row_ids,
                )
                for each in nodes.values()
            ),
            relations=relations,
            labelled=labelled,
            **common,
        )
    only, rows = nodes[_ONE_TYPE], features[_ONE_TYPE]
    if rows is None:
        raise SourceError(
            f"{only.table.path} has no features (a column {' or '.join(DGL_NAMES.features)}); it has "
            f"{listed(only.table.names)}"
        )
    return Source(
        num_nodes=only.num_nodes,
        edges=relations[0].edges,
        features=rows,
        row_ids=only.row_ids,
        edge_features=relations[0].edge_features,
        edge_file=relations[0].edge_file,
        **common,
    )


def source_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the description, and every file that it names. Raises SourceError."""
    del options
    folder = Path(argument).expanduser()
    meta = _read_meta(folder)
    return [folder / _META, *(folder / each["file_name"] for each in meta["node_data"] + meta["edge_data"])]


def _read_meta(folder: Path) -> dict[str, Any]:
    """Return the description with DGL's defaults. Raises SourceError for a missing or wrong key."""
    path = folder / _META
    content = read_yaml_mapping(
        path, what="the description", holds="the files of nodes and edges", error=SourceError
    )
    meta: dict[str, Any] = {"dataset_name": folder.resolve().name, "separator": ",", **content}
    if meta.get("graph_data") is not None:
        raise SourceError(f"{path} has graph_data, a table of several graphs; give the folder of one graph")
    for key in ("node_data", "edge_data"):
        entries: Any = meta.get(key)
        is_list = isinstance(entries, list) and bool(entries)
        if not is_list or not all(isinstance(each, dict) and each.get("file_name") for each in entries):
            raise SourceError(
                f"{path}: {key} is {shown(entries)}; it must be a list of entries with a file_name"
            )
    return meta


def _open(folder: Path, entry: Mapping[str, Any], meta: Mapping[str, Any]) -> CsvTable:
    """Open an entry's file. Raises SourceError if it is no table of one graph with a header."""
    path = folder / str(entry["file_name"])
    if not path.is_file():
        raise SourceError(f"{folder / _META}: {path} is missing, or is not a file")
    table = CsvTable.open(path)
    if len(table.names) > 1 and table.delimiter != meta["separator"]:
        raise SourceError(
            f"{path} has columns separated by {table.delimiter!r}, and {_META} has the separator "
            f"{shown(meta['separator'])}"
        )
    if not table.has_names:
        raise SourceError(f"{path} has no header; its first line must have the columns' names")
    graph_id = str(entry.get("graph_id_field", _GRAPH_ID))
    if graph_id in table.names:
        first = None
        for (part,) in table.read({graph_id: "float64"}, error=SourceError):
            first = part[0] if first is None else first
            if (part != first).any():
                raise SourceError(
                    f"{path} has several graphs (column {graph_id}); give the folder of one graph"
                )
    return table


def _node_file(
    folder: Path, entry: Mapping[str, Any], meta: Mapping[str, Any], options: SourceOptions
) -> _NodeFile:
    """Open a node type's file, and read the ids of its rows."""
    table, name = _open(folder, entry, meta), str(entry.get("ntype", _ONE_TYPE))
    key = str(entry.get("node_id_field", "node_id"))
    if key not in table.names:
        raise SourceError(f"{table.path} has no column {key}; it has {listed(table.names)}")
    num_nodes = table.count_rows()
    require_node_memory(num_nodes, options.budget_bytes, str(table.path))
    try:
        ids = read_ids(table, key, num_rows=num_nodes, num_nodes=num_nodes, budget_bytes=options.budget_bytes)
    except SourceError as error:
        raise SourceError(f"{error}. {_as_graph_yaml(folder, meta)}") from error
    label = next((each for each in DGL_NAMES.labels if each in table.names), None)
    features = next((each for each in DGL_NAMES.features if each in table.names), None)
    return _NodeFile(
        name=name, key=key, table=table, num_nodes=num_nodes, row_ids=ids, features=features, label=label
    )


def _as_graph_yaml(folder: Path, meta: Mapping[str, Any]) -> str:
    """Return the advice to describe the folder with other ids in a graph.yaml, with its lines."""
    names = {each.get("ntype", _ONE_TYPE): each.get("ntype", "node") for each in meta["node_data"]}
    keys = {each.get("ntype", _ONE_TYPE): each.get("node_id_field", "node_id") for each in meta["node_data"]}
    nodes = [
        f"{each.get('ntype', 'node')}: {{file: {each['file_name']}, key: {each.get('node_id_field', 'node_id')}}}"
        for each in meta["node_data"]
    ]
    edges = []
    for each in meta["edge_data"]:
        first, name, last = each.get("etype", _ONE_RELATION)
        ends = [f"{names.get(end, end)}.{keys.get(end, 'node_id')}" for end in (first, last)]
        edges.append(f"{str(name).strip('_')}: {{file: {each['file_name']}, src: {ends[0]}, dst: {ends[1]}}}")
    return (
        f"For other ids, prepare tables:{folder} with a {folder / 'graph.yaml'} such as "
        f"{{nodes: {{{', '.join(nodes)}}}, edges: {{{', '.join(edges)}}}}}"
    )


def _task(nodes: _NodeFile, options: SourceOptions) -> tuple[IdArray, Splits]:
    """Return the labels and splits of the labelled type. Without masks, the splits are random."""
    table, labels = nodes.table, no_labels(nodes.num_nodes)
    if nodes.label is not None:
        where = f"{table.path}, column {nodes.label}"
        values = to_labels(_column(nodes, nodes.label), where=where, labels_as=options.labels_as)
        labels = values
    masks = {part: name for part, name in _MASKS.items() if name in table.names}
    if not masks:
        return labels, random_splits(labels, seed=options.seed)
    parts = {part: np.empty(0, np.int64) for part in _MASKS}
    for part, name in masks.items():
        if table.kind(name) not in {"bool", "integer"}:
            raise SourceError(
                f"{table.path}: column {name} holds {table.kind(name)}s; a mask holds True and False"
            )
        parts[part] = np.flatnonzero(_column(nodes, name))
    return labels, Splits(**parts)


def _column(nodes: _NodeFile, name: str) -> NDArray[Any]:
    """Return a column's numbers (N,) as float64, in the order of the nodes."""
    values = np.empty(nodes.num_nodes)
    done = 0
    for (part,) in nodes.table.read({name: "float64"}, error=SourceError):
        target = (
            slice(done, done + len(part)) if nodes.row_ids is None else nodes.row_ids[done : done + len(part)]
        )
        values[target] = part
        done += len(part)
    return values


def _features(nodes: _NodeFile) -> FeatureStream | None:
    """Return the feature rows of a node type, or None."""
    return None if nodes.features is None else cell_features(nodes.table, nodes.features, nodes.num_nodes)


def _relation(
    folder: Path,
    entry: Mapping[str, Any],
    meta: Mapping[str, Any],
    nodes: Mapping[str, _NodeFile],
    options: SourceOptions,
    notes: ColumnNotes,
) -> RelationSource:
    """Open a relation's file."""
    table, kind = _open(folder, entry, meta), entry.get("etype", list(_ONE_RELATION))
    if not isinstance(kind, list) or len(kind) != 3 or kind[0] not in nodes or kind[2] not in nodes:
        raise SourceError(
            f"{folder / _META}: the etype is {shown(kind)}; it must be [source, name, destination], with types "
            f"among {', '.join(nodes)}"
        )
    ends = [
        str(entry.get(key, default))
        for key, default in (("src_id_field", "src_id"), ("dst_id_field", "dst_id"))
    ]
    column = next((each for each in DGL_NAMES.features if each in table.names), None)
    edges, features = edge_table_columns(
        TableEdges.open(table, src=ends[0], dst=ends[1], num_edges=table.count_rows()),
        time=options.edge_time if options.edge_time in table.names else None,
        features=None if options.edge_features == column else options.edge_features,
        budget_bytes=options.budget_bytes,
        notes=notes,
    )
    if features is None and column is not None and options.edge_names.takes_features:
        features = cell_features(table, column, edges.num_edges or 0)
        notes.add(f"edge features: {column} of {table.path.name}", table, [*ends, column])
    relation: Relation = (kind[0], str(kind[1]), kind[2])
    is_only = list(nodes) == [_ONE_TYPE] and relation == _ONE_RELATION and len(meta["edge_data"]) == 1
    return RelationSource(
        relation=EDGE if is_only else relation, edges=edges, edge_features=features, edge_file=table.path
    )


def _note(nodes: _NodeFile, masks: Sequence[str], notes: ColumnNotes) -> None:
    """Add the receipt's line on a node file's columns."""
    roles = {nodes.features: "the features", nodes.label: "the label"}
    used = [f"{name} is {role}" for name, role in roles.items() if name is not None] + [*masks]
    text = f"nodes: {nodes.table.path.name}" + (f", {', '.join(used)}" if used else "")
    notes.add(text, nodes.table, [nodes.key, nodes.features, nodes.label, *masks])


def cell_features(table: CsvTable, column: str, num_rows: int) -> FeatureStream:
    """Return the numbers in a column's cells as feature rows, such as ``"0.1, 0.2"`` or ``0.5``.

    Parameters
    ----------
    table : the table
    column : the column
    num_rows : the number of its rows

    Raises
    ------
    SourceError
        The first cell has no numbers.
    """
    first = next((rows for (rows,) in _cells(table, column, None)), np.empty((0, 1)))

    def chunks(max_rows: int) -> Iterator[NDArray[np.generic]]:
        return (rows for (rows,) in regroup(_cells(table, column, first.shape[1]), max_rows))

    return FeatureStream(
        chunks=chunks,
        num_rows=num_rows,
        dim=first.shape[1],
        dtype=np.dtype(np.float64),
        where=f"{table.path}, column {column}",
        reading_bytes=table.reading_bytes([column]),
    )


def _cells(table: CsvTable, column: str, width: int | None) -> Iterator[Columns]:
    """Yield a column's cells as float64 rows (n, width). ``width`` is None for the width of the first cell."""
    done = 0
    for batch in table.read_arrow([column], error=SourceError):
        cells: Any = batch.column(0)
        items = pac.split_pattern(pac.utf8_trim(cells.fill_null(""), _ITEM_BRACKETS), ",")
        lengths = items.value_lengths().to_numpy(zero_copy_only=False)
        width = int(lengths[0]) if width is None and len(lengths) else width
        wrong = np.flatnonzero(lengths != width)
        if wrong.size:
            row = int(wrong[0])
            raise ShapeError(
                f"{table.path}: row {done + row} has {lengths[row]} numbers in column {column!r}; every row must have "
                f"{width}, as the first row"
            )
        texts = pac.utf8_trim_whitespace(items.flatten())
        try:
            numbers = texts.cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid as error:
            row = _first_text(texts) // (width or 1)
            raise SourceError(
                f"{table.path}: row {done + row}, column {column!r} is {shown(cells[row].as_py())}; features are "
                "numbers, with commas between several"
            ) from error
        yield (numbers.reshape(len(lengths), -1),)
        done += batch.num_rows


def _first_text(texts: Any) -> int:
    """Return the position of the first text that is no number."""
    for position, text in enumerate(texts.to_pylist()):
        try:
            float(text)
        except ValueError:
            return position
    return 0
