"""The source ``tables:DIR``: a folder with edge tables, node tables and arrays, described by its ``graph.yaml``.

`open_tables` opens the source: it reads the description, then opens each file with the functions of `edge_list`. The
description lists node types under ``nodes`` and relations under ``edges``, with the files of each:

.. code-block:: yaml

    nodes:
      paper: {features: paper.npy, labels: labels.npy, splits: splits.npz}
      author: {num_nodes: 1200}
    edges:
      author:writes:paper: writes.parquet
      paper:cites:paper: {file: cites.csv, src: citing, dst: cited, weight: count, time: day, features: [kind, place]}

The receipt is the conversion's printed summary. It has a line on the role of each file's columns.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gloader.convert.readers.column_names import listed
from gloader.convert.readers.edge_columns import file_column, timed_edges
from gloader.convert.readers.file_streams import pair_file_edges
from gloader.convert.readers.node_arrays import count_classes, no_labels, random_splits, require_node_memory
from gloader.convert.readers.npy_file import NpyFile
from gloader.convert.readers.open_table import is_matrix, is_pattern, is_table, open_table
from gloader.convert.readers.table_streams import ColumnNotes, TableEdges
from gloader.convert.source import GraphSource, NodeSource, RelationSource, only_labelled
from gloader.convert.sources.edge_list import (
    count_labels,
    edge_table_columns,
    held_bytes,
    open_edge_features,
    open_node_features,
    read_label_file,
    read_split_files,
    reading_bytes,
)
from gloader.core.malformed import read_yaml_mapping, shown
from gloader.dataset.schema import MAX_NODES, checked_schema
from gloader.dataset.values import MAX_CLASSES
from gloader.errors import ConfigError, GraphError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gloader.convert.options import EdgeNames, SourceOptions
    from gloader.convert.source import EdgeStream, FeatureStream, Splits
    from gloader.types import IdArray, Relation


GRAPH_FILE: Final = "graph.yaml"
# The allowed keys of the description, of a node type's entry, and of a relation's entry.
_TOP_KEYS: Final = ("name", "nodes", "edges")
_NODE_KEYS: Final = ("num_nodes", "features", "labels", "splits", "num_classes")
_EDGE_KEYS: Final = ("file", "src", "dst", "weight", "time", "features")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """A node type in ``graph.yaml``."""

    num_nodes: int | None  # None means the number is taken from the files
    features: Path | None  # None means that the type has no features
    labels: Path | None  # None means that the type has no labels
    splits: Path | None  # None means random splits
    num_classes: int | None  # None means the number is taken from the labels


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeEntry:
    """A relation in ``graph.yaml``.

    If ``file`` is a table, the other fields name its columns. If it is an array, ``weight``, ``time`` and ``features``
    name other array files in ``folder``.
    """

    folder: Path  # the folder with graph.yaml
    file: Path  # the edges
    src: str | None = None  # None means that the column is found by its name, or is the first one
    dst: str | None = None  # None means that the column is found by its name, or is the second one
    weight: str | None = None  # None means a table's column with a usual name, or no weights
    time: str | None = None  # None means no times, unless --edge-time names a column for all tables
    # Column names with commas between them, or a file. None means no features, unless --edge-features names columns for
    # all tables.
    features: str | None = None

    def open_array(self, name: str | None) -> NpyFile | None:
        """Open the array file ``name``. Return None without a name."""
        return None if name is None else NpyFile.open(self.folder / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphYaml:
    """The content of a ``graph.yaml``, with the paths of its files."""

    path: Path  # the path of graph.yaml
    name: str  # the graph's display name
    nodes: Mapping[str, NodeEntry]  # by node type
    edges: Mapping[Relation, EdgeEntry]

    def where(self, *keys: str) -> str:
        """Return the file and the key, for messages."""
        return f"{self.path}: {'.'.join(keys)}"

    @contextmanager
    def naming(self, *keys: str) -> Iterator[None]:
        """Prefix the message of an error about a named file with the description's path and the key."""
        try:
            yield
        except (SourceError, ShapeError, GraphError) as error:
            raise type(error)(f"{self.where(*keys)}: {error}") from error

    def files(self) -> list[Path]:
        """Return every file that the description may name.

        A relation's ``weight``, ``time`` and ``features`` may be files or columns of its table. For columns, the result
        has paths that do not exist.
        """
        named = [
            path
            for entry in self.nodes.values()
            for path in (entry.features, entry.labels, entry.splits)
            if path is not None
        ]
        for edge in self.edges.values():
            names = filter(None, (edge.weight, edge.time, edge.features))
            named += [edge.file, *(edge.folder / name for name in names)]
        return named


def read_graph_yaml(folder: Path) -> GraphYaml:
    """Read the description in ``folder``. The files that it names are not opened.

    Raises
    ------
    SourceError
        The description is missing, is not YAML, or has an invalid key or value. The message names file, key and the
        allowed values.
    """
    path = folder / GRAPH_FILE
    if path.exists() and not path.is_file():  # reading a pipe would wait
        raise SourceError(f"the description {path} is not a file")
    content = read_yaml_mapping(
        path, what="the description", holds="name, nodes and edges of a graph", error=SourceError
    )
    _only(content, _TOP_KEYS, str(path))
    name = content.get("name", folder.resolve().name)
    if not isinstance(name, str) or not 1 <= len(name) <= 100:
        raise SourceError(f"{path}: name is {shown(name)}; it must be a text of up to 100 characters")
    nodes = {
        node_type: _node_entry(folder, entry, f"{path}: nodes.{node_type}")
        for node_type, entry in _mapping(content, "nodes", str(path)).items()
    }
    edges = {}
    for text, value in _mapping(content, "edges", str(path)).items():
        relation = _relation_of_key(text, nodes, f"{path}: edges.{text}")
        edges[relation] = _edge_entry(folder, value, f"{path}: edges.{text}")
    try:
        # Only for its errors, about names and relations. A number that is not known yet counts as 0.
        checked_schema({node_type: entry.num_nodes or 0 for node_type, entry in nodes.items()}, list(edges))
    except GraphError as error:
        raise SourceError(f"{path}: {error}") from error
    return GraphYaml(path=path, name=name, nodes=nodes, edges=edges)


def _mapping(content: Mapping[str, object], key: str, where: str) -> Mapping[str, object]:
    """Return the mapping under ``key``, nodes or edges. Raise SourceError if it is empty or not a mapping."""
    entries = content.get(key)
    if not isinstance(entries, dict) or not entries or not all(isinstance(name, str) for name in entries):
        what = "node types" if key == "nodes" else "relations such as author:writes:paper"
        raise SourceError(f"{where}: {key} is {shown(entries)}; it must list {what}")
    return entries


def _relation_of_key(text: str, nodes: Mapping[str, NodeEntry], where: str) -> Relation:
    """Return the relation in a key such as "author:writes:paper". Raise SourceError for an unknown node type."""
    names = text.split(":")
    if len(names) != 3:
        raise SourceError(
            f"{where}: a relation is written source:name:destination, such as author:writes:paper"
        )
    for node_type in (names[0], names[2]):
        if node_type not in nodes:
            raise SourceError(f"{where} names the node type {node_type!r}; nodes has {', '.join(nodes)}")
    return names[0], names[1], names[2]


def _node_entry(folder: Path, value: object, where: str) -> NodeEntry:
    """Return the value under a node type's key. Raise SourceError if it is not valid; ``where`` names the key."""
    # A type without any entry gets its number of nodes from the edges.
    entry = {} if value is None else value
    if not isinstance(entry, dict):
        raise SourceError(f"{where} is {shown(value)}; it must have some of {', '.join(_NODE_KEYS)}")
    _only(entry, _NODE_KEYS, where)
    return NodeEntry(
        num_nodes=_count(entry, "num_nodes", (0, MAX_NODES), where),
        features=_file(folder, entry, "features", where),
        labels=_file(folder, entry, "labels", where),
        splits=_file(folder, entry, "splits", where),
        num_classes=_count(entry, "num_classes", (1, MAX_CLASSES), where),
    )


def _edge_entry(folder: Path, value: object, where: str) -> EdgeEntry:
    """Return the value under a relation's key: a mapping, or only the name of the edges' file."""
    entry = {"file": value} if isinstance(value, str) else value
    if not isinstance(entry, dict):
        raise SourceError(f"{where} is {shown(value)}; it must be a file, or have {', '.join(_EDGE_KEYS)}")
    _only(entry, _EDGE_KEYS, where)
    file = _file(folder, entry, "file", where)
    if file is None:
        raise SourceError(f"{where} has no file; name the table of its edges")
    # A list of columns becomes one text with commas.
    columns = entry.get("features")
    if isinstance(columns, list) and columns and all(isinstance(name, str) and name for name in columns):
        entry = {**entry, "features": ",".join(columns)}
    texts = {key: _text(entry, key, where) for key in _EDGE_KEYS if key != "file"}
    return EdgeEntry(folder=folder, file=file, **texts)


def _only(content: Mapping[str, object], allowed: tuple[str, ...], where: str) -> None:
    """Raise SourceError for a key that is not ``allowed``."""
    unknown = next((key for key in content if key not in allowed), None)
    if unknown is not None:
        raise SourceError(f"{where} has the key {shown(unknown)}; allowed are {', '.join(allowed)}")


def _text(entry: Mapping[str, object], key: str, where: str) -> str | None:
    """Return the text under ``key``, or None without the key. Raise SourceError for other values."""
    value = entry.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise SourceError(f"{where}.{key} is {shown(value)}; it must be a name")
    return value


def _file(folder: Path, entry: Mapping[str, object], key: str, where: str) -> Path | None:
    """Return the path of the file under ``key``, or None without the key. The file need not exist."""
    name = _text(entry, key, where)
    return None if name is None else folder / name


def _count(entry: Mapping[str, object], key: str, limits: tuple[int, int], where: str) -> int | None:
    """Return the number under ``key``, or None without the key. ``limits`` are the smallest and largest number."""
    value = entry.get(key)
    if value is None:
        return None
    if type(value) is not int or not limits[0] <= value <= limits[1]:
        raise SourceError(
            f"{where}.{key} is {shown(value)}; it must be a whole number in {limits[0]}..{limits[1]}"
        )
    return value


def open_edge_table(
    entry: EdgeEntry, *, where: str, names: EdgeNames, budget_bytes: int, notes: ColumnNotes
) -> tuple[EdgeStream, FeatureStream | None]:
    """Open a relation's edges, and its edge features or None.

    The file of edges is a table with one row per edge, or a ``.npy`` array (E, 2) or (2, E).

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
        if is_table(entry.file):
            return _open_table(entry, names, budget_bytes, notes)
        return _open_array(entry, names, budget_bytes, notes)
    except (SourceError, ShapeError, GraphError, ConfigError) as error:
        raise type(error)(f"{where}: {error}") from error


def _open_table(
    entry: EdgeEntry, names: EdgeNames, budget_bytes: int, notes: ColumnNotes
) -> tuple[EdgeStream, FeatureStream | None]:
    """Return the edges in a table, and the edge features or None. The entry's columns precede the user's ``names``."""
    table = open_table(entry.file)
    named = {"weight": entry.weight, "time": entry.time}
    for key, column in named.items():
        if column is not None and column not in table.names:
            raise SourceError(
                f"{key} is {shown(column)}; the columns of {entry.file} are {listed(table.names)}"
            )
    keys = "src: COLUMN, dst: COLUMN"  # for a message about missing ends: the keys to add in graph.yaml
    edges = TableEdges.open(table, src=entry.src, dst=entry.dst, weight=entry.weight, keys=keys)
    # The flags --edge-time and --edge-features name columns for all tables. A table without the column of times, or
    # without one of the feature columns, gets no times or features from the flag.
    time = entry.time or names.pick_time(table.names, usual=())
    # If there is no flag, ``names.features`` is None, and so is ``common_features`` in any case.
    requested = set(str(names.features).split(","))
    common_features = names.features if requested <= set(table.names) else None
    features = entry.features or common_features
    return edge_table_columns(
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


# Suffixes of the files that `_unused` reports.
_DATA_FILES = frozenset({".npy", ".npz", ".csv", ".tsv", ".parquet", ".arrow", ".feather", ".ipc", ".mtx"})
_CHUNK_EDGES = 1 << 18  # edges per chunk while the largest id is found


def open_tables(argument: str, options: SourceOptions) -> GraphSource:
    """Open the folder ``argument`` as described in its ``graph.yaml``.

    A type's number of nodes is ``num_nodes``, or the number of its feature rows or labels, or the largest id in the
    edges plus one. Without splits, nodes are split at random by ``options.seed``.

    Raises
    ------
    SourceError
        The description or a file is missing or malformed. The message names the file and its key.
    ShapeError, GraphError
        An array has the wrong shape or dtype.
    ConfigError
        No table has a requested column of times or features.
    BudgetError
        The labels are larger than the memory budget.
    """
    graph = read_graph_yaml(Path(argument).expanduser())
    labelled_types = [name for name, entry in graph.nodes.items() if entry.labels is not None]
    # Several labelled types, or missing labels, are refused now, before the files are opened.
    if labelled_types or options.needs_labels:
        only_labelled(labelled_types, where=str(graph.path))
    notes = ColumnNotes()
    rows = {  # each type's feature rows, and the node of each row or None
        name: _features(graph, name, entry, options.budget_bytes, notes)
        for name, entry in graph.nodes.items()
        if entry.features is not None
    }
    features = {name: stream for name, (stream, _) in rows.items()}
    relations = tuple(
        _relation(graph, relation, options.edge_names, options.budget_bytes, notes)
        for relation in graph.edges
    )
    options.edge_names.require(
        has_times=any(each.edges.has_times for each in relations),
        has_features=any(each.edge_features is not None for each in relations),
        there=_edge_columns(relations),
        where=str(graph.path),
    )
    counts = _counts(graph, features, relations)
    # Without labels, the first type with nodes counts as the labelled type, and gets labels of -1.
    labelled = only_labelled(
        labelled_types, otherwise=next((name for name in counts if counts[name]), None), where=str(graph.path)
    )
    require_node_memory(counts[labelled], options.budget_bytes, str(graph.path))
    labels = _labels(graph, labelled, counts[labelled], options.budget_bytes, notes)
    return GraphSource(
        name=graph.name,
        origin=f"tables:{argument}",
        nodes=tuple(
            NodeSource(
                name=name,
                num_nodes=counts[name],
                features=features.get(name),
                row_ids=rows[name][1] if name in rows else None,
            )
            for name in graph.nodes
        ),
        relations=relations,
        labelled=labelled,
        num_classes=graph.nodes[labelled].num_classes or count_classes(labels),
        labels=labels,
        splits=_splits(graph, labelled, labels, options),
        # Memory for the row offsets and ids of all files (`held_bytes`), and for reading the largest file
        # (`reading_bytes`), because only one file at a time is read.
        resident_bytes=sum(held_bytes(*each) for each in rows.values())
        + sum(held_bytes(each.edge_features) for each in relations)
        + reading_bytes(
            *features.values(), *(part for each in relations for part in (each.edges, each.edge_features))
        ),
        column_notes=tuple(notes.lines),
        unused=(*notes.unused, *_unused(graph)),
    )


def _unused(graph: GraphYaml) -> tuple[str, ...]:
    """Return the folder's tables and arrays that the description does not name."""
    named = {
        part.resolve()
        for path in graph.files()
        for part in (path.parent.glob(path.name) if is_pattern(path) else [path])
    }
    return tuple(
        sorted(
            path.name
            for path in graph.path.parent.iterdir()
            if path.suffix in _DATA_FILES and path.is_file() and path.resolve() not in named
        )
    )


def source_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the description and every file that it names, or nothing without a description. Raises SourceError."""
    del options
    folder = Path(argument).expanduser()
    if not (folder / GRAPH_FILE).is_file():
        return []
    graph = read_graph_yaml(folder)
    return [graph.path, *graph.files()]


def _relation(
    graph: GraphYaml, relation: Relation, names: EdgeNames, budget_bytes: int, notes: ColumnNotes
) -> RelationSource:
    """Open the files of one relation."""
    entry = graph.edges[relation]
    where = graph.where("edges", ":".join(relation))
    edges, rows = open_edge_table(entry, where=where, names=names, budget_bytes=budget_bytes, notes=notes)
    if relation[0] == relation[2] and is_table(entry.file) and is_matrix(entry.file):
        from gloader.convert.readers.matrix_market import require_square  # imported late: pyarrow takes 30 MB

        with graph.naming("edges", ":".join(relation)):
            require_square(open_table(entry.file))
    return RelationSource(relation=relation, edges=edges, edge_features=rows, edge_file=entry.file)


def _edge_columns(relations: tuple[RelationSource, ...]) -> set[str]:
    """Return the columns of all edge tables, without the ends."""
    return {name for each in relations for name in each.edges.columns}


def _features(
    graph: GraphYaml, name: str, entry: NodeEntry, budget_bytes: int, notes: ColumnNotes
) -> tuple[FeatureStream, IdArray | None]:
    """Open a type's features. Returns the feature rows, and each row's node or None, as `open_node_features`."""
    if entry.features is None:
        raise TypeError(f"type {name!r} has no features")
    with graph.naming("nodes", name, "features"):
        return open_node_features(entry.features, budget_bytes=budget_bytes, notes=notes, labels=entry.labels)


def _labels(graph: GraphYaml, name: str, num_nodes: int, budget_bytes: int, notes: ColumnNotes) -> IdArray:
    """Read a type's labels (N,). Without a file, all are -1."""
    path = graph.nodes[name].labels
    if path is None:
        return no_labels(num_nodes)
    with graph.naming("nodes", name, "labels"):
        return read_label_file(path, num_nodes=num_nodes, budget_bytes=budget_bytes, notes=notes)


def _splits(graph: GraphYaml, name: str, labels: IdArray, options: SourceOptions) -> Splits:
    """Read a type's splits. Without a file, the labelled nodes are split at random."""
    path = graph.nodes[name].splits
    if path is None:
        return random_splits(labels, seed=options.seed)
    with graph.naming("nodes", name, "splits"):
        return read_split_files(path, num_nodes=labels.shape[0], budget_bytes=options.budget_bytes)


def _counts(
    graph: GraphYaml, features: dict[str, FeatureStream], relations: tuple[RelationSource, ...]
) -> dict[str, int]:
    """Return the number of nodes by type.

    A type's number comes from the first of these that exists: ``num_nodes``, feature rows, labels, ids in the edges.
    """
    counts: dict[str, int] = {}
    for name, entry in graph.nodes.items():
        declared = entry.num_nodes
        rows = features[name].num_rows if name in features else None
        if declared is not None and rows is not None and declared != rows:
            raise ShapeError(
                f"{graph.where('nodes', name, 'num_nodes')} is {declared}; {entry.features} has {rows} rows"
            )
        if declared is None and rows is None and entry.labels is not None:
            with graph.naming("nodes", name, "labels"):
                rows = count_labels(entry.labels)
        count = declared if declared is not None else rows
        counts[name] = _largest_id(name, relations) + 1 if count is None else count
    return counts


def _largest_id(name: str, relations: tuple[RelationSource, ...]) -> int:
    """Return a type's largest id in the edges, or -1 without edges. Reads all edges of the type."""
    largest = -1
    for each in relations:
        first, _, last = each.relation
        if name not in (first, last):
            continue
        for chunk in each.edges.chunks(_CHUNK_EDGES):
            for node_type, ids in ((first, chunk.src), (last, chunk.dst)):
                if node_type == name:
                    largest = max(largest, int(ids.max(initial=-1)))
    # More nodes than a dataset may have: the ids are probably no node numbers.
    if largest >= MAX_NODES:
        raise SourceError(f"{name!r} nodes have ids up to {largest} in the edges; give num_nodes")
    return largest
