"""The source ``tables:DIR``: a folder with edge tables, node tables and arrays, described by its ``graph.yaml``.

`open_tables` opens the source: it reads the description, then opens each file with the functions of `edge_list`. If the
description has keys, `keyed_tables` opens it instead. The receipt is the conversion's printed summary. It has a line on
the role of each file's columns.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gloader.convert.readers.node_arrays import count_classes, no_labels, random_splits, require_node_memory
from gloader.convert.readers.open_table import is_pattern
from gloader.convert.readers.table_streams import ColumnNotes
from gloader.convert.source import GraphSource, NodeSource, RelationSource, only_labelled
from gloader.convert.sources.edge_files import open_edge_files
from gloader.convert.sources.edge_list import (
    count_labels,
    held_bytes,
    label_names,
    open_node_features,
    read_label_file,
    read_split_files,
    reading_bytes,
)
from gloader.convert.sources.graph_yaml import description_path, read_graph_yaml
from gloader.convert.sources.keyed_tables import open_keyed
from gloader.dataset.schema import MAX_NODES
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.convert.keyed_graph import KeyedGraph
    from gloader.convert.options import EdgeNames, SourceOptions
    from gloader.convert.source import FeatureStream, Splits
    from gloader.convert.sources.graph_yaml import GraphYaml, NodeEntry
    from gloader.types import IdArray, Relation


# Suffixes of the files that `_unused` reports.
_DATA_FILES = frozenset({".npy", ".npz", ".csv", ".tsv", ".parquet", ".arrow", ".feather", ".ipc", ".mtx"})
_CHUNK_EDGES = 1 << 18  # edges per chunk while the largest id is found


def open_tables(argument: str, options: SourceOptions) -> GraphSource | KeyedGraph:
    """Open the folder ``argument`` as described in its ``graph.yaml``, or a description ``argument`` itself.

    Raises
    ------
    GloaderError
        As `open_described`. SourceError also if the description is missing or malformed.
    """
    graph = read_graph_yaml(Path(argument).expanduser())
    return open_described(graph, f"tables:{argument}", options, unused=_unused(graph))


def open_described(
    graph: GraphYaml, origin: str, options: SourceOptions, *, unused: tuple[str, ...] = ()
) -> GraphSource | KeyedGraph:
    """Open the files of a description.

    A description with keys or tables of nodes gives a `KeyedGraph`; see `open_keyed`. In any other:

    A type's number of nodes is ``num_nodes``, or the number of its feature rows or labels, or the largest id in the
    edges plus one. Without splits, nodes are split at random by ``options.seed``.

    Parameters
    ----------
    graph : the description
    origin : the source as the user wrote it
    options : columns of times and features for all tables, the seed, and the memory budget
    unused : files of the folder that the description does not name

    Raises
    ------
    SourceError
        A file is missing or malformed. The message names the file and its key.
    ShapeError, GraphError
        An array has the wrong shape or dtype.
    ConfigError
        No table has a requested column of times or features.
    BudgetError
        The labels are larger than the memory budget.
    """
    if graph.is_keyed:
        return open_keyed(graph, origin, options, unused=unused)
    labelled_types = [name for name, entry in graph.nodes.items() if entry.labels is not None]
    # Several labelled types, or missing labels, are refused now, before the files are opened.
    if labelled_types or options.needs_labels:
        only_labelled(labelled_types, where=str(graph.path))
    notes = ColumnNotes(lines=list(graph.notes))
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
    labels = _labels(graph, labelled, counts[labelled], options, notes)
    return GraphSource(
        name=graph.name,
        origin=origin,
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
        label_names=label_names(graph.nodes[labelled].labels, labels),
        splits=_splits(graph, labelled, labels, options),
        # Memory for the row offsets and ids of all files (`held_bytes`), and for reading the largest file
        # (`reading_bytes`), because only one file at a time is read.
        resident_bytes=sum(held_bytes(*each) for each in rows.values())
        + sum(held_bytes(each.edge_features) for each in relations)
        + reading_bytes(
            *features.values(), *(part for each in relations for part in (each.edges, each.edge_features))
        ),
        column_notes=tuple(notes.lines),
        unused=(*notes.unused, *unused),
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
    if not description_path(folder).is_file():
        return []
    graph = read_graph_yaml(folder)
    return [graph.path, *graph.files()]


def _relation(
    graph: GraphYaml, relation: Relation, names: EdgeNames, budget_bytes: int, notes: ColumnNotes
) -> RelationSource:
    """Open the files of one relation."""
    entry = graph.edges[relation]
    where = graph.where("edges", ":".join(relation))
    edges, rows = open_edge_files(entry, where=where, names=names, budget_bytes=budget_bytes, notes=notes)
    if relation[0] == relation[2] and entry.is_table and entry.is_matrix:
        from gloader.convert.readers.matrix_market import require_square  # imported late: pyarrow takes 30 MB

        with graph.naming("edges", ":".join(relation)):
            require_square(entry.open())
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


def _labels(
    graph: GraphYaml, name: str, num_nodes: int, options: SourceOptions, notes: ColumnNotes
) -> NDArray[Any]:
    """Read a type's labels, classes (N,) or values (N, k). Without a file, all are -1."""
    path = graph.nodes[name].labels
    if path is None:
        return no_labels(num_nodes)
    with graph.naming("nodes", name, "labels"):
        return read_label_file(
            path,
            num_nodes=num_nodes,
            budget_bytes=options.budget_bytes,
            notes=notes,
            labels_as=options.labels_as,
        )


def _splits(graph: GraphYaml, name: str, labels: NDArray[Any], options: SourceOptions) -> Splits:
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
